// The vocabulary of muses/lru_cache.hpp: options, outcomes, counters. Include that header, not this one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "muses/detail/duration.hpp"

namespace muses {

/// Why an entry left the cache.
enum class EvictCause : std::uint8_t {
    Capacity,  ///< room was needed, or the capacity was lowered
    Replaced,  ///< a put of the same key
    Expired,   ///< its time to live had passed
    Erased,    ///< erase() or clear()
};

/// What became of a put.
enum class PutResult : std::uint8_t {
    Inserted,  ///< the key is new
    Replaced,  ///< the key was there; its old value has left
    Refused,   ///< capacity 0, or heavier than all the cache may weigh: nothing changed, an older value of the key stays
};

/// A time to live, from any duration without overflow: zero, negative, NaN and more than a year all mean "for ever".
class LruTtl {
public:
    constexpr LruTtl() noexcept = default;
    template <class Rep, class Period>
    constexpr LruTtl(std::chrono::duration<Rep, Period> d) noexcept {  // implicit, so that `.ttl = 5s` reads as it should
        using Tick = std::chrono::steady_clock::duration;
        constexpr detail::SteadyTime zero{};
        const detail::SteadyTime end = detail::deadline_after(d, zero);
        if (end != detail::kNever) value_ = end - zero;
        if (value_ == Tick::zero() && d > decltype(d)::zero() && end != detail::kNever)
            value_ = Tick(1);  // below a tick, yet not none
    }

    /// The time to live; zero when entries live for ever.
    [[nodiscard]] constexpr std::chrono::nanoseconds value() const noexcept { return value_; }

private:
    std::chrono::steady_clock::duration value_{0};
};

/// Everything that a cache can be told. None of the functions runs under the cache's lock; several threads may be in them at once.
template <class Key, class Value>
struct LruOptions {
    /// Entries at most; 0 keeps nothing. Default: no limit.
    std::size_t max_entries = SIZE_MAX;
    /// Sum of the weights at most. Default: no limit.
    std::size_t max_weight = SIZE_MAX;
    /// Weight of an entry, asked once, when it comes in; empty: each weighs 1. What it throws passes, nothing has changed then.
    std::function<std::size_t(const Key&, const Value&)> weigher = {};
    /// An entry is visible while now - put < ttl; reading it does not prolong its life. Default: for ever.
    LruTtl ttl = {};
    /// The time; asked only when there is a ttl. Empty: std::chrono::steady_clock::now.
    std::function<std::chrono::steady_clock::time_point()> clock = {};
    /// Told of every entry that leaves, after it has left and before it is destroyed; the value may be moved from. It may call
    /// the cache. It should not throw; what it throws is swallowed and counted. Not called by the cache's destructor.
    std::function<void(const Key&, Value&, EvictCause)> on_evict = {};
};

/// Counters since construction.
struct LruStats {
    std::uint64_t hits = 0;             ///< get, get_or_load: found
    std::uint64_t misses = 0;           ///< get, get_or_load: not found, waiting for another thread's load included
    std::uint64_t evictions = 0;        ///< left for EvictCause::Capacity
    std::uint64_t expirations = 0;      ///< left for EvictCause::Expired
    std::uint64_t refusals = 0;         ///< values not kept: capacity 0 or too heavy, loaded ones included
    std::uint64_t loads = 0;            ///< loader calls
    std::uint64_t load_failures = 0;    ///< of these, how many ended in an exception
    std::uint64_t discarded_loads = 0;  ///< loaded, but not kept because a put, erase or clear came in between
    std::uint64_t hook_failures = 0;    ///< on_evict threw

    LruStats& operator+=(const LruStats& o) noexcept {
        hits += o.hits;
        misses += o.misses;
        evictions += o.evictions;
        expirations += o.expirations;
        refusals += o.refusals;
        loads += o.loads;
        load_failures += o.load_failures;
        discarded_loads += o.discarded_loads;
        hook_failures += o.hook_failures;
        return *this;
    }
    friend bool operator==(const LruStats&, const LruStats&) = default;
};

}  // namespace muses
