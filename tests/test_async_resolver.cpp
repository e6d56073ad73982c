#include "muses/net/async_resolver.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <expected>
#include <memory>
#include <mutex>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "muses/net/event_loop.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/tasks.hpp"

using namespace std::chrono_literals;
using muses::AsyncResolver;
using muses::Endpoint;
using muses::Task;
using Result = AsyncResolver::Result;

namespace {

Result answer(std::uint16_t port) { return std::vector{*Endpoint::ip("192.0.2.1", port)}; }

}  // namespace

TEST_CASE("async_resolver: names, numbers and failures") {
    AsyncResolver resolver;
    const Result numeric = muses::sync_wait(resolver.resolve("::1", 80));
    REQUIRE(numeric.has_value());
    CHECK(numeric->front() == *Endpoint::ip("::1", 80));
    const Result local = muses::sync_wait(resolver.resolve("localhost", 8080));
    REQUIRE(local.has_value());
    CHECK(local->front().port() == 8080);
    const Result none = muses::sync_wait(resolver.resolve(std::string("a\0b", 3), 80));
    CHECK(none.error() == std::errc::invalid_argument);
}

TEST_CASE("async_resolver: a name is looked up once until its time is over, and a failure is not kept") {
    std::atomic<int> lookups{0};
    AsyncResolver resolver({.ttl = 50ms, .lookup = [&](std::string_view host, std::uint16_t port) -> Result {
                                ++lookups;
                                if (host == "missing") return std::unexpected(std::make_error_code(std::errc::host_unreachable));
                                return answer(port);
                            }});
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) CHECK(muses::sync_wait(resolver.resolve("name", 80)).value().front().port() == 80);
    if (std::chrono::steady_clock::now() - start < 50ms) CHECK(lookups == 1);
    CHECK(muses::sync_wait(resolver.resolve("name", 81)).value().front().port() == 81);
    CHECK(muses::test::eventually([&] {
        const int before = lookups;
        (void)muses::sync_wait(resolver.resolve("name", 80));
        return lookups == before + 1;  // looked up anew
    }));
    const int before = lookups;
    for (int i = 0; i < 3; ++i) CHECK(muses::sync_wait(resolver.resolve("missing", 80)).error() == std::errc::host_unreachable);
    CHECK(lookups == before + 3);
}

TEST_CASE("async_resolver: many that ask for one name share a look-up and each goes on with its own loop") {
    std::atomic<int> lookups{0};
    std::binary_semaphore release(0);
    AsyncResolver resolver({.lookup = [&](std::string_view, std::uint16_t port) -> Result {
        ++lookups;
        release.acquire();
        return answer(port);
    }});
    muses::EventLoop loop;
    muses::TaskScope scope(loop);
    std::atomic<int> asking{0};
    std::atomic<int> answered{0};
    const auto ask = [](AsyncResolver& r, muses::EventLoop& l, std::atomic<int>& begun, std::atomic<int>& n) -> Task<> {
        ++begun;
        const Result result = co_await r.resolve("shared", 80);
        if (result && l.in_loop_thread()) ++n;
    };
    for (int i = 0; i < 100; ++i) scope.spawn(ask(resolver, loop, asking, answered));
    std::thread thread([&] { loop.run(); });
    CHECK(muses::test::eventually([&] { return asking == 100 && lookups == 1; }));
    release.release();
    CHECK(muses::test::eventually([&] { return answered == 100; }));
    CHECK(lookups == 1);
    loop.stop();
    thread.join();
}

TEST_CASE("async_resolver: who waits for a slow look-up can give up, and the look-up ends by itself") {
    std::binary_semaphore release(0);
    AsyncResolver resolver({.lookup = [&](std::string_view, std::uint16_t port) -> Result {
        release.acquire();
        return answer(port);
    }});
    const auto late = muses::sync_wait(muses::with_timeout(resolver.resolve("slow", 80), 2ms));
    CHECK_FALSE(late.has_value());
    muses::EventLoop loop;
    muses::spawn(loop, resolver.resolve("slow", 80));  // suspended, and freed with the loop, while the worker is at it
    loop.post([&] { loop.post([&] { loop.stop(); }); });
    loop.run();
    release.release();
    CHECK(muses::sync_wait(resolver.resolve("slow", 80)).has_value());
}

TEST_CASE("async_resolver: look-ups that have not begun end with an error when it is destroyed, or when there are too many") {
    std::counting_semaphore<> release(0);
    std::atomic<int> lookups{0};
    auto resolver = std::make_unique<AsyncResolver>(
        muses::AsyncResolverOptions{.max_waiting = 2, .lookup = [&](std::string_view, std::uint16_t port) -> Result {
                                        ++lookups;
                                        release.acquire();
                                        return answer(port);
                                    }});
    std::mutex mutex;
    std::vector<std::error_code> errors;
    std::vector<std::thread> threads;
    const auto ask = [&](const std::string& name) {
        threads.emplace_back([&, name] {
            const Result result = muses::sync_wait(resolver->resolve(name, 80));
            const std::lock_guard lock(mutex);
            errors.push_back(result ? std::error_code() : result.error());
        });
    };
    ask("running");
    CHECK(muses::test::eventually([&] { return lookups == 1; }));
    for (const char* name : {"a", "b", "c"}) ask(name);
    CHECK(muses::test::eventually([&] {
        const std::lock_guard lock(mutex);
        return errors.size() == 1;
    }));
    CHECK(errors.front() == std::errc::resource_unavailable_try_again);
    std::thread destroyer([&] { resolver.reset(); });
    for (int i = 0; i < 3; ++i) release.release();  // for those that had begun before the destroyer came
    destroyer.join();
    for (auto& thread : threads) thread.join();
    CHECK(errors.size() == 4);
    CHECK(std::ranges::count(errors, std::error_code()) >= 1);
}

TEST_CASE("async_resolver: a look-up that throws is an error and harms no later one") {
    int calls = 0;
    AsyncResolver resolver({.lookup = [&](std::string_view, std::uint16_t port) -> Result {
        if (++calls == 1) throw std::runtime_error("no");
        return answer(port);
    }});
    CHECK(muses::sync_wait(resolver.resolve("x", 80)).error() == std::errc::not_enough_memory);
    CHECK(muses::sync_wait(resolver.resolve("x", 80)).has_value());
}
