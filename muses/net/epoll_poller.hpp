// Readiness by epoll (Linux). On other systems this header is empty.
#pragma once

#if defined(__linux__)

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "muses/net/poll_event.hpp"
#include "muses/net/unique_fd.hpp"

namespace muses {

/// What: edge-triggered readiness of file descriptors by epoll; see the concept Poller for what each function promises.
/// Complexity: apply is one system call a change, wait one a call, wakeup one a call; 16 bytes for each number up to the
///     highest descriptor ever watched.
/// Threads: wakeup() from any thread or signal handler, all else from one thread at a time.
/// Lifetime: owns its epoll and its eventfd; descriptors watched stay the caller's.
/// Limits: wait() fills at most kMaxBatch events; regular files cannot be watched (EPERM). Of a descriptor closed without
///     Remove whose duplicate is still open the kernel goes on to report events; they are dropped once the number is added anew.
class EpollPoller {
public:
    /// Events that one wait() returns at most.
    static constexpr std::size_t kMaxBatch = 1024;

    /// Throws std::system_error when the system refuses an epoll or an eventfd.
    EpollPoller()
        : epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
          wake_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
          raw_(kMaxBatch) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET;
        event.data.u64 = kWakeTag;
        checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event), "epoll_ctl");
    }
    EpollPoller(const EpollPoller&) = delete;
    EpollPoller& operator=(const EpollPoller&) = delete;
    ~EpollPoller() = default;

    /// Carries out `changes`. Returns the first failure; `errors`, when as long as `changes`, receives every result.
    std::expected<void, PollError> apply(std::span<const PollChange> changes, std::span<std::error_code> errors = {}) noexcept {
        std::expected<void, PollError> result;
        for (std::size_t i = 0; i < changes.size(); ++i) {
            const int error = apply_one(changes[i]);
            const std::error_code code(error, std::system_category());
            if (i < errors.size()) errors[i] = code;
            if (error != 0 && result) result = std::unexpected(PollError{i, code});
        }
        return result;
    }

    /// Waits for events, for at most `timeout` (none: for ever). Returns how many there are in `out`; fails only when the
    /// poller itself is broken, or `out` is empty (EINVAL).
    std::expected<std::size_t, std::error_code> wait(std::span<PollEvent> out,
                                                     std::optional<std::chrono::nanoseconds> timeout) noexcept {
        const int room = static_cast<int>(std::min(out.size(), raw_.size()));
        const int got = ::epoll_wait(epoll_.get(), raw_.data(), room, to_milliseconds(timeout));
        if (got < 0) {
            if (errno == EINTR) return 0;
            return std::unexpected(std::error_code(errno, std::system_category()));
        }
        std::size_t filled = 0;
        for (int i = 0; i < got; ++i) {
            const epoll_event& event = raw_[static_cast<std::size_t>(i)];
            const std::uint64_t tag = event.data.u64;
            if (tag == kWakeTag) continue;
            const auto number = static_cast<std::uint32_t>(tag);
            const Watched& watched = watched_[number];
            if (watched.generation != static_cast<std::uint32_t>(tag >> 32U)) continue;  // an earlier owner of this number
            const EventMask mask = to_mask(event.events, watched.interest);
            if (mask == EventMask::None) continue;
            out[filled++] = PollEvent{static_cast<int>(number), mask, watched.userdata};
        }
        return filled;
    }

    /// Ends the wait under way or else the next one. Any thread; keeps errno.
    void wakeup() noexcept {
        // Each write is an edge of its own for the edge-triggered eventfd, read or not: nobody needs to read the counter, and
        // a write that comes while the previous edge is being reported makes a new one. Only a full counter needs care.
        const int saved = errno;
        const std::uint64_t one = 1;
        while (::write(wake_.get(), &one, sizeof one) < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) break;
            std::uint64_t drained = 0;
            if (::read(wake_.get(), &drained, sizeof drained) < 0 && errno != EAGAIN && errno != EINTR) break;
        }
        errno = saved;
    }

private:
    struct Watched {
        std::uint64_t userdata = 0;
        std::uint32_t generation = 0;  // counts the registrations of this number; part of the kernel's tag
        EventMask interest = EventMask::None;
    };

    static constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};  // no descriptor has the number 2^32 - 1

    static int checked(int result, const char* what) {
        if (result < 0) throw std::system_error(errno, std::system_category(), what);
        return result;
    }

    static int to_milliseconds(std::optional<std::chrono::nanoseconds> timeout) noexcept {
        if (!timeout) return -1;
        if (timeout->count() <= 0) return 0;
        const std::int64_t up = (timeout->count() - 1) / 1'000'000 + 1;  // rounded up: never early
        return static_cast<int>(std::min<std::int64_t>(up, std::numeric_limits<int>::max()));
    }

    static EventMask to_mask(std::uint32_t events, EventMask interest) noexcept {
        EventMask mask = EventMask::None;
        if ((events & EPOLLIN) != 0U) mask |= EventMask::Readable;
        if ((events & EPOLLOUT) != 0U) mask |= EventMask::Writable;
        if ((events & (EPOLLRDHUP | EPOLLHUP)) != 0U) mask |= EventMask::Readable | EventMask::PeerClosed;
        if ((events & EPOLLERR) != 0U) mask |= EventMask::Error;
        // EPOLLHUP comes unasked.
        EventMask wanted = interest | EventMask::Error;
        if (has(interest, EventMask::Readable)) wanted |= EventMask::PeerClosed;
        return mask & wanted;
    }

    int apply_one(const PollChange& change) noexcept {
        if (change.fd < 0) return EBADF;
        const auto number = static_cast<std::size_t>(change.fd);
        if (change.kind == PollChange::Kind::Remove) {
            if (number < watched_.size()) {  // whatever the kernel says: nothing more comes out of this registration
                ++watched_[number].generation;
                watched_[number].interest = EventMask::None;
            }
            epoll_event unused{};
            return ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, change.fd, &unused) == 0 ? 0 : errno;
        }
        const bool add = change.kind == PollChange::Kind::Add;
        const std::uint32_t known = number < watched_.size() ? watched_[number].generation : 0;
        const std::uint32_t generation = add ? known + 1 : known;
        epoll_event event{};
        event.events = EPOLLET;
        if (has(change.interest, EventMask::Readable)) event.events |= EPOLLIN | EPOLLRDHUP;
        if (has(change.interest, EventMask::Writable)) event.events |= EPOLLOUT;
        event.data.u64 = (static_cast<std::uint64_t>(generation) << 32U) | number;
        int result = ::epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, change.fd, &event);
        if (result != 0 && add && errno == EEXIST) result = ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, change.fd, &event);
        if (result != 0) return errno;
        // The table grows only now that the kernel has vouched for the number.
        try {
            if (number >= watched_.size()) watched_.resize(number + 1);
        } catch (const std::bad_alloc&) {
            ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, change.fd, &event);
            return ENOMEM;
        }
        watched_[number] = Watched{change.userdata, generation, change.interest};
        return 0;
    }

    UniqueFd epoll_;
    UniqueFd wake_;
    std::vector<epoll_event> raw_;  // what the kernel fills; kept, so that wait() allocates nothing
    std::vector<Watched> watched_;  // by descriptor number
};

static_assert(Poller<EpollPoller>);

}  // namespace muses

#endif  // __linux__
