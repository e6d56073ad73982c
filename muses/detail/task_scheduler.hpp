// What a tree of tasks runs on: one thread at a time, a list of what is ready, and timers.
//
// The stack does not grow, however many coroutines end one after the other or await each other, whatever compiles them. Symmetric
// transfer would need a tail call for that, which neither gcc without optimisation nor a sanitizer promises. Instead, who has ended, or
// has started a child, names the coroutine that comes next and returns to the loop in TaskScheduler::resume. Only the first stretch of a
// child is run by a direct call from its parent, a few levels deep at most: most children need no more than that. What is woken
// is never resumed from within another coroutine but stands in a list; so nothing but its own children runs above a suspended coroutine
// on the stack, and anybody else on its thread may destroy it.
//
// A tree of tasks (a task with everything that it awaits) belongs to one scheduler and runs on that one's thread only. Hence what the
// tree consists of, cancellation included, needs no atomics; other threads hand nodes over through the inbox.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <mutex>

#include "muses/detail/duration.hpp"
#include "muses/detail/task_ready.hpp"

namespace muses {

class TaskScheduler;

namespace detail {

/// When a wait of `duration` (counted from the clock's zero, made by deadline_after) that begins now is over. None at all is over at the
/// next occasion, which need not wait for the clock to move.
[[nodiscard]] inline SteadyTime deadline_from_now(SteadyTime duration) noexcept {
    if (duration == kNever) return kNever;
    if (duration == SteadyTime()) return SteadyTime::min();
    return deadline_after(duration - SteadyTime());
}

}  // namespace detail

/// What: a deadline of a wait, with room for the node that its scheduler links into a structure of its own.
/// Complexity: as the scheduler's timers.
/// Threads: that of its scheduler.
/// Lifetime: disarms itself when destroyed.
/// Limits: kRoom bytes for the scheduler's node.
class TaskTimer {
public:
    static constexpr std::size_t kRoom = 64;
    using Fire = void (*)(TaskTimer&) noexcept;

    /// `what` is called once for each time that it comes due, disarmed before.
    explicit TaskTimer(Fire what) noexcept : fire_(what) {}
    /// Only one that is not armed may be moved.
    TaskTimer(TaskTimer&& other) noexcept : fire_(other.fire_) {}
    TaskTimer& operator=(TaskTimer&&) = delete;
    ~TaskTimer() { disarm(); }

    /// Comes due at `when`; never for detail::kNever. Must not be armed.
    void arm(TaskScheduler& scheduler, detail::SteadyTime when) noexcept;
    /// Harmless when it is not armed.
    void disarm() noexcept;
    [[nodiscard]] bool armed() const noexcept { return scheduler_ != nullptr; }

    /// For the scheduler: its own node lives here while the timer is armed.
    [[nodiscard]] void* room() noexcept { return room_.data(); }
    /// For the scheduler, when the timer has come due and its node is gone.
    void fire() noexcept {
        scheduler_ = nullptr;
        fire_(*this);
    }
    /// For a scheduler that takes an armed timer over from another one.
    void moved_to(TaskScheduler& scheduler) noexcept { scheduler_ = &scheduler; }

private:
    TaskScheduler* scheduler_ = nullptr;
    Fire fire_;
    alignas(std::max_align_t) std::array<std::byte, kRoom> room_;
};

namespace detail {

class TaskRoot;

/// What: the start of a tree of tasks: whoever it belongs to (a scope, a loop, sync_wait) derives from it.
/// Threads: that of its scheduler. Lifetime: in its scheduler's list while it runs. Limits: none. Complexity: O(1).
class TaskRoot : public ListLink {
public:
    TaskRoot() noexcept = default;
    /// Frees the tree: because its scheduler ends before it. Called on the thread that destroys the scheduler.
    virtual void abandon() noexcept = 0;

protected:
    ~TaskRoot() = default;
};

}  // namespace detail

/// What: runs tasks; to be derived from by whoever has a thread to run them on (an event loop, sync_wait).
/// Complexity: schedule and run O(1); no allocation.
/// Threads: schedule from any thread, the rest on the scheduler's own.
/// Lifetime: must outlive nothing: when it ends it frees every tree that still runs on it.
/// Limits: about kBatch resumptions in one drain(), so that tasks which wake each other for ever do not starve the thread.
class TaskScheduler {
public:
    TaskScheduler() noexcept = default;
    TaskScheduler(const TaskScheduler&) = delete;
    TaskScheduler& operator=(const TaskScheduler&) = delete;

    /// True on the thread that runs the tasks, while it does. Any thread.
    [[nodiscard]] virtual bool on_own_thread() const noexcept = 0;

    /// True when the caller may touch the tasks: on its own thread, or as long as no thread runs them. Any thread.
    [[nodiscard]] virtual bool touchable() const noexcept = 0;

    /// Has its thread call drain() soon. Any thread.
    virtual void wake() noexcept = 0;

    /// Has timer.fire() called on its thread at `when`, or soon after. Own thread.
    virtual void arm(TaskTimer& timer, detail::SteadyTime when) noexcept = 0;

    /// Takes an armed timer back. Own thread.
    virtual void disarm(TaskTimer& timer) noexcept = 0;

    /// Gets what a detached task threw.
    virtual void on_task_exception(std::exception_ptr error) noexcept = 0;

    /// The scheduler whose thread runs the tasks of this one: itself, unless it is a guest there.
    [[nodiscard]] virtual TaskScheduler& host() noexcept { return *this; }

    /// Moves to the thread of `target` as soon as what runs now is suspended. False when it can't: it has a thread for good.
    [[nodiscard]] virtual bool move_to(TaskScheduler& /*target*/) noexcept { return false; }

    /// Has `node` run by its thread. Any thread.
    void schedule(detail::ReadyNode& node) noexcept {
        if (on_own_thread()) return schedule_here(node);
        {
            const std::lock_guard lock(mutex_);
            node.in_inbox = true;
            inbox_.push_back(node);
            // Relaxed: the mutex guards the list; wake() orders this store before the drain() that it causes.
            has_inbox_.store(true, std::memory_order_relaxed);
        }
        wake();
    }

    /// The same on its own thread.
    void schedule_here(detail::ReadyNode& node) noexcept {
        ready_.push_back(node);
        if (!draining_) wake();
    }

    /// Takes back what schedule() was given, when it has not run. Own thread, or when nobody runs it.
    void unschedule(detail::ReadyNode& node) noexcept {
        if (!node.in_inbox) return node.unlink();
        const std::lock_guard lock(mutex_);
        node.unlink();
        node.in_inbox = false;
    }

    /// Has `root` freed when this scheduler ends. Any thread.
    void add_root(detail::TaskRoot& root) noexcept {
        const std::lock_guard lock(mutex_);
        roots_.push_back(root);
    }
    void remove_root(detail::TaskRoot& root) noexcept {
        const std::lock_guard lock(mutex_);
        root.unlink();
    }

    /// Resumes `coroutine`, and whichever it names as the next one, until one suspends without naming any. Own thread.
    void resume(std::coroutine_handle<> coroutine) noexcept {
        do {
            next_ = {};
            coroutine.resume();
            coroutine = next_;
        } while (coroutine);
    }

    /// True when a coroutine may start a child by resume_nested().
    [[nodiscard]] bool may_nest() const noexcept { return nested_ < kNested; }

    /// Runs a child's first stretch inside of its parent. Own thread.
    void resume_nested(std::coroutine_handle<> coroutine) noexcept {
        ++nested_;
        coroutine.resume();
        --nested_;
    }

    /// To be called in the last step of a suspension: `coroutine` goes on when that is complete.
    void resume_next(std::coroutine_handle<> coroutine) noexcept { next_ = coroutine; }

    /// The scheduler whose tasks this thread runs right now, or which it has entered; null when there is none.
    [[nodiscard]] static TaskScheduler* current() noexcept { return current_; }

    /// Makes a scheduler the current one of this thread while it lives.
    class Entered {
    public:
        explicit Entered(TaskScheduler& scheduler) noexcept : before_(current_) { current_ = &scheduler; }
        Entered(const Entered&) = delete;
        Entered& operator=(const Entered&) = delete;
        ~Entered() { current_ = before_; }

    private:
        TaskScheduler* before_;
    };

protected:
    static constexpr std::size_t kBatch = 256;
    static constexpr unsigned kNested = 8;

    /// The derived class has called abandon_all().
    ~TaskScheduler() = default;

    /// True when drain() has something to do. Own thread; what another thread has just scheduled may be overlooked before its wake().
    [[nodiscard]] bool has_ready() const noexcept { return !ready_.empty() || has_inbox_.load(std::memory_order_relaxed); }

    /// Runs what is ready, and what becomes so meanwhile, up to a limit; true when there is more. Own thread.
    bool drain() noexcept {
        const Entered entered(*this);
        draining_ = true;
        std::size_t ran = 0;
        while (ran < kBatch && !leaving_) {
            take_inbox();
            if (ready_.empty()) break;
            running_.splice_back(ready_);
            while (detail::ReadyNode* node = running_.pop_front()) {
                ++ran;
                node->run(*node);
                if (leaving_) break;
            }
        }
        running_.splice_back(ready_);  // in their order, when it was left early
        ready_.splice_back(running_);
        draining_ = false;
        return has_ready();
    }

    /// Makes drain() return as soon as what runs is suspended, with what is ready still in the list. Own thread.
    void set_leaving(bool leaving) noexcept { leaving_ = leaving; }

    /// Frees all trees. Own thread, or when nobody runs them.
    void abandon_all() noexcept {
        for (;;) {
            detail::TaskRoot* root = nullptr;
            {
                const std::lock_guard lock(mutex_);
                root = roots_.pop_front();
            }
            if (root == nullptr) break;
            root->abandon();  // no lock: it destroys what is the user's
        }
    }

private:
    void take_inbox() noexcept {
        // Relaxed: see schedule(); who overlooks it now is woken.
        if (!has_inbox_.load(std::memory_order_relaxed)) return;
        const std::lock_guard lock(mutex_);
        has_inbox_.store(false, std::memory_order_relaxed);
        while (detail::ReadyNode* node = inbox_.pop_front()) {
            node->in_inbox = false;
            ready_.push_back(*node);
        }
    }

    static thread_local TaskScheduler* current_;

    std::coroutine_handle<> next_;
    unsigned nested_ = 0;  // how many coroutines are on the stack above the one that resume() runs
    bool draining_ = false;
    bool leaving_ = false;
    detail::LinkedList<detail::ReadyNode> ready_;
    detail::LinkedList<detail::ReadyNode> running_;  // the part of ready_ that drain() is at

    std::mutex mutex_;
    std::atomic<bool> has_inbox_{false};
    detail::LinkedList<detail::ReadyNode> inbox_;  // guarded by mutex_, as is:
    detail::LinkedList<detail::TaskRoot> roots_;
};

inline constinit thread_local TaskScheduler* TaskScheduler::current_ = nullptr;

inline void TaskTimer::arm(TaskScheduler& scheduler, detail::SteadyTime when) noexcept {
    if (when == detail::kNever) return;
    scheduler_ = &scheduler;
    scheduler.arm(*this, when);
}

inline void TaskTimer::disarm() noexcept {
    if (scheduler_ == nullptr) return;
    TaskScheduler* const scheduler = scheduler_;
    scheduler_ = nullptr;
    scheduler->disarm(*this);
}

}  // namespace muses
