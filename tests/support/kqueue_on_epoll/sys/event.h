// The part of kqueue(2) that muses::KqueuePoller uses, emulated over epoll and an eventfd, so that the backend is compiled and
// run on Linux as well. For tests only; on a system with a kqueue the tests use that.
//
// What it proves: the backend's own logic. That it builds, the tables and generations, which filters are added and deleted when,
// the reading of receipts, the merging of two filters into one event, the mapping of flags, wakeups, timeouts.
// What it cannot prove: what a real kernel does. In particular: the emulation orders events as epoll does; reports end-of-file
// of the writing filter only for a connection that is gone; the socket's error in `fflags` is always ECONNRESET; a closed
// descriptor is forgotten only when its last duplicate is closed; what is left of a closed kqueue goes with the next one of its number.
// Known: EVFILT_READ, EVFILT_WRITE (EV_ADD, EV_DELETE, EV_CLEAR, EV_RECEIPT), one EVFILT_USER event with EV_CLEAR and NOTE_TRIGGER.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "muses/net/unique_fd.hpp"

struct kevent {
    std::uintptr_t ident;
    short filter;
    unsigned short flags;
    unsigned int fflags;
    std::intptr_t data;
    void* udata;
};

#define EV_SET(event, id, filter_, flags_, fflags_, data_, udata_) (*(event) = kevent{id, filter_, flags_, fflags_, data_, udata_})

enum : short { EVFILT_READ = -1, EVFILT_WRITE = -2, EVFILT_USER = -11 };
enum : unsigned { EV_ADD = 0x1, EV_DELETE = 0x2, EV_CLEAR = 0x20, EV_RECEIPT = 0x40, EV_ERROR = 0x4000, EV_EOF = 0x8000 };
enum : unsigned { NOTE_TRIGGER = 0x01000000 };

namespace kqueue_on_epoll {

// The filters of one direction: an epoll of their own, so that an edge of one direction says nothing of the other.
struct Direction {
    struct Knote {
        std::uint32_t generation = 0;
        void* udata = nullptr;
        bool present = false;
    };

    muses::UniqueFd epoll{::epoll_create1(EPOLL_CLOEXEC)};
    std::map<int, Knote> knotes;

    int add(int fd, std::uint32_t events, void* udata) {
        Knote& knote = knotes[fd];
        epoll_event event{};
        event.events = events;
        event.data.u64 = (std::uint64_t{knote.generation + 1} << 32U) | static_cast<std::uint32_t>(fd);
        if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0 &&
            (errno != EEXIST || ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, fd, &event) != 0))
            return errno;
        knote = Knote{knote.generation + 1, udata, true};
        return 0;
    }

    int remove(int fd) {
        const auto found = knotes.find(fd);
        if (found == knotes.end() || !found->second.present) return ENOENT;
        found->second.present = false;
        epoll_event unused{};
        return ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, &unused) == 0 ? 0 : errno;
    }

    int collect(short filter, struct kevent* out, int room) {
        std::array<epoll_event, 64> raw{};
        int filled = 0;
        while (filled < room) {
            const int asked = std::min(room - filled, static_cast<int>(raw.size()));
            const int got = ::epoll_wait(epoll.get(), raw.data(), asked, 0);
            for (int i = 0; i < got; ++i) {
                const epoll_event& event = raw[static_cast<std::size_t>(i)];
                const auto fd = static_cast<std::uint32_t>(event.data.u64);
                const Knote& knote = knotes[static_cast<int>(fd)];
                if (!knote.present || knote.generation != event.data.u64 >> 32U) continue;
                const bool failed = (event.events & EPOLLERR) != 0U;
                const bool ended = failed || (event.events & (EPOLLHUP | EPOLLRDHUP)) != 0U;
                out[filled++] = {fd,
                                 filter,
                                 static_cast<unsigned short>(EV_CLEAR | (ended ? EV_EOF : 0U)),
                                 failed ? unsigned{ECONNRESET} : 0U,
                                 0,
                                 knote.udata};
            }
            if (got < asked) break;
        }
        return filled;
    }
};

struct Queue {
    std::mutex mutex;  // for what a change touches; a thread that waits does not hold it
    Direction read;
    Direction write;
    muses::UniqueFd user{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    void* user_udata = nullptr;
    bool user_added = false;
    bool write_first = false;  // alternates, so that neither direction starves

    int change(const struct kevent& change) {
        const int fd = static_cast<int>(change.ident);
        if (change.filter == EVFILT_USER) {
            if ((change.flags & EV_ADD) != 0) {
                user_added = true;
                user_udata = change.udata;
            }
            if (!user_added) return ENOENT;
            const std::uint64_t one = 1;
            return (change.fflags & NOTE_TRIGGER) != 0 && ::write(user.get(), &one, sizeof one) < 0 ? errno : 0;
        }
        if (change.filter != EVFILT_READ && change.filter != EVFILT_WRITE) return EINVAL;
        const bool reading = change.filter == EVFILT_READ;
        Direction& direction = reading ? read : write;
        if ((change.flags & EV_DELETE) != 0) return direction.remove(fd);
        if ((change.flags & EV_ADD) == 0) return EINVAL;
        const std::uint32_t edge = (change.flags & EV_CLEAR) != 0 ? std::uint32_t{EPOLLET} : 0U;
        return direction.add(fd, edge | (reading ? EPOLLIN | EPOLLRDHUP : std::uint32_t{EPOLLOUT}), change.udata);
    }

    int collect(struct kevent* out, int room) {
        const std::lock_guard lock(mutex);
        int filled = 0;
        if (std::uint64_t count = 0; ::read(user.get(), &count, sizeof count) > 0)
            out[filled++] = {0, EVFILT_USER, static_cast<unsigned short>(EV_CLEAR), 0, 0, user_udata};
        write_first = !write_first;
        if (write_first) filled += write.collect(EVFILT_WRITE, out + filled, room - filled);
        filled += read.collect(EVFILT_READ, out + filled, room - filled);
        if (!write_first) filled += write.collect(EVFILT_WRITE, out + filled, room - filled);
        return filled;
    }
};

inline std::mutex queues_mutex;
inline std::map<int, std::shared_ptr<Queue>> queues;  // by the number that kqueue() has returned

}  // namespace kqueue_on_epoll

// The descriptor of a queue is an epoll that watches the queue's three: it is readable when any of them has something.
inline int kqueue() {
    auto queue = std::make_shared<kqueue_on_epoll::Queue>();
    const int fd = ::epoll_create1(0);
    if (fd < 0) return fd;
    for (const int part : {queue->read.epoll.get(), queue->write.epoll.get(), queue->user.get()}) {
        epoll_event event{};
        event.events = EPOLLIN;
        ::epoll_ctl(fd, EPOLL_CTL_ADD, part, &event);
    }
    const std::lock_guard lock(kqueue_on_epoll::queues_mutex);
    std::swap(kqueue_on_epoll::queues[fd], queue);
    return fd;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // struct and function of one name, as in the real one
inline int kevent(int fd, const struct kevent* changes, int nchanges, struct kevent* events, int nevents, const timespec* timeout) {
    std::shared_ptr<kqueue_on_epoll::Queue> queue;
    {
        const std::lock_guard lock(kqueue_on_epoll::queues_mutex);
        const auto found = kqueue_on_epoll::queues.find(fd);
        if (found == kqueue_on_epoll::queues.end()) return errno = EBADF, -1;
        queue = found->second;
    }
    int receipts = 0;
    for (int i = 0; i < nchanges; ++i) {
        const std::lock_guard lock(queue->mutex);
        const int error = queue->change(changes[i]);
        if (error == 0 && (changes[i].flags & EV_RECEIPT) == 0) continue;
        if (receipts == nevents) {
            if (error != 0) return errno = error, -1;
            continue;
        }
        events[receipts] = changes[i];
        events[receipts].flags = static_cast<unsigned short>(EV_ERROR);
        events[receipts++].data = error;
    }
    if (receipts > 0 || nevents == 0) return receipts;
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    for (;;) {
        if (const int got = queue->collect(events, nevents); got > 0) return got;
        timespec left{};
        if (timeout != nullptr) {
            const auto limit = std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
            const auto rest = limit - (Clock::now() - begin);
            if (rest <= std::chrono::nanoseconds(0)) return 0;
            left.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(rest).count();
            left.tv_nsec = (rest % std::chrono::seconds(1)).count();
        }
        pollfd ready{fd, POLLIN, 0};
        if (::ppoll(&ready, 1, timeout != nullptr ? &left : nullptr, nullptr) < 0) return -1;
    }
}
#pragma GCC diagnostic pop
