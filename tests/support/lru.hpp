#pragma once

/// What the suites of lru_cache share: a clock that a test moves, a log of the hook, counted objects, a look at the lock.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "muses/lru_cache.hpp"
#include "tests/support/eventually.hpp"

namespace muses::test {

using Time = std::chrono::steady_clock::time_point;

/// A clock that stands still until it is moved. Its reads may come from any thread.
struct FakeClock {
    std::atomic<std::int64_t> ns{0};
    void advance(std::chrono::nanoseconds d) { ns += d.count(); }
    void set(Time t) { ns = t.time_since_epoch().count(); }
    auto reader() {
        return [this] { return Time(std::chrono::nanoseconds(ns.load())); };
    }
};

template <class K, class V>
struct Gone {
    K key;
    V value;
    EvictCause cause;
    bool operator==(const Gone&) const = default;
};

/// Everything the hook was told, in order.
template <class K, class V>
struct HookLog {
    std::vector<Gone<K, V>> entries;
    auto writer() {
        return [this](const K& key, V& value, EvictCause cause) { entries.push_back({key, value, cause}); };
    }
};

template <class Cache>
auto keys_of(const Cache& cache) {
    std::vector<typename Cache::key_type> keys;
    for (const auto& entry : cache.snapshot()) keys.push_back(entry.first);
    return keys;
}

/// Counts live objects. Copying throws while `armed` says so.
struct Counted {
    static inline std::atomic<int> live{0};
    static inline std::atomic<int> copies_until_throw{-1};  // -1: never

    int number;
    explicit Counted(int n) : number(n) { ++live; }
    Counted(const Counted& o) : number(o.number) {
        if (copies_until_throw >= 0 && copies_until_throw-- == 0) throw std::runtime_error("copy");
        ++live;
    }
    Counted(Counted&& o) noexcept : number(o.number) { ++live; }
    Counted& operator=(const Counted&) = default;
    Counted& operator=(Counted&&) = default;
    ~Counted() { --live; }
    bool operator==(const Counted&) const = default;
};

struct CountedHash {
    std::size_t operator()(const Counted& c) const { return static_cast<std::size_t>(c.number); }
};

/// While it lives, looks from another thread whether the cache's lock is free.
class LockProbe {
public:
    explicit LockProbe(std::function<void()> use) : use_(std::move(use)) {}
    ~LockProbe() {
        for (auto& thread : threads_) thread.join();
    }
    /// False when the cache did not answer another thread within ten seconds.
    bool lock_is_free() {
        auto done = std::make_shared<std::atomic<bool>>(false);
        threads_.emplace_back([this, done] {
            use_();
            *done = true;
        });
        return muses::test::eventually([&] { return done->load(); }, std::chrono::seconds(10));
    }

private:
    std::function<void()> use_;
    std::deque<std::thread> threads_;
};

}  // namespace muses::test
