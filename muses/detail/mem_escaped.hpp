// Blocks that a memory pool could not take from its arena: they come from ::operator new, one by one, with the same header.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <unordered_set>

#include "muses/detail/cache_line.hpp"
#include "muses/detail/mem_block.hpp"

namespace muses::detail {

/// What: the blocks of the process that came from ::operator new, and the set of their addresses, so that a pointer that is none of
///     them is found out without being followed.
/// Complexity: O(1) expected, a lock, and an allocation for the set.
/// Threads: any. No lock is held while memory is asked for or given back, the set's own entries excepted.
/// Lifetime: the set is never destroyed: blocks may outlive their pools and the statics.
/// Limits: none but memory.
class EscapedBlocks {
public:
    /// A block of `bytes` with one holder. Throws std::bad_alloc, also when the sum with the header overflows.
    [[nodiscard]] static void* allocate(std::size_t bytes, std::size_t alignment) {
        const std::size_t lead = lead_of(alignment);
        constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
        if (lead > kMost || bytes > kMost - lead) throw std::bad_alloc();
        void* const raw = ::operator new(lead + bytes, std::align_val_t{lead});
        std::byte* const payload = static_cast<std::byte*>(raw) + lead;
        auto* const header = new (payload - sizeof(BlockHeader))
            BlockHeader(kMemEscaped, static_cast<std::size_t>(std::countr_zero(lead)), BlockHeader::State::Live);
        header->word.store(1, std::memory_order_relaxed);  // relaxed: whoever else sees the block gets it from this thread
        try {
            Shard& shard = shard_of(payload);
            const std::lock_guard lock(shard.mutex);
            shard.payloads.insert(payload);
        } catch (...) {
            ::operator delete(raw, std::align_val_t{lead});
            throw;
        }
        return payload;
    }

    /// Calls use(header) under the lock when `pointer` is in the set, and returns what it says; else `otherwise`.
    template <class Result, class Use>
    [[nodiscard]] static Result with(void* pointer, Result otherwise, Use use) {
        Shard& shard = shard_of(pointer);
        const std::lock_guard lock(shard.mutex);
        return shard.payloads.contains(pointer) ? use(*BlockHeader::of(pointer)) : otherwise;
    }

    /// Gives a block without holders back.
    static void give_back(void* pointer) noexcept {
        BlockHeader* const header = BlockHeader::of(pointer);
        const std::size_t lead = std::size_t{1} << header->back();
        {
            Shard& shard = shard_of(pointer);
            const std::lock_guard lock(shard.mutex);
            shard.payloads.erase(pointer);
        }
        header->become(BlockHeader::State::Live, BlockHeader::State::Free);
        ::operator delete(static_cast<std::byte*>(pointer) - lead, std::align_val_t{lead});
    }

private:
    struct alignas(kCacheLine) Shard {
        std::mutex mutex;
        std::unordered_set<const void*> payloads;
    };
    static constexpr std::size_t kShards = 16;

    /// What stands before the payload: at least a header, and no less than the alignment.
    [[nodiscard]] static std::size_t lead_of(std::size_t alignment) noexcept {
        return alignment < kMemGrain ? kMemGrain : alignment;
    }

    [[nodiscard]] static Shard& shard_of(const void* pointer) {
        static auto& shards = *new std::array<Shard, kShards>;
        return shards[(reinterpret_cast<std::uintptr_t>(pointer) * std::uintptr_t{0x9E3779B97F4A7C15U}) >>
                      (std::numeric_limits<std::uintptr_t>::digits - 4)];
    }
};

}  // namespace muses::detail
