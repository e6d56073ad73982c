// What is done to a block: out of a pool, one holder more or less, and home again. Also: which thread holds which cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "muses/detail/mem_block.hpp"
#include "muses/detail/mem_cache.hpp"
#include "muses/detail/mem_chunk.hpp"
#include "muses/detail/mem_classes.hpp"
#include "muses/detail/mem_core.hpp"
#include "muses/detail/mem_escaped.hpp"
#include "muses/detail/mem_options.hpp"
#include "muses/detail/mem_registry.hpp"
#include "muses/detail/mem_sanitizer.hpp"

namespace muses::detail {

/// The caches that the thread used last, where one load finds them: no constructor, no destructor, so no guard. Its address is the
/// thread's token.
struct MemThread {
    struct Slot {
        std::uint64_t pool = 0;  ///< numbers of pools are never used again, so a slot of a pool that is gone fits nothing
        MemCache* cache = nullptr;
    };
    static constexpr std::size_t kSlots = 4;
    Slot slot[kSlots]{};
    bool ended = false;  ///< the thread's leases have been given back; destructors that run still later get ESCAPED blocks
};
inline constinit thread_local MemThread mem_thread{};

/// What: all the caches that one thread holds. They go back to their pools when the thread ends.
/// Complexity: find: O(pools that this thread has used).
/// Threads: the one whose it is.
/// Lifetime: of the thread; later destructors of thread_local objects find MemThread::ended.
/// Limits: none.
class MemLeases {
public:
    struct Lease {
        std::uint64_t pool;
        MemCache* cache;
    };

    MemLeases() = default;
    MemLeases(const MemLeases&) = delete;
    MemLeases& operator=(const MemLeases&) = delete;
    ~MemLeases() {
        mem_thread = MemThread{.slot = {}, .ended = true};
        MemRegistry::instance().for_each_open(held_, [](MemCore& core, const Lease& lease) { core.take_back(*lease.cache); });
    }

    [[nodiscard]] static MemLeases& mine() {
        static thread_local MemLeases leases;
        return leases;
    }

    /// The cache of the pool that this thread holds, or null.
    [[nodiscard]] MemCache* find(std::uint64_t pool) const noexcept {
        for (const Lease& lease : held_)
            if (lease.pool == pool) return lease.cache;
        return nullptr;
    }

    /// The cache of the pool for this thread. Throws std::bad_alloc.
    [[nodiscard]] MemCache& of(MemCore& core) {
        MemCache* cache = find(core.id());
        if (cache == nullptr) {
            forget_closed();
            held_.reserve(held_.size() + 1);
            cache = &core.lend(&mem_thread);
            held_.push_back({core.id(), cache});
        }
        mem_thread.slot[core.id() % MemThread::kSlots] = {core.id(), cache};
        return *cache;
    }

    /// The pool object is going.
    void forget(std::uint64_t pool) noexcept {
        std::erase_if(held_, [&](const Lease& lease) { return lease.pool == pool; });
    }

private:
    void forget_closed() {
        std::vector<Lease> open;
        open.reserve(held_.size());
        MemRegistry::instance().for_each_open(held_, [&](MemCore&, const Lease& lease) { open.push_back(lease); });
        held_ = std::move(open);
    }

    std::vector<Lease> held_;
};

/// Where a pointer leads.
struct MemFound {
    BlockHeader* header = nullptr;
    MemCache* cache = nullptr;  ///< null: no address in a run, so the header must not be looked at
};

/// Reads nothing but the map and the descriptions of chunks.
[[nodiscard]] inline MemFound find_block(void* payload) noexcept {
    BlockHeader* const header = BlockHeader::of(payload);
    if (reinterpret_cast<std::uintptr_t>(payload) % kMemGrain != 0 || !MemChunkMap::contains(header)) return {};
    // Relaxed: the unit of a block that is out does not change.
    return {header, MemChunk::of(header)->unit[MemChunk::unit_of(header)].cache.load(std::memory_order_relaxed)};
}

/// What became of a change to the holders of a block.
enum class MemHold : std::uint8_t { Held, Last, NoHolder, NotLive, Foreign };

/// Takes one holder: Last when it was that, NoHolder when there is none.
[[nodiscard]] inline MemHold drop_holder(std::atomic<std::uint64_t>& holders) noexcept {
    // Acquire: pairs with the release in the fetch_sub of whoever held the block before. Who reads 1 is the one holder: nobody else can
    // add one, because only a holder may retain(), and nobody else can take one. So the count needs no locked instruction.
    const std::uint64_t count = holders.load(std::memory_order_acquire);
    if (count == 1) {
        holders.store(0, std::memory_order_relaxed);  // relaxed: nobody is left to see it but misuse
        return MemHold::Last;
    }
    if (count == 0) return MemHold::NoHolder;
    // Release: what this holder did to the block comes before its end. Acquire: for the last one, who frees it.
    return holders.fetch_sub(1, std::memory_order_acq_rel) == 1 ? MemHold::Last : MemHold::Held;
}

/// Adds one holder unless there is none: a count never goes from 0 to 1. False when there is none.
[[nodiscard]] inline bool add_holder(std::atomic<std::uint64_t>& holders) noexcept {
    std::uint64_t count = holders.load(std::memory_order_relaxed);  // relaxed: the exchange decides
    do {
        if (count == 0) return false;
        // Relaxed: the caller is a holder, so it has seen what a new one needs to see, and hands it over with the pointer.
    } while (!holders.compare_exchange_weak(count, count + 1, std::memory_order_relaxed));
    return true;
}

/// Brings a block without holders home, from any thread.
[[gnu::noinline]] inline void bring_home_slowly(const MemFound& found) noexcept {
    BlockHeader* block = found.header;
    if (const std::size_t back = block->back(); back != 0) {
        block->become(BlockHeader::State::Live, BlockHeader::State::Free);
        block -= back;
        block->become(BlockHeader::State::Inner, BlockHeader::State::Live);
    }
    if (found.cache->held_by(&mem_thread)) return found.cache->push(block);
    if (!found.cache->closed()) return found.cache->push_remote(block);
    MemRegistry::instance().release_closed(found.cache->core(), block);
}

/// Whether a block in a run is to be brought home by its owner, without anything special.
[[nodiscard]] inline bool at_home(const MemFound& found) noexcept {
    return found.cache->held_by(&mem_thread) && found.header->back() == 0;
}

/// Takes one holder from what may be an ESCAPED block.
[[gnu::noinline]] inline MemHold drop_escaped(void* payload) noexcept {
    return EscapedBlocks::with(payload, MemHold::Foreign, [](BlockHeader& header) {
        return header.is(BlockHeader::State::Live) ? drop_holder(header.word) : MemHold::NotLive;
    });
}

[[gnu::cold, gnu::noinline]] inline void report_misuse(MemHold outcome, void* payload, MemCore* asked) noexcept {
    const MemFound found = find_block(payload);
    PoolMisuse misuse = PoolMisuse::BrokenHeader;
    if (outcome == MemHold::Foreign) misuse = PoolMisuse::ForeignPointer;
    if (outcome == MemHold::NoHolder || (found.cache != nullptr && found.header->is(BlockHeader::State::Free)))
        misuse = PoolMisuse::DoubleRelease;
    // The pool of the block, or else the pool that was asked, or else stderr.
    MemCore* const core = found.cache != nullptr ? &found.cache->core() : asked;
    core != nullptr ? core->report(misuse, payload) : mem_default_misuse(misuse, payload);
}

/// As release_block, for every case.
[[gnu::noinline]] inline bool release_slowly(void* payload, MemCore* asked) noexcept {
    const MemFound found = find_block(payload);
    MemHold outcome = MemHold::NotLive;
    if (found.cache == nullptr) {
        outcome = drop_escaped(payload);
        if (outcome == MemHold::Last) EscapedBlocks::give_back(payload);
    } else if (found.header->is(BlockHeader::State::Live)) {
        outcome = drop_holder(found.header->word);
        if (outcome == MemHold::Last) bring_home_slowly(found);
    }
    if (outcome > MemHold::Last) report_misuse(outcome, payload, asked);
    return outcome == MemHold::Last;
}

/// Takes one holder; the last one frees the block: true. Misuse is reported, to `asked` if no pool is known by the pointer, and nothing
/// is done.
inline bool release_block(void* payload, MemCore* asked) noexcept {
    const MemFound found = find_block(payload);
    // Acquire: as in drop_holder().
    if (found.cache != nullptr && found.header->is(BlockHeader::State::Live) &&
        found.header->word.load(std::memory_order_acquire) == 1 && at_home(found)) [[likely]] {
        found.cache->push(found.header);
        return true;
    }
    return release_slowly(payload, asked);
}

/// Adds one holder. Misuse is reported and nothing is done.
inline void retain_block(void* payload, MemCore* asked) noexcept {
    const auto add = [](BlockHeader& header) {
        if (!header.is(BlockHeader::State::Live)) return MemHold::NotLive;
        return add_holder(header.word) ? MemHold::Held : MemHold::NoHolder;
    };
    const MemFound found = find_block(payload);
    const MemHold outcome = found.cache != nullptr ? add(*found.header) : EscapedBlocks::with(payload, MemHold::Foreign, add);
    if (outcome != MemHold::Held) [[unlikely]]
        report_misuse(outcome, payload, asked);
}

// The same two for handles, whose pointer is known to have been a block when they got it: without the search, as long as they are not
// the last. A handle whose block was released behind its back is caught by the cookie, if its memory is still there.

inline void retain_handle(void* payload) noexcept {
    BlockHeader& header = *BlockHeader::of(payload);
    if (header.is(BlockHeader::State::Live)) [[likely]] {
        // Relaxed: as in add_holder(), without the loop: the handle that is copied is a holder.
        if (header.word.fetch_add(1, std::memory_order_relaxed) != 0) [[likely]]
            return;
        header.word.fetch_sub(1, std::memory_order_relaxed);  // relaxed: the object is being destroyed; this is misuse
    }
    report_misuse(MemHold::NotLive, payload, nullptr);
}

/// `destroy` is called when it was the last holder, before the block goes home.
template <class Destroy>
inline void release_handle(void* payload, Destroy destroy) noexcept {
    BlockHeader& header = *BlockHeader::of(payload);
    if (!header.is(BlockHeader::State::Live)) [[unlikely]]
        return report_misuse(MemHold::NotLive, payload, nullptr);
    // As in drop_holder(), but without a look first: in front of a locked instruction that follows another one, as when a copy is made
    // and ends soon, the look costs more than it saves.
    const std::uint64_t before = header.word.fetch_sub(1, std::memory_order_acq_rel);
    if (before > 1) return;
    if (before == 0) [[unlikely]] {
        header.word.fetch_add(1, std::memory_order_relaxed);  // relaxed: as in retain_handle()
        return report_misuse(MemHold::NoHolder, payload, nullptr);
    }
    destroy();
    const MemFound found = find_block(payload);
    if (found.cache == nullptr) [[unlikely]]
        return EscapedBlocks::give_back(payload);
    if (at_home(found)) [[likely]]
        return found.cache->push(found.header);
    bring_home_slowly(found);
}

/// Number of holders; 0 when the pointer is no block that is out. Acquire: pairs with the releases in drop_holder() and
/// release_handle(), so that who reads 1 in its own block may write to it: whoever else read from it has finished.
[[nodiscard]] inline std::uint64_t holders_of(void* payload) noexcept {
    const auto count = [](BlockHeader& header) {
        return header.is(BlockHeader::State::Live) ? header.word.load(std::memory_order_acquire) : std::uint64_t{0};
    };
    const MemFound found = find_block(payload);
    return found.cache != nullptr ? count(*found.header) : EscapedBlocks::with(payload, std::uint64_t{0}, count);
}

/// Whether the pointer is a block that is out; reports it when it is not.
[[nodiscard]] inline bool is_block(void* payload, MemCore* asked) noexcept {
    if (holders_of(payload) != 0) return true;
    report_misuse(find_block(payload).cache != nullptr ? MemHold::NotLive : MemHold::Foreign, payload, asked);
    return false;
}

/// Marks a free block as out, with one holder. Of `bytes` no more can be touched under AddressSanitizer.
[[nodiscard]] inline void* hand_out(BlockHeader* block, std::size_t bytes) noexcept {
    block->become(BlockHeader::State::Free, BlockHeader::State::Live);
    block->word.store(1, std::memory_order_relaxed);  // relaxed: whoever else sees the block gets it from this thread
    unpoison(block->payload(), bytes);
    return block->payload();
}

/// The same for the first place in the block that is aligned: a second header stands before it.
[[nodiscard]] inline void* hand_out_aligned(BlockHeader* block, std::size_t bytes, std::size_t alignment) noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(block->payload());
    const std::size_t shift = (alignment - begin % alignment) % alignment;
    if (shift == 0) return hand_out(block, bytes);
    std::byte* const place = static_cast<std::byte*>(block->payload()) + shift - sizeof(BlockHeader);
    unpoison(place, sizeof(BlockHeader));
    block->become(BlockHeader::State::Free, BlockHeader::State::Inner);
    return hand_out(new (place) BlockHeader(block->size_class(), shift / kMemGrain, BlockHeader::State::Free), bytes);
}

/// As many blocks should come back from other threads at a time, if they are small.
inline constexpr std::size_t kMemBatch = 32;

/// A block of the class for the calling thread, whose free-list is empty; null at the limit.
[[nodiscard]] inline BlockHeader* refill(MemCache& cache, std::size_t cls) {
    if (const std::size_t drained = cache.drain(cls); drained != 0) {
        // Who takes blocks one by one from the hands of the thread that releases them pays for a cache line that goes back and forth.
        // A few blocks more on the way, and they come in batches; once they do, no more are added.
        const std::size_t batch = std::min(kMemBatch, kMemUnitBytes * 4 / mem_class_bytes(cls));
        for (std::size_t i = drained; i < batch; ++i) {
            if (cache.carve_free(cls)) continue;
            if (cache.of(cls).at_limit || !cache.core().add_run(cache, cls)) break;
        }
        return cache.take(cls);
    }
    MemCore& core = cache.core();
    BlockHeader* block = cache.carve(cls);
    if (block == nullptr && core.add_run(cache, cls)) block = cache.carve(cls);
    if (block == nullptr && core.steal(cache, cls)) block = cache.take(cls);
    if (block == nullptr && core.reclaim(cache) && core.add_run(cache, cls)) block = cache.carve(cls);
    return block;
}

/// Everything but the fast path of an allocation. Throws std::invalid_argument for an alignment that is no power of two, and
/// std::bad_alloc.
[[nodiscard]] [[gnu::noinline]] inline void* allocate_slowly(MemCore& core, std::size_t bytes, std::size_t alignment) {
    if (!std::has_single_bit(alignment)) throw std::invalid_argument("muses::MemoryPool: the alignment must be a power of two");
    const std::size_t slack = alignment <= kMemGrain ? 0 : alignment - kMemGrain;
    if (alignment <= kMemMostAligned && bytes <= kMemLargest - slack && !mem_thread.ended) {
        MemCache& cache = MemLeases::mine().of(core);
        const std::size_t cls = mem_class_of(bytes + slack);
        BlockHeader* block = cache.take(cls);
        if (block != nullptr) {
            cache.of(cls).hits.add(1);
        } else {
            BlockHeader* const broken = cache.drop_broken(cls);
            block = refill(cache, cls);
            if (block != nullptr) cache.of(cls).misses.add(1);
            if (broken != nullptr) core.report(PoolMisuse::BrokenFreeList, broken->payload());  // last: the hook may use the pool
        }
        if (block != nullptr) return hand_out_aligned(block, bytes, slack == 0 ? kMemGrain : alignment);
    }
    void* const payload = EscapedBlocks::allocate(bytes, alignment);
    core.count_escaped();
    return payload;
}

/// A block for the calling thread: see MemoryPool::allocate.
[[nodiscard]] inline void* allocate_block(MemCore& core, std::uint64_t pool, std::size_t bytes, std::size_t alignment) {
    const MemThread::Slot& slot = mem_thread.slot[pool % MemThread::kSlots];
    if (alignment == kMemGrain && bytes <= kMemLargest && slot.pool == pool) [[likely]] {
        const std::size_t cls = mem_class_of(bytes);
        if (BlockHeader* const block = slot.cache->take(cls)) [[likely]] {
            slot.cache->of(cls).hits.add(1);
            return hand_out(block, bytes);
        }
    }
    return allocate_slowly(core, bytes, alignment);
}

/// The cache of the pool that the calling thread holds, or null.
[[nodiscard]] inline MemCache* held_cache(std::uint64_t pool) noexcept {
    return mem_thread.ended ? nullptr : MemLeases::mine().find(pool);
}

/// The pool object is going.
inline void close_pool(MemCore& core, std::uint64_t pool) noexcept {
    core.trim(held_cache(pool));  // what is still out may keep the rest for long
    MemRegistry::instance().close(core);
    if (!mem_thread.ended) MemLeases::mine().forget(pool);
}

}  // namespace muses::detail
