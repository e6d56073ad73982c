#include "muses/lru_cache.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/lru.hpp"

using muses::EvictCause;
using muses::LruCache;
using muses::PutResult;
using muses::ShardedLruCache;
using namespace muses::test;
using namespace std::chrono_literals;

// ---- against a simple model ----

namespace {
struct ConstantHash {
    std::size_t operator()(int) const { return 42; }
};
struct IdentityHash {
    std::size_t operator()(int key) const { return static_cast<std::size_t>(key) << 20U; }
};

/// What an LRU cache is, without a thought for speed.
struct Model {
    struct Entry {
        int key, value;
        std::size_t weight;
        std::int64_t born;
        std::uint64_t serial;
    };
    std::list<Entry> entries = {};  // most recently used first
    std::size_t max_entries, max_weight;
    std::int64_t ttl, now = 0;
    std::uint64_t puts = 0;
    std::vector<Gone<int, int>> gone = {};

    bool expired(const Entry& e) const { return ttl != 0 && now - e.born >= ttl; }
    std::list<Entry>::iterator find(int key) {
        return std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
    }
    void leave(std::list<Entry>::iterator at, EvictCause cause) {
        gone.push_back({at->key, at->value, cause});
        entries.erase(at);
    }
    std::list<Entry>::iterator find_visible(int key) {
        const auto at = find(key);
        if (at == entries.end() || !expired(*at)) return at;
        leave(at, EvictCause::Expired);
        return entries.end();
    }
    std::size_t weight() const {
        std::size_t sum = 0;
        for (const auto& e : entries) sum += e.weight;
        return sum;
    }
    std::list<Entry>::iterator oldest() {
        return std::min_element(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
            return std::pair(a.born, a.serial) < std::pair(b.born, b.serial);
        });
    }
    void evict_one() {
        const auto old = oldest();
        if (expired(*old))
            leave(old, EvictCause::Expired);
        else
            leave(std::prev(entries.end()), EvictCause::Capacity);
    }
    PutResult put(int key, int value, std::size_t w) {
        if (max_entries == 0 || w > max_weight) return PutResult::Refused;
        PutResult result = PutResult::Inserted;
        if (const auto at = find(key); at != entries.end()) {
            if (!expired(*at)) result = PutResult::Replaced;
            leave(at, result == PutResult::Replaced ? EvictCause::Replaced : EvictCause::Expired);
        }
        for (int i = 0; i < 16 && !entries.empty() && expired(*oldest()); ++i) leave(oldest(), EvictCause::Expired);
        while (entries.size() >= max_entries || weight() + w > max_weight) evict_one();
        entries.push_front({key, value, w, now, puts++});
        return result;
    }
    std::optional<int> get(int key) {
        const auto at = find_visible(key);
        if (at == entries.end()) return std::nullopt;
        entries.splice(entries.begin(), entries, at);
        return at->value;
    }
};

template <class Hash>
void compare_with_model(std::uint64_t seed, bool with_ttl) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    FakeClock clock;
    HookLog<int, int> log;
    const auto weigh = [](int, int value) { return static_cast<std::size_t>(value % 7); };
    Model model{.max_entries = static_cast<std::size_t>(1 + below(40)),
                .max_weight = static_cast<std::size_t>(5 + below(100)),
                .ttl = with_ttl ? 60 : 0};
    LruCache<int, int, Hash> cache({.max_entries = model.max_entries,
                                    .max_weight = model.max_weight,
                                    .weigher = weigh,
                                    .ttl = std::chrono::nanoseconds(model.ttl),
                                    .clock = clock.reader(),
                                    .on_evict = log.writer()});
    const int keys = 1 + below(80);
    for (int step = 0; step < 4000; ++step) {
        const int key = below(keys);
        const int value = below(1000);
        switch (below(20)) {
            default: REQUIRE(cache.put(key, value) == model.put(key, value, weigh(key, value))); break;
            case 5:
            case 6:
            case 7:
            case 8:
            case 9:
            case 10: REQUIRE(cache.get(key) == model.get(key)); break;
            case 11: {
                const auto at = model.find(key);
                const bool there = at != model.entries.end() && !model.expired(*at);
                REQUIRE(cache.contains(key) == there);
                REQUIRE(cache.peek(key) == (there ? std::optional(at->value) : std::nullopt));
                break;
            }
            case 12: {
                const auto at = model.find_visible(key);
                REQUIRE(cache.erase(key) == (at != model.entries.end()));
                if (at != model.entries.end()) model.leave(at, EvictCause::Erased);
                break;
            }
            case 13: {
                const bool there = model.find_visible(key) != model.entries.end();
                const bool inserted = !there && model.put(key, value, weigh(key, value)) != PutResult::Refused;
                REQUIRE(cache.try_emplace(key, value) == inserted);
                break;
            }
            case 14: {
                auto expected = model.get(key);
                if (!expected) {
                    model.put(key, value, weigh(key, value));
                    expected = value;
                }
                REQUIRE(cache.get_or_load(key, [&] { return value; }) == expected);
                break;
            }
            case 15:
                if (below(100) == 0) {
                    while (!model.entries.empty())
                        model.leave(model.entries.begin(),
                                    model.expired(model.entries.front()) ? EvictCause::Expired : EvictCause::Erased);
                    cache.clear();
                }
                break;
            case 16:
                if (below(20) == 0) {
                    model.max_entries = static_cast<std::size_t>(below(40));
                    while (model.entries.size() > model.max_entries) model.evict_one();
                    cache.set_capacity(model.max_entries);
                }
                break;
            case 17:
                model.now += below(with_ttl ? 30 : 2);
                if (with_ttl && below(8) == 0) model.now -= below(100);  // puts then come in out of the order of their times
                clock.ns = model.now;
                break;
        }
        REQUIRE(log.entries == model.gone);
        log.entries.clear();
        model.gone.clear();
        std::vector<std::pair<int, int>> visible;
        std::size_t weight = 0;
        for (const auto& e : model.entries) {
            if (model.expired(e)) continue;
            visible.emplace_back(e.key, e.value);
            weight += e.weight;
        }
        REQUIRE(cache.snapshot() == visible);
        REQUIRE(cache.size() == visible.size());
        REQUIRE(cache.weight() == weight);
    }
}
}  // namespace

TEST_CASE("lru_cache: behaves as a plain list does under random operations") {
    const std::uint64_t base = std::random_device{}();  // printed with every failure, by CAPTURE
    for (std::uint64_t round = 0; round < stress_rounds(std::uint64_t{6}); ++round) {
        compare_with_model<muses::detail::SeededHash<int>>(base + round, round % 2 == 0);
        compare_with_model<ConstantHash>(base + round + 1000, round % 2 == 1);
        compare_with_model<IdentityHash>(base + round + 2000, round % 2 == 0);
    }
}

// ---- shards ----

TEST_CASE("lru_cache: shard capacities add up to what was asked") {
    for (const std::size_t entries : {0U, 1U, 2U, 15U, 16U, 17U, 1000U, 1003U})
        for (const std::size_t shards : {1U, 2U, 3U, 16U, 64U}) {
            CAPTURE(entries);
            CAPTURE(shards);
            ShardedLruCache<int, int> cache(entries, shards);
            CHECK(cache.capacity() == entries);
            CHECK(cache.shard_count() == std::max<std::size_t>(1, std::min(entries, shards)));
            for (int i = 0; i < 5000; ++i) CHECK(cache.put(i, i) == (entries == 0 ? PutResult::Refused : PutResult::Inserted));
            CHECK(cache.size() == entries);
            cache.set_capacity(500);
            CHECK(cache.capacity() == 500);
            CHECK(cache.size() <= 500);
        }
    CHECK(ShardedLruCache<int, int>(100).shard_count() == 16);
    CHECK(ShardedLruCache<int, int>(SIZE_MAX).capacity() == SIZE_MAX);
    CHECK(ShardedLruCache<int, int>({.max_weight = 3}).shard_count() == 3);
}

TEST_CASE("lru_cache: an impossible number of shards is refused before anything is made") {
    CHECK_THROWS_AS((ShardedLruCache<int, int>(10, 0)), std::invalid_argument);
    CHECK_THROWS_AS((ShardedLruCache<int, int>(SIZE_MAX, SIZE_MAX)), std::invalid_argument);
    CHECK_THROWS_AS((ShardedLruCache<int, int>(10, 65537)), std::invalid_argument);
    CHECK_NOTHROW((ShardedLruCache<int, int>(SIZE_MAX, 65536)));
}

TEST_CASE("lru_cache: the sharded cache has the whole interface") {
    std::atomic<int> gone{0};
    ShardedLruCache<std::string, std::string> cache(
        {.max_entries = 64,
         .max_weight = 64 * 100,
         .weigher = [](const std::string& k, const std::string& v) { return k.size() + v.size(); },
         .ttl = 1h,
         .on_evict = [&](const std::string&, const std::string&, EvictCause) { ++gone; }},
        4);
    CHECK(cache.shard_count() == 4);
    CHECK(cache.put("a", "1") == PutResult::Inserted);
    CHECK(cache.put("a", "2") == PutResult::Replaced);
    CHECK(cache.put("heavy", std::string(2000, 'x')) == PutResult::Refused);  // over a shard's share
    CHECK(cache.get("a") == "2");
    CHECK(cache.peek(std::string_view("a")) == "2");
    CHECK(cache.contains("a"));
    CHECK(cache.try_emplace("b", 3U, 'b'));
    CHECK(cache.get_or_load("c", [](const std::string& key) { return key + key; }) == "cc");
    CHECK(cache.size() == 3);
    CHECK(cache.weight() == 2 + 4 + 3);
    CHECK(cache.snapshot().size() == 3);
    CHECK(cache.erase("b"));
    CHECK(cache.stats().loads == 1);
    CHECK(cache.stats().hits == 1);
    cache.clear();
    CHECK(cache.empty());
    CHECK(gone == 4);
}

TEST_CASE("lru_cache: keys spread evenly over shards whatever they look like") {
    for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{1} << 32U, std::uint64_t{1} << 20U, std::uint64_t{10}}) {
        CAPTURE(step);
        // 16 shards of 1000: were one of them favoured, it would evict while the sum stays below the capacity.
        ShardedLruCache<std::uint64_t, int> cache(16000);
        for (std::uint64_t i = 0; i < 12000; ++i) cache.put(i * step, 1);
        CHECK(cache.stats().evictions == 0);  // mean 750 in each, 9 standard deviations of room
    }
}

// ---- many threads ----

namespace {
template <class Cache>
void hammer(Cache& cache, std::atomic<std::int64_t>& left, int thread_count) {
    std::atomic<std::int64_t> came{0};
    std::vector<std::thread> threads;
    const int rounds = stress_rounds(3000);
    for (int t = 0; t < thread_count; ++t)
        threads.emplace_back([&, t] {
            std::mt19937 random(static_cast<unsigned>(t) + 1);
            for (int i = 0; i < rounds; ++i) {
                const int key = static_cast<int>(random() % 64);
                switch (random() % 8) {
                    case 0:
                    case 1:
                        cache.put(key, Counted(key));
                        ++came;
                        break;
                    case 2:
                        if (cache.try_emplace(key, key)) ++came;
                        break;
                    case 3: cache.erase(key); break;
                    case 4: {
                        const auto value = cache.get_or_load(key, [&] { return Counted(key); });
                        if (value.number != key) FAIL_CHECK("a wrong value");
                        break;
                    }
                    case 5:
                        if (const auto value = cache.peek(key); value && value->number != key) FAIL_CHECK("a wrong value");
                        break;
                    case 6:
                        if (random() % 64 == 0) cache.clear();
                        if (random() % 64 == 0) cache.set_capacity(8 + random() % 40);
                        if (random() % 64 == 0) (void)cache.snapshot();
                        break;
                    default:
                        if (const auto value = cache.get(key); value && value->number != key) FAIL_CHECK("a wrong value");
                }
            }
        });
    for (auto& thread : threads) thread.join();
    const auto stats = cache.stats();
    // Everything that came in has left or is still there.
    const auto loaded = static_cast<std::int64_t>(stats.loads - stats.discarded_loads);
    CHECK(came + loaded == left + static_cast<std::int64_t>(cache.size()) + static_cast<std::int64_t>(stats.refusals));
    CHECK(cache.size() <= cache.capacity());
    CHECK(Counted::live == static_cast<int>(cache.size()));
}
}  // namespace

TEST_CASE("lru_cache: many threads lose and double nothing") {
    Counted::copies_until_throw = -1;
    for (const int threads : {1, 2, 8}) {
        std::atomic<std::int64_t> left{0};
        const auto count = [&](int, const Counted&, EvictCause) { ++left; };
        {
            LruCache<int, Counted> cache({.max_entries = 32, .on_evict = count});
            hammer(cache, left, threads);
        }
        CHECK(Counted::live == 0);
        left = 0;
        {
            ShardedLruCache<int, Counted> cache({.max_entries = 32, .on_evict = count}, 4);
            hammer(cache, left, threads);
        }
        CHECK(Counted::live == 0);
    }
}

TEST_CASE("lru_cache: threads that expire and load the same few keys agree") {
    std::atomic<int> calls{0};
    LruCache<int, int> cache({.max_entries = 3, .ttl = 50us});
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < stress_rounds(2000); ++i) {
                const int key = i % 5;
                if (cache.get_or_load(key, [&] {
                        ++calls;
                        return key * 7;
                    }) != key * 7)
                    ++wrong;
            }
        });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(cache.stats().loads == static_cast<std::uint64_t>(calls.load()));
}
