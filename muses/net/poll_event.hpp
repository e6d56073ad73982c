// The vocabulary of readiness: what a poller is told, what it tells, and the concept that every backend meets.
//
// Everything here is edge-triggered: an event says that something has changed since the last one, not that something is so.
// Who gets an event reads (writes) until the system says EAGAIN; there is no second event for bytes that were left lying.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <system_error>

#include "muses/detail/event_mask.hpp"

namespace muses {

/// One readiness event. Readable and Writable are reported only to who asked for them, PeerClosed only to who asked for
/// Readable; Error is reported to everybody. A bit may also be set because it is still true, not because it has just become so.
struct PollEvent {
    int fd = -1;
    EventMask mask = EventMask::None;
    std::uint64_t userdata = 0;  ///< as given with the registration
};

/// One change of what is watched.
struct PollChange {
    enum class Kind : std::uint8_t {
        Add,     ///< watch `fd`; a registration of the same number that is still there is replaced
        Modify,  ///< change interest and userdata, and report again what is ready now; fails when `fd` is not watched
        Remove,  ///< stop watching; no event of this registration is reported by a later wait(); fails when `fd` is not watched
    };

    Kind kind = Kind::Add;
    int fd = -1;
    EventMask interest = EventMask::None;  ///< Readable, Writable, both or none; not used by Remove
    std::uint64_t userdata = 0;            ///< not used by Remove
};

/// A change that the system refused.
struct PollError {
    std::size_t index = 0;  ///< which one of the batch
    std::error_code code;
};

/// What a readiness backend can do.
/// apply: carries out all changes in their order, also those after one that fails. Returns the first failure. When `errors`
///        is as long as `changes`, each of its elements is set: what became of the change of the same index.
/// wait:  blocks until there is an event, wakeup() was called, a signal arrived, or `timeout` is over (none = for ever, zero or
///        negative = not at all; it never ends early, and may end a millisecond late). Returns how many elements of `out` are
///        filled; 0 is not an error. What finds no room in `out` is reported by the next wait, before newer events.
/// wakeup: makes the wait() that is under way, or else the next one, return. Many calls may end only one wait. May be called by
///        any thread, and in a signal handler; all else belongs to one thread.
/// A descriptor that is closed without Remove is forgotten by the kernel (with epoll: when its last duplicate is closed).
template <class P>
concept Poller = requires(P poller, std::span<const PollChange> changes, std::span<std::error_code> errors,
                          std::span<PollEvent> out, std::optional<std::chrono::nanoseconds> timeout) {
    { poller.apply(changes) } noexcept -> std::same_as<std::expected<void, PollError>>;
    { poller.apply(changes, errors) } noexcept -> std::same_as<std::expected<void, PollError>>;
    { poller.wait(out, timeout) } noexcept -> std::same_as<std::expected<std::size_t, std::error_code>>;
    { poller.wakeup() } noexcept;
};

}  // namespace muses
