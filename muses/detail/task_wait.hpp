// What a task does when it waits: suspended on its own thread, until something there (or another thread) says that it may go on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <utility>

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
        if (ReadyNode::scheduled()) scheduler().unschedule(*this);
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

/// What: the mutexes of all wait queues: a queue has the one that its address falls on.
/// Complexity: O(1).
/// Threads: any.
/// Lifetime: for ever. A waiter that another thread wakes must take the lock to learn where it stands, and by then the queue may be
///     gone, destroyed by a task that was woken together with it.
/// Limits: queues that fall on the same one wait for each other. Under it nothing is locked but what belongs to a scheduler.
class WaitLocks {
public:
    [[nodiscard]] static std::mutex& of(const void* queue) noexcept {
        constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
        return all_.slots[reinterpret_cast<std::uintptr_t>(queue) * kGolden >> (64 - kBits)].mutex;
    }

private:
    static constexpr unsigned kBits = 6;
    struct alignas(64) Slot {
        std::mutex mutex;
    };
    // Never destroyed: what is static may be used until the very end.
    union All {
        constexpr All() noexcept : slots{} {}
        All(const All&) = delete;
        All& operator=(const All&) = delete;
        ~All() {}  // NOLINT(modernize-use-equals-default): that would be deleted
        std::array<Slot, std::size_t{1} << kBits> slots;
    };
    static All all_;
};

inline constinit WaitLocks::All WaitLocks::all_;

/// What: a waiter in the queue of something that other threads may use too.
/// Complexity: O(1), one uncontended mutex.
/// Threads: woken by any.
/// Lifetime: the queue may die first, whether the waiter is in it or has been woken; it is not touched from then on.
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

    /// The same for a waiter that is destroyed: when it has been handed something, which its task has not seen, and the queue is still
    /// there, calls `give_back` under the lock.
    template <class F>
    void leave_unclaimed(F give_back) noexcept {
        Cancellable::unlink();
        if (mutex_ == nullptr) return;
        const std::lock_guard lock(*std::exchange(mutex_, nullptr));
        if (!QueueLink::linked()) return;
        QueueLink::unlink();
        if (!pending()) give_back();
    }

private:
    friend class WaitQueue;
    inline void cancel_wait() noexcept;

    std::mutex* mutex_ = nullptr;  // the queue's; must be taken before anything else is believed
};

/// What: tasks that wait for the same thing, first come, first served.
/// Complexity: O(1).
/// Threads: all members but the destructor want the mutex held.
/// Lifetime: when it is destroyed, or ended before by its owner, the waits in it end with WaitOutcome::Gone.
/// Limits: none.
class WaitQueue {
public:
    WaitQueue() noexcept : mutex(WaitLocks::of(this)) {}
    /// With the mutex of `other`, which must live longer.
    explicit WaitQueue(WaitQueue& other, int /*to differ from a copy*/) noexcept : mutex(other.mutex) {}
    WaitQueue(const WaitQueue&) = delete;
    WaitQueue& operator=(const WaitQueue&) = delete;
    ~WaitQueue() { end(); }

    /// Ends all waits; nothing that was handed over is given back from now on. Waits that were handed something end with `handed`: Gone
    /// where it is of no use without this. Takes the mutex.
    void end(WaitOutcome handed = WaitOutcome::Gone) noexcept {
        const std::lock_guard lock(mutex);
        while (QueuedWaiter* waiter = handed_.pop_front()) waiter->outcome_ = handed;  // it is on its way; it looks under the lock
        while (QueuedWaiter* waiter = waiters_.pop_front()) {
            waiter->outcome_ = WaitOutcome::Gone;
            waiter->scheduler().schedule(*waiter);
        }
    }

    [[nodiscard]] bool empty() const noexcept { return waiters_.empty(); }
    [[nodiscard]] QueuedWaiter* front() noexcept { return waiters_.front(); }

    void push(QueuedWaiter& waiter) noexcept {
        waiter.mutex_ = &mutex;
        waiters_.push_back(waiter);
    }

    /// Takes the first one out and lets it go on; false when there is none.
    bool wake_first() noexcept {
        QueuedWaiter* const waiter = waiters_.pop_front();
        if (waiter == nullptr) return false;
        if (waiter->scheduler().on_own_thread()) waiter->mutex_ = nullptr;  // nobody else knows it: no lock when it goes on
        wake(*waiter);
        return true;
    }

    /// The same for one that is handed something, which is in place: to be given back when its task dies before it goes on.
    bool hand_to_first() noexcept {
        QueuedWaiter* const waiter = waiters_.pop_front();
        if (waiter == nullptr) return false;
        handed_.push_back(*waiter);
        wake(*waiter);
        return true;
    }

    std::mutex& mutex;

private:
    // From another thread the waiter is handed over while the mutex is held: who destroys it, or cancels it, takes the mutex first and
    // then knows where it stands.
    static void wake(QueuedWaiter& waiter) noexcept {
        TaskScheduler& scheduler = waiter.scheduler();
        if (scheduler.on_own_thread()) {
            waiter.set_outcome(WaitOutcome::Done);
            scheduler.schedule_here(waiter);
        } else {
            waiter.outcome_ = WaitOutcome::Done;
            scheduler.schedule(waiter);
        }
    }

    LinkedList<QueuedWaiter, QueueLink> waiters_;
    LinkedList<QueuedWaiter, QueueLink> handed_;  // woken with something that their tasks have not seen yet
};

inline void QueuedWaiter::leave_queue() noexcept {
    Cancellable::unlink();
    if (mutex_ == nullptr) return;
    const std::lock_guard lock(*std::exchange(mutex_, nullptr));
    QueueLink::unlink();
}

inline void QueuedWaiter::cancel_wait() noexcept {
    if (mutex_ == nullptr) return;
    {
        const std::lock_guard lock(*mutex_);
        if (!pending()) return;  // woken by another thread: that came first
        QueueLink::unlink();
    }
    mutex_ = nullptr;
    complete(WaitOutcome::Cancelled);
}

}  // namespace detail

}  // namespace muses
