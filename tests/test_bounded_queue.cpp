#include "muses/bounded_queue.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/asleep.hpp"
#include "support/eventually.hpp"
#include "support/queue_elements.hpp"
#include "support/sanitizers.hpp"

using namespace muses::test;
using namespace std::chrono_literals;
using muses::BoundedQueue;
using muses::OverflowPolicy;
using muses::detail::RingStart;

// --- allocations that fail on demand (TSan does not allow to replace operator new)

#if !defined(MUSES_TEST_TSAN)
namespace {
thread_local bool allocations_fail = false;

void* allocate(std::size_t size, std::size_t alignment) {
    if (allocations_fail) throw std::bad_alloc();
    const std::size_t rounded = (std::max<std::size_t>(size, 1) + alignment - 1) / alignment * alignment;
    if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
    throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) { return allocate(size, static_cast<std::size_t>(alignment)); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return allocate(size, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace {

// A move that stops in the middle when told so: a thread that is descheduled between its two steps.
struct Gate {
    std::atomic<bool> closed{false};
    std::atomic<bool> reached{false};
    void pass() noexcept {
        if (!closed.load()) return;
        reached = true;
        while (closed.load()) std::this_thread::yield();
    }
};
struct Stalling {
    Stalling(std::uint64_t n, Gate* g) noexcept : number(n), gate(g) {}
    Stalling(Stalling&& other) noexcept : number(other.number), gate(other.gate) {
        if (gate != nullptr && on_this_thread) gate->pass();
    }
    Stalling& operator=(Stalling&&) = delete;
    std::uint64_t number;
    Gate* gate;
    static thread_local bool on_this_thread;
};
thread_local bool Stalling::on_this_thread = false;

}  // namespace

// --- construction and capacity

TEST_CASE_TEMPLATE("bounded_queue: an impossible capacity throws before anything is allocated", C, ALL_POLICIES) {
    using Queue = BoundedQueue<Plain, C::kPolicy>;
    constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
    CHECK_THROWS_AS(Queue(0), std::invalid_argument);
    CHECK_THROWS_AS(Queue{kHuge}, std::invalid_argument);
    CHECK_THROWS_AS(Queue{kHuge / 2 + 1}, std::invalid_argument);
    CHECK_THROWS_AS(Queue{Queue::max_capacity() + 1}, std::invalid_argument);

    using Narrow = BoundedQueue<Plain, C::kPolicy, std::uint8_t>;
    CHECK(Narrow::max_capacity() == 64);
    CHECK(Narrow(64).capacity() == 64);
    CHECK_THROWS_AS(Narrow(65), std::invalid_argument);
    using Short = BoundedQueue<Plain, C::kPolicy, std::uint16_t>;
    CHECK(Short(16384).capacity() == 16384);
    CHECK_THROWS_AS(Short(16385), std::invalid_argument);
}

TEST_CASE_TEMPLATE("bounded_queue: holds exactly its capacity at every offset", C, ALL_POLICIES) {
    for (const std::size_t capacity : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U, 100U}) {
        BoundedQueue<Plain, C::kPolicy> queue(capacity);
        CHECK(queue.capacity() == capacity);
        std::uint64_t in = 0;
        std::uint64_t out = 0;
        for (std::size_t offset = 0; offset < 2 * capacity + 3; ++offset) {
            while (queue.try_push(std::uint64_t{in})) ++in;
            CHECK(in - out == capacity);
            CHECK(queue.size_approx() == capacity);
            for (std::size_t i = 0; i < capacity; ++i) CHECK(queue.try_pop() == out++);
            CHECK_FALSE(queue.try_pop().has_value());
            CHECK(queue.size_approx() == 0);
            REQUIRE(queue.try_push(std::uint64_t{in}));  // moves the offset by one
            ++in;
            CHECK(queue.try_pop() == out++);
        }
        CHECK(queue.dropped() == 0);
    }
}

TEST_CASE_TEMPLATE("bounded_queue: destroys what is left", C, ALL_POLICIES) {
    for (const std::size_t capacity : {1U, 2U, 3U, 8U}) {
        BoundedQueue<Counted, C::kPolicy> queue(capacity);
        for (std::uint64_t i = 0; i < 3; ++i) {
            CHECK(queue.push(Counted(i)));
            CHECK(queue.try_pop()->number == i);
        }
        for (std::uint64_t i = 0; i < capacity; ++i) CHECK(queue.push(Counted(i)));
        CHECK(Counted::live == static_cast<int>(capacity));
    }
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
}

// --- pushing

TEST_CASE_TEMPLATE("bounded_queue: a failed try_push leaves its argument untouched", C, ALL_POLICIES) {
    BoundedQueue<MoveOnly, C::kPolicy> queue(1);
    CHECK(queue.try_push(make<MoveOnly>(1)));
    MoveOnly kept = make<MoveOnly>(2);
    CHECK_FALSE(queue.try_push(std::move(kept)));
    REQUIRE(kept != nullptr);  // NOLINT(bugprone-use-after-move)
    CHECK(*kept == 2);
    CHECK(number_of(*queue.try_pop()) == 1);
    queue.stop();
    CHECK_FALSE(queue.try_push(std::move(kept)));
    REQUIRE(kept != nullptr);  // NOLINT(bugprone-use-after-move)
    CHECK(queue.dropped() == 0);
}

TEST_CASE("bounded_queue: DropNew refuses and counts when full") {
    BoundedQueue<Plain> queue(2);
    CHECK(queue.push(1));
    CHECK(queue.push(2));
    CHECK_FALSE(queue.push(3));
    CHECK_FALSE(queue.emplace(4U));
    CHECK_FALSE(queue.try_push(5));
    CHECK(queue.dropped() == 2);
    CHECK(queue.try_pop() == 1U);
    CHECK(queue.push(6));
    CHECK(queue.try_pop() == 2U);
    CHECK(queue.try_pop() == 6U);
    queue.stop();
    CHECK_FALSE(queue.push(7));
    CHECK(queue.dropped() == 2);
}

TEST_CASE("bounded_queue: DropOldest discards the oldest and counts") {
    for (const std::size_t capacity : {1U, 2U, 3U, 4U}) {
        BoundedQueue<Plain, OverflowPolicy::DropOldest> queue(capacity);
        for (std::uint64_t i = 0; i < 20; ++i) CHECK(queue.push(i));
        CHECK(queue.dropped() == 20 - capacity);
        CHECK(queue.size_approx() == capacity);
        for (std::uint64_t i = 20 - capacity; i < 20; ++i) CHECK(queue.try_pop() == i);
        CHECK_FALSE(queue.try_pop().has_value());
        queue.stop();
        CHECK_FALSE(queue.push(1));
        CHECK(queue.dropped() == 20 - capacity);
    }
}

TEST_CASE("bounded_queue: push_evicting hands the evicted element back and after stop the value itself") {
    BoundedQueue<MoveOnly, OverflowPolicy::DropOldest> queue(2);
    CHECK_FALSE(queue.push_evicting(make<MoveOnly>(1)).has_value());
    CHECK_FALSE(queue.push_evicting(make<MoveOnly>(2)).has_value());
    auto evicted = queue.push_evicting(make<MoveOnly>(3));
    REQUIRE(evicted.has_value());
    CHECK(number_of(*evicted) == 1);
    CHECK(queue.dropped() == 1);
    queue.stop();
    auto back = queue.push_evicting(make<MoveOnly>(4));
    REQUIRE(back.has_value());
    CHECK(number_of(*back) == 4);
    CHECK(queue.dropped() == 1);
    CHECK(number_of(*queue.wait_pop()) == 2);
    CHECK(number_of(*queue.wait_pop()) == 3);
    CHECK_FALSE(queue.wait_pop().has_value());
}

TEST_CASE("bounded_queue: members that make no sense for a policy do not exist") {
    constexpr auto kHasEvicting = []<class Q>(std::type_identity<Q>) { return requires(Q& q) { q.push_evicting(1U); }; };
    constexpr auto kHasWaitPush = []<class Q>(std::type_identity<Q>) { return requires(Q& q) { q.wait_push(1U, 1ms); }; };
    using New = std::type_identity<BoundedQueue<unsigned>>;
    using Oldest = std::type_identity<BoundedQueue<unsigned, OverflowPolicy::DropOldest>>;
    using Blocking = std::type_identity<BoundedQueue<unsigned, OverflowPolicy::Block>>;
    CHECK_FALSE(kHasEvicting(New{}));
    CHECK(kHasEvicting(Oldest{}));
    CHECK_FALSE(kHasEvicting(Blocking{}));
    CHECK_FALSE(kHasWaitPush(New{}));
    CHECK_FALSE(kHasWaitPush(Oldest{}));
    CHECK(kHasWaitPush(Blocking{}));
}

TEST_CASE_TEMPLATE("bounded_queue: emplace constructs first so that a throwing constructor changes nothing", C, ALL_POLICIES) {
    struct Picky {
        Picky(int a, int b) : sum(a + b) {
            if (sum < 0) throw std::runtime_error("negative");
        }
        int sum;
    };
    BoundedQueue<Picky, C::kPolicy> queue(2);
    CHECK(queue.emplace(1, 2));
    CHECK_THROWS_AS(queue.emplace(-1, -2), std::runtime_error);
    CHECK(queue.emplace(3, 4));
    CHECK(queue.size_approx() == 2);
    CHECK(queue.try_pop()->sum == 3);
    CHECK(queue.try_pop()->sum == 7);
    struct Aggregate {
        int a;
        std::string b;
    };
    BoundedQueue<Aggregate, C::kPolicy> aggregates(1);
    CHECK(aggregates.emplace(1, "one"));
    CHECK(aggregates.try_pop()->b == "one");
}

TEST_CASE("bounded_queue: Block waits for room and gives up at stop") {
    BoundedQueue<Plain, OverflowPolicy::Block> queue(1);
    CHECK(queue.push(1));
    std::atomic<int> pushed{0};
    std::vector<std::thread> producers;
    for (std::uint64_t i = 2; i <= 4; ++i) {
        producers.emplace_back([&, i] {
            if (queue.push(i)) ++pushed;
        });
    }
    let_it_sleep();
    CHECK(pushed == 0);
    CHECK(queue.size_approx() == 1);
    CHECK(queue.try_pop() == 1U);
    CHECK(eventually([&] { return pushed == 1; }));
    queue.stop();
    queue.stop();
    for (auto& producer : producers) producer.join();
    CHECK(pushed == 1);
    CHECK(queue.wait_pop().has_value());
    CHECK_FALSE(queue.wait_pop().has_value());
    CHECK(queue.dropped() == 0);
}

TEST_CASE("bounded_queue: wait_push keeps its value when time runs out") {
    BoundedQueue<MoveOnly, OverflowPolicy::Block> queue(1);
    CHECK(queue.wait_push(make<MoveOnly>(1), 0s));
    MoveOnly kept = make<MoveOnly>(2);
    CHECK_FALSE(queue.wait_push(std::move(kept), -1h));
    CHECK_FALSE(queue.wait_push(std::move(kept), 0s));
    const auto before = std::chrono::steady_clock::now();
    CHECK_FALSE(queue.wait_push(std::move(kept), 10ms));
    CHECK(std::chrono::steady_clock::now() - before >= 10ms);
    REQUIRE(kept != nullptr);  // NOLINT(bugprone-use-after-move)
    std::thread consumer([&] {
        let_it_sleep();
        CHECK(number_of(*queue.wait_pop()) == 1);
    });
    CHECK(queue.wait_push(std::move(kept), std::chrono::hours::max()));
    consumer.join();
    MoveOnly last = make<MoveOnly>(3);
    std::thread stopper([&] {
        let_it_sleep();
        queue.stop();
    });
    CHECK_FALSE(queue.wait_push(std::move(last), std::chrono::nanoseconds::max()));
    stopper.join();
    CHECK(last != nullptr);  // NOLINT(bugprone-use-after-move)
}

#if !defined(MUSES_TEST_TSAN)
TEST_CASE("bounded_queue: Block gives the strong guarantee when memory runs out") {
    BoundedQueue<MoveOnly, OverflowPolicy::Block> queue(5000);
    std::uint64_t pushed = 0;
    int failures = 0;
    while (pushed < 5000) {
        MoveOnly value = make<MoveOnly>(pushed);
        bool added = false;
        allocations_fail = true;
        try {
            added = pushed % 2 == 0 ? queue.try_push(std::move(value)) : queue.wait_push(std::move(value), 1s);
        } catch (const std::bad_alloc&) {
            allocations_fail = false;
            ++failures;
            REQUIRE(value != nullptr);  // NOLINT(bugprone-use-after-move)
            CHECK(queue.size_approx() == pushed);
            added = queue.try_push(std::move(value));
        }
        allocations_fail = false;
        REQUIRE(added);
        ++pushed;
    }
    CHECK(failures > 1);
    for (std::uint64_t i = 0; i < pushed; ++i) CHECK(number_of(*queue.try_pop()) == i);
}

TEST_CASE_TEMPLATE("bounded_queue: the policies that drop allocate nothing after construction", C, DropNew, DropOldest) {
    BoundedQueue<Plain, C::kPolicy> queue(4);
    std::array<std::uint64_t, 8> out{};
    allocations_fail = true;
    for (std::uint64_t i = 0; i < 100; ++i) (void)queue.push(i);
    const auto first = queue.try_pop();
    const auto taken = queue.try_pop_bulk(out.begin(), 8);
    const auto none = queue.wait_pop(1us);
    allocations_fail = false;
    CHECK(first.has_value());
    CHECK(taken == 3);
    CHECK_FALSE(none.has_value());
}
#endif

// --- taking

TEST_CASE_TEMPLATE("bounded_queue: wait_pop returns at once for a duration that is not positive", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(2);
    CHECK_FALSE(queue.wait_pop(0s).has_value());
    CHECK_FALSE(queue.wait_pop(-5s).has_value());
    CHECK_FALSE(queue.wait_pop(std::chrono::hours::min()).has_value());
    CHECK_FALSE(queue.wait_pop(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())).has_value());
    CHECK(queue.push(1));
    CHECK(queue.wait_pop(-5s) == 1U);
}

TEST_CASE_TEMPLATE("bounded_queue: wait_pop gives up when its time is over and not before", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(2);
    for (const auto timeout : {1us, 50us, 3000us, 20000us}) {
        const auto before = std::chrono::steady_clock::now();
        CHECK_FALSE(queue.wait_pop(timeout).has_value());
        CHECK(std::chrono::steady_clock::now() - before >= timeout);
    }
}

TEST_CASE_TEMPLATE("bounded_queue: wait_pop waits for ever for a huge duration and takes what comes", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(2);
    std::atomic<int> got{0};
    const auto wait_long = [&](auto timeout) {
        std::thread consumer([&, timeout] {
            if (queue.wait_pop(timeout)) ++got;
        });
        let_it_sleep();
        CHECK(queue.push(1));
        consumer.join();
    };
    wait_long(std::chrono::hours::max());
    wait_long(std::chrono::nanoseconds::max());
    wait_long(std::chrono::duration<double>(std::numeric_limits<double>::infinity()));
    wait_long(24h * 367);
    wait_long(24h * 364);
    CHECK(got == 5);
}

TEST_CASE_TEMPLATE("bounded_queue: stop wakes all sleepers and what is queued can still be popped", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(4);
    std::atomic<int> empty{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 6; ++i) {
        sleepers.emplace_back([&, i] {
            const muses::stop_source never;
            const bool got = i % 3 == 0   ? queue.wait_pop().has_value()
                             : i % 3 == 1 ? queue.wait_pop(1h).has_value()
                                          : queue.wait_pop(never.get_token()).has_value();
            if (!got) ++empty;
        });
    }
    let_it_sleep();
    CHECK(empty == 0);
    CHECK_FALSE(queue.stopped());
    queue.stop();
    for (auto& sleeper : sleepers) sleeper.join();
    CHECK(empty == 6);
    CHECK(queue.stopped());

    BoundedQueue<Plain, C::kPolicy> filled(4);
    for (std::uint64_t i = 0; i < 3; ++i) CHECK(filled.push(i));
    filled.stop();
    filled.stop();
    CHECK(filled.try_pop() == 0U);
    CHECK(filled.wait_pop() == 1U);
    CHECK(filled.wait_pop(1s) == 2U);
    CHECK_FALSE(filled.wait_pop().has_value());
}

TEST_CASE_TEMPLATE("bounded_queue: a waiter that arrives after stop returns at once", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(1);
    queue.stop();
    const muses::stop_source source;
    CHECK_FALSE(queue.wait_pop().has_value());
    CHECK_FALSE(queue.wait_pop(1h).has_value());
    CHECK_FALSE(queue.wait_pop(source.get_token()).has_value());
    CHECK_FALSE(queue.push(1));
    CHECK_FALSE(queue.emplace(1U));
    CHECK_FALSE(queue.try_push(1));
    if constexpr (C::kPolicy == OverflowPolicy::Block) CHECK_FALSE(queue.wait_push(1, 1h));
    CHECK(queue.dropped() == 0);
    CHECK(queue.size_approx() == 0);
}

TEST_CASE_TEMPLATE("bounded_queue: what was accepted before stop is popped before the end is seen", C, ALL_POLICIES) {
    for (int round = 0; round < stress_rounds(150); ++round) {
        BoundedQueue<Counted, C::kPolicy> queue(round % 2 == 0 ? 3 : 64);
        std::atomic<std::uint64_t> accepted{0};
        std::atomic<std::uint64_t> popped{0};
        std::vector<std::thread> threads;
        for (unsigned p = 0; p < 2; ++p) {
            threads.emplace_back([&] {
                for (std::uint64_t i = 0; !queue.stopped(); ++i) {
                    if (queue.push(Counted(i))) {
                        ++accepted;
                    } else {
                        std::this_thread::yield();
                    }
                }
                CHECK_FALSE(queue.push(Counted(0)));
            });
            threads.emplace_back([&] {
                while (queue.wait_pop()) ++popped;
                CHECK(queue.stopped());
            });
        }
        while (accepted < 20) std::this_thread::yield();
        queue.stop();
        for (auto& thread : threads) thread.join();
        CHECK_FALSE(queue.try_pop().has_value());
        if constexpr (C::kPolicy == OverflowPolicy::DropOldest) {
            CHECK(accepted == popped + queue.dropped());
        } else {
            CHECK(accepted == popped);
        }
    }
    CHECK(Counted::live == 0);
}

// A token with a callback type of its own, and one that can only be asked.
struct ForeignToken {
    muses::stop_token token;
    template <class Function>
    struct callback_type {
        callback_type(const ForeignToken& t, Function function) : callback(t.token, function) {}
        muses::stop_callback<Function> callback;
    };
    [[nodiscard]] bool stop_requested() const { return token.stop_requested(); }
};
struct AskedToken {
    const std::atomic<bool>* flag;
    [[nodiscard]] bool stop_requested() const { return flag->load(); }
};

TEST_CASE_TEMPLATE("bounded_queue: a stop token ends the wait of its owner only", C, ALL_POLICIES) {
    for (int round = 0; round < stress_rounds(20); ++round) {
        BoundedQueue<Plain, C::kPolicy> queue(4);
        muses::stop_source source;
        std::atomic<bool> flag{false};
        std::atomic<int> ended{0};
        std::atomic<int> got{0};
        std::vector<std::thread> threads;
        threads.emplace_back([&] { ended += queue.wait_pop(source.get_token()) ? 0 : 1; });
        threads.emplace_back([&] { ended += queue.wait_pop(ForeignToken{source.get_token()}) ? 0 : 1; });
        threads.emplace_back([&] { ended += queue.wait_pop(AskedToken{&flag}) ? 0 : 1; });
        threads.emplace_back([&] { got += queue.wait_pop() ? 1 : 0; });
        threads.emplace_back([&] { got += queue.wait_pop(1h) ? 1 : 0; });
        if (round % 2 == 0) let_it_sleep();
        source.request_stop();
        flag = true;
        for (std::size_t i = 0; i < 3; ++i) threads[i].join();
        CHECK(ended == 3);
        CHECK(got == 0);
        CHECK(queue.push(1));
        CHECK(queue.push(2));
        threads[3].join();
        threads[4].join();
        CHECK(got == 2);
    }
}

TEST_CASE_TEMPLATE("bounded_queue: a token that was stopped before lets an element be taken but no wait", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(4);
    muses::stop_source source;
    source.request_stop();
    CHECK_FALSE(queue.wait_pop(source.get_token()).has_value());
    CHECK(queue.push(1));
    CHECK(queue.wait_pop(source.get_token()) == 1U);
    std::atomic<bool> flag{true};
    CHECK_FALSE(queue.wait_pop(AskedToken{&flag}).has_value());
}

TEST_CASE_TEMPLATE("bounded_queue: bulk takes in order up to its limit and makes room", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(100);
    for (std::uint64_t i = 0; i < 100; ++i) CHECK(queue.push(i));
    std::vector<std::uint64_t> out;
    CHECK(queue.try_pop_bulk(std::back_inserter(out), 0) == 0);
    CHECK(queue.try_pop_bulk(std::back_inserter(out), 7) == 7);
    CHECK(queue.size_approx() == 93);
    for (std::uint64_t i = 100; i < 107; ++i) CHECK(queue.try_push(std::uint64_t{i}));
    CHECK_FALSE(queue.try_push(107));
    CHECK(queue.try_pop_bulk(std::back_inserter(out), std::numeric_limits<std::size_t>::max()) == 100);
    CHECK(queue.try_pop_bulk(std::back_inserter(out), 1) == 0);
    REQUIRE(out.size() == 107);
    for (std::uint64_t i = 0; i < 107; ++i) CHECK(out[i] == i);
}

TEST_CASE("bounded_queue: bulk wakes every producer that it makes room for") {
    BoundedQueue<Plain, OverflowPolicy::Block> queue(4);
    for (std::uint64_t i = 0; i < 4; ++i) CHECK(queue.push(i));
    std::vector<std::thread> producers;
    for (int i = 0; i < 4; ++i) producers.emplace_back([&] { CHECK(queue.push(9)); });
    let_it_sleep();
    std::vector<std::uint64_t> out;
    CHECK(queue.try_pop_bulk(std::back_inserter(out), 4) == 4);
    for (auto& producer : producers) producer.join();
    CHECK(queue.size_approx() == 4);
}

TEST_CASE_TEMPLATE("bounded_queue: an output iterator that throws leaks nothing", C, ALL_POLICIES) {
    struct Thrower {
        int* left;
        Thrower& operator*() { return *this; }
        Thrower& operator++() { return *this; }
        Thrower operator++(int) { return *this; }
        Thrower& operator=(Counted&& value) {
            const Counted taken(std::move(value));
            if ((*left)-- == 0) throw std::runtime_error("no more");
            return *this;
        }
    };
    {
        BoundedQueue<Counted, C::kPolicy> queue(64);
        for (std::uint64_t i = 0; i < 64; ++i) CHECK(queue.push(Counted(i)));
        int left = 3;
        CHECK_THROWS_AS(queue.try_pop_bulk(Thrower{&left}, 64), std::runtime_error);
        const std::size_t rest = queue.size_approx();
        CHECK(rest >= 32);
        CHECK(queue.try_pop()->number == 64 - rest);
        while (queue.try_push(Counted(0))) {}
        CHECK(queue.size_approx() == 64);
    }
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
}

// --- threads that stop between their two steps

TEST_CASE("bounded_queue: an element whose producer is between its two steps is waited for and not overtaken") {
    Gate gate;
    BoundedQueue<Stalling> queue(4);
    gate.closed = true;
    std::thread slow([&] {
        Stalling value(1, &gate);
        Stalling::on_this_thread = true;
        CHECK(queue.try_push(std::move(value)));
    });
    REQUIRE(eventually([&] { return gate.reached.load(); }));
    CHECK(queue.try_push(Stalling(2, nullptr)));  // others go on
    CHECK(queue.size_approx() == 2);
    CHECK_FALSE(queue.try_pop().has_value());
    CHECK_FALSE(queue.wait_pop(5ms).has_value());
    muses::stop_source source;
    std::thread stopped([&] { CHECK_FALSE(queue.wait_pop(source.get_token()).has_value()); });
    let_it_sleep();
    source.request_stop();
    stopped.join();
    std::vector<std::uint64_t> order;
    std::thread consumer([&] {
        while (auto value = queue.wait_pop()) order.push_back(value->number);
    });
    queue.stop();  // the claim came first, so the end may be seen only after both
    const auto before = std::chrono::steady_clock::now();
    CHECK_FALSE(queue.wait_pop(10ms).has_value());
    CHECK(std::chrono::steady_clock::now() - before >= 10ms);
    let_it_sleep();
    gate.closed = false;
    slow.join();
    consumer.join();
    CHECK(order == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("bounded_queue: a place whose consumer is between its two steps is not filled and delays nobody else") {
    Gate gate;
    BoundedQueue<Stalling> queue(2);
    CHECK(queue.push(Stalling(1, &gate)));
    CHECK(queue.push(Stalling(2, nullptr)));
    gate.closed = true;
    std::thread slow([&] {
        Stalling::on_this_thread = true;
        CHECK(queue.try_pop()->number == 1);
    });
    REQUIRE(eventually([&] { return gate.reached.load(); }));
    CHECK_FALSE(queue.try_push(Stalling(3, nullptr)));  // the documented leeway
    CHECK(queue.try_pop()->number == 2);                // others go on
    gate.closed = false;
    slow.join();
    CHECK(queue.try_push(Stalling(3, nullptr)));
    CHECK(queue.try_push(Stalling(4, nullptr)));
    CHECK_FALSE(queue.try_push(Stalling(5, nullptr)));
}

TEST_CASE("bounded_queue: an eviction never drops while a consumer has just made room") {
    Gate gate;
    BoundedQueue<Stalling, OverflowPolicy::DropOldest> queue(2);
    CHECK(queue.push(Stalling(1, &gate)));
    CHECK(queue.push(Stalling(2, nullptr)));
    gate.closed = true;
    std::thread slow([&] {
        Stalling::on_this_thread = true;
        CHECK(queue.try_pop()->number == 1);
    });
    REQUIRE(eventually([&] { return gate.reached.load(); }));
    CHECK(queue.push(Stalling(3, nullptr)));
    CHECK(queue.dropped() == 0);
    CHECK(queue.push(Stalling(4, nullptr)));
    CHECK(queue.dropped() == 1);
    CHECK(queue.size_approx() == 2);
    gate.closed = false;
    slow.join();
    CHECK(queue.try_pop()->number == 3);
    CHECK(queue.try_pop()->number == 4);
}

TEST_CASE("bounded_queue: a sleeper behind a stalled producer gets its element when the first sleeper gives up") {
    for (int round = 0; round < 2; ++round) {
        Gate gate;
        BoundedQueue<Stalling> queue(8);
        std::atomic<int> got{0};
        const auto count = [&got](const std::optional<Stalling>& value) { got += value.has_value() ? 1 : 0; };
        std::array<SleepWatch, 3> watches;
        std::thread impatient([&] {
            watches[0].here();
            count(queue.wait_pop(150ms));
        });
        REQUIRE(watches[0].eventually_asleep());  // it should be the first to sleep, and so the first to be woken
        std::thread patient([&] {
            watches[1].here();
            count(queue.wait_pop());
        });
        std::thread other([&] {
            watches[2].here();
            count(queue.wait_pop());
        });
        REQUIRE(watches[1].eventually_asleep());
        REQUIRE(watches[2].eventually_asleep());
        gate.closed = true;
        std::thread slow([&] {
            Stalling value(1, &gate);
            Stalling::on_this_thread = true;
            CHECK(queue.try_push(std::move(value)));
        });
        REQUIRE(eventually([&] { return gate.reached.load(); }));
        CHECK(queue.push(Stalling(2, nullptr)));
        impatient.join();  // has used up the wake-up for element 2, which nobody could take yet
        gate.closed = false;
        slow.join();
        CHECK(eventually([&] { return got == 2; }));
        queue.stop();
        patient.join();
        other.join();
        CHECK(got == 2);
    }
}

// --- user code

// Its destructor uses the queue: a deadlock if it ran under a lock, or between the two steps of an eviction.
template <OverflowPolicy Policy>
struct Reentrant {
    using Queue = BoundedQueue<Reentrant, Policy>;
    Reentrant(Queue* q, int n) noexcept : queue(q), number(n) {}
    Reentrant(Reentrant&& other) noexcept : queue(std::exchange(other.queue, nullptr)), number(other.number) {}
    Reentrant& operator=(Reentrant&&) = delete;
    ~Reentrant() {
        if (queue == nullptr) return;
        ++destroyed;
        (void)queue->size_approx();
        (void)queue->stopped();
        if (auto next = queue->try_pop()) {
            next->queue = nullptr;
            (void)queue->try_push(Reentrant(nullptr, next->number));
        }
    }
    Queue* queue;
    int number;
    static inline int destroyed = 0;
};

TEST_CASE("bounded_queue: destructors of dropped elements may use the queue") {
    {
        using Element = Reentrant<OverflowPolicy::DropOldest>;
        Element::Queue queue(1);
        for (int i = 0; i < 10; ++i) CHECK(queue.push(Element(&queue, i)));
        CHECK(Element::destroyed > 0);
        while (auto rest = queue.try_pop()) rest->queue = nullptr;
    }
    {
        using Element = Reentrant<OverflowPolicy::DropNew>;
        Element::Queue queue(1);
        for (int i = 0; i < 10; ++i) (void)queue.push(Element(&queue, i));
        CHECK(Element::destroyed > 0);
        while (auto rest = queue.try_pop()) rest->queue = nullptr;
    }
    {
        using Element = Reentrant<OverflowPolicy::Block>;
        Element::Queue queue(2);
        CHECK(queue.push(Element(&queue, 1)));
        CHECK(queue.push(Element(&queue, 2)));
        CHECK_FALSE(queue.try_push(Element(&queue, 3)));
        (void)queue.try_pop();
        queue.stop();
        CHECK_FALSE(queue.push(Element(&queue, 4)));
        CHECK(Element::destroyed > 0);
        while (auto rest = queue.try_pop()) rest->queue = nullptr;
    }
}

// --- indexes that wrap

template <class Index, OverflowPolicy Policy>
void walk_over_the_wrap() {
    const std::size_t wrap = std::size_t{1} << (std::numeric_limits<Index>::digits - 1);  // positions count in steps of two
    for (const std::size_t capacity : {1U, 2U, 3U, 5U, 64U}) {
        for (std::size_t before = 0; before <= 2 * capacity; before += capacity < 8 ? 1 : 13) {
            BoundedQueue<Counted, Policy, Index> queue(capacity, RingStart{wrap - before});
            std::uint64_t in = 0;
            std::uint64_t out = 0;
            CHECK_FALSE(queue.try_pop().has_value());
            for (int lap = 0; lap < 4; ++lap) {
                for (std::size_t i = 0; i < capacity; ++i) CHECK(queue.try_push(Counted(in++)));
                CHECK_FALSE(queue.try_push(Counted(0)));
                CHECK(queue.size_approx() == capacity);
                if constexpr (Policy == OverflowPolicy::DropOldest) {
                    CHECK(queue.push_evicting(Counted(in++))->number == out++);
                } else {
                    CHECK_FALSE(queue.push(Counted(0)));
                }
                for (std::size_t i = 0; i < capacity; ++i) CHECK(queue.try_pop()->number == out++);
                CHECK_FALSE(queue.wait_pop(0s).has_value());
            }
            CHECK(queue.push(Counted(0)));
            queue.stop();
            CHECK(queue.wait_pop().has_value());
            CHECK_FALSE(queue.wait_pop().has_value());
        }
    }
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
}

TEST_CASE("bounded_queue: indexes of every width walk over their wrap") {
    walk_over_the_wrap<std::uint8_t, OverflowPolicy::DropNew>();
    walk_over_the_wrap<std::uint8_t, OverflowPolicy::DropOldest>();
    walk_over_the_wrap<std::uint16_t, OverflowPolicy::DropNew>();
    walk_over_the_wrap<std::uint32_t, OverflowPolicy::DropOldest>();
    walk_over_the_wrap<std::uint64_t, OverflowPolicy::DropNew>();
    walk_over_the_wrap<std::uint64_t, OverflowPolicy::DropOldest>();
}

// --- sleeping

namespace {

std::chrono::nanoseconds thread_cpu_time() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// How often this thread left the processor: on a busy machine a loop that yields uses little time, but not few turns.
long thread_switches() {
#if defined(RUSAGE_THREAD)
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
#else
    return 0;
#endif
}

}  // namespace

TEST_CASE_TEMPLATE("bounded_queue: a consumer that waits uses no processor", C, ALL_POLICIES) {
    BoundedQueue<Plain, C::kPolicy> queue(4);
    const auto time = thread_cpu_time();
    const long switches = thread_switches();
    CHECK_FALSE(queue.wait_pop(400ms).has_value());
    CHECK(thread_cpu_time() - time < 4ms);  // sanitizers and a busy machine included
    CHECK(thread_switches() - switches < 60);
}

TEST_CASE("bounded_queue: a consumer that waits for a stalled producer uses little processor") {
    Gate gate;
    BoundedQueue<Stalling> queue(4);
    gate.closed = true;
    std::thread slow([&] {
        Stalling value(1, &gate);
        Stalling::on_this_thread = true;
        gate.reached = true;
        CHECK(queue.try_push(std::move(value)));
    });
    REQUIRE(eventually([&] { return queue.size_approx() == 1; }));
    const auto before = thread_cpu_time();
    CHECK_FALSE(queue.wait_pop(300ms).has_value());
    CHECK(thread_cpu_time() - before < 100ms);
    gate.closed = false;
    slow.join();
    CHECK(queue.wait_pop().has_value());
}
