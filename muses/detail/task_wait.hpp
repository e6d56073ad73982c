// What a task does when it waits: suspended on its own thread, until something there (or another thread) says that it may go on.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>

#include "muses/detail/task_core.hpp"
#include "muses/detail/task_ready.hpp"
#include "muses/detail/task_scheduler.hpp"

namespace muses {

/// Thrown by a wait that was ended by its stop token, a time-out around it, or a when_any that has its winner.
class cancelled final : public std::exception {
public:
    [[nodiscard]] const char* what() const noexcept override { return "muses::cancelled: the wait was cancelled"; }
};

namespace detail {

enum class WaitOutcome : std::uint8_t { Pending, Done, TimedOut, Cancelled, Gone };

/// What: the base of everything that suspends a task until something happens. Whoever completes it first decides how it ended.
/// Complexity: O(1), no allocation.
/// Threads: that of the task's scheduler.
/// Lifetime: lives on the frame of the task that waits; leaves all lists when destroyed. May be moved before it is awaited.
/// Limits: awaited once.
class TaskWaiter : protected ReadyNode, protected Cancellable {
public:
    void attach(TaskPromiseBase& task) noexcept { task_ = &task; }

protected:
    explicit TaskWaiter(Cancel how) noexcept
        : ReadyNode([](ReadyNode& node) noexcept {
              const TaskPromiseBase& task = *static_cast<TaskWaiter&>(node).task_;
              task.scheduler->resume(task.self);
          }),
          Cancellable(how) {}
    TaskWaiter(TaskWaiter&&) noexcept = default;
    TaskWaiter& operator=(TaskWaiter&&) = delete;
    ~TaskWaiter() {
        Cancellable::unlink();
        if (ReadyNode::linked()) scheduler().unschedule(*this);
    }

    [[nodiscard]] TaskScheduler& scheduler() const noexcept { return *task_->scheduler; }
    [[nodiscard]] TaskPromiseBase& task() const noexcept { return *task_; }
    [[nodiscard]] WaitOutcome outcome() const noexcept { return outcome_; }
    [[nodiscard]] bool pending() const noexcept { return outcome_ == WaitOutcome::Pending; }

    /// First step of a suspension. False when it has been cancelled already: then nothing may be registered.
    [[nodiscard]] bool enter_scope() noexcept {
        if (task_->scope == nullptr) return true;
        if (task_->scope->requested()) {
            outcome_ = WaitOutcome::Cancelled;
            return false;
        }
        task_->scope->enter(*this);
        return true;
    }

    /// The wait is over without a suspension, or is completed by the caller.
    void set_outcome(WaitOutcome outcome) noexcept {
        outcome_ = outcome;
        Cancellable::unlink();
    }

    /// The wait is over: the task goes on soon. Only while pending.
    void complete(WaitOutcome outcome) noexcept {
        set_outcome(outcome);
        scheduler().schedule_here(*this);
    }

    void throw_if_cancelled() const {
        if (outcome_ == WaitOutcome::Cancelled) [[unlikely]]
            throw cancelled();
        if (outcome_ == WaitOutcome::Gone) [[unlikely]]
            throw std::logic_error("muses: what a task waits for was destroyed meanwhile");
    }

private:
    friend class WaitQueue;
    TaskPromiseBase* task_ = nullptr;
    WaitOutcome outcome_ = WaitOutcome::Pending;
};

class WaitQueue;

struct QueueLink : ListLink {};

/// What: a waiter in the queue of something that other threads may use too.
/// Complexity: O(1), one uncontended mutex.
/// Threads: woken by any.
/// Lifetime: the queue outlives it, or says that it is gone.
/// Limits: one queue.
class QueuedWaiter : public TaskWaiter, public QueueLink {
protected:
    QueuedWaiter() noexcept : QueuedWaiter([](Cancellable& wait) noexcept { static_cast<QueuedWaiter&>(wait).cancel_wait(); }) {}
    explicit QueuedWaiter(Cancel how) noexcept : TaskWaiter(how) {}
    QueuedWaiter(QueuedWaiter&&) noexcept = default;
    ~QueuedWaiter() { leave_queue(); }

    /// The lists are left. After it, outcome() is final: what another thread has written is visible, and that thread does not
    /// touch the queue any more on behalf of this wait, so the queue may be destroyed.
    inline void leave_queue() noexcept;

    /// In the queue, as far as this thread knows.
    [[nodiscard]] bool suspended() const noexcept { return suspended_; }

    /// Woken with Done, and the task has not seen it: what was handed over must be given back.
    [[nodiscard]] bool unclaimed() const noexcept { return outcome() == WaitOutcome::Done && suspended_ && !claimed_; }
    void claim() noexcept { claimed_ = true; }

private:
    friend class WaitQueue;
    inline void cancel_wait() noexcept;

    WaitQueue* queue_ = nullptr;  // the lock of this queue must be taken before anything else is believed
    bool suspended_ = false;
    bool claimed_ = false;
};

/// What: tasks that wait for the same thing, first come, first served.
/// Complexity: O(1).
/// Threads: all members but the destructor want the mutex held.
/// Lifetime: when it is destroyed, the waits in it end with WaitOutcome::Gone.
/// Limits: none.
class WaitQueue {
public:
    WaitQueue() noexcept : mutex(own_) {}
    /// With the mutex of `other`, which must live longer.
    explicit WaitQueue(WaitQueue& other, int /*to differ from a copy*/) noexcept : mutex(other.mutex) {}
    WaitQueue(const WaitQueue&) = delete;
    WaitQueue& operator=(const WaitQueue&) = delete;
    ~WaitQueue() {
        const std::lock_guard lock(mutex);
        while (QueuedWaiter* waiter = waiters_.pop_front()) {
            waiter->queue_ = nullptr;  // first: there will be nothing to lock
            waiter->outcome_ = WaitOutcome::Gone;
            waiter->scheduler().schedule(*waiter);
        }
    }

    [[nodiscard]] bool empty() const noexcept { return waiters_.empty(); }
    [[nodiscard]] QueuedWaiter* front() noexcept { return waiters_.front(); }

    void push(QueuedWaiter& waiter) noexcept {
        waiter.queue_ = this;
        waiter.suspended_ = true;
        waiters_.push_back(waiter);
    }

    /// Takes the first one out and lets it go on; null when there is none. What it has been handed must be in place.
    QueuedWaiter* wake_first() noexcept {
        QueuedWaiter* const waiter = waiters_.pop_front();
        if (waiter != nullptr) wake(*waiter);
        return waiter;
    }

private:
    std::mutex own_;

public:
    std::mutex& mutex;

private:
    // From another thread the waiter is handed over while the mutex is held: who destroys it, or cancels it, takes the mutex first and
    // then knows where it stands.
    static void wake(QueuedWaiter& waiter) noexcept {
        TaskScheduler& scheduler = waiter.scheduler();
        if (scheduler.on_own_thread()) {
            waiter.queue_ = nullptr;
            waiter.set_outcome(WaitOutcome::Done);
            scheduler.schedule_here(waiter);
        } else {
            waiter.outcome_ = WaitOutcome::Done;
            scheduler.schedule(waiter);
        }
    }

    LinkedList<QueuedWaiter, QueueLink> waiters_;
};

inline void QueuedWaiter::leave_queue() noexcept {
    Cancellable::unlink();
    if (queue_ == nullptr) return;
    const std::lock_guard lock(queue_->mutex);
    QueueLink::unlink();
    queue_ = nullptr;
}

inline void QueuedWaiter::cancel_wait() noexcept {
    if (queue_ == nullptr) return;
    {
        const std::lock_guard lock(queue_->mutex);
        if (!QueueLink::linked()) return;  // woken by another thread: that came first
        QueueLink::unlink();
    }
    queue_ = nullptr;
    complete(WaitOutcome::Cancelled);
}

}  // namespace detail

}  // namespace muses
