// One thread's share of a memory pool: per size class a list of free blocks that only this thread touches, and a stack onto which
// other threads put the blocks of it that they free.
//
// A cache belongs to its pool and is lent to a thread. When the thread ends, the cache goes back and the next thread gets it with
// everything in it; blocks keep their cache meanwhile, so freeing one works the same before, during and after the change.
//
// The stack is one word per size class: a block and a count. Others only push, by compare-and-exchange; the owner only takes all of
// it, by exchange. So there is no ABA: a push stores into its block the very word part that the exchange then compares, and if that
// word was taken and came back in between, the link is still right, because it names the block and says nothing about what follows
// it. A block is named by chunk and place in the chunk, which leaves half a word for the count: stats() needs it, and it costs no
// second atomic operation.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "muses/detail/cache_line.hpp"
#include "muses/detail/mem_block.hpp"
#include "muses/detail/mem_chunk.hpp"
#include "muses/detail/mem_classes.hpp"

namespace muses::detail {

class MemCore;

/// What a walk over free-lists met.
struct MemCollected {
    std::size_t blocks = 0;
    bool found_run = false;         ///< a run came free
    BlockHeader* broken = nullptr;  ///< a block whose header was written over; its list was cut off there
};

/// A counter that one thread writes and all may read: no locked instruction.
class OwnedCounter {
public:
    /// Relaxed, and not one operation: only the owner writes, and readers want a number that was true at some time.
    void add(std::uint64_t n) noexcept { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
    /// As add(1), as the last thing that is done to a block: pairs with the acquire in get().
    void add_one_last() noexcept { value_.store(value_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
    /// Acquire: pairs with the release in add_one_last(), so that who counts a block as freed may unmap it.
    [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_acquire); }

private:
    std::atomic<std::uint64_t> value_{0};
};

/// What: free blocks of every size class, cut from runs of units that are this cache's own.
/// Complexity: O(1), except collect, which walks the free-lists.
/// Threads: push_remote, owner and the counters from any; the rest from the one thread that holds the cache: the owner, or whoever
///     holds the pool's lock while there is no owner.
/// Lifetime: as long as its pool's memory.
/// Limits: a free block stays in its size class until collect() finds its whole run free.
class MemCache {
public:
    struct alignas(kCacheLine) SizeClass {
        BlockHeader* free = nullptr;
        OwnedCounter hits;
        OwnedCounter frees;
        OwnedCounter misses;
        std::byte* bump = nullptr;  ///< where the next block is cut, up to bump_end
        std::byte* bump_end = nullptr;
        std::uint32_t carved = 0;      ///< blocks in all runs
        std::uint16_t next_units = 0;  ///< wanted length of the next run
        bool at_limit = false;         ///< the last wish for a run was not granted
        OwnedCounter high_water;
    };

    /// `chunks` is the pool's table of chunks by number.
    MemCache(MemCore& core, MemChunk* const* chunks) noexcept : core_(&core), chunks_(chunks) {}
    MemCache(const MemCache&) = delete;
    MemCache& operator=(const MemCache&) = delete;

    [[nodiscard]] MemCore& core() const noexcept { return *core_; }

    /// Whether the calling thread, known by `token`, holds the cache. Relaxed: a thread reads what it wrote last itself, or a null or
    /// a token that somebody wrote later; never an old one of its own.
    [[nodiscard]] bool held_by(const void* token) const noexcept { return owner_.load(std::memory_order_relaxed) == token; }
    [[nodiscard]] bool idle() const noexcept { return held_by(nullptr); }
    /// Under the pool's lock, which hands the cache's contents over.
    void lend_to(const void* token) noexcept { owner_.store(token, std::memory_order_relaxed); }

    /// The pool object is gone: releases from now on are counted by whoever makes them. The owner is cleared, too, so that its thread
    /// comes here to see it.
    void close() noexcept {
        closed_.store(true, std::memory_order_release);  // pairs with the acquire in closed()
        lend_to(nullptr);
    }
    [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

    // --- the owner's fast paths

    /// A block from the free-list, still marked free. Null when there is none, or when the first one's header was written over.
    [[nodiscard]] BlockHeader* take(std::size_t cls) noexcept {
        SizeClass& c = classes_[cls];
        BlockHeader* const block = c.free;
        if (block == nullptr || !block->is(BlockHeader::State::Free)) [[unlikely]]
            return nullptr;
        // Relaxed: links of own blocks were written by this thread, those of others came with the exchange in drain().
        const std::uint64_t link = block->word.load(std::memory_order_relaxed);
        BlockHeader* const next = follow(link);
        if ((link & 1U) != 0) {
            // Headers that another thread wrote are in its processor's cache, and each names only the next one. Blocks are often released
            // in the order in which they were cut, so a guess finds the one after some more; a wrong guess costs nothing but itself.
            const auto at = reinterpret_cast<std::uintptr_t>(next);
            __builtin_prefetch(reinterpret_cast<const void*>(at + 4 * (at - reinterpret_cast<std::uintptr_t>(block))), 1);
        }
        c.free = next;
        return block;
    }

    /// After take() has returned null: the block whose header was written over, or null. The list is dropped, as nobody knows how it
    /// goes on.
    [[nodiscard]] BlockHeader* drop_broken(std::size_t cls) noexcept { return std::exchange(classes_[cls].free, nullptr); }

    /// Takes a block that is marked live, and has no holders, into the free-list.
    void push(BlockHeader* block) noexcept {
        SizeClass& c = classes_[block->size_class()];
        make_free(block, link_to(c.free));
        c.free = block;
        c.frees.add_one_last();
    }

    /// The same from a thread that does not hold the cache: one compare-and-exchange. Nothing here is touched after it.
    void push_remote(BlockHeader* block) noexcept {
        std::atomic<std::uint64_t>& stack = remote_[block->size_class()];
        make_free(block, 0);
        const std::uint64_t name = name_of(block);
        std::uint64_t top = stack.load(std::memory_order_relaxed);  // relaxed: only its value is used, nothing that it names
        do {
            block->word.store((top & kNameMask) << 1U | 1U, std::memory_order_relaxed);  // relaxed: published by the exchange
            // Release: pairs with the acquires in drain() and pending().
        } while (!stack.compare_exchange_weak(top, ((top & ~kNameMask) + kOne) | name, std::memory_order_release,
                                              std::memory_order_relaxed));
    }

    // --- the owner's slow paths

    /// Moves the blocks that others have released into the free-list, which is empty. Returns how many.
    std::size_t drain(std::size_t cls) noexcept {
        std::atomic<std::uint64_t>& stack = remote_[cls];
        if (stack.load(std::memory_order_relaxed) == 0) return 0;  // relaxed: if one comes right now, the next call takes it
        // Acquire: pairs with the release in push_remote(); earlier pushes are in its release sequence.
        const std::uint64_t all = stack.exchange(0, std::memory_order_acquire);
        classes_[cls].free = block_named(all & kNameMask);
        classes_[cls].frees.add(all / kOne);
        return static_cast<std::size_t>(all / kOne);
    }

    /// Cuts a new block from the current run; null when it is used up.
    [[nodiscard]] BlockHeader* carve(std::size_t cls) noexcept {
        SizeClass& c = classes_[cls];
        const std::size_t stride = mem_class_bytes(cls) + sizeof(BlockHeader);
        if (static_cast<std::size_t>(c.bump_end - c.bump) < stride) return nullptr;
        unpoison(c.bump, sizeof(BlockHeader));
        auto* const block = new (c.bump) BlockHeader(cls, 0, BlockHeader::State::Free);
        c.bump += stride;
        MemChunk::of(block)->first_of_run(block).carved++;
        // Blocks are cut when none is free, so all that were ever cut are out now; but see carve_free().
        if (++c.carved > c.high_water.get()) c.high_water.add(1);
        return block;
    }

    /// As carve(), into the free-list.
    bool carve_free(std::size_t cls) noexcept {
        BlockHeader* const block = carve(cls);
        if (block == nullptr) return false;
        block->word.store(link_to(classes_[cls].free), std::memory_order_relaxed);  // relaxed: only the owner sees the list
        classes_[cls].free = block;
        return true;
    }

    /// Makes [begin, end) the run that carve() cuts from.
    void set_run(std::size_t cls, std::byte* begin, std::byte* end) noexcept {
        classes_[cls].bump = begin;
        classes_[cls].bump_end = end;
    }

    /// Moves another cache's free-list here, where it is empty. The blocks stay the other's: released, they go back to it.
    bool steal(MemCache& other, std::size_t cls) noexcept {
        SizeClass& theirs = other.classes_[cls];
        if (theirs.free == nullptr && other.drain(cls) == 0) return false;
        classes_[cls].free = theirs.free;
        theirs.free = nullptr;
        has_stolen_ = true;
        return true;
    }

    /// Moves stolen blocks to the free-lists of their own caches, where reachable(cache) allows it. Returns a block whose header was
    /// written over, if one was met; its list is cut off there.
    template <class Reachable>
    BlockHeader* return_stolen(Reachable reachable) noexcept {
        if (!std::exchange(has_stolen_, false)) return nullptr;
        BlockHeader* broken = nullptr;
        for (std::size_t cls = 0; cls < kMemClasses; ++cls) {
            BlockHeader* block = std::exchange(classes_[cls].free, nullptr);
            while (block != nullptr && block->is(BlockHeader::State::Free)) {
                BlockHeader* const next = follow(block->word.load(std::memory_order_relaxed));  // relaxed: see take()
                // Relaxed: caches of units change under the pool's lock, which is held.
                MemCache* to = MemChunk::of(block)->unit[MemChunk::unit_of(block)].cache.load(std::memory_order_relaxed);
                if (to != this && !reachable(*to)) {
                    to = this;
                    has_stolen_ = true;
                }
                block->word.store(link_to(to->classes_[cls].free), std::memory_order_relaxed);
                to->classes_[cls].free = block;
                block = next;
            }
            if (block != nullptr) broken = block;
        }
        return broken;
    }

    /// Takes runs without a block in use out of the free-lists, and calls give(chunk, first unit) for each of them.
    template <class Chunks, class Give>
    MemCollected collect(const Chunks& chunks, Give give) noexcept {
        MemCollected done;
        for (std::size_t cls = 0; cls < kMemClasses; ++cls) {
            SizeClass& c = classes_[cls];
            BlockHeader* const listed = c.free;
            c.free = nullptr;
            (void)drain(cls);
            BlockHeader* const returned = c.free;
            c.free = nullptr;
            count_free(listed, done);
            count_free(returned, done);
            keep_used_runs(c, returned);
            keep_used_runs(c, listed);
        }
        for (const auto& use : chunks) {
            MemChunk* const chunk = use.memory;
            if (chunk == nullptr) continue;
            for (std::size_t i = 1; i < kMemUnits;) {
                MemUnit& run = chunk->unit[i];
                // Relaxed: caches of units change under the pool's lock, which is held.
                if (run.cache.load(std::memory_order_relaxed) != this) {
                    i += 1;
                    continue;
                }
                const std::size_t next = i + run.units;
                if (run.free == run.carved) {
                    retire_run(*chunk, i);
                    give(*chunk, i);
                    done.found_run = true;
                } else {
                    run.free = 0;
                }
                i = next;
            }
        }
        return done;
    }

    // --- counters

    [[nodiscard]] SizeClass& of(std::size_t cls) noexcept { return classes_[cls]; }
    [[nodiscard]] const SizeClass& of(std::size_t cls) const noexcept { return classes_[cls]; }

    /// Blocks that others have released and that have not been drained.
    [[nodiscard]] std::uint64_t pending(std::size_t cls) const noexcept {
        return remote_[cls].load(std::memory_order_acquire) / kOne;  // pairs with the release in push_remote()
    }

private:
    static constexpr std::uint64_t kOne = std::uint64_t{1} << 32U;
    static constexpr std::uint64_t kNameMask = kOne - 1;

    // A block's name: number of the chunk, and its place in the chunk in grains. Never 0, as the first unit holds no block.
    [[nodiscard]] static std::uint64_t name_of(const BlockHeader* block) noexcept {
        const MemChunk* const chunk = MemChunk::of(block);
        const auto place =
            static_cast<std::uint64_t>(reinterpret_cast<const std::byte*>(block) - reinterpret_cast<const std::byte*>(chunk));
        return std::uint64_t{chunk->unit[0].first} << 16U | place / kMemGrain;
    }
    [[nodiscard]] BlockHeader* block_named(std::uint64_t name) const noexcept {
        if (name == 0) return nullptr;
        return reinterpret_cast<BlockHeader*>(reinterpret_cast<std::byte*>(chunks_[name >> 16U]) + (name & 0xFFFFU) * kMemGrain);
    }

    // A link is an address, or, with the lowest bit set, a name.
    [[nodiscard]] static std::uint64_t link_to(BlockHeader* block) noexcept { return reinterpret_cast<std::uintptr_t>(block); }
    [[nodiscard]] BlockHeader* follow(std::uint64_t link) const noexcept {
        if ((link & 1U) != 0) return block_named(link >> 1U);
        return reinterpret_cast<BlockHeader*>(static_cast<std::uintptr_t>(link));
    }

    static void make_free(BlockHeader* block, std::uint64_t link) noexcept {
        block->become(BlockHeader::State::Live, BlockHeader::State::Free);
        block->word.store(link, std::memory_order_relaxed);  // relaxed: the list that it goes to publishes it
        poison(block->payload(), mem_class_bytes(block->size_class()));
    }

    // A stolen block stays in the list, and counts in no run.
    [[nodiscard]] MemUnit* own_run_of(const BlockHeader* block) const noexcept {
        MemUnit& run = MemChunk::of(block)->first_of_run(block);
        // Relaxed: caches of units change under the pool's lock, which is held.
        return run.cache.load(std::memory_order_relaxed) == this ? &run : nullptr;
    }

    void count_free(BlockHeader* block, MemCollected& done) const noexcept {
        // Relaxed, here and below: see take().
        for (; block != nullptr; block = follow(block->word.load(std::memory_order_relaxed)), ++done.blocks) {
            if (!block->is(BlockHeader::State::Free)) {
                done.broken = block;
                return;
            }
            if (MemUnit* const run = own_run_of(block)) run->free++;
        }
    }

    void keep_used_runs(SizeClass& c, BlockHeader* block) noexcept {
        while (block != nullptr && block->is(BlockHeader::State::Free)) {
            BlockHeader* const next = follow(block->word.load(std::memory_order_relaxed));
            const MemUnit* const run = own_run_of(block);
            if (run == nullptr || run->free != run->carved) {
                block->word.store(link_to(c.free), std::memory_order_relaxed);
                c.free = block;
            }
            block = next;
        }
    }

    void retire_run(MemChunk& chunk, std::size_t first) noexcept {
        MemUnit& run = chunk.unit[first];
        SizeClass& c = classes_[run.size_class];
        c.carved -= run.carved;
        if (c.bump_end == chunk.begin_of(first) + run.units * kMemUnitBytes) c.bump = c.bump_end = nullptr;
    }

    // Read by all.
    alignas(kCacheLine) std::atomic<const void*> owner_{nullptr};
    std::atomic<bool> closed_{false};
    MemCore* core_;
    MemChunk* const* chunks_;
    // Written by the owner.
    bool has_stolen_ = false;
    std::array<SizeClass, kMemClasses> classes_;
    // Written by the others.
    alignas(kCacheLine) std::array<std::atomic<std::uint64_t>, kMemClasses> remote_{};
};

}  // namespace muses::detail
