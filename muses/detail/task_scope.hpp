// TaskScope, spawn and invoke: tasks that nobody awaits one by one.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include "muses/detail/move_only_function.hpp"
#include "muses/detail/task_adapt.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_io.hpp"
#include "muses/detail/task_ready.hpp"
#include "muses/detail/task_wait.hpp"

namespace muses {

class TaskScope;

namespace detail {

struct ScopeLink : ListLink {};

/// What: a task without a parent: it begins by itself, and frees itself when it has ended.
/// Complexity: one block of the frame pool.
/// Threads: that of its scheduler, once it has one.
/// Lifetime: its own; or freed by its scope or scheduler when those end before it.
/// Limits: none.
class SpawnedTask : public TaskRoot, public ScopeLink, private TaskEnd, private ReadyNode {
public:
    SpawnedTask(const SpawnedTask&) = delete;
    SpawnedTask& operator=(const SpawnedTask&) = delete;

    /// Whom it tells when it has ended; a detached one tells nobody.
    void belongs_to(TaskScope& scope) noexcept { scope_ = &scope; }

    /// Lets it begin soon. Any thread.
    void start_on(TaskScheduler& scheduler) noexcept {
        scheduler_ = &scheduler;
        scheduler.add_root(*this);
        scheduler.schedule(*this);
    }

    /// Ends its waits. Its scheduler's thread.
    void cancel() noexcept { cancel_.request(); }

    /// Frees it, with all that it awaits. Its scheduler's thread, or when nobody runs that.
    void abandon() noexcept override;

    virtual void destroy() noexcept = 0;

protected:
    explicit SpawnedTask(TaskPromiseBase& task) noexcept
        : TaskEnd([](TaskEnd& end) noexcept {
              auto& self = static_cast<SpawnedTask&>(end);
              self.run = [](ReadyNode& node) noexcept { static_cast<SpawnedTask&>(node).finish(); };  // not inside of its own end
              self.scheduler_->schedule_here(self);
          }),
          ReadyNode([](ReadyNode& node) noexcept {
              auto& self = static_cast<SpawnedTask&>(node);
              self.task_->begin(*self.scheduler_, &self.cancel_, self);
              self.scheduler_->resume(self.task_->self);
          }),
          task_(&task) {}
    ~SpawnedTask() {
        if (scheduler_ == nullptr) return;
        if (ReadyNode::scheduled()) scheduler_->unschedule(*this);
        scheduler_->remove_root(*this);
    }

    /// What the task, which has ended, has thrown; null for nothing.
    [[nodiscard]] virtual std::exception_ptr error() noexcept = 0;

private:
    void finish() noexcept;

    TaskPromiseBase* task_;
    TaskScheduler* scheduler_ = nullptr;
    TaskScope* scope_ = nullptr;
    CancelScope cancel_{nullptr};
};

template <class T>
class SpawnedTaskOf final : public SpawnedTask {
public:
    explicit SpawnedTaskOf(TaskResult<T>&& task) noexcept : SpawnedTask(task.promise()), task_(std::move(task)) {}

    static void* operator new(std::size_t bytes) { return FramePool::of_this_thread().allocate(bytes); }
    static void operator delete(void* memory, std::size_t bytes) noexcept { FramePool::of_this_thread().release(memory, bytes); }

    void destroy() noexcept override { delete this; }

protected:
    [[nodiscard]] std::exception_ptr error() noexcept override {
        if (!task_.promise().failed()) return nullptr;
        try {
            (void)task_.promise().take();
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

private:
    ~SpawnedTaskOf() = default;
    TaskResult<T> task_;
};

}  // namespace detail

/// What: tasks that run beside the one that has started them, and are waited for together.
/// Complexity: spawn and the end of a task O(1).
/// Threads: spawn and join from any; a task runs on the scheduler of the scope: the one that was given to it, or else that of the task or
///     loop which spawned first, or else the one that joins.
/// Lifetime: join it before it is destroyed. When tasks still run then, the hook is told (std::logic_error), and they are
///     destroyed where they are suspended: none outlives its scope. From another thread than theirs, they are cancelled and waited
///     for instead. A task of the scope must not destroy it.
/// Limits: none on their number: a semaphore beside it makes one.
class TaskScope {
public:
    /// Gets what a task threw, other than muses::cancelled, on the thread where it ran. Must not throw: what it throws is swallowed.
    using Hook = detail::move_only_function<void(std::exception_ptr)>;

    /// Without a hook, exceptions are printed to stderr.
    explicit TaskScope(Hook hook = {}) noexcept : hook_(std::move(hook)), given_(nullptr), scheduler_(nullptr) {}

    /// Tasks run on `scheduler`, which may start to run later.
    template <IoScheduler S>
    explicit TaskScope(S& scheduler, Hook hook = {}) noexcept
        : hook_(std::move(hook)), given_(&scheduler.tasks()), scheduler_(given_) {}

    TaskScope(const TaskScope&) = delete;
    TaskScope& operator=(const TaskScope&) = delete;
    ~TaskScope() {
        if (count() == 0) return;
        report(std::make_exception_ptr(std::logic_error("muses::TaskScope: destroyed while tasks of it were running")));
        end_all();
    }

    /// Starts `work`, a task or an awaitable, soon: when what runs now on its scheduler is suspended. Its result is dropped. Throws
    /// std::logic_error for an empty task, std::bad_alloc.
    template <class Awaitable>
    void spawn(Awaitable&& work) {
        using T = detail::AwaitResult<Awaitable>;
        auto task = detail::as_task(std::forward<Awaitable>(work));
        detail::TaskResult<T> owned(task);
        add(*new detail::SpawnedTaskOf<T>(std::move(owned)));
    }

    /// What: the wait for the end of all tasks. Complexity: O(1). Threads: any. Lifetime: before the scope. Limits: none.
    class [[nodiscard]] Join final : public detail::QueuedWaiter {
    public:
        [[nodiscard]] bool await_ready() const noexcept { return scope_->count() == 0; }
        [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) noexcept {
            scope_->bind(scheduler());
            if (!enter_scope()) {
                set_outcome(detail::WaitOutcome::Pending);
                stop_waiting();
            }
            const std::lock_guard lock(scope_->queue_.mutex);
            if (scope_->count_ == 0) return false;
            scope_->queue_.push(*this);
            return true;
        }
        void await_resume() {
            leave_queue();
            throw_if_cancelled();
            if (cancelled_) throw cancelled();
        }

    private:
        friend class TaskScope;
        explicit Join(TaskScope& scope) noexcept
            : QueuedWaiter(
                  [](detail::Cancellable& wait) noexcept { static_cast<Join&>(static_cast<TaskWaiter&>(wait)).stop_waiting(); }),
              scope_(&scope) {}
        void stop_waiting() noexcept {
            cancelled_ = true;
            scope_->cancel();
        }
        TaskScope* scope_;
        bool cancelled_ = false;
    };

    /// `co_await scope.join()`: goes on when no task runs any more. When the wait is cancelled, so are the tasks; it throws
    /// muses::cancelled when they have ended. More may be spawned afterwards.
    Join join() noexcept { return Join(*this); }

    /// Ends the waits of all tasks that have been spawned: they throw muses::cancelled. Any thread.
    void cancel() noexcept {
        const std::lock_guard lock(queue_.mutex);
        if (scheduler_ == nullptr || count_ == 0 || std::exchange(cancelling_, true)) return;
        scheduler_->schedule(canceller_);
    }

    /// How many tasks have been spawned and have not ended.
    [[nodiscard]] std::size_t size_approx() const noexcept { return count(); }

private:
    friend class detail::SpawnedTask;

    using Tasks = detail::LinkedList<detail::SpawnedTask, detail::ScopeLink>;

    struct Canceller : detail::ReadyNode {
        explicit Canceller(TaskScope& s) noexcept
            : ReadyNode([](ReadyNode& node) noexcept { static_cast<Canceller&>(node).scope.cancel_here(); }), scope(s) {}
        TaskScope& scope;
    };

    [[nodiscard]] std::size_t count() const noexcept {
        const std::lock_guard lock(queue_.mutex);
        return count_;
    }

    void add(detail::SpawnedTask& task) noexcept {
        const std::lock_guard lock(queue_.mutex);
        ++count_;
        tasks_.push_back(task);
        task.belongs_to(*this);
        if (scheduler_ == nullptr) scheduler_ = TaskScheduler::current();
        if (scheduler_ != nullptr) task.start_on(*scheduler_);
    }

    // Starts those that were spawned where there was no scheduler.
    void bind(TaskScheduler& scheduler) noexcept {
        const std::lock_guard lock(queue_.mutex);
        if (scheduler_ != nullptr || count_ == 0) return;
        scheduler_ = &scheduler;
        Tasks all;
        all.splice_back(tasks_);
        while (detail::SpawnedTask* task = all.pop_front()) {
            tasks_.push_back(*task);
            task->start_on(scheduler);
        }
    }

    // No task ends meanwhile: this is their thread. Others may spawn more.
    void cancel_here() noexcept {
        Tasks asked;
        {
            const std::lock_guard lock(queue_.mutex);
            cancelling_ = false;
            asked.splice_back(tasks_);
        }
        for (;;) {
            detail::SpawnedTask* task = nullptr;
            {
                const std::lock_guard lock(queue_.mutex);
                task = asked.pop_front();
                if (task == nullptr) return;
                tasks_.push_back(*task);
            }
            task->cancel();
        }
    }

    // A task that has ended, or is about to be freed, leaves the list.
    void leave(detail::SpawnedTask& task) noexcept {
        const std::lock_guard lock(queue_.mutex);
        task.ScopeLink::unlink();
    }

    // Its frame is gone. The scope may be, when this returns.
    void left() noexcept {
        const std::lock_guard lock(queue_.mutex);
        if (--count_ > 0) return;
        if (std::exchange(cancelling_, false)) scheduler_->unschedule(canceller_);
        scheduler_ = given_;
        while (queue_.wake_first()) {}
    }

    void report(std::exception_ptr error) noexcept {
        try {
            if (hook_)
                hook_(std::move(error));
            else
                detail::print_task_exception(error);
        } catch (...) {  // NOLINT(bugprone-empty-catch): a hook must not throw
        }
    }

    void free_all() noexcept {
        for (;;) {
            detail::SpawnedTask* task = nullptr;
            {
                const std::lock_guard lock(queue_.mutex);
                task = tasks_.front();
            }
            if (task == nullptr) return;
            task->abandon();  // no lock: it destroys what is the user's
        }
    }

    void end_all() noexcept {
        TaskScheduler* scheduler = nullptr;
        {
            const std::lock_guard lock(queue_.mutex);
            scheduler = scheduler_;
        }
        if (scheduler != nullptr && !scheduler->touchable()) {
            cancel();
            while (count() > 0 && !scheduler->touchable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        free_all();
    }

    Hook hook_;
    mutable detail::WaitQueue queue_;  // of those that join; its mutex guards all below
    TaskScheduler* const given_;
    TaskScheduler* scheduler_;  // null: not known yet
    std::size_t count_ = 0;
    bool cancelling_ = false;  // canceller_ is on its way
    Tasks tasks_;
    Canceller canceller_{*this};
};

namespace detail {

inline void SpawnedTask::abandon() noexcept {
    TaskScope* const scope = scope_;
    if (scope != nullptr) scope->leave(*this);
    destroy();
    if (scope != nullptr) scope->left();
}

inline void SpawnedTask::finish() noexcept {
    if (std::exception_ptr thrown = error()) {
        bool only_cancelled = false;
        try {
            std::rethrow_exception(thrown);
        } catch (const cancelled&) {
            only_cancelled = true;
        } catch (...) {  // NOLINT(bugprone-empty-catch): asked for its type only
        }
        if (!only_cancelled) {
            if (scope_ != nullptr)
                scope_->report(std::move(thrown));
            else
                scheduler_->on_task_exception(std::move(thrown));
        }
    }
    abandon();
}

}  // namespace detail

/// Starts `work`, a task or an awaitable, on `scheduler`, which owns it from now on: it is freed when it has ended, or with the scheduler.
/// What it throws, other than muses::cancelled, goes to the scheduler's hook. Any thread. Throws std::logic_error for an empty task,
/// std::bad_alloc.
template <IoScheduler S, class Awaitable>
void spawn(S& scheduler, Awaitable&& work) {
    using T = detail::AwaitResult<Awaitable>;
    auto task = detail::as_task(std::forward<Awaitable>(work));
    detail::TaskResult<T> owned(task);
    (new detail::SpawnedTaskOf<T>(std::move(owned)))->start_on(scheduler.tasks());
}

/// Calls a coroutine function with `args` and keeps function and arguments alive while the task runs: the way to use a lambda with
/// captures as a coroutine, which does not own its captures: `co_await invoke([x = 1]() -> Task<int> { co_return x; })`.
template <class F, class... Args>
    requires detail::kIsTask<std::invoke_result_t<F&, Args...>>
std::invoke_result_t<F&, Args...> invoke(F function, Args... args) {
    co_return co_await std::invoke(function, std::move(args)...);
}

}  // namespace muses
