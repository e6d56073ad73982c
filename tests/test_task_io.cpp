#include "muses/net/event_loop.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <expected>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "muses/task.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/loop_tasks.hpp"
#include "tests/support/sockets.hpp"
#include "tests/support/tasks.hpp"

using namespace std::chrono_literals;
using muses::EventLoop;
using muses::EventLoopOptions;
using muses::EventMask;
using muses::IoAwaiter;
using muses::Task;
using muses::test::Counted;
using muses::test::drain;
using muses::test::eventually;
using muses::test::FdPair;
using muses::test::live_frames;
using muses::test::run;
using muses::test::socket_pair;
using muses::test::stress_rounds;
using muses::test::write_all;

namespace {

using Result = std::expected<void, std::error_code>;

Task<Result> wait_for(EventLoop& loop, int fd, EventMask interest) { co_return co_await IoAwaiter(loop, fd, interest); }

Task<> wait_into(EventLoop& loop, int fd, std::optional<Result>& result, Counted /*parameter*/ = {}) {
    const Counted local;
    result = co_await IoAwaiter(loop, fd, EventMask::Readable);
}

Task<std::string> read_some(EventLoop& loop, int fd) {
    const Result ready = co_await IoAwaiter(loop, fd, EventMask::Readable);
    if (!ready) throw std::system_error(ready.error());
    co_return drain(fd);
}

// Lets everything that is ready run, a few times over.
Task<> turns(int n = 3) {
    for (int i = 0; i < n; ++i) co_await muses::sleep_for(0ms);
}

// A thread that runs a loop.
struct Runner {
    EventLoop loop;
    std::thread thread{[this] { loop.run(); }};
    Runner() = default;
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;
    ~Runner() {
        loop.stop();
        thread.join();
    }
};

}  // namespace

TEST_CASE("task_io: a reader and a writer wait on one descriptor and both go on") {
    EventLoop loop;
    FdPair pair = socket_pair();
    (void)muses::test::fill(pair.a.get());  // not writable, not readable
    run(loop, [](EventLoop& l, FdPair& p) -> Task<> {
        const auto other = [](int fd) -> Task<> {
            co_await turns();
            write_all(fd, "to the reader");
            co_await turns();
            (void)drain(fd);
        };
        auto both = co_await muses::when_all(wait_for(l, p.a.get(), EventMask::Readable),
                                             wait_for(l, p.a.get(), EventMask::Writable), other(p.b.get()));
        CHECK(std::get<0>(both).has_value());
        CHECK(std::get<1>(both).has_value());
        CHECK(l.watched() == 0);
    }(loop, pair));
}

TEST_CASE("task_io: one wait for either direction goes on with the first that is ready") {
    EventLoop loop;
    FdPair pair = socket_pair();
    run(loop, [](EventLoop& l, FdPair& p) -> Task<> {
        CHECK((co_await IoAwaiter(l, p.a.get(), EventMask::Readable | EventMask::Writable)).has_value());
        (void)muses::test::fill(p.a.get());
        write_all(p.b.get(), "x");
        CHECK((co_await IoAwaiter(l, p.a.get(), EventMask::Readable | EventMask::Writable)).has_value());
        CHECK(l.watched() == 0);
    }(loop, pair));
}

TEST_CASE("task_io: a second reader of one descriptor gets an error and the first one waits on") {
    EventLoop loop;
    FdPair pair = socket_pair();
    run(loop, [](EventLoop& l, FdPair& p) -> Task<> {
        const auto second = [](EventLoop& lo, FdPair& pa) -> Task<> {
            const Result refused = co_await IoAwaiter(lo, pa.a.get(), EventMask::Readable);
            CHECK(refused.error() == std::errc::device_or_resource_busy);
            CHECK(lo.watched() == 1);
            write_all(pa.b.get(), "for the first");
        };
        const auto both = co_await muses::when_all(read_some(l, p.a.get()), second(l, p));
        CHECK(std::get<0>(both) == "for the first");
    }(loop, pair));
}

TEST_CASE("task_io: what cannot be watched is an error at once") {
    EventLoop loop;
    run(loop, [](EventLoop& l) -> Task<> {
        const Result negative = co_await IoAwaiter(l, -1, EventMask::Readable);
        CHECK(negative.error() == std::errc::bad_file_descriptor);
        const Result closed = co_await IoAwaiter(l, muses::test::closed_number(), EventMask::Readable);
        CHECK(closed.error() == std::errc::bad_file_descriptor);
        const FdPair pair = socket_pair();
        const Result nothing = co_await IoAwaiter(l, pair.a.get(), EventMask::None);
        CHECK(nothing.error() == std::errc::invalid_argument);
        CHECK(l.watched() == 0);
    }(loop));
}

TEST_CASE("task_io: a deadline ends a wait and leaves no registration") {
    EventLoop loop;
    FdPair pair = socket_pair();
    run(loop, [](EventLoop& l, FdPair& p) -> Task<> {
        const auto start = std::chrono::steady_clock::now();
        const Result late = co_await IoAwaiter(l, p.a.get(), EventMask::Readable, 3ms);
        CHECK(late.error() == std::errc::timed_out);
        CHECK(std::chrono::steady_clock::now() - start >= 3ms);
        CHECK(l.watched() == 0);
        write_all(p.b.get(), "x");
        const Result ready = co_await IoAwaiter(l, p.a.get(), EventMask::Readable, std::chrono::hours::max());
        CHECK(ready.has_value());
        const Result polled = co_await IoAwaiter(l, p.a.get(), EventMask::Readable, -1s);
        CHECK(polled.has_value());  // what is ready already counts
        CHECK(drain(p.a.get()) == "x");
        const Result empty = co_await IoAwaiter(l, p.a.get(), EventMask::Readable, 0s);
        CHECK(empty.error() == std::errc::timed_out);
    }(loop, pair));
}

TEST_CASE("task_io: readiness and deadline in the same tick give exactly one result a hundred thousand times" *
          doctest::test_suite("slow")) {
    EventLoop loop;
    FdPair pair = socket_pair();
    const int rounds = stress_rounds(100'000);
    int ready = 0;
    int late = 0;
    run(loop, [](EventLoop& l, FdPair& p, int n, int& r, int& t) -> Task<> {
        for (int i = 0; i < n; ++i) {
            // The byte arrives before the wait, together with the deadline, or after it.
            const bool before = i % 3 == 0;
            const auto other = [](int fd, bool now, bool never) -> Task<> {
                if (!now && !never) co_await muses::sleep_for(0ms);  // fires in the turn in which the deadline does
                if (!never) write_all(fd, "x");
            };
            const auto self = [](EventLoop& lo, int fd) -> Task<bool> {
                const Result result = co_await IoAwaiter(lo, fd, EventMask::Readable, 0ms);
                if (!result && result.error() != std::errc::timed_out) throw std::system_error(result.error());
                co_return result.has_value();
            };
            const auto both = co_await muses::when_all(other(p.b.get(), before, i % 3 == 2), self(l, p.a.get()));
            ++(std::get<1>(both) ? r : t);
            (void)drain(p.a.get());
        }
        CHECK(l.watched() == 0);
    }(loop, pair, rounds, ready, late));
    CHECK(ready + late == rounds);
    CHECK(ready >= rounds / 3);
    CHECK(late >= rounds / 3);
}

TEST_CASE("task_io: many waits that come due in the tick of their event each end once") {
    EventLoop loop;
    constexpr int kPairs = 200;
    std::vector<FdPair> pairs;
    for (int i = 0; i < kPairs; ++i) pairs.push_back(socket_pair());
    int ended = 0;
    run(loop, [](EventLoop& l, std::vector<FdPair>& all, int& n) -> Task<> {
        const auto one = [](EventLoop& lo, FdPair& p, int& count) -> Task<> {
            const auto wait = [](EventLoop& loo, int fd) -> Task<> { (void)co_await IoAwaiter(loo, fd, EventMask::Readable, 1ms); };
            const auto write = [](int fd) -> Task<> {
                co_await muses::sleep_for(1ms);
                write_all(fd, "x");
            };
            for (int round = 0; round < 20; ++round) {
                (void)co_await muses::when_all(wait(lo, p.a.get()), write(p.b.get()));
                (void)drain(p.a.get());
                ++count;
            }
        };
        std::vector<Task<>> tasks;
        for (FdPair& p : all) tasks.push_back(one(l, p, n));
        (void)co_await muses::when_all(std::move(tasks));
        CHECK(l.watched() == 0);
    }(loop, pairs, ended));
    CHECK(ended == kPairs * 20);
}

TEST_CASE(
    "task_io: a descriptor closed and reused within one batch ends the old wait with an error and tells the new one nothing") {
    for (const bool through_watch : {false, true}) {
        CAPTURE(through_watch);
        EventLoop loop;
        FdPair first = socket_pair();
        FdPair reused = socket_pair();
        FdPair fresh = socket_pair();
        const int number = reused.a.get();
        std::optional<Result> old_wait;
        std::optional<Result> new_wait;
        struct Silent final : EventLoop::IoHandler {
            void on_io(EventMask mask) override { events += muses::has(mask, EventMask::Readable) ? 1 : 0; }
            int events = 0;
        } silent;

        muses::TaskScope scope(loop);
        const auto taker = [&] {
            return muses::invoke([&]() -> Task<> {
                (void)co_await IoAwaiter(loop, first.a.get(), EventMask::Readable);
                // Now: the event of `reused` has been fetched in the same batch, and its waiter has not run yet.
                CHECK_FALSE(old_wait.has_value());
                reused.a.reset();
                CHECK(muses::test::move_to(fresh.a, number));
                muses::IoHandle handle;
                if (through_watch)
                    handle = loop.watch(number, EventMask::Readable, silent);
                else
                    scope.spawn(wait_into(loop, number, new_wait));
                co_await turns(5);
                REQUIRE(old_wait.has_value());
                CHECK(old_wait->error() == std::errc::bad_file_descriptor);
                CHECK_FALSE(new_wait.has_value());
                CHECK(silent.events == 0);
                CHECK(loop.watched() == 1);
                write_all(fresh.b.get(), "its own");
                co_await turns(5);
                CHECK((through_watch ? silent.events == 1 : new_wait.has_value() && new_wait->has_value()));
                loop.unwatch(handle);
                CHECK(loop.watched() == 0);
                loop.stop();
            });
        };
        scope.spawn(taker());
        scope.spawn(wait_into(loop, number, old_wait));
        loop.post([&] {
            loop.post([&] {  // both wait by now; the two bytes arrive in one batch, `first` before `reused`
                write_all(first.b.get(), "x");
                write_all(reused.b.get(), "x");
            });
        });
        loop.run();
        CHECK(scope.size_approx() == 0);
    }
}

TEST_CASE("task_io: a descriptor that is reused while its wait has seen no event ends that wait too") {
    EventLoop loop;
    FdPair reused = socket_pair();
    FdPair fresh = socket_pair();
    const int number = reused.a.get();
    std::optional<Result> old_wait;
    run(loop, muses::invoke([&]() -> Task<> {
            muses::TaskScope scope;
            scope.spawn(wait_into(loop, number, old_wait));
            co_await turns();
            reused.a.reset();
            CHECK(muses::test::move_to(fresh.a, number));
            const Result none = co_await IoAwaiter(loop, number, EventMask::Readable, 1ms);
            CHECK(none.error() == std::errc::timed_out);
            co_await scope.join();
            CHECK(old_wait.value().error() == std::errc::bad_file_descriptor);
            CHECK(loop.watched() == 0);
        }));
}

TEST_CASE("task_io: a stop from another thread ends the wait on the thread of the loop as cancelled") {
    for (int round = 0; round < stress_rounds(50); ++round) {
        Runner runner;
        FdPair pair = socket_pair();
        muses::stop_source source;
        std::atomic<bool> waiting{false};
        std::atomic<bool> right_thread{false};
        std::thread stopper([&] {
            while (!waiting.load(std::memory_order_acquire)) std::this_thread::yield();
            source.request_stop();
        });
        const auto body = [](EventLoop& loop, int fd, std::atomic<bool>& w, std::atomic<bool>& right) -> Task<> {
            w.store(true, std::memory_order_release);
            try {
                (void)co_await IoAwaiter(loop, fd, EventMask::Readable);
            } catch (const muses::cancelled&) {
                right = loop.in_loop_thread() && loop.watched() == 0;
                throw;
            }
        };
        CHECK_THROWS_AS(
            muses::sync_wait(muses::with_stop_token(body(runner.loop, pair.a.get(), waiting, right_thread), source.get_token())),
            muses::cancelled);
        CHECK(right_thread);
        stopper.join();
    }
}

TEST_CASE("task_io: a stop before the start registers nothing") {
    EventLoop loop;
    FdPair pair = socket_pair();
    muses::stop_source source;
    source.request_stop();
    run(loop, muses::invoke([&]() -> Task<> {
            bool began = false;
            bool stopped = false;
            const auto body = [](EventLoop& l, int fd, bool& b) -> Task<> {
                b = true;
                (void)co_await IoAwaiter(l, fd, EventMask::Readable, 1h);
            };
            try {
                co_await muses::with_stop_token(body(loop, pair.a.get(), began), source.get_token());
            } catch (const muses::cancelled&) {
                stopped = true;
            }
            CHECK(began);
            CHECK(stopped);
            CHECK(loop.watched() == 0);
            CHECK(loop.stats().io_events == 0);
        }));
}

TEST_CASE("task_io: a task that is destroyed while it waits leaves nothing behind and a later event is harmless") {
    const auto at_start = live_frames();
    EventLoop loop;
    FdPair pair = socket_pair();
    std::optional<Result> result;
    run(loop, muses::invoke([&]() -> Task<> {
            const auto frames = live_frames();
            {
                muses::TaskScope scope([](std::exception_ptr) {});
                scope.spawn(wait_into(loop, pair.a.get(), result));
                scope.spawn(muses::with_timeout(wait_into(loop, pair.b.get(), result), 1h));
                co_await turns();
                CHECK(loop.watched() == 2);
                CHECK(Counted::alive() == 4);
            }
            CHECK(loop.watched() == 0);
            CHECK(Counted::alive() == 0);
            CHECK(live_frames() == frames);
            write_all(pair.b.get(), "nobody waits");
            co_await turns();
            CHECK_FALSE(result.has_value());
        }));
    CHECK(live_frames() == at_start);
}

TEST_CASE("task_io: a task that is destroyed with its event already delivered is not resumed") {
    const auto at_start = live_frames();
    EventLoop loop;
    FdPair first = socket_pair();
    FdPair second = socket_pair();
    std::optional<Result> result;
    run(loop, muses::invoke([&]() -> Task<> {
            auto scope = std::make_unique<muses::TaskScope>([](std::exception_ptr) {});
            muses::TaskScope outer;
            outer.spawn(muses::invoke([&]() -> Task<> {
                (void)co_await IoAwaiter(loop, first.a.get(), EventMask::Readable);
                CHECK(Counted::alive() == 2);
                scope.reset();
                CHECK(Counted::alive() == 0);
            }));
            co_await turns();
            scope->spawn(wait_into(loop, second.a.get(), result));
            co_await turns();
            write_all(first.b.get(), "x");
            write_all(second.b.get(), "x");
            co_await outer.join();
            co_await turns();
            CHECK_FALSE(result.has_value());
            CHECK(loop.watched() == 0);
        }));
    CHECK(live_frames() == at_start);
}

TEST_CASE("task_io: an exception after a wait and in two of three children reaches the caller once and the others end first") {
    EventLoop loop;
    FdPair pair = socket_pair();
    const auto throwing = [](EventLoop& l, int fd, const char* what, int& ended) -> Task<int> {
        const Counted local;
        (void)co_await IoAwaiter(l, fd, EventMask::Writable);
        ++ended;
        throw std::runtime_error(what);
    };
    const auto slow = [](int& ended) -> Task<int> {
        const Counted local;
        co_await muses::sleep_for(3ms);
        ++ended;
        co_return 3;
    };
    int ended = 0;
    std::string what;
    run(loop, muses::invoke([&]() -> Task<> {
            const auto frames = live_frames();
            try {
                (void)co_await muses::when_all(throwing(loop, pair.a.get(), "first", ended), slow(ended),
                                               throwing(loop, pair.b.get(), "third", ended));
            } catch (const std::runtime_error& e) {
                what = e.what();
                CHECK(ended == 3);
            }
            CHECK(Counted::alive() == 0);
            CHECK(live_frames() == frames);
            CHECK(loop.watched() == 0);
        }));
    CHECK(what == "first");
}

TEST_CASE("task_io: a loop that is destroyed with a hundred suspended tasks frees all of them") {
    const auto at_start = live_frames();
    std::vector<FdPair> pairs;
    for (int i = 0; i < 100; ++i) pairs.push_back(socket_pair());
    std::optional<Result> result;
    muses::AsyncEvent never;
    {
        auto owner = std::make_unique<EventLoop>();
        EventLoop& loop = *owner;
        muses::TaskScope scope(loop);
        for (int i = 0; i < 50; ++i) muses::spawn(loop, wait_into(loop, pairs[static_cast<std::size_t>(i)].a.get(), result));
        for (int i = 50; i < 100; ++i) {
            scope.spawn(muses::with_timeout(wait_into(loop, pairs[static_cast<std::size_t>(i)].a.get(), result), 1h));
        }
        muses::spawn(loop, never.wait());
        loop.post([&] { loop.post([&] { loop.stop(); }); });
        loop.run();
        CHECK(loop.watched() == 100);
        CHECK(Counted::alive() == 200);
        CHECK(scope.size_approx() == 50);
        owner.reset();
        CHECK(scope.size_approx() == 0);
    }
    CHECK(Counted::alive() == 0);
    CHECK(live_frames() == at_start);
}

TEST_CASE("task_io: a scope may outlive its loop") {
    const auto at_start = live_frames();
    std::optional<Result> result;
    FdPair pair = socket_pair();
    auto loop = std::make_unique<EventLoop>();
    muses::TaskScope scope(*loop);
    scope.spawn(wait_into(*loop, pair.a.get(), result));
    loop->post([&] { loop->post([&] { loop->stop(); }); });
    loop->run();
    CHECK(scope.size_approx() == 1);
    loop.reset();
    CHECK(scope.size_approx() == 0);
    CHECK(live_frames() == at_start);
}

TEST_CASE("task_io: what a detached task throws goes to the hook of the loop") {
    const auto at_start = live_frames();
    std::string seen;
    EventLoop loop(EventLoopOptions{.on_exception = [&](std::exception_ptr error) {
        try {
            std::rethrow_exception(error);
        } catch (const std::exception& e) {
            seen = e.what();
        }
        loop.stop();
    }});
    FdPair pair = socket_pair();
    muses::spawn(loop, [](EventLoop& l, int fd) -> Task<> {
        (void)co_await IoAwaiter(l, fd, EventMask::Writable);
        throw std::runtime_error("detached");
    }(loop, pair.a.get()));
    loop.run();
    CHECK(seen == "detached");
    CHECK(live_frames() == at_start);
}

TEST_CASE("task_io: sync_wait moves a task with all that it awaits to the thread of the loop and back") {
    Runner runner;
    FdPair pair = socket_pair();
    for (int round = 0; round < stress_rounds(100); ++round) {
        const auto body = [](EventLoop& loop, FdPair& p) -> Task<std::string> {
            CHECK_FALSE(loop.in_loop_thread());
            const auto sleeper = [](EventLoop& l) -> Task<bool> {
                co_await muses::sleep_for(1ms);  // armed before the move, comes due after it
                co_return l.in_loop_thread();
            };
            const auto writer = [](EventLoop& l, int fd) -> Task<bool> {
                (void)co_await IoAwaiter(l, fd, EventMask::Writable);
                write_all(fd, "moved");
                co_return l.in_loop_thread();
            };
            const auto all = co_await muses::when_all(sleeper(loop), read_some(loop, p.a.get()), writer(loop, p.b.get()));
            CHECK(std::get<0>(all));
            CHECK(std::get<2>(all));
            CHECK(loop.in_loop_thread());
            co_return std::get<1>(all);
        };
        CHECK(muses::sync_wait(body(runner.loop, pair)) == "moved");
    }
}

TEST_CASE("task_io: sync_wait throws when the loop that its task waits on is destroyed") {
    FdPair pair = socket_pair();
    auto runner = std::make_unique<Runner>();
    std::atomic<bool> threw{false};
    std::thread waiter([&, loop = &runner->loop] {
        try {
            (void)muses::sync_wait(wait_for(*loop, pair.a.get(), EventMask::Readable));
        } catch (const std::logic_error&) {
            threw = true;
        }
    });
    CHECK(eventually([&] {
        std::atomic<std::size_t> watched{9};
        runner->loop.post([&] { watched = runner->loop.watched(); });
        return eventually([&] { return watched != 9; }) && watched == 1;
    }));
    runner.reset();
    waiter.join();
    CHECK(threw);
}

TEST_CASE("task_io: a task that runs on one loop cannot wait on another") {
    EventLoop loop;
    EventLoop other;
    FdPair pair = socket_pair();
    CHECK_THROWS_AS(
        run(loop, muses::invoke([&]() -> Task<> { (void)co_await IoAwaiter(other, pair.a.get(), EventMask::Readable); })),
        std::logic_error);
    CHECK(other.watched() == 0);
}

TEST_CASE("task_io: sync_wait on the thread of a loop cannot wait for I/O there") {
    EventLoop loop;
    FdPair pair = socket_pair();
    bool refused = false;
    loop.post([&] {
        CHECK(muses::sync_wait(muses::with_timeout(muses::sleep_for(1h), 1ms)).has_value() == false);
        try {
            (void)muses::sync_wait(wait_for(loop, pair.a.get(), EventMask::Readable));
        } catch (const std::logic_error&) {
            refused = true;
        }
        loop.stop();
    });
    loop.run();
    CHECK(refused);
}

TEST_CASE("task_io: tasks that wake each other for ever do not starve events and timers") {
    EventLoop loop;
    FdPair pair = socket_pair();
    muses::Channel<int> there(1);
    muses::Channel<int> back(1);
    run(loop, muses::invoke([&]() -> Task<> {
            const auto player = [](muses::Channel<int>& in, muses::Channel<int>& out) -> Task<> {
                for (;;) {
                    const std::optional<int> ball = co_await in.receive();
                    if (!ball || !co_await out.send(*ball)) co_return;
                }
            };
            muses::TaskScope scope;
            scope.spawn(player(there, back));
            scope.spawn(player(back, there));
            co_await there.send(1);
            co_await muses::sleep_for(1ms);
            write_all(pair.b.get(), "x");
            CHECK((co_await IoAwaiter(loop, pair.a.get(), EventMask::Readable)).has_value());
            scope.cancel();
            co_await scope.join();
        }));
}

namespace {

// Another scheduler: poll(2) and one list, to show what IoScheduler asks for.
class PollScheduler final : public muses::TaskScheduler {
public:
    ~PollScheduler() { abandon_all(); }

    muses::TaskScheduler& tasks() noexcept { return *this; }
    std::error_code begin_io(muses::IoWait& wait) noexcept {
        waits_.push_back(&wait);
        return {};
    }
    void end_io(muses::IoWait& wait) noexcept { std::erase(waits_, &wait); }

    bool on_own_thread() const noexcept override { return true; }
    bool touchable() const noexcept override { return true; }
    void wake() noexcept override {}
    void arm(muses::TaskTimer& timer, muses::detail::SteadyTime when) noexcept override { timers_.push_back({when, &timer}); }
    void disarm(muses::TaskTimer& timer) noexcept override {
        std::erase_if(timers_, [&](const auto& armed) { return armed.second == &timer; });
    }
    void on_task_exception(std::exception_ptr) noexcept override {}

    void run_while(const bool& going) {
        while (going) {
            (void)drain();
            std::vector<pollfd> fds;
            for (const muses::IoWait* wait : waits_)
                fds.push_back({wait->fd(), static_cast<short>(wait->interest() == EventMask::Readable ? POLLIN : POLLOUT), 0});
            ::poll(fds.data(), static_cast<nfds_t>(fds.size()), 0);
            const auto waits = waits_;
            for (std::size_t i = 0; i < fds.size(); ++i)
                if (fds[i].revents != 0) waits[i]->ready();
            const auto armed = timers_;
            for (const auto& [when, timer] : armed) {
                if (when > std::chrono::steady_clock::now()) continue;
                disarm(*timer);
                timer->fire();
            }
        }
    }

private:
    std::vector<muses::IoWait*> waits_;
    std::vector<std::pair<muses::detail::SteadyTime, muses::TaskTimer*>> timers_;
};

}  // namespace

TEST_CASE("task_io: any scheduler that meets the concept serves") {
    const auto at_start = live_frames();
    static_assert(muses::IoScheduler<PollScheduler> && muses::IoScheduler<EventLoop> && !muses::IoScheduler<int>);
    PollScheduler scheduler;
    FdPair pair = socket_pair();
    bool going = true;
    muses::spawn(scheduler, muses::invoke([&]() -> Task<> {
                     const auto reader = [](PollScheduler& s, int fd) -> Task<std::string> {
                         (void)co_await IoAwaiter(s, fd, EventMask::Readable);
                         co_return drain(fd);
                     };
                     const auto writer = [](PollScheduler& s, int fd) -> Task<> {
                         co_await muses::sleep_for(1ms);
                         (void)co_await IoAwaiter(s, fd, EventMask::Writable, 1s);
                         write_all(fd, "polled");
                     };
                     const auto both = co_await muses::when_all(reader(scheduler, pair.a.get()), writer(scheduler, pair.b.get()));
                     CHECK(std::get<0>(both) == "polled");
                     const Result late = co_await IoAwaiter(scheduler, pair.a.get(), EventMask::Readable, 1ms);
                     CHECK(late.error() == std::errc::timed_out);
                     going = false;
                 }));
    scheduler.run_while(going);
    CHECK(live_frames() == at_start);
}
