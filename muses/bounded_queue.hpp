// A queue of fixed capacity for any number of producers and consumers, with a choice of what happens when it is full.
//
//     muses::BoundedQueue<Job> queue(1024);                                         // full: push says false
//     muses::BoundedQueue<Line, muses::OverflowPolicy::DropOldest> log(4096);       // full: the oldest goes
//     muses::BoundedQueue<File, muses::OverflowPolicy::Block> files(16);            // full: push waits
//
// How it works is told where it is done: detail/mpmc_ring.hpp (the lock-free ring), detail/semaphore.hpp and
// detail/waitable_ring.hpp (consumers that sleep), detail/blocking_deque.hpp (the policy that waits).
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "muses/detail/blocking_deque.hpp"
#include "muses/detail/duration.hpp"
#include "muses/detail/element_batch.hpp"
#include "muses/detail/mpmc_ring.hpp"
#include "muses/detail/overflow_policy.hpp"
#include "muses/detail/stop_token.hpp"
#include "muses/detail/waitable_ring.hpp"

namespace muses {

/// What: bounded FIFO queue for many producers and many consumers; `Policy` says what push() does when it is full. The elements of
///     one producer come out in the order in which it pushed them. push and pop of an element synchronize: the consumer sees what
///     the producer did before.
/// Complexity: O(1) per operation, no allocation after construction (Block allocates as elements come). DropNew, DropOldest: one
///     atomic exchange per operation, no lock, and no system call while nobody sleeps. Block: one mutex.
/// Threads: every member from any thread, constructor and destructor excepted. DropNew and DropOldest work in two steps, claiming a
///     place and finishing with it. A thread that dies or is descheduled in between delays only its place: try_* and DropNew's push
///     go on, at worst saying "full" or "empty" when the ring comes round to that place, and waiting consumers keep waiting for it;
///     DropOldest's push waits when that very place is what it needs to evict or to fill, or when several producers stopped before
///     evicting and the spare places are used up. No element is destroyed, constructed
///     or hashed between the two steps or under the lock, they are only moved.
/// Lifetime: the queue must outlive every call, also that of a producer whose element has been popped already. What is left is
///     destroyed with the queue.
/// Limits: 1 <= capacity <= 2^(bits of Index - 2), and no more than memory can hold; exact while no operation is in flight. The ring
///     takes a power of two of slots, each the size of T plus one Index (DropOldest: of capacity + min(capacity, 8)).
///     T must move and be destroyed without throwing; it may be move-only, over-aligned and without default constructor. Index is
///     for tests of wrap-around: below 32 bits it serves one producer and one consumer.
template <class T, OverflowPolicy Policy = OverflowPolicy::DropNew, std::unsigned_integral Index = std::uint64_t>
class BoundedQueue {
    static_assert(std::is_object_v<T> && !std::is_array_v<T> && !std::is_const_v<T> && !std::is_volatile_v<T>,
                  "BoundedQueue: the element type must be an object type that is neither an array nor const; wrap it in a struct");
    static_assert(std::is_nothrow_move_constructible_v<T>,
                  "BoundedQueue: moving an element must not throw, or elements could be lost halfway; declare the move constructor "
                  "noexcept, or queue std::unique_ptr<T>");
    static_assert(std::is_nothrow_destructible_v<T>, "BoundedQueue: the destructor of an element must not throw");
    static_assert(!std::same_as<Index, bool> && sizeof(Index) <= sizeof(std::uint64_t),
                  "BoundedQueue: the index must be an unsigned integer of 8 to 64 bits");

    static constexpr bool kBlocks = Policy == OverflowPolicy::Block;
    static constexpr bool kEvicts = Policy == OverflowPolicy::DropOldest;

public:
    using value_type = T;
    static constexpr OverflowPolicy kPolicy = Policy;

    /// A queue for exactly `capacity` elements. Throws std::invalid_argument for 0 and for more than max_capacity(), before anything
    /// is allocated; std::bad_alloc when the memory is not there.
    explicit BoundedQueue(std::size_t capacity) : BoundedQueue(capacity, detail::RingStart{}) {}

    /// For tests: the first element gets position `start`, so that indexes can be made to wrap soon.
    BoundedQueue(std::size_t capacity, detail::RingStart start)
        requires(!kBlocks)
        : core_(checked(capacity), start) {}
    BoundedQueue(std::size_t capacity, detail::RingStart /*start*/)
        requires kBlocks
        : core_(checked(capacity)) {}

    BoundedQueue(const BoundedQueue&) = delete;
    BoundedQueue& operator=(const BoundedQueue&) = delete;
    ~BoundedQueue() = default;

    // --- adding

    /// Adds `value` at the end. True when it was added. When the queue is full: DropNew refuses it (false, counted in dropped());
    /// DropOldest discards the oldest element (true, counted); Block waits for room. False after stop(), not counted.
    /// Block may throw std::bad_alloc, and then the queue is as before.
    bool push(T value) noexcept(!kBlocks) {
        if constexpr (kBlocks) {
            return core_.push_until(value, detail::kNever);
        } else if constexpr (kEvicts) {
            std::optional<T> evicted;  // destroyed at the end, when its place is free already
            return core_.push_or_evict(value, evicted);
        } else {
            return core_.push_or_refuse(value);
        }
    }

    /// push() of T(args...). The element is constructed first, so a constructor that throws leaves the queue as before.
    template <class... Args>
        requires std::constructible_from<T, Args...>
    bool emplace(Args&&... args) {
        return push(T(std::forward<Args>(args)...));
    }

    /// push() that hands back the element that had to make room, counted in dropped() all the same; nothing when there was room.
    /// After stop() it hands back `value` itself. With several producers at once each eviction is handed to one of them; it may be
    /// an element just pushed by the same call, when others have filled the queue behind it.
    [[nodiscard]] std::optional<T> push_evicting(T value) noexcept
        requires kEvicts
    {
        std::optional<T> evicted;
        if (!core_.push_or_evict(value, evicted)) evicted.emplace(std::move(value));
        return evicted;
    }

    /// Adds `value` if there is room: never waits and never evicts. False when full or stopped: then `value` is untouched, and
    /// nothing is counted. Block may throw std::bad_alloc, which leaves `value` untouched too.
    [[nodiscard]] bool try_push(T&& value) noexcept(!kBlocks) { return core_.try_push(value); }

    /// Waits up to `timeout` for room. False when it ran out or the queue is stopped: then `value` is untouched. Negative is 0, more
    /// than a year is for ever. May throw std::bad_alloc, which leaves `value` untouched too.
    template <class Rep, class Period>
    [[nodiscard]] bool wait_push(T&& value, std::chrono::duration<Rep, Period> timeout)
        requires kBlocks
    {
        return core_.push_until(value, detail::deadline_after(timeout));
    }

    // --- taking

    /// Takes the oldest element; nothing when there is none, or (DropNew, DropOldest) when its producer is just about to finish it.
    [[nodiscard]] std::optional<T> try_pop() noexcept { return core_.try_pop(); }

    /// Waits for an element. Nothing only when the queue is stopped and empty.
    [[nodiscard]] std::optional<T> wait_pop() noexcept { return core_.wait_pop_until(detail::kNever, nullptr); }

    /// Waits up to `timeout` for an element. Nothing when it ran out, or when the queue is stopped and empty. Negative is 0, more
    /// than a year is for ever.
    template <class Rep, class Period>
    [[nodiscard]] std::optional<T> wait_pop(std::chrono::duration<Rep, Period> timeout) noexcept {
        return core_.wait_pop_until(detail::deadline_after(timeout), nullptr);
    }

    /// Waits for an element until a stop is requested through `token`: muses::stop_token, std::stop_token, or any type that has
    /// stop_requested() (one without a callback_type is asked every 10 ms). Nothing when the stop came first, or when the queue is
    /// stopped and empty. An element that is there is taken even if a stop was requested before.
    template <StopTokenLike Token>
    [[nodiscard]] std::optional<T> wait_pop(Token token) {
        if (auto value = core_.try_pop()) return value;
        std::atomic<bool> interrupted{false};
        using Callback = detail::StopCallbackFor<Token, Interrupt>;
        if constexpr (!std::is_void_v<Callback>) {
            const Callback callback(token, Interrupt{&core_, &interrupted});
            return core_.wait_pop_until(detail::kNever, &interrupted);
        } else {
            for (;;) {
                if (auto value = core_.wait_pop_until(detail::deadline_after(kPollInterval), nullptr)) return value;
                if (token.stop_requested() || core_.drained()) return core_.try_pop();
            }
        }
    }

    /// Takes up to `max` elements, oldest first, and writes them to `out`. Never waits. Returns how many. If writing throws, the
    /// element being written and the few (at most 31) that were taken along with it are destroyed.
    template <class OutputIt>
    std::size_t try_pop_bulk(OutputIt out, std::size_t max) {
        std::size_t taken = 0;
        while (taken < max) {
            detail::ElementBatch<T> batch;
            core_.try_pop_batch(batch, max - taken);
            const std::size_t count = batch.size();
            if (count == 0) break;
            out = batch.write_to(std::move(out));
            taken += count;
        }
        return taken;
    }

    // --- the end, and observers

    /// From now on nothing is added, and whoever waits returns: producers with false, consumers once the queue is empty. What is
    /// queued can still be taken. It is a state: who comes later sees it at once. Twice is fine.
    void stop() noexcept { core_.stop(); }

    /// True after stop().
    [[nodiscard]] bool stopped() const noexcept { return core_.stopped(); }

    /// Elements queued, between 0 and capacity(); may be out of date when it returns.
    [[nodiscard]] std::size_t size_approx() const noexcept { return core_.size_approx(); }

    /// Elements dropped since construction: those that push() or emplace() refused because the queue was full (DropNew), and those
    /// evicted (DropOldest), handed back or not. Exact: pushed = popped + dropped() + queued, where pushed counts the calls of push,
    /// emplace and push_evicting before stop() and the successful try_push. 0 with Block.
    [[nodiscard]] std::uint64_t dropped() const noexcept { return core_.dropped(); }

    /// What the constructor was given.
    [[nodiscard]] std::size_t capacity() const noexcept { return core_.capacity(); }

    /// The greatest capacity that the constructor does not refuse.
    [[nodiscard]] static constexpr std::size_t max_capacity() noexcept {
        constexpr std::uint64_t kByIndex = std::uint64_t{1} << (std::numeric_limits<Index>::digits - 2);
        // Rounding up to a power of two at most doubles the number of slots.
        constexpr std::uint64_t kByMemory = static_cast<std::uint64_t>(PTRDIFF_MAX) / Core::slot_size() / 2;
        return static_cast<std::size_t>(kByIndex < kByMemory ? kByIndex : kByMemory);
    }

private:
    using Core = std::conditional_t<kBlocks, detail::BlockingDeque<T>, detail::WaitableRing<T, kEvicts, Index>>;

    static constexpr std::chrono::milliseconds kPollInterval{10};

    // Runs on the thread that requests the stop.
    struct Interrupt {
        Core* core;
        std::atomic<bool>* interrupted;
        void operator()() const noexcept {
            interrupted->store(true,
                               std::memory_order_relaxed);  // relaxed: interrupt_waiters() orders it before each waiter's look
            core->interrupt_waiters();
        }
    };

    static std::size_t checked(std::size_t capacity) {
        if (capacity == 0) throw std::invalid_argument("BoundedQueue: the capacity must be at least 1");
        if (capacity > max_capacity())
            throw std::invalid_argument("BoundedQueue: the capacity is too large for the index or for memory");
        return capacity;
    }

    Core core_;
};

}  // namespace muses
