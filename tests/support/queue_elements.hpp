// Element types for the tests of queues: each carries a number, and each has a way to notice when it is treated badly.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>

#include "muses/detail/overflow_policy.hpp"

namespace muses::test {

using Plain = std::uint64_t;
using MoveOnly = std::unique_ptr<std::uint64_t>;

struct alignas(128) OverAligned {
    explicit OverAligned(std::uint64_t n) noexcept : number(n) { check(); }
    OverAligned(OverAligned&& other) noexcept : number(other.number) { check(); }
    OverAligned& operator=(OverAligned&&) = delete;
    void check() const noexcept {
        if (reinterpret_cast<std::uintptr_t>(this) % 128 != 0) misaligned.fetch_add(1);
    }
    std::uint64_t number;
    static inline std::atomic<int> misaligned{0};
};

// Counts living objects; notices a second destruction and a use of what was never constructed.
struct Counted {
    explicit Counted(std::uint64_t n) noexcept : number(n), magic(kAlive) { live.fetch_add(1); }
    Counted(Counted&& other) noexcept : number(other.number), magic(kAlive) {
        if (other.magic != kAlive) broken.fetch_add(1);
        live.fetch_add(1);
    }
    Counted& operator=(Counted&&) = delete;
    ~Counted() {
        if (magic != kAlive) broken.fetch_add(1);
        magic = kDead;
        live.fetch_sub(1);
    }
    static constexpr std::uint32_t kAlive = 0xA11FE;
    static constexpr std::uint32_t kDead = 0xDEAD;
    std::uint64_t number;
    std::uint32_t magic;
    static inline std::atomic<int> live{0};
    static inline std::atomic<int> broken{0};
};

template <class T>
T make(std::uint64_t number) {
    if constexpr (std::is_same_v<T, MoveOnly>) {
        return std::make_unique<std::uint64_t>(number);
    } else {
        return T(number);
    }
}

inline std::uint64_t number_of(Plain value) { return value; }
inline std::uint64_t number_of(const MoveOnly& value) { return *value; }
inline std::uint64_t number_of(const OverAligned& value) { return value.number; }
inline std::uint64_t number_of(const Counted& value) { return value.number; }

template <class Element, OverflowPolicy P>
struct Case {
    using T = Element;
    static constexpr OverflowPolicy kPolicy = P;
};
template <OverflowPolicy P>
using PlainCase = Case<Plain, P>;

using DropNew = PlainCase<OverflowPolicy::DropNew>;
using DropOldest = PlainCase<OverflowPolicy::DropOldest>;
using Block = PlainCase<OverflowPolicy::Block>;

#define ALL_POLICIES DropNew, DropOldest, Block

// Waits until a thread that is about to sleep in the queue has very probably done so. Only makes a test meet the interesting
// interleaving; no result depends on it.
inline void let_it_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

/// What a consumer got: a count, a sum, and whether each producer's elements came in order.
struct Tally {
    std::uint64_t count = 0;
    std::uint64_t sum = 0;
    bool ordered = true;
    std::array<std::uint64_t, 16> next{};

    void add(std::uint64_t number) {
        ++count;
        sum += number;
        std::uint64_t& expected = next.at(number >> 32U);
        const std::uint64_t index = number & 0xFFFFFFFFU;
        ordered = ordered && index >= expected;
        expected = index + 1;
    }
};

}  // namespace muses::test
