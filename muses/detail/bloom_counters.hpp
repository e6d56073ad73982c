// An array of 4-bit counters in atomic words of sixteen, for CountingBloomFilter.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define MUSES_DETAIL_KNOWS_SINGLE_THREAD 1
#else
#define MUSES_DETAIL_KNOWS_SINGLE_THREAD 0
#endif

namespace muses::detail {

/// Sixteen counters in a word, all at once. A set of counters is a word with the lowest bit of each of their nibbles.
struct Nibbles {
    static constexpr std::uint64_t kAll = 0x1111'1111'1111'1111U;

    [[nodiscard]] static constexpr std::uint64_t nonzero(std::uint64_t word) noexcept { return any(word) & kAll; }
    /// The counters of the set that are zero.
    [[nodiscard]] static constexpr std::uint64_t zero_in(std::uint64_t word, std::uint64_t set) noexcept {
        return set & ~any(word);
    }
    /// The counters of the set that are not 15.
    [[nodiscard]] static constexpr std::uint64_t free_in(std::uint64_t word, std::uint64_t set) noexcept {
        word &= word >> 1U;
        return set & ~(word & (word >> 2U));
    }
    /// The sets that six bits of a hash choose: one counter out of 16, or (paired) one out of the lower and one out of the upper 8.
    using Sets = std::array<std::uint64_t, 64>;
    [[nodiscard]] static constexpr Sets make_sets(bool paired) noexcept {
        Sets sets{};
        for (std::uint64_t i = 0; i < sets.size(); ++i)
            sets[i] = paired ? (std::uint64_t{1} << (4 * (i & 7U))) | (std::uint64_t{1} << (32 + 4 * (i >> 3U)))
                             : std::uint64_t{1} << (4 * (i >> 2U));
        return sets;
    }

    /// 15 stays 15.
    [[nodiscard]] static constexpr std::uint64_t incremented(std::uint64_t word, std::uint64_t set) noexcept {
        return word + free_in(word, set);
    }
    /// The counters of the set must be nonzero; 15 stays 15, since nobody knows how often it was counted.
    [[nodiscard]] static constexpr std::uint64_t decremented(std::uint64_t word, std::uint64_t set) noexcept {
        return word - free_in(word, set);
    }
    [[nodiscard]] static constexpr std::uint64_t halved(std::uint64_t word) noexcept { return (word >> 1U) & (7 * kAll); }
    /// Sums that stop at 15.
    [[nodiscard]] static constexpr std::uint64_t added(std::uint64_t a, std::uint64_t b) noexcept {
        return added_bytes(a & kLow, b & kLow) | (added_bytes((a >> 4U) & kLow, (b >> 4U) & kLow) << 4U);
    }
    /// The smallest counter of the set, 15 for an empty one.
    [[nodiscard]] static constexpr unsigned smallest(std::uint64_t word, std::uint64_t set) noexcept {
        unsigned least = 15;
        for (; set != 0; set &= set - 1) {
            const auto value = static_cast<unsigned>((word >> static_cast<unsigned>(std::countr_zero(set))) & 15U);
            least = value < least ? value : least;
        }
        return least;
    }

private:
    // The lowest bit of each nibble tells whether it has any; the others mean nothing.
    [[nodiscard]] static constexpr std::uint64_t any(std::uint64_t word) noexcept {
        word |= word >> 1U;
        return word | (word >> 2U);
    }

    static constexpr std::uint64_t kLow = 0x0f0f'0f0f'0f0f'0f0fU;

    // Of bytes up to 15; a sum above 15 has bit 4 set, and 0x10 - 0x01 makes fifteen of it.
    [[nodiscard]] static constexpr std::uint64_t added_bytes(std::uint64_t a, std::uint64_t b) noexcept {
        const std::uint64_t sum = a + b;
        const std::uint64_t over = sum & (kAll << 4U) & ~kLow;
        return (sum | (over - (over >> 4U))) & kLow;
    }
};

inline constexpr std::array<Nibbles::Sets, 2> kNibbleSets{Nibbles::make_sets(false), Nibbles::make_sets(true)};

/// What: the words of a filter, zero at first.
/// Complexity: O(1) per word. Pages that were never written cost no memory: the system gives them when they are touched.
/// Threads: every word changes atomically, from any thread. All is relaxed: a word is only ever a number, and nobody concludes from it
///     that other memory was written. A thread for which an insertion has happened sees it, because the words' own order says so.
/// Lifetime: moved from, it is empty.
/// Limits: at most PTRDIFF_MAX bytes; std::bad_alloc when they are not there.
class BloomCounters {
public:
    explicit BloomCounters(std::uint64_t words) : words_(allocate(words)), size_(words) {}

    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

    [[nodiscard]] std::uint64_t load(std::uint64_t at) const noexcept { return word(at).load(std::memory_order_relaxed); }
    void store(std::uint64_t at, std::uint64_t value) noexcept { word(at).store(value, std::memory_order_relaxed); }

    /// Whether the process has one thread. Then nothing comes between a load and a store, which take half the time of an exchange, and
    /// what that thread wrote happened before a second one begins. False where nobody knows.
    [[nodiscard]] static bool single_threaded() noexcept {
#if MUSES_DETAIL_KNOWS_SINGLE_THREAD
        return __libc_single_threaded != 0;
#else
        return false;
#endif
    }

    /// Replaces the word by what `change` makes of it; the function may be called several times.
    template <class Change>
    void update(std::uint64_t at, Change change) noexcept {
        const auto target = word(at);
        std::uint64_t old = target.load(std::memory_order_relaxed);
        while (!target.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {}
    }

    /// Decrements the counters of the set if none of them is zero. On success `changed` are those that were not stuck.
    [[nodiscard]] bool decrement(std::uint64_t at, std::uint64_t set, std::uint64_t& changed) noexcept {
        const auto target = word(at);
        std::uint64_t old = target.load(std::memory_order_relaxed);
        do {
            if (Nibbles::zero_in(old, set) != 0) return false;
            changed = Nibbles::free_in(old, set);
        } while (!target.compare_exchange_weak(old, Nibbles::decremented(old, set), std::memory_order_relaxed));
        return true;
    }

    void prefetch(std::uint64_t at) const noexcept { __builtin_prefetch(&words_[at]); }

private:
    struct Free {
        void operator()(std::uint64_t* words) const noexcept { std::free(words); }
    };

    [[nodiscard]] static std::uint64_t* allocate(std::uint64_t words) {
        // calloc rather than new: large blocks come from the system already zero, and stay untouched until they are used.
        if (void* const memory = std::calloc(static_cast<std::size_t>(words), sizeof(std::uint64_t)))
            return static_cast<std::uint64_t*>(memory);
        throw std::bad_alloc();
    }

    [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::uint64_t at) const noexcept {
        return std::atomic_ref<std::uint64_t>(words_[at]);
    }

    std::unique_ptr<std::uint64_t[], Free> words_;
    std::uint64_t size_;
};

}  // namespace muses::detail
