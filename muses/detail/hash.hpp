// Seeded hashing: what stands between a container's layout and whoever chooses its keys.
//
// std::hash is the identity for integers in the libraries in use and unseeded for text, so an outsider who picks the keys
// can pick the collisions. Everything here is keyed by a seed that is drawn once per object.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>

namespace muses::detail {

/// Spreads every bit of `x` over all 64 bits. A bijection.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
    x ^= x >> 32U;
    x *= 0xd6e8feb86659fd93U;
    x ^= x >> 32U;
    x *= 0xd6e8feb86659fd93U;
    x ^= x >> 32U;
    return x;
}

/// The two halves of the 128-bit product, folded into one. Strong when one factor is unknown to whoever chose the other.
[[nodiscard]] constexpr std::uint64_t fold_multiply(std::uint64_t a, std::uint64_t b) noexcept {
#if defined(__SIZEOF_INT128__)
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
#else
    const std::uint64_t al = a & 0xffffffffU, ah = a >> 32U, bl = b & 0xffffffffU, bh = b >> 32U;
    const std::uint64_t low = al * bl, m1 = ah * bl + (low >> 32U), m2 = al * bh + (m1 & 0xffffffffU);
    return ((m2 << 32U) | (low & 0xffffffffU)) ^ (ah * bh + (m1 >> 32U) + (m2 >> 32U));
#endif
}

/// A hash, spread evenly over 0 .. n-1 without a division: `index` is the whole part of n * hash / 2^64, and `rest` the 64 bits after the
/// point, whose upper ones are evenly spread again.
struct ScaledHash {
    std::uint64_t index;
    std::uint64_t rest;
};
[[nodiscard]] constexpr ScaledHash scaled_hash(std::uint64_t hash, std::uint64_t n) noexcept {
#if defined(__SIZEOF_INT128__)
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(hash) * n;
    return {static_cast<std::uint64_t>(product >> 64U), static_cast<std::uint64_t>(product)};
#else
    const std::uint64_t hl = hash & 0xffffffffU, hh = hash >> 32U, nl = n & 0xffffffffU, nh = n >> 32U;
    const std::uint64_t m1 = hh * nl + ((hl * nl) >> 32U), m2 = hl * nh + (m1 & 0xffffffffU);
    return {hh * nh + (m1 >> 32U) + (m2 >> 32U), hash * n};
#endif
}

/// Hash of `size` bytes under `seed`. Equal bytes under equal seeds hash alike on machines of one byte order.
[[nodiscard]] inline std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    const auto load8 = [](const unsigned char* p) noexcept {
        std::uint64_t word = 0;
        std::memcpy(&word, p, sizeof word);
        return word;
    };
    const auto load4 = [](const unsigned char* p) noexcept {
        std::uint32_t word = 0;
        std::memcpy(&word, p, sizeof word);
        return std::uint64_t{word};
    };
    // Neither factor of a fold may be known to an attacker, so both start from the seed, mixed.
    std::uint64_t state = mix64(seed + 0x9e3779b97f4a7c15U);
    const std::uint64_t secret = std::rotl(state, 21) ^ 0xc2b2ae3d27d4eb4fU;
    std::size_t left = size;
    for (; left > 16; at += 16, left -= 16) state = fold_multiply(load8(at) ^ secret, load8(at + 8) ^ state);
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    if (left >= 8) {  // the two words overlap unless there are 16 bytes
        first = load8(at);
        last = load8(at + left - 8);
    } else if (left >= 4) {
        first = load4(at);
        last = load4(at + left - 4);
    } else if (left > 0) {
        first = (std::uint64_t{at[0]} << 16U) | (std::uint64_t{at[left / 2]} << 8U) | at[left - 1];
    }
    state = fold_multiply(first ^ secret, last ^ state);
    return mix64(state ^ (static_cast<std::uint64_t>(size) * 0x9e3779b97f4a7c15U));
}

/// A seed that an outsider cannot guess, different at every call. Reads the system's entropy once per process; where that
/// fails, the clock and the address layout stand in.
[[nodiscard]] inline std::uint64_t random_seed() noexcept {
    static const std::uint64_t base = []() noexcept -> std::uint64_t {
        int here = 0;
        std::uint64_t noise = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
        noise = mix64(noise) ^ static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&here));
        try {
            std::random_device device;
            noise ^= (std::uint64_t{device()} << 32U) | device();
        } catch (...) {  // no entropy source: the noise alone has to do
        }
        return mix64(noise);
    }();
    static std::atomic<std::uint64_t> calls{0};
    // Relaxed: each caller needs only a number of its own.
    return mix64(base + (calls.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9e3779b97f4a7c15U);
}

/// What: the default hash of the containers: std::hash, or all bytes of a text, under a seed of its own.
/// Complexity: O(1) for scalars, O(n) for text.
/// Threads: const calls may run at once.
/// Lifetime: a copy hashes like its original; two objects made separately do not.
/// Limits: as good as std::hash<Key> where that maps two keys to one number.
template <class Key>
class SeededHash {
public:
    using is_avalanching = void;  ///< every bit of the result depends on every bit of what std::hash gives

    SeededHash() noexcept : SeededHash(random_seed()) {}
    explicit SeededHash(std::uint64_t seed) noexcept : seed_(seed) {}

    [[nodiscard]] std::uint64_t operator()(const Key& key) const {
        return mix64(static_cast<std::uint64_t>(std::hash<Key>{}(key)) ^ seed_);
    }

private:
    std::uint64_t seed_;
};

/// Text is looked up by anything that converts to std::string_view, without a temporary string.
template <class Key>
    requires std::convertible_to<const Key&, std::string_view> &&
             (std::same_as<Key, std::string_view> || std::same_as<typename Key::traits_type, std::char_traits<char>>)
class SeededHash<Key> {
public:
    using is_transparent = void;
    using is_avalanching = void;

    SeededHash() noexcept : SeededHash(random_seed()) {}
    explicit SeededHash(std::uint64_t seed) noexcept : seed_(seed) {}

    [[nodiscard]] std::uint64_t operator()(std::string_view text) const noexcept {
        return hash_bytes(text.data(), text.size(), seed_);
    }

private:
    std::uint64_t seed_;
};

}  // namespace muses::detail
