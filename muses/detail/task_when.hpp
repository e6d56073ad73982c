// when_all and when_any: several tasks at a time, on one thread.
#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muses/detail/task_adapt.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_ready.hpp"
#include "muses/detail/task_time.hpp"
#include "muses/detail/task_wait.hpp"

namespace muses {

namespace detail {

/// Where tasks start together. The parent, which awaits it, goes on when all of them have ended.
struct Fork {
    void attach(TaskPromiseBase& task) noexcept { parent = &task; }

    TaskPromiseBase* parent = nullptr;
    std::size_t running = 0;
    CancelScope* race = nullptr;  // when_any: the first one to end ends the waits of the others
    std::optional<std::size_t> winner;
};

/// One of the tasks. May be moved before it starts.
class ForkBranch : private ReadyNode, private TaskEnd {
public:
    ForkBranch(ForkBranch&&) noexcept = default;
    ForkBranch& operator=(ForkBranch&&) = delete;

    void start(Fork& fork, std::size_t index) noexcept {
        fork_ = &fork;
        index_ = index;
        ++fork.running;
        fork.parent->scheduler->schedule_here(*this);
    }

protected:
    explicit ForkBranch(TaskPromiseBase& task) noexcept
        : ReadyNode([](ReadyNode& node) noexcept { static_cast<ForkBranch&>(node).begin(); }),
          TaskEnd([](TaskEnd& end) noexcept {
              auto& branch = static_cast<ForkBranch&>(end);
              if (branch.was_last()) branch.fork_->parent->scheduler->resume_next(branch.fork_->parent->self);
          }),
          task_(&task) {}
    ~ForkBranch() {
        if (ReadyNode::scheduled()) fork_->parent->scheduler->unschedule(*this);
    }

private:
    void begin() noexcept {
        TaskPromiseBase& parent = *fork_->parent;
        TaskScheduler& scheduler = *parent.scheduler;
        if (fork_->winner) {  // too late: it never begins
            if (was_last()) scheduler.resume(parent.self);
            return;
        }
        task_->begin(scheduler, fork_->race != nullptr ? fork_->race : parent.scope, *this);
        scheduler.resume(task_->self);
    }

    bool was_last() noexcept {
        if (fork_->race != nullptr && !fork_->winner) {
            fork_->winner = index_;
            fork_->race->request();
        }
        return --fork_->running == 0;
    }

    TaskPromiseBase* task_;
    Fork* fork_ = nullptr;
    std::size_t index_ = 0;
};

template <class T>
class ForkOf final : public ForkBranch {
public:
    explicit ForkOf(Task<T> task) : ForkOf(TaskResult<T>(task)) {}

    [[nodiscard]] TaskPromise<T>& promise() noexcept { return result_.promise(); }

    /// The result of a task that has ended; std::monostate for void. Throws what the task has thrown.
    [[nodiscard]] decltype(auto) take() {
        if constexpr (std::is_void_v<T>) {
            result_.promise().take();
            return std::monostate();
        } else {
            return result_.promise().take();
        }
    }

private:
    explicit ForkOf(TaskResult<T>&& result) noexcept : ForkBranch(result.promise()), result_(std::move(result)) {}

    TaskResult<T> result_;
};

/// The result of a task where void is not possible.
template <class T>
using Unvoid = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class... Ts>
class [[nodiscard]] WhenAll : public Fork {
public:
    explicit WhenAll(Task<Ts>&&... tasks) : branches_(ForkOf<Ts>(std::move(tasks))...) {}

    [[nodiscard]] static bool await_ready() noexcept { return sizeof...(Ts) == 0; }
    void await_suspend(std::coroutine_handle<> /*task*/) noexcept {
        [this]<std::size_t... I>(std::index_sequence<I...>) {
            (std::get<I>(branches_).start(*this, I), ...);
        }(std::index_sequence_for<Ts...>());
    }
    [[nodiscard]] std::tuple<Unvoid<Ts>...> await_resume() {
        return std::apply([](auto&... branch) { return std::tuple<Unvoid<Ts>...>{branch.take()...}; }, branches_);
    }

private:
    std::tuple<ForkOf<Ts>...> branches_;
};

template <class T>
class [[nodiscard]] WhenAllOf : public Fork {
public:
    explicit WhenAllOf(std::vector<Task<T>>&& tasks) {
        branches_.reserve(tasks.size());
        for (Task<T>& task : tasks) branches_.emplace_back(std::move(task));
    }

    [[nodiscard]] bool await_ready() const noexcept { return branches_.empty(); }
    void await_suspend(std::coroutine_handle<> /*task*/) noexcept {
        for (std::size_t i = 0; i < branches_.size(); ++i) branches_[i].start(*this, i);
    }
    [[nodiscard]] std::vector<Kept<Unvoid<T>>> await_resume() {
        std::vector<Kept<Unvoid<T>>> results;
        results.reserve(branches_.size());
        for (auto& branch : branches_) results.push_back(branch.take());
        return results;
    }

private:
    std::vector<ForkOf<T>> branches_;
};

/// Tells of what a task has thrown that lost a race, unless it was only cancelled: its result goes nowhere else.
template <class T>
void report_loser(TaskScheduler& scheduler, TaskPromise<T>& promise) noexcept {
    if (!promise.failed()) return;
    try {
        (void)promise.take();
    } catch (const cancelled&) {  // NOLINT(bugprone-empty-catch): that is what was asked of it
    } catch (...) {
        scheduler.on_task_exception(std::current_exception());
    }
}

}  // namespace detail

/// The result of when_any: which of the tasks came first, and what it returned.
template <class... Ts>
struct WhenAnyResult {
    std::size_t index = 0;                                    ///< in the order of the arguments
    std::variant<detail::Kept<detail::Unvoid<Ts>>...> value;  ///< holds alternative `index`
};

/// The result of when_any for a vector.
template <class T>
struct WhenAnyOfResult {
    std::size_t index = 0;
    detail::Kept<detail::Unvoid<T>> value;
};

namespace detail {

template <class... Ts>
class [[nodiscard]] Race : public Fork {
public:
    Race(CancelScope& scope, Task<Ts>&&... tasks) : branches_(ForkOf<Ts>(std::move(tasks))...) { this->race = &scope; }

    [[nodiscard]] static bool await_ready() noexcept { return false; }
    void await_suspend(std::coroutine_handle<> /*task*/) noexcept {
        each([this]<std::size_t I>() { std::get<I>(branches_).start(*this, I); });
    }
    [[nodiscard]] WhenAnyResult<Ts...> await_resume() {
        each([this]<std::size_t I>() {
            if (I != *winner) report_loser(*parent->scheduler, std::get<I>(branches_).promise());
        });
        std::optional<WhenAnyResult<Ts...>> result;
        each([&, this]<std::size_t I>() {
            if (I == *winner)
                result.emplace(WhenAnyResult<Ts...>{
                    I, std::variant<Kept<Unvoid<Ts>>...>(std::in_place_index<I>, std::get<I>(branches_).take())});
        });
        return std::move(*result);
    }

private:
    template <class F>
    static void each(F&& f) {
        [&f]<std::size_t... I>(std::index_sequence<I...>) { (f.template operator()<I>(), ...); }(std::index_sequence_for<Ts...>());
    }

    std::tuple<ForkOf<Ts>...> branches_;
};

template <class T>
class [[nodiscard]] RaceOf : public Fork {
public:
    RaceOf(CancelScope& scope, std::vector<Task<T>>& tasks) {
        this->race = &scope;
        branches_.reserve(tasks.size());
        for (Task<T>& task : tasks) branches_.emplace_back(std::move(task));
    }

    [[nodiscard]] static bool await_ready() noexcept { return false; }
    void await_suspend(std::coroutine_handle<> /*task*/) noexcept {
        for (std::size_t i = 0; i < branches_.size(); ++i) branches_[i].start(*this, i);
    }
    [[nodiscard]] WhenAnyOfResult<T> await_resume() {
        for (std::size_t i = 0; i < branches_.size(); ++i)
            if (i != *winner) report_loser(*parent->scheduler, branches_[i].promise());
        return {*winner, branches_[*winner].take()};
    }

private:
    std::vector<ForkOf<T>> branches_;
};

template <class... Ts>
Task<WhenAnyResult<Ts...>> run_race(Task<Ts>... tasks) {
    TaskPromiseBase& self = co_await ThisTask();
    CancelScope scope(self.scope);
    Race<Ts...> race(scope, std::move(tasks)...);
    co_return co_await race;
}

template <class T>
Task<WhenAnyOfResult<T>> run_race_of(std::vector<Task<T>> tasks) {
    TaskPromiseBase& self = co_await ThisTask();
    CancelScope scope(self.scope);
    RaceOf<T> race(scope, tasks);
    co_return co_await race;
}

template <class A>
concept Awaitable = kIsTask<std::remove_cvref_t<A>> || TaskWait<std::remove_cvref_t<A>>;

}  // namespace detail

/// `co_await when_all(a, b, …)`: runs all of them, interleaved, and goes on when all have ended. Gives a tuple of the results, in the order of the
/// arguments (std::monostate for void), or throws what the first of them in that order has thrown. Each is a task or an awaitable.
/// Throws std::logic_error, before anything runs, when one is an empty task.
template <detail::Awaitable... As>
[[nodiscard]] auto when_all(As&&... work) {
    return detail::WhenAll<detail::AwaitResult<As>...>(detail::as_task(std::forward<As>(work))...);
}

/// The same for any number: a vector of the results (references as std::reference_wrapper); an empty one at once for none.
template <class T>
[[nodiscard]] auto when_all(std::vector<Task<T>> tasks) {
    return detail::WhenAllOf<T>(std::move(tasks));
}

/// `co_await when_any(a, b, …)`: runs all of them until one has ended, cancels the waits of the others, and goes on when those have ended too. Gives the
/// index of the first one and its result, or throws what that one has thrown. What a later one throws, other than cancelled, goes to the
/// scheduler's hook for exceptions. Throws std::logic_error when one is an empty task. A wait that has been over already is not cancelled: a loser
/// may have been handed a value, a permit or a lock in the same turn, and its result is destroyed. So race what gives back by destruction
/// (scoped_lock() instead of lock()), or a task of yours, which sees what it was handed and can put it where it belongs.
template <detail::Awaitable A, detail::Awaitable... As>
[[nodiscard]] auto when_any(A&& first, As&&... others) {
    return detail::run_race<detail::AwaitResult<A>, detail::AwaitResult<As>...>(detail::as_task(std::forward<A>(first)),
                                                                                detail::as_task(std::forward<As>(others))...);
}

/// The same for a vector. Throws std::invalid_argument for an empty one.
template <class T>
[[nodiscard]] auto when_any(std::vector<Task<T>> tasks) {
    if (tasks.empty()) throw std::invalid_argument("muses::when_any: there is nothing to wait for");
    return detail::run_race_of<T>(std::move(tasks));
}

}  // namespace muses
