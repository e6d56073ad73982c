// A thread-safe cache that forgets what has been unused for longest: LruCache, and ShardedLruCache for many threads.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/detail/cache_line.hpp"
#include "muses/detail/hash.hpp"
#include "muses/detail/lru_core.hpp"
#include "muses/detail/lru_options.hpp"  // LruOptions, EvictCause, PutResult, LruStats

namespace muses {

namespace detail {

/// K is looked up as it is: it is the key type, or hash and comparison are transparent and know it.
template <class K, class Key, class Hash, class Eq>
concept DirectLruKey = std::same_as<K, Key> || (requires {
                           typename Hash::is_transparent;
                           typename Eq::is_transparent;
                       } && requires(const Hash& hash, const Eq& eq, const Key& key, const K& wanted) {
                           { hash(wanted) } -> std::convertible_to<std::uint64_t>;
                           { eq(key, wanted) } -> std::convertible_to<bool>;
                       });

/// K can be looked up, if need be through a temporary key.
template <class K, class Key, class Hash, class Eq>
concept LruLookup = DirectLruKey<K, Key, Hash, Eq> || std::convertible_to<const K&, Key>;

/// The one core of an LruCache.
template <class Core>
class OneLruCore {
public:
    template <class... Args>
    explicit OneLruCore(Args&&... args) : core_(std::forward<Args>(args)...) {}
    [[nodiscard]] Core& of(std::uint64_t) noexcept { return core_; }
    [[nodiscard]] const Core& of(std::uint64_t) const noexcept { return core_; }
    template <class F>
    void for_each(F f) {
        f(core_);
    }
    template <class F>
    void for_each(F f) const {
        f(core_);
    }
    [[nodiscard]] std::size_t count() const noexcept { return 1; }

private:
    Core core_;
};

/// The cores of a ShardedLruCache; the upper half of the hash picks one, the index of a core uses the lower.
template <class Core>
class ManyLruCores {
public:
    static constexpr std::size_t kMostShards = 1U << 16U;

    template <class Options, class Eq>
    ManyLruCores(const std::shared_ptr<const Options>& options, std::size_t shards, const Eq& eq) {
        if (shards == 0 || shards > kMostShards) throw std::invalid_argument("muses::ShardedLruCache: shards must be 1 to 65536");
        // A shard without room would refuse its keys for ever.
        shards = std::max(std::min({shards, options->max_entries, options->max_weight}), std::size_t{1});
        shards_.reserve(shards);
        const auto waits = std::make_shared<LruWaits>();  // a circle of loads may span shards
        for (std::size_t i = 0; i < shards; ++i)
            shards_.push_back(std::make_unique<Shard>(share(options->max_entries, shards, i), share(options->max_weight, shards, i),
                                                      options, eq, waits));
    }
    [[nodiscard]] Core& of(std::uint64_t hash) noexcept { return shards_[place(hash)]->core; }
    [[nodiscard]] const Core& of(std::uint64_t hash) const noexcept { return shards_[place(hash)]->core; }
    template <class F>
    void for_each(F f) {
        for (auto& shard : shards_) f(shard->core);
    }
    template <class F>
    void for_each(F f) const {
        for (const auto& shard : shards_) f(std::as_const(shard->core));
    }
    [[nodiscard]] std::size_t count() const noexcept { return shards_.size(); }

    /// Part i of `total` in `parts` parts that add up to it; "no limit" stays that.
    [[nodiscard]] static std::size_t share(std::size_t total, std::size_t parts, std::size_t i) noexcept {
        return total == SIZE_MAX ? SIZE_MAX : total / parts + (i < total % parts ? 1 : 0);
    }

private:
    struct alignas(kCacheLine) Shard {  // a line of its own, so that one shard's lock does not slow its neighbour's
        template <class... Args>
        explicit Shard(Args&&... args) : core(std::forward<Args>(args)...) {}
        Core core;
    };
    [[nodiscard]] std::size_t place(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(((hash >> 32U) * shards_.size()) >> 32U);
    }
    std::vector<std::unique_ptr<Shard>> shards_;
};

/// What: the operations that LruCache and ShardedLruCache share.
/// Complexity: O(1) expected for all but clear, snapshot, set_capacity (O(n)) and an insertion that grows the index.
/// Threads: every function from any thread at any time.
/// Lifetime: nothing that is returned refers into the cache.
/// Limits: no hook, loader, weigher, clock, hash or destructor runs under a lock, so all of them may call the cache; comparisons
///   and copies of keys and values do run under it and must not.
template <class Key, class Value, class Hash, class Eq, template <class> class Cores>
class LruInterface {
    static_assert(std::is_object_v<Key> && std::is_object_v<Value>,
                  "LruCache keeps values: wrap a reference in std::reference_wrapper");

public:
    using key_type = Key;
    using mapped_type = Value;

    LruInterface(const LruInterface&) = delete;
    LruInterface& operator=(const LruInterface&) = delete;

    /// A copy of the value, or nothing. The entry becomes the most recently used one. Counts a hit or a miss.
    template <class K = Key>
        requires LruLookup<K, Key, Hash, Eq> && std::copy_constructible<Value>
    std::optional<Value> get(const K& key) {
        const auto& wanted = as_lookup(key);
        const std::uint64_t hash = hash_of(wanted);
        return cores_.of(hash).get(hash, wanted);
    }

    /// As get, but leaves order and counters alone.
    template <class K = Key>
        requires LruLookup<K, Key, Hash, Eq> && std::copy_constructible<Value>
    [[nodiscard]] std::optional<Value> peek(const K& key) const {
        const auto& wanted = as_lookup(key);
        const std::uint64_t hash = hash_of(wanted);
        return cores_.of(hash).peek(hash, wanted);
    }

    /// Whether the key is visible. Leaves order and counters alone.
    template <class K = Key>
        requires LruLookup<K, Key, Hash, Eq>
    [[nodiscard]] bool contains(const K& key) const {
        const auto& wanted = as_lookup(key);
        const std::uint64_t hash = hash_of(wanted);
        return cores_.of(hash).contains(hash, wanted);
    }

    /// Brings the value in as the most recently used one, in place of an older value of the key, and evicts what it displaces:
    /// expired entries first, then the least recently used. Returns what became of it. Strong guarantee: what hash, weigher,
    /// clock, comparison or allocation throw passes, and the cache is as before. After Refused or an exception, a key and a value
    /// that were passed as rvalues are untouched, if their type has a move assignment that cannot throw.
    PutResult put(Key&& key, Value&& value) { return put_in(std::move(key), std::move(value)); }
    PutResult put(const Key& key, Value&& value)
        requires std::copy_constructible<Key>
    {
        return put_in(key, std::move(value));
    }
    PutResult put(Key&& key, const Value& value)
        requires std::copy_constructible<Value>
    {
        return put_in(std::move(key), value);
    }
    PutResult put(const Key& key, const Value& value)
        requires std::copy_constructible<Key> && std::copy_constructible<Value>
    {
        return put_in(key, value);
    }

    /// Brings in Value(args...) if the key is not there. False when it is (its place in the order stays) or when the new entry is
    /// refused. After false or an exception of the cache, a key and a value that were passed as rvalues are untouched; other
    /// arguments are, too, unless another thread brought in the same key while the value was being built.
    template <class K = Key, class... Args>
        requires LruLookup<std::remove_cvref_t<K>, Key, Hash, Eq> && std::constructible_from<Key, K> &&
                 std::constructible_from<Value, Args...>
    bool try_emplace(K&& key, Args&&... args) {
        const auto& wanted = as_lookup(std::as_const(key));
        const std::uint64_t hash = hash_of(wanted);
        return cores_.of(hash).try_emplace(hash, wanted, std::forward<K>(key), std::forward<Args>(args)...);
    }

    /// Removes the key. True when it was visible. A load of the key that is under way will not be kept.
    template <class K = Key>
        requires LruLookup<K, Key, Hash, Eq>
    bool erase(const K& key) {
        const auto& wanted = as_lookup(key);
        const std::uint64_t hash = hash_of(wanted);
        return cores_.of(hash).erase(hash, wanted);
    }

    /// The value of the key; if it is not there, what `loader()` or `loader(key)` returns, which is then put. However many threads
    /// ask, one of them calls its loader and the others wait for it; what the loader throws reaches all of them and nothing is
    /// kept, so that the next call loads again. A put, erase or clear of the key meanwhile wins in the cache: who asked gets what
    /// was loaded, but it is not kept, and who asks after an erase or clear loads anew.
    /// Throws std::logic_error instead of waiting for itself: a loader that asks for its own key, or loaders of several threads that
    /// ask for each other's, in whatever shards. Circles through a second cache or another lock are not seen.
    /// A Value that cannot be copied is not returned: the result is then a bool, whether the cache holds the key now.
    template <class K = Key, class Loader>
        requires LruLookup<K, Key, Hash, Eq> && (std::invocable<Loader> || std::invocable<Loader, const Key&>)
    LruLoaded<Value> get_or_load(const K& key, Loader&& loader) {
        const auto& wanted = as_lookup(key);
        const std::uint64_t hash = hash_of(wanted);
        return cores_.of(hash).get_or_load(hash, wanted, std::forward<Loader>(loader));
    }

    /// Removes everything, most recently used first; the hook is told EvictCause::Erased.
    void clear() {
        cores_.for_each([](auto& core) { core.clear(); });
    }

    /// Changes max_entries, and evicts until it holds.
    void set_capacity(std::size_t max_entries) {
        std::size_t i = 0;
        cores_.for_each([&](auto& core) { core.set_capacity(Counted::share(max_entries, cores_.count(), i++)); });
    }

    /// max_entries as it is now.
    [[nodiscard]] std::size_t capacity() const {
        std::size_t sum = 0;
        cores_.for_each([&](const auto& core) {
            const std::size_t part = core.capacity();
            sum = part == SIZE_MAX ? SIZE_MAX : sum + part;
        });
        return sum;
    }

    /// Visible entries.
    [[nodiscard]] std::size_t size() const {
        std::size_t sum = 0;
        cores_.for_each([&](const auto& core) { sum += core.extent().first; });
        return sum;
    }

    [[nodiscard]] bool empty() const { return size() == 0; }

    /// Sum of the weights of the visible entries; without a weigher, their number.
    [[nodiscard]] std::size_t weight() const {
        std::size_t sum = 0;
        cores_.for_each([&](const auto& core) { sum += core.extent().second; });
        return sum;
    }

    /// Copies of all visible entries, most recently used first. Leaves order and counters alone.
    [[nodiscard]] std::vector<std::pair<Key, Value>> snapshot() const
        requires std::copy_constructible<Key> && std::copy_constructible<Value>
    {
        std::vector<std::pair<Key, Value>> entries;
        cores_.for_each([&](const auto& core) { core.snapshot(entries); });
        return entries;
    }

    /// The counters since construction.
    [[nodiscard]] LruStats stats() const {
        LruStats sum;
        cores_.for_each([&](const auto& core) { sum += core.stats(); });
        return sum;
    }

protected:
    using Core = LruCore<Key, Value, Eq>;
    using Counted = ManyLruCores<Core>;

    template <class... Args>
    explicit LruInterface(Hash hash, Args&&... args) : hash_(std::move(hash)), cores_(std::forward<Args>(args)...) {}
    ~LruInterface() = default;

    [[no_unique_address]] Hash hash_;
    Cores<Core> cores_;

private:
    template <class K>
    [[nodiscard]] static decltype(auto) as_lookup(const K& key) {
        if constexpr (DirectLruKey<K, Key, Hash, Eq>)
            return static_cast<const K&>(key);
        else
            return static_cast<Key>(key);
    }

    template <class K, class V>
    PutResult put_in(K&& key, V&& value) {
        const std::uint64_t hash = hash_of(std::as_const(key));
        return cores_.of(hash).put(hash, std::forward<K>(key), std::forward<V>(value));
    }

    template <class K>
    [[nodiscard]] std::uint64_t hash_of(const K& key) const {
        const auto hash = static_cast<std::uint64_t>(std::as_const(hash_)(key));
        if constexpr (requires { typename Hash::is_avalanching; })
            return hash;
        else
            return mix64(hash);  // a user's hash may be the identity
    }
};

}  // namespace detail

/// What: a map of bounded size in order of use; when it is full, what was used longest ago goes.
/// Complexity: O(1) expected per operation; memory: a node per entry and at most 48 bytes of index.
/// Threads: every function from any thread; one mutex, held for a search, a relink and a copy.
/// Lifetime: entries are destroyed after they have left, on the thread that made them leave, without the lock. The destructor
///   must not run beside other calls, and calls no hook.
/// Limits: max_entries, max_weight and ttl of LruOptions. Keys and values may be move-only, over-aligned, without a default
///   constructor, and may throw when they are moved: an entry never moves. get, peek and snapshot need copies.
///   Hash and Eq are called by several threads at once.
template <class Key, class Value, class Hash = detail::SeededHash<Key>, class Eq = std::equal_to<>>
class LruCache : public detail::LruInterface<Key, Value, Hash, Eq, detail::OneLruCore> {
    using Base = detail::LruInterface<Key, Value, Hash, Eq, detail::OneLruCore>;

public:
    using Options = LruOptions<Key, Value>;

    /// Keeps `max_entries` entries; 0 keeps nothing.
    explicit LruCache(std::size_t max_entries, Hash hash = Hash(), Eq eq = Eq())
        : LruCache(Options{.max_entries = max_entries}, std::move(hash), std::move(eq)) {}

    /// See LruOptions.
    explicit LruCache(Options options, Hash hash = Hash(), Eq eq = Eq())
        : LruCache(std::make_shared<const Options>(std::move(options)), std::move(hash), std::move(eq)) {}

private:
    LruCache(std::shared_ptr<const Options> options, Hash hash, Eq eq)
        : Base(std::move(hash), options->max_entries, options->max_weight, options, std::move(eq)) {}
};

/// What: the same interface over several LruCache cores, each with its own lock and its own share of the capacity.
/// Complexity: as LruCache; size, weight, stats, snapshot and set_capacity visit every shard.
/// Threads: every function from any thread; threads meet only in the shard of a key. What spans shards is no single moment.
/// Lifetime: as LruCache.
/// Limits: the order of use, and so the choice of a victim, is per shard; snapshot goes shard by shard. The shares of max_entries
///   and max_weight add up to exactly what was asked; an entry heavier than a shard's share is refused. There are never more
///   shards than max_entries or max_weight at construction; after set_capacity to less, a shard without a share refuses its keys.
template <class Key, class Value, class Hash = detail::SeededHash<Key>, class Eq = std::equal_to<>>
class ShardedLruCache : public detail::LruInterface<Key, Value, Hash, Eq, detail::ManyLruCores> {
    using Base = detail::LruInterface<Key, Value, Hash, Eq, detail::ManyLruCores>;

public:
    using Options = LruOptions<Key, Value>;

    /// Throws std::invalid_argument unless there are 1 to 65536 shards.
    explicit ShardedLruCache(std::size_t max_entries, std::size_t shards = 16, Hash hash = Hash(), Eq eq = Eq())
        : ShardedLruCache(Options{.max_entries = max_entries}, shards, std::move(hash), std::move(eq)) {}

    /// See LruOptions. The functions in it are shared by the shards. Throws as the other constructor does.
    explicit ShardedLruCache(Options options, std::size_t shards = 16, Hash hash = Hash(), Eq eq = Eq())
        : Base(std::move(hash), std::make_shared<const Options>(std::move(options)), shards, eq) {}

    /// How many shards there are.
    [[nodiscard]] std::size_t shard_count() const noexcept { return this->cores_.count(); }
};

}  // namespace muses
