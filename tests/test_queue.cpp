#include "muses/queue.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.hpp"
#include "support/failing_new.hpp"
#include "support/queue_elements.hpp"

using namespace muses::test;
using namespace std::chrono_literals;
using muses::Queue;

namespace {

constexpr std::size_t kSlots = muses::detail::QueueSegment<std::uint64_t>::kSlots;

// What a test asks of an element type that counts: all destroyed, once.
void check_elements() {
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
    CHECK(OverAligned::misaligned == 0);
}

// Runs something of the test's when it is copied, built or destroyed.
struct Hooked {
    explicit Hooked(std::function<void()> f) : hook(std::move(f)) { hook(); }
    Hooked(const Hooked& other) : hook(other.hook) { hook(); }
    Hooked(Hooked&& other) noexcept : hook(std::exchange(other.hook, nullptr)) {}
    Hooked& operator=(Hooked&&) = delete;
    ~Hooked() {
        if (hook) hook();
    }
    std::function<void()> hook;
};

struct Throws {
    explicit Throws(int n) : number(n) {
        if (n < 0) throw std::runtime_error("negative");
    }
    Throws(const Throws& other) : number(other.number) {
        if (number == 13) throw std::runtime_error("thirteen");
    }
    Throws(Throws&& other) noexcept : number(std::exchange(other.number, -1)) {}
    Throws& operator=(Throws&&) = delete;
    int number;
};

}  // namespace

TEST_CASE_TEMPLATE("queue: elements of any kind come out in order and are destroyed once", T, Plain, MoveOnly, OverAligned,
                   Counted) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, kSlots - 1, kSlots, kSlots + 1, 5 * kSlots}) {
        Queue<T> queue;
        for (std::uint64_t i = 0; i < count; ++i) CHECK(queue.push(make<T>(i)));
        CHECK(queue.size_approx() == count);
        for (std::uint64_t i = 0; i < count; ++i) {
            const auto value = queue.try_pop();
            REQUIRE(value.has_value());
            REQUIRE(number_of(*value) == i);
        }
        CHECK_FALSE(queue.try_pop().has_value());
        CHECK(queue.size_approx() == 0);
        for (std::uint64_t i = 0; i < count; ++i) queue.push(make<T>(i));
        for (std::uint64_t i = 0; i < count / 2; ++i) (void)queue.try_pop();
    }  // the rest goes with the queue
    check_elements();
}

TEST_CASE("queue: elements are copied or moved or built in place") {
    Queue<std::string> queue;
    const std::string kept = "kept";
    std::string given = "given, and long enough to be on the heap";
    CHECK(queue.push(kept));
    CHECK(queue.push(std::move(given)));
    CHECK(queue.emplace(3U, 'x'));
    CHECK(queue.emplace("text"));
    CHECK(queue.push({'a', 'b'}));
    CHECK(queue.drain() == std::vector<std::string>{"kept", "given, and long enough to be on the heap", "xxx", "text", "ab"});
}

// --- refusals and exceptions

TEST_CASE("queue: after close nothing is added and what was offered is untouched") {
    Queue<std::unique_ptr<int>> queue;
    CHECK(queue.push(std::make_unique<int>(1)));
    queue.close();
    queue.close();
    CHECK(queue.closed());
    auto value = std::make_unique<int>(2);
    CHECK_FALSE(queue.push(std::move(value)));
    REQUIRE(value);
    CHECK_FALSE(queue.emplace(std::move(value)));
    REQUIRE(value);

    Queue<std::pair<std::unique_ptr<int>, int>> pairs;
    pairs.close();
    CHECK_FALSE(pairs.emplace(std::move(value), 5));  // the constructor must not have run
    REQUIRE(value);

    std::vector<std::unique_ptr<int>> many;
    many.push_back(std::move(value));
    CHECK_FALSE(queue.push_range(many | std::views::transform([](auto& p) -> auto&& { return std::move(p); })));
    CHECK(many[0]);

    const auto rest = queue.pop();
    REQUIRE(rest.has_value());
    CHECK(**rest == 1);
    CHECK_FALSE(queue.pop().has_value());
    CHECK_FALSE(queue.pop_for(1h).has_value());
    CHECK_FALSE(queue.try_pop().has_value());
    CHECK(queue.drain().empty());
}

TEST_CASE("queue: what a copy or a constructor throws leaves the queue as before") {
    Queue<Throws> queue;
    queue.emplace(1);
    CHECK_THROWS_AS(queue.emplace(-1), std::runtime_error);
    const Throws thirteen(13);
    CHECK_THROWS_AS(queue.push(thirteen), std::runtime_error);
    CHECK(thirteen.number == 13);
    const std::vector<int> numbers{2, 3, -4, 5};
    CHECK_THROWS_AS(queue.push_range(numbers), std::runtime_error);
    CHECK(queue.size_approx() == 1);
    queue.emplace(6);
    CHECK(queue.pop()->number == 1);
    CHECK(queue.pop()->number == 6);
    queue.close();
    CHECK_FALSE(queue.pop().has_value());  // whoever threw is not waited for
}

#ifdef MUSES_TEST_CAN_FAIL_NEW
TEST_CASE("queue: an allocation that fails leaves queue and value as before") {
    std::uint64_t failures = 0;
    for (int kind = 0; kind < 4; ++kind) {
        Queue<std::unique_ptr<std::uint64_t>> queue;
        std::uint64_t pushed = 0;
        while (pushed < 3 * kSlots) {
            auto value = std::make_unique<std::uint64_t>(pushed);
            std::vector<std::unique_ptr<std::uint64_t>> one(1);
            if (kind == 2) one[0] = std::move(value);
            bool added = false;
            try {
                const FailNew fail(0);
                if (kind == 0) added = queue.push(std::move(value));
                if (kind == 1) added = queue.emplace(value.get(), std::default_delete<std::uint64_t>());
                if (kind == 2)
                    added = queue.push_range(one | std::views::transform([](auto& p) -> auto&& { return std::move(p); }));
                if (kind == 3) added = queue.emplace(std::move(value));
            } catch (const std::bad_alloc&) {
                ++failures;
                const auto& kept = kind == 2 ? one[0] : value;
                REQUIRE(kept);
                CHECK(*kept == pushed);
                CHECK(queue.size_approx() == pushed);
                added = queue.push(kind == 2 ? std::move(one[0]) : std::move(value));
            }
            CHECK(added);
            if (kind == 1) (void)value.release();
            ++pushed;
        }
        for (std::uint64_t i = 0; i < pushed; ++i) REQUIRE(**queue.try_pop() == i);
    }
    CHECK(failures >= 8);
}

TEST_CASE("queue: an allocation that fails while draining loses nothing") {
    Queue<std::uint64_t> queue;
    for (std::uint64_t i = 0; i < 3 * kSlots; ++i) queue.push(i);
    int failures = 0;
    std::vector<std::uint64_t> all;
    for (int nth = 0; all.empty(); ++nth) {
        try {
            const FailNew fail(nth);
            all = queue.drain();
        } catch (const std::bad_alloc&) {
            ++failures;
            CHECK(queue.size_approx() == 3 * kSlots);
        }
    }
    CHECK(failures == 2);
    CHECK(all.size() == 3 * kSlots);
    CHECK(std::ranges::is_sorted(all));
}
#endif

TEST_CASE("queue: constructors and copies and destructors may use the queue") {
    Queue<Hooked> queue;
    int runs = 0;
    const auto use = [&] {
        ++runs;
        (void)queue.size_approx();
        (void)queue.try_pop();
        if (runs < 6) queue.push(Hooked([&] { ++runs; }));
    };
    queue.emplace(use);
    const Hooked original(use);
    queue.push(original);
    queue.push_range(std::vector<std::function<void()>>{use, use});
    (void)queue.drain();
    CHECK(runs > 6);
}

// --- ranges and draining

TEST_CASE("queue: a range is added whole and in order whatever its length") {
    for (const std::size_t before : {std::size_t{0}, std::size_t{1}, kSlots - 1, kSlots}) {
        for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{2}, kSlots, kSlots + 1, 3 * kSlots}) {
            Queue<std::uint64_t> queue;
            std::uint64_t next = 0;
            for (std::size_t i = 0; i < before; ++i) queue.push(next++);
            std::vector<std::uint64_t> range(length);
            std::iota(range.begin(), range.end(), next);
            next += length;
            CHECK(queue.push_range(range));
            CHECK(queue.push(next++));
            CHECK(queue.push_range(std::vector<std::uint32_t>{static_cast<std::uint32_t>(next)}));  // another type, an rvalue
            ++next;
            CHECK(queue.size_approx() == next);
            for (std::uint64_t i = 0; i < next; ++i) REQUIRE(queue.try_pop() == i);
            CHECK_FALSE(queue.try_pop().has_value());
        }
    }
    Queue<Counted> counted;
    counted.push_range(std::views::iota(std::uint64_t{0}, std::uint64_t{1000}));
    for (int i = 0; i < 10; ++i) counted.push_range(std::views::iota(std::uint64_t{0}, std::uint64_t{3}));
    CHECK(counted.size_approx() == 1030);
    for (int i = 0; i < 500; ++i) (void)counted.try_pop();
    CHECK(counted.drain().size() == 530);
    check_elements();
}

TEST_CASE("queue: draining takes everything and leaves a queue that works") {
    Queue<Counted> queue;
    CHECK(queue.drain().empty());
    for (const std::size_t count : {std::size_t{1}, kSlots, 4 * kSlots + 3}) {
        for (std::uint64_t i = 0; i < count; ++i) queue.push(Counted(i));
        (void)queue.try_pop();
        const auto all = queue.drain();
        REQUIRE(all.size() == count - 1);
        for (std::uint64_t i = 1; i < count; ++i) REQUIRE(all[i - 1].number == i);
        CHECK(queue.size_approx() == 0);
        CHECK_FALSE(queue.try_pop().has_value());
    }
    queue.push(Counted(9));
    queue.close();
    CHECK(queue.drain().size() == 1);
    CHECK_FALSE(queue.pop().has_value());
}

// --- waiting

TEST_CASE("queue: a wait ends at its deadline and any duration is fine") {
    Queue<int> queue;
    CHECK_FALSE(queue.pop_for(0s).has_value());
    CHECK_FALSE(queue.pop_for(-1h).has_value());
    CHECK_FALSE(queue.pop_for(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())).has_value());
    const auto start = std::chrono::steady_clock::now();
    CHECK_FALSE(queue.pop_for(20ms).has_value());
    CHECK(std::chrono::steady_clock::now() - start >= 20ms);
    queue.push(1);
    queue.push(2);
    CHECK(queue.pop_for(0s) == 1);
    CHECK(queue.pop_for(std::chrono::hours::max()) == 2);
    std::thread later([&] { queue.push(3); });
    CHECK(queue.pop_for(std::chrono::duration<double>(std::numeric_limits<double>::infinity())) == 3);
    later.join();
}

TEST_CASE("queue: close wakes all who wait and who comes later does not wait") {
    Queue<int> queue;
    std::atomic<int> ended{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 4; ++i) {
        waiters.emplace_back([&, i] {
            const auto value = i % 2 == 0 ? queue.pop() : queue.pop_for(1h);
            if (!value) ++ended;
        });
    }
    let_it_sleep();
    queue.close();
    for (auto& waiter : waiters) waiter.join();
    CHECK(ended == 4);
    CHECK_FALSE(queue.pop().has_value());
}

TEST_CASE("queue: an element that is being built when the queue is closed still comes out") {
    for (const bool fails : {false, true}) {
        Queue<Hooked> queue;
        std::atomic<bool> building{false};
        std::atomic<bool> go_on{false};
        std::atomic<bool> added{false};
        std::thread producer([&] {
            try {
                added = queue.emplace([&, first = true]() mutable {
                    if (!std::exchange(first, false)) return;
                    building = true;
                    while (!go_on) std::this_thread::yield();
                    if (fails) throw std::runtime_error("not built after all");
                });
            } catch (const std::runtime_error&) {}
        });
        while (!building) std::this_thread::yield();
        queue.close();
        CHECK_FALSE(queue.push(Hooked([] {})));
        CHECK_FALSE(queue.pop_for(1ms).has_value());  // not yet
        std::atomic<int> got{-1};
        std::thread consumer([&] { got = queue.pop().has_value() ? 1 : 0; });
        let_it_sleep();
        CHECK(got == -1);  // it waits for the outcome
        go_on = true;
        producer.join();
        consumer.join();
        CHECK(added == !fails);
        CHECK(got == (fails ? 0 : 1));
        CHECK_FALSE(queue.pop().has_value());
    }
}

TEST_CASE("queue: no wake-up is lost between two consumers that sleep" * doctest::test_suite("slow")) {
    const std::uint64_t rounds = stress_rounds(std::uint64_t{50'000});
    Queue<std::uint64_t> there;
    Queue<std::uint64_t> back;
    std::thread other([&] {
        while (const auto value = there.pop()) back.push(*value);
    });
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < rounds; ++i) {
        there.push(i);
        if (i % 1000 == 0) let_it_sleep();
        if (back.pop() != i) ++wrong;
    }
    there.close();
    other.join();
    CHECK(wrong == 0);
}

TEST_CASE("queue: who is called as its time runs out leaves nobody asleep" * doctest::test_suite("slow")) {
    Queue<int> queue;
    std::atomic<long> popped{0};
    std::atomic<long> rounds_begun{0};
    std::atomic<long> rounds_ended{0};
    std::thread patient([&] {
        while (queue.pop()) ++popped;
    });
    const long rounds = stress_rounds(150L);
    std::thread hurried([&] {
        for (long round = 1; round <= rounds; ++round) {
            while (rounds_begun < round) std::this_thread::yield();
            if (queue.pop_for(2ms)) ++popped;
            rounds_ended = round;
        }
    });
    long pushed = 0;
    const auto push = [&] {
        CHECK(queue.push(0));
        ++pushed;
    };
    for (long round = 1; round <= rounds; ++round) {
        const auto begin = std::chrono::steady_clock::now();
        rounds_begun = round;
        push();  // wakes the patient one, which goes back to sleep behind the hurried one
        // At the end of the hurried one's time, a little earlier or later each time.
        const auto at = begin + 1900us + std::chrono::microseconds(round % 20 * 10);
        while (std::chrono::steady_clock::now() < at) {}
        push();
        while (rounds_ended < round) std::this_thread::yield();
        push();
        REQUIRE(eventually([&] { return popped == pushed; }));
    }
    queue.close();
    patient.join();
    hurried.join();
}

TEST_CASE("queue: each element wakes one sleeper also when others give up at the same time") {
    Queue<int> queue;
    const int rounds = stress_rounds(2000);
    std::atomic<int> got{0};
    std::vector<std::thread> consumers;
    for (int i = 0; i < 4; ++i) {
        consumers.emplace_back([&, i] {
            for (;;) {
                const auto value = i < 2 ? queue.pop() : queue.pop_for(std::chrono::microseconds(10 * i));
                if (value)
                    ++got;
                else if (queue.closed())
                    return;
            }
        });
    }
    int added = 0;
    bool all_came = true;
    for (int round = 0; round < rounds && all_came; ++round) {
        const int burst = round % 5;
        for (int i = 0; i < burst; ++i) queue.push(i);
        if (round % 3 == 0) queue.push_range(std::array{1, 2, 3});
        added += burst + (round % 3 == 0 ? 3 : 0);
        if (round % 50 == 0) let_it_sleep();
        all_came = eventually([&] { return got == added; });
    }
    CHECK(all_came);
    queue.close();
    for (auto& consumer : consumers) consumer.join();
    CHECK(got == added);
}

// --- many threads

namespace {

template <class T>
void stress(unsigned threads, std::uint64_t each) {
    Queue<T> queue;
    std::vector<Tally> tallies(threads);
    std::vector<std::thread> producers;
    std::vector<std::thread> consumers;
    for (unsigned p = 0; p < threads; ++p) {
        producers.emplace_back([&, p] {
            const auto number = [&](std::uint64_t i) { return (std::uint64_t{p} << 32U) | i; };
            for (std::uint64_t i = 0; i < each;) {
                if (i % 7 == 3 && i + 5 < each) {
                    queue.push_range(std::views::iota(number(i), number(i + 5)) |
                                     std::views::transform([](std::uint64_t n) { return make<T>(n); }));
                    i += 5;
                } else {
                    queue.push(make<T>(number(i++)));
                }
            }
        });
    }
    for (unsigned c = 0; c < threads; ++c) {
        consumers.emplace_back([&, c] {
            Tally& tally = tallies[c];
            while (auto value = c % 3 == 1 ? queue.pop_for(1h) : queue.pop()) {
                tally.add(number_of(*value));
                if (c % 3 != 2) continue;
                for (const T& more : queue.drain()) tally.add(number_of(more));
            }
        });
    }
    for (auto& producer : producers) producer.join();
    queue.close();
    for (auto& consumer : consumers) consumer.join();
    Tally all;
    for (const Tally& tally : tallies) {
        CHECK(tally.ordered);
        all.count += tally.count;
        all.sum += tally.sum;
    }
    CHECK(all.count == threads * each);
    CHECK(all.sum == each * (each - 1) / 2 * threads + (std::uint64_t{threads} * (threads - 1) / 2 * each << 32U));
    CHECK(queue.size_approx() == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("queue: stress keeps sums and order and destroys everything once" * doctest::test_suite("slow"), T, Plain,
                   MoveOnly, OverAligned, Counted) {
    for (const unsigned threads : {1U, 2U, 8U}) {
        CAPTURE(threads);
        stress<T>(threads, stress_rounds(std::uint64_t{20'000}) / threads);
    }
    check_elements();
}

TEST_CASE("queue: pushes that happen after each other come out in that order whoever pops") {
    // The producers take turns, so that there is one true order; each consumer must see its elements in it.
    Queue<std::uint64_t> queue;
    const std::uint64_t count = stress_rounds(std::uint64_t{20'000});
    std::atomic<std::uint64_t> turn{0};
    std::vector<std::thread> threads;
    for (std::uint64_t p = 0; p < 2; ++p) {
        threads.emplace_back([&, p] {
            for (std::uint64_t mine = p; mine < count; mine += 2) {
                while (turn != mine) std::this_thread::yield();
                queue.push(mine);
                turn = mine + 1;
            }
        });
    }
    std::atomic<std::uint64_t> got{0};
    std::atomic<std::uint64_t> disorder{0};
    std::vector<std::thread> consumers;
    for (int c = 0; c < 2; ++c) {
        consumers.emplace_back([&] {
            std::uint64_t next = 0;
            while (const auto value = queue.pop()) {
                if (*value < next) ++disorder;
                next = *value + 1;
                ++got;
            }
        });
    }
    for (auto& thread : threads) thread.join();
    queue.close();
    for (auto& consumer : consumers) consumer.join();
    CHECK(disorder == 0);
    CHECK(got == count);
}

TEST_CASE("queue: a range stays together while others push") {
    Queue<std::uint64_t> queue;
    const std::uint64_t rounds = stress_rounds(std::uint64_t{300});
    std::vector<std::thread> producers;
    for (std::uint64_t p = 0; p < 3; ++p) {
        producers.emplace_back([&, p] {
            for (std::uint64_t i = 0; i < rounds; ++i) {
                std::vector<std::uint64_t> range(p == 0 ? 1 : (p == 1 ? 10 : kSlots + 10));
                std::iota(range.begin(), range.end(), std::uint64_t{0});
                range.back() = UINT64_MAX;
                queue.push_range(range);
            }
        });
    }
    for (auto& producer : producers) producer.join();
    std::uint64_t broken = 0;
    std::uint64_t expected = 0;
    std::uint64_t ranges = 0;
    while (const auto value = queue.try_pop()) {
        if (*value == UINT64_MAX) {
            ++ranges;
            expected = 0;
        } else if (*value != expected++) {
            ++broken;
        }
    }
    CHECK(broken == 0);
    CHECK(ranges == 3 * rounds);
}
