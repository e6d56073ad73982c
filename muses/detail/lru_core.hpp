// One lock's worth of LRU cache: the list, the index, the loads in flight. LruCache has one of it, ShardedLruCache several.
//
// The order of business in every operation: hash, build the new entry, weigh it and read the clock; then, under the lock,
// compare, copy out and relink; then, after the lock, tell the hook and destroy what has left. Only comparisons and copies out
// of the cache run under the lock. They come before the first change, so that one that throws leaves everything as it was.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/detail/lru_index.hpp"
#include "muses/detail/lru_loads.hpp"
#include "muses/detail/lru_node.hpp"
#include "muses/detail/lru_options.hpp"

namespace muses::detail {

/// What: an LRU list in MRU->LRU order, a list in order of age, a hash index and the loads in flight, under one mutex.
/// Complexity: O(1) expected per operation besides growth; clear and snapshot O(n). With a clock that runs backwards, an insertion
///   passes the entries that were put at a later time.
/// Threads: any, at once.
/// Lifetime: outlives every call into it; its destructor destroys the entries and calls no hook.
/// Limits: those of its options.
template <class Key, class Value, class Eq>
class LruCore {
    using Node = LruNode<Key, Value>;
    using Use = LruLink<LruByUse>;
    using Age = LruLink<LruByAge>;
    using Load = LruLoad<Key, Value>;
    using Loads = LruLoads<Key, Value, Eq>;

public:
    using Options = LruOptions<Key, Value>;

    /// Cores that are given the same `waits` see circles of loads among all of them.
    LruCore(std::size_t max_entries, std::size_t max_weight, std::shared_ptr<const Options> options, Eq eq,
            std::shared_ptr<LruWaits> waits = std::make_shared<LruWaits>())
        : options_(std::move(options)),
          ttl_(options_->ttl.value().count()),
          max_weight_(max_weight),
          eq_(std::move(eq)),
          max_entries_(max_entries),
          loads_(std::move(waits)) {}
    LruCore(const LruCore&) = delete;
    LruCore& operator=(const LruCore&) = delete;
    ~LruCore() {
        while (!uses_.alone()) {
            Node* const node = node_of(uses_.next);
            node->Use::unlink();
            node->Age::unlink();
            delete node;
        }
    }

    template <class K>
    std::optional<Value> get(std::uint64_t hash, const K& key) {
        std::optional<Value> result;
        const std::int64_t now = read_clock();
        Departed gone(*this);
        const std::lock_guard lock(mutex_);
        if (Node* const node = find_visible(hash, key, now, gone)) {
            result.emplace(std::as_const(node->value));
            touch(*node);
            ++stats_.hits;
        } else {
            ++stats_.misses;
        }
        return result;
    }

    template <class K>
    std::optional<Value> peek(std::uint64_t hash, const K& key) const {
        std::optional<Value> result;
        const std::int64_t now = read_clock();
        const std::lock_guard lock(mutex_);
        if (const Node* const node = find(hash, key); node != nullptr && !expired(*node, now)) result.emplace(node->value);
        return result;
    }

    template <class K>
    bool contains(std::uint64_t hash, const K& key) const {
        const std::int64_t now = read_clock();
        const std::lock_guard lock(mutex_);
        const Node* const node = find(hash, key);
        return node != nullptr && !expired(*node, now);
    }

    template <class K, class V>
    PutResult put(std::uint64_t hash, K&& key, V&& value) {
        auto fresh = std::make_unique<Node>(hash, std::forward<K>(key), std::forward<V>(value));
        const OnExit restore([&] {
            if (!fresh) return;
            give_back<K>(key, fresh->key);
            give_back<V>(value, fresh->value);
        });
        switch (insert(fresh, OnPresent::Replace)) {
            case Outcome::Inserted: return PutResult::Inserted;
            case Outcome::Replaced: return PutResult::Replaced;
            default: return PutResult::Refused;
        }
    }

    /// `wanted` is `key` as the index looks it up.
    template <class W, class K, class... Args>
    bool try_emplace(std::uint64_t hash, const W& wanted, K&& key, Args&&... args) {
        {
            const std::int64_t now = read_clock();
            Departed gone(*this);
            const std::lock_guard lock(mutex_);
            if (find_visible(hash, wanted, now, gone) != nullptr) return false;
            if (max_entries_ == 0) {
                ++stats_.refusals;
                return false;
            }
        }
        auto fresh = std::make_unique<Node>(hash, std::forward<K>(key), std::forward<Args>(args)...);
        // The entry had to be built without the lock. When it finds no place after all, the arguments get back what was moved.
        const OnExit restore([&] {
            if (!fresh) return;
            give_back<K>(key, fresh->key);
            if constexpr (sizeof...(Args) == 1) (give_back<Args>(args, fresh->value), ...);
        });
        return insert(fresh, OnPresent::Keep) == Outcome::Inserted;
    }

    template <class K>
    bool erase(std::uint64_t hash, const K& key) {
        const std::int64_t now = read_clock();
        Departed gone(*this);
        const std::lock_guard lock(mutex_);
        Node* const node = find_visible(hash, key, now, gone);
        loads_.outdate(hash, key, eq_);
        if (node != nullptr) depart(*node, EvictCause::Erased, gone);
        return node != nullptr;
    }

    void clear() {
        const std::int64_t now = read_clock();
        Departed gone(*this);
        const std::lock_guard lock(mutex_);
        loads_.outdate_all();
        for (Use* at = uses_.next; at != &uses_;) {
            Node& node = *node_of(std::exchange(at, at->next));
            depart_unindexed(node, expired(node, now) ? EvictCause::Expired : EvictCause::Erased, gone);
        }
        index_.clear();
    }

    void set_capacity(std::size_t max_entries) {
        const std::int64_t now = read_clock();
        Departed gone(*this);
        const std::lock_guard lock(mutex_);
        max_entries_ = max_entries;
        while (index_.size() > max_entries_) evict_one(now, gone);
    }

    std::size_t capacity() const {
        const std::lock_guard lock(mutex_);
        return max_entries_;
    }

    /// Visible entries and their weight.
    std::pair<std::size_t, std::size_t> extent() const {
        const std::int64_t now = read_clock();
        const std::lock_guard lock(mutex_);
        std::pair<std::size_t, std::size_t> result{index_.size(), weight_};
        for_each_expired(now, [&](const Node& node) {
            --result.first;
            result.second -= node.weight;
        });
        return result;
    }

    void snapshot(std::vector<std::pair<Key, Value>>& to) const {
        const std::int64_t now = read_clock();
        const std::lock_guard lock(mutex_);
        to.reserve(to.size() + index_.size());
        for (const Use* at = uses_.next; at != &uses_; at = at->next)
            if (const Node& node = *static_cast<const Node*>(at); !expired(node, now)) to.emplace_back(node.key, node.value);
    }

    LruStats stats() const {
        const std::lock_guard lock(mutex_);
        return stats_;
    }

    template <class K, class Loader>
    LruLoaded<Value> get_or_load(std::uint64_t hash, const K& key, Loader&& loader) {
        std::optional<LruLoaded<Value>> hit;
        std::shared_ptr<Load> load = join(hash, key, nullptr, hit);
        if (!hit && !load) {
            const auto mine = std::make_shared<Load>(hash, key);  // copies the key, so not under the lock: then looks once more
            load = join(hash, key, mine, hit);
            if (load == mine) return run(load, key, std::forward<Loader>(loader));
        }
        if (hit) return std::move(*hit);
        return load->outcome();
    }

private:
    enum class OnPresent : std::uint8_t { Replace, Keep };
    enum class Outcome : std::uint8_t { Inserted, Replaced, Kept, Refused };

    /// Entries that have left, in order. Declared before the lock is taken, so that its destructor runs after the lock is gone.
    class Departed {
    public:
        explicit Departed(LruCore& cache) noexcept : cache_(cache) {}
        Departed(const Departed&) = delete;
        Departed& operator=(const Departed&) = delete;
        ~Departed() {
            while (!entries_.alone()) {
                const std::unique_ptr<Node> node(node_of(entries_.next));
                node->Use::unlink();
                cache_.tell(*node);
            }
        }
        void add(Node& node) noexcept { node.Use::link_after(*entries_.prev); }

    private:
        LruCore& cache_;
        Use entries_;
    };

    template <class F>
    struct OnExit {
        explicit OnExit(F f) : run(std::move(f)) {}
        OnExit(const OnExit&) = delete;
        OnExit& operator=(const OnExit&) = delete;
        ~OnExit() { run(); }
        F run;
    };

    [[nodiscard]] static Node* node_of(Use* link) noexcept { return static_cast<Node*>(link); }
    [[nodiscard]] static Node* node_of(Age* link) noexcept { return static_cast<Node*>(link); }

    // ---- without the lock: the user's functions ----

    [[nodiscard]] std::size_t weigh(const Node& node) const {
        return options_->weigher ? options_->weigher(node.key, node.value) : 1;
    }

    [[nodiscard]] std::int64_t read_clock() const {
        if (ttl_ == 0) return 0;
        const auto now = options_->clock ? options_->clock() : std::chrono::steady_clock::now();
        return std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    }

    void tell(Node& node) noexcept {
        if (!options_->on_evict) return;
        try {
            options_->on_evict(std::as_const(node.key), node.value, node.cause);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            ++stats_.hook_failures;
        }
    }

    /// Adds the entry, or says why not; it is then still in `fresh`.
    Outcome insert(std::unique_ptr<Node>& fresh, OnPresent present) {
        fresh->weight = weigh(*fresh);
        const std::int64_t now = read_clock();
        Departed gone(*this);
        const std::lock_guard lock(mutex_);
        if (!admissible(*fresh)) {
            ++stats_.refusals;
            return Outcome::Refused;
        }
        Node* const old = find(fresh->hash, fresh->key);
        const bool replaces = old != nullptr && !expired(*old, now);
        if (replaces && present == OnPresent::Keep) return Outcome::Kept;
        loads_.outdate(fresh->hash, fresh->key, eq_);
        if (old != nullptr) depart(*old, replaces ? EvictCause::Replaced : EvictCause::Expired, gone);
        admit(fresh, now, gone);  // cannot throw when `old` has made room in the index
        return replaces ? Outcome::Replaced : Outcome::Inserted;
    }

    /// One look for get_or_load: a hit is copied into `hit`; a load in flight is waited for and returned; else `mine`, when there
    /// is one, becomes the load in flight and is returned.
    template <class K>
    std::shared_ptr<Load> join(std::uint64_t hash, const K& key, const std::shared_ptr<Load>& mine,
                               std::optional<LruLoaded<Value>>& hit) {
        std::shared_ptr<Load> load;
        const std::int64_t now = read_clock();
        Departed gone(*this);
        std::unique_lock lock(mutex_);
        if (Node* const node = find_visible(hash, key, now, gone)) {
            if constexpr (std::copy_constructible<Value>)
                hit.emplace(std::as_const(node->value));
            else
                hit.emplace(true);
            touch(*node);
            ++stats_.hits;
        } else if ((load = loads_.in_flight(hash, key, eq_)) != nullptr) {
            loads_.enlist(*load);
            ++stats_.misses;
            loads_.wait(*load, lock);
        } else if (mine != nullptr) {
            loads_.begin(mine);
            load = mine;
            ++stats_.misses;
            ++stats_.loads;
        }
        return load;
    }

    /// Calls the loader, keeps what it brings, completes whoever waits.
    template <class K, class Loader>
    LruLoaded<Value> run(const std::shared_ptr<Load>& load, const K& key, Loader&& loader) {
        std::unique_ptr<Node> fresh;
        std::int64_t now = 0;
        try {
            if constexpr (std::invocable<Loader>)
                load->value.emplace(std::invoke(std::forward<Loader>(loader)));
            else
                load->value.emplace(std::invoke(std::forward<Loader>(loader), load->key));
            if constexpr (std::copy_constructible<Value>)
                fresh = std::make_unique<Node>(load->hash, key, std::as_const(*load->value));
            else
                fresh = std::make_unique<Node>(load->hash, key, std::move(*load->value));
            fresh->weight = weigh(*fresh);
            now = read_clock();
        } catch (...) {
            load->error = std::current_exception();
        }
        bool shared = false;
        {
            Departed gone(*this);
            const std::lock_guard lock(mutex_);
            keep_loaded(*load, fresh, now, gone);
            shared = loads_.end(load);
        }
        if constexpr (std::copy_constructible<Value>)
            if (!shared && !load->error) return std::move(*load->value);
        return load->outcome();
    }

    // ---- under the lock ----

    void keep_loaded(Load& load, std::unique_ptr<Node>& fresh, std::int64_t now, Departed& gone) noexcept {
        if (load.error) {
            ++stats_.load_failures;
        } else if (load.outdated) {
            ++stats_.discarded_loads;
        } else if (!admissible(*fresh)) {
            ++stats_.refusals;
        } else {
            // The key is not there: it was not when the load began, and whatever brings it in makes the load outdated.
            try {
                admit(fresh, now, gone);
                load.kept = true;
            } catch (...) {
                load.error = std::current_exception();
            }
        }
    }

    template <class K>
    [[nodiscard]] Node* find(std::uint64_t hash, const K& key) const {
        return index_.find(hash, [&](const Node& node) { return static_cast<bool>(eq_(node.key, key)); });
    }

    template <class K>
    [[nodiscard]] Node* find_visible(std::uint64_t hash, const K& key, std::int64_t now, Departed& gone) {
        Node* const node = find(hash, key);
        if (node == nullptr || !expired(*node, now)) return node;
        depart(*node, EvictCause::Expired, gone);
        return nullptr;
    }

    [[nodiscard]] bool expired(const Node& node, std::int64_t now) const noexcept {
        if (ttl_ == 0 || now <= node.born) return false;
        return static_cast<std::uint64_t>(now) - static_cast<std::uint64_t>(node.born) >= static_cast<std::uint64_t>(ttl_);
    }

    template <class F>
    void for_each_expired(std::int64_t now, F f) const {
        for (const Age* at = ages_.next; at != &ages_; at = at->next) {
            const Node& node = *static_cast<const Node*>(at);
            if (!expired(node, now)) return;
            f(node);
        }
    }

    [[nodiscard]] bool admissible(const Node& node) const noexcept { return max_entries_ != 0 && node.weight <= max_weight_; }

    /// Links an admissible entry whose key is not there, in front, after what it displaces has left.
    void admit(std::unique_ptr<Node>& fresh, std::int64_t now, Departed& gone) {
        index_.reserve(index_.size() + 1);  // throws before anything has changed
        for (std::size_t i = 0; i < kPurge && !ages_.alone() && expired(*node_of(ages_.next), now); ++i)
            depart(*node_of(ages_.next), EvictCause::Expired, gone);
        while (index_.size() >= max_entries_ || weight_ > max_weight_ - fresh->weight) evict_one(now, gone);
        Node* const node = fresh.release();
        node->born = now;
        node->Use::link_after(uses_);
        if (ttl_ != 0) link_by_age(*node);
        index_.insert(node->hash, node);
        weight_ += node->weight;
    }

    /// Clocks are read before the lock, so another thread's later time may have come in first: the place is near the young end.
    void link_by_age(Node& node) noexcept {
        Age* at = ages_.prev;
        while (at != &ages_ && node_of(at)->born > node.born) at = at->prev;
        node.Age::link_after(*at);
    }

    /// The oldest entry if that has expired, else the one that was used least recently.
    void evict_one(std::int64_t now, Departed& gone) noexcept {
        if (!ages_.alone() && expired(*node_of(ages_.next), now))
            depart(*node_of(ages_.next), EvictCause::Expired, gone);
        else
            depart(*node_of(uses_.prev), EvictCause::Capacity, gone);
    }

    void touch(Node& node) noexcept {
        if (uses_.next == static_cast<Use*>(&node)) return;
        node.Use::unlink();
        node.Use::link_after(uses_);
    }

    void depart(Node& node, EvictCause cause, Departed& gone) noexcept {
        index_.erase(node.hash, &node);
        depart_unindexed(node, cause, gone);
    }

    void depart_unindexed(Node& node, EvictCause cause, Departed& gone) noexcept {
        weight_ -= node.weight;
        node.cause = cause;
        node.Use::unlink();
        node.Age::unlink();
        gone.add(node);
        if (cause == EvictCause::Capacity) ++stats_.evictions;
        if (cause == EvictCause::Expired) ++stats_.expirations;
    }

    static constexpr std::size_t kPurge = 16;  // expired entries that one insertion clears away: bounds its time under the lock

    const std::shared_ptr<const Options> options_;  // shared by the shards of one cache
    const std::int64_t ttl_;                        // nanoseconds; 0: for ever
    const std::size_t max_weight_;
    [[no_unique_address]] const Eq eq_;

    mutable std::mutex mutex_;  // guards all below
    LruIndex<Node> index_;
    Use uses_;  // most recently used first
    Age ages_;  // in order of `born`, oldest first; used only with a ttl
    std::size_t max_entries_;
    std::size_t weight_ = 0;
    LruStats stats_;
    Loads loads_;
};

}  // namespace muses::detail
