// The memory under a memory pool: chunks at addresses that are multiples of 1 MiB, and the one map of all chunks in the process.
//
// A chunk is cut into units of 4096 bytes. The first unit describes the others, so the way from a block to whoever owns it is a mask
// and a load. Whether an address lies in a chunk at all is asked of the map, which is never wrong and touches no memory of the one
// who asks: that is why a pointer that is no block is found out without being followed.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "muses/detail/mem_sanitizer.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define MUSES_DETAIL_MEM_MMAP 1
#endif

namespace muses::detail {

class MemCache;

inline constexpr std::size_t kMemChunkBytes = std::size_t{1} << 20U;
inline constexpr std::size_t kMemUnitBytes = 4096;
inline constexpr std::size_t kMemUnits = kMemChunkBytes / kMemUnitBytes;

/// One unit of a chunk. Units are given out in runs; each unit of a run tells its first one, which tells the rest.
struct MemUnit {
    std::atomic<MemCache*> cache{nullptr};  ///< who carves blocks from the run; null: nobody, and so there is no block
    std::uint16_t first = 0;                ///< index of the run's first unit; in unit 0: the number of the chunk in its pool
    std::uint8_t units = 0;                 ///< in the first unit: length of the run
    std::uint8_t size_class = 0;            ///< in the first unit: of the run's blocks
    std::uint16_t carved = 0;               ///< in the first unit: blocks that have been cut from the run
    std::uint16_t free = 0;                 ///< in the first unit: of these, how many a walk over the free-lists has met
};

/// The first unit of a chunk.
struct MemChunk {
    std::array<MemUnit, kMemUnits> unit{};

    [[nodiscard]] static MemChunk* of(const void* inside) noexcept {
        return reinterpret_cast<MemChunk*>(reinterpret_cast<std::uintptr_t>(inside) & ~(kMemChunkBytes - 1));
    }
    [[nodiscard]] static std::size_t unit_of(const void* inside) noexcept {
        return (reinterpret_cast<std::uintptr_t>(inside) / kMemUnitBytes) % kMemUnits;
    }
    [[nodiscard]] std::byte* begin_of(std::size_t index) noexcept {
        return reinterpret_cast<std::byte*>(this) + index * kMemUnitBytes;
    }
    [[nodiscard]] MemUnit& first_of_run(const void* inside) noexcept { return unit[unit[unit_of(inside)].first]; }
};
static_assert(sizeof(MemChunk) == kMemUnitBytes, "the description of a chunk is its first unit");

/// What: the set of all chunks, by address.
/// Complexity: contains: two loads.
/// Threads: any.
/// Lifetime: of the process; a leaf of 16 KiB for each 16 GiB of address space in use is never given back.
/// Limits: addresses below 2^47; a chunk beyond is refused by insert.
class MemChunkMap {
public:
    [[nodiscard]] static bool contains(const void* pointer) noexcept {
        const std::uint64_t number = number_of(pointer);
        if (number >= kRoots * kLeafSize) return false;
        // Acquire: pairs with the release in insert(), so that the leaf is seen cleared.
        const Leaf* const leaf = roots()[number / kLeafSize].load(std::memory_order_acquire);
        // Relaxed: whoever has a block's address got it after the chunk came in.
        return leaf != nullptr && (*leaf)[number % kLeafSize].load(std::memory_order_relaxed);
    }

    /// False when the address is out of range or there is no memory for a leaf. Calls must not overlap.
    [[nodiscard]] static bool insert(const void* chunk) noexcept {
        const std::uint64_t number = number_of(chunk);
        if (number >= kRoots * kLeafSize) return false;
        std::atomic<Leaf*>& root = roots()[number / kLeafSize];
        // Relaxed: two calls never overlap, and the lock that sees to it orders them.
        Leaf* leaf = root.load(std::memory_order_relaxed);
        if (leaf == nullptr) {
            leaf = new (std::nothrow) Leaf{};
            if (leaf == nullptr) return false;
            root.store(leaf, std::memory_order_release);  // pairs with the acquire in contains()
        }
        (*leaf)[number % kLeafSize].store(true, std::memory_order_relaxed);  // see contains()
        return true;
    }

    /// `chunk` is in the map and holds no block.
    static void erase(const void* chunk) noexcept {
        const std::uint64_t number = number_of(chunk);
        // Relaxed: insert() of this chunk was earlier, under the same lock; and nobody has an address inside.
        (*roots()[number / kLeafSize].load(std::memory_order_relaxed))[number % kLeafSize].store(false, std::memory_order_relaxed);
    }

private:
    static constexpr std::size_t kLeafSize = std::size_t{1} << 14U;
    static constexpr std::size_t kRoots = std::size_t{1} << 13U;
    using Leaf = std::array<std::atomic<bool>, kLeafSize>;

    [[nodiscard]] static std::uint64_t number_of(const void* pointer) noexcept {
        return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer)) / kMemChunkBytes;
    }
    [[nodiscard]] static std::array<std::atomic<Leaf*>, kRoots>& roots() noexcept {
        static constinit std::array<std::atomic<Leaf*>, kRoots> all{};
        return all;
    }
};

/// A chunk of zeroed memory, or null. Always whole, though not all of it may be used yet: nobody else's memory may lie at an address for
/// which the map says that it is in a chunk. What is never written to costs addresses only.
[[nodiscard]] inline void* map_mem_chunk() noexcept {
#if defined(MUSES_DETAIL_MEM_MMAP)
    // An aligned piece is somewhere in twice the size; the rest goes back at once.
    void* const mapped = ::mmap(nullptr, 2 * kMemChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(mapped);
    const std::size_t before = (kMemChunkBytes - reinterpret_cast<std::uintptr_t>(mapped) % kMemChunkBytes) % kMemChunkBytes;
    if (before != 0) (void)::munmap(begin, before);
    (void)::munmap(begin + before + kMemChunkBytes, kMemChunkBytes - before);
    void* const chunk = begin + before;
#else
    void* const chunk = ::operator new(kMemChunkBytes, std::align_val_t{kMemChunkBytes}, std::nothrow);
    if (chunk == nullptr) return nullptr;
#endif
    may_hold_pointers(chunk, kMemChunkBytes);
    return chunk;
}

inline void unmap_mem_chunk(void* chunk) noexcept {
    holds_no_pointers(chunk, kMemChunkBytes);
    unpoison(chunk, kMemChunkBytes);  // whoever gets these addresses next knows nothing of us
#if defined(MUSES_DETAIL_MEM_MMAP)
    (void)::munmap(chunk, kMemChunkBytes);
#else
    ::operator delete(chunk, std::align_val_t{kMemChunkBytes});
#endif
}

}  // namespace muses::detail
