// What can stand where a task is asked for: everything that a task can await.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "muses/detail/task_core.hpp"

namespace muses::detail {

template <class A>
struct AwaitResultOf {
    using Type = decltype(std::declval<A&>().await_resume());
};
template <class T>
struct AwaitResultOf<Task<T>> {
    using Type = T;
};

/// What `co_await` of an A gives.
template <class A>
using AwaitResult = AwaitResultOf<std::remove_cvref_t<A>>::Type;

template <class T>
[[nodiscard]] Task<T> as_task(Task<T>&& task) noexcept {
    return std::move(task);
}
template <class T>
[[nodiscard]] Task<T> as_task(Task<T>& task) noexcept {
    return std::move(task);
}

/// An awaiter of this library as a task.
template <TaskWait A>
[[nodiscard]] Task<AwaitResult<A>> as_task(A awaiter) {
    co_return co_await awaiter;
}

}  // namespace muses::detail
