// The tasks that ThreadPool makes jobs of: one that keeps a promise, and one that nobody waits for.
#pragma once

#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "muses/detail/pool_options.hpp"

namespace muses::detail {

/// A callable with its arguments, all decayed copies, called once as rvalues like std::async does.
template <class F, class... Args>
class BoundCall {
public:
    using Result = std::invoke_result_t<F, Args...>;

    template <class G, class... Values>
    explicit BoundCall(std::in_place_t, G&& f, Values&&... args) : parts_(std::forward<G>(f), std::forward<Values>(args)...) {}

    Result call() {
        return std::apply([](F& f, Args&... args) -> Result { return std::invoke(std::move(f), std::move(args)...); }, parts_);
    }

private:
    std::tuple<F, Args...> parts_;
};

/// Job of `post`: what it throws goes to the worker. Its captures die with the job.
template <class F, class... Args>
class PostTask {
public:
    template <class G, class... Values>
    explicit PostTask(std::in_place_t, G&& f, Values&&... args)
        : call_(std::in_place, std::forward<G>(f), std::forward<Values>(args)...) {}

    void run() { (void)call_.call(); }
    void discard() noexcept {}

private:
    BoundCall<F, Args...> call_;
};

/// Job of `submit`: std::packaged_task, except that the callable and its arguments are destroyed before the future becomes ready.
template <class F, class... Args>
class PromiseTask {
    using Call = BoundCall<F, Args...>;

public:
    using Result = Call::Result;

    template <class G, class... Values>
    explicit PromiseTask(std::promise<Result> promise, G&& f, Values&&... args)
        : promise_(std::move(promise)), call_(std::in_place, std::in_place, std::forward<G>(f), std::forward<Values>(args)...) {}

    void run() noexcept {
        try {
            if constexpr (std::is_void_v<Result>) {
                call_->call();
                call_.reset();
                promise_.set_value();
            } else if constexpr (std::is_reference_v<Result>) {
                Result result = call_->call();
                call_.reset();
                promise_.set_value(result);
            } else {
                Result result = call_->call();
                call_.reset();
                promise_.set_value(std::move(result));
            }
        } catch (...) {
            fail(std::current_exception());
        }
    }

    void discard() noexcept {
        std::exception_ptr error;
        try {
            error = job_discarded_error();
        } catch (...) {  // only where no pool was ever made
            error = std::current_exception();
        }
        fail(std::move(error));
    }

private:
    void fail(std::exception_ptr error) noexcept {
        call_.reset();
        promise_.set_exception(std::move(error));
    }

    std::promise<Result> promise_;
    std::optional<Call> call_;
};

}  // namespace muses::detail
