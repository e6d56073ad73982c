// The part of BoundedQueue that drops instead of waiting for room: an MpmcRing, and a semaphore for consumers that wait.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "muses/detail/backoff.hpp"
#include "muses/detail/cache_line.hpp"
#include "muses/detail/duration.hpp"
#include "muses/detail/element_batch.hpp"
#include "muses/detail/mpmc_ring.hpp"
#include "muses/detail/semaphore.hpp"

namespace muses::detail {

/// What: a ring whose consumers can sleep, with a count of what was dropped. `Evicting` chooses what push() does when full.
/// Complexity: O(1). With nobody asleep a push is one exchange, and a load that tells so.
/// Threads: all members from any thread, constructor and destructor excepted.
/// Lifetime: must outlive every call; destroys the elements that are left.
/// Limits: those of MpmcRing.
template <class T, bool Evicting, std::unsigned_integral Index>
class WaitableRing {
    using Ring = MpmcRing<T, Index>;

public:
    WaitableRing(std::size_t capacity, RingStart start) : ring_(capacity, Evicting, start) {}

    /// Adds `value`, or refuses it (untouched) when full: counted, or when stopped: not counted.
    bool push_or_refuse(T& value) noexcept {
        const auto claim = try_add(value);
        if (claim == Ring::Claim::Full) dropped_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count, it guards nothing
        return claim == Ring::Claim::Claimed;
    }

    /// Adds `value` and puts into `evicted` what had to make room for it, if anything. False, with `value` untouched: stopped.
    bool push_or_evict(T& value, std::optional<T>& evicted) noexcept {
        Index ticket{};
        Index seen{};
        Backoff backoff;
        for (;;) {
            const auto claim = ring_.claim_any(ticket, seen);
            if (claim == Ring::Claim::Closed) return false;
            if (claim == Ring::Claim::Claimed) break;
            backoff.pause();
        }
        ring_.fill(ticket, std::move(value));
        wake_a_sleeper();
        ring_.evict_excess(ticket, seen, evicted);
        if (evicted) dropped_.fetch_add(1, std::memory_order_relaxed);  // relaxed: as above
        return true;
    }

    /// Adds `value` if there is room and the queue is not stopped; else `value` is untouched.
    bool try_push(T& value) noexcept { return try_add(value) == Ring::Claim::Claimed; }

    std::optional<T> try_pop() noexcept { return ring_.try_pop(); }

    void try_pop_batch(ElementBatch<T>& batch, std::size_t max) noexcept { ring_.try_pop_batch(batch, max); }

    /// Waits for an element until `deadline` or until `*interrupted` (may be null) and interrupt_waiters(). Nothing when one of
    /// these came first, or when the queue is stopped and empty.
    ///
    /// Why no wake-up is lost: a consumer falls asleep only if, after it announced itself, every claimed position was taken. Each
    /// later claim is an exchange of the tail that comes after this look in the single order of seq_cst operations, so its
    /// producer finds a sleeper announced and gives one a permit. A permit says that there is something to look for, not that
    /// the oldest element can be read: its producer may be between its two steps, or somebody else may have been quicker. So
    /// whoever holds one looks until the ring shows an element or is empty, and passes the permit on if it leaves before that.
    std::optional<T> wait_pop_until(SteadyTime deadline, const std::atomic<bool>* interrupted) noexcept {
        if (auto value = ring_.try_pop()) return value;
        Backoff backoff;
        bool permit = false;
        // relaxed: ordered by SleepSemaphore::interrupt() when asked from a sleep, else the next sleep will see it
        const auto cut_off = [&] { return interrupted != nullptr && interrupted->load(std::memory_order_relaxed); };
        while (!cut_off() && (deadline == kNever || std::chrono::steady_clock::now() < deadline)) {
            await_briefly();
            if (auto value = ring_.try_pop()) return value;

            semaphore_.announce();
            const auto front = ring_.front();
            if (front == Ring::Front::Drained) {
                semaphore_.withdraw();
                return std::nullopt;
            }
            if (front == Ring::Front::Empty) {
                backoff = Backoff();
                permit = semaphore_.wait_until(deadline, [&] { return cut_off() || ring_.closed(); }) || semaphore_.withdraw();
                if (auto value = ring_.try_pop()) return value;
                continue;
            }
            // Claimed, but not readable when we last looked.
            permit = semaphore_.withdraw() || permit;
            if (auto value = ring_.try_pop()) return value;
            backoff.pause();
        }
        auto value = ring_.try_pop();
        if (!value && permit) semaphore_.wake_one();
        return value;
    }

    void interrupt_waiters() noexcept { semaphore_.interrupt(); }

    void stop() noexcept {
        ring_.close();
        semaphore_.interrupt();
    }

    [[nodiscard]] bool stopped() const noexcept { return ring_.closed(); }
    [[nodiscard]] bool drained() const noexcept { return ring_.front() == Ring::Front::Drained; }
    [[nodiscard]] std::size_t size_approx() const noexcept { return ring_.size_approx(); }
    [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity(); }
    static constexpr std::size_t slot_size() noexcept { return Ring::slot_size(); }
    [[nodiscard]] std::uint64_t dropped() const noexcept {
        return dropped_.load(std::memory_order_relaxed);  // relaxed: a count, it guards nothing
    }

private:
    // What a consumer does before it sleeps: first looks often, to meet a peer that answers at once, then lets other threads run,
    // one of which may be the producer. All together some 10 microseconds, once per sleep.
    static constexpr int kLooks = 40;
    static constexpr int kYields = 15;
    void await_briefly() noexcept {
        for (int i = 0; i < kLooks; ++i) {
            if (ring_.ready()) return;
            cpu_pause();
        }
        for (int i = 0; i < kYields; ++i) {
            std::this_thread::yield();
            if (ring_.ready()) return;
        }
    }

    typename Ring::Claim try_add(T& value) noexcept {
        Index ticket{};
        const auto claim = ring_.claim_within(ticket);
        if (claim == Ring::Claim::Claimed) {
            ring_.fill(ticket, std::move(value));
            wake_a_sleeper();
        }
        return claim;
    }

    // After the claim, which is seq_cst, and the publication: see SleepSemaphore::has_sleepers().
    void wake_a_sleeper() noexcept {
        if (semaphore_.has_sleepers()) [[unlikely]]
            semaphore_.wake_one();
    }

    Ring ring_;
    // Read by each push, written only when somebody sleeps.
    alignas(kCacheLine) SleepSemaphore<> semaphore_;
    // Written by the producers of a full queue.
    alignas(kCacheLine) std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace muses::detail
