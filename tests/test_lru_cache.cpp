#include "muses/lru_cache.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/lru.hpp"

using muses::EvictCause;
using muses::LruCache;
using muses::LruTtl;
using muses::PutResult;
using namespace muses::test;
using namespace std::chrono_literals;

// ---- order and outcomes ----

TEST_CASE("lru_cache: the entry that was used least recently goes first") {
    LruCache<std::string, int> cache(3);
    cache.put("a", 1);
    cache.put("b", 2);
    cache.put("c", 3);
    CHECK(cache.get("a") == 1);
    cache.put("d", 4);
    CHECK(keys_of(cache) == std::vector<std::string>{"d", "a", "c"});
    CHECK(cache.get("b") == std::nullopt);
    CHECK(cache.size() == 3);
}

TEST_CASE("lru_cache: peek and contains leave the order and the counters alone") {
    LruCache<int, int> cache(2);
    cache.put(1, 10);
    cache.put(2, 20);
    const auto before = cache.stats();
    CHECK(cache.peek(1) == 10);
    CHECK(cache.peek(3) == std::nullopt);
    CHECK(cache.contains(1));
    CHECK_FALSE(cache.contains(3));
    CHECK(cache.stats() == before);
    CHECK(keys_of(cache) == std::vector<int>{2, 1});
    cache.put(3, 30);
    CHECK_FALSE(cache.contains(1));
}

TEST_CASE("lru_cache: put says whether it inserted or replaced and makes the entry the most recent one") {
    LruCache<int, std::string> cache(3);
    CHECK(cache.put(1, "one") == PutResult::Inserted);
    CHECK(cache.put(2, "two") == PutResult::Inserted);
    CHECK(cache.put(1, "uno") == PutResult::Replaced);
    CHECK(cache.get(1) == "uno");
    CHECK(cache.size() == 2);
    CHECK(keys_of(cache) == std::vector<int>{1, 2});
}

TEST_CASE("lru_cache: capacity zero keeps nothing") {
    HookLog<int, int> log;
    LruCache<int, int> cache({.max_entries = 0, .on_evict = log.writer()});
    CHECK(cache.put(1, 1) == PutResult::Refused);
    CHECK_FALSE(cache.try_emplace(1, 1));
    CHECK(cache.get_or_load(1, [] { return 5; }) == 5);
    CHECK(cache.get(1) == std::nullopt);
    CHECK(cache.size() == 0);
    CHECK(cache.empty());
    CHECK(cache.stats().refusals == 3);
    CHECK(cache.stats().evictions == 0);
    CHECK(log.entries.empty());
}

TEST_CASE("lru_cache: capacity one holds the newest entry and never evicts the one that is being put") {
    HookLog<int, int> log;
    LruCache<int, int> cache({.max_entries = 1, .on_evict = log.writer()});
    for (int i = 0; i < 100; ++i) {
        CHECK(cache.put(i, i) == PutResult::Inserted);
        CHECK(cache.get(i) == i);
        CHECK(cache.size() == 1);
    }
    CHECK(log.entries.size() == 99);
    CHECK(cache.stats().evictions == 99);
    CHECK(cache.put(99, 7) == PutResult::Replaced);
    CHECK(cache.get(99) == 7);
}

TEST_CASE("lru_cache: capacity SIZE_MAX costs nothing until it is used") {
    LruCache<int, int> cache(std::numeric_limits<std::size_t>::max());
    for (int i = 0; i < 1000; ++i) cache.put(i, i);
    CHECK(cache.size() == 1000);
    CHECK(cache.capacity() == std::numeric_limits<std::size_t>::max());
    CHECK(cache.stats().evictions == 0);
    CHECK(cache.get(0) == 0);
}

TEST_CASE("lru_cache: try_emplace inserts only what is not there and keeps the order otherwise") {
    LruCache<int, std::string> cache(2);
    CHECK(cache.try_emplace(1, 3U, 'x'));
    CHECK(cache.get(1) == "xxx");
    CHECK(cache.try_emplace(2));
    CHECK(cache.get(2) == "");
    CHECK_FALSE(cache.try_emplace(1, "other"));
    CHECK(cache.peek(1) == "xxx");
    CHECK(keys_of(cache) == std::vector<int>{2, 1});
}

TEST_CASE("lru_cache: a failed try_emplace leaves its arguments untouched") {
    LruCache<std::string, std::unique_ptr<int>> cache(4);
    cache.put("key", std::make_unique<int>(1));
    std::string key = "key";
    auto value = std::make_unique<int>(2);
    CHECK_FALSE(cache.try_emplace(std::move(key), std::move(value)));
    CHECK(key == "key");
    REQUIRE(value != nullptr);
    CHECK(*value == 2);

    cache.set_capacity(0);
    CHECK_FALSE(cache.try_emplace(std::move(key), std::move(value)));
    CHECK(key == "key");
    CHECK(value != nullptr);
}

TEST_CASE("lru_cache: try_emplace that loses a race or is too heavy gives key and value back") {
    LruCache<std::string, std::unique_ptr<int>>* self = nullptr;
    int mode = 0;  // what the weigher does when it is asked about 2
    LruCache<std::string, std::unique_ptr<int>> cache({.max_weight = 10, .weigher = [&](const std::string& key, const auto& value) {
                                                           if (*value != 2) return std::size_t{1};
                                                           if (mode == 0) self->put(key, std::make_unique<int>(1));
                                                           if (mode == 2) throw std::runtime_error("weigher");
                                                           return std::size_t{mode == 1 ? 11U : 1U};
                                                       }});
    self = &cache;
    const std::string text(40, 'k');
    std::string key = text;
    auto value = std::make_unique<int>(2);
    CHECK_FALSE(cache.try_emplace(std::move(key), std::move(value)));  // another entry of this key came while it was weighed
    CHECK(key == text);
    REQUIRE(value != nullptr);
    CHECK(cache.erase(text));

    mode = 1;
    CHECK_FALSE(cache.try_emplace(std::move(key), std::move(value)));
    CHECK(key == text);
    REQUIRE(value != nullptr);

    mode = 2;
    CHECK_THROWS_AS(cache.try_emplace(std::move(key), std::move(value)), std::runtime_error);
    CHECK(key == text);
    REQUIRE(value != nullptr);
    CHECK(cache.size() == 0);

    mode = 3;
    CHECK(cache.try_emplace(std::move(key), std::move(value)));
    CHECK(value == nullptr);
}

TEST_CASE("lru_cache: erase and clear") {
    LruCache<int, int> cache(10);
    for (int i = 0; i < 5; ++i) cache.put(i, i);
    CHECK(cache.erase(3));
    CHECK_FALSE(cache.erase(3));
    CHECK_FALSE(cache.erase(77));
    CHECK(keys_of(cache) == std::vector<int>{4, 2, 1, 0});
    cache.clear();
    CHECK(cache.size() == 0);
    CHECK(cache.weight() == 0);
    CHECK_FALSE(cache.contains(4));
    cache.clear();
    CHECK(cache.put(4, 4) == PutResult::Inserted);
}

TEST_CASE("lru_cache: set_capacity evicts the least recently used down to the new size and counts them") {
    HookLog<int, int> log;
    LruCache<int, int> cache({.max_entries = 10, .on_evict = log.writer()});
    for (int i = 0; i < 10; ++i) cache.put(i, i);
    cache.get(0);
    cache.set_capacity(3);
    CHECK(cache.capacity() == 3);
    CHECK(keys_of(cache) == std::vector<int>{0, 9, 8});
    CHECK(cache.stats().evictions == 7);
    REQUIRE(log.entries.size() == 7);
    CHECK(log.entries.front() == Gone<int, int>{1, 1, EvictCause::Capacity});
    cache.set_capacity(4);
    cache.put(20, 20);
    CHECK(cache.size() == 4);
    cache.set_capacity(0);
    CHECK(cache.empty());
    CHECK(cache.put(1, 1) == PutResult::Refused);
}

TEST_CASE("lru_cache: stats count hits and misses of get only and replaced entries are no evictions") {
    LruCache<int, int> cache(2);
    cache.get(1);
    cache.put(1, 1);
    cache.put(1, 2);
    cache.put(1, 3);
    cache.get(1);
    cache.get(1);
    const auto stats = cache.stats();
    CHECK(stats.hits == 2);
    CHECK(stats.misses == 1);
    CHECK(stats.evictions == 0);
    CHECK(stats.expirations == 0);
}

// ---- weights ----

TEST_CASE("lru_cache: the weight stays within its limit and the newest entry stays in") {
    LruCache<int, std::string> cache({.max_weight = 10, .weigher = [](int, const std::string& s) { return s.size(); }});
    cache.put(1, "aaaa");
    cache.put(2, "bbbb");
    CHECK(cache.weight() == 8);
    cache.put(3, "ccc");
    CHECK(keys_of(cache) == std::vector<int>{3, 2});
    CHECK(cache.weight() == 7);
    CHECK(cache.put(4, "dddddddddd") == PutResult::Inserted);  // exactly the limit: all others go
    CHECK(keys_of(cache) == std::vector<int>{4});
    CHECK(cache.put(5, "") == PutResult::Inserted);  // weighs nothing
    CHECK(cache.size() == 2);
}

TEST_CASE("lru_cache: what is heavier than all the cache may weigh is refused and changes nothing") {
    HookLog<int, std::string> log;
    LruCache<int, std::string> cache(
        {.max_weight = 10, .weigher = [](int, const std::string& s) { return s.size(); }, .on_evict = log.writer()});
    cache.put(1, "one");
    cache.put(2, "two");
    CHECK(cache.put(1, std::string(11, 'x')) == PutResult::Refused);
    CHECK(cache.peek(1) == "one");
    CHECK(keys_of(cache) == std::vector<int>{2, 1});
    CHECK(log.entries.empty());
    CHECK(cache.get_or_load(3, [] { return std::string(11, 'y'); }).size() == 11);
    CHECK_FALSE(cache.contains(3));
    CHECK(cache.stats().refusals == 2);
}

TEST_CASE("lru_cache: replacing by a heavier value evicts others and not the entry itself") {
    LruCache<int, int> cache({.max_weight = 10, .weigher = [](int, int v) { return static_cast<std::size_t>(v); }});
    cache.put(1, 3);
    cache.put(2, 3);
    cache.put(3, 3);
    CHECK(cache.put(1, 7) == PutResult::Replaced);
    CHECK(keys_of(cache) == std::vector<int>{1, 3});
    CHECK(cache.weight() == 10);
    CHECK(cache.put(1, 1) == PutResult::Replaced);
    CHECK(cache.weight() == 4);
}

TEST_CASE("lru_cache: weights near SIZE_MAX do not wrap around") {
    constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();
    LruCache<int, std::size_t> cache({.weigher = [](int, std::size_t v) { return v; }});
    CHECK(cache.put(1, huge) == PutResult::Inserted);
    CHECK(cache.put(2, huge) == PutResult::Inserted);
    CHECK(cache.size() == 1);
    CHECK(cache.weight() == huge);
    CHECK(cache.put(3, 1) == PutResult::Inserted);
    CHECK(keys_of(cache) == std::vector<int>{3});
    LruCache<int, std::size_t> none({.max_weight = 0, .weigher = [](int, std::size_t v) { return v; }});
    CHECK(none.put(1, 1) == PutResult::Refused);
    CHECK(none.put(1, 0) == PutResult::Inserted);
}

// ---- time to live ----

TEST_CASE("lru_cache: an entry is visible while its age is below the ttl") {
    FakeClock clock;
    HookLog<int, int> log;
    LruCache<int, int> cache({.ttl = 10ns, .clock = clock.reader(), .on_evict = log.writer()});
    cache.put(1, 100);
    clock.advance(9ns);
    CHECK(cache.get(1) == 100);  // reading does not prolong
    CHECK(cache.contains(1));
    CHECK(cache.size() == 1);
    clock.advance(1ns);
    CHECK_FALSE(cache.contains(1));
    CHECK(cache.peek(1) == std::nullopt);
    CHECK(cache.size() == 0);
    CHECK(cache.weight() == 0);
    CHECK(cache.snapshot().empty());
    CHECK(log.entries.empty());  // const functions remove nothing
    CHECK(cache.get(1) == std::nullopt);
    CHECK(log.entries == std::vector<Gone<int, int>>{{1, 100, EvictCause::Expired}});
    CHECK(cache.stats().expirations == 1);
    CHECK(cache.stats().evictions == 0);
    CHECK(cache.stats().misses == 1);
}

TEST_CASE("lru_cache: a put starts the life of an entry anew and over an expired one it inserts") {
    FakeClock clock;
    HookLog<int, int> log;
    LruCache<int, int> cache({.ttl = 10ns, .clock = clock.reader(), .on_evict = log.writer()});
    cache.put(1, 1);
    clock.advance(6ns);
    CHECK(cache.put(1, 2) == PutResult::Replaced);
    clock.advance(6ns);
    CHECK(cache.get(1) == 2);
    clock.advance(6ns);
    CHECK(cache.put(1, 3) == PutResult::Inserted);
    CHECK(log.entries == std::vector<Gone<int, int>>{{1, 1, EvictCause::Replaced}, {1, 2, EvictCause::Expired}});
    clock.advance(10ns);
    CHECK(cache.try_emplace(1, 4));
    clock.advance(10ns);
    CHECK_FALSE(cache.erase(1));
    CHECK(log.entries.back() == Gone<int, int>{1, 4, EvictCause::Expired});
}

TEST_CASE("lru_cache: expired entries go before live ones") {
    FakeClock clock;
    HookLog<int, int> log;
    LruCache<int, int> cache({.max_entries = 3, .ttl = 10ns, .clock = clock.reader(), .on_evict = log.writer()});
    cache.put(1, 1);
    clock.advance(5ns);
    cache.put(2, 2);
    cache.put(3, 3);
    cache.get(1);  // the most recently used one, and the first to expire
    clock.advance(5ns);
    cache.put(4, 4);
    CHECK(log.entries == std::vector<Gone<int, int>>{{1, 1, EvictCause::Expired}});
    CHECK(cache.size() == 3);
    // Also when the live one was used longest ago.
    cache.get(2);
    cache.get(3);
    clock.advance(5ns);
    cache.set_capacity(1);
    CHECK(keys_of(cache) == std::vector<int>{4});
    CHECK(log.entries.back() == Gone<int, int>{3, 3, EvictCause::Expired});
    cache.set_capacity(0);
    CHECK(log.entries.back() == Gone<int, int>{4, 4, EvictCause::Capacity});
}

TEST_CASE("lru_cache: a put that read the clock early and comes in late expires when its time has come") {
    FakeClock clock;
    HookLog<int, int> log;
    LruCache<int, int>* self = nullptr;
    bool overtake = false;
    LruCache<int, int> cache({.max_entries = 2,
                              .ttl = 100ns,
                              .clock =
                                  [&] {
                                      const Time now = clock.reader()();
                                      if (std::exchange(overtake, false)) {  // as another thread may, before this one has the lock
                                          clock.advance(90ns);
                                          self->put(2, 2);
                                      }
                                      return now;
                                  },
                              .on_evict = log.writer()});
    self = &cache;
    overtake = true;
    cache.put(1, 1);      // at 0, and the entry of 90 is there already
    clock.advance(30ns);  // 120
    CHECK_FALSE(cache.contains(1));
    CHECK(cache.contains(2));
    CHECK(cache.size() == 1);
    CHECK(cache.weight() == 1);
    CHECK(keys_of(cache) == std::vector<int>{2});
    cache.put(3, 3);
    CHECK(log.entries == std::vector<Gone<int, int>>{{1, 1, EvictCause::Expired}});
    CHECK(keys_of(cache) == std::vector<int>{3, 2});
    clock.advance(69ns);  // 189
    CHECK(cache.contains(2));
    clock.advance(1ns);
    CHECK_FALSE(cache.contains(2));
}

TEST_CASE("lru_cache: insertions clear expired entries away and clear tells the hook the truth about them") {
    FakeClock clock;
    HookLog<int, int> log;
    LruCache<int, int> cache({.ttl = 10ns, .clock = clock.reader(), .on_evict = log.writer()});
    for (int i = 0; i < 100; ++i) cache.put(i, i);
    clock.advance(10ns);
    for (int i = 0; i < 100; ++i) cache.put(1000 + i, i);
    CHECK(log.entries.size() == 100);
    CHECK(cache.size() == 100);
    clock.advance(10ns);
    cache.put(5000, 1);
    log.entries.clear();
    cache.clear();
    std::map<EvictCause, int> causes;
    for (const auto& gone : log.entries) ++causes[gone.cause];
    CHECK(causes[EvictCause::Erased] == 1);
    CHECK(causes[EvictCause::Expired] + 1 == static_cast<int>(log.entries.size()));
}

TEST_CASE("lru_cache: any duration serves as a ttl") {
    const auto ns = [](LruTtl ttl) { return ttl.value(); };
    CHECK(ns({}) == 0ns);
    CHECK(ns(5s) == 5s);
    CHECK(ns(0s) == 0ns);
    CHECK(ns(-1s) == 0ns);
    CHECK(ns(std::chrono::hours::min()) == 0ns);
    CHECK(ns(std::chrono::hours::max()) == 0ns);
    CHECK(ns(std::chrono::nanoseconds::max()) == 0ns);
    CHECK(ns(std::chrono::years::max()) == 0ns);
    CHECK(ns(std::chrono::duration<double>(std::nan(""))) == 0ns);
    CHECK(ns(std::chrono::duration<double>(HUGE_VAL)) == 0ns);
    CHECK(ns(std::chrono::duration<double>(0.5)) == 500ms);
    CHECK(ns(std::chrono::duration<double>(1e-12)) == 1ns);  // below a tick, yet not "for ever"
    CHECK(ns(std::chrono::duration<std::int64_t, std::pico>(1)) == 1ns);
    CHECK(ns(364 * 24h) == 364 * 24h);
}

TEST_CASE("lru_cache: extreme and backward times do no harm") {
    FakeClock clock;
    LruCache<int, int> cache({.ttl = 10ns, .clock = clock.reader()});
    clock.set(Time::min());
    cache.put(1, 1);
    CHECK(cache.contains(1));
    clock.set(Time::max());
    CHECK_FALSE(cache.contains(1));
    cache.put(2, 2);
    CHECK(cache.contains(2));
    clock.set(Time::min());
    CHECK(cache.contains(2));  // not older than its put
    cache.put(3, 3);
    CHECK(cache.get(3) == 3);
    cache.clear();
    CHECK(cache.size() == 0);
}

TEST_CASE("lru_cache: without a ttl the clock is not read and without a clock the steady one serves") {
    LruCache<int, int> cache({.clock = []() -> Time { throw std::runtime_error("asked"); }});
    cache.put(1, 1);
    CHECK(cache.get(1) == 1);
    LruCache<int, int> real({.ttl = 1h});
    real.put(1, 1);
    CHECK(real.get(1) == 1);
    LruCache<int, int> brief({.ttl = 1ns});
    brief.put(1, 1);
    CHECK(eventually([&] { return !brief.contains(1); }));
}

// ---- the hook ----

TEST_CASE("lru_cache: the hook learns key and value and cause of everything that leaves in the order of leaving") {
    HookLog<int, std::string> log;
    {
        LruCache<int, std::string> cache({.max_entries = 2, .on_evict = log.writer()});
        cache.put(1, "a");
        cache.put(1, "b");
        cache.put(2, "c");
        cache.put(3, "d");
        cache.erase(2);
        cache.put(4, "e");
        cache.clear();
        cache.put(5, "f");
    }
    using G = Gone<int, std::string>;
    CHECK(log.entries == std::vector<G>{G{1, "a", EvictCause::Replaced}, G{1, "b", EvictCause::Capacity},
                                        G{2, "c", EvictCause::Erased}, G{4, "e", EvictCause::Erased},
                                        G{3, "d", EvictCause::Erased}});  // none for the destructor
}

TEST_CASE("lru_cache: what a hook throws is swallowed and counted") {
    LruCache<int, int> cache({.max_entries = 1, .on_evict = [](int, int, EvictCause) { throw std::runtime_error("hook"); }});
    CHECK(cache.put(1, 1) == PutResult::Inserted);
    CHECK(cache.put(2, 2) == PutResult::Inserted);
    CHECK(cache.put(2, 3) == PutResult::Replaced);
    CHECK(cache.erase(2));
    CHECK(cache.stats().hook_failures == 3);
    CHECK(cache.size() == 0);
}

TEST_CASE("lru_cache: a hook may use the cache and move the value out") {
    LruCache<int, std::unique_ptr<int>>* self = nullptr;
    std::vector<std::unique_ptr<int>> kept;
    LruCache<int, std::unique_ptr<int>> cache({.max_entries = 2, .on_evict = [&](int key, std::unique_ptr<int>& value, EvictCause) {
                                                   kept.push_back(std::move(value));
                                                   self->erase(key + 1000);
                                               }});
    self = &cache;
    for (int i = 0; i < 5; ++i) cache.put(i, std::make_unique<int>(i));
    REQUIRE(kept.size() == 3);
    CHECK(*kept[2] == 2);
    CHECK(cache.size() == 2);
}

// ---- keys and values of all kinds ----

namespace {
struct alignas(128) OverAligned {
    int number;
    explicit OverAligned(int n) : number(n) {}
    [[nodiscard]] bool aligned() const { return reinterpret_cast<std::uintptr_t>(this) % 128 == 0; }
};
struct ThrowingMove {
    int number = 0;
    explicit ThrowingMove(int n) : number(n) {}
    ThrowingMove(const ThrowingMove&) = default;
    ThrowingMove(ThrowingMove&& o) noexcept(false) : number(o.number) {}
    ThrowingMove& operator=(const ThrowingMove&) = default;
    ~ThrowingMove() = default;
};
struct MoveOnlyKey {
    std::unique_ptr<int> id;
    bool operator==(const MoveOnlyKey& o) const { return *id == *o.id; }
};
struct MoveOnlyKeyHash {
    std::size_t operator()(const MoveOnlyKey& k) const { return static_cast<std::size_t>(*k.id); }
};

/// Transparent for int, and counts the keys that are made.
struct FatKey {
    static inline int made = 0;
    int id;
    explicit FatKey(int i) : id(i) { ++made; }
    FatKey(const FatKey& o) : id(o.id) { ++made; }
    FatKey& operator=(const FatKey&) = default;
};
struct FatHash {
    using is_transparent = void;
    std::size_t operator()(const FatKey& k) const { return static_cast<std::size_t>(k.id); }
    std::size_t operator()(int id) const { return static_cast<std::size_t>(id); }
};
struct FatEq {
    using is_transparent = void;
    bool operator()(const FatKey& a, const FatKey& b) const { return a.id == b.id; }
    bool operator()(const FatKey& a, int b) const { return a.id == b; }
};
enum class Colour { Red, Green };
struct Unrelated {};

template <class Cache, class K>
concept CanLookUp = requires(Cache& cache, const K& key) { cache.contains(key); };
static_assert(CanLookUp<LruCache<std::string, int>, std::string_view>);
static_assert(CanLookUp<LruCache<std::string, int>, char[4]>);
static_assert(CanLookUp<LruCache<long, int>, int>);
static_assert(!CanLookUp<LruCache<std::string, int>, Unrelated>);
static_assert(!CanLookUp<LruCache<int, int>, std::string>);
static_assert(!std::is_copy_constructible_v<LruCache<int, int>>);
static_assert(!std::is_convertible_v<int, LruCache<int, int>>);
}  // namespace

TEST_CASE("lru_cache: move-only over-aligned and throwing-move types are kept") {
    LruCache<MoveOnlyKey, std::unique_ptr<int>, MoveOnlyKeyHash> move_only(2);
    for (int i = 0; i < 4; ++i) move_only.put({std::make_unique<int>(i)}, std::make_unique<int>(i));
    CHECK(move_only.size() == 2);
    CHECK(move_only.contains({std::make_unique<int>(3)}));
    CHECK(move_only.erase(MoveOnlyKey{std::make_unique<int>(2)}));
    CHECK(move_only.try_emplace(MoveOnlyKey{std::make_unique<int>(5)}, nullptr));

    bool aligned = true;
    LruCache<int, OverAligned> over(
        {.max_entries = 8, .on_evict = [&](int, OverAligned& v, EvictCause) { aligned = aligned && v.aligned(); }});
    for (int i = 0; i < 64; ++i) over.try_emplace(i, i);
    over.clear();
    CHECK(aligned);

    LruCache<int, ThrowingMove> moves(2);
    moves.put(1, ThrowingMove(1));
    CHECK(moves.get(1)->number == 1);
    LruCache<Colour, int> colours(2);
    colours.put(Colour::Green, 1);
    CHECK(colours.contains(Colour::Green));
    CHECK_FALSE(colours.contains(Colour::Red));
}

TEST_CASE("lru_cache: heterogeneous lookup makes no key") {
    LruCache<FatKey, int, FatHash, FatEq> cache(4);
    cache.put(FatKey(1), 10);
    FatKey::made = 0;
    CHECK(cache.get(1) == 10);
    CHECK(cache.peek(1) == 10);
    CHECK(cache.contains(1));
    CHECK_FALSE(cache.contains(2));
    CHECK(cache.get_or_load(1, [] { return 0; }) == 10);
    CHECK_FALSE(cache.try_emplace(1, 5));
    CHECK(cache.erase(1));
    CHECK(FatKey::made == 0);
    CHECK(cache.try_emplace(7, 70));
    CHECK(cache.get_or_load(8, [] { return 80; }) == 80);
    CHECK(cache.get(7) == 70);
}

TEST_CASE("lru_cache: text keys are found by literals and views") {
    LruCache<std::string, int> cache(4);
    cache.put("a long enough key to live on the heap", 1);
    const std::string text = "..a long enough key to live on the heap..";
    CHECK(cache.get(std::string_view(text).substr(2, text.size() - 4)) == 1);
    CHECK(cache.get("a long enough key to live on the heap") == 1);
    CHECK(cache.get(std::string("a long enough key to live on the heap")) == 1);
    const char* pointer = "a long enough key to live on the heap";
    CHECK(cache.erase(pointer));
}

TEST_CASE("lru_cache: every object that came in is destroyed once") {
    Counted::copies_until_throw = -1;
    REQUIRE(Counted::live == 0);
    {
        LruCache<Counted, Counted, CountedHash> cache(10);
        for (int i = 0; i < 100; ++i) {
            cache.put(Counted(i % 17), Counted(i));
            cache.try_emplace(Counted(i % 13), i);
            (void)cache.get(Counted(i % 7));
            (void)cache.get_or_load(Counted(i % 19), [&] { return Counted(i); });
            if (i % 5 == 0) cache.erase(Counted(i % 11));
        }
        CHECK(cache.size() <= 10);
        CHECK(Counted::live == static_cast<int>(2 * cache.size()));
        cache.clear();
        CHECK(Counted::live == 0);
        cache.put(Counted(1), Counted(1));
    }
    CHECK(Counted::live == 0);
}
