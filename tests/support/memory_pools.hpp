// For tests of the memory pool.
#pragma once

#include <cstdint>

#include "muses/memory_pool.hpp"

namespace muses::test {

/// Blocks of the pool's arena that are out.
[[nodiscard]] inline std::uint64_t live(const MemoryPool& pool) {
    std::uint64_t sum = 0;
    for (const auto& size_class : pool.stats().classes) sum += size_class.live;
    return sum;
}

}  // namespace muses::test
