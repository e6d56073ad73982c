// Histograms of durations whose buckets grow with the value: sixteen to each power of two.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace muses::detail {

/// Which bucket a value belongs to. Values below 16 have one each; above, a bucket is at most a sixteenth of its values wide.
struct LogLinear {
    static constexpr unsigned kSubBits = 4;
    static constexpr unsigned kTopBit = 43;  // 2^44 ns are almost five hours; what is longer is in the last bucket
    static constexpr std::size_t kBuckets = (kTopBit - kSubBits + 2) << kSubBits;

    [[nodiscard]] static constexpr std::size_t bucket_of(std::uint64_t value) noexcept {
        if (value < (1U << kSubBits)) return static_cast<std::size_t>(value);
        const unsigned top = static_cast<unsigned>(std::bit_width(value)) - 1;
        if (top > kTopBit) return kBuckets - 1;
        const unsigned shift = top - kSubBits;
        return (std::size_t{shift} << kSubBits) + static_cast<std::size_t>(value >> shift);
    }
    /// The middle of a bucket.
    [[nodiscard]] static constexpr std::uint64_t value_of(std::size_t bucket) noexcept {
        if (bucket < (2U << kSubBits)) return bucket;
        const auto shift = static_cast<unsigned>((bucket >> kSubBits) - 1);
        const std::uint64_t first = (std::uint64_t{bucket & ((1U << kSubBits) - 1)} + (1U << kSubBits)) << shift;
        return first + ((std::uint64_t{1} << shift) - 1) / 2;
    }
};

/// What: how often which durations occurred, and their extremes; can be merged.
/// Complexity: O(1) to add, O(buckets) else. Threads: one. Lifetime: a value. Limits: quantiles are right to 1/32 of their value.
struct LogLinearHistogram {
    std::array<std::uint64_t, LogLinear::kBuckets> buckets{};
    std::uint64_t smallest = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t largest = 0;

    void add(std::uint64_t value) noexcept {
        ++buckets[LogLinear::bucket_of(value)];
        smallest = std::min(smallest, value);
        largest = std::max(largest, value);
    }

    void merge(const LogLinearHistogram& other) noexcept {
        for (std::size_t i = 0; i < buckets.size(); ++i) buckets[i] += other.buckets[i];
        smallest = std::min(smallest, other.smallest);
        largest = std::max(largest, other.largest);
    }

    /// The value that the part `q` (0 to 1) of all values does not exceed; 0 when there are none.
    [[nodiscard]] std::uint64_t quantile(double q) const noexcept {
        std::uint64_t count = 0;
        for (const std::uint64_t n : buckets) count += n;
        if (count == 0) return 0;
        const auto rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(q * static_cast<double>(count))));
        std::uint64_t below = 0;
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            below += buckets[i];
            if (below >= rank) return std::clamp(LogLinear::value_of(i), std::min(smallest, largest), largest);
        }
        return largest;
    }
};

}  // namespace muses::detail
