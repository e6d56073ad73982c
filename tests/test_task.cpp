#include "muses/task.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/failing_new.hpp"
#include "tests/support/tasks.hpp"

using namespace std::chrono_literals;
using muses::Task;
using muses::test::Counted;
using muses::test::live_frames;
using muses::test::on_stack_of;
using muses::test::stress_rounds;

namespace {

constexpr std::size_t kSmallStack = std::size_t{256} * 1024;

struct NoDefault {
    explicit NoDefault(int v) noexcept : value(v) {}
    int value;
};

struct alignas(128) Wide {
    int value = 0;
};

Task<int> number(int n) { co_return n; }
Task<> nothing() { co_return; }
Task<std::unique_ptr<int>> movable(int n) { co_return std::make_unique<int>(n); }
Task<int&> reference(int& n) { co_return n; }
Task<NoDefault> no_default(int n) { co_return NoDefault(n); }
Task<Wide> wide(int n) { co_return Wide{n}; }
Task<std::string> text() { co_return "converted"; }
Task<int> failing(int n) {
    if (n >= 0) throw std::runtime_error("before any suspension");
    co_return n;
}

// Holds a counted object across its await.
Task<int> holding(muses::AsyncEvent& event, Counted /*parameter*/ = {}) {
    const Counted local;
    co_await event.wait();
    co_return 1;
}

Task<long> sum_of(int rounds) {
    long sum = 0;
    for (int i = 0; i < rounds; ++i) sum += co_await number(i & 1);
    co_return sum;
}

Task<int> nested(int levels) {
    if (levels == 0) co_return 0;
    co_return 1 + co_await nested(levels - 1);
}

Task<int> nested_failing(int levels) {
    if (levels == 0) throw std::runtime_error("at the bottom");
    co_return 1 + co_await nested_failing(levels - 1);
}

Task<int> nested_waiting(int levels, muses::AsyncEvent& event) {
    const Counted local;
    if (levels == 0) {
        co_await event.wait();
        co_return 0;
    }
    co_return 1 + co_await nested_waiting(levels - 1, event);
}

}  // namespace

TEST_CASE("task: a result of any kind reaches who awaits it") {
    int target = 4;
    muses::sync_wait([](int& t) -> Task<> {
        CHECK(co_await number(1) == 1);
        co_await nothing();
        const std::unique_ptr<int> pointer = co_await movable(2);
        CHECK(*pointer == 2);
        int& same = co_await reference(t);
        CHECK(&same == &t);
        const NoDefault plain = co_await no_default(3);
        CHECK(plain.value == 3);
        const Wide aligned = co_await wide(5);
        CHECK(aligned.value == 5);
        CHECK(co_await text() == "converted");
    }(target));
    CHECK(muses::sync_wait(number(7)) == 7);
    CHECK(&muses::sync_wait(reference(target)) == &target);
    CHECK(*muses::sync_wait(movable(8)) == 8);
    CHECK(live_frames() == 0);
}

TEST_CASE("task: is lazy and runs once it is awaited") {
    bool ran = false;
    auto coroutine = [](bool& r) -> Task<> {
        r = true;
        co_return;
    };
    Task<> task = coroutine(ran);
    CHECK(static_cast<bool>(task));
    CHECK_FALSE(ran);
    muses::sync_wait(task);
    CHECK(ran);
    CHECK_FALSE(static_cast<bool>(task));
}

TEST_CASE("task: moves and does not copy") {
    static_assert(!std::is_copy_constructible_v<Task<int>> && !std::is_copy_assignable_v<Task<int>>);
    static_assert(std::is_nothrow_move_constructible_v<Task<int>> && std::is_nothrow_move_assignable_v<Task<int>>);
    Task<int> a = number(1);
    Task<int> b = std::move(a);
    CHECK(live_frames() == 1);
    b = number(2);
    CHECK(live_frames() == 1);
    Task<int>& self = b;
    b = std::move(self);
    CHECK(muses::sync_wait(b) == 2);
    CHECK(live_frames() == 0);
}

TEST_CASE("task: awaiting an empty, moved-from or finished task is a logic error") {
    CHECK_THROWS_AS(muses::sync_wait(Task<int>()), std::logic_error);
    Task<int> moved = number(1);
    Task<int> owner = std::move(moved);
    CHECK_THROWS_AS(muses::sync_wait(moved), std::logic_error);
    CHECK(muses::sync_wait(owner) == 1);
    CHECK_THROWS_AS(muses::sync_wait(owner), std::logic_error);
    muses::sync_wait([]() -> Task<> {
        Task<int> twice = number(1);
        CHECK(co_await twice == 1);
        bool refused = false;
        try {
            (void)co_await twice;
        } catch (const std::logic_error&) {
            refused = true;
        }
        CHECK(refused);
    }());
}

TEST_CASE("task: exceptions travel through every level") {
    CHECK_THROWS_WITH_AS(muses::sync_wait(failing(1)), "before any suspension", std::runtime_error);
    CHECK_THROWS_WITH_AS(muses::sync_wait(nested_failing(10)), "at the bottom", std::runtime_error);
    const int caught = muses::sync_wait([]() -> Task<int> {
        int n = 0;
        try {
            n = co_await failing(1);
        } catch (const std::runtime_error&) {
            n = -1;
        }
        n += co_await number(10);
        co_return n;
    }());
    CHECK(caught == 9);
    CHECK(live_frames() == 0);
}

TEST_CASE("task: a million synchronous completions in a row do not grow the stack" * doctest::test_suite("slow")) {
    on_stack_of(kSmallStack, [] {
        CHECK(muses::sync_wait(sum_of(1'000'000)) == 500'000);
        CHECK(live_frames() == 0);
    });
}

TEST_CASE("task: a hundred thousand nested awaits start and unwind on a stack of 256 KiB") {
    on_stack_of(kSmallStack, [] {
        CHECK(muses::sync_wait(nested(100'000)) == 100'000);
        CHECK(live_frames() == 0);
    });
}

TEST_CASE("task: an exception unwinds a hundred thousand nested awaits on a stack of 256 KiB" * doctest::test_suite("slow")) {
    on_stack_of(kSmallStack, [] {
        CHECK_THROWS_WITH_AS(muses::sync_wait(nested_failing(100'000)), "at the bottom", std::runtime_error);
        CHECK(live_frames() == 0);
    });
}

TEST_CASE("task: a hundred thousand suspended awaits resume and are cancelled on a stack of 256 KiB" *
          doctest::test_suite("slow")) {
    on_stack_of(kSmallStack, [] {
        muses::AsyncEvent event;
        const auto set = [](muses::AsyncEvent& e) -> Task<> {
            e.set();
            co_return;
        };
        auto both = muses::when_all(nested_waiting(100'000, event), set(event));
        CHECK(std::get<0>(muses::sync_wait(std::move(both))) == 100'000);
        muses::AsyncEvent never;
        const auto late = muses::sync_wait(muses::with_timeout(nested_waiting(100'000, never), 1ms));
        CHECK_FALSE(late.has_value());
        CHECK(Counted::alive() == 0);
        CHECK(live_frames() == 0);
    });
}

TEST_CASE("task: destroying a hundred thousand suspended awaits needs no deep stack" * doctest::test_suite("slow")) {
    on_stack_of(kSmallStack, [] {
        muses::AsyncEvent never;
        {
            muses::TaskScope scope([](std::exception_ptr) {});
            const auto start = [](muses::TaskScope& s, muses::AsyncEvent& e) -> Task<> {
                s.spawn(nested_waiting(100'000, e));
                co_await muses::sleep_for(0ms);
                CHECK(live_frames() > 100'000);
                s.cancel();
                co_await s.join();
            };
            muses::sync_wait(start(scope, never));
        }
        const auto dropped = [](muses::AsyncEvent& e) -> Task<> {
            muses::TaskScope inner([](std::exception_ptr) {});
            inner.spawn(nested_waiting(100'000, e));
            co_await muses::sleep_for(0ms);
            CHECK(Counted::alive() == 100'001);
        };
        muses::sync_wait(dropped(never));
        CHECK(Counted::alive() == 0);
        CHECK(live_frames() == 0);
    });
}

TEST_CASE("task: one that never began frees its parameters once") {
    muses::AsyncEvent event;
    {
        Task<int> task = holding(event);
        CHECK(live_frames() == 1);
        CHECK(Counted::alive() == 1);
    }
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == 0);
    {
        Task<int> first = holding(event);
        Task<int> moved = std::move(first);
    }
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == 0);
}

TEST_CASE("task: one that is destroyed while suspended frees its locals once and leaves the queue that it waited in") {
    muses::AsyncEvent event;
    const auto body = [](muses::AsyncEvent& e) -> Task<> {
        {
            muses::TaskScope scope([](std::exception_ptr) {});
            scope.spawn(holding(e));
            scope.spawn(holding(e));
            co_await muses::sleep_for(0ms);
            CHECK(Counted::alive() == 4);
        }
        CHECK(Counted::alive() == 0);
        e.set();  // wakes nobody
        CHECK(co_await holding(e) == 1);
    };
    muses::sync_wait(body(event));
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == 0);
}

TEST_CASE("task: one that is destroyed after its wake-up and before it goes on is not resumed") {
    muses::AsyncEvent event;
    const auto body = [](muses::AsyncEvent& e) -> Task<> {
        {
            muses::TaskScope scope([](std::exception_ptr) {});
            scope.spawn(holding(e));
            co_await muses::sleep_for(0ms);
            e.set();
        }
        CHECK(Counted::alive() == 0);
        co_await muses::sleep_for(1ms);
    };
    muses::sync_wait(body(event));
    CHECK(live_frames() == 0);
}

TEST_CASE("task: locals are destroyed before those of who awaits, innermost first, also when it is destroyed while suspended") {
    static thread_local std::vector<int> order;
    order.clear();
    struct Mark {
        explicit Mark(int i) noexcept : id(i) {}
        Mark(const Mark&) = delete;
        Mark& operator=(const Mark&) = delete;
        ~Mark() { order.push_back(id); }
        int id;
    };
    struct Chain {
        static Task<> level(int depth, muses::AsyncEvent& e) {
            const Mark mark(depth);
            if (depth == 3)
                co_await e.wait();
            else
                co_await level(depth + 1, e);
        }
    };
    muses::AsyncEvent never;
    const auto body = [](muses::AsyncEvent& e) -> Task<> {
        muses::TaskScope scope([](std::exception_ptr) {});
        scope.spawn(Chain::level(0, e));
        co_await muses::sleep_for(0ms);
    };
    muses::sync_wait(body(never));
    CHECK(order == std::vector<int>{3, 2, 1, 0});
}

TEST_CASE("task: a frame may be freed on another thread than the one that made it") {
    std::vector<Task<int>> tasks;
    std::thread([&tasks] {
        for (int i = 0; i < 10'000; ++i) tasks.push_back(number(i));
        CHECK(live_frames() == 10'000);
    }).join();
    std::thread([&tasks] {
        CHECK(muses::sync_wait(tasks[5000]) == 5000);
        tasks.clear();
        CHECK(live_frames() == -10'000);  // each thread counts what it makes and frees
        CHECK(muses::detail::FramePool::of_this_thread().kept() <= 2 * muses::detail::FramePool::kKept);  // of two sizes
    }).join();
}

#if defined(MUSES_TEST_CAN_FAIL_NEW)
TEST_CASE("task: a coroutine whose frame finds no memory throws and begins nothing") {
    struct Large {
        static Task<int> coroutine(std::array<char, 8192> room) {  // larger than what the pool keeps
            co_await muses::sleep_for(0ms);
            co_return room[1];
        }
    };
    bool threw = false;
    const auto before = live_frames();
    {
        const muses::test::FailNew fail(0);
        try {
            Task<int> task = Large::coroutine({});
        } catch (const std::bad_alloc&) {
            threw = true;
        }
    }
    CHECK(threw);
    CHECK(live_frames() == before);
    CHECK(muses::sync_wait(Large::coroutine({1, 2})) == 2);
}
#endif

TEST_CASE("task: short coroutines allocate nothing once the thread's pool has their size") {
    const auto rounds = [](int n) -> Task<std::size_t> {
        for (int i = 0; i < n; ++i) (void)co_await number(i);
        co_return muses::detail::FramePool::of_this_thread().kept();
    };
    const std::size_t before = muses::sync_wait(rounds(10));
    const std::size_t after = muses::sync_wait(rounds(10'000));
    CHECK(before == after);
    CHECK(before > 0);
#if defined(MUSES_TEST_CAN_FAIL_NEW)
    struct Check {
        static Task<bool> run() {
            (void)co_await number(0);
            const muses::test::FailNew fail(0);  // the next allocation of this thread would throw
            for (int i = 0; i < 1000; ++i) (void)co_await number(i);
            co_return !fail.failed();
        }
    };
    CHECK(muses::sync_wait(Check::run()));
#endif
}

TEST_CASE("task: sync_wait runs timers without a loop and lets other threads wake it") {
    const auto start = std::chrono::steady_clock::now();
    muses::sync_wait(muses::sleep_for(5ms));
    CHECK(std::chrono::steady_clock::now() - start >= 5ms);

    for (int round = 0; round < stress_rounds(200); ++round) {
        muses::AsyncEvent event;
        std::thread setter([&event] { event.set(); });
        muses::sync_wait(event.wait());
        setter.join();
    }
}

TEST_CASE("task: a task that was woken by another thread may destroy the event at once") {
    for (int round = 0; round < stress_rounds(500); ++round) {
        auto event = std::make_unique<muses::AsyncEvent>();
        std::thread setter([e = event.get()] { e->set(); });
        muses::sync_wait([](std::unique_ptr<muses::AsyncEvent> e) -> Task<> {
            co_await e->wait();
            e.reset();
        }(std::move(event)));
        setter.join();
    }
}

TEST_CASE("task: sync_wait inside of a task runs a tree of its own") {
    const int n = muses::sync_wait([]() -> Task<int> {
        const int inner = muses::sync_wait(number(20));
        co_return inner + co_await number(1);
    }());
    CHECK(n == 21);
}

TEST_CASE("task: invoke keeps a lambda and its arguments alive while the coroutine runs") {
    const auto make = [] {
        std::string captured = "a capture that lives on the heap";
        return muses::invoke(
            [captured](std::string argument, const std::string& other) -> Task<std::string> {
                co_await muses::sleep_for(1ms);
                co_return captured + argument + other;
            },
            std::string(", an argument"), std::string(", and a temporary by reference"));
    };
    CHECK(muses::sync_wait(make()) == "a capture that lives on the heap, an argument, and a temporary by reference");
    int changed = 0;
    muses::sync_wait(muses::invoke(
        [](int& target) -> Task<> {
            target = 3;
            co_return;
        },
        std::ref(changed)));
    CHECK(changed == 3);
    CHECK(live_frames() == 0);
}

namespace {

// An awaiter as other people write them: resumed by a thread of its own.
struct OnAThread {
    std::thread& thread;
    int value;
    [[nodiscard]] bool await_ready() const noexcept { return value < 0; }
    void await_suspend(std::coroutine_handle<> coroutine) {
        thread = std::thread([coroutine] { coroutine.resume(); });
    }
    [[nodiscard]] int await_resume() const {
        if (value == 13) throw std::runtime_error("foreign");
        return value;
    }
};

struct Convertible {
    int& target;
    struct Awaiter {
        int& target;
        static bool await_ready() noexcept { return true; }
        static void await_suspend(std::coroutine_handle<>) noexcept {}
        [[nodiscard]] int& await_resume() const noexcept { return target; }
    };
    Awaiter operator co_await() const noexcept { return {target}; }
};

}  // namespace

TEST_CASE("task: awaits what others have written and goes on on its own thread") {
    const auto at_start = live_frames();
    const auto here = std::this_thread::get_id();
    for (int round = 0; round < stress_rounds(50); ++round) {
        muses::sync_wait([](std::thread::id home) -> Task<> {
            std::thread thread;
            const int got = co_await OnAThread{thread, 5};
            CHECK(got == 5);
            CHECK(std::this_thread::get_id() == home);
            thread.join();
            const int at_once = co_await OnAThread{thread, -1};
            CHECK(at_once == -1);
            bool threw = false;
            try {
                (void)co_await OnAThread{thread, 13};
            } catch (const std::runtime_error&) {
                threw = true;
            }
            CHECK(threw);
            thread.join();
            co_await std::suspend_never();
            int target = 0;
            int& same = co_await Convertible{target};
            CHECK(&same == &target);
        }(here));
    }
    CHECK(live_frames() == at_start);
}

TEST_CASE("task: a foreign wait is not cancelled, and the next wait of the library is") {
    bool reached = false;
    const auto body = [](bool& r) -> Task<> {
        std::thread thread;
        const int got = co_await OnAThread{thread, 5};
        CHECK(got == 5);
        thread.join();
        r = true;
        co_await muses::sleep_for(0ms);
    };
    muses::stop_source source;
    source.request_stop();
    CHECK_THROWS_AS(muses::sync_wait(muses::with_stop_token(body(reached), source.get_token())), muses::cancelled);
    CHECK(reached);
}

TEST_CASE("task: a result is destroyed when the destructor of a local throws after it was returned") {
    struct Throws {
        ~Throws() noexcept(false) { throw std::runtime_error("from a destructor"); }  // NOLINT(bugprone-exception-escape)
    };
    const auto task = []() -> Task<Counted> {
        const Throws local;
        co_return Counted();
    };
    const int before = Counted::alive();
    CHECK_THROWS_AS((void)muses::sync_wait(task()), std::runtime_error);
    CHECK(Counted::alive() == before);
    CHECK(live_frames() == 0);
}
