// The inside of a memory pool: chunks, the caches that threads hold, and how all of it ends.
//
// The pool object may go before its blocks do. Its core then stays, closed, until the last block is home: after close() nothing is
// handed out any more, so the number of blocks that ever went out is fixed, and the core is freed by whoever finds that as many have
// come back. A thread that releases a block of a closed core finds itself no longer the cache's owner, meets the closed flag, and
// counts under the registry's lock. One that was between its look at the owner and its count at the moment of close() counts in the
// old way, without a look at the sum afterwards; for this case every later start or end of a pool, and of a thread that used one,
// looks at all closed cores again.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "muses/detail/mem_block.hpp"
#include "muses/detail/mem_cache.hpp"
#include "muses/detail/mem_chunk.hpp"
#include "muses/detail/mem_classes.hpp"
#include "muses/detail/mem_options.hpp"

namespace muses::detail {

/// What: owner of the chunks and caches of one pool.
/// Complexity: giving out a run: O(chunks).
/// Threads: any, except that close() comes after every call but report() and the counters.
/// Lifetime: see above; destroyed by MemRegistry, in mem_registry.hpp.
/// Limits: 65536 chunks, that is 64 GiB, and max_bytes.
class MemCore {
public:
    /// Throws std::invalid_argument when initial_bytes is more than max_bytes, std::bad_alloc when the memory is not there.
    MemCore(MemoryPoolOptions options, std::uint64_t id)
        : id_(id), options_(checked(std::move(options))), units_left_(std::min(options_.max_bytes / kMemUnitBytes, kMostUnits)) {
        // One for the rest of the limit and some for small ones; beyond the table the limit is met, whatever its number.
        chunk_table_.resize(std::min(units_left_ / (kMemUnits - 1) + 4, kMostChunks));
        const std::size_t initial = std::min(units_for(options_.initial_bytes), options_.max_bytes / kMemUnitBytes);
        if (!grow_to(initial)) {
            unmap_all();
            throw std::bad_alloc();
        }
    }
    MemCore(const MemCore&) = delete;
    MemCore& operator=(const MemCore&) = delete;
    ~MemCore() { unmap_all(); }

    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

    std::unique_ptr<MemCore> next_dead;  ///< for MemRegistry, once every block is home

    // --- memory

    /// Finds `cache` a run for blocks of the class, and makes it the one to carve from. False at the limit.
    bool add_run(MemCache& cache, std::size_t cls) {
        const std::size_t stride = mem_class_bytes(cls) + sizeof(BlockHeader);
        const std::size_t least = (stride + kMemUnitBytes - 1) / kMemUnitBytes;
        MemCache::SizeClass& c = cache.of(cls);
        const std::size_t wanted = c.next_units != 0 ? c.next_units : first_units(stride, least);
        c.at_limit = true;
        const std::lock_guard lock(mutex_);
        if (free_units_ + units_left_ < least) return false;
        for (std::size_t units = wanted;; units = std::max(units / 2, least)) {
            bool taken = take_run(cache, cls, units);
            while (!taken && map(kMemUnits - 1) != 0) taken = take_run(cache, cls, units);
            if (taken) {
                // A class that needs much gets long runs, one that needs little wastes little.
                c.next_units = static_cast<std::uint16_t>(snug_units(stride, least, std::max(units * 2, least)));
                c.at_limit = false;
                return true;
            }
            if (units <= least) return false;
        }
    }

    /// At the limit: the free blocks of a cache that no thread holds. False when there are none.
    bool steal(MemCache& cache, std::size_t cls) {
        const std::lock_guard lock(mutex_);
        return std::ranges::any_of(caches_, [&](auto& other) { return other->idle() && cache.steal(*other, cls); });
    }

    /// At the limit: makes free runs of the calling thread's cache, and of those that no thread holds, usable for other classes.
    /// False when it found none, or when so little has been released since the last time that it did not look: the walk over the
    /// free-lists is paid for by the releases before it.
    bool reclaim(MemCache& cache) {
        MemCollected done;
        {
            const std::lock_guard lock(mutex_);
            const std::uint64_t released = total_released();
            if (released < reclaim_after_) return false;
            done = collect(&cache);
            reclaim_after_ = released + done.blocks + 1;
        }
        if (done.broken != nullptr) report(PoolMisuse::BrokenFreeList, done.broken->payload());
        return done.found_run;
    }

    /// Makes sure that `bytes` of memory that belongs to no class yet are there. False when the limit or the system forbids it.
    bool reserve(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        return grow_to(units_for(bytes));
    }

    /// Unmaps chunks without a block in use, as far as free blocks can be reached: those of `cache` (if any) and of caches that no
    /// thread holds. Returns how many bytes.
    std::size_t trim(MemCache* cache) noexcept {
        std::size_t bytes = 0;
        MemCollected done;
        {
            const std::lock_guard lock(mutex_);
            done = collect(cache);
            for (ChunkUse& chunk : chunks_) {
                if (chunk.memory == nullptr || chunk.free != chunk.units) continue;
                bytes += chunk.units * kMemUnitBytes;
                unmap(chunk);
            }
        }
        if (done.broken != nullptr) report(PoolMisuse::BrokenFreeList, done.broken->payload());
        return bytes;
    }

    /// Whether `payload` is a block of this pool that is out.
    [[nodiscard]] bool owns(const void* payload) const {
        const std::lock_guard lock(mutex_);  // so that the chunk stays while we look
        const BlockHeader* const header = BlockHeader::of(payload);
        if (reinterpret_cast<std::uintptr_t>(payload) % kMemGrain != 0 || !MemChunkMap::contains(header)) return false;
        // Relaxed: units change under the lock; the unit of a block that the caller holds does not change at all.
        const MemCache* const cache = MemChunk::of(header)->unit[MemChunk::unit_of(header)].cache.load(std::memory_order_relaxed);
        return cache != nullptr && &cache->core() == this && header->is(BlockHeader::State::Live);
    }

    // --- threads

    /// A cache for the thread known by `token`: one that a thread has left, or a new one. Throws std::bad_alloc.
    [[nodiscard]] MemCache& lend(const void* token) {
        const std::lock_guard lock(mutex_);
        auto idle = std::ranges::find_if(caches_, [](const auto& cache) { return cache->idle(); });
        if (idle == caches_.end()) idle = caches_.insert(idle, std::make_unique<MemCache>(*this, chunk_table_.data()));
        MemCache& cache = **idle;
        cache.lend_to(token);
        return cache;
    }

    /// The thread has ended.
    void take_back(MemCache& cache) {
        const std::lock_guard lock(mutex_);
        cache.lend_to(nullptr);
    }

    // --- the end; all under the registry's lock

    /// The pool object is gone.
    void close() noexcept {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        for (const auto& cache : caches_) cache->close();
    }
    [[nodiscard]] bool closed() const noexcept { return closed_; }

    /// A block of this closed core came home. Whether it was the last; asked only as often as half of those that were left then have
    /// come back, so that many are not looked at many times. (That it misses the end, because most came back in the old way meanwhile,
    /// is possible as said above, and made good by the same later looks.)
    [[nodiscard]] bool count_closed_release() noexcept {
        if (++closed_releases_ < next_look_) return false;
        const std::uint64_t left = still_out();
        next_look_ = closed_releases_ + left / 2;
        return left == 0;
    }

    /// Whether every block is home. After close() only.
    [[nodiscard]] bool all_home() const noexcept { return still_out() == 0; }

    // --- counters, misuse

    void count_escaped() noexcept { escaped_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: a counter

    [[nodiscard]] MemoryPoolStats stats() const {
        MemoryPoolStats all;
        for (std::size_t cls = 0; cls < kMemClasses; ++cls) all.classes[cls].block_bytes = mem_class_bytes(cls);
        const std::lock_guard lock(mutex_);
        for (std::size_t cls = 0; cls < kMemClasses; ++cls) {
            auto& sum = all.classes[cls];
            std::uint64_t released = 0;
            for (const auto& cache : caches_) {
                // What came back first: so that a block that comes and goes meanwhile is not seen to have come back only.
                released += cache->pending(cls) + cache->of(cls).frees.get();
                sum.hits += cache->of(cls).hits.get();
                sum.misses += cache->of(cls).misses.get();
                sum.high_water += cache->of(cls).high_water.get();
            }
            const std::uint64_t out = sum.hits + sum.misses;
            sum.live = out - std::min(out, released);
        }
        for (const ChunkUse& chunk : chunks_) all.arena_bytes += chunk.units * kMemUnitBytes;
        // Relaxed: counters.
        all.escaped = escaped_.load(std::memory_order_relaxed);
        all.misuses = misuses_.load(std::memory_order_relaxed);
        all.hook_errors = hook_errors_.load(std::memory_order_relaxed);
        return all;
    }

    /// Tells the hook, or does what is done without one. No lock is held.
    void report(PoolMisuse misuse, const void* pointer) noexcept {
        misuses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
        if (!options_.on_misuse) return mem_default_misuse(misuse, pointer);
        try {
            options_.on_misuse(misuse, pointer);
        } catch (...) {
            hook_errors_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
        }
    }

private:
    static constexpr std::size_t kLongRun = 16;  // but for blocks that need more: always less than 256
    static constexpr std::size_t kMostChunks = 65536;
    static constexpr std::size_t kMostUnits = kMostChunks * (kMemUnits - 1);

    [[nodiscard]] static std::size_t units_for(std::size_t bytes) noexcept {
        return bytes / kMemUnitBytes + (bytes % kMemUnitBytes != 0 ? 1 : 0);
    }

    struct ChunkUse {
        MemChunk* memory = nullptr;
        std::size_t units = 0;          ///< without the first
        std::size_t free = 0;           ///< of these
        std::bitset<kMemUnits> used{};  ///< the first never is
    };

    static MemoryPoolOptions checked(MemoryPoolOptions options) {
        if (options.initial_bytes == MemoryPoolOptions::kDefaultInitialBytes)
            options.initial_bytes = std::min(options.initial_bytes, options.max_bytes);
        if (options.initial_bytes > options.max_bytes)
            throw std::invalid_argument("muses::MemoryPool: initial_bytes must not be more than max_bytes");
        return options;
    }

    /// Whether a run leaves at most an eighth unused behind its last block.
    [[nodiscard]] static bool snug(std::size_t stride, std::size_t units) noexcept {
        return units * kMemUnitBytes % stride <= units * kMemUnitBytes / 8;
    }

    /// The shortest snug run up to kLongRun; when there is none, kLongRun.
    [[nodiscard]] static std::size_t first_units(std::size_t stride, std::size_t least) noexcept {
        std::size_t units = least;
        while (units < kLongRun && !snug(stride, units)) ++units;
        return units;
    }

    /// The longest snug run of up to `most` units, and of up to kLongRun; when there is none, the shortest.
    [[nodiscard]] static std::size_t snug_units(std::size_t stride, std::size_t least, std::size_t most) noexcept {
        std::size_t units = std::max(std::min(most, kLongRun), least);
        while (units > least && !snug(stride, units)) --units;
        return units > least || snug(stride, units) ? units : first_units(stride, least);
    }

    /// Blocks of this closed core that are not known to be home. What went out is fixed, and what came back is never counted too early.
    [[nodiscard]] std::uint64_t still_out() const noexcept {
        std::uint64_t out = 0;
        for (const auto& cache : caches_) {
            for (std::size_t cls = 0; cls < kMemClasses; ++cls) {
                const MemCache::SizeClass& c = cache->of(cls);
                out += c.hits.get() + c.misses.get() - c.frees.get() - cache->pending(cls);
            }
        }
        return out - closed_releases_;
    }

    // Under mutex_ (or in the constructor), all below.

    bool take_run(MemCache& cache, std::size_t cls, std::size_t units) noexcept {
        for (ChunkUse& chunk : chunks_) {
            if (chunk.free < units) continue;
            std::size_t length = 0;
            for (std::size_t i = 1; i <= chunk.units; ++i) {
                length = chunk.used[i] ? 0 : length + 1;
                if (length < units) continue;
                const std::size_t first = i + 1 - units;
                for (std::size_t unit = first; unit <= i; ++unit) {
                    chunk.used.set(unit);
                    chunk.memory->unit[unit].first = static_cast<std::uint16_t>(first);
                    // Relaxed: who is handed a block of the run is handed this with it.
                    chunk.memory->unit[unit].cache.store(&cache, std::memory_order_relaxed);
                }
                chunk.free -= units;
                free_units_ -= units;
                MemUnit& run = chunk.memory->unit[first];
                run.units = static_cast<std::uint8_t>(units);
                run.size_class = static_cast<std::uint8_t>(cls);
                run.carved = run.free = 0;
                poison(chunk.memory->begin_of(first), units * kMemUnitBytes);
                cache.set_run(cls, chunk.memory->begin_of(first), chunk.memory->begin_of(i + 1));
                return true;
            }
        }
        return false;
    }

    void give_run(MemChunk& memory, std::size_t first) noexcept {
        ChunkUse& chunk = chunks_[memory.unit[0].first];
        const std::size_t end = first + memory.unit[first].units;
        chunk.free += end - first;
        free_units_ += end - first;
        for (std::size_t unit = first; unit < end; ++unit) {
            chunk.used.reset(unit);
            memory.unit[unit].cache.store(nullptr, std::memory_order_relaxed);  // relaxed: as in take_run()
        }
    }

    MemCollected collect(MemCache* own) noexcept {
        MemCollected all;
        const auto reachable = [&](const MemCache& cache) { return &cache == own || cache.idle(); };
        for (const auto& cache : caches_) {
            if (!reachable(*cache)) continue;
            if (BlockHeader* const broken = cache->return_stolen(reachable)) all.broken = broken;
        }
        for (const auto& cache : caches_) {
            if (!reachable(*cache)) continue;
            const MemCollected one = cache->collect(chunks_, [&](MemChunk& chunk, std::size_t first) { give_run(chunk, first); });
            all.blocks += one.blocks;
            all.found_run = all.found_run || one.found_run;
            if (one.broken != nullptr) all.broken = one.broken;
        }
        return all;
    }

    [[nodiscard]] std::uint64_t total_released() const noexcept {
        std::uint64_t sum = 0;
        for (const auto& cache : caches_)
            for (std::size_t cls = 0; cls < kMemClasses; ++cls) sum += cache->of(cls).frees.get() + cache->pending(cls);
        return sum;
    }

    /// Maps chunks until `wanted` units are free.
    bool grow_to(std::size_t wanted) {
        if (wanted > free_units_ && wanted - free_units_ > units_left_) return false;
        while (free_units_ < wanted) {
            if (map(std::min(wanted - free_units_, kMemUnits - 1)) == 0) return false;
        }
        return true;
    }

    /// Makes up to `units` more units usable, in a chunk that has some left or else in a new one. Returns how many; 0: the limit is met, or
    /// the system has none.
    std::size_t map(std::size_t units) {
        units = std::min(units, units_left_);
        if (units == 0) return 0;
        for (ChunkUse& chunk : chunks_) {
            if (chunk.memory == nullptr || chunk.units == kMemUnits - 1) continue;
            const std::size_t more = std::min(units, kMemUnits - 1 - chunk.units);
            chunk.units += more;
            chunk.free += more;
            free_units_ += more;
            units_left_ -= more;
            return more;
        }
        auto number = static_cast<std::size_t>(
            std::ranges::find_if(chunks_, [](const ChunkUse& chunk) { return chunk.memory == nullptr; }) - chunks_.begin());
        if (number == chunk_table_.size()) return 0;
        if (number == chunks_.size()) chunks_.emplace_back();
        void* const memory = map_mem_chunk();
        if (memory == nullptr) return 0;
        {
            const std::lock_guard lock(map_mutex());
            if (!MemChunkMap::insert(memory)) {
                unmap_mem_chunk(memory);
                return 0;
            }
        }
        auto* const chunk = new (memory) MemChunk;
        chunk->unit[0].first = static_cast<std::uint16_t>(number);
        chunks_[number] = ChunkUse{.memory = chunk, .units = units, .free = units};
        free_units_ += units;
        chunk_table_[number] = chunk;
        units_left_ -= units;
        return units;
    }

    void unmap(ChunkUse& chunk) noexcept {
        {
            const std::lock_guard lock(map_mutex());
            MemChunkMap::erase(chunk.memory);
        }
        unmap_mem_chunk(chunk.memory);
        units_left_ += chunk.units;
        free_units_ -= chunk.free;
        chunk_table_[static_cast<std::size_t>(&chunk - chunks_.data())] = nullptr;
        chunk = ChunkUse{};
    }

    void unmap_all() noexcept {
        for (ChunkUse& chunk : chunks_)
            if (chunk.memory != nullptr) unmap(chunk);
    }

    /// Of MemChunkMap's writers.
    [[nodiscard]] static std::mutex& map_mutex() {
        static auto& mutex = *new std::mutex;
        return mutex;
    }

    const std::uint64_t id_;
    MemoryPoolOptions options_;
    mutable std::mutex mutex_;
    std::size_t units_left_;        // that may still be mapped
    std::size_t free_units_ = 0;    // in no run
    std::vector<ChunkUse> chunks_;  // by number; numbers are used again
    std::vector<MemChunk*>
        chunk_table_;  // the same for caches, which read entries of their own chunks without the lock: never resized
    std::vector<std::unique_ptr<MemCache>> caches_;
    std::uint64_t reclaim_after_ = 0;
    std::atomic<std::uint64_t> escaped_{0};
    std::atomic<std::uint64_t> misuses_{0};
    std::atomic<std::uint64_t> hook_errors_{0};
    // Under the registry's lock.
    bool closed_ = false;
    std::uint64_t closed_releases_ = 0;
    std::uint64_t next_look_ = 0;
};

}  // namespace muses::detail
