// Task<T> and its promise.
#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "muses/detail/task_frame_pool.hpp"
#include "muses/detail/task_scheduler.hpp"

namespace muses {

template <class T>
class Task;

namespace detail {

struct TaskPromiseBase;
template <class T>
class TaskAwaiter;
template <class T>
class TaskResult;

/// For who has no hook for what a task threw.
inline void print_task_exception(const std::exception_ptr& error) noexcept {
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "muses::Task: a task that nobody awaits threw: %s\n", e.what());
    } catch (...) {
        std::fputs("muses::Task: a task that nobody awaits threw something that is no std::exception\n", stderr);
    }
}

/// An awaiter of this library: it is told the promise of the task that awaits it before anything else.
template <class A>
concept TaskWait = requires(A& awaiter, TaskPromiseBase& task) { awaiter.attach(task); };

/// Who is told that a task has ended when no coroutine awaits it: a fork (when_all, when_any) or a root.
struct TaskEnd {
    using Ended = void (*)(TaskEnd&) noexcept;
    explicit TaskEnd(Ended how) noexcept : ended(how) {}

    Ended ended;  // called in the last suspension of the task: must not destroy it
};

/// The awaiter of something that is neither a task nor of this library, as `co_await` finds it.
template <class A>
decltype(auto) foreign_awaiter(A&& awaitable) {
    if constexpr (requires { std::forward<A>(awaitable).operator co_await(); })
        return std::forward<A>(awaitable).operator co_await();
    else if constexpr (requires { operator co_await(std::forward<A>(awaitable)); })
        return operator co_await(std::forward<A>(awaitable));
    else
        return std::forward<A>(awaitable);
}

template <class T>
inline constexpr bool kIsTask = false;
template <class T>
inline constexpr bool kIsTask<Task<T>> = true;

template <class A>
concept ForeignAwaitable = !TaskWait<A> && !kIsTask<std::remove_cvref_t<A>> && requires(A&& awaitable) {
    { foreign_awaiter(std::forward<A>(awaitable)).await_ready() } -> std::convertible_to<bool>;
    foreign_awaiter(std::forward<A>(awaitable)).await_resume();
};
template <class A>
using ForeignResult = decltype(foreign_awaiter(std::declval<A>()).await_resume());

/// Where a task is being run: by the scheduler's loop, or for its first stretch by a direct call from the parent that awaits it.
enum class TaskPlace : std::uint8_t { OnItsOwn, InsideParent, EndedInside };

/// Sole owner of a task's frame.
class TaskOwner {
public:
    TaskOwner() noexcept = default;
    explicit TaskOwner(TaskPromiseBase* task) noexcept : task_(task) {}
    TaskOwner(TaskOwner&& other) noexcept : task_(std::exchange(other.task_, nullptr)) {}
    TaskOwner& operator=(TaskOwner&& other) noexcept {
        if (this != &other) {
            reset();
            task_ = std::exchange(other.task_, nullptr);
        }
        return *this;
    }
    TaskOwner(const TaskOwner&) = delete;
    TaskOwner& operator=(const TaskOwner&) = delete;
    ~TaskOwner() {
        if (task_ != nullptr) reset();
    }

    [[nodiscard]] TaskPromiseBase* get() const noexcept { return task_; }
    [[nodiscard]] TaskPromiseBase* release() noexcept { return std::exchange(task_, nullptr); }
    /// Frees the frame of a task that has ended, is suspended or has never begun.
    inline void reset() noexcept;

private:
    static void reset_awaited(TaskPromiseBase& top) noexcept;

    TaskPromiseBase* task_ = nullptr;
};

/// The part of a promise that does not depend on the result.
struct TaskPromiseBase {
    TaskPromiseBase() noexcept = default;
    TaskPromiseBase(const TaskPromiseBase&) = delete;
    TaskPromiseBase& operator=(const TaskPromiseBase&) = delete;

    static void* operator new(std::size_t bytes) { return FramePool::of_this_thread().allocate(bytes); }
    static void operator delete(void* frame, std::size_t bytes) noexcept { FramePool::of_this_thread().release(frame, bytes); }

    static std::suspend_always initial_suspend() noexcept { return {}; }

    struct AtEnd {
        static bool await_ready() noexcept { return false; }
        template <class Promise>
        static void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
            TaskPromiseBase& task = coroutine.promise();
            if (task.place == TaskPlace::InsideParent)
                task.place = TaskPlace::EndedInside;
            else if (task.parent != nullptr)
                task.scheduler->resume_next(task.parent->self);
            else
                task.end->ended(*task.end);
        }
        static void await_resume() noexcept {}
    };
    static AtEnd final_suspend() noexcept { return {}; }

    template <class T>
    [[nodiscard]] TaskAwaiter<T> await_transform(Task<T>&& task);
    template <class T>
    [[nodiscard]] TaskAwaiter<T> await_transform(Task<T>& task);
    template <TaskWait A>
    [[nodiscard]] A&& await_transform(A&& awaiter) noexcept {
        awaiter.attach(*this);
        return std::forward<A>(awaiter);
    }

    template <ForeignAwaitable A>
    [[nodiscard]] TaskAwaiter<ForeignResult<A>> await_transform(A&& awaitable);  // task_foreign.hpp

    /// Lets the task begin as the child of nobody: `teller` is told of its end.
    void begin(TaskScheduler& on, CancelScope* in, TaskEnd& teller) noexcept {
        scheduler = &on;
        scope = in;
        parent = nullptr;
        end = &teller;
    }

    std::coroutine_handle<> self;  // not from_promise(*this): that needs the promise's own type
    TaskScheduler* scheduler;      // these four since the start
    CancelScope* scope;
    TaskPromiseBase* parent;  // who awaits this, or null:
    TaskEnd* end;
    TaskOwner* awaited = nullptr;  // the child that this awaits; owned by the awaiter on this frame
    TaskPlace place = TaskPlace::OnItsOwn;
};

inline void TaskOwner::reset() noexcept {
    TaskPromiseBase* const task = std::exchange(task_, nullptr);
    if (task == nullptr) return;
    if (task->awaited != nullptr) [[unlikely]]
        reset_awaited(*task);
    task->self.destroy();
}

/// Frees the tasks that `top`, which is suspended, awaits, the innermost first: in the order of a recursion, on a stack that does not
/// grow with their number.
[[gnu::noinline]] inline void TaskOwner::reset_awaited(TaskPromiseBase& top) noexcept {
    TaskPromiseBase* at = &top;
    while (at->awaited != nullptr) at = at->awaited->task_;
    while (at != &top) {
        TaskPromiseBase* const above = at->parent;
        above->awaited->task_ = nullptr;
        above->awaited = nullptr;
        at->self.destroy();
        at = above;
    }
}

/// Room for a T that may be more aligned than the frames of coroutines are.
template <class T>
class TaskSlot {
public:
    [[nodiscard]] T* get() noexcept { return std::launder(static_cast<T*>(place())); }
    template <class... Args>
    void emplace(Args&&... args) {
        ::new (place()) T(std::forward<Args>(args)...);
    }

private:
    static constexpr bool kOverAligned = alignof(T) > __STDCPP_DEFAULT_NEW_ALIGNMENT__;

    [[nodiscard]] void* place() noexcept {
        if constexpr (kOverAligned) {
            const auto at = reinterpret_cast<std::uintptr_t>(room_);
            return room_ + (alignof(T) - at % alignof(T)) % alignof(T);
        } else {
            return room_;
        }
    }

    alignas(kOverAligned ? 1 : alignof(T)) std::byte room_[sizeof(T) + (kOverAligned ? alignof(T) - 1 : 0)];
};

template <class T>
class TaskPromise;

enum class TaskState : std::uint8_t { Running, Value, Error };

/// The result of a task.
template <class T>
class TaskPromiseOf : public TaskPromiseBase {
public:
    Task<T> get_return_object() noexcept;

    void unhandled_exception() noexcept {
        error_.emplace(std::current_exception());
        state_ = TaskState::Error;
    }

    [[nodiscard]] bool failed() const noexcept { return state_ == TaskState::Error; }

protected:
    ~TaskPromiseOf() {
        if (state_ == TaskState::Error) error_.get()->~exception_ptr();
    }

    void rethrow_error() {
        if (state_ == TaskState::Error) [[unlikely]]
            std::rethrow_exception(std::move(*error_.get()));
    }

    TaskState state_ = TaskState::Running;

private:
    TaskSlot<std::exception_ptr> error_;
};

template <class T>
class TaskPromise final : public TaskPromiseOf<T> {
    static_assert(std::is_object_v<T> && std::is_move_constructible_v<T>, "muses::Task: the result must be movable");

public:
    ~TaskPromise() {
        if (this->state_ == TaskState::Value) std::destroy_at(value_.get());
    }

    /// After a value too: the destructor of a local may throw when it has been returned.
    void unhandled_exception() noexcept {
        if (this->state_ == TaskState::Value) std::destroy_at(value_.get());
        TaskPromiseOf<T>::unhandled_exception();
    }

    template <class U = T>
        requires std::constructible_from<T, U&&>
    void return_value(U&& value) {
        value_.emplace(std::forward<U>(value));
        this->state_ = TaskState::Value;
    }

    /// The result of a task that has ended, to be taken once; throws what the task has thrown.
    [[nodiscard]] T take() {
        this->rethrow_error();
        return std::move(*value_.get());
    }

private:
    TaskSlot<T> value_;
};

template <class T>
class TaskPromise<T&> final : public TaskPromiseOf<T&> {
public:
    void return_value(T& value) noexcept {
        value_ = std::addressof(value);
        this->state_ = TaskState::Value;
    }
    [[nodiscard]] T& take() {
        this->rethrow_error();
        return *value_;
    }

private:
    T* value_ = nullptr;
};

template <>
class TaskPromise<void> final : public TaskPromiseOf<void> {
public:
    void return_void() noexcept { state_ = TaskState::Value; }
    void take() { rethrow_error(); }
};

}  // namespace detail

/// What: a coroutine that has not begun: it runs while it is awaited, and its result or exception goes to whoever awaits it.
/// Complexity: creating, awaiting and ending one is a few nanoseconds and no malloc in a steady state; the stack does not grow, with
///     any number of awaits in a row or nested in each other.
/// Threads: runs on the thread of the scheduler that it was started on, with everything that it awaits. The object belongs to one
///     thread at a time.
/// Lifetime: owns its frame; awaiting takes the frame over. Destroying one that never began, is suspended or has ended frees it and
///     what it awaits, innermost first, once, with every registration (timers, descriptors, queues of waiters).
/// Limits: awaited once, inside of another Task; by anything else through sync_wait, a TaskScope or spawn. It may await foreign awaitables
///     (whoever resumes them, it goes on on its own thread); a wait for one is not cancelled, and must not be destroyed under way. References among the
///     parameters of a coroutine must stay valid while it runs; a lambda with captures must too: see invoke(). A running
///     task must not destroy itself. Freeing a suspended tree recurses where a when_all, when_any or TaskScope is inside of another:
///     about three hundred levels of those for 256 KiB of stack. Tasks that await each other one by one are freed without that, however deep.
///
/// Patterns that compilers get wrong are best avoided (the library does): binding `co_await` to structured bindings, lambdas with
/// captures inside a `co_await` expression, co_await inside a conditional operator (gcc); give the operand or the result a name instead.
template <class T = void>
class [[nodiscard]] Task {
public:
    using promise_type = detail::TaskPromise<T>;
    using value_type = T;

    /// An empty task: awaiting it throws.
    Task() noexcept = default;
    Task(Task&&) noexcept = default;
    Task& operator=(Task&&) noexcept = default;

    /// False for one that is empty, was moved from or has been awaited.
    [[nodiscard]] explicit operator bool() const noexcept { return task_.get() != nullptr; }

private:
    friend class detail::TaskPromiseOf<T>;
    friend class detail::TaskResult<T>;
    explicit Task(promise_type& promise) noexcept : task_(&promise) {}

    detail::TaskOwner task_;
};

namespace detail {

/// A task that has been taken over by whoever runs it.
template <class T>
class TaskResult {
public:
    /// Leaves `task` empty. Throws std::logic_error when it is so already.
    explicit TaskResult(Task<T>& task) : task_(std::move(task.task_)) {
        if (task_.get() == nullptr) [[unlikely]]
            throw_empty();
    }

    [[nodiscard]] TaskPromise<T>& promise() const noexcept { return static_cast<TaskPromise<T>&>(*task_.get()); }
    [[nodiscard]] TaskOwner& owner() noexcept { return task_; }

private:
    [[noreturn, gnu::noinline, gnu::cold]] static void throw_empty() {
        throw std::logic_error("muses::Task: an empty task is awaited (or one that was awaited before, or moved from)");
    }

    TaskOwner task_;
};

template <class T>
class [[nodiscard]] TaskAwaiter {
public:
    explicit TaskAwaiter(Task<T>& task) : child_(task) {}

    [[nodiscard]] static bool await_ready() noexcept { return false; }

    template <class Promise>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
        TaskPromiseBase& parent = coroutine.promise();
        return start(parent, parent.scope);
    }

    T await_resume() {
        child_.promise().parent->awaited = nullptr;
        return child_.promise().take();
    }

protected:
    /// Begins the child. False when it has ended already: the parent then goes on without having left its place on the stack.
    [[nodiscard]] bool start(TaskPromiseBase& parent, CancelScope* scope) noexcept {
        TaskPromiseBase& child = child_.promise();
        TaskScheduler& scheduler = *parent.scheduler;
        child.scheduler = &scheduler;
        child.scope = scope;
        child.parent = &parent;
        parent.awaited = &child_.owner();
        if (!scheduler.may_nest()) {
            scheduler.resume_next(child.self);
            return true;
        }
        child.place = TaskPlace::InsideParent;
        scheduler.resume_nested(child.self);
        if (child.place == TaskPlace::EndedInside) return false;
        child.place = TaskPlace::OnItsOwn;
        return true;
    }

private:
    TaskResult<T> child_;
};

template <class T>
TaskAwaiter<T> TaskPromiseBase::await_transform(Task<T>&& task) {
    return TaskAwaiter<T>(task);
}
template <class T>
TaskAwaiter<T> TaskPromiseBase::await_transform(Task<T>& task) {
    return TaskAwaiter<T>(task);
}

template <class T>
Task<T> TaskPromiseOf<T>::get_return_object() noexcept {
    auto& promise = static_cast<TaskPromise<T>&>(*this);
    this->self = std::coroutine_handle<TaskPromise<T>>::from_promise(promise);
    return Task<T>(promise);
}

}  // namespace detail

}  // namespace muses
