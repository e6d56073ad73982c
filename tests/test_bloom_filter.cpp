#include "muses/bloom_filter.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/eventually.hpp"

using muses::CountingBloomFilter;
using muses::detail::BloomGeometry;
using muses::detail::BloomPlan;
using muses::detail::Nibbles;
using muses::test::stress_rounds;

namespace {

constexpr std::size_t kHeaderBytes = 72;

// The image without header and checksum: the counters.
std::vector<std::byte> counters_of(const CountingBloomFilter& filter) {
    const std::vector<std::byte> image = filter.serialize();
    return {image.begin() + kHeaderBytes, image.end() - sizeof(std::uint64_t)};
}

std::uint64_t sum_of_counters(const CountingBloomFilter& filter) {
    std::uint64_t sum = 0;
    for (const std::byte byte : counters_of(filter))
        sum += (static_cast<unsigned>(byte) & 15U) + (static_cast<unsigned>(byte) >> 4U);
    return sum;
}

// The part of keys that were not inserted and are found.
template <class KeyOf>
double measured_rate(std::size_t items, double rate, std::uint64_t seed, KeyOf key_of) {
    CountingBloomFilter filter(items, rate, seed);
    for (std::uint64_t i = 0; i < items; ++i) filter.insert(key_of(i));
    const std::uint64_t asked = std::max<std::uint64_t>(100'000, items / 10);
    std::uint64_t found = 0;
    for (std::uint64_t i = 0; i < asked; ++i) found += filter.may_contain(key_of(items + i)) ? 1 : 0;
    return static_cast<double>(found) / static_cast<double>(asked);
}

std::uint64_t sequential(std::uint64_t i) { return i; }
std::uint64_t multiple(std::uint64_t i) { return i << 32U; }
std::string prefixed(std::uint64_t i) { return std::string(100, '/') + std::to_string(i); }

// Rates that lead to every shape: one counter per word or two, few words or many.
constexpr std::array kRates{0.9, 0.5, 0.3, 0.1, 0.05, 0.01, 1e-3, 1e-6, 1e-12};

template <class F>
void in_threads(unsigned count, F f) {
    std::atomic<unsigned> ready{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; ++t) {
        threads.emplace_back([&, t] {
            ++ready;
            while (ready < count) std::this_thread::yield();
            f(t);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

// --- the promise

TEST_CASE("bloom_filter: the measured rate of false positives is within a quarter of the promise from a hundred keys on") {
    for (const double rate : {0.1, 0.01}) {
        for (const std::size_t items : {100U, 1000U, 10'000U}) {
            for (const std::uint64_t seed : {1U, 2U}) {
                CAPTURE(rate);
                CAPTURE(items);
                CAPTURE(seed);
                CHECK(measured_rate(items, rate, seed, sequential) <= 1.25 * rate);
                CHECK(measured_rate(items, rate, seed, multiple) <= 1.25 * rate);
            }
            CHECK(measured_rate(items, rate, 4, prefixed) <= 1.25 * rate);
        }
    }
}

TEST_CASE("bloom_filter: the promise holds for a million keys of every kind" * doctest::test_suite("slow")) {
    for (const auto key_of : {sequential, multiple}) CHECK(measured_rate(100'000, 0.01, 4, key_of) <= 0.011);
    CHECK(measured_rate(1'000'000, 0.01, 5, sequential) <= 0.0105);
    CHECK(measured_rate(1'000'000, 0.01, 6, multiple) <= 0.0105);
    CHECK(measured_rate(1'000'000, 0.01, 7, prefixed) <= 0.0105);
    CHECK(measured_rate(1'000'000, 0.001, 8, sequential) <= 0.00125);
    CHECK(measured_rate(1'000'000, 0.3, 9, [](std::uint64_t i) { return i * 3'000'000'019U; }) <= 0.315);
}

TEST_CASE("bloom_filter: the promise holds for ten million keys" * doctest::test_suite("slow")) {
    CHECK(measured_rate(10'000'000, 0.01, 10, sequential) <= 0.0105);
    CHECK(measured_rate(10'000'000, 0.01, 11, multiple) <= 0.0105);
}

TEST_CASE("bloom_filter: the computed rate is what is measured, below and above the number of keys planned for") {
    CountingBloomFilter filter(20'000, 0.02, 77);
    std::uint64_t next = 0;
    for (const std::size_t items : {5'000U, 20'000U, 60'000U}) {
        while (next < items) filter.insert(next++);
        std::size_t found = 0;
        for (std::uint64_t i = 0; i < 400'000; ++i) found += filter.may_contain(i + (std::uint64_t{1} << 40U)) ? 1 : 0;
        const double measured = static_cast<double>(found) / 400'000;
        CHECK(measured == doctest::Approx(filter.false_positive_rate_at(items)).epsilon(0.15));
    }
    CHECK(filter.false_positive_rate_at(0) == 0);
    CHECK(filter.false_positive_rate_at(SIZE_MAX) <= 1);
    CHECK(filter.false_positive_rate_at(SIZE_MAX) > 0.999);
}

TEST_CASE("bloom_filter: a million keys at one percent need at most 44 bits each") {
    const CountingBloomFilter filter(1'000'000, 0.01);
    CHECK(filter.memory_bytes() * 8 <= 44'000'000);
    CHECK(filter.memory_bytes() * 8 >= 38'000'000);  // less would be wrong
    CHECK(filter.false_positive_rate_at(1'000'000) <= 0.01);
}

TEST_CASE("bloom_filter: the geometry keeps the promise at every size and rate with little more memory than the textbook") {
    for (const double rate : kRates) {
        for (const std::size_t items : {1U, 2U, 7U, 100U, 5'000U, 1'000'000U, 3'000'000'000U}) {
            CAPTURE(rate);
            CAPTURE(items);
            if (rate < static_cast<double>(items) * 0x1p-62) continue;
            const BloomGeometry geometry = BloomPlan::make(items, rate);
            CHECK(geometry.possible());
            const auto is = muses::detail::bloom_rate(geometry, static_cast<double>(items));
            CHECK(is.mean <= rate);
            CHECK(is.mean + 3 * is.deviation <= 1.25 * rate);
            const double textbook = static_cast<double>(items) * -std::log(rate) / std::log(2.0) / std::log(2.0) / 16;
            if (rate <= 0.5 && items >= 5'000) CHECK(static_cast<double>(geometry.total_words()) <= 1.1 * textbook);
        }
    }
}

// --- what cannot be

TEST_CASE("bloom_filter: arguments that make no sense are refused before anything is allocated") {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    CHECK_THROWS_AS(CountingBloomFilter(0, 0.01), std::invalid_argument);
    for (const double rate :
         {0.0, -0.0, -0.5, 1.0, 1.5, kNan, kInfinity, -kInfinity, 1e-13, std::numeric_limits<double>::denorm_min()}) {
        CAPTURE(rate);
        CHECK_THROWS_AS(CountingBloomFilter(100, rate), std::invalid_argument);
    }
    CHECK_THROWS_AS(CountingBloomFilter(SIZE_MAX, 0.9), std::invalid_argument);
    CHECK_THROWS_AS(CountingBloomFilter(SIZE_MAX / 64, 0.01), std::invalid_argument);
    CHECK_THROWS_AS(CountingBloomFilter(std::size_t{1} << 40U, 1e-12), std::invalid_argument);  // two texts in 2^64 hashes
}

TEST_CASE("bloom_filter: one key at any rate is a filter") {
    for (const double rate : kRates) {
        CountingBloomFilter filter(1, rate);
        CHECK_FALSE(filter.may_contain(7));
        filter.insert(7);
        CHECK(filter.may_contain(7));
    }
}

// --- counting

TEST_CASE("bloom_filter: a key counts once for each insertion however small the filter is") {
    for (const double rate : kRates) {
        for (std::uint64_t key = 0; key < 300; ++key) {  // were two places of a key the same, some would count two
            CountingBloomFilter filter(1, rate, key);
            filter.insert(key);
            CHECK(filter.count(key) == 1);
            filter.insert(key);
            CHECK(filter.count(key) == 2);
            CHECK(filter.remove(key));
            CHECK(filter.count(key) == 1);
            CHECK(filter.remove(key));
            CHECK(filter.count(key) == 0);
            CHECK(sum_of_counters(filter) == 0);
            CHECK_FALSE(filter.remove(key));
            CHECK(sum_of_counters(filter) == 0);
        }
    }
}

TEST_CASE("bloom_filter: each insertion raises exactly as many counters as there are hashes") {
    for (const double rate : kRates) {
        const BloomGeometry geometry = BloomPlan::make(10'000, rate);
        CountingBloomFilter filter(10'000, rate, 3);
        for (int key = 0; key < 100; ++key) filter.insert(key);
        CHECK(sum_of_counters(filter) == 100 * geometry.hashes());
    }
}

TEST_CASE("bloom_filter: counters stop at 15 and a stuck one is not decremented") {
    for (const double rate : {0.5, 0.01}) {
        CountingBloomFilter filter(1000, rate, 4);
        for (unsigned i = 1; i <= 40; ++i) {
            filter.insert("again");
            CHECK(filter.count("again") == std::min(i, 15U));
        }
        const auto stuck = counters_of(filter);
        CHECK(filter.remove("again"));  // it is there, and stays
        CHECK(filter.count("again") == 15);
        CHECK(counters_of(filter) == stuck);
        filter.clear();
        for (int i = 0; i < 14; ++i) filter.insert("again");
        for (int i = 0; i < 14; ++i) CHECK(filter.remove("again"));
        CHECK_FALSE(filter.may_contain("again"));
        CHECK(sum_of_counters(filter) == 0);
    }
}

TEST_CASE("bloom_filter: the arithmetic on sixteen counters is that of sixteen numbers") {
    std::mt19937_64 random(20240501);
    const auto nibble = [](std::uint64_t word, unsigned i) { return static_cast<unsigned>((word >> (4 * i)) & 15U); };
    for (int round = 0; round < 20'000; ++round) {
        // Plenty of 0 and 15 among them.
        std::uint64_t a = random();
        const std::uint64_t b = random() & random();
        for (unsigned i = 0; i < 16; ++i) {
            if (random() % 4 == 0) a |= std::uint64_t{15} << (4 * i);
            if (random() % 4 == 0) a &= ~(std::uint64_t{15} << (4 * i));
        }
        const std::uint64_t set = random() & Nibbles::kAll;
        const std::uint64_t removable = set & Nibbles::nonzero(a);
        unsigned least = 15;
        bool right = true;
        for (unsigned i = 0; i < 16; ++i) {
            const unsigned is = nibble(a, i);
            const unsigned in_set = nibble(set, i);
            right = right && nibble(Nibbles::nonzero(a), i) == (is != 0 ? 1U : 0U);
            right = right && nibble(Nibbles::zero_in(a, set), i) == (is == 0 ? in_set : 0U);
            right = right && nibble(Nibbles::free_in(a, set), i) == (is == 15 ? 0U : in_set);
            right = right && nibble(Nibbles::incremented(a, set), i) == std::min(is + in_set, 15U);
            right = right && nibble(Nibbles::decremented(a, removable), i) == (is == 15 || is == 0 ? is : is - in_set);
            right = right && nibble(Nibbles::halved(a), i) == is / 2;
            right = right && nibble(Nibbles::added(a, b), i) == std::min(is + nibble(b, i), 15U);
            if (in_set != 0) least = std::min(least, is);
        }
        right = right && Nibbles::smallest(a, set) == least;
        CAPTURE(a);
        CAPTURE(b);
        CAPTURE(set);
        REQUIRE(right);
    }
}

TEST_CASE("bloom_filter: removing a key that is not there changes nothing") {
    CountingBloomFilter filter(500, 0.05, 5);
    for (int key = 0; key < 500; ++key) filter.insert(key);
    const auto before = counters_of(filter);
    int denied = 0;
    for (int key = 1000; key < 3000; ++key) {
        if (filter.may_contain(key)) continue;
        ++denied;
        CHECK_FALSE(filter.remove(key));
    }
    CHECK(denied > 1500);
    CHECK(counters_of(filter) == before);
}

TEST_CASE("bloom_filter: no key that was inserted more often than removed is ever denied") {
    const std::uint64_t seed = std::random_device{}();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    for (const double rate : {0.9, 0.3, 0.01, 1e-6}) {
        CountingBloomFilter filter(200, rate, random());  // overfull on purpose, so that counters are shared and stick
        std::map<std::uint64_t, int> truth;
        for (int round = 0; round < 6000; ++round) {
            const std::uint64_t key = random() % 600;
            if (random() % 5 < 3) {
                filter.insert(key);
                ++truth[key];
            } else if (truth[key] > 0) {
                CHECK(filter.remove(key));
                --truth[key];
            }
        }
        for (const auto& [key, times] : truth) {
            if (times == 0) continue;
            CHECK(filter.may_contain(key));
            CHECK(filter.count(key) >= static_cast<unsigned>(std::min(times, 15)));
        }
    }
}

TEST_CASE("bloom_filter: try_insert says whether the key was new and counts it once") {
    CountingBloomFilter filter(1000, 0.001, 6);
    CHECK(filter.try_insert("clio"));
    const auto once = counters_of(filter);
    CHECK_FALSE(filter.try_insert("clio"));
    CHECK(counters_of(filter) == once);
    CHECK(filter.remove("clio"));
    CHECK_FALSE(filter.may_contain("clio"));
    CHECK(filter.try_insert("clio"));
}

// --- keys

TEST_CASE("bloom_filter: integers are one key whatever their type and bytes are one key as text or as a span") {
    CountingBloomFilter filter(1000, 1e-6, 7);
    filter.insert(std::int8_t{5});
    CHECK(filter.may_contain(std::uint64_t{5}));
    CHECK(filter.may_contain(5L));
    filter.insert(-3);
    CHECK(filter.may_contain(std::int64_t{-3}));
    CHECK(filter.may_contain(std::int8_t{-3}));
    CHECK_FALSE(filter.may_contain(std::uint32_t{0xfffffffd}));

    filter.insert("melpomene");
    CHECK(filter.may_contain(std::string("melpomene")));
    CHECK(filter.may_contain(std::string_view("melpomene!", 9)));
    const std::string_view text = "melpomene";
    CHECK(filter.may_contain(std::as_bytes(std::span(text))));
    const std::array<std::byte, 4> address{std::byte{203}, std::byte{0}, std::byte{113}, std::byte{7}};
    filter.insert(address);
    CHECK(filter.may_contain(std::string_view("\xcb\0\x71\x07", 4)));
    CHECK(filter.may_contain(std::vector<std::byte>(address.begin(), address.end())));
    CHECK(filter.may_contain(std::array<std::uint8_t, 4>{203, 0, 113, 7}));
    CHECK_FALSE(filter.may_contain(true));
    filter.insert_bulk(std::vector<bool>{true});  // whose elements are no bools
    CHECK(filter.may_contain(1));

    filter.insert("");
    CHECK(filter.may_contain(std::string_view{}));
    CHECK(filter.may_contain(std::span<const std::byte>{}));
    CHECK_FALSE(filter.may_contain(std::string_view("\0", 1)));
}

TEST_CASE("bloom_filter: each filter has its own secret unless it is given one") {
    CountingBloomFilter a(100, 0.01);
    CountingBloomFilter b(100, 0.01);
    CHECK(a.seed() != b.seed());
    a.insert(1);
    b.insert(1);
    CHECK(counters_of(a) != counters_of(b));
    CountingBloomFilter c(100, 0.01, a.seed());
    c.insert(1);
    CHECK(counters_of(a) == counters_of(c));
}

TEST_CASE("bloom_filter: many keys at once do what one after the other does") {
    for (const double rate : kRates) {
        CountingBloomFilter one(5000, rate, 8);
        CountingBloomFilter many(5000, rate, 8);
        std::vector<std::uint32_t> keys(1003);
        std::iota(keys.begin(), keys.end(), 17U);
        for (const std::uint32_t key : keys) one.insert(key);
        many.insert_bulk(keys);
        CHECK(counters_of(one) == counters_of(many));

        std::vector<std::uint32_t> asked(3000);
        std::iota(asked.begin(), asked.end(), 0U);
        std::vector<bool> answers;
        const std::size_t found = many.may_contain_bulk(asked, std::back_inserter(answers));
        REQUIRE(answers.size() == asked.size());
        bool same = true;
        for (std::size_t i = 0; i < asked.size(); ++i) same = same && answers[i] == one.may_contain(asked[i]);
        CHECK(same);
        CHECK(found == static_cast<std::size_t>(std::count(answers.begin(), answers.end(), true)));

        CHECK(many.remove_bulk(keys) == keys.size());
        CHECK(sum_of_counters(many) == 0);
        many.insert_bulk(std::vector<std::string>{});
        many.insert_bulk(std::vector<std::string>{"thalia", "erato"});
        CHECK(many.may_contain("erato"));
    }
}

// --- the whole filter

TEST_CASE("bloom_filter: decay halves every counter and clear forgets all") {
    CountingBloomFilter filter(1000, 0.001, 9);
    for (int i = 0; i < 20; ++i) filter.insert("often");
    for (int i = 0; i < 3; ++i) filter.insert("thrice");
    filter.insert("once");
    filter.decay();
    CHECK(filter.count("often") == 7);
    CHECK(filter.count("thrice") == 1);
    CHECK(filter.count("once") == 0);
    filter.decay();
    filter.decay();
    CHECK(filter.count("often") == 1);
    filter.decay();
    CHECK(sum_of_counters(filter) == 0);
    filter.insert("again");
    filter.clear();
    CHECK(sum_of_counters(filter) == 0);
    CHECK(filter.estimated_items() == 0);
}

TEST_CASE("bloom_filter: merging adds counters and stops at 15") {
    CountingBloomFilter a(1000, 0.001, 10);
    CountingBloomFilter b(1000, 0.001, 10);
    for (int i = 0; i < 9; ++i) a.insert("both");
    for (int i = 0; i < 9; ++i) b.insert("both");
    a.insert("a");
    b.insert("b");
    b.insert("b");
    CHECK(a.merge(b));
    CHECK(a.count("both") == 15);
    CHECK(a.count("a") == 1);
    CHECK(a.count("b") == 2);
    CHECK(b.count("a") == 0);
    CHECK(a.merge(a));
    CHECK(a.count("a") == 2);
    CHECK(a.count("b") == 4);
}

TEST_CASE("bloom_filter: merging another geometry or seed is refused and changes nothing") {
    CountingBloomFilter filter(1000, 0.01, 11);
    filter.insert(1);
    const auto before = counters_of(filter);
    for (const auto& [items, rate, seed] : {std::tuple{1000U, 0.01, 12U}, {1001U, 0.01, 11U}, {1000U, 0.02, 11U}}) {
        CountingBloomFilter other(items, rate, seed);
        other.insert(2);
        CHECK_FALSE(filter.merge(other));
    }
    CHECK(counters_of(filter) == before);
}

TEST_CASE("bloom_filter: the number of different keys is estimated within three percent") {
    for (const double rate : {0.5, 0.01, 1e-6}) {
        CountingBloomFilter filter(20'000, rate, 13);
        for (int round = 0; round < 3; ++round) {
            for (int key = 0; key < 20'000; ++key) filter.insert(key);  // keys that come again are not new ones
        }
        CHECK(static_cast<double>(filter.estimated_items()) == doctest::Approx(20'000).epsilon(0.03));
    }
    CountingBloomFilter tiny(1, 0.5, 14);
    CHECK(tiny.estimated_items() == 0);
    for (int key = 0; key < 10'000; ++key) tiny.insert(key);
    CHECK(tiny.estimated_items() > 10);  // no counter is zero: some finite number
}

TEST_CASE("bloom_filter: a filter moves with all that it knows") {
    CountingBloomFilter from(1000, 0.01, 15);
    from.insert("urania");
    CountingBloomFilter to(std::move(from));
    CHECK(to.may_contain("urania"));
    CountingBloomFilter other(5, 0.5);
    other = std::move(to);
    CHECK(other.may_contain("urania"));
    CHECK(other.expected_items() == 1000);
    CHECK(other.false_positive_rate() == 0.01);
    static_assert(!std::is_copy_constructible_v<CountingBloomFilter>);
}

// --- on disk

TEST_CASE("bloom_filter: what was serialized comes back the same") {
    for (const double rate : kRates) {
        CountingBloomFilter filter(300, rate, 16);
        for (int key = 0; key < 300; ++key) filter.insert(key);
        for (int i = 0; i < 20; ++i) filter.insert("often");
        auto back = CountingBloomFilter::deserialize(filter.serialize());
        REQUIRE(back.has_value());
        CHECK(back->serialize() == filter.serialize());
        CHECK(back->seed() == filter.seed());
        CHECK(back->expected_items() == 300);
        CHECK(back->false_positive_rate() == rate);
        CHECK(back->count("often") == 15);
        CHECK(back->merge(filter));
    }
}

TEST_CASE("bloom_filter: an image that is cut off or damaged anywhere is refused") {
    CountingBloomFilter filter(20, 0.01, 17);
    for (int key = 0; key < 20; ++key) filter.insert(key);
    const std::vector<std::byte> image = filter.serialize();
    for (std::size_t size = 0; size < image.size(); ++size) {
        const auto result = CountingBloomFilter::deserialize(std::span(image).first(size));
        REQUIRE_FALSE(result.has_value());
        CHECK(result.error() == std::errc::bad_message);
    }
    std::vector<std::byte> longer = image;
    longer.resize(image.size() + 8);
    CHECK_FALSE(CountingBloomFilter::deserialize(longer).has_value());
    for (std::size_t at = 0; at < image.size(); ++at) {
        std::vector<std::byte> damaged = image;
        damaged[at] ^= std::byte{0x10};
        const auto result = CountingBloomFilter::deserialize(damaged);
        REQUIRE_FALSE(result.has_value());
        const bool version = at >= 8 && at < 16;
        CHECK(result.error() == (version ? std::errc::not_supported : std::errc::bad_message));
    }
}

TEST_CASE("bloom_filter: an image that promises more than it has is refused without allocating it") {
    const CountingBloomFilter filter(20, 0.01, 18);
    const std::vector<std::byte> image = filter.serialize();
    // words, probes: huge, zero, and such that their product overflows
    for (const auto& [words, probes] : {std::pair{UINT64_MAX, std::uint64_t{1}},
                                        {std::uint64_t{1} << 63U, 2},
                                        {std::uint64_t{1} << 60U, 16},
                                        {std::uint64_t{0}, 3},
                                        {std::uint64_t{1} << 40U, 3},
                                        {std::uint64_t{1}, UINT64_MAX},
                                        {std::uint64_t{5}, 0}}) {
        std::vector<std::byte> forged = image;
        std::memcpy(forged.data() + 40, &words, sizeof words);
        std::memcpy(forged.data() + 48, &probes, sizeof probes);
        const std::uint64_t checksum = muses::detail::hash_bytes(forged.data(), forged.size() - 8, 1);
        std::memcpy(forged.data() + forged.size() - 8, &checksum, sizeof checksum);
        const auto result = CountingBloomFilter::deserialize(forged);
        REQUIRE_FALSE(result.has_value());
        CHECK(result.error() == std::errc::bad_message);
    }
}

// --- many counters

TEST_CASE("bloom_filter: a hash is spread over ranges of more than 32 bits") {
    using muses::detail::scaled_hash;
    CHECK(scaled_hash(0, std::uint64_t{1} << 50U).index == 0);
    CHECK(scaled_hash(UINT64_MAX, std::uint64_t{1} << 50U).index == (std::uint64_t{1} << 50U) - 1);
    CHECK(scaled_hash(std::uint64_t{1} << 63U, std::uint64_t{1} << 50U).index == std::uint64_t{1} << 49U);
    CHECK(scaled_hash(std::uint64_t{1} << 63U, 3).index == 1);
    CHECK(scaled_hash(std::uint64_t{1} << 63U, 3).rest == std::uint64_t{1} << 63U);
    CHECK(scaled_hash(UINT64_MAX, UINT64_MAX).index == UINT64_MAX - 1);
}

TEST_CASE("bloom_filter: more than 2^32 counters work" * doctest::test_suite("slow")) {
    CountingBloomFilter filter(450'000'000, 0.01, 19);  // pages that are not written cost nothing
    CHECK(filter.memory_bytes() * 2 > std::uint64_t{1} << 32U);
    for (std::uint64_t key = 0; key < 2000; ++key) filter.insert(key);
    std::size_t wrong = 0;
    for (std::uint64_t key = 0; key < 2000; ++key) wrong += filter.count(key) == 1 ? 0 : 1;
    for (std::uint64_t key = 2000; key < 100'000; ++key) wrong += filter.may_contain(key) ? 1 : 0;
    for (std::uint64_t key = 0; key < 2000; ++key) wrong += filter.remove(key) ? 0 : 1;
    for (std::uint64_t key = 0; key < 2000; ++key) wrong += filter.may_contain(key) ? 1 : 0;
    CHECK(wrong == 0);
}

// --- threads

TEST_CASE("bloom_filter: no insertion is lost between threads that share counters") {
    const BloomGeometry geometry = BloomPlan::make(50, 0.01);
    for (const unsigned threads : {1U, 2U, 8U}) {
        CountingBloomFilter filter(50, 0.01, 20);
        // So few that no counter sticks: 8 threads x 1 key each round, on purpose in the same places.
        const int rounds = stress_rounds(100);
        for (int round = 0; round < rounds; ++round) {
            in_threads(threads, [&](unsigned t) { filter.insert(t % 2); });
            CHECK(sum_of_counters(filter) == threads * geometry.hashes());
            in_threads(threads, [&](unsigned t) { (void)filter.remove(t % 2); });
            CHECK(sum_of_counters(filter) == 0);
        }
    }
}

TEST_CASE("bloom_filter: of threads that remove one key as many succeed as it was inserted") {
    const int rounds = stress_rounds(500);
    for (const double rate : {0.5, 0.01, 1e-6}) {
        CountingBloomFilter filter(10, rate, 21);
        std::uint64_t wrong = 0;
        for (int round = 0; round < rounds; ++round) {
            for (int i = 0; i < 3; ++i) filter.insert(round);
            std::atomic<int> removed{0};
            in_threads(2, [&](unsigned) {
                while (filter.remove(round)) ++removed;
            });
            wrong += removed == 3 ? 0 : 1;
            wrong += sum_of_counters(filter) == 0 ? 0 : 1;
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("bloom_filter: of threads that bring the same new key at least one is told so") {
    CountingBloomFilter filter(100'000, 1e-6, 22);
    const int rounds = stress_rounds(500);
    std::uint64_t wrong = 0;
    for (int round = 0; round < rounds; ++round) {
        std::atomic<int> fresh{0};
        in_threads(2, [&](unsigned) { fresh += filter.try_insert(round) ? 1 : 0; });
        wrong += fresh >= 1 && filter.may_contain(round) ? 0 : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("bloom_filter: keys that stay are seen at all times while others come and go" * doctest::test_suite("slow")) {
    for (const double rate : {0.5, 0.01, 1e-3}) {
        CountingBloomFilter filter(500, rate, 23);
        for (std::uint64_t key = 0; key < 200; ++key) filter.insert(key);
        std::atomic<bool> stop{false};
        std::atomic<std::uint64_t> denied{0};
        std::atomic<std::uint64_t> failed{0};
        std::thread reader([&] {
            while (!stop) {
                for (std::uint64_t key = 0; key < 200; ++key) denied += filter.may_contain(key) ? 0 : 1;
                (void)filter.estimated_items();
            }
        });
        const int rounds = stress_rounds(2000);
        in_threads(2, [&](unsigned t) {
            std::mt19937_64 random(t + 1);
            for (int round = 0; round < rounds; ++round) {
                std::array<std::uint64_t, 16> keys{};
                for (std::uint64_t& key : keys) key = 1000 + random() % 400;
                filter.insert_bulk(keys);
                for (const std::uint64_t key : keys) failed += filter.may_contain(key) ? 0 : 1;
                failed += keys.size() - filter.remove_bulk(keys);
            }
        });
        stop = true;
        reader.join();
        CHECK(denied == 0);
        CHECK(failed == 0);
        for (std::uint64_t key = 0; key < 200; ++key) CHECK(filter.may_contain(key));
    }
}

TEST_CASE("bloom_filter: the whole filter can be worked on while others use it") {
    CountingBloomFilter filter(500, 0.01, 24);
    CountingBloomFilter other(500, 0.01, 24);
    other.insert(3);
    std::atomic<bool> stop{false};
    std::thread user([&] {
        for (std::uint64_t key = 0; !stop; ++key) {
            filter.insert(key % 100);
            (void)filter.try_insert(key % 50);
            (void)filter.count(key);
        }
    });
    bool all_well = true;
    for (int round = 0; round < stress_rounds(200); ++round) {
        filter.decay();
        all_well = filter.merge(other) && all_well;
        all_well = CountingBloomFilter::deserialize(filter.serialize()).has_value() && all_well;
        filter.clear();
    }
    stop = true;
    user.join();
    CHECK(all_well);
    filter.clear();
    CHECK(sum_of_counters(filter) == 0);
}
