#include "muses/net/timer_wheel.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"

using namespace std::chrono_literals;
using muses::TimerWheel;
using Clock = TimerWheel::Clock;
using Time = Clock::time_point;

namespace {

// A start that is no whole number of milliseconds, so that rounding shows.
constexpr Time kStart{std::chrono::nanoseconds(7'000'000'123)};

// A timer whose callback is any lambda.
struct Call {
    std::function<void()> what;
    TimerWheel::Timer timer{[](void* self) { static_cast<Call*>(self)->what(); }, this};

    explicit Call(std::function<void()> f) : what(std::move(f)) {}
};

struct Counter {
    int calls = 0;
    TimerWheel::Timer timer = TimerWheel::Timer::calling<&Counter::on_timer>(*this);
    void on_timer() { ++calls; }
};

}  // namespace

TEST_CASE("timer_wheel: a timer fires once and not before its deadline") {
    TimerWheel wheel(kStart);
    Counter counter;
    CHECK_FALSE(counter.timer.armed());
    wheel.arm_at(counter.timer, kStart + 5ms);
    CHECK(counter.timer.armed());
    CHECK(wheel.size() == 1);
    CHECK(wheel.advance(kStart + 5ms - 1ns) == 0);
    CHECK(wheel.advance(kStart + 5ms) == 1);
    CHECK(counter.calls == 1);
    CHECK_FALSE(counter.timer.armed());
    CHECK(wheel.size() == 0);
    CHECK(wheel.advance(kStart + 1h) == 0);
}

TEST_CASE("timer_wheel: deadlines between two ticks are rounded up") {
    TimerWheel wheel(kStart);
    Counter counter;
    wheel.arm_at(counter.timer, kStart + 5ms + 1ns);
    CHECK(wheel.advance(kStart + 5ms + 999'999ns) == 0);
    CHECK(wheel.advance(kStart + 6ms) == 1);
}

TEST_CASE("timer_wheel: a deadline in the past is due at the next advance") {
    TimerWheel wheel(kStart);
    Counter counter;
    for (const Time past : {kStart, kStart - 1h, Time::min(), kStart + 1s}) {
        wheel.advance(kStart + 1s);
        wheel.arm_at(counter.timer, past);
        REQUIRE(wheel.next_deadline().has_value());
        CHECK(*wheel.next_deadline() <= kStart + 1s);
        CHECK(wheel.advance(kStart + 1s) == 1);
    }
}

TEST_CASE("timer_wheel: the farthest deadline is kept and never due") {
    TimerWheel wheel(kStart);
    Counter counter;
    wheel.arm_at(counter.timer, Time::max());
    CHECK(wheel.advance(kStart + std::chrono::hours(24 * 365 * 100)) == 0);
    REQUIRE(wheel.next_deadline().has_value());
    CHECK(*wheel.next_deadline() > kStart + std::chrono::hours(24 * 365 * 100));
    CHECK(wheel.advance(Time::max()) == 0);  // rounded up, it lies beyond
    CHECK(counter.timer.armed());
    wheel.arm_at(counter.timer, Time::max() - 2ms);
    CHECK(wheel.advance(Time::max()) == 1);
}

TEST_CASE("timer_wheel: a start in the negative does not overflow") {
    TimerWheel wheel{Time::min()};
    Counter counter;
    wheel.arm_at(counter.timer, Time::max() - 2ms);
    CHECK(wheel.advance(Time(0ns)) == 0);
    CHECK(wheel.next_deadline().has_value());
    CHECK(wheel.advance(Time::max()) == 1);
}

TEST_CASE("timer_wheel: arming anew moves a timer") {
    TimerWheel wheel(kStart);
    TimerWheel other(kStart);
    Counter counter;
    wheel.arm_at(counter.timer, kStart + 10ms);
    wheel.arm_at(counter.timer, kStart + 500ms);
    CHECK(wheel.size() == 1);
    CHECK(wheel.advance(kStart + 499ms) == 0);
    wheel.arm_at(counter.timer, kStart + 10s);
    CHECK(wheel.advance(kStart + 501ms) == 0);
    wheel.arm_at(counter.timer, kStart + 600ms);
    CHECK(wheel.advance(kStart + 600ms) == 1);
    wheel.arm_at(counter.timer, kStart + 700ms);
    other.arm_at(counter.timer, kStart + 700ms);  // also to another wheel
    CHECK(wheel.size() == 0);
    CHECK(wheel.advance(kStart + 1s) == 0);
    wheel.cancel(counter.timer);  // not armed here: nothing
    CHECK(other.advance(kStart + 1s) == 1);
}

TEST_CASE("timer_wheel: cancelled and destroyed timers do not fire") {
    TimerWheel wheel(kStart);
    Counter cancelled;
    auto destroyed = std::make_unique<Counter>();
    Counter stays;
    for (Counter* c : {&cancelled, destroyed.get(), &stays}) wheel.arm_at(c->timer, kStart + 100ms);
    wheel.cancel(cancelled.timer);
    wheel.cancel(cancelled.timer);
    destroyed.reset();
    CHECK(wheel.size() == 1);
    CHECK(wheel.advance(kStart + 1s) == 1);
    CHECK(cancelled.calls == 0);
    CHECK(stays.calls == 1);
}

TEST_CASE("timer_wheel: timers may outlive their wheel") {
    Counter soon;
    Counter late;
    Counter past;
    {
        TimerWheel wheel(kStart);
        wheel.arm_at(soon.timer, kStart + 1ms);
        wheel.arm_at(late.timer, kStart + 1h);
        wheel.arm_at(past.timer, kStart);
    }
    CHECK_FALSE(soon.timer.armed());
    CHECK_FALSE(late.timer.armed());
    CHECK_FALSE(past.timer.armed());
}

TEST_CASE("timer_wheel: callbacks may cancel and destroy timers that are due with them") {
    TimerWheel wheel(kStart);
    auto victim = std::make_unique<Counter>();
    Counter cancelled;
    Counter last;
    Call killer([&] {
        victim.reset();
        wheel.cancel(cancelled.timer);
    });
    wheel.arm_at(killer.timer, kStart + 3ms);
    wheel.arm_at(victim->timer, kStart + 4ms);
    wheel.arm_at(cancelled.timer, kStart + 5ms);
    wheel.arm_at(last.timer, kStart + 5ms);
    CHECK(wheel.advance(kStart + 10ms) == 2);
    CHECK(cancelled.calls == 0);
    CHECK(last.calls == 1);
}

TEST_CASE("timer_wheel: a callback may destroy its own timer") {
    TimerWheel wheel(kStart);
    std::unique_ptr<Call> call;
    bool called = false;
    call = std::make_unique<Call>([&] {
        called = true;
        auto function = std::move(call->what);  // keeps this lambda alive
        call.reset();
    });
    wheel.arm_at(call->timer, kStart + 1ms);
    CHECK(wheel.advance(kStart + 1ms) == 1);
    CHECK(called);
    CHECK(wheel.size() == 0);
}

TEST_CASE("timer_wheel: a callback that arms its own timer does not hold the thread") {
    TimerWheel wheel(kStart);
    int calls = 0;
    Time deadline = kStart;
    std::optional<Call> call;
    call.emplace([&] {
        ++calls;
        wheel.arm_at(call->timer, deadline);
    });
    wheel.arm_at(call->timer, kStart);
    for (int i = 1; i <= 5; ++i) {
        CHECK(wheel.advance(kStart + 10s) == 1);
        CHECK(calls == i);
    }
    deadline = kStart + 10s + 1ms;
    CHECK(wheel.advance(kStart + 10s) == 1);
    CHECK(wheel.advance(kStart + 10s) == 0);
    CHECK(wheel.advance(kStart + 10s + 1ms) == 1);
}

TEST_CASE("timer_wheel: what a callback throws comes out and the others fire at the next advance") {
    TimerWheel wheel(kStart);
    Call thrower([] { throw std::runtime_error("planned"); });
    Counter after;
    wheel.arm_at(thrower.timer, kStart + 1ms);
    wheel.arm_at(after.timer, kStart + 2ms);
    CHECK_THROWS_AS(wheel.advance(kStart + 5ms), std::runtime_error);
    CHECK(after.timer.armed());
    CHECK(wheel.next_deadline() <= kStart + 5ms);
    CHECK(wheel.advance(kStart + 5ms) == 1);
    CHECK(after.calls == 1);
    CHECK_FALSE(thrower.timer.armed());
}

TEST_CASE("timer_wheel: earlier ticks fire first across all levels") {
    TimerWheel wheel(kStart);
    std::mt19937_64 random(11);
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<std::int64_t> order;
    for (int i = 0; i < 2000; ++i) {
        const std::int64_t at = static_cast<std::int64_t>(random() % (std::uint64_t{1} << (random() % 30)));
        calls.push_back(std::make_unique<Call>([&order, at] { order.push_back(at); }));
        wheel.arm_at(calls.back()->timer, kStart + std::chrono::milliseconds(at));
    }
    CHECK(wheel.advance(kStart + std::chrono::hours(24 * 30)) == 2000);
    CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("timer_wheel: a time that runs backwards counts as the latest one") {
    TimerWheel wheel(kStart);
    Counter counter;
    wheel.advance(kStart + 1h);
    wheel.arm_at(counter.timer, kStart + 1h + 5ms);
    CHECK(wheel.advance(kStart) == 0);
    CHECK(wheel.advance(kStart - 1h) == 0);
    CHECK(wheel.advance(kStart + 1h + 5ms) == 1);
}

TEST_CASE("timer_wheel: one far timer costs only a few cascades on the way") {
    for (const auto& far : {std::chrono::milliseconds(63), std::chrono::milliseconds(64), std::chrono::milliseconds(60'000),
                            std::chrono::milliseconds(24h * 365), std::chrono::milliseconds((std::int64_t{1} << 42) - 1)}) {
        CAPTURE(far.count());
        TimerWheel wheel(kStart);
        wheel.advance(kStart + 12'345ms);
        Counter counter;
        const Time deadline = kStart + 12'345ms + far;
        wheel.arm_at(counter.timer, deadline);
        int sleeps = 0;
        Time now = kStart + 12'345ms;
        while (counter.calls == 0 && sleeps < 100) {
            const auto next = wheel.next_deadline();
            REQUIRE(next.has_value());
            REQUIRE(*next > now);
            REQUIRE(*next <= deadline);
            now = *next;
            wheel.advance(now);
            ++sleeps;
        }
        CHECK(now == deadline);
        CHECK(sleeps <= 8);
    }
}

TEST_CASE("timer_wheel: nobody waits for a timer that was cancelled") {
    TimerWheel wheel(kStart);
    Counter first;
    Counter second;
    for (const auto& [sooner, later] : {std::pair{5ms, 50ms}, std::pair{100ms, 50'000ms}}) {
        wheel.arm_at(first.timer, kStart + sooner);
        wheel.arm_at(second.timer, kStart + later);
        const auto before = *wheel.next_deadline();
        CHECK(before <= kStart + sooner);
        wheel.cancel(first.timer);
        CHECK(*wheel.next_deadline() > before);
    }
}

TEST_CASE("timer_wheel: nothing armed means nothing to wait for") {
    TimerWheel wheel(kStart);
    CHECK_FALSE(wheel.next_deadline().has_value());
    Counter counter;
    wheel.arm_at(counter.timer, kStart + 1h);
    CHECK(wheel.next_deadline().has_value());
    wheel.cancel(counter.timer);
    CHECK_FALSE(wheel.next_deadline().has_value());
}

// The wheel against a sorted map, fed the same random commands: what fires, in which advance, and how long one may sleep.
TEST_CASE("timer_wheel: it agrees with a sorted map in random histories") {
    const char* given = std::getenv("MUSES_TEST_SEED");
    const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    MESSAGE("seed " << seed << " (MUSES_TEST_SEED repeats it)");
    std::mt19937_64 random(seed);
    const auto below = [&random](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    const int histories = muses::test::stress_rounds(20);
    for (int history = 0; history < histories; ++history) {
        TimerWheel wheel(kStart);
        Time now = kStart;
        std::multimap<Time, std::size_t> model;
        std::vector<std::multimap<Time, std::size_t>::iterator> where;
        std::vector<std::size_t> fired;
        std::vector<std::unique_ptr<Call>> calls;
        constexpr std::size_t kTimers = 40;
        const auto arm = [&](std::size_t i, Time deadline) {
            wheel.arm_at(calls[i]->timer, deadline);
            if (where[i] != model.end()) model.erase(where[i]);
            where[i] = model.emplace(deadline, i);
        };
        // Spread over all magnitudes, and often on or beside a boundary of the wheel's digits.
        const auto some_deadline = [&]() -> Time {
            const auto magnitude = static_cast<unsigned>(below(43));
            std::int64_t ms = below(std::uint64_t{1} << magnitude);
            if (below(3) == 0) ms = (std::int64_t{1} << magnitude) - 1 + below(3);
            return now + std::chrono::milliseconds(ms) + std::chrono::nanoseconds(below(3) == 0 ? 0 : below(1'000'000)) - 3ms;
        };
        for (std::size_t i = 0; i < kTimers; ++i) {
            where.push_back(model.end());
            calls.push_back(std::make_unique<Call>([&, i] {
                fired.push_back(i);
                REQUIRE(where[i] != model.end());
                REQUIRE(where[i]->first <= now);  // never early
                model.erase(where[i]);
                where[i] = model.end();
                const std::size_t other = static_cast<std::size_t>(below(kTimers));
                const std::int64_t dice = below(10);
                if (dice < 2) {
                    arm(i, now + std::chrono::milliseconds(1 + below(500)));
                } else if (dice < 4 && other != i) {
                    wheel.cancel(calls[other]->timer);
                    if (where[other] != model.end()) model.erase(where[other]);
                    where[other] = model.end();
                }
            }));
        }
        for (int step = 0; step < 400; ++step) {
            const auto i = static_cast<std::size_t>(below(kTimers));
            switch (below(4)) {
                case 0:
                case 1: arm(i, some_deadline()); break;
                case 2:
                    wheel.cancel(calls[i]->timer);
                    if (where[i] != model.end()) model.erase(where[i]);
                    where[i] = model.end();
                    break;
                default: {
                    const auto next = wheel.next_deadline();
                    REQUIRE(next.has_value() == !model.empty());
                    // Sleep as told, or wake before or long after.
                    const std::int64_t how = below(3);
                    if (how == 0 && next)
                        now = std::max(now, *next);
                    else
                        now += std::chrono::microseconds(below(std::uint64_t{1} << static_cast<unsigned>(below(36))));
                    fired.clear();
                    wheel.advance(now);
                    // What is left may be due within its last, begun tick only.
                    if (!model.empty()) REQUIRE(model.begin()->first > now - 1ms);
                    if (const auto after = wheel.next_deadline(); after && !model.empty())
                        REQUIRE(*after <= model.begin()->first + 1ms);
                }
            }
            REQUIRE(wheel.size() == model.size());
            for (std::size_t k = 0; k < kTimers; ++k) REQUIRE(calls[k]->timer.armed() == (where[k] != model.end()));
        }
    }
}

TEST_CASE("timer_wheel: a million timers are armed moved cancelled and fired" * doctest::test_suite("slow")) {
    constexpr std::size_t kTimers = 1'000'000;
    TimerWheel wheel(kStart);
    std::size_t fired = 0;
    const auto timers = std::make_unique<std::optional<TimerWheel::Timer>[]>(kTimers);
    for (std::size_t i = 0; i < kTimers; ++i) {
        timers[i].emplace([](void* count) { ++*static_cast<std::size_t*>(count); }, &fired);
        wheel.arm_at(*timers[i], kStart + 30s);
    }
    for (std::size_t i = 0; i < kTimers; ++i) wheel.arm_at(*timers[i], kStart + 60s + std::chrono::milliseconds(i % 60'000));
    for (std::size_t i = 0; i < kTimers; i += 4) wheel.cancel(*timers[i]);
    CHECK(wheel.size() == kTimers / 4 * 3);
    for (Time now = kStart; now < kStart + 121s; now += 7ms) wheel.advance(now);
    CHECK(fired == kTimers / 4 * 3);
    CHECK(wheel.size() == 0);
}
