// sync_wait: from a plain function into a task and back.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/detail/task_adapt.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_scheduler.hpp"

namespace muses {

namespace detail {

/// What: timers in an intrusive skew heap, each node in the room that TaskTimer has for it.
/// Complexity: arm and disarm O(log n) amortised, next O(1); no allocation.
/// Threads: one at a time. Lifetime: owns no timer. Limits: none.
class TaskTimerHeap {
public:
    void arm(TaskTimer& timer, SteadyTime when) noexcept {
        auto* node = ::new (timer.room()) Node{when, &timer, nullptr, nullptr, nullptr};
        set_root(merge(root_, node));
    }

    void disarm(TaskTimer& timer) noexcept {
        Node* const node = std::launder(static_cast<Node*>(timer.room()));
        Node* const parent = node->parent;
        Node* const rest = merge(node->left, node->right);
        if (parent == nullptr) return set_root(rest);
        (parent->left == node ? parent->left : parent->right) = rest;
        if (rest != nullptr) rest->parent = parent;
    }

    [[nodiscard]] bool empty() const noexcept { return root_ == nullptr; }
    /// When the first one is due. Not for an empty heap.
    [[nodiscard]] SteadyTime next() const noexcept { return root_->when; }
    [[nodiscard]] TaskTimer& first() const noexcept { return *root_->timer; }

private:
    struct Node {
        SteadyTime when;
        TaskTimer* timer;
        Node* parent;
        Node* left;
        Node* right;
    };
    static_assert(sizeof(Node) <= TaskTimer::kRoom);

    void set_root(Node* node) noexcept {
        root_ = node;
        if (node != nullptr) node->parent = nullptr;
    }

    static Node* merge(Node* a, Node* b) noexcept {
        Node* root = nullptr;
        Node* parent = nullptr;
        Node** place = &root;
        while (a != nullptr && b != nullptr) {
            if (b->when < a->when) std::swap(a, b);
            *place = a;
            a->parent = parent;
            parent = a;
            std::swap(a->left, a->right);
            place = &a->left;
            a = a->left;
        }
        Node* const rest = a != nullptr ? a : b;
        *place = rest;
        if (rest != nullptr) rest->parent = parent;
        return root;
    }

    Node* root_ = nullptr;
};

/// What: the scheduler of one sync_wait: runs tasks on the thread that waits, until a task waits for what another scheduler watches;
///     then it moves to that one's thread, as a guest, with all that it has.
/// Complexity: one wake-up of a sleeping thread for what another thread schedules.
/// Threads: schedule and wake from any.
/// Lifetime: on the stack of sync_wait. Limits: moves once.
class BlockingScheduler final : public TaskScheduler, private ReadyNode, private TaskRoot {
public:
    BlockingScheduler() noexcept
        : ReadyNode([](ReadyNode& node) noexcept { static_cast<BlockingScheduler&>(node).drain_as_guest(); }) {}
    ~BlockingScheduler() = default;

    [[nodiscard]] bool on_own_thread() const noexcept override {
        // Acquire pairs with the release in move_out(); a thread that is not the host's and overlooks it compares with the id of the
        // thread that waits, which is right before and harmless after: that thread runs no task any more.
        const TaskScheduler* const host = host_.load(std::memory_order_acquire);
        return host != nullptr ? host->on_own_thread() : std::this_thread::get_id() == thread_;
    }

    [[nodiscard]] bool touchable() const noexcept override {
        const TaskScheduler* const host = host_.load(std::memory_order_acquire);  // as above
        return host != nullptr ? host->touchable() : std::this_thread::get_id() == thread_;
    }

    void wake() noexcept override {
        {
            const std::lock_guard lock(mutex_);
            if (host_.load(std::memory_order_relaxed) == nullptr) {  // relaxed: written under the mutex
                woken_ = true;
                changed_.notify_one();
                return;
            }
            if (posted_) return;
            posted_ = true;
        }
        host_.load(std::memory_order_relaxed)->schedule(*this);  // relaxed: seen above; set once
    }

    void arm(TaskTimer& timer, SteadyTime when) noexcept override {
        // Relaxed, here and below: on its own thread, which is the one that has moved it or that it was moved to by a mutex.
        if (TaskScheduler* const host = host_.load(std::memory_order_relaxed); host != nullptr && arrived_)
            host->arm(timer, when);
        else
            timers_.arm(timer, when);
    }

    void disarm(TaskTimer& timer) noexcept override {
        if (TaskScheduler* const host = host_.load(std::memory_order_relaxed); host != nullptr && arrived_)
            host->disarm(timer);
        else
            timers_.disarm(timer);
    }

    void on_task_exception(std::exception_ptr error) noexcept override { print_task_exception(error); }

    [[nodiscard]] TaskScheduler& host() noexcept override {
        TaskScheduler* const host = host_.load(std::memory_order_relaxed);
        return host != nullptr ? *host : *this;
    }

    [[nodiscard]] bool move_to(TaskScheduler& target) noexcept override {
        if (TaskScheduler* const host = host_.load(std::memory_order_relaxed)) return host == &target;
        if (goes_to_ != nullptr) return goes_to_ == &target;
        if (target.on_own_thread()) return false;  // the very thread that stands still in sync_wait
        goes_to_ = &target;
        set_leaving(true);
        return true;
    }

    /// Runs tasks until finish(); then the caller is the only one who knows this scheduler. Throws std::logic_error when the scheduler
    /// that it has moved to ended before.
    void run_until_finished() {
        while (!finished_) {
            (void)drain();
            if (finished_) break;
            if (goes_to_ != nullptr) {
                move_out();
                break;
            }
            fire_timers();
            if (has_ready()) continue;
            sleep();
        }
        if (!arrived_or_moving_)
            return abandon_all();  // tasks that were spawned here and have not ended; this thread alone writes it
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return left_; });
        if (abandoned_) throw std::logic_error("muses::sync_wait: the loop that the task waited on was destroyed");
    }

    /// Ends run_until_finished(). Own thread.
    void finish() noexcept {
        finished_ = true;
        set_leaving(true);
    }

private:
    // The scheduler that this is a guest of ends.
    void abandon() noexcept override {
        abandon_all();
        goes_to_->unschedule(*this);
        const std::lock_guard lock(mutex_);
        abandoned_ = left_ = true;
        changed_.notify_one();  // under the lock: the waiting thread destroys this
    }

    void move_out() noexcept {
        set_leaving(false);
        {
            const std::lock_guard lock(mutex_);
            // Release pairs with the acquire in on_own_thread(): whoever finds the host finds the rest of this scheduler in order too.
            host_.store(goes_to_, std::memory_order_release);
            arrived_or_moving_ = posted_ = true;
        }
        goes_to_->add_root(*this);
        goes_to_->schedule(*this);
    }

    // On the host's thread.
    void drain_as_guest() noexcept {
        TaskScheduler& host = *goes_to_;
        if (!arrived_) {
            arrived_ = true;
            while (!timers_.empty()) {
                const SteadyTime when = timers_.next();
                TaskTimer& timer = timers_.first();
                timers_.disarm(timer);
                host.arm(timer, when);
            }
        }
        {
            const std::lock_guard lock(mutex_);
            posted_ = false;
        }
        const bool more = drain();
        if (finished_) {
            abandon_all();  // what was spawned here and has not ended
            host.unschedule(*this);
            host.remove_root(*this);
            const std::lock_guard lock(mutex_);
            left_ = true;
            changed_.notify_one();  // under the lock: the waiting thread destroys this
        } else if (more) {
            wake();
        }
    }

    void fire_timers() noexcept {
        if (timers_.empty()) return;
        const SteadyTime now = std::chrono::steady_clock::now();
        while (!timers_.empty() && timers_.next() <= now) {
            TaskTimer& timer = timers_.first();
            timers_.disarm(timer);
            timer.fire();
        }
    }

    void sleep() {
        std::unique_lock lock(mutex_);
        if (timers_.empty())
            changed_.wait(lock, [this] { return woken_; });
        else
            changed_.wait_until(lock, timers_.next(), [this] { return woken_; });
        woken_ = false;
    }

    const std::thread::id thread_ = std::this_thread::get_id();
    std::atomic<TaskScheduler*> host_{nullptr};  // written once, under mutex_

    // Of the thread that runs the tasks.
    TaskScheduler* goes_to_ = nullptr;
    bool arrived_ = false;
    bool finished_ = false;
    TaskTimerHeap timers_;

    std::mutex mutex_;
    std::condition_variable changed_;
    bool woken_ = false;              // guarded by mutex_, as are:
    bool posted_ = false;             // the host has been given our node
    bool arrived_or_moving_ = false;  // the thread that waits runs nothing any more
    bool left_ = false;               // the host's thread touches nothing here any more
    bool abandoned_ = false;
};

/// The root of a task that sync_wait runs.
template <class T>
class SyncRoot final : public TaskRoot, private TaskEnd, private ReadyNode {
public:
    SyncRoot(BlockingScheduler& scheduler, Task<T>& task)
        : TaskEnd([](TaskEnd& end) noexcept {
              auto& self = static_cast<SyncRoot&>(end);
              self.ended_ = true;
              self.scheduler_.finish();
          }),
          ReadyNode([](ReadyNode& node) noexcept { static_cast<SyncRoot&>(node).start(); }),
          scheduler_(scheduler),
          task_(task) {
        task_.promise().begin(scheduler_, nullptr, *this);
        scheduler_.add_root(*this);
        scheduler_.schedule_here(*this);
    }
    ~SyncRoot() { scheduler_.remove_root(*this); }

    void abandon() noexcept override {
        if (!ended_) task_.owner().reset();
    }

    T take() { return task_.promise().take(); }

private:
    void start() noexcept { scheduler_.resume(task_.promise().self); }

    BlockingScheduler& scheduler_;
    TaskResult<T> task_;
    bool ended_ = false;
};

}  // namespace detail

/// Runs `work` (a task, or anything that a task can await) and returns its result, or throws what it threw. The calling thread runs it, and
/// sleeps while there is nothing to run; timers need no loop. A task that waits for I/O moves to the thread of the loop that
/// watches, which somebody must be running, and goes on there (with everything that it awaits). Throws std::logic_error for an empty task,
/// and when that loop is destroyed first. Not for a thread that runs a loop: that one would stand still meanwhile, and to wait for I/O on it
/// is a std::logic_error. Tasks that `work` has spawned here and not joined are freed at the end.
template <class Awaitable>
detail::AwaitResult<Awaitable> sync_wait(Awaitable&& work) {
    auto task = detail::as_task(std::forward<Awaitable>(work));
    detail::BlockingScheduler scheduler;
    detail::SyncRoot root(scheduler, task);
    scheduler.run_until_finished();
    return root.take();
}

}  // namespace muses
