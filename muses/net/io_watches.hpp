// Which descriptors an event loop watches for whom, and the changes of it that have not gone out to the poller yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/event_mask.hpp"
#include "muses/net/poll_event.hpp"

namespace muses {

/// Who is told of a descriptor's events. Never owned by the loop.
struct IoHandler {
    /// Called on the loop's thread when something has changed (edge-triggered: read or write until EAGAIN). Error alone in `ready`
    /// may also mean that the registration failed: EventLoop::registration_error() tells. Right after a change of interest it may
    /// still be told of what interested it before. May watch and unwatch anything, and may destroy *this after unwatch or forget.
    virtual void on_io(EventMask ready) = 0;

protected:
    IoHandler() = default;
    IoHandler(const IoHandler&) = default;
    IoHandler& operator=(const IoHandler&) = default;
    ~IoHandler() = default;
};

/// What: the name of one watch; the default names none. One whose watch has ended is harmless: it names nothing any more.
/// Complexity: 8 bytes, O(1).
/// Threads: a value.
/// Lifetime: holds nothing.
/// Limits: belongs to the loop that has given it out; a number repeats after 2^32 watches in the same place of its table.
class IoHandle {
public:
    constexpr IoHandle() noexcept = default;

    /// True when it has been given out by watch(), even when that watch has ended since.
    [[nodiscard]] constexpr explicit operator bool() const noexcept { return generation_ != 0; }
    [[nodiscard]] friend constexpr bool operator==(IoHandle, IoHandle) noexcept = default;

private:
    friend class IoWatches;
    friend class EventLoop;
    constexpr IoHandle(std::uint32_t slot, std::uint32_t generation) noexcept : slot_(slot), generation_(generation) {}
    constexpr explicit IoHandle(std::uint64_t userdata) noexcept
        : slot_(static_cast<std::uint32_t>(userdata)), generation_(static_cast<std::uint32_t>(userdata >> 32U)) {}
    [[nodiscard]] constexpr std::uint64_t userdata() const noexcept { return (std::uint64_t{generation_} << 32U) | slot_; }

    std::uint32_t slot_ = 0;
    std::uint32_t generation_ = 0;  // 0 names nothing
};

/// What: the table behind EventLoop::watch: slots with generations, and one pending change at most for each.
/// Complexity: O(1) each; apply O(pending changes).
/// Threads: one thread at a time.
/// Lifetime: owns neither handlers nor descriptors.
/// Limits: one watch for each descriptor; 2^32 - 1 watches. Memory stays at its highest.
class IoWatches {
public:
    /// Begins a watch; its registration is pending. Throws std::bad_alloc.
    IoHandle watch(int fd, EventMask interest, IoHandler& handler) {
        const IoHandle handle = take_slot();
        try {
            queue_change(handle, PollChange::Kind::Add, fd, interest);
        } catch (...) {
            free_slot(handle.slot_);
            throw;
        }
        Slot& slot = slots_[handle.slot_];
        slot.handler = &handler;
        slot.fd = fd;
        return handle;
    }

    /// The same, registered with `poller` at once. Returns its handle, or what the system says. Throws std::bad_alloc.
    template <Poller P>
    std::expected<IoHandle, std::error_code> watch_now(int fd, EventMask interest, IoHandler& handler, P& poller) {
        const IoHandle handle = take_slot();
        const PollChange add{PollChange::Kind::Add, fd, interest, handle.userdata()};
        if (const auto done = poller.apply({&add, 1}); !done) {
            free_slot(handle.slot_);
            return std::unexpected(done.error().code);
        }
        Slot& slot = slots_[handle.slot_];
        slot.handler = &handler;
        slot.fd = fd;
        slot.registered = true;
        return handle;
    }

    /// Changes the interest of a watch that was made by watch_now(), at once. Returns what the system says: no_such_file_or_directory
    /// when the number belongs to another file by now (where the system can tell).
    template <Poller P>
    std::error_code rewatch_now(IoHandle handle, EventMask interest, P& poller) noexcept {
        const PollChange modify{PollChange::Kind::Modify, slots_[handle.slot_].fd, interest, handle.userdata()};
        const auto done = poller.apply({&modify, 1});
        return done ? std::error_code() : done.error().code;
    }

    /// Changes the interest: of the pending change when there is one. Throws std::bad_alloc.
    void rewatch(IoHandle handle, EventMask interest) {
        if (!names(handle)) return;
        const Slot& slot = slots_[handle.slot_];
        if (slot.pending != kNone)
            changes_[slot.pending].interest = interest;
        else
            queue_change(handle, slot.registered ? PollChange::Kind::Modify : PollChange::Kind::Add, slot.fd, interest);
    }

    /// Ends a watch, and takes it out of `poller` at once when it has been registered there: at the end of the turn, the number
    /// might belong to another file.
    /// Returns false when it was not there any more: the descriptor has been closed, or the number belongs to another file.
    template <Poller P>
    bool unwatch(IoHandle handle, P& poller) noexcept {
        if (!names(handle)) return true;
        bool found = true;
        if (const Slot& slot = slots_[handle.slot_]; slot.registered) {
            const PollChange remove{PollChange::Kind::Remove, slot.fd, EventMask::None, 0};
            found = poller.apply({&remove, 1}).has_value();
        }
        end(handle.slot_);
        return found;
    }

    /// Ends a watch without a word to the poller.
    void forget(IoHandle handle) noexcept {
        if (names(handle)) end(handle.slot_);
    }

    /// The handler of a watch that has not ended, else null.
    [[nodiscard]] IoHandler* find(IoHandle handle) const noexcept { return names(handle) ? slots_[handle.slot_].handler : nullptr; }

    /// Why the registration of a watch was refused; no error while it stands, is pending, or has ended.
    [[nodiscard]] std::error_code registration_error(IoHandle handle) const noexcept {
        return names(handle) ? slots_[handle.slot_].error : std::error_code{};
    }

    /// How many watches there are.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// Hands all pending changes to `poller` in one batch. Those that it refuses become failures.
    template <Poller P>
    void apply(P& poller) noexcept {
        if (changes_.empty()) return;
        const bool clean = poller.apply(changes_, errors_).has_value();
        for (std::size_t i = 0; i < changes_.size(); ++i) {
            const IoHandle handle(changes_[i].userdata);
            Slot& slot = slots_[handle.slot_];
            slot.pending = kNone;
            slot.error = errors_[i];
            if (clean || !slot.error) {
                slot.registered = true;
                continue;
            }
            if (slot.error == std::errc::bad_file_descriptor || slot.error == std::errc::no_such_file_or_directory)
                slot.registered = false;  // else a Modify that failed has left the old registration in place
            failed_.push_back(handle);    // room was made in queue_change()
        }
        changes_.clear();
        errors_.clear();
    }

    /// True when take_failures() has something to tell.
    [[nodiscard]] bool has_failures() const noexcept { return !failed_.empty(); }

    /// Calls `tell(handle)` for each watch whose registration has failed since and that has neither ended nor been tried again. `tell`
    /// may change this table, and must not throw.
    template <class F>
    void take_failures(F&& tell) {
        if (failed_.empty()) return;
        telling_.swap(failed_);
        for (const IoHandle handle : telling_)
            if (registration_error(handle)) tell(handle);
        telling_.clear();
    }

private:
    static constexpr std::uint32_t kNone = 0xffffffffU;

    struct Slot {
        IoHandler* handler = nullptr;   // null: free
        std::uint32_t generation = 1;   // grows when the slot is freed; never 0
        std::uint32_t pending = kNone;  // index in changes_; of a free slot: the next free one
        int fd = -1;
        bool registered = false;  // the poller has it
        std::error_code error;    // why it has not
    };

    [[nodiscard]] bool names(IoHandle handle) const noexcept {
        return handle.slot_ < slots_.size() && slots_[handle.slot_].generation == handle.generation_ &&
               slots_[handle.slot_].handler != nullptr;
    }

    IoHandle take_slot() {
        std::uint32_t index = first_free_;
        if (index != kNone) {
            first_free_ = std::exchange(slots_[index].pending, kNone);
        } else {
            if (slots_.size() >= kNone) throw std::bad_alloc();
            index = static_cast<std::uint32_t>(slots_.size());
            slots_.emplace_back();
        }
        ++size_;
        return {index, slots_[index].generation};
    }

    void free_slot(std::uint32_t index) noexcept {
        Slot& slot = slots_[index];
        const std::uint32_t generation = slot.generation + 1;
        slot = Slot{};
        slot.generation = generation == 0 ? 1 : generation;
        slot.pending = std::exchange(first_free_, index);
        --size_;
    }

    // Allocates whatever apply() will need, so that it cannot fail.
    void queue_change(IoHandle handle, PollChange::Kind kind, int fd, EventMask interest) {
        const std::size_t needed = changes_.size() + 1;
        if (errors_.capacity() < needed) errors_.reserve(2 * needed);
        if (failed_.capacity() < failed_.size() + needed) failed_.reserve(failed_.size() + 2 * needed);
        changes_.push_back(PollChange{kind, fd, interest, handle.userdata()});
        errors_.emplace_back();  // one for each change
        slots_[handle.slot_].pending = static_cast<std::uint32_t>(needed - 1);
    }

    // Takes back a change that has not gone out (the last one takes its place in the batch: their order is of no concern), and frees
    // the slot.
    void end(std::uint32_t index) noexcept {
        if (const std::uint32_t at = slots_[index].pending; at != kNone) {
            changes_[at] = changes_.back();
            slots_[IoHandle(changes_[at].userdata).slot_].pending = at;
            changes_.pop_back();
            errors_.pop_back();
        }
        free_slot(index);
    }

    std::vector<Slot> slots_;
    std::uint32_t first_free_ = kNone;
    std::size_t size_ = 0;
    std::vector<PollChange> changes_;      // pending
    std::vector<std::error_code> errors_;  // as many as changes_
    std::vector<IoHandle> failed_;
    std::vector<IoHandle> telling_;  // what take_failures() is telling
};

}  // namespace muses
