#include "muses/lru_cache.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/failing_new.hpp"
#include "tests/support/lru.hpp"

using muses::EvictCause;
using muses::LruCache;
using muses::PutResult;
using namespace muses::test;
using namespace std::chrono_literals;

// ---- no user code under the lock ----

namespace {
struct Watched {  // calls `probe` from its constructor and destructor
    static inline std::function<void(const char*)> probe = {};
    int number = 0;
    explicit Watched(int n) : number(n) { call("constructor"); }
    Watched(const Watched& o) = default;  // copies out may run under the lock
    Watched& operator=(const Watched&) = default;
    ~Watched() { call("destructor"); }
    static void call(const char* where) {
        if (probe) probe(where);
    }
};
struct WatchedHash {
    std::size_t operator()(int key) const {
        Watched::call("hash");
        return static_cast<std::size_t>(key);
    }
};
}  // namespace

TEST_CASE("lru_cache: hash weigher clock hook loader constructor and destructor run without the lock") {
    using Cache = LruCache<int, Watched, WatchedHash>;
    const Cache* self = nullptr;
    std::map<std::string, int> seen;
    int blocked = 0;
    LockProbe probe([&] { (void)self->capacity(); });
    {
        Cache cache({.max_entries = 2,
                     .weigher =
                         [](int, const Watched&) {
                             Watched::call("weigher");
                             return std::size_t{1};
                         },
                     .ttl = 1h,
                     .clock =
                         [] {
                             Watched::call("clock");
                             return Time();
                         },
                     .on_evict = [](int, const Watched&, EvictCause) { Watched::call("hook"); }});
        self = &cache;
        Watched::probe = [&](const char* where) {
            ++seen[where];
            if (!probe.lock_is_free()) {
                ++blocked;
                MESSAGE("under the lock: ", where);
            }
        };
        cache.put(1, Watched(1));
        cache.put(1, Watched(2));
        CHECK(cache.try_emplace(2, 3));
        cache.put(3, Watched(4));
        (void)cache.get(3);
        (void)cache.peek(3);
        CHECK(cache.contains(3));
        (void)cache.snapshot();
        (void)cache.get_or_load(4, [] {
            Watched::call("loader");
            return Watched(5);
        });
        cache.set_capacity(1);
        cache.erase(4);
        cache.put(5, Watched(6));
        cache.clear();
        Watched::probe = nullptr;
    }
    CHECK(blocked == 0);
    for (const char* where : {"hash", "weigher", "clock", "hook", "loader", "constructor", "destructor"}) CHECK(seen[where] > 0);
}

// ---- exceptions ----

namespace {
struct Fuse {  // throws at the n-th use from now on
    static inline int left = -1;
    static void burn() {
        if (left >= 0 && left-- == 0) throw std::runtime_error("fuse");
    }
};
struct FuseHash {
    std::size_t operator()(int key) const {
        Fuse::burn();
        return static_cast<std::size_t>(key % 2);  // collisions, so that Eq has work
    }
};
struct FuseEq {
    bool operator()(int a, int b) const {
        Fuse::burn();
        return a == b;
    }
};
struct FuseValue {
    int number;
    FuseValue(int n) : number(n) { Fuse::burn(); }
    FuseValue(const FuseValue& o) : number(o.number) { Fuse::burn(); }
    FuseValue& operator=(const FuseValue&) = default;
    bool operator==(const FuseValue&) const = default;
};

/// List and map agree: every listed key is found, with the listed value, and nothing else is.
template <class Cache>
void check_in_step(const Cache& cache) {
    const auto all = cache.snapshot();
    REQUIRE(all.size() == cache.size());
    std::set<int> keys;
    for (const auto& [key, value] : all) {
        REQUIRE(keys.insert(key).second);
        REQUIRE(cache.peek(key) == value);
    }
    for (int key = -2; key < 20; ++key) REQUIRE(cache.contains(key) == keys.contains(key));
}
}  // namespace

TEST_CASE("lru_cache: a throw from any copy or hash or comparison or weigher or clock changes nothing and the next call works") {
    // Every operation is run with the fuse at the first, second, ... use until it gets through.
    const std::vector<std::function<void(LruCache<int, FuseValue, FuseHash, FuseEq>&)>> operations = {
        [](auto& cache) { cache.put(1, FuseValue(100)); },                  // replaces
        [](auto& cache) { cache.put(9, FuseValue(100)); },                  // inserts and evicts
        [](auto& cache) { cache.try_emplace(9, 100); },                     // the same
        [](auto& cache) { cache.try_emplace(2, 100); },                     // is there
        [](auto& cache) { cache.erase(1); },                                //
        [](auto& cache) { (void)cache.get(0); },                            // hit: moves to the front
        [](auto& cache) { (void)cache.get(8); },                            // miss
        [](auto& cache) { (void)cache.peek(1); },                           //
        [](auto& cache) { (void)cache.contains(1); },                       //
        [](auto& cache) { (void)cache.snapshot(); },                        //
        [](auto& cache) { (void)cache.get_or_load(9, [] { return 5; }); },  // loads and evicts
        [](auto& cache) { (void)cache.get_or_load(1, [] { return 5; }); },  // hit
        [](auto& cache) { cache.clear(); },                                 //
        [](auto& cache) { cache.set_capacity(2); },                         //
    };
    constexpr std::size_t kLoads = 10;
    constexpr std::size_t kLoadHits = 11;
    for (std::size_t op = 0; op < operations.size(); ++op) {
        CAPTURE(op);
        for (int fuse = 0;; ++fuse) {
            REQUIRE(fuse < 100);
            LruCache<int, FuseValue, FuseHash, FuseEq> cache({.max_entries = 5,
                                                              .weigher =
                                                                  [](int, const FuseValue&) {
                                                                      Fuse::burn();
                                                                      return std::size_t{1};
                                                                  },
                                                              .ttl = 1h,
                                                              .clock =
                                                                  [] {
                                                                      Fuse::burn();
                                                                      return Time();
                                                                  }});
            for (int i = 0; i < 5; ++i) cache.put(i, FuseValue(i));
            const auto before = cache.snapshot();
            REQUIRE(before.size() == 5);
            bool threw = false;
            Fuse::left = fuse;
            try {
                operations[op](cache);
            } catch (const std::runtime_error&) {
                threw = true;
            }
            const bool through = Fuse::left >= 0;
            Fuse::left = -1;
            check_in_step(cache);
            // get_or_load may have kept or moved an entry before the copy for its caller throws.
            if (threw && op != kLoads && op != kLoadHits) CHECK(cache.snapshot() == before);
            CHECK(cache.put(15, FuseValue(15)) == PutResult::Inserted);
            CHECK(cache.get(15) == FuseValue(15));
            check_in_step(cache);
            if (through) break;
            CHECK(threw);
        }
    }
}

namespace {
struct ThrowingCopy {  // its copy throws, its move does not
    int id = 1;
    ThrowingCopy() = default;
    ThrowingCopy(const ThrowingCopy&) { throw std::runtime_error("copy"); }
    ThrowingCopy(ThrowingCopy&&) noexcept = default;
    ThrowingCopy& operator=(ThrowingCopy&&) noexcept = default;
    bool operator==(const ThrowingCopy&) const = default;
};
struct ThrowingCopyHash {
    std::size_t operator()(const ThrowingCopy& key) const { return static_cast<std::size_t>(key.id); }
};
struct SlowKey {  // can be moved, but the compiler does not know that it will succeed
    std::string text;
    explicit SlowKey(std::string t) : text(std::move(t)) {}
    SlowKey(SlowKey&& o) noexcept(false) : text(std::move(o.text)) {}
    SlowKey& operator=(SlowKey&&) noexcept = default;
    bool operator==(const SlowKey&) const = default;
};
struct SlowKeyHash {
    std::size_t operator()(const SlowKey& key) const { return std::hash<std::string>()(key.text); }
};
struct Unbuildable {
    explicit Unbuildable(int) { throw std::runtime_error("value"); }
};
}  // namespace

TEST_CASE("lru_cache: a key that cannot be copied does not cost the value") {
    LruCache<ThrowingCopy, std::unique_ptr<int>, ThrowingCopyHash> cache(4);
    const ThrowingCopy key;
    auto value = std::make_unique<int>(7);
    CHECK_THROWS_AS(cache.try_emplace(key, std::move(value)), std::runtime_error);
    REQUIRE(value != nullptr);
    CHECK_THROWS_AS(cache.put(key, std::move(value)), std::runtime_error);
    REQUIRE(value != nullptr);
    CHECK(cache.empty());
    CHECK(cache.put(ThrowingCopy(), std::move(value)) == PutResult::Inserted);
    CHECK(value == nullptr);
}

TEST_CASE("lru_cache: a value that cannot be built does not cost the key") {
    const std::string text(40, 'k');
    LruCache<std::string, Unbuildable> cache(4);
    std::string key = text;
    CHECK_THROWS_AS(cache.try_emplace(std::move(key), 1), std::runtime_error);
    CHECK(key == text);
    LruCache<SlowKey, Unbuildable, SlowKeyHash> slow(4);
    SlowKey slow_key(text);
    CHECK_THROWS_AS(slow.try_emplace(std::move(slow_key), 1), std::runtime_error);
    CHECK(slow_key.text == text);
    LruCache<std::string, ThrowingCopy> copies(4);
    const ThrowingCopy value;
    CHECK_THROWS_AS(copies.put(std::move(key), value), std::runtime_error);
    CHECK(key == text);
    CHECK(cache.empty());
}

TEST_CASE("lru_cache: a put that throws or is refused leaves its arguments untouched") {
    const std::string text(40, 'k');
    bool bad = true;
    LruCache<std::string, std::unique_ptr<int>> cache({.max_weight = 10, .weigher = [&](const std::string&, const auto& value) {
                                                           if (bad && *value == 2) throw std::runtime_error("weigher");
                                                           return static_cast<std::size_t>(*value == 3 ? 11 : 1);
                                                       }});
    std::string key = text;
    auto value = std::make_unique<int>(2);
    CHECK_THROWS_AS(cache.put(std::move(key), std::move(value)), std::runtime_error);
    CHECK(key == text);
    REQUIRE(value != nullptr);
    *value = 3;
    CHECK(cache.put(std::move(key), std::move(value)) == PutResult::Refused);
    CHECK(key == text);
    REQUIRE(value != nullptr);
    *value = 2;
    bad = false;
    CHECK(cache.put(key, std::move(value)) == PutResult::Inserted);
    CHECK(key == text);  // passed as an lvalue: copied
    CHECK(value == nullptr);
}

#if defined(MUSES_TEST_CAN_FAIL_NEW)
TEST_CASE("lru_cache: a failed allocation at any point leaves everything as it was") {
    const std::vector<std::function<void(LruCache<int, std::string>&)>> operations = {
        [](auto& cache) { cache.put(1, std::string(100, 'x')); },
        [](auto& cache) { cache.put(99, std::string(100, 'x')); },  // grows the index
        [](auto& cache) { cache.try_emplace(99, 100U, 'x'); },
        [](auto& cache) { (void)cache.get(0); },
        [](auto& cache) { (void)cache.snapshot(); },
        [](auto& cache) { (void)cache.get_or_load(99, [] { return std::string(100, 'x'); }); },
        [](auto& cache) { cache.clear(); },
        [](auto& cache) { cache.erase(3); },
    };
    for (std::size_t op = 0; op < operations.size(); ++op) {
        CAPTURE(op);
        for (int fail_at = 0;; ++fail_at) {
            REQUIRE(fail_at < 100);
            LruCache<int, std::string> cache(1000);
            for (int i = 0; i < 10; ++i)
                cache.put(i, std::string(50, static_cast<char>('a' + i)));  // the index of 16 is as full as it gets
            const auto before = cache.snapshot();
            REQUIRE(before.size() == 10);
            bool threw = false;
            bool through = false;
            {
                muses::test::FailNew fail(fail_at);
                try {
                    operations[op](cache);
                } catch (const std::bad_alloc&) {
                    threw = true;
                }
                through = !fail.failed();
            }
            if (threw) CHECK(cache.snapshot() == before);
            for (const auto& [key, value] : cache.snapshot()) CHECK(cache.peek(key) == value);
            CHECK(cache.put(200, "y") == PutResult::Inserted);
            if (through) break;
        }
    }
}
#endif
