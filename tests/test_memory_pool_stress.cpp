#include "muses/memory_pool.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.hpp"
#include "support/memory_pools.hpp"
#include "support/queue_elements.hpp"
#include "support/sanitizers.hpp"

using muses::MemoryPool;
using muses::PoolPtr;
using namespace muses::test;

namespace {

#if defined(MUSES_TEST_TSAN)
constexpr bool kSlowed = true;
#else
constexpr bool kSlowed = false;
#endif

// Starts `count` threads at once, and waits for them.
template <class Run>
void at_once(unsigned count, Run run) {
    std::atomic<unsigned> ready{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
            ready.fetch_add(1);
            while (ready.load() < count) std::this_thread::yield();
            run(i);
        });
    }
    for (auto& thread : threads) thread.join();
}

// A place where a thread leaves a block for another one: whoever comes takes what is there, and leaves its own.
using Places = std::vector<std::atomic<void*>>;

}  // namespace

TEST_CASE_TEMPLATE("memory_pool: stress keeps objects whole and destroys each once" * doctest::test_suite("slow"), T, Plain,
                   MoveOnly, OverAligned, Counted) {
    for (const std::size_t capacity : {1U, 2U, 3U, 1024U}) {
        for (const unsigned threads : {1U, 2U, 8U}) {
            CAPTURE(capacity);
            CAPTURE(threads);
            const std::uint64_t each = stress_rounds(std::uint64_t{40000}) / threads;
            MemoryPool pool({.initial_bytes = 0, .max_bytes = 128 * 1024});
            Places places(capacity);
            std::atomic<std::uint64_t> made_sum{0};
            std::atomic<std::uint64_t> found_sum{0};
            const auto take = [&](void* left) {
                if (left == nullptr) return;
                const PoolPtr<T> object(static_cast<T*>(left));
                const PoolPtr<T> copy = object;
                found_sum += number_of(*copy);
            };
            at_once(threads, [&](unsigned t) {
                std::uint64_t sum = 0;
                for (std::uint64_t i = 0; i < each; ++i) {
                    const std::uint64_t number = std::uint64_t{t} * each + i;
                    PoolPtr<T> object;
                    if constexpr (std::same_as<T, MoveOnly>)
                        object = pool.make<T>(std::make_unique<std::uint64_t>(number));
                    else
                        object = pool.make<T>(number);
                    sum += number;
                    take(places[(i * 7 + t) % capacity].exchange(object.detach()));
                }
                made_sum += sum;
            });
            for (auto& place : places) take(place.exchange(nullptr));
            CHECK(found_sum == made_sum);
            CHECK(live(pool) == 0);
            CHECK(pool.stats().misuses == 0);
        }
    }
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
    CHECK(OverAligned::misaligned == 0);
}

TEST_CASE("memory_pool: many threads that free blocks of one size for each other never meet one twice" *
          doctest::test_suite("slow")) {
    constexpr unsigned kThreads = 8;
    const std::uint64_t each = stress_rounds(std::uint64_t{kSlowed ? 4'000'000U : 20'000'000U}) / kThreads;
    MemoryPool pool;
    Places places(64);
    std::atomic<std::uint64_t> broken{0};
    // Whoever has a block has it alone: two words say so, and would not agree if two threads wrote them.
    struct Stamp {
        std::atomic<std::uint64_t> first;
        std::atomic<std::uint64_t> second;
    };
    at_once(kThreads, [&](unsigned t) {
        std::uint64_t wrong = 0;
        std::mt19937 random(t);
        for (std::uint64_t i = 0; i < each; ++i) {
            auto* const block = new (pool.allocate(sizeof(Stamp))) Stamp{};
            const std::uint64_t stamp = (std::uint64_t{t} << 48U) | i;
            // Relaxed: the exchange publishes them.
            block->first.store(stamp, std::memory_order_relaxed);
            block->second.store(~stamp, std::memory_order_relaxed);
            auto* const found = static_cast<Stamp*>(places[random() % places.size()].exchange(block, std::memory_order_acq_rel));
            if (found == nullptr) continue;
            if (found->first.load(std::memory_order_relaxed) != ~found->second.load(std::memory_order_relaxed)) ++wrong;
            found->second.store(found->first.load(std::memory_order_relaxed), std::memory_order_relaxed);
            if (!pool.release(found)) ++wrong;
        }
        broken += wrong;
    });
    for (auto& place : places)
        if (void* const left = place.exchange(nullptr)) CHECK(pool.release(left));
    CHECK(broken == 0);
    CHECK(live(pool) == 0);
    CHECK(pool.stats().misuses == 0);
    // No thread cut a new block while one of its own was free (but for a batch of 32): at most all places and hands held one of it.
    CHECK(pool.stats().classes[0].high_water <= (places.size() + 2 * kThreads + 32) * kThreads);
}

namespace {
struct Shared {
    std::array<std::uint64_t, 8> words{};  // plain: the count orders them
    std::atomic<int>* destroyed = nullptr;
    ~Shared() {
        for (const auto word : words) sum += word;
        destroyed->fetch_add(1);
    }
    static inline std::uint64_t sum = 0;
};
}  // namespace

TEST_CASE("memory_pool: copies of one handle on many threads destroy the object once and see all writes") {
    MemoryPool pool;
    std::atomic<int> destroyed{0};
    const int rounds = stress_rounds(300);
    for (int round = 0; round < rounds; ++round) {
        auto first = pool.make<Shared>();
        first->destroyed = &destroyed;
        std::vector<PoolPtr<Shared>> copies(8, first);
        first.reset();
        Shared::sum = 0;
        at_once(8, [&](unsigned t) {
            PoolPtr<Shared> mine = std::move(copies[t]);
            mine->words[t] = t + 1;
            for (int i = 0; i < 20; ++i) {
                PoolPtr<Shared> copy = mine;
                copy = std::move(mine);
                mine = copy;
            }
        });
        CHECK(Shared::sum == 36);
    }
    CHECK(destroyed == rounds);
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: pools end while other threads still release their blocks") {
    const std::size_t before = muses::detail::MemRegistry::instance().size();
    for (int round = 0; round < stress_rounds(100); ++round) {
        auto pool = std::make_unique<MemoryPool>(muses::MemoryPoolOptions{.initial_bytes = 0});
        constexpr unsigned kThreads = 4;
        std::array<std::vector<void*>, kThreads> blocks;
        std::atomic<unsigned> filled{0};
        std::atomic<bool> closing{false};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                for (int i = 0; i < 50; ++i) blocks[t].push_back(pool->allocate(static_cast<std::size_t>(i) * 20));
                filled.fetch_add(1);
                while (!closing) std::this_thread::yield();
                MemoryPool other({.initial_bytes = 0});
                // Half of the own ones, and half of the next thread's.
                for (std::size_t i = 0; i < 25; ++i) other.release(blocks[t][i]);
                for (std::size_t i = 25; i < 50; ++i) other.release(blocks[(t + 1) % kThreads][i]);
            });
        }
        CHECK(eventually([&] { return filled == kThreads; }));
        closing = true;
        pool.reset();
        for (auto& thread : threads) thread.join();
    }
    const MemoryPool sweeps;
    CHECK(muses::detail::MemRegistry::instance().size() == before + 1);
}

TEST_CASE("memory_pool: threads come and go and trim while their blocks are freed by others") {
    MemoryPool pool({.initial_bytes = 0, .max_bytes = std::size_t{4} << 20U});
    Places places(200);
    std::atomic<bool> done{false};
    std::thread trimmer([&] {
        while (!done) {
            pool.trim();
            (void)pool.stats();
            std::this_thread::yield();
        }
    });
    for (int round = 0; round < stress_rounds(20); ++round) {
        at_once(4, [&](unsigned t) {
            std::mt19937 random(t + static_cast<unsigned>(round) * 4);
            for (int i = 0; i < 500; ++i) {
                auto* const block = static_cast<std::uint32_t*>(pool.allocate(8 + random() % 3000));
                block[0] = block[1] = static_cast<std::uint32_t>(random());
                auto* const found = static_cast<std::uint32_t*>(places[random() % places.size()].exchange(block));
                if (found == nullptr) continue;
                if (found[0] != found[1]) CHECK(found[0] == found[1]);
                if (!pool.release(found)) CHECK(false);
            }
            pool.trim();
        });
    }
    done = true;
    trimmer.join();
    for (auto& place : places)
        if (void* const left = place.exchange(nullptr)) CHECK(pool.release(left));
    CHECK(live(pool) == 0);
    CHECK(pool.stats().misuses == 0);
    pool.trim();
    CHECK(pool.stats().arena_bytes == 0);
}
