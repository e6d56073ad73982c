// A lock for a few instructions.
#pragma once

#include <atomic>

#include "muses/detail/backoff.hpp"

namespace muses::detail {

/// What: mutual exclusion for sections of some nanoseconds that neither wait nor run foreign code; for std::scoped_lock and unique_lock.
/// Complexity: one atomic exchange to lock, a store to unlock: half of what std::mutex costs.
/// Threads: any. Who finds it taken spins, then yields, then sleeps up to a millisecond, so that a holder that was descheduled gets
///     its turn even at a lower priority.
/// Lifetime: destroyed unlocked.
/// Limits: not recursive, not fair.
class SpinLock {
public:
    void lock() noexcept {
        // acquire: pairs with the release in unlock().
        while (taken_.exchange(true, std::memory_order_acquire)) [[unlikely]]
            wait();
    }
    [[nodiscard]] bool try_lock() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }  // acquire: as in lock()
    void unlock() noexcept { taken_.store(false, std::memory_order_release); }

private:
    void wait() const noexcept {
        Backoff backoff;
        do {
            backoff.pause();
        } while (taken_.load(std::memory_order_relaxed));  // relaxed: the exchange that follows decides
    }

    std::atomic<bool> taken_{false};
};

}  // namespace muses::detail
