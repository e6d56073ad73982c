// One lane of a thread pool: a queue that its worker empties and from which the others steal.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "muses/detail/cache_line.hpp"
#include "muses/detail/overflow_policy.hpp"
#include "muses/detail/pool_job.hpp"

namespace muses::detail {

/// What: first-in-first-out queue in two halves, each with its mutex: pushers fill the inbox, takers empty the outbox, and a taker
///       that finds the outbox empty exchanges the two. So a pusher and a taker meet only once per exchange.
///       A lane with a bound keeps all jobs in the outbox, so that its size is exact under one mutex.
/// Complexity: push and take O(1); steal moves at most kStealMax jobs.
/// Threads: any; `steal_from` is called on a worker's own lane by that worker only.
/// Lifetime: owns the queued jobs.
/// Limits: `limit` jobs when it is not 0. Own workers may exceed it under OverflowPolicy::Block, because they must not wait.
///
/// Order of locking: a worker's own outbox, then (only by try_lock) another lane's outbox, then an inbox. No job is run, discarded
/// or destroyed under a lock.
class alignas(kCacheLine) Lane {
public:
    enum class Outcome : std::uint8_t { Queued, Closed, Full };

    static constexpr std::size_t kStealMax = 32;

    /// To be called before the lane is used by a second thread; without it there is no bound.
    void set_bound(std::size_t limit, OverflowPolicy policy) noexcept {
        limit_ = limit;
        policy_ = policy;
    }

    /// Queues `job` when the lane is open or the pusher is one of the pool's own workers. `job` is kept when the outcome is not
    /// Queued, or when std::bad_alloc is thrown. `evicted` becomes the oldest job when the policy asks for its place.
    [[nodiscard]] Outcome push(Job& job, bool own_worker, Job& evicted) {
        if (limit_ != 0) return push_bounded(job, own_worker, evicted);
        const std::lock_guard lock(in_mutex_);
        if (closed_ && !own_worker) return Outcome::Closed;
        inbox_.push(std::move(job));
        pushed(1);
        publish(in_count_, inbox_.size());
        return Outcome::Queued;
    }

    /// Queues all of `jobs` or none: Full when a bound leaves no room for all, whatever the policy. Never waits, never evicts.
    [[nodiscard]] Outcome push_all(JobQueue& jobs, bool own_worker) {
        const std::lock_guard lock(limit_ != 0 ? out_mutex_ : in_mutex_);
        if (closed_ && !own_worker) return Outcome::Closed;
        JobQueue& queue = limit_ != 0 ? outbox_ : inbox_;
        if (limit_ != 0 && (outbox_.size() >= limit_ || jobs.size() > limit_ - outbox_.size())) return Outcome::Full;
        pushed(jobs.size());
        queue.splice(jobs);
        publish(limit_ != 0 ? out_count_ : in_count_, queue.size());
        return Outcome::Queued;
    }

    /// Takes the oldest job into `job`, which must be empty. False when there is none.
    [[nodiscard]] bool take(Job& job) {
        if (queued() == 0) return false;
        bool room = false;
        {
            const std::lock_guard lock(out_mutex_);
            if (outbox_.empty() && !refill()) return false;
            outbox_.pop_into(job);
            taken(out_count_, outbox_.size());
            room = waiting_ != 0 && outbox_.size() < limit_;
        }
        if (room) room_.notify_one();
        return true;
    }

    /// Moves up to half of the victim's jobs: the oldest to `job`, the rest to this lane. False when it has none or is busy.
    [[nodiscard]] bool steal_from(Lane& victim, Job& job) {
        if (victim.queued() == 0) return false;
        const std::lock_guard lock(out_mutex_);
        const std::unique_lock victims_lock(victim.out_mutex_, std::try_to_lock);
        if (!victims_lock || (victim.outbox_.empty() && !victim.refill())) return false;
        std::size_t wanted = std::min(kStealMax, (victim.outbox_.size() + 1) / 2);
        victim.outbox_.pop_into(job);
        try {
            for (; wanted > 1; --wanted) {
                outbox_.push(std::move(victim.outbox_.front()));
                (void)victim.outbox_.pop();  // an empty job: its task has moved on
            }
        } catch (const std::bad_alloc&) {
            // The job that did not fit is still the victim's. One job is stolen in any case.
        }
        // A worker that looks at one lane before these stores and at the other after them may miss what moves. The thief still
        // counts as searching, and looks for others to wake after it (Parking).
        publish(out_count_, outbox_.size());
        taken(victim.out_count_, victim.outbox_.size());
        return true;
    }

    /// From now on only own workers can push. Pushes of others that were not refused have happened before.
    void close() {
        {
            const std::scoped_lock lock(out_mutex_, in_mutex_);
            closed_ = true;
        }
        room_.notify_all();
    }

    /// Whether pushes of threads other than own workers are refused.
    [[nodiscard]] bool closed() {
        const std::lock_guard lock(in_mutex_);
        return closed_;
    }

    /// Jobs in the lane. Exact while nobody pushes or takes. Inbox first: an exchange writes the outbox's count first, so that jobs
    /// that are exchanged are seen in at least one of the two.
    [[nodiscard]] std::size_t queued() const noexcept {
        const std::size_t in = in_count_.load(std::memory_order_seq_cst);  // pairs with publish(); part of Parking's total order
        return in + out_count_.load(std::memory_order_seq_cst);            // the same
    }

    /// Jobs ever queued from outside or by workers; a steal does not count. Relaxed: whoever relies on it has learnt of the push
    /// through something else (PoolCore::quiescent), and then cannot read an older value.
    [[nodiscard]] std::uint64_t submitted() const noexcept { return submitted_.load(std::memory_order_relaxed); }

    /// To be called once after a push of so many jobs that was Queued, as the submitter's last access to the pool.
    void submitter_left(std::size_t jobs) noexcept { left_.fetch_add(jobs, std::memory_order_release); }  // pairs with abandoned()

    /// Whether every submitter has called submitter_left(). For the end of the pool, when no push can begin any more.
    [[nodiscard]] bool abandoned() const noexcept {
        return left_.load(std::memory_order_acquire) == submitted();  // pairs with submitter_left()
    }

private:
    Outcome push_bounded(Job& job, bool own_worker, Job& evicted) {
        std::unique_lock lock(out_mutex_);
        if (policy_ == OverflowPolicy::Block && !own_worker) {
            ++waiting_;
            room_.wait(lock, [this] { return closed_ || outbox_.size() < limit_; });
            --waiting_;
        }
        if (closed_ && !own_worker) return Outcome::Closed;
        const bool full = outbox_.size() >= limit_;
        if (full && policy_ == OverflowPolicy::DropNew) return Outcome::Full;
        outbox_.push(std::move(job));
        if (full && policy_ == OverflowPolicy::DropOldest) evicted = outbox_.pop();
        pushed(1);
        publish(out_count_, outbox_.size());
        return Outcome::Queued;
    }

    // Under out_mutex_, with the outbox empty. False when the inbox is empty too.
    bool refill() {
        if (in_count_.load(std::memory_order_relaxed) == 0) return false;  // a push that is missed here is found by the next search
        const std::lock_guard lock(in_mutex_);
        inbox_.swap(outbox_);
        publish(out_count_, outbox_.size());  // before the inbox's, see queued()
        taken(in_count_, 0);
        return !outbox_.empty();
    }

    void pushed(std::size_t jobs) noexcept {
        // Relaxed load and store instead of an increment: written only under the one mutex that guards pushes.
        submitted_.store(submitted_.load(std::memory_order_relaxed) + jobs, std::memory_order_relaxed);
    }

    // The counts are written under the mutex of their half, and pair with the loads in queued().
    // More jobs: seq_cst, for Parking's argument.
    static void publish(std::atomic<std::size_t>& count, std::size_t value) noexcept {
        count.store(value, std::memory_order_seq_cst);
    }
    // Fewer jobs: who reads it late looks in vain. Release, so that who reads the inbox's zero sees what the outbox got before it.
    static void taken(std::atomic<std::size_t>& count, std::size_t value) noexcept {
        count.store(value, std::memory_order_release);
    }

    alignas(kCacheLine) std::mutex in_mutex_;  // what pushers write
    JobQueue inbox_;
    std::atomic<std::size_t> in_count_{0};
    std::atomic<std::uint64_t> submitted_{0};
    std::atomic<std::uint64_t> left_{0};  // those of submitted_ whose submitter does not touch the pool any more

    alignas(kCacheLine) std::mutex out_mutex_;  // what takers write
    JobQueue outbox_;
    std::atomic<std::size_t> out_count_{0};
    std::size_t waiting_ = 0;  // pushers that wait for room

    alignas(kCacheLine) std::size_t limit_ = 0;  // written rarely
    OverflowPolicy policy_ = OverflowPolicy::DropNew;
    bool closed_ = false;           // written under both mutexes, read under either
    std::condition_variable room_;  // with out_mutex_
};

}  // namespace muses::detail
