// Where the workers of a thread pool sleep, and how few of them are woken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "muses/detail/cache_line.hpp"

namespace muses::detail {

/// What: counts which workers search for jobs and which sleep, and wakes one when a job has come and nobody searches.
/// Complexity: O(1). While no worker sleeps, or one searches, a pusher pays one load and makes no system call.
/// Threads: any.
/// Lifetime: outlives its sleepers.
/// Limits: 2^31 workers.
///
/// Why no job is left while everybody sleeps. Let a push be: make the job visible (a seq_cst store of the lane's count), then read
/// `state_` (seq_cst, in `wake_one`). Let a worker that stops searching do: change `state_` (seq_cst), then read every lane's count
/// (seq_cst). All of these are in one total order, so of a push and a worker that stops searching, at least one sees the other:
///  - the worker sees the job: it does not sleep (`announce_sleep` .. `cancel_sleep`), or, when it stops because it has found a
///    different job and was the last to search, it wakes another worker (`end_search` .. `wake_one`);
///  - or the push reads a state that is later than the worker's change. Then either nobody searches and the push itself wakes a
///    sleeper if there is one, or another worker still searches, and for that one the same argument holds. The last one to search
///    cannot hand the duty on.
/// A woken worker counts as searching from the moment at which it is chosen, not from when it runs: a burst of pushes wakes one
/// worker, which wakes the next when there is more than it can do. If nobody sleeps and nobody searches, all are running, and each
/// searches before it sleeps.
class Parking {
public:
    /// A running worker begins to search.
    void begin_search() noexcept { state_.fetch_add(kSearcher, std::memory_order_seq_cst); }

    /// A worker stops searching because it has a job. True when it was the last one and others sleep: it must look at the lanes
    /// once more, and call `wake_one` if there is another job.
    [[nodiscard]] bool end_search() noexcept {
        const std::uint64_t before = state_.fetch_sub(kSearcher, std::memory_order_seq_cst);  // see the class comment
        return searchers(before) == 1 && sleepers(before) != 0;
    }

    /// A searching worker says that it will sleep. It must look at the lanes once more, then `sleep` or `cancel_sleep`.
    void announce_sleep() noexcept { state_.fetch_add(kSleeper - kSearcher, std::memory_order_seq_cst); }  // see the class comment

    /// Takes the announcement back; the worker searches again. False when all who announced it have been woken meanwhile: then a
    /// permit is there or on its way, and `sleep` takes it.
    [[nodiscard]] bool cancel_sleep() noexcept {
        std::uint64_t state = state_.load(std::memory_order_relaxed);  // only a first guess for the exchange
        while (sleepers(state) != 0) {
            if (state_.compare_exchange_weak(state, state - kSleeper + kSearcher, std::memory_order_seq_cst,
                                             std::memory_order_relaxed))
                return true;
        }
        return false;
    }

    /// Sleeps until woken (true: the worker counts as searching) or until `close` (false: there will never be a job again).
    [[nodiscard]] bool sleep() {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [this] { return permits_ != 0 || closed_; });
        if (permits_ == 0) return false;
        --permits_;
        return true;
    }

    /// Wakes one sleeper unless somebody searches already or nobody sleeps. Call it after a job has been made visible.
    void wake_one() {
        std::uint64_t state = state_.load(std::memory_order_seq_cst);  // see the class comment
        while (searchers(state) == 0 && sleepers(state) != 0) {
            if (!state_.compare_exchange_weak(state, state - kSleeper + kSearcher, std::memory_order_seq_cst,
                                              std::memory_order_seq_cst))
                continue;
            {
                const std::lock_guard lock(mutex_);
                ++permits_;  // one for each sleeper taken off the count: whoever takes it stands in for that one
            }
            woken_.notify_one();
            return;
        }
    }

    /// Wakes all, for good.
    void close() {
        {
            const std::lock_guard lock(mutex_);
            closed_ = true;
        }
        woken_.notify_all();
    }

private:
    static constexpr std::uint64_t kSearcher = 1;
    static constexpr std::uint64_t kSleeper = std::uint64_t{1} << 32U;
    static constexpr std::uint64_t searchers(std::uint64_t state) noexcept { return state & (kSleeper - 1); }
    static constexpr std::uint64_t sleepers(std::uint64_t state) noexcept { return state >> 32U; }

    alignas(kCacheLine) std::atomic<std::uint64_t> state_{
        0};                                 // searchers in the low half, sleepers in the high half; read by every push
    alignas(kCacheLine) std::mutex mutex_;  // guards what follows; used only around sleeping
    std::condition_variable woken_;
    std::size_t permits_ = 0;
    bool closed_ = false;
};

}  // namespace muses::detail
