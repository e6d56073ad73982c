// How many counters a Bloom filter needs, and how they are arranged: the arithmetic, apart from the filter.
//
// A filter has `probes` regions of `words` words each. A key has one word in every region, and in it one counter out of 16, or one out
// of the lower 8 and one out of the upper 8 ("paired"). So the counters of a key are always different ones, two of them cost one
// cache line and one atomic operation, and the rate can be computed instead of guessed: a region's words hold binomially many keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>

namespace muses::detail {

/// Where the counters of a filter are. Two filters of one geometry and seed put a key in the same places.
struct BloomGeometry {
    static constexpr std::uint64_t kMaxProbes = 64;
    static constexpr std::uint64_t kCountersPerWord = 16;
    static constexpr std::uint64_t kMaxWords = static_cast<std::uint64_t>(PTRDIFF_MAX) / sizeof(std::uint64_t);

    std::uint64_t words = 0;   // in each region
    std::uint64_t probes = 0;  // regions, and words of a key
    bool paired = false;       // two counters of a key in each of its words

    [[nodiscard]] std::uint64_t total_words() const noexcept { return words * probes; }
    [[nodiscard]] std::uint64_t hashes() const noexcept { return paired ? 2 * probes : probes; }
    [[nodiscard]] bool possible() const noexcept {
        return probes >= 1 && probes <= kMaxProbes && words >= 1 && words <= kMaxWords / probes;
    }

    bool operator==(const BloomGeometry&) const = default;
};

/// The rate of false positives that a geometry has with so many different keys: what is expected, and how far a single filter
/// strays from it (standard deviation over the seeds).
struct BloomRate {
    double mean = 0;
    double deviation = 0;
};

[[nodiscard]] inline BloomRate bloom_rate(const BloomGeometry& geometry, double keys) noexcept {
    if (!(keys > 0)) return {};
    constexpr double kFull = 4000;  // keys in a word, of which practically none leaves a counter at zero
    if (keys / static_cast<double>(geometry.words) > kFull) return {1, 0};
    const double regions = static_cast<double>(geometry.probes);
    const double words = static_cast<double>(geometry.words);
    const double slots = geometry.paired ? 8 : 16;  // counters among which one hash chooses
    const int choices = geometry.paired ? 2 : 1;
    // A word that has i keys answers yes with this probability, and with this expected square. Of `slots` counters u = slots x
    // (1-1/slots)^i are expected to be zero, and slots(slots-1)(1-2/slots)^i pairs of them.
    const auto yes = [&](double i) { return std::pow(1 - std::pow(1 - 1 / slots, i), choices); };
    const auto yes_squared = [&](double i) {
        const double zero = std::pow(1 - 1 / slots, i);
        const double both = 1 - 2 * zero + std::pow(1 - 2 / slots, i);  // two different counters are both nonzero
        return std::pow((1 - zero) / slots + both * (slots - 1) / slots, choices);
    };

    // Sums over the binomial distribution, from its mode outwards. The weights are relative to the mode's: no factorials.
    double weights = 0;
    double mean = 0;
    double square = 0;
    const auto take = [&](double i, double weight) {
        weights += weight;
        mean += weight * yes(i);
        square += weight * yes_squared(i);
    };
    if (geometry.words == 1) {
        take(keys, 1);
    } else {
        constexpr double kNothing = 1e-20;
        const double odds = 1 / (words - 1);  // q / (1-q) for q = 1/words
        const double mode = std::floor((keys + 1) / words);
        double weight = 1;
        for (double i = mode; i <= keys && weight > kNothing; ++i) {
            take(i, weight);
            weight *= (keys - i) / (i + 1) * odds;
        }
        weight = 1;
        for (double i = mode; i > 0;) {
            weight *= i / ((keys - i + 1) * odds);
            if (weight <= kNothing) break;
            take(--i, weight);
        }
    }
    mean /= weights;
    square /= weights;
    // The regions are independent; the answer of one is the mean over its words (that their loads add up to `keys` only helps).
    const double expected = std::pow(mean, regions);
    const double variance = std::pow(mean * mean + std::max(0.0, square - mean * mean) / words, regions) - expected * expected;
    return {expected, std::sqrt(std::max(0.0, variance))};
}

/// Chooses the geometry for so many keys at a rate.
class BloomPlan {
public:
    static constexpr double kLowestRate = 1e-12;

    /// The geometry with the fewest words per key that needs at most a tenth more memory than the textbook's filter, and else (for a
    /// handful of keys, or a rate above one half) the one that needs the least memory. The expected rate is at most `rate`, and three
    /// standard deviations above it at most 1.25 times `rate`: with few keys a single filter may be unlucky.
    /// Throws std::invalid_argument for 0 keys, for a rate that is not in [1e-12, 1), and for more counters than memory can have.
    [[nodiscard]] static BloomGeometry make(std::size_t keys, double rate) {
        if (keys == 0) throw std::invalid_argument("CountingBloomFilter: expected_items must be at least 1");
        if (!(rate > 0 && rate < 1))  // NaN too
            throw std::invalid_argument("CountingBloomFilter: false_positive_rate must be above 0 and below 1");
        // Text is hashed to 64 bits, and two of `keys` texts are one key with this probability.
        if (rate < kLowestRate || rate < static_cast<double>(keys) * 0x1p-62)
            throw std::invalid_argument("CountingBloomFilter: false_positive_rate is below what a hash of 64 bits can keep");
        const BloomPlan plan(static_cast<double>(keys), rate);
        const double limit = 1.1 * plan.textbook_words();
        // Half as much again, for what the fallback may need.
        if (!(1.5 * limit < static_cast<double>(BloomGeometry::kMaxWords)))
            throw std::invalid_argument("CountingBloomFilter: so many counters do not fit into memory");
        const BloomGeometry quick = plan.fewest_probes(static_cast<std::uint64_t>(limit));
        return quick.possible() ? quick : plan.least_memory();
    }

private:
    BloomPlan(double keys, double rate) noexcept : keys_(keys), rate_(rate) {}

    [[nodiscard]] double textbook_words() const noexcept {
        return keys_ * -std::log(rate_) / (std::log(2.0) * std::log(2.0)) / BloomGeometry::kCountersPerWord;
    }

    [[nodiscard]] bool keeps_promise(const BloomGeometry& geometry) const noexcept {
        const BloomRate is = bloom_rate(geometry, keys_);
        return is.mean <= rate_ && is.mean + 3 * is.deviation <= 1.25 * rate_;
    }

    // Lowers `words` as far as the promise allows; it holds for the words that are given.
    [[nodiscard]] BloomGeometry shrunk(BloomGeometry enough) const noexcept {
        std::uint64_t too_few = 0;
        while (enough.words - too_few > 1) {
            BloomGeometry middle = enough;
            middle.words = too_few + (enough.words - too_few) / 2;
            if (keeps_promise(middle))
                enough = middle;
            else
                too_few = middle.words;
        }
        return enough;
    }

    // An impossible geometry when none needs at most `limit` words.
    [[nodiscard]] BloomGeometry fewest_probes(std::uint64_t limit) const noexcept {
        BloomGeometry best;
        for (std::uint64_t probes = 1; probes <= std::min(limit, BloomGeometry::kMaxProbes) && !best.possible(); ++probes) {
            for (const bool paired : {false, true}) {
                const BloomGeometry most{limit / probes, probes, paired};
                if (!keeps_promise(most)) continue;
                const BloomGeometry least = shrunk(most);
                if (!best.possible() || least.words < best.words) best = least;
            }
        }
        return best;
    }

    [[nodiscard]] BloomGeometry least_memory() const noexcept {
        // With one word of the textbook's optimum each, the promise needs not much more memory than there: a bound for the others.
        BloomGeometry best{1, static_cast<std::uint64_t>(std::ceil(-std::log2(rate_))), false};
        while (!keeps_promise(best)) best.words *= 2;
        best = shrunk(best);
        for (std::uint64_t probes = best.probes; probes >= 1; --probes) {
            for (const bool paired : {false, true}) {
                const BloomGeometry most{best.total_words() / probes, probes, paired};
                if (most.words == 0 || !keeps_promise(most)) continue;
                const BloomGeometry least = shrunk(most);
                if (least.total_words() <= best.total_words()) best = least;  // as much memory: fewer words per key
            }
        }
        return best;
    }

    double keys_;
    double rate_;
};

}  // namespace muses::detail
