#include "muses/task.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muses/net/event_loop.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/tasks.hpp"

using namespace std::chrono_literals;
using muses::AsyncEvent;
using muses::EventLoop;
using muses::Task;
using muses::TaskScope;
using muses::test::Counted;
using muses::test::live_frames;
using muses::test::stress_rounds;

namespace {

Task<> turn() { co_await muses::sleep_for(0ms); }

Task<int> after(std::chrono::milliseconds delay, int value) {
    const Counted local;
    co_await muses::sleep_for(delay);
    co_return value;
}

Task<int> throws_after(std::chrono::milliseconds delay, const char* what) {
    co_await muses::sleep_for(delay);
    throw std::runtime_error(what);
}

Task<> nothing() { co_return; }
Task<int&> reference(int& target) { co_return target; }

std::string what_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& e) {
        return e.what();
    }
}

}  // namespace

TEST_CASE("task_when: when_all gives every result in the order of its arguments") {
    int target = 1;
    muses::sync_wait([](int& t) -> Task<> {
        auto all = co_await muses::when_all(after(3ms, 1), nothing(), reference(t), after(1ms, 4), muses::sleep_for(1ms));
        static_assert(std::is_same_v<decltype(all), std::tuple<int, std::monostate, int&, int, std::monostate>>);
        CHECK(std::get<0>(all) == 1);
        CHECK(&std::get<2>(all) == &t);
        CHECK(std::get<3>(all) == 4);
        (void)co_await muses::when_all();

        std::vector<Task<int>> many;
        for (int i = 0; i < 20; ++i) many.push_back(after(std::chrono::milliseconds(i % 3), i));
        const std::vector<int> results = co_await muses::when_all(std::move(many));
        for (int i = 0; i < 20; ++i) CHECK(results[static_cast<std::size_t>(i)] == i);
        std::vector<Task<>> empty;
        CHECK((co_await muses::when_all(std::move(empty))).empty());
        std::vector<Task<int&>> references;
        references.push_back(reference(t));
        CHECK(&(co_await muses::when_all(std::move(references))).front().get() == &t);
    }(target));
    CHECK(live_frames() == 0);
}

TEST_CASE("task_when: when_all throws one exception when all children have ended") {
    muses::sync_wait([]() -> Task<> {
        std::string what;
        try {
            (void)co_await muses::when_all(throws_after(2ms, "first"), after(4ms, 1), throws_after(1ms, "third"));
        } catch (const std::runtime_error& e) {
            what = e.what();
            CHECK(Counted::alive() == 0);
        }
        CHECK(what == "first");
    }());
    CHECK_THROWS_AS(muses::sync_wait(muses::when_all(nothing(), Task<>())), std::logic_error);
    CHECK(live_frames() == 0);
}

TEST_CASE("task_when: when_any gives the first and cancels the rest") {
    muses::sync_wait([]() -> Task<> {
        const auto first = co_await muses::when_any(after(1h, 1), after(1ms, 2), after(1h, 3));
        CHECK(first.index == 1);
        CHECK(std::get<1>(first.value) == 2);
        CHECK(Counted::alive() == 0);

        const auto at_once = co_await muses::when_any(nothing(), after(1h, 2));
        CHECK(at_once.index == 0);

        std::vector<Task<int>> many;
        for (int i = 0; i < 10; ++i) many.push_back(after(i == 7 ? 1ms : std::chrono::milliseconds(1h), i));
        const auto one = co_await muses::when_any(std::move(many));
        CHECK(one.index == 7);
        CHECK(one.value == 7);

        bool threw = false;
        try {
            (void)co_await muses::when_any(after(1h, 1), throws_after(1ms, "won"));
        } catch (const std::runtime_error&) {
            threw = true;
        }
        CHECK(threw);
    }());
    CHECK_THROWS_AS((void)muses::when_any(std::vector<Task<int>>()), std::invalid_argument);
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == 0);
}

TEST_CASE("task_time: with_timeout gives a result in time, timed_out else, and passes exceptions and outer cancellation on") {
    int target = 1;
    muses::sync_wait([](int& t) -> Task<> {
        const auto in_time = co_await muses::with_timeout(after(1ms, 7), 1h);
        CHECK(in_time.value() == 7);
        const auto late = co_await muses::with_timeout(after(1h, 7), 1ms);
        CHECK(late.error() == muses::timed_out());
        const auto negative = co_await muses::with_timeout(after(1h, 7), -1s);
        CHECK_FALSE(negative.has_value());
        const auto forever = co_await muses::with_timeout(nothing(), std::chrono::hours::max());
        CHECK(forever.has_value());
        const auto ref = co_await muses::with_timeout(reference(t), 1s);
        CHECK(&ref.value().get() == &t);
        bool threw = false;
        try {
            (void)co_await muses::with_timeout(throws_after(0ms, "own"), 1h);
        } catch (const std::runtime_error&) {
            threw = true;
        }
        CHECK(threw);

        const auto outer = co_await muses::with_timeout(muses::with_timeout(after(1h, 1), 1h), 1ms);
        CHECK_FALSE(outer.has_value());
        const auto inner = co_await muses::with_timeout(muses::with_timeout(after(1h, 1), 1ms), 1h);
        REQUIRE(inner.has_value());
        CHECK_FALSE(inner->has_value());
    }(target));
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == 0);
}

TEST_CASE("task_time: sleeps are never early, end in the order of their times and may be cancelled") {
    muses::sync_wait([]() -> Task<> {
        std::vector<int> order;
        const auto sleeper = [](std::vector<int>& o, int ms) -> Task<> {
            const auto start = std::chrono::steady_clock::now();
            co_await muses::sleep_for(std::chrono::milliseconds(ms));
            CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(ms));
            o.push_back(ms);
        };
        std::vector<Task<>> tasks;
        for (const int ms : {30, 0, 10, 20}) tasks.push_back(sleeper(order, ms));
        (void)co_await muses::when_all(std::move(tasks));
        CHECK(order.size() == 4);
        CHECK(order.front() == 0);
        co_await muses::sleep_until(std::chrono::steady_clock::now() - 1h);
        CHECK_FALSE((co_await muses::with_timeout(muses::sleep_for(std::chrono::hours::max()), 1ms)).has_value());
    }());
}

TEST_CASE("task_time: many timers of one sync_wait come due, and are taken back, in any order") {
    const int count = 2000;
    int ended = 0;
    muses::sync_wait([](int n, int& e) -> Task<> {
        std::vector<Task<>> tasks;
        const auto one = [](int i, int& total) -> Task<> {
            const auto result = co_await muses::with_timeout(after(std::chrono::milliseconds((i * 7919) % 23), i),
                                                             std::chrono::milliseconds((i * 104729) % 29));
            total += result ? 1 : 0;
            ++total;
        };
        for (int i = 0; i < n; ++i) tasks.push_back(one(i, e));
        (void)co_await muses::when_all(std::move(tasks));
    }(count, ended));
    CHECK(ended >= count);
    CHECK(Counted::alive() == 0);
}

TEST_CASE("task_time: a stop token ends the waits of a whole tree and every later one") {
    muses::stop_source source;
    const auto tree = [](int& after_stop) -> Task<> {
        try {
            (void)co_await muses::when_all(after(1h, 1), after(1h, 2), muses::with_timeout(after(1h, 3), 1h));
        } catch (const muses::cancelled&) {
            ++after_stop;
        }
        co_await nothing();             // what needs no wait goes on
        co_await muses::sleep_for(1h);  // throws at once
    };
    int after_stop = 0;
    std::thread stopper([&] { source.request_stop(); });
    CHECK_THROWS_AS(muses::sync_wait(muses::with_stop_token(tree(after_stop), source.get_token())), muses::cancelled);
    stopper.join();
    CHECK(after_stop == 1);
    CHECK(Counted::alive() == 0);
    CHECK(muses::sync_wait(muses::with_stop_token(after(1ms, 9), muses::stop_token())) == 9);
    muses::stop_source inner;
    CHECK_THROWS_AS(
        muses::sync_wait(muses::with_stop_token(muses::with_stop_token(after(1h, 1), inner.get_token()), source.get_token())),
        muses::cancelled);
    CHECK(live_frames() == 0);
}

TEST_CASE("task_time: a stop request races with the end of its task and with its start harmlessly") {
    const auto at_start = live_frames();
    for (int round = 0; round < stress_rounds(100); ++round) {
        muses::stop_source source;
        AsyncEvent event;
        std::thread stopper([&] { source.request_stop(); });
        std::thread setter([&] { event.set(); });
        bool cancelled = false;
        try {
            muses::sync_wait(muses::with_stop_token(event.wait(), source.get_token()));
        } catch (const muses::cancelled&) {
            cancelled = true;
        }
        stopper.join();
        setter.join();
        (void)cancelled;  // either is right
        CHECK(live_frames() == at_start);
    }
}

TEST_CASE("task_scope: tasks run beside their spawner, are joined together, and what they throw goes to the hook") {
    std::vector<std::string> errors;
    muses::sync_wait([](std::vector<std::string>& e) -> Task<> {
        TaskScope scope([&](std::exception_ptr error) {
            e.push_back(what_of(error));
            throw std::runtime_error("a hook must not throw");
        });
        co_await scope.join();  // empty: at once
        scope.spawn(throws_after(1ms, "of a child"));
        scope.spawn(after(2ms, 1));
        scope.spawn(muses::sleep_for(1ms));
        CHECK(scope.size_approx() == 3);
        CHECK_THROWS_AS(scope.spawn(Task<>()), std::logic_error);
        co_await scope.join();
        CHECK(scope.size_approx() == 0);
        scope.spawn(after(0ms, 1));  // again
        co_await scope.join();
    }(errors));
    CHECK(errors == std::vector<std::string>{"of a child"});
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == 0);
}

TEST_CASE("task_scope: cancelling it or its join ends the waits of its tasks, which are not reported") {
    int errors = 0;
    muses::sync_wait([](int& e) -> Task<> {
        TaskScope scope([&](std::exception_ptr) { ++e; });
        scope.spawn(after(1h, 1));
        scope.spawn(after(1h, 2));
        co_await turn();
        scope.cancel();
        scope.cancel();
        co_await scope.join();
        scope.spawn(after(1h, 3));
        const auto joined = co_await muses::with_timeout(scope.join(), 1ms);
        CHECK_FALSE(joined.has_value());
        CHECK(scope.size_approx() == 0);
        CHECK(Counted::alive() == 0);
    }(errors));
    CHECK(errors == 0);
}

TEST_CASE("task_scope: one that is destroyed while its tasks run tells the hook and frees them") {
    std::vector<std::string> errors;
    muses::sync_wait([](std::vector<std::string>& e) -> Task<> {
        {
            TaskScope scope([&](std::exception_ptr error) { e.push_back(what_of(error)); });
            scope.spawn(after(1h, 1));  // suspended
            co_await turn();
            scope.spawn(after(1h, 2));  // not begun
            CHECK(Counted::alive() == 1);
        }
        CHECK(Counted::alive() == 0);
    }(errors));
    REQUIRE(errors.size() == 1);
    CHECK(errors.front().find("destroyed while") != std::string::npos);
    {
        TaskScope never_bound([&](std::exception_ptr error) { errors.push_back(what_of(error)); });
        never_bound.spawn(after(1h, 1));
    }
    CHECK(errors.size() == 2);
    CHECK(live_frames() == 0);
}

TEST_CASE("task_scope: one that is destroyed on another thread cancels its tasks and waits for them") {
    EventLoop loop;
    std::thread thread([&] { loop.run(); });
    std::atomic<int> cancelled{0};
    std::atomic<int> begun{0};
    std::atomic<int> reports{0};
    {
        TaskScope scope(loop, [&](std::exception_ptr) { ++reports; });
        const auto child = [](std::atomic<int>& b, std::atomic<int>& c) -> Task<> {
            ++b;
            try {
                co_await muses::sleep_for(1h);
            } catch (const muses::cancelled&) {
                ++c;
                throw;
            }
        };
        for (int i = 0; i < 10; ++i) scope.spawn(child(begun, cancelled));
        CHECK(muses::test::eventually([&] { return begun == 10; }));
    }
    CHECK(cancelled == 10);
    CHECK(reports == 1);
    loop.stop();
    thread.join();
}

TEST_CASE("task_scope: tasks spawned without a scheduler start when the scope is joined") {
    const auto at_start = live_frames();
    int ran = 0;
    TaskScope scope;
    const auto child = [](int& n) -> Task<> {
        ++n;
        co_await turn();
    };
    scope.spawn(child(ran));
    scope.spawn(child(ran));
    CHECK(ran == 0);
    muses::sync_wait(scope.join());
    CHECK(ran == 2);
    scope.spawn(child(ran));
    muses::sync_wait(scope.join());
    CHECK(ran == 3);
    CHECK(live_frames() == at_start);
}

TEST_CASE("task_scope: tasks are spawned from a post and from other threads and joined from outside of the loop") {
    EventLoop loop;
    std::thread thread([&] { loop.run(); });
    TaskScope scope;
    std::atomic<int> on_loop{0};
    const auto child = [](EventLoop& l, std::atomic<int>& n) -> Task<> {
        co_await muses::sleep_for(1ms);
        if (l.in_loop_thread()) ++n;
    };
    std::atomic<bool> posted{false};
    loop.post([&] {
        for (int i = 0; i < 5; ++i) scope.spawn(child(loop, on_loop));  // the loop is the current scheduler here
        posted = true;
    });
    CHECK(muses::test::eventually([&] { return posted.load(); }));
    muses::sync_wait(scope.join());
    CHECK(on_loop == 5);

    TaskScope bound(loop);
    std::vector<std::thread> spawners;
    for (int t = 0; t < 3; ++t)
        spawners.emplace_back([&] {
            for (int i = 0; i < 50; ++i) bound.spawn(child(loop, on_loop));
        });
    for (auto& spawner : spawners) spawner.join();
    muses::sync_wait(bound.join());
    CHECK(on_loop == 155);
    loop.stop();
    thread.join();
}

TEST_CASE("task_scope: what is spawned inside of sync_wait and not joined is freed at its end") {
    const auto at_start = live_frames();
    AsyncEvent never;
    TaskScope scope;
    EventLoop loop;
    std::thread thread([&] { loop.run(); });
    for (const bool moves : {false, true}) {
        muses::sync_wait(muses::invoke([&]() -> Task<> {
            if (moves) co_await muses::move_to(loop);
            scope.spawn(after(1h, 1));
            scope.spawn(never.wait());
            co_await turn();
            CHECK(scope.size_approx() == 2);
        }));
        CHECK(scope.size_approx() == 0);
        if (!moves) CHECK(live_frames() == at_start);  // else some are freed on the thread of the loop, which counts for itself
    }
    loop.stop();
    thread.join();
}

TEST_CASE("task_scope: an optional may hold one") {
    static_assert(!std::is_constructible_v<TaskScope, TaskScope> && !std::is_constructible_v<TaskScope, TaskScope&>);
    muses::sync_wait(muses::invoke([]() -> Task<> {
        std::optional<TaskScope> scope;
        scope.emplace();
        scope->spawn(nothing());
        co_await scope->join();
        int errors = 0;
        scope.emplace([&](const std::exception_ptr&) { ++errors; });
        scope->spawn(throws_after(0ms, "told to the hook"));
        co_await scope->join();
        CHECK(errors == 1);
        scope.reset();
    }));
}
