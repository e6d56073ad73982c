// Awaiting, in a task, what is neither a task nor an awaitable of this library.
//
// Whoever resumes such a wait does it on a thread of its own choosing, and knows nothing of schedulers. So it is awaited by a small
// coroutine of its own, the bridge, which may end anywhere; the task waits for that, and goes on on its own thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "muses/detail/task_adapt.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_frame_pool.hpp"
#include "muses/detail/task_ready.hpp"
#include "muses/detail/task_sync.hpp"
#include "muses/detail/task_time.hpp"

namespace muses::detail {

/// What: runs a body that awaits something foreign, and sets an event when it is suspended for the last time.
/// Complexity: one block of the frame pool. Threads: begins on one, may end on another. Lifetime: owns its frame; destroyed while
/// the foreign wait is under way, the latter must not resume it any more. Limits: the body must not throw.
class ForeignBridge {
public:
    struct promise_type {
        template <class... Args>
        explicit promise_type(AsyncEvent& event, Args&&... /*arguments of the coroutine*/) noexcept : ended(event) {}

        static void* operator new(std::size_t bytes) { return FramePool::of_this_thread().allocate(bytes); }
        static void operator delete(void* frame, std::size_t bytes) noexcept { FramePool::of_this_thread().release(frame, bytes); }

        ForeignBridge get_return_object() noexcept {
            return ForeignBridge(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        static std::suspend_never initial_suspend() noexcept { return {}; }

        struct AtEnd {
            static bool await_ready() noexcept { return false; }
            // From set() on the frame may be destroyed by the task, on its thread.
            static void await_suspend(std::coroutine_handle<promise_type> coroutine) noexcept { coroutine.promise().ended.set(); }
            static void await_resume() noexcept {}
        };
        static AtEnd final_suspend() noexcept { return {}; }
        static void return_void() noexcept {}
        [[noreturn]] static void unhandled_exception() noexcept { std::terminate(); }  // not reached: the body catches

        AsyncEvent& ended;
    };

    ForeignBridge(ForeignBridge&& other) noexcept : coroutine_(std::exchange(other.coroutine_, {})) {}
    ForeignBridge& operator=(ForeignBridge&&) = delete;
    ~ForeignBridge() {
        if (coroutine_) coroutine_.destroy();
    }

private:
    explicit ForeignBridge(std::coroutine_handle<promise_type> coroutine) noexcept : coroutine_(coroutine) {}
    std::coroutine_handle<promise_type> coroutine_;
};

template <class R>
struct ForeignOutcome {
    std::optional<Kept<R>> value;
    std::exception_ptr error;
};
template <>
struct ForeignOutcome<void> {
    std::exception_ptr error;
};

template <class A, class R>
ForeignBridge bridge_to(AsyncEvent& /*ended*/, A&& awaitable, ForeignOutcome<R>& outcome) {
    try {
        if constexpr (std::is_void_v<R>)
            co_await std::forward<A>(awaitable);
        else
            outcome.value.emplace(co_await std::forward<A>(awaitable));
    } catch (...) {
        outcome.error = std::current_exception();
    }
}

template <class A, class R>
Task<R> await_foreign(A&& awaitable) {
    ForeignOutcome<R> outcome;
    AsyncEvent ended;
    const ForeignBridge bridge = bridge_to<A, R>(ended, std::forward<A>(awaitable), outcome);
    // Not to be cancelled: who will resume the bridge cannot be told that it is gone.
    CancelScope shielded(nullptr);
    Task<> wait = as_task(ended.wait());
    InScope<void> until_ended(wait, shielded);
    co_await until_ended;
    if (outcome.error) std::rethrow_exception(std::move(outcome.error));
    if constexpr (std::is_reference_v<R>)
        co_return outcome.value->get();
    else if constexpr (!std::is_void_v<R>)
        co_return std::move(*outcome.value);
}

template <ForeignAwaitable A>
TaskAwaiter<ForeignResult<A>> TaskPromiseBase::await_transform(A&& awaitable) {
    Task<ForeignResult<A>> task = await_foreign<A, ForeignResult<A>>(std::forward<A>(awaitable));
    return TaskAwaiter<ForeignResult<A>>(task);
}

}  // namespace muses::detail
