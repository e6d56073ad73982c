#include "muses/net/event_loop.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/support/sockets.hpp"

using namespace std::chrono_literals;
using muses::EventLoop;
using muses::EventLoopOptions;
using muses::EventMask;
using muses::UniqueFd;
using muses::test::drain;
using muses::test::FdPair;
using muses::test::socket_pair;
using muses::test::write_all;

namespace {

constexpr EventMask kBoth = EventMask::Readable | EventMask::Writable;

struct Handler final : EventLoop::IoHandler {
    std::function<void(EventMask)> what;
    explicit Handler(std::function<void(EventMask)> f) : what(std::move(f)) {}
    void on_io(EventMask ready) override { what(ready); }
};

struct Call {
    std::function<void()> what;
    EventLoop::Timer timer{[](void* self) { static_cast<Call*>(self)->what(); }, this};
    explicit Call(std::function<void()> f) : what(std::move(f)) {}
};

struct Hook final : EventLoop::TurnHook {
    std::function<void()> what;
    explicit Hook(std::function<void()> f) : what(std::move(f)) {}
    void on_turn_end() override { what(); }
};

// Ends a loop that a fault keeps from ending by itself, so that a test fails instead of hanging.
struct Guard {
    explicit Guard(EventLoop& loop, std::chrono::seconds limit = 20s)
        : call([this, &loop] {
              expired = true;
              loop.stop();
          }) {
        loop.arm(call.timer, limit);
    }
    bool expired = false;
    Call call;
};

#if !defined(MUSES_TEST_TSAN)
std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0};
#endif

}  // namespace

#if !defined(MUSES_TEST_TSAN)
// Every allocation of this program, for the test that wants none. Not inlined: gcc would take malloc and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
    if (counting) ++allocations;
    if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

TEST_CASE("event_loop: stop before run makes run return at once") {
    EventLoop loop;
    bool ran = false;
    loop.post([&] { ran = true; });
    CHECK_FALSE(loop.stopped());
    loop.stop();
    CHECK(loop.stopped());
    loop.run();
    loop.run();
    CHECK_FALSE(ran);
    CHECK(loop.stats().turns == 0);
}

TEST_CASE("event_loop: options that make no sense are refused") {
    CHECK_THROWS_AS(EventLoop(EventLoopOptions{.on_exception = {}, .events_per_turn = 0}), std::invalid_argument);
}

TEST_CASE("event_loop: posts run on the loop thread in order of arrival") {
    EventLoop loop;
    const Guard guard(loop);
    std::vector<int> order;
    CHECK_FALSE(loop.in_loop_thread());
    for (int i = 0; i < 100; ++i)
        loop.post([&, i] {
            CHECK(loop.in_loop_thread());
            order.push_back(i);
        });
    std::thread other([&] {
        CHECK_FALSE(loop.in_loop_thread());
        for (int i = 100; i < 200; ++i) loop.post([&, i] { order.push_back(i); });
        loop.post([&] { loop.stop(); });
    });
    loop.run();
    other.join();
    CHECK_FALSE(guard.expired);
    CHECK_FALSE(loop.in_loop_thread());
    REQUIRE(order.size() == 200);
    CHECK(std::is_sorted(order.begin(), order.end()));
    CHECK(loop.stats().posts == 201);
}

TEST_CASE("event_loop: a turn goes events then timers then posts then hooks") {
    EventLoop loop;
    const Guard guard(loop);
    const FdPair pair = socket_pair();
    std::string order;
    Handler handler([&](EventMask) { order += 'e'; });
    Call call([&] { order += 't'; });
    Hook hook([&] {
        order += 'h';
        if (order.size() > 4) loop.stop();
    });
    loop.watch(pair.a.get(), EventMask::Readable, handler);
    loop.post([&] {
        write_all(pair.b.get(), "x");
        loop.post([&] { order += 'p'; });
        loop.arm(call.timer, 0ms);
        loop.at_turn_end(hook);
    });
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(order == "hetph");
}

TEST_CASE("event_loop: a post made by a post runs in a later turn and starves nobody") {
    EventLoop loop;
    const Guard guard(loop);
    const FdPair pair = socket_pair();
    std::uint64_t posts = 0;
    std::function<void()> again = [&] {
        const std::uint64_t turn = loop.stats().turns;
        ++posts;
        if (posts == 10) write_all(pair.b.get(), "x");
        loop.post([&, turn] {
            CHECK(loop.stats().turns == turn + 1);
            again();
        });
    };
    Handler handler([&](EventMask) { loop.stop(); });
    loop.watch(pair.a.get(), EventMask::Readable, handler);
    loop.post([&] { again(); });
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(posts >= 10);
    CHECK(posts <= 12);
}

TEST_CASE("event_loop: many posts between two turns cost few turns") {
    EventLoop loop;
    const Guard guard(loop);
    int ran = 0;
    std::uint64_t turns = 0;
    loop.post([&] {
        std::thread other([&] {
            for (int i = 0; i < 1000; ++i) loop.post([&] { ++ran; });
        });
        other.join();
        turns = loop.stats().turns;
        loop.post([&] {
            CHECK(loop.stats().turns == turns + 1);
            loop.stop();
        });
    });
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(ran == 1000);
}

TEST_CASE("event_loop: what was posted and never ran is destroyed unrun with the loop") {
    auto token = std::make_shared<int>();
    bool ran = false;
    {
        std::optional<EventLoop> loop(std::in_place);
        loop->post([&ran, token] { ran = true; });
        struct PostsWhenDestroyed {
            EventLoop* loop;
            std::shared_ptr<int> token;
            bool* ran;
            PostsWhenDestroyed(EventLoop* l, std::shared_ptr<int> t, bool* r) : loop(l), token(std::move(t)), ran(r) {}
            PostsWhenDestroyed(PostsWhenDestroyed&& other) noexcept
                : loop(std::exchange(other.loop, nullptr)), token(std::move(other.token)), ran(other.ran) {}
            ~PostsWhenDestroyed() {
                if (loop != nullptr) loop->post([t = token, r = ran] { *r = true; });
            }
            void operator()() const {}
        };
        loop->post(PostsWhenDestroyed(&*loop, token, &ran));
        CHECK(token.use_count() == 3);
        loop->stop();
        loop->run();
        loop.reset();
    }
    CHECK_FALSE(ran);
    CHECK(token.use_count() == 1);
}

TEST_CASE("event_loop: stop ends the loop after the current turn from anywhere") {
    SUBCASE("from a post, whose successors still run") {
        EventLoop loop;
        bool successor = false;
        loop.post([&] { loop.stop(); });
        loop.post([&] { successor = true; });
        loop.run();
        CHECK(successor);
        CHECK(loop.stats().turns == 1);
    }
    SUBCASE("from a timer") {
        EventLoop loop;
        Call call([&] { loop.stop(); });
        loop.arm(call.timer, 1ms);
        loop.run();
        CHECK(loop.stats().timers == 1);
    }
    SUBCASE("from another thread, while the loop waits for ever") {
        for (int i = 0; i < 50; ++i) {
            EventLoop loop;
            std::thread other([&loop, i] {
                if (i % 2 == 0) std::this_thread::sleep_for(1ms);
                loop.stop();
            });
            loop.run();
            other.join();
        }
    }
    SUBCASE("from a signal handler") {
        static EventLoop* target = nullptr;
        EventLoop loop;
        target = &loop;
        struct sigaction action{};
        struct sigaction before{};
        action.sa_handler = [](int) { target->stop(); };
        REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
        std::thread other([&, waiting = ::pthread_self()] {
            std::this_thread::sleep_for(1ms);
            ::pthread_kill(waiting, SIGUSR1);
        });
        loop.run();
        other.join();
        ::sigaction(SIGUSR1, &before, nullptr);
        CHECK(loop.stopped());
    }
}

TEST_CASE("event_loop: a second run meanwhile is refused") {
    EventLoop loop;
    loop.post([&] {
        CHECK_THROWS_AS(loop.run(), std::logic_error);
        std::thread([&] { CHECK_THROWS_AS(loop.run(), std::logic_error); }).join();
        CHECK(loop.in_loop_thread());
        loop.stop();
    });
    loop.run();
    CHECK(loop.stats().exceptions == 0);
}

TEST_CASE("event_loop: timers fire in their order and never before their time") {
    EventLoop loop;
    const Guard guard(loop);
    std::string order;
    const auto begin = EventLoop::Clock::now();
    std::array<EventLoop::Clock::duration, 3> after{};
    Call a([&] { order += 'a', after[0] = EventLoop::Clock::now() - begin; });
    Call b([&] { order += 'b', after[1] = EventLoop::Clock::now() - begin; });
    Call c([&] {
        order += 'c', after[2] = EventLoop::Clock::now() - begin;
        CHECK(loop.now() - begin >= 30ms);
        loop.stop();
    });
    Call never([&] { order += 'n'; });
    Call cancelled([&] { order += 'x'; });
    loop.arm(c.timer, 30ms);
    loop.arm(a.timer, 10ms);
    loop.arm_at(b.timer, begin + 20ms);
    loop.arm(never.timer, EventLoop::Clock::duration::max());
    loop.arm(cancelled.timer, 5ms);
    loop.cancel(cancelled.timer);
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(order == "abc");
    CHECK(after[0] >= 10ms);
    CHECK(after[1] >= 20ms);
    CHECK(after[2] >= 30ms);
    CHECK(never.timer.armed());
}

TEST_CASE("event_loop: a timer armed for zero or less or the past is called in the next turn") {
    EventLoop loop;
    const Guard guard(loop);
    int calls = 0;
    std::uint64_t turn = 0;
    std::optional<Call> call;
    call.emplace([&] {
        if (turn != 0) CHECK(loop.stats().turns == turn + 1);
        turn = loop.stats().turns;
        switch (++calls) {
            case 1: return loop.arm(call->timer, 0ms);
            case 2: return loop.arm(call->timer, EventLoop::Clock::duration::min());
            case 3: return loop.arm_at(call->timer, loop.now());
            case 4: return loop.arm_at(call->timer, EventLoop::Clock::time_point::min());
            default: loop.stop();
        }
    });
    loop.arm(call->timer, -5s);
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(calls == 5);
}

TEST_CASE("event_loop: an idle loop with one far timer hardly wakes") {
    EventLoop loop;
    Call call([&] { loop.stop(); });
    Call far([] {});
    loop.arm(call.timer, 300ms);
    loop.arm(far.timer, 24h);
    loop.run();
    CHECK(loop.stats().turns <= 10);
}

TEST_CASE("event_loop: a watched descriptor reports its edges until it is unwatched") {
    EventLoop loop;
    const Guard guard(loop);
    const FdPair pair = socket_pair();
    int events = 0;
    EventLoop::IoHandle handle;
    CHECK_FALSE(static_cast<bool>(handle));
    Call later([&] { loop.stop(); });
    Handler handler([&](EventMask ready) {
        CHECK(ready == EventMask::Readable);
        if (++events == 1) {
            write_all(pair.b.get(), "y");  // a new edge, although nothing was read
        } else {
            loop.unwatch(handle);
            write_all(pair.b.get(), "z");
            loop.arm(later.timer, 5ms);
        }
    });
    handle = loop.watch(pair.a.get(), EventMask::Readable, handler);
    CHECK(static_cast<bool>(handle));
    CHECK(loop.watched() == 1);
    write_all(pair.b.get(), "x");
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(events == 2);
    CHECK(loop.watched() == 0);
    CHECK(loop.stats().stale_events == 0);  // the kernel was told
    loop.unwatch(handle);
    loop.forget(handle);
    loop.rewatch(handle, kBoth);
    CHECK(loop.watched() == 0);
}

TEST_CASE("event_loop: rewatch reports again what is still ready") {
    EventLoop loop;
    const Guard guard(loop);
    const FdPair pair = socket_pair();
    std::vector<EventMask> seen;
    EventLoop::IoHandle handle;
    Handler handler([&](EventMask ready) {
        seen.push_back(ready);
        if (seen.size() == 1) loop.rewatch(handle, EventMask::Readable);
        if (seen.size() == 2) {
            loop.rewatch(handle, EventMask::Readable);
            loop.rewatch(handle, EventMask::Writable);  // one change goes out, the last
        }
        if (seen.size() == 3) loop.stop();
    });
    handle = loop.watch(pair.a.get(), kBoth, handler);
    loop.rewatch(handle, EventMask::Readable);  // changes the registration that has not gone out
    write_all(pair.b.get(), "x");
    loop.run();
    CHECK_FALSE(guard.expired);
    REQUIRE(seen.size() == 3);
    CHECK(seen[0] == EventMask::Readable);
    CHECK(seen[1] == EventMask::Readable);
    CHECK(seen[2] == EventMask::Writable);
}

TEST_CASE("event_loop: a failed registration arrives as an error in the next turn") {
    EventLoop loop;
    const Guard guard(loop);
    const FdPair good = socket_pair();
    const FdPair other = socket_pair();
    const int bad = muses::test::closed_number();
    int errors = 0;
    EventLoop::IoHandle bad_handle;
    Handler on_bad([&](EventMask ready) {
        ++errors;
        CHECK(ready == EventMask::Error);
        CHECK(loop.registration_error(bad_handle) == std::errc::bad_file_descriptor);
        if (errors == 1) return loop.rewatch(bad_handle, EventMask::Readable);  // tries again
        loop.unwatch(bad_handle);
        CHECK_FALSE(loop.registration_error(bad_handle));
        loop.stop();
    });
    Handler never([](EventMask) { FAIL_CHECK("unwatched before it was told"); });
    int events = 0;
    Handler on_good([&](EventMask) { ++events; });
    loop.post([&] {
        loop.watch(good.a.get(), EventMask::Writable, on_good);
        const auto gone = loop.watch(bad, kBoth, never);
        bad_handle = loop.watch(bad, kBoth, on_bad);
        loop.watch(other.a.get(), EventMask::Writable, on_good);
        CHECK(errors == 0);
        CHECK_FALSE(loop.registration_error(bad_handle));
        // In the next turn, before the failure is told: timers run after events, so from a handler's place in that turn.
        loop.forget(gone);
    });
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(errors == 2);
    CHECK(events == 2);
    CHECK(loop.watched() == 2);
}

TEST_CASE("event_loop: a failed registration alone keeps the loop from sleeping") {
    EventLoop loop;  // without a timer that would end its sleep
    std::atomic<bool> told{false};
    Handler handler([&](EventMask) { told = true; });
    loop.watch(muses::test::closed_number(), kBoth, handler);
    std::thread runner([&] { loop.run(); });
    CHECK(muses::test::eventually([&] { return told.load(); }));
    loop.stop();
    runner.join();
}

TEST_CASE("event_loop: a failure is not told to who unwatches before") {
    EventLoop loop;
    const Guard guard(loop);
    const int bad = muses::test::closed_number();
    std::array<EventLoop::IoHandle, 2> handles;
    int told = 0;
    Handler handler([&](EventMask) {
        ++told;
        loop.unwatch(handles[0]);
        loop.unwatch(handles[1]);  // whose failure comes right after this one
        loop.post([&] { loop.stop(); });
    });
    for (auto& handle : handles) handle = loop.watch(bad, kBoth, handler);
    loop.post([] {});
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(told == 1);
    CHECK(loop.stats().stale_events == 0);
}

TEST_CASE("event_loop: an event fetched for a closed descriptor reaches neither its owner nor the next one of that number") {
    EventLoop loop;
    const Guard guard(loop);
    std::array<FdPair, 2> old{socket_pair(), socket_pair()};
    FdPair fresh = socket_pair();
    std::array<EventLoop::IoHandle, 2> handles;
    int old_events = 0;
    int fresh_events = 0;
    Handler on_fresh([&](EventMask ready) {
        ++fresh_events;
        CHECK(ready == EventMask::Readable);
        CHECK(drain(fresh.a.get()) == "meant for it");
        loop.stop();
    });
    // Whichever of the two is called first closes the other, whose event has been fetched in the same batch.
    std::array<std::optional<Handler>, 2> handlers;
    for (std::size_t i = 0; i < 2; ++i)
        handlers[i].emplace([&, i](EventMask) {
            ++old_events;
            const std::size_t victim = 1 - i;
            const int number = old[victim].a.get();
            loop.forget(handles[victim]);
            old[victim].a.reset();
            REQUIRE(muses::test::move_to(fresh.a, number));
            const auto handle = loop.watch(number, EventMask::Readable, on_fresh);
            CHECK(handle != handles[victim]);
            loop.unwatch(handles[victim]);  // of yesterday: must not end the new watch
            loop.post([&] { write_all(fresh.b.get(), "meant for it"); });
        });
    for (std::size_t i = 0; i < 2; ++i) {
        handles[i] = loop.watch(old[i].a.get(), EventMask::Readable, *handlers[i]);
        write_all(old[i].b.get(), "x");
    }
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(old_events == 1);
    CHECK(fresh_events == 1);
    CHECK(loop.stats().stale_events == 1);
}

TEST_CASE("event_loop: a handler may unwatch and destroy itself and others") {
    EventLoop loop;
    const Guard guard(loop);
    struct Self final : EventLoop::IoHandler {
        EventLoop& loop;
        UniqueFd fd;
        std::vector<std::unique_ptr<Self>>& all;
        EventLoop::IoHandle handle;
        Self(EventLoop& l, UniqueFd f, std::vector<std::unique_ptr<Self>>& a) : loop(l), fd(std::move(f)), all(a) {
            handle = loop.watch(fd.get(), kBoth, *this);
        }
        ~Self() { loop.forget(handle); }
        void on_io(EventMask) override {
            EventLoop& l = loop;
            all.clear();  // this one included
            l.post([&l] { l.stop(); });
        }
    };
    std::vector<std::unique_ptr<Self>> all;
    std::vector<UniqueFd> peers;
    for (int i = 0; i < 10; ++i) {
        FdPair pair = socket_pair();
        all.push_back(std::make_unique<Self>(loop, std::move(pair.a), all));
        peers.push_back(std::move(pair.b));
    }
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(loop.watched() == 0);
    CHECK(loop.stats().stale_events == 9);
    CHECK(loop.stats().io_events == 1);
}

TEST_CASE("event_loop: a registration that was taken back in its turn never goes out") {
    EventLoop loop;
    const Guard guard(loop);
    FdPair one = socket_pair();
    FdPair two = socket_pair();
    FdPair three = socket_pair();
    std::string order;
    Handler first([&](EventMask) { order += '1'; });
    Handler second([&](EventMask) { order += '2'; });
    Handler third([&](EventMask) {
        order += '3';
        loop.post([&] { loop.stop(); });
    });
    loop.post([&] {
        const auto a = loop.watch(one.a.get(), EventMask::Writable, first);
        const auto b = loop.watch(two.a.get(), EventMask::Writable, second);
        loop.watch(three.a.get(), EventMask::Writable, third);
        const int number = one.a.get();
        loop.forget(a);
        one.a.reset();
        REQUIRE(muses::test::move_to(two.b, number));
        loop.watch(number, EventMask::Writable, second);
        loop.unwatch(b);
    });
    loop.run();
    CHECK_FALSE(guard.expired);
    std::sort(order.begin(), order.end());
    CHECK(order == "23");
    CHECK(loop.stats().stale_events == 0);
}

TEST_CASE("event_loop: taking registrations back in any order leaves the others") {
    for (const auto& order : {std::array{0, 2}, std::array{2, 0}, std::array{0, 1}, std::array{1, 2}}) {
        EventLoop loop;
        const Guard guard(loop, 5s);
        const std::array<FdPair, 3> pairs{socket_pair(), socket_pair(), socket_pair()};
        int events = 0;
        std::array<EventLoop::IoHandle, 3> handles;
        Handler handler([&](EventMask) {
            ++events;
            loop.post([&] { loop.stop(); });
        });
        loop.post([&] {
            for (std::size_t i = 0; i < 3; ++i) handles[i] = loop.watch(pairs[i].a.get(), EventMask::Writable, handler);
            for (const int i : order) loop.forget(handles[static_cast<std::size_t>(i)]);
            CHECK(loop.watched() == 1);
        });
        loop.run();
        CHECK_FALSE(guard.expired);
        CHECK(events == 1);
        CHECK(loop.stats().stale_events == 0);
    }
}

#if defined(__linux__) && !defined(MUSES_USE_KQUEUE)
TEST_CASE("event_loop: unwatch tells the kernel and forget does not") {
    for (const bool tell : {true, false}) {
        CAPTURE(tell);
        EventLoop loop;
        const Guard guard(loop);
        const FdPair pair = socket_pair();
        EventLoop::IoHandle handle;
        Call end([&] { loop.stop(); });
        Handler handler([&](EventMask) {
            tell ? loop.unwatch(handle) : loop.forget(handle);
            write_all(pair.b.get(), "y");  // the descriptor stays open
            loop.arm(end.timer, 2ms);
        });
        handle = loop.watch(pair.a.get(), EventMask::Readable, handler);
        write_all(pair.b.get(), "x");
        loop.run();
        CHECK_FALSE(guard.expired);
        CHECK(loop.stats().stale_events == (tell ? 0 : 1));
    }
}
#endif

TEST_CASE("event_loop: more ready descriptors than a turn handles are all served and posts between them") {
    EventLoop loop(EventLoopOptions{.on_exception = {}, .events_per_turn = 1});
    const Guard guard(loop);
    std::vector<FdPair> pairs;
    std::vector<int> seen(30);
    std::vector<std::unique_ptr<Handler>> handlers;
    std::uint64_t posts = 0;
    std::function<void()> again = [&] {
        ++posts;
        if (std::count(seen.begin(), seen.end(), 0) == 0) return loop.stop();
        loop.post([&] { again(); });
    };
    for (std::size_t i = 0; i < seen.size(); ++i) {
        pairs.push_back(socket_pair());
        handlers.push_back(std::make_unique<Handler>([&, i](EventMask) {
            ++seen[i];
            write_all(pairs[i].b.get(), "x");
        }));
        loop.watch(pairs[i].a.get(), EventMask::Readable, *handlers[i]);
        write_all(pairs[i].b.get(), "x");
    }
    loop.post([&] { again(); });
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(posts >= 30);
    CHECK(posts <= 70);
}

TEST_CASE("event_loop: what handlers timers posts and hooks throw goes to the hook and the loop goes on") {
    std::vector<std::string> caught;
    EventLoop loop(EventLoopOptions{.on_exception = [&](std::exception_ptr error) {
        try {
            std::rethrow_exception(std::move(error));
        } catch (const std::exception& e) {
            caught.emplace_back(e.what());
        }
        throw std::runtime_error("from the hook itself");
    }});
    const Guard guard(loop);
    const FdPair pair = socket_pair();
    Handler handler([](EventMask) { throw std::runtime_error("event"); });
    Call first([] { throw std::runtime_error("timer"); });
    Call second([] { throw std::runtime_error("timer"); });
    std::optional<Hook> hook;
    hook.emplace([&] {
        hook->unhook();
        throw std::runtime_error("hook");
    });
    loop.watch(pair.a.get(), EventMask::Writable, handler);
    loop.arm(first.timer, 1ms);
    loop.arm(second.timer, 1ms);
    Call end([&] { loop.stop(); });
    loop.arm(end.timer, 10ms);
    loop.post([] { throw std::runtime_error("post"); });
    loop.post([&] { loop.at_turn_end(*hook); });
    loop.run();
    CHECK_FALSE(guard.expired);
    std::sort(caught.begin(), caught.end());
    CHECK(caught == std::vector<std::string>{"event", "hook", "post", "timer", "timer"});
    CHECK(loop.stats().exceptions == 5);
    CHECK(loop.stats().hook_exceptions == 5);
}

TEST_CASE("event_loop: without a hook an exception is one line on stderr") {
    FdPair pipe = muses::test::pipe_pair();
    const UniqueFd saved(::dup(2));
    REQUIRE(saved);
    REQUIRE(::dup2(pipe.b.get(), 2) == 2);
    {
        EventLoop loop;
        loop.post([] { throw std::runtime_error("planned for the test"); });
        loop.post([] { throw 42; });
        loop.post([&] { loop.stop(); });
        loop.run();
    }
    ::dup2(saved.get(), 2);
    const std::string said = drain(pipe.a.get());
    CHECK(said.find("planned for the test\n") != std::string::npos);
    CHECK(std::count(said.begin(), said.end(), '\n') == 2);
}

TEST_CASE("event_loop: a hook is called once a turn in order of registration until unhooked") {
    EventLoop loop;
    const Guard guard(loop);
    std::string order;
    std::optional<Hook> a;
    std::optional<Hook> b;
    std::optional<Hook> c;
    std::optional<Hook> d;
    a.emplace([&] {
        order += 'a';
        loop.at_turn_end(*a);  // moves to the end, is not called again in this turn
        if (!d) {
            d.emplace([&] { order += 'd'; });
            loop.at_turn_end(*d);  // this turn included
        }
    });
    b.emplace([&] {
        order += 'b';
        c.reset();  // another one, which is next
        b->unhook();
    });
    c.emplace([&] { order += 'c'; });
    for (auto* hook : {&a, &b, &c}) loop.at_turn_end(**hook);
    loop.at_turn_end(*c);
    loop.post([&] {
        order += '|';
        loop.post([&] {
            order += '|';
            loop.stop();
        });
    });
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(order == "|abd|ad");
}

TEST_CASE("event_loop: a hook registered by the last hook is called in that turn") {
    EventLoop loop;
    std::string order;
    Hook second([&] { order += '2'; });
    Hook first([&] {
        order += '1';
        loop.at_turn_end(second);
        loop.stop();
    });
    loop.at_turn_end(first);
    loop.wakeup();
    loop.run();
    CHECK(order == "12");
}

TEST_CASE("event_loop: hooks may outlive their loop") {
    Hook hook([] {});
    {
        EventLoop loop;
        loop.at_turn_end(hook);
    }
    hook.unhook();
    EventLoop other;
    other.at_turn_end(hook);
}

TEST_CASE("event_loop: what a hook changes goes out before the loop sleeps") {
    EventLoop loop;
    const Guard guard(loop);
    const FdPair pair = socket_pair();
    std::string order;
    Handler handler([&](EventMask) {
        order += 'e';
        loop.stop();
    });
    std::optional<Hook> hook;
    hook.emplace([&] {
        hook->unhook();
        loop.watch(pair.a.get(), EventMask::Writable, handler);
        loop.post([&] { order += 'p'; });
    });
    loop.at_turn_end(*hook);
    loop.wakeup();
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(order == "ep");
}

TEST_CASE("event_loop: wakeup makes a turn") {
    EventLoop loop;
    const Guard guard(loop);
    std::atomic<int> turns{0};
    std::atomic<bool> leave{false};
    Hook hook([&] {
        ++turns;
        if (leave) loop.stop();
    });
    loop.at_turn_end(hook);
    std::thread other([&] {
        for (int i = 0; i < 100; ++i) {
            const int before = turns;
            loop.wakeup();
            CHECK(muses::test::eventually([&] { return turns > before; }));
        }
        leave = true;
        loop.wakeup();
    });
    loop.run();
    other.join();
    CHECK_FALSE(guard.expired);
    CHECK(turns <= 220);  // no storm
}

TEST_CASE("event_loop: no post between two loops is lost") {
    EventLoop a;
    EventLoop b;
    const Guard guard_a(a);
    const Guard guard_b(b);
    const int rounds = muses::test::stress_rounds(10'000);
    int left = rounds;
    std::function<void()> ping = [&] {
        if (--left <= 0) {
            a.stop();
            b.stop();
            return;
        }
        b.post([&] { a.post([&] { ping(); }); });
    };
    a.post([&] { ping(); });
    std::thread other([&] { b.run(); });
    a.run();
    other.join();
    CHECK_FALSE(guard_a.expired);
    CHECK_FALSE(guard_b.expired);
    CHECK(left == 0);
}

TEST_CASE("event_loop: what is written before a wakeup is seen by the turn that it makes") {
    // The reactor's outbox in small: a value handed over by a relaxed store, ordered by nothing but wakeup().
    EventLoop loop;
    const Guard guard(loop);
    const int rounds = muses::test::stress_rounds(5'000);
    constexpr int kThreads = 2;
    struct Lane {
        int payload = 0;  // plain: the thread sanitizer checks the order
        std::atomic<int> filled{0};
        std::atomic<int> taken{0};
    };
    std::array<Lane, kThreads> lanes;
    Hook hook([&] {
        bool all = true;
        for (Lane& lane : lanes) {
            const int filled = lane.filled.load(std::memory_order_acquire);  // pairs with the release below
            if (filled != lane.taken.load(std::memory_order_relaxed)) {
                CHECK(lane.payload == filled);
                lane.taken.store(filled, std::memory_order_release);
            }
            all = all && filled == rounds;
        }
        if (all) loop.stop();
    });
    loop.at_turn_end(hook);
    std::atomic<bool> given_up{false};
    std::vector<std::thread> threads;
    for (Lane& lane : lanes)
        threads.emplace_back([&] {
            for (int i = 1; i <= rounds && !given_up; ++i) {
                lane.payload = i;
                lane.filled.store(i, std::memory_order_release);  // pairs with the acquire above
                loop.wakeup();
                while (lane.taken.load(std::memory_order_acquire) != i && !given_up) std::this_thread::yield();
            }
        });
    loop.run();
    given_up = true;
    for (std::thread& thread : threads) thread.join();
    CHECK_FALSE(guard.expired);
    for (Lane& lane : lanes) CHECK(lane.taken == rounds);
}

TEST_CASE("event_loop: posts of many threads keep the order of each and none is lost amid events and timers") {
    EventLoop loop;
    const Guard guard(loop);
    constexpr std::size_t kThreads = 4;
    const int each = muses::test::stress_rounds(5'000);
    std::array<int, kThreads> next{};
    std::size_t done = 0;
    bool ordered = true;
    const FdPair pair = socket_pair();
    Handler handler([&](EventMask) {
        drain(pair.a.get());
        write_all(pair.b.get(), "x");
    });
    loop.watch(pair.a.get(), EventMask::Readable, handler);
    write_all(pair.b.get(), "x");
    std::optional<Call> tick;
    tick.emplace([&] { loop.arm(tick->timer, 1ms); });
    loop.arm(tick->timer, 1ms);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < each; ++i)
                loop.post([&, t, i] {
                    ordered = ordered && next[t]++ == i;
                    if (i + 1 == each && ++done == kThreads) loop.stop();
                });
        });
    loop.run();
    for (std::thread& thread : threads) thread.join();
    CHECK_FALSE(guard.expired);
    CHECK(ordered);
    CHECK(loop.stats().posts == kThreads * static_cast<std::uint64_t>(each));
}

TEST_CASE("event_loop: a timer that arms itself anew and throws holds up neither the loop nor other timers") {
    std::uint64_t thrown = 0;
    EventLoopOptions options;
    options.on_exception = [&](const std::exception_ptr&) { ++thrown; };
    EventLoop loop(std::move(options));
    const Guard guard(loop);
    int others = 0;
    Call other([&] { ++others; });
    Call* self = nullptr;
    Call bad([&] {
        loop.arm(self->timer, 0ms);
        if (thrown == 0) loop.post([&] { loop.arm(other.timer, 1ms); });
        if (others > 0) loop.stop();
        throw std::runtime_error("planned");
    });
    self = &bad;
    loop.arm(bad.timer, 0ms);
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(others == 1);
    CHECK(thrown >= 2);
    CHECK(loop.stats().turns >= thrown);
}

TEST_CASE("event_loop: an empty function is refused where it is posted") {
    EventLoop loop;
    CHECK_THROWS_AS(loop.post(nullptr), std::invalid_argument);
    CHECK_THROWS_AS(loop.post(muses::detail::move_only_function<void()>()), std::invalid_argument);
}

#if !defined(MUSES_TEST_TSAN) && !defined(MUSES_USE_KQUEUE)
TEST_CASE("event_loop: a steady state allocates nothing") {
    EventLoop loop;
    const Guard guard(loop);
    FdPair pair = socket_pair();
    int turns = 0;
    EventLoop::IoHandle handle;
    Call timer([] {});
    Handler handler([&](EventMask ready) {
        if (!has(ready, EventMask::Readable)) return;
        std::array<char, 64> buffer;
        CHECK(::read(pair.a.get(), buffer.data(), buffer.size()) == 1);
        loop.arm(timer.timer, 10s);
        loop.rewatch(handle, kBoth);
        loop.post([&loop] { (void)loop; });
        ++turns;
        if (turns == 100) counting = true;  // warm by now
        if (turns == 1100) {
            counting = false;
            return loop.stop();
        }
        write_all(pair.b.get(), "x");
    });
    handle = loop.watch(pair.a.get(), kBoth, handler);
    write_all(pair.b.get(), "x");
    loop.run();
    CHECK_FALSE(guard.expired);
    CHECK(turns == 1100);
    CHECK(allocations == 0);
}
#endif
