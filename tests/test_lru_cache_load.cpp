#include "muses/lru_cache.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/lru.hpp"

using muses::EvictCause;
using muses::LruCache;
using muses::PutResult;
using muses::ShardedLruCache;
using namespace muses::test;
using namespace std::chrono_literals;

// ---- get_or_load ----

TEST_CASE("lru_cache: get_or_load loads once and then hits") {
    LruCache<std::string, int> cache(10);
    int calls = 0;
    const auto loader = [&] { return ++calls; };
    CHECK(cache.get_or_load("k", loader) == 1);
    CHECK(cache.get_or_load("k", loader) == 1);
    CHECK(cache.get("k") == 1);
    CHECK(cache.get_or_load("four", [](const std::string& key) { return static_cast<int>(key.size()); }) == 4);
    const auto stats = cache.stats();
    CHECK(stats.loads == 2);
    CHECK(stats.hits == 2);
    CHECK(stats.misses == 2);
    CHECK(stats.load_failures == 0);
}

TEST_CASE("lru_cache: get_or_load calls one loader however many threads ask") {
    for (int round = 0; round < stress_rounds(20); ++round) {
        LruCache<int, std::string> cache(10);
        std::atomic<int> calls{0};
        std::atomic<int> right{0};
        std::latch start(8);
        std::vector<std::thread> threads;
        for (int t = 0; t < 8; ++t)
            threads.emplace_back([&] {
                start.arrive_and_wait();
                const auto value = cache.get_or_load(1, [&] {
                    ++calls;
                    // Until all others have asked, or a moment has passed: they must join this load.
                    (void)eventually([&] { return cache.stats().misses + cache.stats().hits == 8; }, 200ms);
                    return std::string(100, 'v');
                });
                if (value == std::string(100, 'v')) ++right;
            });
        for (auto& thread : threads) thread.join();
        CHECK(calls == 1);
        CHECK(right == 8);
        CHECK(cache.stats().loads == 1);
        CHECK(cache.stats().hits + cache.stats().misses == 8);
        CHECK(cache.size() == 1);
    }
}

TEST_CASE("lru_cache: what a loader throws reaches all who wait and poisons nothing") {
    LruCache<int, int> cache(10);
    std::atomic<int> calls{0};
    std::atomic<int> caught{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([&] {
            try {
                (void)cache.get_or_load(1, [&]() -> int {
                    ++calls;
                    (void)eventually([&] { return cache.stats().misses == 6; });
                    throw std::out_of_range("no such thing");
                });
            } catch (const std::out_of_range& error) {
                if (std::string_view(error.what()) == "no such thing") ++caught;
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(calls == 1);
    CHECK(caught == 6);
    CHECK_FALSE(cache.contains(1));
    CHECK(cache.stats().load_failures == 1);
    CHECK(cache.get_or_load(1, [] { return 7; }) == 7);
    CHECK(cache.get(1) == 7);
}

TEST_CASE("lru_cache: a loader that asks for its own key gets a logic_error and other keys are fine") {
    LruCache<int, int> cache(10);
    CHECK_THROWS_AS((void)cache.get_or_load(1, [&] { return cache.get_or_load(1, [] { return 1; }); }), std::logic_error);
    CHECK_FALSE(cache.contains(1));
    // Through another key, and after the load has been made out of date, all the same.
    CHECK_THROWS_AS(
        (void)cache.get_or_load(1, [&] { return cache.get_or_load(2, [&] { return cache.get_or_load(1, [] { return 1; }); }); }),
        std::logic_error);
    CHECK_THROWS_AS((void)cache.get_or_load(1,
                                            [&] {
                                                cache.erase(1);
                                                return cache.get_or_load(1, [] { return 1; });
                                            }),
                    std::logic_error);
    CHECK(cache.get_or_load(
              1, [&] { return 1 + cache.get_or_load(2, [&] { return 1 + cache.get_or_load(3, [] { return 1; }); }); }) == 3);
    CHECK(cache.size() == 3);
}

namespace {
template <class Cache>
void two_loaders_in_a_circle(Cache& cache) {
    std::latch both(2);
    std::atomic<int> refused{0};
    std::atomic<int> answered{0};
    const auto ask = [&](int mine, int other) {
        try {
            (void)cache.get_or_load(mine, [&] {
                both.arrive_and_wait();
                return cache.get_or_load(other, [] { return 0; });
            });
            ++answered;
        } catch (const std::logic_error&) {
            ++refused;  // by the one that would have closed the circle, and then by the other, who waited for it
        }
    };
    std::thread a([&] { ask(1, 2); });
    std::thread b([&] { ask(2, 1); });
    a.join();
    b.join();
    CHECK(refused == 2);
    CHECK(answered == 0);
    CHECK(cache.get_or_load(1, [] { return 5; }) == 5);
}

struct ShardHash {  // the key's upper half picks the shard
    using is_avalanching = void;
    std::uint64_t operator()(int key) const { return (static_cast<std::uint64_t>(key) << 62U) | static_cast<std::uint64_t>(key); }
};
}  // namespace

TEST_CASE("lru_cache: loaders of two threads that ask for each other do not wait for ever") {
    LruCache<int, int> cache(10);
    two_loaders_in_a_circle(cache);
}

TEST_CASE("lru_cache: loaders of two threads that ask for each other in different shards do not wait for ever") {
    ShardedLruCache<int, int, ShardHash> cache(100, 4);  // keys 1 and 2 are in shards 1 and 2
    two_loaders_in_a_circle(cache);
}

TEST_CASE("lru_cache: a circle of four loaders in four shards is refused and leads to no answer") {
    ShardedLruCache<int, int, ShardHash> cache(100, 4);
    std::latch all(4);
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            try {
                (void)cache.get_or_load(i, [&] {
                    all.arrive_and_wait();
                    return cache.get_or_load((i + 1) % 4, [] { return 0; });
                });
            } catch (const std::logic_error&) {
                ++refused;
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(refused == 4);
    CHECK(cache.empty());
}

TEST_CASE("lru_cache: a thread whose load has ended may wait for one that waited for it") {
    int refused = 0;
    for (int round = 0; round < stress_rounds(200); ++round) {
        LruCache<int, int> cache(10);
        std::latch loading(2);
        std::thread other([&] {
            (void)cache.get_or_load(1, [&] {
                loading.arrive_and_wait();
                return cache.get_or_load(2, [] { return 0; });  // waits for the load below, or finds what it brought
            });
        });
        (void)cache.get_or_load(2, [&] {
            loading.arrive_and_wait();
            CHECK(eventually([&] { return cache.stats().misses == 3; }));  // the other one waits
            return 2;
        });
        try {
            CHECK(cache.get_or_load(1, [] { return 2; }) == 2);
        } catch (const std::logic_error&) {
            ++refused;  // no circle: the other one has only not woken yet
        }
        other.join();
    }
    CHECK(refused == 0);
}

TEST_CASE("lru_cache: a put during a load wins in the cache") {
    HookLog<int, int> log;
    LruCache<int, int> cache({.max_entries = 10, .on_evict = log.writer()});
    const int got = cache.get_or_load(1, [&] {
        CHECK(cache.put(1, 100) == PutResult::Inserted);
        return 1;
    });
    CHECK(got == 1);  // who asked gets what was loaded
    CHECK(cache.get(1) == 100);
    CHECK(cache.stats().discarded_loads == 1);
    CHECK(log.entries.empty());
    // Also when what was put has gone again, and by try_emplace.
    (void)cache.get_or_load(2, [&] {
        cache.try_emplace(2, 200);
        cache.erase(2);
        return 2;
    });
    CHECK_FALSE(cache.contains(2));
}

TEST_CASE("lru_cache: an erase or clear during a load wins in the cache and who asks later loads anew") {
    LruCache<int, int> cache(10);
    std::latch loading(1);
    std::latch finish(1);
    std::thread slow([&] {
        CHECK(cache.get_or_load(1, [&] {
            loading.count_down();
            finish.wait();
            return 1;
        }) == 1);
    });
    loading.wait();
    CHECK_FALSE(cache.erase(1));
    CHECK(cache.get_or_load(1, [] { return 2; }) == 2);  // does not join the load that began before the erase
    finish.count_down();
    slow.join();
    CHECK(cache.get(1) == 2);
    CHECK(cache.get_or_load(3, [&] {
        cache.clear();
        return 3;
    }) == 3);
    CHECK(cache.empty());
    CHECK(cache.stats().discarded_loads == 2);
}

TEST_CASE("lru_cache: a refused put during a load changes nothing") {
    LruCache<int, int> cache({.max_weight = 5, .weigher = [](int, int v) { return static_cast<std::size_t>(v); }});
    CHECK(cache.get_or_load(1, [&] {
        CHECK(cache.put(1, 6) == PutResult::Refused);
        return 1;
    }) == 1);
    CHECK(cache.get(1) == 1);
}

TEST_CASE("lru_cache: a load of an expired key runs again") {
    FakeClock clock;
    LruCache<int, int> cache({.ttl = 10ns, .clock = clock.reader()});
    CHECK(cache.get_or_load(1, [] { return 1; }) == 1);
    clock.advance(10ns);
    CHECK(cache.get_or_load(1, [&] {
        clock.advance(50ns);  // its life begins when it is put
        return 2;
    }) == 2);
    clock.advance(9ns);
    CHECK(cache.get(1) == 2);
}

TEST_CASE("lru_cache: a copy that throws after the load reaches whoever needed it") {
    Counted::copies_until_throw = -1;
    {
        LruCache<int, Counted> cache(4);
        Counted::copies_until_throw = 0;
        CHECK_THROWS_AS((void)cache.get_or_load(1, [] { return Counted(1); }), std::runtime_error);
        Counted::copies_until_throw = -1;
        CHECK(cache.stats().load_failures == 1);
        CHECK(cache.get_or_load(1, [] { return Counted(1); }).number == 1);
    }
    CHECK(Counted::live == 0);
}

TEST_CASE("lru_cache: a value that cannot be copied is loaded too and get_or_load says whether it is kept") {
    LruCache<int, std::unique_ptr<int>> cache(1);
    CHECK(cache.get_or_load(1, [] { return std::make_unique<int>(1); }));
    CHECK(cache.contains(1));
    CHECK(cache.get_or_load(1, []() -> std::unique_ptr<int> { throw std::runtime_error("not called"); }));
    cache.set_capacity(0);
    CHECK_FALSE(cache.get_or_load(1, [] { return std::make_unique<int>(1); }));
}
