// What a MemoryPool can be told, what it counts, and what it does about misuse.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "muses/detail/mem_classes.hpp"

namespace muses {

/// What was wrong with a pointer that a pool was handed.
enum class PoolMisuse : std::uint8_t {
    ForeignPointer,  ///< no pool's block; or a block that was ESCAPED and is gone; or one whose memory was given back by trim()
    DoubleRelease,   ///< a block that has been released already
    BrokenHeader,    ///< in a pool's arena, but what should be a header is not: written over, or no beginning of a block
    BrokenFreeList,  ///< a free block's header was written over; noticed when the block was to be handed out
};

/// The name of the enumerator, in words.
[[nodiscard]] inline const char* to_string(PoolMisuse misuse) noexcept {
    switch (misuse) {
        case PoolMisuse::ForeignPointer: return "a pointer that is no block of a pool";
        case PoolMisuse::DoubleRelease: return "a block that has been released already";
        case PoolMisuse::BrokenHeader: return "a block without a valid header";
        case PoolMisuse::BrokenFreeList: return "a free block that was written to";
    }
    return "misuse";
}

/// Settings of a MemoryPool.
struct MemoryPoolOptions {
    static constexpr std::size_t kDefaultInitialBytes = std::size_t{512} << 10U;

    /// Made ready by the constructor; rounded up to pages of 4096. The default is cut to max_bytes, any other value must not be above it.
    std::size_t initial_bytes = kDefaultInitialBytes;
    std::size_t max_bytes = std::size_t{1} << 30U;  ///< of arena; rounded down to pages of 4096; what is asked beyond it is ESCAPED
    /// Told of misuse, with the pointer in question; the call that met it then does nothing. On whatever thread, without a lock held;
    /// must not throw (what it throws is swallowed and counted), and must stay callable as long as blocks of the pool live. When
    /// empty: print to stderr, and abort if any translation unit of the program was compiled without NDEBUG.
    std::function<void(PoolMisuse, const void*)> on_misuse = {};
};

/// The counters of a MemoryPool; exact when no other thread is inside a call.
struct MemoryPoolStats {
    struct SizeClass {
        std::size_t block_bytes = 0;  ///< what a block holds, without its header
        std::uint64_t live = 0;       ///< blocks that are out
        std::uint64_t hits = 0;       ///< requests served from the free-list of the thread
        std::uint64_t misses = 0;     ///< requests that needed fresh memory, or blocks that other threads had released
        std::uint64_t high_water =
            0;  ///< no more blocks were out at once: the sum of each thread's own peak, and up to 32 more for
                ///< each thread whose blocks others release
    };
    std::array<SizeClass, detail::kMemClasses> classes{};
    std::uint64_t escaped = 0;      ///< requests passed on to ::operator new: too large, too aligned, or beyond max_bytes
    std::uint64_t arena_bytes = 0;  ///< held now; of it, one page in 256 is bookkeeping and not counted here
    std::uint64_t misuses = 0;      ///< reported
    std::uint64_t hook_errors = 0;  ///< exceptions that left on_misuse
};

namespace detail {

/// Whether misuse without a hook ends the process. A run-time flag, because inline functions that looked at NDEBUG would differ
/// between translation units: each unit compiled without NDEBUG raises it, below.
inline std::atomic<bool>& mem_misuse_aborts() noexcept {
    static constinit std::atomic<bool> aborts{false};
    return aborts;
}

#if !defined(NDEBUG)
// Internal linkage is meant: one for each translation unit. Relaxed: a flag by itself.
[[maybe_unused]] static const bool kMemMisuseAbortsHere = (mem_misuse_aborts().store(true, std::memory_order_relaxed), true);
#endif

/// What is done about misuse when there is no hook.
inline void mem_default_misuse(PoolMisuse misuse, const void* pointer) noexcept {
    std::fprintf(stderr, "muses::MemoryPool: %s: %p\n", to_string(misuse), pointer);
    if (mem_misuse_aborts().load(std::memory_order_relaxed)) std::abort();  // relaxed: a flag by itself
}

}  // namespace detail
}  // namespace muses
