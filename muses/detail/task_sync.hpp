// AsyncEvent, AsyncMutex and AsyncSemaphore: what threads have, for tasks, which wait without a thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "muses/detail/task_core.hpp"
#include "muses/detail/task_wait.hpp"

namespace muses {

/// What: a flag that tasks wait for.
/// Complexity: O(1), set() O(waiters); no allocation.
/// Threads: any; each task goes on with its own scheduler.
/// Lifetime: waits that are under way when it is destroyed end with std::logic_error. A task that has been woken may destroy it, also
///     when others that were woken with it have not gone on yet.
/// Limits: none.
class AsyncEvent {
public:
    class [[nodiscard]] Wait final : public detail::QueuedWaiter {
    public:
        [[nodiscard]] bool await_ready() const noexcept {
            const std::lock_guard lock(event_->queue_.mutex);
            return event_->set_;
        }
        [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) noexcept {
            if (!enter_scope()) return false;
            const std::lock_guard lock(event_->queue_.mutex);
            if (event_->set_) return false;
            event_->queue_.push(*this);
            return true;
        }
        void await_resume() {
            leave_queue();
            throw_if_cancelled();
        }

    private:
        friend class AsyncEvent;
        explicit Wait(AsyncEvent& event) noexcept : event_(&event) {}
        AsyncEvent* event_;
    };

    explicit AsyncEvent(bool set = false) noexcept : set_(set) {}

    /// `co_await event.wait()`: goes on when the event is set. Throws muses::cancelled.
    Wait wait() noexcept { return Wait(*this); }

    /// Lets all go on that wait now or later, until reset().
    void set() noexcept {
        const std::lock_guard lock(queue_.mutex);
        set_ = true;
        while (queue_.wake_first()) {}
    }

    /// Later waits wait again. Those that have been woken go on.
    void reset() noexcept {
        const std::lock_guard lock(queue_.mutex);
        set_ = false;
    }

    [[nodiscard]] bool is_set() const noexcept {
        const std::lock_guard lock(queue_.mutex);
        return set_;
    }

private:
    mutable detail::WaitQueue queue_;
    bool set_;
};

/// What: permits that tasks take and anybody gives.
/// Complexity: O(1); no allocation.
/// Threads: any; each task goes on with its own scheduler.
/// Lifetime: waits that are under way when it is destroyed end with std::logic_error, also those that have been handed a permit which their
///     tasks have not seen.
/// Limits: SIZE_MAX permits; first come, first served: a permit is handed to who waits, and nobody overtakes.
class AsyncSemaphore {
public:
    class [[nodiscard]] Acquire final : public detail::QueuedWaiter {
    public:
        Acquire(Acquire&&) noexcept = default;
        ~Acquire() {
            leave_unclaimed([this] { semaphore_->give_one(); });  // the task was destroyed with a permit that it has not seen
        }
        [[nodiscard]] bool await_ready() const noexcept { return semaphore_->try_acquire(); }
        [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) noexcept {
            if (!enter_scope()) return false;
            const std::lock_guard lock(semaphore_->queue_.mutex);
            if (semaphore_->take_locked()) return false;
            semaphore_->queue_.push(*this);
            return true;
        }
        void await_resume() {
            leave_queue();
            throw_if_cancelled();
        }

    private:
        friend class AsyncSemaphore;
        explicit Acquire(AsyncSemaphore& semaphore) noexcept : semaphore_(&semaphore) {}
        AsyncSemaphore* semaphore_;
    };

    explicit AsyncSemaphore(std::size_t permits) noexcept : permits_(permits) {}

    /// `co_await semaphore.acquire()`: goes on with one permit taken. Throws muses::cancelled (without one).
    Acquire acquire() noexcept { return Acquire(*this); }

    /// Takes a permit when there is one and nobody waits.
    [[nodiscard]] bool try_acquire() noexcept {
        const std::lock_guard lock(queue_.mutex);
        return take_locked();
    }

    /// Gives `count` permits. Throws std::logic_error, and gives none, when there would be more than SIZE_MAX.
    void release(std::size_t count = 1) {
        const std::lock_guard lock(queue_.mutex);
        if (count > std::numeric_limits<std::size_t>::max() - permits_)
            throw std::logic_error("muses::AsyncSemaphore::release: too many permits");
        for (; count > 0 && queue_.hand_to_first(); --count) {}
        permits_ += count;
    }

    [[nodiscard]] std::size_t available_approx() const noexcept {
        const std::lock_guard lock(queue_.mutex);
        return permits_;
    }

private:
    [[nodiscard]] bool take_locked() noexcept {
        if (permits_ == 0) return false;
        --permits_;
        return true;
    }
    void give_one() noexcept {
        if (!queue_.hand_to_first()) ++permits_;
    }

    mutable detail::WaitQueue queue_;
    std::size_t permits_;
};

/// What: one task at a time.
/// Complexity: O(1); no allocation.
/// Threads: any; each task goes on with its own scheduler. Held by a task, not by a thread.
/// Lifetime: waits that are under way when it is destroyed end with std::logic_error, also those that have been handed the mutex which their
///     tasks have not seen.
/// Limits: not recursive; first come, first served: unlock() hands it to who waits, and nobody overtakes.
class AsyncMutex {
public:
    /// What: unlocks a mutex when it goes. Complexity: O(1). Threads: one. Lifetime: before the mutex. Limits: none.
    class [[nodiscard]] Guard {
    public:
        Guard(Guard&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
        Guard& operator=(Guard&& other) noexcept {
            if (this != &other) {
                unlock();
                mutex_ = std::exchange(other.mutex_, nullptr);
            }
            return *this;
        }
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;
        ~Guard() { unlock(); }

        /// Earlier than by destruction; twice is harmless.
        void unlock() noexcept {
            if (AsyncMutex* const mutex = std::exchange(mutex_, nullptr)) mutex->pass_on();
        }

    private:
        friend class AsyncMutex;
        explicit Guard(AsyncMutex& mutex) noexcept : mutex_(&mutex) {}
        AsyncMutex* mutex_;
    };

    class [[nodiscard]] Lock : public detail::QueuedWaiter {
    public:
        Lock(Lock&&) noexcept = default;
        ~Lock() {
            leave_unclaimed([this] { (void)mutex_->pass_on_locked(); });  // the task was destroyed as an owner that has not seen it
        }
        [[nodiscard]] bool await_ready() const noexcept { return mutex_->try_lock(); }
        [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) noexcept {
            if (!enter_scope()) return false;
            const std::lock_guard lock(mutex_->queue_.mutex);
            if (!std::exchange(mutex_->locked_, true)) return false;
            mutex_->queue_.push(*this);
            return true;
        }
        void await_resume() {
            leave_queue();
            throw_if_cancelled();
        }

    protected:
        friend class AsyncMutex;
        explicit Lock(AsyncMutex& mutex) noexcept : mutex_(&mutex) {}
        AsyncMutex* mutex_;
    };

    class [[nodiscard]] ScopedLock final : public Lock {
    public:
        [[nodiscard]] Guard await_resume() {
            Lock::await_resume();
            return Guard(*mutex_);
        }

    private:
        friend class AsyncMutex;
        explicit ScopedLock(AsyncMutex& mutex) noexcept : Lock(mutex) {}
    };

    AsyncMutex() noexcept = default;

    /// `co_await mutex.lock()`: goes on as the owner; to be followed by unlock(). Throws muses::cancelled (not the owner then).
    Lock lock() noexcept { return Lock(*this); }

    /// `auto guard = co_await mutex.scoped_lock()`: the same with a guard that unlocks.
    ScopedLock scoped_lock() noexcept { return ScopedLock(*this); }

    /// Locks when nobody holds it.
    [[nodiscard]] bool try_lock() noexcept {
        const std::lock_guard lock(queue_.mutex);
        return !std::exchange(locked_, true);
    }

    /// Hands it to the first one who waits. Throws std::logic_error when it is not locked.
    void unlock() {
        if (!pass_on()) throw std::logic_error("muses::AsyncMutex::unlock: it is not locked");
    }

private:
    bool pass_on() noexcept {
        const std::lock_guard lock(queue_.mutex);
        return pass_on_locked();
    }
    bool pass_on_locked() noexcept {
        if (!locked_) return false;
        if (!queue_.hand_to_first()) locked_ = false;
        return true;
    }

    detail::WaitQueue queue_;
    bool locked_ = false;
};

}  // namespace muses
