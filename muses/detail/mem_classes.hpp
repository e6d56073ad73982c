// The sizes of block that a memory pool keeps: multiples of 16 up to 64, then four to each doubling, so that at most a fifth of a
// block is unused when it serves more than 64 bytes.
#pragma once

#include <bit>
#include <cstddef>

namespace muses::detail {

/// Every block begins at a multiple of this, and it is the size of a header.
inline constexpr std::size_t kMemGrain = 16;

/// The largest request that is served from an arena.
inline constexpr std::size_t kMemLargest = 32768;

/// The greatest alignment that is served from an arena.
inline constexpr std::size_t kMemMostAligned = 2048;

inline constexpr std::size_t kMemClasses = 40;

/// The smallest class whose blocks hold `bytes`, which is at most kMemLargest. Without a branch: sizes come mixed.
[[nodiscard]] constexpr std::size_t mem_class_of(std::size_t bytes) noexcept {
    const std::size_t last = bytes - (bytes != 0 ? 1 : 0);
    const auto doubling = static_cast<std::size_t>(std::bit_width(last | 64U)) - 7;  // 0 up to 128
    return doubling * 4 + (last >> (doubling + 4));
}

/// What a block of the class holds, in bytes.
[[nodiscard]] constexpr std::size_t mem_class_bytes(std::size_t size_class) noexcept {
    if (size_class < 4) return (size_class + 1) * kMemGrain;
    return (5 + size_class % 4) << (size_class / 4 + 3);
}

static_assert(mem_class_of(0) == 0 && mem_class_of(64) == 3 && mem_class_of(65) == 4 &&
              mem_class_of(kMemLargest) == kMemClasses - 1);
static_assert(mem_class_bytes(3) == 64 && mem_class_bytes(4) == 80 && mem_class_bytes(kMemClasses - 1) == kMemLargest);

}  // namespace muses::detail
