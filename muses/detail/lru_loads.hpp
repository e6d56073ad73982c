// The loads in flight of an LRU cache: who is loading which key, and who waits for it.
#pragma once

#include <algorithm>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace muses::detail {

/// What get_or_load returns: the value, or, when that cannot be copied, whether the cache holds it now.
template <class Value>
using LruLoaded = std::conditional_t<std::copy_constructible<Value>, Value, bool>;

/// What: who waits for whose load, in all the cores that share it.
/// Complexity: O(threads that wait) per call.
/// Threads: any, at once; its lock is taken inside a core's lock, and nothing is called under it.
/// Lifetime: as long as any core that has it.
/// Limits: a thread is told by its id; waits for anything but a load are not seen.
class LruWaits {
public:
    /// This thread waits for `load`, which `owner` runs. Throws std::logic_error instead when that would close a circle. The walk
    /// ends because no circle was ever let in.
    void add(const void* load, std::thread::id owner) {
        const std::thread::id self = std::this_thread::get_id();
        const std::lock_guard lock(mutex_);
        for (std::thread::id at = owner;;) {
            if (at == self) throw std::logic_error("muses::LruCache::get_or_load: loaders wait for each other's keys in a circle");
            const auto wait = std::ranges::find(waits_, at, &Wait::waiter);
            if (wait == waits_.end()) break;
            at = wait->owner;
        }
        waits_.push_back({load, self, owner});
    }

    /// Nobody waits for `load` any more, though those who did may still have to wake.
    void remove(const void* load) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase_if(waits_, [&](const Wait& wait) { return wait.load == load; });
    }

private:
    struct Wait {
        const void* load;
        std::thread::id waiter, owner;
    };
    std::mutex mutex_;
    std::vector<Wait> waits_;
};

/// A loader at work, and what it brought. `outdated`, `done` and `waiters` belong to the cache's lock; `value`, `kept` and `error`
/// are written by the owner before `done`, and only read after it.
template <class Key, class Value>
struct LruLoad {
    template <class K>
    LruLoad(std::uint64_t h, const K& k) : hash(h), key(k) {}

    /// For the owner after the end, and for whoever waited: what was loaded, or the exception.
    [[nodiscard]] LruLoaded<Value> outcome() const {
        if (error) std::rethrow_exception(error);
        if constexpr (std::copy_constructible<Value>)
            return *value;
        else
            return kept;
    }

    const std::uint64_t hash;
    const Key key;
    const std::thread::id owner = std::this_thread::get_id();
    bool outdated = false;  // a put, erase or clear has come in between: the result is not kept, and nobody new joins
    bool done = false;
    std::size_t waiters = 0;  // all that ever joined
    std::optional<Value> value;
    bool kept = false;
    std::exception_ptr error;
    std::condition_variable ended;
};

/// What: the list of loads in flight in one core.
/// Complexity: O(loads in flight), at most one per thread and nesting level.
/// Threads: one at a time; the cache's lock covers every call, and is the lock that wait() gives up meanwhile.
/// Lifetime: a load lives as long as its owner or somebody who waits holds it; the owner always ends it.
/// Limits: a circle of waits is seen when each of its waits is for a load of cores with the same LruWaits, by the thread that runs its
///   loader.
template <class Key, class Value, class Eq>
class LruLoads {
public:
    using Load = LruLoad<Key, Value>;

    explicit LruLoads(std::shared_ptr<LruWaits> waits) : waits_(std::move(waits)) {}

    /// The load of this key to wait for, or null. Throws std::logic_error when waiting for it would be waiting for oneself.
    template <class K>
    [[nodiscard]] std::shared_ptr<Load> in_flight(std::uint64_t hash, const K& key, const Eq& eq) const {
        std::shared_ptr<Load> found;
        for (const auto& load : loads_) {
            if (load->hash != hash || !eq(load->key, key)) continue;
            if (load->owner == std::this_thread::get_id())
                throw std::logic_error("muses::LruCache::get_or_load: the loader of a key asks for that key");
            if (!load->outdated) found = load;
        }
        return found;
    }

    /// Lists a load, which others may join from now on.
    void begin(const std::shared_ptr<Load>& load) { loads_.push_back(load); }

    /// Takes a load off the list and wakes who waits for it. True when somebody does.
    bool end(const std::shared_ptr<Load>& load) noexcept {
        std::erase(loads_, load);
        load->done = true;
        if (load->waiters == 0) return false;
        waits_->remove(load.get());  // now, since whoever waited wakes later and is no longer in anybody's way
        load->ended.notify_all();
        return true;
    }

    /// This thread is going to wait for the load. Throws std::logic_error when it would wait for itself, by way of others.
    void enlist(Load& load) {
        waits_->add(&load, load.owner);
        ++load.waiters;
    }

    /// Waits until the load, for which this thread is enlisted, has ended.
    void wait(Load& load, std::unique_lock<std::mutex>& lock) {
        load.ended.wait(lock, [&] { return load.done; });
    }

    /// The key has been put or erased: what is being loaded for it is not to be kept.
    template <class K>
    void outdate(std::uint64_t hash, const K& key, const Eq& eq) const {
        for (const auto& load : loads_)
            if (load->hash == hash && !load->outdated && eq(load->key, key)) load->outdated = true;
    }

    void outdate_all() const noexcept {
        for (const auto& load : loads_) load->outdated = true;
    }

private:
    std::vector<std::shared_ptr<Load>> loads_;
    const std::shared_ptr<LruWaits> waits_;
};

}  // namespace muses::detail
