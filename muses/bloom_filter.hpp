// A set that answers "certainly not" or "probably", in a few bits per key, and from which keys can be removed.
//
//     muses::CountingBloomFilter seen(1'000'000, 0.01);      // so many keys, at most one false answer in a hundred
//     seen.insert("203.0.113.7");
//     if (seen.may_contain(address)) ...                     // false: it was never inserted
//     seen.remove("203.0.113.7");
//
// How the counters are arranged, and why the rate is what was asked, is told in detail/bloom_geometry.hpp; how they count in
// detail/bloom_counters.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <new>
#include <ranges>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/bloom_counters.hpp"
#include "muses/detail/bloom_geometry.hpp"
#include "muses/detail/hash.hpp"

namespace muses {

/// What a CountingBloomFilter takes as a key: integers up to 64 bits (equal values are one key, whatever their types; negative ones
/// as two's complement), text, and spans of bytes (equal bytes are one key, as text or as a span).
template <class Key>
concept BloomKey =
    (std::integral<Key> && sizeof(Key) <= sizeof(std::uint64_t)) || std::convertible_to<const Key&, std::string_view> ||
    std::convertible_to<const Key&, std::span<const std::byte>> || std::convertible_to<const Key&, std::span<const unsigned char>>;

/// What: counting Bloom filter with 4-bit counters: may_contain() is never false for a key that was inserted more often than removed,
///     and true for one that was not with the rate asked for, while at most `expected_items` different keys are in it.
/// Complexity: O(log 1/rate) per operation, one atomic exchange per two counters; at 1 % three of them, and 42 bits per key. Whole-
///     filter operations (decay, clear, merge, estimated_items, serialize) are linear in memory.
/// Threads: every member from any thread, constructor, destructor and moves excepted; lock-free. Each counter changes atomically, a
///     whole operation does not: a key that another thread is inserting may be there or not. A remove() that fails halfway because
///     another thread removed the same key meanwhile takes back what it did; nothing else ever lowers a counter but decay and clear.
/// Lifetime: keys are not kept. Moved from, a filter may only be assigned to or destroyed.
/// Limits: 1e-12 <= rate < 1; expected_items * 2^-62 <= rate. Counters stop at 15, and one that did stays there: 15 insertions of one
///     key, or of keys that share it, make it permanent until decay() or clear(). Only keys that were inserted may be removed, else
///     others may be lost. Where a key's counters are is a secret of the seed: whoever does not know it can't aim at another key.
class CountingBloomFilter {
public:
    /// An empty filter, for so many different keys, in which a key that was not inserted is found with at most this probability. The
    /// same seed puts the same keys in the same places, which merge() needs. Throws std::invalid_argument for 0 keys, for a rate that
    /// is not in [1e-12, 1) or too low for so many keys, and for more counters than memory can have, before anything is allocated;
    /// std::bad_alloc when the memory is not there.
    CountingBloomFilter(std::size_t expected_items, double false_positive_rate, std::uint64_t seed = detail::random_seed())
        : CountingBloomFilter(Description{detail::BloomPlan::make(expected_items, false_positive_rate), expected_items,
                                          false_positive_rate, seed}) {}

    CountingBloomFilter(CountingBloomFilter&&) noexcept = default;
    CountingBloomFilter& operator=(CountingBloomFilter&&) noexcept = default;
    CountingBloomFilter(const CountingBloomFilter&) = delete;
    CountingBloomFilter& operator=(const CountingBloomFilter&) = delete;
    ~CountingBloomFilter() = default;

    // --- one key

    /// Counts the key once more.
    template <BloomKey Key>
    void insert(const Key& key) {
        add(hash_of(key));
    }

    /// False when the key is certainly not in the filter.
    template <BloomKey Key>
    [[nodiscard]] bool may_contain(const Key& key) const {
        return contains(hash_of(key));
    }

    /// Inserts the key if may_contain() denies it; whether it was new. False leaves the filter as it is, so that the key, which then was
    /// not inserted by this call, must not be removed for it. Of threads that bring the same new key at once at least one is told true.
    template <BloomKey Key>
    bool try_insert(const Key& key) {
        const Hash hash = hash_of(key);
        if (contains(hash)) return false;
        add(hash);
        return true;
    }

    /// Counts the key once less, for a key that was inserted. False when may_contain() denies the key: then nothing changes.
    template <BloomKey Key>
    bool remove(const Key& key) {
        return subtract(hash_of(key));
    }

    /// How often the key is counted, 0 to 15: at least as often as it was inserted and not removed, or 15, which means 15 or more.
    template <BloomKey Key>
    [[nodiscard]] unsigned count(const Key& key) const {
        const Hash hash = hash_of(key);
        unsigned least = 15;
        for (std::uint64_t i = 0; i < description_.geometry.probes; ++i) {
            const Probe probe = probe_of(hash, i);
            least = std::min(least, detail::Nibbles::smallest(counters_.load(probe.word), probe.set));
        }
        return least;
    }

    // --- many keys: the memory of the next ones is fetched while the first are worked on

    /// insert() for each key.
    template <std::ranges::input_range Keys>
        requires BloomKey<std::ranges::range_value_t<Keys>>
    void insert_bulk(Keys&& keys) {
        in_groups(std::forward<Keys>(keys), [this](std::span<const Probe> probes) {
            for (const Probe& probe : probes) increment(probe);
        });
    }

    /// may_contain() for each key: writes a bool for each to `out`, and returns how many were true.
    template <std::ranges::input_range Keys, class OutputIt>
        requires BloomKey<std::ranges::range_value_t<Keys>>
    std::size_t may_contain_bulk(Keys&& keys, OutputIt out) const {
        std::size_t found = 0;
        in_groups(std::forward<Keys>(keys), [&](std::span<const Probe> probes) {
            std::uint64_t missing = 0;
            for (const Probe& probe : probes) missing |= missing_of(probe);
            *out = missing == 0;
            ++out;
            found += missing == 0 ? 1 : 0;
        });
        return found;
    }

    /// remove() for each key; how many were removed.
    template <std::ranges::input_range Keys>
        requires BloomKey<std::ranges::range_value_t<Keys>>
    std::size_t remove_bulk(Keys&& keys) {
        std::size_t removed = 0;
        in_groups(std::forward<Keys>(keys), [&](std::span<const Probe> probes) { removed += subtract(probes) ? 1 : 0; });
        return removed;
    }

    // --- the whole filter

    /// Halves every counter, rounding down: what was inserted once is forgotten, also what stopped at 15 comes down. For filters that
    /// follow a changing set without removals.
    void decay() noexcept {
        for (std::uint64_t at = 0; at < counters_.size(); ++at) {
            if (counters_.load(at) != 0) counters_.update(at, [](std::uint64_t word) { return detail::Nibbles::halved(word); });
        }
    }

    /// Forgets everything.
    void clear() noexcept {
        for (std::uint64_t at = 0; at < counters_.size(); ++at) {
            if (counters_.load(at) != 0) counters_.store(at, 0);
        }
    }

    /// Adds the other filter's counters to these, stopping at 15: afterwards this filter knows the keys of both. False, with nothing
    /// changed, when geometry or seed differ. Merging a filter with itself doubles its counters.
    bool merge(const CountingBloomFilter& other) noexcept {
        if (description_.geometry != other.description_.geometry || description_.seed != other.description_.seed) return false;
        for (std::uint64_t at = 0; at < counters_.size(); ++at) {
            if (const std::uint64_t more = other.counters_.load(at))
                counters_.update(at, [more](std::uint64_t word) { return detail::Nibbles::added(word, more); });
        }
        return true;
    }

    /// How many different keys are probably in the filter, from the counters that are still zero. The error is below 1 % for most
    /// filters with 10,000 keys; when no counter is zero the result is the least that this makes likely.
    [[nodiscard]] std::size_t estimated_items() const noexcept {
        const detail::BloomGeometry& geometry = description_.geometry;
        std::uint64_t nonzero = 0;
        for (std::uint64_t at = 0; at < counters_.size(); ++at)
            nonzero += static_cast<std::uint64_t>(std::popcount(detail::Nibbles::nonzero(counters_.load(at))));
        const double all = static_cast<double>(geometry.total_words()) * detail::BloomGeometry::kCountersPerWord;
        const double zero = std::max(all - static_cast<double>(nonzero), 0.5) / all;
        // A key leaves a given counter alone with probability 1 - hashes/all.
        const double items = std::log(zero) / std::log1p(-static_cast<double>(geometry.hashes()) / all);
        return static_cast<std::size_t>(std::lround(std::max(items, 0.0)));
    }

    /// The rate of false positives to be expected with so many different keys in the filter.
    [[nodiscard]] double false_positive_rate_at(std::size_t items) const noexcept {
        return detail::bloom_rate(description_.geometry, static_cast<double>(items)).mean;
    }

    /// Bytes of the counters.
    [[nodiscard]] std::size_t memory_bytes() const noexcept {
        return static_cast<std::size_t>(counters_.size() * sizeof(std::uint64_t));
    }

    /// What the constructor was given, or drew.
    [[nodiscard]] std::size_t expected_items() const noexcept { return description_.expected_items; }
    [[nodiscard]] double false_positive_rate() const noexcept { return description_.rate; }
    [[nodiscard]] std::uint64_t seed() const noexcept { return description_.seed; }

    // --- on disk

    /// The filter as bytes, its seed included: whoever reads them can aim at it. memory_bytes() and 80 more, in this machine's byte
    /// order. Other threads may go on: each counter is then as it was at some moment of the call.
    [[nodiscard]] std::vector<std::byte> serialize() const {
        const Header header{.expected_items = description_.expected_items,
                            .rate = description_.rate,
                            .seed = description_.seed,
                            .words = description_.geometry.words,
                            .probes = description_.geometry.probes,
                            .paired = description_.geometry.paired ? 1U : 0U};
        std::vector<std::byte> image(sizeof header + memory_bytes() + sizeof(std::uint64_t));
        std::byte* to = image.data();
        const auto put = [&to](const auto& value) {
            std::memcpy(to, &value, sizeof value);
            to += sizeof value;
        };
        put(header);
        for (std::uint64_t at = 0; at < counters_.size(); ++at) put(counters_.load(at));
        put(detail::hash_bytes(image.data(), static_cast<std::size_t>(to - image.data()), kVersion));
        return image;
    }

    /// The filter that serialize() wrote. Errors: bad_message for bytes that are no such filter, cut off, damaged, or of another byte
    /// order; not_supported for another version; not_enough_memory. Never allocates more than the image's size.
    [[nodiscard]] static std::expected<CountingBloomFilter, std::error_code> deserialize(std::span<const std::byte> image) {
        const auto failure = [](std::errc error) { return std::unexpected(std::make_error_code(error)); };
        Header header;
        std::uint64_t checksum = 0;
        if (image.size() < sizeof header + sizeof checksum) return failure(std::errc::bad_message);
        std::memcpy(&header, image.data(), sizeof header);
        if (header.magic != kMagic) return failure(std::errc::bad_message);
        if (header.version != kVersion) return failure(std::errc::not_supported);
        const detail::BloomGeometry geometry{header.words, header.probes, header.paired == 1};
        const std::size_t bytes = image.size() - sizeof header - sizeof checksum;
        std::memcpy(&checksum, image.data() + image.size() - sizeof checksum, sizeof checksum);
        if (!geometry.possible() || header.paired > 1 || bytes % sizeof(std::uint64_t) != 0 ||
            geometry.total_words() != bytes / sizeof(std::uint64_t) ||
            checksum != detail::hash_bytes(image.data(), image.size() - sizeof checksum, kVersion))
            return failure(std::errc::bad_message);
        try {
            CountingBloomFilter filter(
                Description{geometry, static_cast<std::size_t>(header.expected_items), header.rate, header.seed});
            const std::byte* from = image.data() + sizeof header;
            for (std::uint64_t at = 0; at < filter.counters_.size(); ++at, from += sizeof(std::uint64_t)) {
                std::uint64_t word = 0;
                std::memcpy(&word, from, sizeof word);
                if (word != 0) filter.counters_.store(at, word);
            }
            return filter;
        } catch (const std::bad_alloc&) {
            return failure(std::errc::not_enough_memory);
        }
    }

private:
    struct Description {
        detail::BloomGeometry geometry;
        std::size_t expected_items;
        double rate;
        std::uint64_t seed;
    };

    static constexpr std::uint64_t kMagic = 0x6d6f'6f6c'4273'754dU;  // "MusBloom" where the lowest byte comes first
    static constexpr std::uint64_t kVersion = 1;
    struct Header {
        std::uint64_t magic = kMagic;
        std::uint64_t version = kVersion;
        std::uint64_t expected_items = 0;
        double rate = 0;
        std::uint64_t seed = 0;
        std::uint64_t words = 0;
        std::uint64_t probes = 0;
        std::uint64_t paired = 0;
        std::uint64_t reserved = 0;
    };
    static_assert(sizeof(Header) == 72, "CountingBloomFilter: the header is written as it lies in memory");

    static constexpr std::uint64_t kUsualProbes = 3;

    // The two base hashes of a key.
    struct Hash {
        std::uint64_t first;
        std::uint64_t step;
    };
    // A word of a key, and the key's counters in it.
    struct Probe {
        std::uint64_t word;
        std::uint64_t set;
    };

    explicit CountingBloomFilter(const Description& description)
        : description_(description),
          secret_(detail::mix64(description.seed + 0x9e3779b97f4a7c15U)),
          step_secret_(detail::mix64(secret_ + 0x9e3779b97f4a7c15U) | 1U),
          sets_(&detail::kNibbleSets[description.geometry.paired ? 1 : 0]),
          counters_(description.geometry.total_words()) {}

    template <BloomKey Key>
    [[nodiscard]] Hash hash_of(const Key& key) const {
        if constexpr (std::integral<Key>) {
            return hash_of_number(static_cast<std::uint64_t>(key));
        } else if constexpr (std::convertible_to<const Key&, std::string_view>) {
            const std::string_view text = key;
            return hash_of_number(detail::hash_bytes(text.data(), text.size(), description_.seed));
        } else if constexpr (std::convertible_to<const Key&, std::span<const std::byte>>) {
            const std::span<const std::byte> bytes = key;
            return hash_of_number(detail::hash_bytes(bytes.data(), bytes.size(), description_.seed));
        } else {
            const std::span<const unsigned char> bytes = key;
            return hash_of_number(detail::hash_bytes(bytes.data(), bytes.size(), description_.seed));
        }
    }

    // The first is a bijection of the number, so that no two integers have all their places in common. The step is odd: an even one
    // could come back to where it was, and with zero all places would be one.
    [[nodiscard]] Hash hash_of_number(std::uint64_t number) const noexcept {
        const std::uint64_t first = detail::mix64(number ^ secret_);
        return {first, (first * step_secret_) | 1U};
    }

    // Mixed once more: the places would else be an arithmetic progression, and keys that share two of them would share many.
    [[nodiscard]] Probe probe_of(const Hash& hash, std::uint64_t i) const noexcept {
        std::uint64_t mixed = hash.first + i * hash.step;
        mixed = (mixed ^ (mixed >> 32U)) * 0xd6e8feb86659fd93U;
        const std::uint64_t words = description_.geometry.words;
        const detail::ScaledHash place = detail::scaled_hash(mixed, words);
        return {i * words + place.index, (*sets_)[place.rest >> 58U]};
    }

    // While the process has one thread.
    void increment_alone(const Probe& probe) noexcept {
        counters_.store(probe.word, detail::Nibbles::incremented(counters_.load(probe.word), probe.set));
    }

    void increment(const Probe& probe) noexcept {
        counters_.update(probe.word, [&](std::uint64_t word) { return detail::Nibbles::incremented(word, probe.set); });
    }

    // Three probes, which are the usual ones (at rates about 1 %), as straight code: compilers leave the loop a loop, and that is a third of
    // the time.
    [[gnu::always_inline]] void add(const Hash hash) noexcept {
        if (description_.geometry.probes != kUsualProbes) return add_any(hash);
        const std::array<Probe, kUsualProbes> probes{probe_of(hash, 0), probe_of(hash, 1), probe_of(hash, 2)};
        if (detail::BloomCounters::single_threaded()) {
            increment_alone(probes[0]);
            increment_alone(probes[1]);
            increment_alone(probes[2]);
        } else {
            increment(probes[0]);
            increment(probes[1]);
            increment(probes[2]);
        }
    }
    [[gnu::noinline]] void add_any(const Hash hash) noexcept {
        for (std::uint64_t i = 0; i < description_.geometry.probes; ++i) increment(probe_of(hash, i));
    }

    [[nodiscard, gnu::always_inline]] bool contains(const Hash hash) const noexcept {
        if (description_.geometry.probes != kUsualProbes) return contains_any(hash);
        // No branch between them: it would be mispredicted.
        return (missing_of(probe_of(hash, 0)) | missing_of(probe_of(hash, 1)) | missing_of(probe_of(hash, 2))) == 0;
    }
    [[nodiscard, gnu::noinline]] bool contains_any(const Hash hash) const noexcept {
        for (std::uint64_t i = 0; i < description_.geometry.probes; ++i) {
            if (missing_of(probe_of(hash, i)) != 0) return false;
        }
        return true;
    }

    // The counters of the probe that are zero.
    [[nodiscard]] std::uint64_t missing_of(const Probe& probe) const noexcept {
        return detail::Nibbles::zero_in(counters_.load(probe.word), probe.set);
    }

    bool subtract(const Hash& hash) noexcept {
        std::array<Probe, detail::BloomGeometry::kMaxProbes> probes;
        const std::uint64_t size = description_.geometry.probes;
        for (std::uint64_t i = 0; i < size; ++i) probes[i] = probe_of(hash, i);
        return subtract(std::span(probes).first(size));
    }

    // All or nothing: looks first. When another thread has taken the same key in between, what was done is undone.
    bool subtract(std::span<const Probe> probes) noexcept {
        for (const Probe& probe : probes) {
            if (missing_of(probe) != 0) return false;
        }
        std::array<std::uint64_t, detail::BloomGeometry::kMaxProbes> changed;
        for (std::size_t i = 0; i < probes.size(); ++i) {
            if (counters_.decrement(probes[i].word, probes[i].set, changed[i])) continue;
            while (i-- > 0) increment({probes[i].word, changed[i]});
            return false;
        }
        return true;
    }

    // Calls work(the probes of a key) for each key, in order.
    template <class Keys, class Work>
    void in_groups(Keys&& keys, Work work) const {
        std::array<Probe, detail::BloomGeometry::kMaxProbes> probes;
        const std::size_t each = description_.geometry.probes;
        std::size_t filled = 0;
        const auto flush = [&] {
            for (std::size_t at = 0; at < filled; at += each) work(std::span<const Probe>(probes).subspan(at, each));
            filled = 0;
        };
        for (const std::ranges::range_value_t<Keys>& key : keys) {  // not auto: what a vector<bool> gives is no key
            const Hash hash = hash_of(key);
            for (std::uint64_t i = 0; i < each; ++i) {
                const Probe probe = probe_of(hash, i);
                counters_.prefetch(probe.word);
                probes[filled++] = probe;
            }
            if (filled + each > probes.size()) flush();
        }
        flush();
    }

    Description description_;
    std::uint64_t secret_;
    std::uint64_t step_secret_;
    const detail::Nibbles::Sets* sets_;
    detail::BloomCounters counters_;
};

}  // namespace muses
