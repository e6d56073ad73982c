// Readiness by kqueue (macOS, FreeBSD, NetBSD 10, OpenBSD with EVFILT_USER). Empty where there is no <sys/event.h>.
#pragma once

// EV_SET is a macro everywhere: it tells that a program has brought kqueue from elsewhere (libkqueue, a test's emulation).
#if defined(EV_SET) || __has_include(<sys/event.h>)

#include <fcntl.h>
#include <sys/types.h>
#ifndef EV_SET
#include <sys/event.h>
#endif
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/net/poll_event.hpp"
#include "muses/net/unique_fd.hpp"

namespace muses {

/// What: edge-triggered readiness of file descriptors by kqueue; see the concept Poller for what each function promises.
/// Complexity: apply is one system call for about thirty changes, wait one a call, wakeup one a call; 32 bytes for each number
///     up to the highest descriptor ever watched.
/// Threads: wakeup() from any thread or signal handler, all else from one thread at a time.
/// Lifetime: owns its kqueue; descriptors watched stay the caller's. A kqueue does not survive fork in the child.
/// Limits: wait() fills at most kMaxBatch events. The system has one filter for each direction: the events of both that one wait
///     finds are merged into one. A Modify that fails half-way leaves the half that the system took. Modify and Remove of a
///     descriptor that was closed without Remove may not fail, as they do with epoll.
class KqueuePoller {
public:
    /// Events that one wait() returns at most.
    static constexpr std::size_t kMaxBatch = 1024;

    /// Throws std::system_error when the system refuses a kqueue or its wakeup event.
    KqueuePoller() : kqueue_(checked(::kqueue(), "kqueue")), raw_(kMaxBatch) {
        checked(::fcntl(kqueue_.get(), F_SETFD, FD_CLOEXEC), "fcntl");
        const struct kevent wake = make(kWakeIdent, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0);
        checked(::kevent(kqueue_.get(), &wake, 1, nullptr, 0, nullptr), "kevent");
    }
    KqueuePoller(const KqueuePoller&) = delete;
    KqueuePoller& operator=(const KqueuePoller&) = delete;
    ~KqueuePoller() = default;

    /// Carries out `changes`. Returns the first failure; `errors`, when as long as `changes`, receives every result.
    std::expected<void, PollError> apply(std::span<const PollChange> changes, std::span<std::error_code> errors = {}) noexcept {
        Batch batch;
        Results results{changes, errors, {}};
        if (errors.size() >= changes.size())
            std::fill_n(errors.begin(), changes.size(), std::error_code(0, std::system_category()));
        for (std::size_t i = 0; i < changes.size(); ++i) {
            if (batch.size + 2 > Batch::kRoom) flush(batch, results);
            if (const int error = add_to(batch, changes[i], i); error != 0) results.fail(i, error);
        }
        flush(batch, results);
        return results.first;
    }

    /// Waits for events, for at most `timeout` (none: for ever). Returns how many there are in `out`; fails only when the
    /// poller itself is broken, or `out` is empty (EINVAL).
    std::expected<std::size_t, std::error_code> wait(std::span<PollEvent> out,
                                                     std::optional<std::chrono::nanoseconds> timeout) noexcept {
        if (out.empty()) return std::unexpected(std::error_code(EINVAL, std::system_category()));
        const int room = static_cast<int>(std::min(out.size(), raw_.size()));
        timespec limit{};
        if (timeout) {
            // Some systems refuse a time that is too far away; a wait that ends after a day has only nothing to tell.
            const auto clamped =
                std::clamp<std::chrono::nanoseconds>(*timeout, std::chrono::nanoseconds{0}, std::chrono::hours{24});
            const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(clamped);
            limit.tv_sec = static_cast<time_t>(seconds.count());
            limit.tv_nsec = static_cast<long>((clamped - seconds).count());
        }
        const int got = ::kevent(kqueue_.get(), nullptr, 0, raw_.data(), room, timeout ? &limit : nullptr);
        if (got < 0) {
            if (errno == EINTR) return 0;
            return std::unexpected(std::error_code(errno, std::system_category()));
        }
        ++round_;
        std::size_t filled = 0;
        for (int i = 0; i < got; ++i) {
            const struct kevent& event = raw_[static_cast<std::size_t>(i)];
            if (event.filter == EVFILT_USER) continue;
            const auto number = static_cast<std::size_t>(event.ident);
            if (number >= watched_.size()) continue;
            Watched& watched = watched_[number];
            if (!watched.active || watched.generation != from_udata(event.udata)) continue;  // an earlier owner of this number
            if (watched.round == round_) {
                out[watched.position].mask |= to_mask(event);
                continue;
            }
            watched.round = round_;
            watched.position = static_cast<std::uint32_t>(filled);
            out[filled++] = PollEvent{static_cast<int>(number), to_mask(event), watched.userdata};
        }
        return filled;
    }

    /// Ends the wait under way or else the next one. Any thread; keeps errno.
    void wakeup() noexcept {
        const int saved = errno;
        const struct kevent trigger = make(kWakeIdent, EVFILT_USER, 0, NOTE_TRIGGER, 0);
        while (::kevent(kqueue_.get(), &trigger, 1, nullptr, 0, nullptr) < 0 && errno == EINTR) {}
        errno = saved;
    }

private:
    struct Watched {
        std::uint64_t userdata = 0;
        std::uint64_t round = 0;              // the wait that has last reported this number ...
        std::uint32_t position = 0;           // ... and where
        std::uint32_t generation = 0;         // counts the registrations of this number; the filters' udata
        EventMask filters = EventMask::None;  // which filters the kernel should have
        bool active = false;
    };

    // Kernel changes on their way, each with the PollChange that it belongs to.
    struct Batch {
        static constexpr std::size_t kRoom = 64;
        struct Origin {
            std::size_t change = 0;
            std::uint32_t generation = 0;
            EventMask filter = EventMask::None;
            bool may_fail = false;  // the deletion of a filter that may not be there
        };
        std::array<struct kevent, kRoom> changes;
        std::array<Origin, kRoom> origins;
        std::size_t size = 0;
    };

    struct Results {
        std::span<const PollChange> changes;
        std::span<std::error_code> errors;
        std::expected<void, PollError> first;

        void fail(std::size_t index, int error) noexcept {
            const std::error_code code(error, std::system_category());
            if (errors.size() >= changes.size() && !errors[index]) errors[index] = code;
            if (first.has_value() || index < first.error().index) first = std::unexpected(PollError{index, code});
        }
    };

    static constexpr std::uintptr_t kWakeIdent = 0;  // EVFILT_USER has numbers of its own

    static int checked(int result, const char* what) {
        if (result < 0) throw std::system_error(errno, std::system_category(), what);
        return result;
    }

    // `udata` is a pointer, on older systems an integer.
    template <class U>
    static std::uint32_t from_udata(U udata) noexcept {
        if constexpr (std::is_pointer_v<U>)
            return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(udata));
        else
            return static_cast<std::uint32_t>(udata);
    }

    template <class U>
    static U to_udata(std::uint32_t generation) noexcept {
        if constexpr (std::is_pointer_v<U>)
            return reinterpret_cast<U>(static_cast<std::uintptr_t>(generation));
        else
            return static_cast<U>(generation);
    }

    // The types of the fields differ from system to system, hence the casts to whatever they are.
    static struct kevent make(std::uintptr_t ident, int filter, unsigned flags, unsigned fflags,
                              std::uint32_t generation) noexcept {
        struct kevent event{};
        event.ident = static_cast<decltype(event.ident)>(ident);
        event.filter = static_cast<decltype(event.filter)>(filter);
        event.flags = static_cast<decltype(event.flags)>(flags);
        event.fflags = static_cast<decltype(event.fflags)>(fflags);
        event.udata = to_udata<decltype(event.udata)>(generation);
        return event;
    }

    static EventMask to_mask(const struct kevent& event) noexcept {
        const bool reading = event.filter == EVFILT_READ;
        EventMask mask = reading ? EventMask::Readable : EventMask::Writable;
        if ((event.flags & EV_EOF) != 0) {
            // End-of-file of the writing filter is no word of the peer's: an own shutdown causes it, too.
            if (reading) mask |= EventMask::PeerClosed;
            if (event.fflags != 0) mask |= EventMask::Error;  // the socket's error
        }
        if ((event.flags & EV_ERROR) != 0) mask |= EventMask::Error;
        return mask;
    }

    // Puts what `change` means for the kernel into the batch, and what is then true into the table; flush() corrects that for
    // what the kernel refuses. Returns an error when there is nothing to ask the kernel.
    int add_to(Batch& batch, const PollChange& change, std::size_t index) noexcept {
        if (change.fd < 0) return EBADF;
        const auto number = static_cast<std::size_t>(change.fd);
        if (number >= watched_.size()) {
            // The table grows only for a number that exists.
            if (::fcntl(change.fd, F_GETFD) < 0) return errno;
            if (change.kind != PollChange::Kind::Add) return ENOENT;
            try {
                watched_.resize(number + 1);
            } catch (const std::bad_alloc&) {
                return ENOMEM;
            }
        }
        Watched& watched = watched_[number];
        const bool add = change.kind == PollChange::Kind::Add;
        if (!add && !watched.active) return ENOENT;
        if (add) ++watched.generation;
        const bool remove = change.kind == PollChange::Kind::Remove;
        const EventMask wanted = remove ? EventMask::None : change.interest & (EventMask::Readable | EventMask::Writable);
        for (const EventMask filter : {EventMask::Readable, EventMask::Writable}) {
            const bool want = has(wanted, filter);
            if (!want && !has(watched.filters, filter)) continue;
            // EV_ADD of a filter that is there evaluates it anew, which is the re-arming that Modify promises. EV_CLEAR is the edge.
            // EV_RECEIPT has the result of every change reported, and in their order.
            const unsigned flags = want ? EV_ADD | EV_CLEAR | EV_RECEIPT : EV_DELETE | EV_RECEIPT;
            batch.changes[batch.size] =
                make(number, filter == EventMask::Readable ? EVFILT_READ : EVFILT_WRITE, flags, 0, watched.generation);
            // A filter left over from a descriptor that was closed under this number is gone already.
            batch.origins[batch.size] = {index, watched.generation, filter, add && !want};
            ++batch.size;
        }
        watched.filters = wanted;
        watched.active = !remove;
        if (!remove) watched.userdata = change.userdata;
        return 0;
    }

    void flush(Batch& batch, Results& results) noexcept {
        if (batch.size == 0) return;
        const std::size_t size = std::exchange(batch.size, 0);
        std::array<struct kevent, Batch::kRoom> receipts;
        const timespec at_once{};
        const int got = ::kevent(kqueue_.get(), batch.changes.data(), static_cast<int>(size), receipts.data(),
                                 static_cast<int>(size), &at_once);
        if (got < 0 && errno == EINTR) return;  // then all changes have been carried out, says the manual
        const int failure = got < 0 ? errno : EIO;
        for (std::size_t i = 0; i < size; ++i) {
            const struct kevent& receipt = receipts[i];
            const bool received = got > 0 && i < static_cast<std::size_t>(got) && (receipt.flags & EV_ERROR) != 0;
            const int error = received ? static_cast<int>(receipt.data) : failure;
            const Batch::Origin& origin = batch.origins[i];
            if (error == 0 || origin.may_fail) continue;
            const PollChange& change = results.changes[origin.change];
            results.fail(origin.change, error);
            Watched& watched = watched_[static_cast<std::size_t>(change.fd)];
            if (watched.generation != origin.generation || change.kind == PollChange::Kind::Remove) continue;
            watched.filters = watched.filters & (origin.filter == EventMask::Readable ? EventMask::Writable : EventMask::Readable);
            if (change.kind == PollChange::Kind::Add || watched.filters == EventMask::None) withdraw(change.fd, watched);
        }
    }

    // Takes back the half of a failed registration that the kernel did accept.
    void withdraw(int fd, Watched& watched) noexcept {
        watched.active = false;
        for (const EventMask filter : {EventMask::Readable, EventMask::Writable}) {
            if (!has(watched.filters, filter)) continue;
            const struct kevent change =
                make(static_cast<std::uintptr_t>(fd), filter == EventMask::Readable ? EVFILT_READ : EVFILT_WRITE, EV_DELETE, 0,
                     watched.generation);
            ::kevent(kqueue_.get(), &change, 1, nullptr, 0, nullptr);
        }
        watched.filters = EventMask::None;
    }

    UniqueFd kqueue_;
    std::vector<struct kevent> raw_;  // what the kernel fills; kept, so that wait() allocates nothing
    std::vector<Watched> watched_;    // by descriptor number
    std::uint64_t round_ = 0;         // counts the waits
};

static_assert(Poller<KqueuePoller>);

}  // namespace muses

#endif  // kqueue
