#include "muses/task.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muses/net/event_loop.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/tasks.hpp"

using namespace std::chrono_literals;
using muses::AsyncEvent;
using muses::AsyncMutex;
using muses::AsyncSemaphore;
using muses::Channel;
using muses::EventLoop;
using muses::Task;
using muses::TaskScope;
using muses::test::live_frames;
using muses::test::stress_rounds;

namespace {

void ignore(std::exception_ptr) {}

Task<> turn() { co_await muses::sleep_for(0ms); }

}  // namespace

TEST_CASE("task_sync: an event lets all go on that wait, and those that come later, until it is reset") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        AsyncEvent event;
        int woken = 0;
        TaskScope scope;
        const auto wait = [](AsyncEvent& e, int& n) -> Task<> {
            co_await e.wait();
            ++n;
        };
        for (int i = 0; i < 3; ++i) scope.spawn(wait(event, woken));
        co_await turn();
        CHECK(woken == 0);
        CHECK_FALSE(event.is_set());
        event.set();
        event.reset();  // those that were woken go on
        co_await scope.join();
        CHECK(woken == 3);
        scope.spawn(wait(event, woken));
        co_await turn();
        CHECK(woken == 3);
        event.set();
        co_await event.wait();
        co_await scope.join();
        CHECK(woken == 4);
    }));
    CHECK(live_frames() == 0);
}

TEST_CASE("task_sync: what is destroyed while tasks wait for it ends their waits with a logic error") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        auto event = std::make_unique<AsyncEvent>();
        auto mutex = std::make_unique<AsyncMutex>();
        auto channel = std::make_unique<Channel<int>>(0);
        CHECK(mutex->try_lock());
        int errors = 0;
        TaskScope scope([&](std::exception_ptr error) {
            try {
                std::rethrow_exception(error);
            } catch (const std::logic_error&) {
                ++errors;
            }
        });
        scope.spawn(event->wait());
        scope.spawn(mutex->lock());
        scope.spawn(channel->receive());
        co_await turn();
        event.reset();
        mutex.reset();
        channel.reset();
        co_await scope.join();
        CHECK(errors == 3);
    }));
}

TEST_CASE("task_sync: a mutex lets one task in at a time, in the order in which they came") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        AsyncMutex mutex;
        std::vector<int> order;
        bool inside = false;
        TaskScope scope;
        const auto enter = [](AsyncMutex& m, std::vector<int>& o, bool& in, int id) -> Task<> {
            const auto guard = co_await m.scoped_lock();
            CHECK_FALSE(in);
            in = true;
            co_await turn();
            o.push_back(id);
            in = false;
        };
        for (int i = 0; i < 5; ++i) scope.spawn(enter(mutex, order, inside, i));
        co_await scope.join();
        CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
        CHECK(mutex.try_lock());
        CHECK_FALSE(mutex.try_lock());
        mutex.unlock();
        CHECK_THROWS_AS(mutex.unlock(), std::logic_error);
        co_await mutex.lock();
        mutex.unlock();
    }));
}

TEST_CASE("task_sync: an owner of a mutex or permit that is destroyed before it knows passes it on") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        AsyncMutex mutex;
        AsyncSemaphore semaphore(0);
        Channel<std::unique_ptr<int>> channel;
        co_await mutex.lock();
        {
            TaskScope doomed(ignore);
            doomed.spawn(mutex.lock());
            doomed.spawn(semaphore.acquire());
            doomed.spawn(channel.receive());
            co_await turn();
            mutex.unlock();
            semaphore.release();
            CHECK(channel.try_send(std::make_unique<int>(5)));
        }
        CHECK(mutex.try_lock());
        CHECK(semaphore.try_acquire());
        const auto value = channel.try_receive();
        REQUIRE(value.has_value());
        CHECK(**value == 5);
    }));
}

TEST_CASE("task_sync: what was handed over is not given back to one that is gone") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        auto mutex = std::make_unique<AsyncMutex>();
        auto semaphore = std::make_unique<AsyncSemaphore>(0);
        auto channel = std::make_unique<Channel<std::unique_ptr<int>>>();
        co_await mutex->lock();
        TaskScope doomed(ignore);
        doomed.spawn(mutex->lock());
        doomed.spawn(mutex->scoped_lock());
        doomed.spawn(semaphore->acquire());
        doomed.spawn(channel->receive());
        co_await turn();
        mutex->unlock();
        semaphore->release();
        CHECK(channel->try_send(std::make_unique<int>(5)));
        mutex.reset();
        semaphore.reset();
        channel.reset();
        CHECK(doomed.size_approx() == 4);  // and now they are destroyed
    }));
    CHECK(live_frames() == 0);
}

TEST_CASE("task_sync: a mutex or semaphore that dies after a hand-over ends that wait too, and the value of a channel arrives") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        auto mutex = std::make_unique<AsyncMutex>();
        auto semaphore = std::make_unique<AsyncSemaphore>(0);
        auto channel = std::make_unique<Channel<int>>();
        co_await mutex->lock();
        int errors = 0;
        int received = 0;
        TaskScope scope([&](const std::exception_ptr& error) {
            CHECK_THROWS_AS(std::rethrow_exception(error), std::logic_error);
            ++errors;
        });
        scope.spawn(mutex->scoped_lock());
        scope.spawn(semaphore->acquire());
        scope.spawn(muses::invoke([&]() -> Task<> { received = (co_await channel->receive()).value(); }));
        co_await turn();
        mutex->unlock();
        semaphore->release();
        CHECK(channel->try_send(5));
        mutex.reset();
        semaphore.reset();
        channel.reset();
        co_await scope.join();
        CHECK(errors == 2);
        CHECK(received == 5);
    }));
}

TEST_CASE("task_sync: tasks that were woken when their loop did not run may outlive what woke them") {
    EventLoop loop;
    {
        AsyncEvent event;
        AsyncMutex mutex;
        AsyncSemaphore semaphore(0);
        Channel<int> channel;
        Channel<int> full;
        const auto send = [](Channel<int>& c) -> Task<> { co_await c.send(1); };
        CHECK(mutex.try_lock());
        muses::spawn(loop, event.wait());
        muses::spawn(loop, mutex.lock());
        muses::spawn(loop, semaphore.acquire());
        muses::spawn(loop, channel.receive());
        muses::spawn(loop, send(full));
        muses::spawn(loop, muses::invoke([&]() -> Task<> {
                         co_await turn();
                         loop.stop();
                     }));
        loop.run();
        event.set();
        mutex.unlock();
        semaphore.release();
        CHECK(channel.try_send(1));
        CHECK(full.try_receive() == 1);
    }
}

TEST_CASE("task_sync: a task that another thread has woken may destroy what woke it, with others woken too") {
    const int rounds = stress_rounds(300);
    for (int round = 0; round < rounds; ++round) {
        auto event = std::make_unique<AsyncEvent>();
        std::atomic<int> waiting{0};
        std::thread setter([&waiting, raw = event.get()] {
            while (waiting.load() < 3) std::this_thread::yield();
            raw->set();
        });
        int gone_on = 0;
        muses::sync_wait(muses::invoke([&]() -> Task<> {
            const auto wait = [](AsyncEvent& e, std::atomic<int>& n, std::unique_ptr<AsyncEvent>& owner, int& on) -> Task<> {
                ++n;
                co_await e.wait();
                owner.reset();
                ++on;
            };
            TaskScope scope;
            for (int i = 0; i < 3; ++i) scope.spawn(wait(*event, waiting, event, gone_on));
            co_await scope.join();
        }));
        setter.join();
        CHECK(gone_on == 3);
    }
}

TEST_CASE("task_sync: a permit, a lock and a value come back when threads race to release, and to destroy who waits" *
          doctest::test_suite("slow")) {
    const int rounds = stress_rounds(1'000);
    for (int round = 0; round < rounds; ++round) {
        AsyncMutex mutex;
        AsyncSemaphore semaphore(0);
        Channel<std::unique_ptr<int>> channel(1);
        CHECK(mutex.try_lock());
        std::atomic<bool> ready{false};
        std::thread giver([&] {
            while (!ready.load()) std::this_thread::yield();
            mutex.unlock();
            semaphore.release();
            CHECK(channel.try_send(std::make_unique<int>(7)));
        });
        muses::sync_wait(muses::invoke([&]() -> Task<> {
            TaskScope doomed(ignore);
            const auto locks = [](AsyncMutex& m) -> Task<> { const auto guard = co_await m.scoped_lock(); };
            const auto acquires = [](AsyncSemaphore& s) -> Task<> {
                co_await s.acquire();
                s.release();
            };
            doomed.spawn(locks(mutex));
            doomed.spawn(acquires(semaphore));
            const auto receives = [](Channel<std::unique_ptr<int>>& c) -> Task<> {
                auto value = co_await c.receive();
                CHECK(c.try_send(std::move(*value)));
            };
            doomed.spawn(receives(channel));
            co_await turn();
            ready = true;
            if (round % 2 == 0) co_await turn();
        }));
        giver.join();
        CHECK(mutex.try_lock());
        CHECK(semaphore.available_approx() == 1);
        CHECK(channel.try_receive().has_value());
    }
}

TEST_CASE("task_sync: values that come back to a channel keep their order and do not let more in than it has room for") {
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{2}}) {
        CAPTURE(capacity);
        muses::sync_wait(muses::invoke([capacity]() -> Task<> {
            Channel<int> channel(capacity);
            std::vector<std::unique_ptr<TaskScope>> doomed;
            for (int i = 0; i < 4; ++i) {
                doomed.push_back(std::make_unique<TaskScope>(ignore));
                doomed.back()->spawn(channel.receive());
                co_await turn();
            }
            for (int i = 0; i < 4; ++i) CHECK(channel.try_send(int{i}));
            const int inside = static_cast<int>(capacity);
            for (int i = 0; i < inside; ++i) CHECK(channel.try_send(4 + i));
            for (const std::size_t i : {2U, 0U, 3U, 1U}) doomed[i].reset();
            CHECK(channel.size_approx() == capacity);
            CHECK_FALSE(channel.try_send(100));
            TaskScope sender;
            bool sent = false;
            sender.spawn(muses::invoke([&]() -> Task<> { sent = co_await channel.send(4 + inside); }));
            co_await turn();
            for (int i = 0; i < 4; ++i) {
                CHECK(co_await channel.receive() == i);
                co_await turn();
                CHECK_FALSE(sent);
            }
            for (int i = 0; i <= inside; ++i) CHECK(co_await channel.receive() == 4 + i);
            co_await sender.join();
            CHECK(sent);
            CHECK(channel.size_approx() == 0);
            CHECK_FALSE(channel.try_receive().has_value());
        }));
    }
}

TEST_CASE("task_sync: a cancelled wait takes no permit, no lock and no value") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        AsyncMutex mutex;
        AsyncSemaphore semaphore(0);
        Channel<int> channel;
        AsyncEvent event;
        co_await mutex.lock();
        CHECK_FALSE((co_await muses::with_timeout(mutex.lock(), 1ms)).has_value());
        CHECK_FALSE((co_await muses::with_timeout(semaphore.acquire(), 1ms)).has_value());
        CHECK_FALSE((co_await muses::with_timeout(channel.receive(), 1ms)).has_value());
        CHECK_FALSE((co_await muses::with_timeout(channel.send(1), 1ms)).has_value());
        CHECK_FALSE((co_await muses::with_timeout(event.wait(), 1ms)).has_value());
        mutex.unlock();
        CHECK(mutex.try_lock());
        semaphore.release();
        CHECK(semaphore.available_approx() == 1);
        CHECK_FALSE(channel.try_receive().has_value());
        CHECK_FALSE(channel.try_send(2));
    }));
}

TEST_CASE("task_sync: a semaphore counts, and refuses more permits than it can count") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        AsyncSemaphore semaphore(2);
        co_await semaphore.acquire();
        co_await semaphore.acquire();
        CHECK_FALSE(semaphore.try_acquire());
        int through = 0;
        TaskScope scope;
        const auto pass = [](AsyncSemaphore& s, int& n) -> Task<> {
            co_await s.acquire();
            ++n;
        };
        for (int i = 0; i < 5; ++i) scope.spawn(pass(semaphore, through));
        co_await turn();
        semaphore.release(3);
        co_await turn();
        CHECK(through == 3);
        semaphore.release(3);
        co_await scope.join();
        CHECK(through == 5);
        CHECK(semaphore.available_approx() == 1);
        CHECK_THROWS_AS(semaphore.release(std::numeric_limits<std::size_t>::max()), std::logic_error);
        CHECK(semaphore.available_approx() == 1);
    }));
}

TEST_CASE("task_sync: a channel keeps the order and hands everything over, with any capacity") {
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::numeric_limits<std::size_t>::max()}) {
        CAPTURE(capacity);
        muses::sync_wait(muses::invoke([capacity]() -> Task<> {
            Channel<std::unique_ptr<int>> channel(capacity);
            const auto send = [](Channel<std::unique_ptr<int>>& c) -> Task<int> {
                int sent = 0;
                for (int i = 0; i < 1000; ++i) sent += co_await c.send(std::make_unique<int>(i)) ? 1 : 0;
                c.close();
                c.close();
                const bool late = co_await c.send(std::make_unique<int>(-1));
                CHECK_FALSE(late);
                co_return sent;
            };
            const auto receive = [](Channel<std::unique_ptr<int>>& c) -> Task<int> {
                int next = 0;
                for (;;) {
                    const auto value = co_await c.receive();
                    if (!value) co_return next;
                    CHECK(**value == next);
                    ++next;
                }
            };
            const auto both = co_await muses::when_all(send(channel), receive(channel));
            CHECK(std::get<0>(both) == 1000);
            CHECK(std::get<1>(both) == 1000);
            CHECK(channel.closed());
        }));
    }
}

TEST_CASE("task_sync: closing a channel ends its senders with false and its receivers with nothing") {
    muses::sync_wait(muses::invoke([]() -> Task<> {
        Channel<int> full(1);
        Channel<int> empty(1);
        CHECK(full.try_send(1));
        CHECK(full.size_approx() == 1);
        int kept = 2;
        CHECK_FALSE(full.try_send(std::move(kept)));
        const auto send = [](Channel<int>& c) -> Task<bool> { co_return co_await c.send(3); };
        const auto receive = [](Channel<int>& c) -> Task<bool> { co_return (co_await c.receive()).has_value(); };
        const auto close = [](Channel<int>& a, Channel<int>& b) -> Task<> {
            a.close();
            b.close();
            co_return;
        };
        const auto all = co_await muses::when_all(send(full), receive(empty), close(full, empty));
        CHECK_FALSE(std::get<0>(all));
        CHECK_FALSE(std::get<1>(all));
        CHECK(co_await full.receive() == 1);
        CHECK_FALSE((co_await full.receive()).has_value());
    }));
}

TEST_CASE("task_sync: threads that hand values over by a channel lose and repeat none" * doctest::test_suite("slow")) {
    for (const std::size_t capacity : {std::size_t{0}, std::size_t{16}}) {
        Channel<int> channel(capacity);
        const int per_sender = stress_rounds(20'000);
        std::vector<std::thread> senders;
        std::atomic<long> sent{0};
        for (int s = 0; s < 2; ++s)
            senders.emplace_back([&] {
                muses::sync_wait([](Channel<int>& c, int n, std::atomic<long>& sum) -> Task<> {
                    for (int i = 0; i < n; ++i)
                        if (co_await c.send(i)) sum += i;
                }(channel, per_sender, sent));
            });
        std::atomic<long> received{0};
        std::vector<std::thread> receivers;
        for (int r = 0; r < 2; ++r)
            receivers.emplace_back([&] {
                muses::sync_wait([](Channel<int>& c, std::atomic<long>& sum) -> Task<> {
                    for (int turn_number = 0;; ++turn_number) {
                        if (turn_number % 7 == 3) {  // give up now and then, in the middle of a hand-over
                            const auto some = co_await muses::with_timeout(c.receive(), 0ms);
                            if (!some) continue;
                            if (!*some) co_return;
                            sum += **some;
                            continue;
                        }
                        const auto value = co_await c.receive();
                        if (!value) co_return;
                        sum += *value;
                    }
                }(channel, received));
            });
        for (auto& sender : senders) sender.join();
        channel.close();
        for (auto& receiver : receivers) receiver.join();
        CHECK(sent == 2L * per_sender * (per_sender - 1) / 2);
        CHECK(received == sent);
    }
}

TEST_CASE("task_sync: tasks on several threads exclude each other by a mutex" * doctest::test_suite("slow")) {
    AsyncMutex mutex;
    AsyncSemaphore semaphore(2);
    long plain = 0;  // guarded by the mutex, as TSan shall see
    std::atomic<int> inside{0};
    const int rounds = stress_rounds(5'000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            muses::sync_wait([](AsyncMutex& m, AsyncSemaphore& s, long& count, std::atomic<int>& in, int n) -> Task<> {
                for (int i = 0; i < n; ++i) {
                    co_await s.acquire();
                    CHECK(++in <= 2);
                    if (i % 16 == 5) {
                        const auto locked = co_await muses::with_timeout(m.lock(), 0ms);
                        if (locked) {
                            ++count;
                            m.unlock();
                        } else {
                            co_await m.lock();
                            ++count;
                            m.unlock();
                        }
                    } else {
                        const auto guard = co_await m.scoped_lock();
                        ++count;
                    }
                    --in;
                    s.release();
                }
            }(mutex, semaphore, plain, inside, rounds));
        });
    for (auto& thread : threads) thread.join();
    CHECK(plain == 4L * rounds);
    CHECK(mutex.try_lock());
    CHECK(semaphore.available_approx() == 2);
}
