// Time and cancellation: sleep_for, with_timeout, with_stop_token.
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <expected>
#include <functional>
#include <type_traits>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/detail/stop_token.hpp"
#include "muses/detail/task_adapt.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_wait.hpp"

namespace muses {

/// What with_timeout gives when the time was over first.
struct timed_out {
    friend constexpr bool operator==(timed_out, timed_out) noexcept = default;
};

/// What: a wait for nothing but the time.
/// Complexity: one timer of the task's scheduler.
/// Threads: that of the task.
/// Lifetime: on the frame of the task that waits; disarms itself.
/// Limits: the resolution of the scheduler's timers; never early.
class [[nodiscard]] Sleep final : public detail::TaskWaiter, private TaskTimer {
public:
    Sleep(Sleep&&) noexcept = default;

    [[nodiscard]] static bool await_ready() noexcept { return false; }
    [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) noexcept {
        if (!enter_scope()) return false;
        arm(scheduler(), relative_ ? detail::deadline_from_now(until_) : until_);
        return true;
    }
    void await_resume() const { throw_if_cancelled(); }

private:
    template <class Rep, class Period>
    friend Sleep sleep_for(std::chrono::duration<Rep, Period> duration) noexcept;
    friend Sleep sleep_until(std::chrono::steady_clock::time_point when) noexcept;

    Sleep(detail::SteadyTime until, bool relative) noexcept
        : TaskWaiter([](detail::Cancellable& wait) noexcept {
              auto& sleep = static_cast<Sleep&>(static_cast<TaskWaiter&>(wait));
              sleep.disarm();
              sleep.complete(detail::WaitOutcome::Cancelled);
          }),
          TaskTimer([](TaskTimer& timer) noexcept { static_cast<Sleep&>(timer).complete(detail::WaitOutcome::Done); }),
          until_(until),
          relative_(relative) {}

    detail::SteadyTime until_;  // when relative: counted from the clock's zero
    bool relative_;
};

/// `co_await sleep_for(100ms)`: goes on when that time is over, from the await on. 0 or less lets others run first; more than a year is
/// for ever. Throws muses::cancelled.
template <class Rep, class Period>
Sleep sleep_for(std::chrono::duration<Rep, Period> duration) noexcept {
    return {detail::deadline_after(duration, detail::SteadyTime()), true};
}

/// `co_await sleep_until(time)`: the same for a time of the steady clock.
inline Sleep sleep_until(std::chrono::steady_clock::time_point when) noexcept { return {when, false}; }

namespace detail {

/// `co_await ThisTask()`: the promise of the task that asks.
class ThisTask {
public:
    void attach(TaskPromiseBase& task) noexcept { task_ = &task; }
    [[nodiscard]] static bool await_ready() noexcept { return true; }
    static void await_suspend(std::coroutine_handle<> /*task*/) noexcept {}
    [[nodiscard]] TaskPromiseBase& await_resume() const noexcept { return *task_; }

private:
    TaskPromiseBase* task_ = nullptr;
};

/// Awaits a task in a cancellation scope of its own.
template <class T>
class [[nodiscard]] InScope : public TaskAwaiter<T> {
public:
    InScope(Task<T>& task, CancelScope& scope) : TaskAwaiter<T>(task), scope_(scope) {}

    static void attach(TaskPromiseBase& /*task*/) noexcept {}

    template <class Promise>
    [[nodiscard]] bool await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
        return this->start(coroutine.promise(), &scope_);
    }

private:
    CancelScope& scope_;
};

/// Ends the waits of a scope when the time has come.
class ScopeTimer : private TaskTimer {
public:
    explicit ScopeTimer(CancelScope& scope) noexcept
        : TaskTimer([](TaskTimer& timer) noexcept {
              auto& self = static_cast<ScopeTimer&>(timer);
              self.fired_ = true;
              self.scope_.request();
          }),
          scope_(scope) {}
    using TaskTimer::arm;
    [[nodiscard]] bool fired() const noexcept { return fired_; }

private:
    CancelScope& scope_;
    bool fired_ = false;
};

/// Ends the waits of a scope when a stop token says so, from any thread, on the thread of the scheduler.
template <class Token>
class StopBridge {
public:
    StopBridge(TaskScheduler& scheduler, CancelScope& scope, const Token& token)
        : token_(token), node_(scheduler, scope), callback_(token_, Signal{&node_}) {
        scope.ask_too([](const void* asked) noexcept { return static_cast<const Token*>(asked)->stop_requested(); }, &token_);
    }
    StopBridge(const StopBridge&) = delete;
    StopBridge& operator=(const StopBridge&) = delete;

private:
    struct Node : ReadyNode {
        Node(TaskScheduler& s, CancelScope& c) noexcept
            : ReadyNode([](ReadyNode& node) noexcept { static_cast<Node&>(node).scope.request(); }), scheduler(s), scope(c) {}
        ~Node() {
            if (scheduled()) scheduler.unschedule(*this);
        }
        TaskScheduler& scheduler;
        CancelScope& scope;
    };
    struct Signal {
        Node* node;
        void operator()() const noexcept { node->scheduler.schedule(*node); }
    };
    using Callback = StopCallbackFor<Token, Signal>;
    static_assert(!std::is_void_v<Callback>, "muses::with_stop_token: the token has no callback_type");

    const Token token_;
    Node node_;
    Callback callback_;  // destroyed first, which waits for a request under way on another thread: then nobody else knows the node
};

/// How a result of type T is kept in an expected, a variant or a vector.
template <class T>
struct KeptImpl {
    using Type = T;
};
template <class T>
struct KeptImpl<T&> {
    using Type = std::reference_wrapper<T>;
};
template <class T>
using Kept = KeptImpl<T>::Type;

template <class T>
Task<std::expected<Kept<T>, timed_out>> run_with_timeout(Task<T> task, SteadyTime duration) {
    TaskPromiseBase& self = co_await ThisTask();
    CancelScope scope(self.scope);
    ScopeTimer timer(scope);
    InScope<T> child(task, scope);
    timer.arm(*self.scheduler, deadline_from_now(duration));
    bool over = false;
    try {
        if constexpr (std::is_void_v<T>) {
            co_await child;
            co_return std::expected<void, timed_out>();
        } else {
            co_return std::expected<Kept<T>, timed_out>(co_await child);
        }
    } catch (const cancelled&) {
        over = timer.fired();
        if (!over) throw;
    }
    co_return std::unexpected(timed_out());
}

template <class T, class Token>
Task<T> run_with_stop_token(Task<T> task, Token token) {
    TaskPromiseBase& self = co_await ThisTask();
    CancelScope scope(self.scope);
    StopBridge<Token> bridge(*self.scheduler, scope, token);
    InScope<T> child(task, scope);
    co_return co_await child;
}

}  // namespace detail

/// Awaits `work` for `duration` at most, counted from the await on. Returns its result (a reference as std::reference_wrapper), or timed_out when
/// a wait of it was ended because the time was over; a result that is there first counts. Throws what `work` throws.
template <class Awaitable, class Rep, class Period>
[[nodiscard]] auto with_timeout(Awaitable&& work, std::chrono::duration<Rep, Period> duration) {
    return detail::run_with_timeout(detail::as_task(std::forward<Awaitable>(work)),
                                    detail::deadline_after(duration, detail::SteadyTime()));
}

/// Awaits `work`; when `token` is asked to stop, by any thread, its waits (and those of what it awaits) throw muses::cancelled on their own
/// thread: the one under way, and each later one. Returns what `work` returns.
template <class Awaitable, StopTokenLike Token>
[[nodiscard]] auto with_stop_token(Awaitable&& work, Token token) {
    return detail::run_with_stop_token(detail::as_task(std::forward<Awaitable>(work)), std::move(token));
}

}  // namespace muses
