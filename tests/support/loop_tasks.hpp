// For tests of tasks that need an event loop.
#pragma once

#include <exception>
#include <utility>

#include "muses/net/event_loop.hpp"
#include "muses/task.hpp"

namespace muses::test {

/// Runs `task` on `loop`, and the loop until the task has ended.
inline void run(EventLoop& loop, Task<> task) {
    std::exception_ptr error;
    const auto body = [](EventLoop& l, Task<> t, std::exception_ptr& e) -> Task<> {
        try {
            co_await t;
        } catch (...) {
            e = std::current_exception();
        }
        l.stop();
    };
    spawn(loop, body(loop, std::move(task), error));
    loop.run();
    if (error) std::rethrow_exception(error);
}

}  // namespace muses::test
