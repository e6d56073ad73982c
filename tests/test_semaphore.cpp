#include "muses/detail/semaphore.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/eventually.hpp"

using muses::test::stress_rounds;
using namespace std::chrono_literals;

template <class Parker>
struct PingPong {
    // One side of a ping-pong without any spinning: sleeps each time that the turn is not its own.
    muses::detail::SleepSemaphore<Parker> semaphore;
    std::atomic<std::uint64_t> turns{0};

    void give() {
        turns.fetch_add(1, std::memory_order_seq_cst);
        if (semaphore.has_sleepers()) semaphore.wake_one();
    }
    void await(std::uint64_t turn) {
        while (turns.load(std::memory_order_seq_cst) < turn) {
            semaphore.announce();
            if (turns.load(std::memory_order_seq_cst) >= turn) {
                semaphore.withdraw();
            } else {
                (void)semaphore.wait_until(muses::detail::kNever, [] { return false; });
            }
        }
    }
};

TEST_CASE_TEMPLATE("semaphore: no wake-up is lost between two sleepers" * doctest::test_suite("slow"), Parker,
                   muses::detail::DefaultParker, muses::detail::CondvarParker) {
    const std::uint64_t rounds = stress_rounds(std::uint64_t{100'000});
    PingPong<Parker> ping;
    PingPong<Parker> pong;
    std::thread other([&] {
        for (std::uint64_t i = 1; i <= rounds; ++i) {
            ping.await(i);
            pong.give();
        }
    });
    for (std::uint64_t i = 1; i <= rounds; ++i) {
        ping.give();
        pong.await(i);
    }
    other.join();
    CHECK(ping.semaphore.sleepers_approx() + ping.semaphore.permits_approx() == 0);
    CHECK(pong.semaphore.sleepers_approx() + pong.semaphore.permits_approx() == 0);
}

TEST_CASE_TEMPLATE("semaphore: who withdraws takes its announcement back and a permit only if all were woken", Parker,
                   muses::detail::DefaultParker, muses::detail::CondvarParker) {
    muses::detail::SleepSemaphore<Parker> semaphore;
    const auto is = [&](std::uint32_t sleepers, std::uint32_t permits) {
        return semaphore.sleepers_approx() == sleepers && semaphore.permits_approx() == permits;
    };
    semaphore.wake_one();  // nobody is there: nothing is kept for later
    semaphore.interrupt();
    CHECK(is(0, 0));
    semaphore.announce();
    semaphore.announce();
    CHECK(is(2, 0));
    semaphore.wake_one();
    CHECK(is(1, 1));
    CHECK_FALSE(semaphore.withdraw());
    CHECK(is(0, 1));
    semaphore.wake_one();
    CHECK(is(0, 1));
    CHECK(semaphore.withdraw());
    CHECK(is(0, 0));
    semaphore.announce();
    CHECK_FALSE(semaphore.wait_until(std::chrono::steady_clock::now(), [] { return false; }));
    for (int i = 0; i < 70'000; ++i) semaphore.interrupt();  // the epoch wraps within its 16 bits
    CHECK(is(1, 0));
    semaphore.wake_one();
    CHECK(semaphore.wait_until(muses::detail::kNever, [] { return false; }));
    CHECK(is(0, 0));
}

TEST_CASE_TEMPLATE("semaphore: time-outs that meet wake-ups leave no permit over", Parker, muses::detail::DefaultParker,
                   muses::detail::CondvarParker) {
    muses::detail::SleepSemaphore<Parker> semaphore;
    std::atomic<bool> done{false};
    std::atomic<std::uint64_t> permits{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 3; ++i) {
        sleepers.emplace_back([&, i] {
            for (int n = 0; n < stress_rounds(2000); ++n) {
                semaphore.announce();
                const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(20 * i);
                if (semaphore.wait_until(deadline, [&] { return n % 7 == 0; }) || semaphore.withdraw()) ++permits;
            }
        });
    }
    std::thread waker([&] {
        for (unsigned n = 0; !done; ++n) {
            if (semaphore.has_sleepers()) {
                if (n % 64 == 0) {
                    semaphore.interrupt();
                } else {
                    semaphore.wake_one();
                }
            }
            if (n % 8 == 0) std::this_thread::yield();
        }
    });
    for (auto& sleeper : sleepers) sleeper.join();
    done = true;
    waker.join();
    CHECK(permits > 0);
    CHECK(semaphore.sleepers_approx() == 0);
    CHECK(semaphore.permits_approx() == 0);
    semaphore.wake_one();
    semaphore.interrupt();
    CHECK(semaphore.permits_approx() == 0);  // nobody is there: nothing is kept for later
}

TEST_CASE_TEMPLATE("semaphore: an interruption reaches the sleeper that it is meant for", Parker, muses::detail::DefaultParker,
                   muses::detail::CondvarParker) {
    // The others are woken all the time, find nothing and announce themselves again: they must not use up the interruption.
    for (int round = 0; round < stress_rounds(100); ++round) {
        muses::detail::SleepSemaphore<Parker> semaphore;
        std::array<std::atomic<bool>, 4> flags{};
        std::vector<std::thread> sleepers;
        for (std::size_t i = 0; i < flags.size(); ++i) {
            sleepers.emplace_back([&, i] {
                while (!flags[i]) {
                    semaphore.announce();
                    if (!semaphore.wait_until(muses::detail::kNever, [&] { return flags[i].load(); })) semaphore.withdraw();
                }
            });
        }
        for (std::size_t i = 0; i < flags.size(); ++i) {
            semaphore.wake_one();
            semaphore.wake_one();
            flags[i] = true;
            semaphore.interrupt();
        }
        for (auto& sleeper : sleepers) sleeper.join();
        CHECK(semaphore.sleepers_approx() == 0);
        CHECK(semaphore.permits_approx() == 0);
    }
}
