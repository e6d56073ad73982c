#include "muses/detail/stop_token.hpp"

#include "muses/detail/duration.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <ratio>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.hpp"

using muses::detail::deadline_after;
using muses::detail::kNever;
using muses::detail::SteadyTime;
using namespace std::chrono_literals;

TEST_CASE("stop_token: a request is seen by every token and made once") {
    muses::stop_source source;
    const muses::stop_token token = source.get_token();
    muses::stop_source copy = source;
    CHECK(token.stop_possible());
    CHECK_FALSE(token.stop_requested());
    CHECK(copy.request_stop());
    CHECK_FALSE(source.request_stop());
    CHECK(token.stop_requested());
    CHECK(source.stop_requested());
    CHECK(source == copy);
    CHECK(token == copy.get_token());
}

TEST_CASE("stop_token: without a source no stop is possible and a request already made stays visible") {
    CHECK_FALSE(muses::stop_token().stop_possible());
    CHECK_FALSE(muses::stop_source(muses::nostopstate).stop_possible());
    CHECK_FALSE(muses::stop_source(muses::nostopstate).request_stop());

    muses::stop_token orphan;
    muses::stop_token requested;
    {
        const muses::stop_source source;
        orphan = source.get_token();
        muses::stop_source other;
        requested = other.get_token();
        other.request_stop();
        CHECK(orphan.stop_possible());
    }
    CHECK_FALSE(orphan.stop_possible());
    CHECK(requested.stop_possible());
    CHECK(requested.stop_requested());
}

TEST_CASE("stop_token: moves and swaps hand the state over") {
    muses::stop_source a;
    muses::stop_source b(muses::nostopstate);
    const muses::stop_token token = a.get_token();
    b = std::move(a);
    CHECK_FALSE(a.stop_possible());  // NOLINT(bugprone-use-after-move): the moved-from state is what is tested
    swap(a, b);
    CHECK(a.stop_possible());
    CHECK_FALSE(b.stop_possible());
    a.request_stop();
    CHECK(token.stop_requested());
}

TEST_CASE("stop_callback: runs once on request and at once when it comes late") {
    muses::stop_source source;
    int early = 0;
    int gone = 0;
    int late = 0;
    const muses::stop_callback first(source.get_token(), [&] { ++early; });
    {
        const muses::stop_callback second(source.get_token(), [&] { ++gone; });
    }
    source.request_stop();
    source.request_stop();
    const muses::stop_callback third(source.get_token(), [&] { ++late; });
    CHECK(early == 1);
    CHECK(gone == 0);
    CHECK(late == 1);
}

TEST_CASE("stop_callback: does not run when no source is left") {
    std::optional<muses::stop_source> source(std::in_place);
    int runs = 0;
    {
        const muses::stop_callback callback(source->get_token(), [&] { ++runs; });
        source.reset();
    }
    CHECK(runs == 0);
}

TEST_CASE("stop_callback: may destroy itself and register another in its place while it runs") {
    muses::stop_source source;
    struct Hook {
        std::optional<muses::stop_callback<Hook>>* slot;
        muses::stop_token token;
        int* runs;
        void operator()() const {
            auto* const where = slot;
            const muses::stop_token again = token;
            int* const count = runs;
            ++*count;
            if (*count > 1) return;
            where->emplace(again, Hook{where, again, count});  // destroys *this first
        }
    };
    std::optional<muses::stop_callback<Hook>> slot;
    int runs = 0;
    slot.emplace(source.get_token(), Hook{&slot, source.get_token(), &runs});
    source.request_stop();
    slot.reset();
    CHECK(runs == 2);
}

TEST_CASE("stop_callback: it may destroy the last owner of the state that runs it") {
    struct Owner {
        struct Destroy {
            Owner* owner;
            bool* ran;
            void operator()() const noexcept {
                *ran = true;
                delete owner;
            }
        };
        muses::stop_source source;
        std::optional<muses::stop_callback<Destroy>> callback;
        explicit Owner(bool* ran) { callback.emplace(source.get_token(), Destroy{this, ran}); }
    };
    bool ran = false;
    auto* const owner = new Owner(&ran);
    CHECK(owner->source.request_stop());
    CHECK(ran);
}

TEST_CASE("stop_callback: its destructor waits for a run on another thread") {
    for (int round = 0; round < muses::test::stress_rounds(200); ++round) {
        muses::stop_source source;
        std::atomic<bool> running{false};
        std::atomic<bool> over{false};
        auto mark = [&] {
            running = true;
            std::this_thread::yield();
            over = true;
        };
        auto callback = std::make_unique<muses::stop_callback<decltype(mark)>>(source.get_token(), mark);
        std::thread requester([&] { source.request_stop(); });
        if (round % 2 == 0) REQUIRE(muses::test::eventually([&] { return running.load(); }));
        callback.reset();
        CHECK(running.load() == over.load());
        requester.join();
    }
}

TEST_CASE("stop_token: many threads register and request without losing a callback") {
    for (int round = 0; round < muses::test::stress_rounds(100); ++round) {
        muses::stop_source source;
        std::atomic<int> ran{0};
        std::atomic<int> passing{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; ++i) {
            threads.emplace_back([&, token = source.get_token()] {
                for (int n = 0; n < 20; ++n) {
                    const muses::stop_callback gone(token, [&] { passing.fetch_add(1); });
                }
                std::atomic<bool> called{false};
                const muses::stop_callback last(token, [&] { called = true; });
                if (muses::test::eventually([&] { return called.load(); })) ran.fetch_add(1);
            });
        }
        std::thread requester([&] { source.request_stop(); });
        requester.join();
        for (auto& thread : threads) thread.join();
        CHECK(ran.load() == 3);
        CHECK(passing.load() <= 60);
    }
}

TEST_CASE("duration: a deadline is now for what is not positive and never for more than a year") {
    const SteadyTime now(std::chrono::hours(5));
    CHECK(deadline_after(0s, now) == now);
    CHECK(deadline_after(-1s, now) == now);
    CHECK(deadline_after(std::chrono::nanoseconds::min(), now) == now);
    CHECK(deadline_after(std::chrono::hours::min(), now) == now);
    CHECK(deadline_after(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN()), now) == now);
    CHECK(deadline_after(std::chrono::duration<double>(-std::numeric_limits<double>::infinity()), now) == now);

    CHECK(deadline_after(std::chrono::hours(24 * 366), now) == kNever);
    CHECK(deadline_after(std::chrono::nanoseconds::max(), now) == kNever);
    CHECK(deadline_after(std::chrono::hours::max(), now) == kNever);
    CHECK(deadline_after(std::chrono::years::max(), now) == kNever);
    CHECK(deadline_after(std::chrono::duration<std::int64_t, std::atto>::max(), now) == now + 9223372036ns);
    CHECK(deadline_after(std::chrono::duration<double>(std::numeric_limits<double>::infinity()), now) == kNever);
    CHECK(deadline_after(std::chrono::duration<float, std::ratio<3155695200>>(1e30F), now) == kNever);
}

TEST_CASE("duration: what can be waited for is exact in whole ticks") {
    const SteadyTime now(std::chrono::hours(5));
    CHECK(deadline_after(1ns, now) == now + 1ns);
    CHECK(deadline_after(std::chrono::hours(24 * 365), now) == now + std::chrono::hours(24 * 365));
    CHECK(deadline_after(std::chrono::hours(24 * 364) + 1ns, now) == now + std::chrono::hours(24 * 364) + 1ns);
    CHECK(deadline_after(std::chrono::duration<unsigned char>(200), now) == now + 200s);
    CHECK(deadline_after(std::chrono::duration<double>(0.5), now) == now + 500ms);
    CHECK(deadline_after(std::chrono::duration<int, std::ratio<1, 3>>(3), now) - now <= 1s);
    CHECK(deadline_after(std::chrono::duration<int, std::ratio<1, 3>>(3), now) - now >= 999ms);
    CHECK(deadline_after(std::chrono::duration<std::int64_t, std::ratio<1, 1'000'000'007>>(30'000'000'000'000'000), now) > now);
    CHECK(deadline_after(1s, SteadyTime::max() - 1ns) == kNever);
    const SteadyTime before = std::chrono::steady_clock::now();
    CHECK(deadline_after(1s) >= before + 1s);
}
