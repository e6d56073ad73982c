// The engine of ThreadPool: lanes, workers, quiescence and shutdown. Lives as long as the pool or the last of its workers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "muses/detail/block_loop.hpp"
#include "muses/detail/cache_line.hpp"
#include "muses/detail/duration.hpp"
#include "muses/detail/pool_job.hpp"
#include "muses/detail/pool_lane.hpp"
#include "muses/detail/pool_options.hpp"
#include "muses/detail/pool_parking.hpp"
#include "muses/detail/this_thread.hpp"

namespace muses::detail {

class PoolCore;

/// What the calling thread is doing for a pool: it is one of its workers, or it discards one of its jobs. Contexts nest, since a
/// job that is discarded may, while it is destroyed, discard another or destroy its pool.
struct PoolContext {
    const PoolCore* core;
    std::size_t lane;           // of a worker
    bool worker;                // may submit while the pool stops
    std::uint64_t held;         // jobs in this thread's hands that do not count as finished yet: 0 or 1
    std::uint64_t excused = 0;  // those of them that the pool's destructor did not wait for, because it ran inside of them
    PoolContext* outer = nullptr;

    static PoolContext*& top() noexcept {
        static thread_local constinit PoolContext* context = nullptr;
        return context;
    }

    PoolContext(const PoolCore* c, bool is_worker, std::size_t lane_index, std::uint64_t jobs) noexcept
        : core(c), lane(lane_index), worker(is_worker), held(jobs), outer(std::exchange(top(), this)) {}
    PoolContext(const PoolContext&) = delete;
    PoolContext& operator=(const PoolContext&) = delete;
    ~PoolContext() { top() = outer; }
};

/// What: everything of a ThreadPool but its threads.
/// Complexity: a push or a take is a short critical section on a lane; counters are written by one thread or under a lane's lock,
///             so that the common path has no atomic read-modify-write that is shared by all threads.
/// Threads: any.
/// Lifetime: in a shared_ptr held by the pool and by every worker; the destructor waits for submitters that are still inside.
/// Limits: see ThreadPool.
///
/// Why a submitter needs no shared_ptr. From the moment at which a job can be taken, it may run, destroy the pool, and end the last
/// worker, while its submitter is still about to wake somebody. So every submitter says when it has done with the core
/// (Lane::submitter_left, its very last access), and the core's destructor waits until as many jobs were left alone as were
/// submitted. It knows of all of them: a core dies after its last job was taken, which was after that job was counted as submitted,
/// under the lane's mutex. Between the two a submitter only wakes a sleeper: it runs no foreign code and takes no lock that is held
/// for long, so the wait is short, and nobody can wait for himself.
class PoolCore : public std::enable_shared_from_this<PoolCore> {
public:
    PoolCore(std::size_t workers, ThreadPoolOptions options)
        : options_(std::move(options)),
          workers_(workers),
          // A bound holds for the pool as a whole, and "the oldest" means the oldest of all: such a pool has one lane.
          lane_count_(options_.max_queued == 0 ? workers : 1),
          lanes_(std::make_unique<Lane[]>(lane_count_)),
          finished_(std::make_unique<Finished[]>(workers)) {
        if (options_.max_queued != 0) lanes_[0].set_bound(options_.max_queued, options_.overflow);
        (void)job_discarded_error();  // while memory can be asked for
    }

    PoolCore(const PoolCore&) = delete;
    PoolCore& operator=(const PoolCore&) = delete;

    ~PoolCore() {
        for (std::size_t i = 0; i < lane_count_; ++i) {
            for (int round = 0; !lanes_[i].abandoned(); ++round) {
                if (round < kYieldsBeforeSleep)
                    std::this_thread::yield();
                else
                    std::this_thread::sleep_for(std::chrono::microseconds(50));  // lets threads of lower priority run, too
            }
        }
    }

    [[nodiscard]] std::size_t workers() const noexcept { return workers_; }

    /// Whether jobs of one submission may have to wait or evict, so that they can't go in together.
    [[nodiscard]] bool adds_one_by_one() const noexcept {
        return options_.max_queued != 0 && options_.overflow != OverflowPolicy::DropNew;
    }

    [[nodiscard]] bool on_own_worker() const noexcept { return worker_context() != nullptr; }

    [[nodiscard]] std::size_t queued() const noexcept {
        std::size_t sum = 0;
        for (std::size_t i = 0; i < lane_count_; ++i) sum += lanes_[i].queued();
        return sum;
    }

    // Relaxed: statistics, ordered with nothing.
    [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t hook_errors() const noexcept { return hook_errors_.load(std::memory_order_relaxed); }

    /// The innermost context of the calling thread for this pool, or null.
    [[nodiscard]] PoolContext* context() const noexcept {
        PoolContext* c = PoolContext::top();
        while (c != nullptr && c->core != this) c = c->outer;
        return c;
    }

    /// Queues a job. Throws PoolStopped, PoolQueueFull or std::bad_alloc; then the job is still the caller's. The job may destroy
    /// the pool and this core at any time after.
    void add(Job& job) {
        const PoolContext* const me = worker_context();
        Lane& lane = lane_for(me);
        // What is evicted is destroyed here, and may take any time and do anything.
        const auto self = options_.overflow == OverflowPolicy::DropOldest ? shared_from_this() : nullptr;
        Job evicted;
        check(lane.push(job, me != nullptr, evicted), 1);
        {
            const Leaving leaving(lane, 1);
            parking_.wake_one();
        }
        if (evicted) drop(evicted);
    }

    /// Queues all of `jobs`, or throws as `add` does and queues none.
    void add_all(JobQueue& jobs) {
        const PoolContext* const me = worker_context();
        Lane& lane = lane_for(me);
        const std::size_t count = jobs.size();
        check(lane.push_all(jobs, me != nullptr), count);
        const Leaving leaving(lane, count);
        parking_.wake_one();  // one is enough: it steals half, and wakes the next
    }

    /// Runs a loop on this thread and on workers that find no job meanwhile; returns when all its blocks have ended. The caller
    /// holds the core.
    void run_loop(const std::shared_ptr<BlockLoop>& loop, std::uint64_t helpers) {
        LoopOffer offer{.loop = loop, .places = helpers};
        loops_.put_up(offer);
        parking_.wake_one();  // one is enough: it wakes the next
        loop->work();
        loops_.take_down(offer);
        loop->join();
    }

    /// Throws PoolStopped when the calling thread may not submit any more.
    void check_open() {
        if (worker_context() == nullptr && lanes_[0].closed()) check(Lane::Outcome::Closed, 0);
    }

    /// Waits until nothing is queued or running, or until the deadline; returns whether nothing is.
    bool wait_empty(SteadyTime deadline) {
        if (context() != nullptr)
            throw std::logic_error("muses::ThreadPool: wait_empty inside one of the pool's own jobs would wait for itself");
        if (quiescent()) return true;
        std::unique_lock lock(idle_mutex_);
        waiters_.fetch_add(1, std::memory_order_relaxed);  // read as a hint, or under idle_mutex_
        const auto done = [this] { return quiescent(); };
        bool empty = true;
        if (deadline == kNever)
            idle_.wait(lock, done);
        else
            empty = idle_.wait_until(lock, deadline, done);
        waiters_.fetch_sub(1, std::memory_order_relaxed);
        return empty;
    }

    /// Refuses new work except from own workers, and lets the workers end when nothing is left. Returns at once.
    void stop() {
        for (std::size_t i = 0; i < lane_count_; ++i) lanes_[i].close();
        {
            const std::lock_guard lock(idle_mutex_);
            closed_ = true;
        }
        announce_if_quiescent();
    }

    /// The same, and drops what is queued and what own workers still submit.
    void stop_discarding() {
        const auto self = shared_from_this();                // a job that dies here may hold the last owner of the pool
        discarding_.store(true, std::memory_order_relaxed);  // the lanes' mutexes carry it to whoever takes a job pushed after
        stop();
        Job job;
        for (std::size_t i = 0; i < lane_count_; ++i) {
            while (lanes_[i].take(job)) drop(job);
        }
    }

    /// For the pool's destructor. When a job of this pool destroys it, the jobs in the calling thread's hands cannot finish before
    /// the destructor has; the other workers must not wait for them.
    void leave() {
        std::uint64_t held = 0;
        for (PoolContext* c = PoolContext::top(); c != nullptr; c = c->outer) {
            if (c->core != this) continue;
            held += c->held;
            c->excused = c->held;
        }
        stop();
        if (held == 0) return;
        excused_.fetch_add(held, std::memory_order_release);  // pairs with the acquire in quiescent()
        announce_if_quiescent();
    }

    /// The life of a worker thread.
    static void work(const std::shared_ptr<PoolCore>& core, std::size_t index) {
        if (!core->options_.name.empty()) name_this_thread(core->options_.name);
        {
            PoolContext me(core.get(), true, index % core->lane_count_, 0);
            core->call_hook(core->options_.on_start, index);
            core->loop(me, core->finished_[index].jobs);
        }
        core->call_hook(core->options_.on_exit, index);
    }

private:
    struct alignas(kCacheLine) Finished {
        std::atomic<std::uint64_t> jobs{0};  // a line of its own: written by one worker after every job
    };

    struct Leaving {  // see the class comment
        Lane& lane;
        std::size_t jobs;

        Leaving(Lane& l, std::size_t count) noexcept : lane(l), jobs(count) {}
        Leaving(const Leaving&) = delete;
        Leaving& operator=(const Leaving&) = delete;
        ~Leaving() { lane.submitter_left(jobs); }
    };

    // ---- submitting

    [[nodiscard]] PoolContext* worker_context() const noexcept {
        PoolContext* const c = context();
        return c != nullptr && c->worker ? c : nullptr;
    }

    // A worker's jobs go to its own lane. Other threads spread theirs over the lanes, some at a time, to keep a lane's lines warm.
    [[nodiscard]] Lane& lane_for(const PoolContext* me) noexcept {
        if (me != nullptr) return lanes_[me->lane];
        if (lane_count_ == 1) return lanes_[0];
        static thread_local constinit std::size_t ticket = 0;
        return lanes_[ticket++ / kSameLaneInARow % lane_count_];
    }

    void check(Lane::Outcome outcome, std::size_t jobs) {
        if (outcome == Lane::Outcome::Closed) throw PoolStopped("muses::ThreadPool: the pool is stopped");
        if (outcome == Lane::Outcome::Full) {
            dropped_.fetch_add(jobs, std::memory_order_relaxed);
            throw PoolQueueFull("muses::ThreadPool: max_queued jobs are waiting");
        }
    }

    // Ends a job without running it. Its destruction may destroy the pool, so nothing but the core is used after it.
    void drop(Job& job) {
        const auto self = shared_from_this();
        dropped_.fetch_add(1, std::memory_order_relaxed);  // before the future is ready, so that whoever waited for that sees it
        PoolContext here(this, false, 0, 1);
        job.discard();
        job.reset();
        no_longer_excused(here);
        discarded_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in quiescent()
        announce_if_quiescent();
    }

    // Before the job is counted as finished, so that it never counts twice (quiescent() reads in the opposite order).
    void no_longer_excused(PoolContext& me) noexcept {
        if (const std::uint64_t jobs = std::exchange(me.excused, 0); jobs != 0)
            excused_.fetch_sub(jobs, std::memory_order_relaxed);  // carried by the release of the count of finished jobs
    }

    // ---- working

    struct Work {  // one of them is empty
        Job job;
        std::shared_ptr<BlockLoop> loop;
    };

    void loop(PoolContext& me, std::atomic<std::uint64_t>& finished) {
        Work work;
        while (next(me, work)) {
            me.held = 1;
            if (work.loop) {
                work.loop->work();
                work.loop.reset();
            } else {
                execute(work.job);
            }
            me.held = 0;
            no_longer_excused(me);
            // Load and store, because only this thread writes. The release pairs with the acquire in quiescent().
            finished.store(finished.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        }
    }

    void execute(Job& job) {
        if (discarding_.load(std::memory_order_relaxed)) {  // see stop_discarding()
            dropped_.fetch_add(1, std::memory_order_relaxed);
            job.discard();
            job.reset();
            return;
        }
        try {
            job.run();
            job.reset();
        } catch (...) {
            job.reset();
            report(std::current_exception());
        }
    }

    // The next job or loop of a worker. False: the pool has stopped and there will be none.
    bool next(const PoolContext& me, Work& work) {
        if (lanes_[me.lane].take(work.job)) return true;
        parking_.begin_search();
        if (waiters_.load(std::memory_order_relaxed) != 0) announce_if_quiescent();  // only a hint: asked again before sleeping
        for (;;) {
            if (search(me, work)) {
                if (parking_.end_search() && something_to_do()) parking_.wake_one();
                return true;
            }
            announce_if_quiescent();
            parking_.announce_sleep();
            if (something_to_do() && parking_.cancel_sleep()) {
                std::this_thread::yield();  // what is there could not be stolen: let the thread that holds the lane get on
                continue;
            }
            if (!parking_.sleep()) return false;
        }
    }

    // For Parking: whether a search could find something. Both halves are seq_cst loads.
    [[nodiscard]] bool something_to_do() const noexcept { return queued() != 0 || loops_.open() != 0; }

    // Looks into all lanes, then for a loop, for a few microseconds. Longer, or with a yield to other programs, costs more than sleeping: while one
    // worker counts as searching, pushes wake nobody.
    bool search(const PoolContext& me, Work& work) {
        for (int round = 0; round < kSearchRounds; ++round) {
            if (lanes_[me.lane].take(work.job)) return true;
            for (std::size_t i = 1; i < lane_count_; ++i) {
                if (lanes_[me.lane].steal_from(lanes_[(me.lane + i) % lane_count_], work.job)) return true;
            }
            if ((work.loop = loops_.take())) return true;
            relax();
        }
        return false;
    }

    // ---- quiescence

    // Whether every job that the caller knows of, and every job that such a job has submitted, has finished.
    //
    // Helping with a loop counts as a job that is submitted when a worker takes it up.
    //
    // Finished counts are read first (acquire), then submitted counts. Each finished count that is read carries the end of those
    // jobs with it, so also their submission and that of their children: none of these can be missing from the submitted counts
    // that are read afterwards. So "finished" counts a subset of what "submitted" counts; when the numbers are equal, the sets are.
    // A job whose submission happens before this call is in the second set, hence in the first.
    [[nodiscard]] bool quiescent() const noexcept {
        std::uint64_t open = 0;
        open -= discarded_.load(std::memory_order_acquire);                                                    // pairs with drop()
        for (std::size_t i = 0; i < workers_; ++i) open -= finished_[i].jobs.load(std::memory_order_acquire);  // pairs with loop()
        open -= excused_.load(std::memory_order_acquire);                                                      // pairs with leave()
        for (std::size_t i = 0; i < lane_count_; ++i) open += lanes_[i].submitted();
        open += loops_.taken();
        return open == 0;
    }

    // Called after whatever may have ended the last job, and by each worker between its last job and its sleep. All these calls
    // and the waiters' checks are in one order, that of idle_mutex_. Whichever comes last sees all that the others had done
    // before theirs: so a waiter that sleeps, or sleeping workers of a stopped pool, are woken by the last call at the latest.
    void announce_if_quiescent() {
        const std::lock_guard lock(idle_mutex_);
        if (!quiescent()) return;
        // No outsider can submit and no worker runs a job that could: it stays quiescent. Except that a worker which still searches
        // may find the loop of an outsider who came before the stop. What that submits goes to the worker's own lane, and it does
        // not end before that is empty; loops do without those who have ended.
        if (closed_) parking_.close();
        if (waiters_.load(std::memory_order_relaxed) != 0) idle_.notify_all();
    }

    // ---- hooks

    template <class Hook, class Argument>
    void call_hook(const Hook& hook, Argument&& argument) noexcept {
        if (!hook) return;
        try {
            hook(std::forward<Argument>(argument));
        } catch (...) {
            hook_errors_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    void report(const std::exception_ptr& error) noexcept {
        if (options_.on_exception) {
            call_hook(options_.on_exception, error);
            return;
        }
        try {
            std::rethrow_exception(error);
        } catch (const std::exception& e) {
            std::fprintf(stderr, "muses::ThreadPool: a job of pool \"%s\" threw: %s\n", options_.name.c_str(), e.what());
        } catch (...) {
            std::fprintf(stderr, "muses::ThreadPool: a job of pool \"%s\" threw something that is no std::exception\n",
                         options_.name.c_str());
        }
    }

    static constexpr std::size_t kSameLaneInARow = 8;
    static constexpr int kSearchRounds = 4;
    static constexpr int kYieldsBeforeSleep = 64;

    const ThreadPoolOptions options_;
    const std::size_t workers_;
    const std::size_t lane_count_;
    const std::unique_ptr<Lane[]> lanes_;
    const std::unique_ptr<Finished[]> finished_;
    std::atomic<bool> discarding_{false};
    Parking parking_;
    LoopBoard loops_;

    alignas(kCacheLine) std::mutex idle_mutex_;  // what follows is touched only around idleness, failures and shutdown
    std::condition_variable idle_;
    std::atomic<std::size_t> waiters_{0};
    bool closed_ = false;  // under idle_mutex_; set after all lanes are closed
    std::atomic<std::uint64_t> discarded_{0};
    std::atomic<std::uint64_t> excused_{0};
    std::atomic<std::uint64_t> dropped_{0};
    std::atomic<std::uint64_t> hook_errors_{0};
};

}  // namespace muses::detail
