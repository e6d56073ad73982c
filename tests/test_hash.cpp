#include "muses/detail/hash.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

TEST_CASE("hash: the default hash depends on every byte and the length and the seed") {
    using muses::detail::hash_bytes;
    std::set<std::uint64_t> seen;
    std::size_t expected = 0;
    for (std::size_t size = 0; size <= 70; ++size) {
        std::vector<unsigned char> bytes(size, 0);  // exactly sized: a read too far is a report of ASan
        seen.insert(hash_bytes(bytes.data(), size, 1));
        seen.insert(hash_bytes(bytes.data(), size, 2));
        expected += 2;
        for (std::size_t i = 0; i < size; ++i) {
            bytes[i] = 1;
            seen.insert(hash_bytes(bytes.data(), size, 1));
            bytes[i] = 128;
            seen.insert(hash_bytes(bytes.data(), size, 1));
            bytes[i] = 0;
            expected += 2;
        }
    }
    CHECK(seen.size() == expected);
}

TEST_CASE("hash: the default hash spreads regular keys over low and high bits") {
    const auto check = [](const char* what, const std::function<std::uint64_t(std::uint64_t)>& hash_of) {
        CAPTURE(what);
        for (const unsigned shift : {0U, 24U, 54U}) {
            std::array<int, 1024> buckets{};
            constexpr int kKeys = 64 * 1024;
            for (std::uint64_t i = 0; i < kKeys; ++i) ++buckets[(hash_of(i) >> shift) & 1023U];
            double chi = 0;
            for (const int n : buckets) chi += (n - 64.0) * (n - 64.0) / 64.0;
            // 1023 degrees of freedom: mean 1023, standard deviation 45; a fair hash exceeds 1023 + 8 * 45 in none of a billion runs.
            CHECK(chi < 1023 + 8 * 45);
        }
    };
    const muses::detail::SeededHash<std::uint64_t> ints;
    const muses::detail::SeededHash<std::string> texts;
    check("sequence", [&](std::uint64_t i) { return ints(i); });
    check("multiples of 2^32", [&](std::uint64_t i) { return ints(i << 32U); });
    check("multiples of 2^48", [&](std::uint64_t i) { return ints(i << 48U); });
    check("short text", [&](std::uint64_t i) { return texts(std::to_string(i)); });
    check("text with a long prefix",
          [&](std::uint64_t i) { return texts("/usr/share/doc/some/long/path/" + std::to_string(i) + ".html"); });
}

TEST_CASE("hash: two hashes made separately differ and a copy agrees with its original") {
    const muses::detail::SeededHash<std::string> a;
    const muses::detail::SeededHash<std::string> b;
    const auto copy = a;
    CHECK(a("x") != b("x"));
    CHECK(copy("x") == a("x"));
    CHECK(a(std::string("x")) == a("x"));
    CHECK(muses::detail::SeededHash<int>()(1) != muses::detail::SeededHash<int>()(1));
}
