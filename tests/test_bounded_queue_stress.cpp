#include "muses/bounded_queue.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.hpp"
#include "support/queue_elements.hpp"

using namespace muses::test;
using namespace std::chrono_literals;
using muses::BoundedQueue;
using muses::OverflowPolicy;
using muses::detail::RingStart;

namespace {

template <class Queue>
void consume(Queue& queue, unsigned kind, Tally& tally) {
    using T = typename Queue::value_type;
    switch (kind % 3) {
        case 0:
            while (auto value = queue.wait_pop()) tally.add(number_of(*value));
            break;
        case 1:
            for (;;) {
                if (auto value = queue.wait_pop(200us)) {
                    tally.add(number_of(*value));
                } else if (queue.stopped()) {
                    while (auto rest = queue.wait_pop()) tally.add(number_of(*rest));
                    return;
                }
            }
        default:
            for (;;) {
                std::vector<T> batch;
                if (queue.try_pop_bulk(std::back_inserter(batch), 5) == 0) {
                    if (auto value = queue.wait_pop()) {
                        tally.add(number_of(*value));
                    } else {
                        return;
                    }
                }
                for (const T& value : batch) tally.add(number_of(value));
            }
    }
}

template <class T, OverflowPolicy Policy, class Index = std::uint64_t>
void stress(std::size_t capacity, unsigned producers, unsigned consumers, std::uint64_t each, RingStart start = {}) {
    BoundedQueue<T, Policy, Index> queue(capacity, start);
    std::atomic<bool> go{false};
    std::atomic<std::uint64_t> accepted{0};
    std::atomic<std::uint64_t> accepted_sum{0};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> evicted{0};
    std::atomic<std::uint64_t> evicted_sum{0};
    std::atomic<bool> in_range{true};
    std::vector<Tally> tallies(consumers);
    std::vector<std::thread> threads;
    for (unsigned p = 0; p < producers; ++p) {
        threads.emplace_back([&, p] {
            while (!go) std::this_thread::yield();
            for (std::uint64_t i = 0; i < each; ++i) {
                const std::uint64_t number = (std::uint64_t{p} << 32U) | i;
                if constexpr (Policy == OverflowPolicy::DropOldest) {
                    if (auto old = queue.push_evicting(make<T>(number))) {
                        ++evicted;
                        evicted_sum += number_of(*old);
                    }
                    ++accepted;
                    accepted_sum += number;
                } else if (queue.push(make<T>(number))) {
                    ++accepted;
                    accepted_sum += number;
                } else {
                    ++refused;
                    std::this_thread::yield();
                }
                if (queue.size_approx() > capacity) in_range = false;
            }
        });
    }
    for (unsigned c = 0; c < consumers; ++c) {
        threads.emplace_back([&, c] {
            while (!go) std::this_thread::yield();
            consume(queue, c, tallies[c]);
        });
    }
    go = true;
    for (unsigned p = 0; p < producers; ++p) threads[p].join();
    queue.stop();
    for (unsigned c = 0; c < consumers; ++c) threads[producers + c].join();

    std::uint64_t popped = 0;
    std::uint64_t popped_sum = 0;
    for (const Tally& tally : tallies) {
        CHECK(tally.ordered);
        popped += tally.count;
        popped_sum += tally.sum;
    }
    CHECK(popped + evicted == accepted);
    CHECK(popped_sum + evicted_sum == accepted_sum);
    CHECK(queue.dropped() == refused + evicted);
    CHECK(queue.size_approx() == 0);
    CHECK(in_range);
    if constexpr (Policy == OverflowPolicy::Block) CHECK(popped == each * producers);
}

}  // namespace

#define STRESS_CASES(Policy)                                                                                                \
    Case<Plain, OverflowPolicy::Policy>, Case<MoveOnly, OverflowPolicy::Policy>, Case<OverAligned, OverflowPolicy::Policy>, \
        Case<Counted, OverflowPolicy::Policy>

TEST_CASE_TEMPLATE("bounded_queue: stress keeps sums and order and destroys everything once" * doctest::test_suite("slow"), C,
                   STRESS_CASES(DropNew), STRESS_CASES(DropOldest), STRESS_CASES(Block)) {
    using T = typename C::T;
    for (const std::size_t capacity : {1U, 2U, 3U, 1024U}) {
        for (const unsigned threads : {1U, 2U, 8U}) {
            CAPTURE(capacity);
            CAPTURE(threads);
            stress<T, C::kPolicy>(capacity, threads, threads, stress_rounds(std::uint64_t{2000}) / threads);
        }
    }
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
    CHECK(OverAligned::misaligned == 0);
}

TEST_CASE_TEMPLATE("bounded_queue: stress with uneven numbers of producers and consumers", C, ALL_POLICIES) {
    stress<Counted, C::kPolicy>(3, 8, 1, stress_rounds(std::uint64_t{400}));
    stress<Counted, C::kPolicy>(3, 1, 8, stress_rounds(std::uint64_t{3000}));
    stress<Counted, C::kPolicy>(64, 3, 2, stress_rounds(std::uint64_t{3000}));
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
}

// --- indexes that wrap

TEST_CASE("bounded_queue: many threads push and pop over the wrap") {
    for (const std::size_t capacity : {1U, 2U, 3U, 64U}) {
        const std::uint64_t each = stress_rounds(std::uint64_t{1000});
        const RingStart narrow{(std::size_t{1} << 31U) - each};
        const RingStart wide{(std::size_t{1} << 63U) - each};
        stress<Counted, OverflowPolicy::DropNew, std::uint32_t>(capacity, 2, 2, each, narrow);
        stress<Counted, OverflowPolicy::DropOldest, std::uint32_t>(capacity, 2, 2, each, narrow);
        stress<Counted, OverflowPolicy::DropNew>(capacity, 2, 2, each, wide);
        stress<Counted, OverflowPolicy::DropOldest>(capacity, 2, 2, each, wide);
    }
    CHECK(Counted::live == 0);
}

TEST_CASE("bounded_queue: an index of 8 bits wraps thousands of times between one producer and one consumer" *
          doctest::test_suite("slow")) {
    for (const std::size_t capacity : {1U, 2U, 3U, 63U, 64U}) {
        CAPTURE(capacity);
        // 128 positions a lap: 2000 laps, or 150 where each element is a change of threads.
        const std::uint64_t each = stress_rounds(std::uint64_t{capacity < 10 ? 19'200U : 256'000U});
        stress<Plain, OverflowPolicy::DropOldest, std::uint8_t>(capacity, 1, 1, each);
        BoundedQueue<Plain, OverflowPolicy::DropNew, std::uint8_t> queue(capacity);
        std::thread producer([&] {
            for (std::uint64_t i = 0; i < each; ++i) {
                while (!queue.try_push(std::uint64_t{i})) std::this_thread::yield();
            }
            queue.stop();
        });
        std::uint64_t expected = 0;
        std::uint64_t wrong = 0;
        while (const auto value = queue.wait_pop()) wrong += *value == expected++ ? 0 : 1;
        producer.join();
        CHECK(expected == each);
        CHECK(wrong == 0);
    }
}

// --- waking

TEST_CASE_TEMPLATE("bounded_queue: no wake-up is lost between two consumers that sleep" * doctest::test_suite("slow"), C,
                   ALL_POLICIES) {
    const std::uint64_t rounds = stress_rounds(std::uint64_t{100'000});
    BoundedQueue<Plain, C::kPolicy> there(1);
    BoundedQueue<Plain, C::kPolicy> back(1);
    std::thread other([&] {
        while (const auto value = there.wait_pop()) {
            if (!back.push(*value)) break;
        }
    });
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < rounds; ++i) {
        if (!there.push(i)) ++wrong;
        if (back.wait_pop() != i) ++wrong;
    }
    there.stop();
    other.join();
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("bounded_queue: each element wakes one sleeper", C, ALL_POLICIES) {
    constexpr int kSleepers = 4;
    BoundedQueue<Plain, C::kPolicy> queue(kSleepers);
    std::atomic<int> got{0};
    std::atomic<int> round_number{0};
    std::atomic<bool> failed{false};
    const int rounds = stress_rounds(300);
    std::vector<std::thread> sleepers;
    for (int i = 0; i < kSleepers; ++i) {
        sleepers.emplace_back([&] {
            for (int round = 0; round < rounds; ++round) {
                while (round_number < round && !failed) std::this_thread::yield();
                if (queue.wait_pop()) ++got;
            }
        });
    }
    for (int round = 0; round < rounds && !failed; ++round) {
        if (round % 16 == 0) let_it_sleep();
        for (int i = 0; i < kSleepers; ++i) (void)queue.push(1);
        if (!eventually([&] { return got == kSleepers * (round + 1); })) failed = true;
        round_number = round + 1;
    }
    queue.stop();
    for (auto& sleeper : sleepers) sleeper.join();
    CHECK_FALSE(failed);
}

TEST_CASE_TEMPLATE("bounded_queue: short waits that time out while elements come lose none", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(1024);
    const std::uint64_t each = stress_rounds(std::uint64_t{1000});
    std::atomic<std::uint64_t> popped{0};
    std::vector<std::thread> consumers;
    for (int i = 0; i < 3; ++i) {
        consumers.emplace_back([&, i] {
            for (;;) {
                const auto value = i == 2 ? queue.wait_pop() : queue.wait_pop(std::chrono::microseconds(30 * (i + 1)));
                if (value) {
                    ++popped;
                } else if (queue.stopped()) {
                    return;
                }
            }
        });
    }
    for (std::uint64_t i = 0; i < each; ++i) {
        CHECK(queue.push(i));
        if (i % 4 == 0) std::this_thread::sleep_for(50us);
    }
    CHECK(eventually([&] { return popped == each; }));
    queue.stop();
    for (auto& consumer : consumers) consumer.join();
    CHECK(popped == each);
}
