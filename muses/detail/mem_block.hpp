// The header in front of each block of a memory pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "muses/detail/mem_classes.hpp"
#include "muses/detail/mem_sanitizer.hpp"

namespace muses::detail {

/// The size class of a block that came from ::operator new.
inline constexpr std::size_t kMemEscaped = 0xFFFF;

/// What: 16 bytes before the first byte of a block: a cookie, the size class, and a word that is the number of holders while the block
///     is out and the next block while it is in a free-list.
/// Complexity: O(1).
/// Threads: word is atomic. The rest is written by whoever owns the block alone, before others get to see it.
/// Lifetime: constructed when the block is first cut from its arena; lasts as long as the arena.
/// Limits: the 64-bit count of holders is not checked for overflow. The cookie depends on the address and on the class, so a header that was copied elsewhere or partly written over is none.
///
/// A block that is more aligned than 16 has two headers: its own, and one further ahead where the block of the size class begins;
/// `back` is the distance. The cookie of that one says Inner: nobody has a pointer to it.
struct BlockHeader {
    enum class State : std::uint32_t { Live = 0x4D75'5E51, Free = 0x9B1A'2C86, Inner = 0xE407'D36F };

    // In memory order: an overflow of the block before meets the cookie first.
    std::uint32_t cookie;
    std::uint32_t kind;               ///< size class, and above it `back`: one word, as that is cheaper to check
    std::atomic<std::uint64_t> word;  ///< holders; in a free-list: see mem_cache.hpp

    BlockHeader(std::size_t size_class, std::size_t back, State state) noexcept
        : cookie(0), kind(static_cast<std::uint32_t>(back << 16U | size_class)), word(0) {
        cookie = cookie_for(state);
    }

    [[nodiscard]] std::size_t size_class() const noexcept { return kind & 0xFFFFU; }
    /// Distance to the header of the size class's block, in grains; ESCAPED: log2 of the alignment.
    [[nodiscard]] std::size_t back() const noexcept { return kind >> 16U; }

    [[nodiscard]] void* payload() noexcept { return this + 1; }
    /// Where the header of a block is. By way of a number, because the pointer may be to anything, and so have nothing before it.
    [[nodiscard]] static BlockHeader* of(const void* payload) noexcept {
        return reinterpret_cast<BlockHeader*>(reinterpret_cast<std::uintptr_t>(payload) - sizeof(BlockHeader));
    }

    /// From one state to another; the first one has been checked.
    void become(State from, State to) noexcept { cookie ^= static_cast<std::uint32_t>(from) ^ static_cast<std::uint32_t>(to); }

    /// Whether the cookie says so. May be asked of any readable memory.
    [[nodiscard]] MUSES_DETAIL_NO_ASAN bool is(State state) const noexcept {
        return (cookie ^ kind) ==
               (static_cast<std::uint32_t>(state) ^ static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(this) >> 4U));
    }

private:
    [[nodiscard]] std::uint32_t cookie_for(State state) const noexcept {
        return static_cast<std::uint32_t>(state) ^ static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(this) >> 4U) ^ kind;
    }
};
static_assert(sizeof(BlockHeader) == kMemGrain, "a header is one grain, or blocks would not be aligned");

}  // namespace muses::detail
