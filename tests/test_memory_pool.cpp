#include "muses/memory_pool.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/failing_new.hpp"
#include "support/memory_pools.hpp"

using muses::MemoryPool;
using muses::MemoryPoolOptions;
using muses::MemoryPoolStats;
using namespace muses::test;

namespace {

constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();

MemoryPoolStats::SizeClass class_for(const MemoryPool& pool, std::size_t bytes) {
    for (const auto& size_class : pool.stats().classes)
        if (size_class.block_bytes >= bytes) return size_class;
    return {};
}

bool aligned(const void* block, std::size_t alignment) { return reinterpret_cast<std::uintptr_t>(block) % alignment == 0; }

}  // namespace

// --- blocks

TEST_CASE("memory_pool: a block can be written from end to end and is told from every other") {
    MemoryPool pool;
    std::vector<unsigned char*> blocks;
    for (std::size_t bytes = 0; bytes <= 5000; bytes += bytes < 300 ? 1 : 97) {
        auto* const block = static_cast<unsigned char*>(pool.allocate(bytes));
        std::memset(block, static_cast<int>(blocks.size() & 0xFFU), bytes);
        blocks.push_back(block);
    }
    std::size_t wrong = 0;
    std::size_t i = 0;
    for (std::size_t bytes = 0; bytes <= 5000; bytes += bytes < 300 ? 1 : 97, ++i) {
        wrong += static_cast<std::size_t>(
            std::count_if(blocks[i], blocks[i] + bytes, [&](unsigned char byte) { return byte != (i & 0xFFU); }));
        CHECK(pool.release(blocks[i]));
    }
    CHECK(wrong == 0);
    CHECK(live(pool) == 0);
    std::ranges::sort(blocks);
    CHECK(std::ranges::adjacent_find(blocks) == blocks.end());
}

TEST_CASE("memory_pool: a released block is handed out again to the same thread") {
    MemoryPool pool;
    void* const first = pool.allocate(100);
    pool.release(first);
    void* const second = pool.allocate(97);
    CHECK(first == second);
    pool.release(second);
}

TEST_CASE("memory_pool: requests of 0 bytes get blocks of their own") {
    MemoryPool pool;
    void* const a = pool.allocate(0);
    void* const b = pool.allocate(0);
    CHECK(a != nullptr);
    CHECK(a != b);
    CHECK(pool.owns(a));
    pool.release(a);
    pool.release(b);
}

TEST_CASE("memory_pool: no request above 64 bytes wastes more than a quarter of its block") {
    MemoryPool pool;
    const auto classes = pool.stats().classes;
    CHECK(std::ranges::is_sorted(classes, {}, &MemoryPoolStats::SizeClass::block_bytes));
    for (std::size_t bytes = 0; bytes <= classes.back().block_bytes; ++bytes) {
        const std::size_t block = muses::detail::mem_class_bytes(muses::detail::mem_class_of(bytes));
        const auto best = std::ranges::lower_bound(classes, bytes, {}, &MemoryPoolStats::SizeClass::block_bytes);
        if (block != best->block_bytes || (bytes > 64 && (block - bytes) * 4 > block)) {
            CAPTURE(bytes);
            FAIL_CHECK(block);
        }
    }
}

TEST_CASE("memory_pool: a block serves the size class that the statistics say") {
    MemoryPool pool;
    for (const std::size_t bytes : {1U, 16U, 17U, 64U, 65U, 80U, 81U, 1000U, 4096U, 4097U, 32768U}) {
        const auto before = class_for(pool, bytes);
        void* const block = pool.allocate(bytes);
        CHECK(class_for(pool, bytes).live == before.live + 1);
        pool.release(block);
        CHECK(class_for(pool, bytes).live == before.live);
    }
}

// --- alignment

TEST_CASE("memory_pool: every power of two is an alignment") {
    MemoryPool pool;
    for (std::size_t alignment = 1; alignment <= (std::size_t{1} << 21U); alignment *= 2) {
        for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100}, alignment, std::size_t{70000}}) {
            CAPTURE(alignment);
            CAPTURE(bytes);
            void* const block = pool.allocate(bytes, alignment);
            void* const other = pool.allocate(bytes, alignment);
            CHECK(aligned(block, std::max<std::size_t>(alignment, 16)));
            CHECK(aligned(other, std::max<std::size_t>(alignment, 16)));
            std::memset(block, 1, bytes);
            std::memset(other, 2, bytes);
            CHECK(pool.use_count(block) == 1);
            pool.retain(block);
            CHECK(pool.use_count(block) == 2);
            CHECK_FALSE(pool.release(block));
            CHECK(pool.release(block));
            CHECK(pool.release(other));
        }
    }
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: blocks of one size and many alignments stay aligned wherever they land") {
    MemoryPool pool;
    std::vector<void*> blocks;
    for (int round = 0; round < 200; ++round) {
        for (std::size_t alignment = 16; alignment <= 2048; alignment *= 2) {
            void* const block = pool.allocate(40, alignment);
            CHECK(aligned(block, alignment));
            CHECK(pool.owns(block));
            blocks.push_back(block);
        }
    }
    std::ranges::shuffle(blocks, std::mt19937(7));  // NOLINT: the same order each time is meant
    for (void* const block : blocks) CHECK(pool.release(block));
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: an alignment that is no power of two is refused before anything is done") {
    MemoryPool pool;
    for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{24}, kMax})
        CHECK_THROWS_AS((void)pool.allocate(8, alignment), std::invalid_argument);
    CHECK(live(pool) == 0);
    CHECK(pool.stats().escaped == 0);
}

TEST_CASE("memory_pool: a size that overflows with the header throws bad_alloc") {
    MemoryPool pool;
    for (const std::size_t bytes : {kMax, kMax - 1, kMax - 15, kMax - 16, kMax - 17, kMax / 2, kMax / 2 - 8})
        for (const std::size_t alignment : {std::size_t{1}, std::size_t{16}, std::size_t{64}, std::size_t{4096}})
            CHECK_THROWS_AS((void)pool.allocate(bytes, alignment), std::bad_alloc);
    CHECK_THROWS_AS((void)pool.allocate(1, kMax / 2 + 1), std::bad_alloc);
    CHECK(pool.stats().escaped == 0);
}

// --- holders

TEST_CASE("memory_pool: a block lives until its last holder lets go") {
    MemoryPool pool;
    for (const std::size_t bytes : {24U, 100000U}) {
        void* const block = pool.allocate(bytes);
        CHECK(pool.use_count(block) == 1);
        pool.retain(block);
        pool.retain(block);
        CHECK(pool.use_count(block) == 3);
        CHECK_FALSE(pool.release(block));
        CHECK_FALSE(pool.release(block));
        CHECK(pool.use_count(block) == 1);
        CHECK(pool.release(block));
    }
}

TEST_CASE("memory_pool: null is no block") {
    MemoryPool pool;
    pool.retain(nullptr);
    CHECK_FALSE(pool.release(nullptr));
    CHECK(pool.use_count(nullptr) == 0);
    CHECK_FALSE(pool.owns(nullptr));
    CHECK(pool.stats().misuses == 0);
}

TEST_CASE("memory_pool: a block goes home whichever pool releases it") {
    MemoryPool mine;
    MemoryPool other;
    void* const block = mine.allocate(50);
    CHECK(mine.owns(block));
    CHECK_FALSE(other.owns(block));
    other.retain(block);
    CHECK(other.use_count(block) == 2);
    other.release(block);
    CHECK(other.release(block));
    CHECK(live(mine) == 0);
    void* const again = mine.allocate(50);
    CHECK(again == block);
    mine.release(again);
}

TEST_CASE("memory_pool: owns says no to blocks that are gone and to what is no beginning of a block") {
    MemoryPool pool;
    auto* const block = static_cast<std::byte*>(pool.allocate(200));
    std::memset(block, 0, 200);
    int local = 0;
    CHECK(pool.owns(block));
    CHECK_FALSE(pool.owns(block + 1));
    CHECK_FALSE(pool.owns(block + 16));
    CHECK_FALSE(pool.owns(block - 16));
    CHECK_FALSE(pool.owns(&local));
    CHECK_FALSE(pool.owns(reinterpret_cast<void*>(16)));
    pool.release(block);
    CHECK_FALSE(pool.owns(block));
}

// --- ESCAPED

TEST_CASE("memory_pool: what is too large or too aligned comes from operator new and behaves the same") {
    MemoryPool pool;
    for (const auto& [bytes, alignment] :
         {std::pair<std::size_t, std::size_t>{32769, 16}, {1U << 20U, 16}, {64, 4096}, {32768, 32}}) {
        const auto before = pool.stats().escaped;
        void* const block = pool.allocate(bytes, alignment);
        CHECK(pool.stats().escaped == before + 1);
        CHECK_FALSE(pool.owns(block));
        CHECK(pool.use_count(block) == 1);
        CHECK(aligned(block, alignment));
        std::memset(block, 1, bytes);
        CHECK(pool.release(block));
    }
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: beyond max_bytes blocks are ESCAPED and the arena is used again when blocks come back") {
    MemoryPool pool({.initial_bytes = 4096, .max_bytes = 64 * 1024});
    CHECK(pool.stats().arena_bytes == 4096);
    std::vector<void*> blocks;
    std::size_t owned = 0;
    while (pool.stats().escaped < 10) {
        blocks.push_back(pool.allocate(1000));
        owned += pool.owns(blocks.back()) ? 1 : 0;
    }
    CHECK(owned >= 48);  // of the 64 that would fit without headers
    CHECK(owned <= 64);
    CHECK(pool.stats().arena_bytes == 64 * 1024);
    CHECK(class_for(pool, 1000).live == owned);
    for (void* const block : blocks) CHECK(pool.release(block));
    const auto escaped = pool.stats().escaped;
    for (auto& block : blocks) block = nullptr;
    for (std::size_t i = 0; i < owned; ++i) blocks[i] = pool.allocate(1000);
    CHECK(pool.stats().escaped == escaped);
    for (void* const block : blocks) pool.release(block);
}

TEST_CASE("memory_pool: a pool without an arena serves everything from operator new") {
    MemoryPool pool({.initial_bytes = 0, .max_bytes = 0});
    void* const block = pool.allocate(10);
    CHECK_FALSE(pool.owns(block));
    CHECK(pool.stats().escaped == 1);
    CHECK(pool.stats().arena_bytes == 0);
    CHECK(pool.release(block));
    CHECK_FALSE(pool.reserve(1));
    CHECK(pool.trim() == 0);
}

TEST_CASE("memory_pool: at the limit free memory of one size comes to serve another") {
    MemoryPool pool({.initial_bytes = 0, .max_bytes = 256 * 1024});
    std::vector<void*> blocks;
    while (pool.stats().escaped == 0) blocks.push_back(pool.allocate(64));
    for (void* const block : blocks) pool.release(block);
    blocks.clear();
    for (int i = 0; i < 100; ++i) blocks.push_back(pool.allocate(2000));
    CHECK(pool.stats().escaped == 1);
    for (void* const block : blocks) pool.release(block);
}

TEST_CASE("memory_pool: at the limit free memory of a thread that has ended is used") {
    MemoryPool pool({.initial_bytes = 0, .max_bytes = 64 * 1024});
    void* mine = pool.allocate(64);  // this thread keeps its own cache
    std::thread([&] {
        std::vector<void*> blocks;
        while (pool.stats().escaped == 0) blocks.push_back(pool.allocate(1000));
        for (void* const block : blocks) pool.release(block);
    }).join();
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) blocks.push_back(pool.allocate(1000));
    CHECK(pool.stats().escaped == 1);
    for (void* const block : blocks) pool.release(block);
    pool.release(mine);
    CHECK(live(pool) == 0);
    // What is left in this thread's list of the other one's goes back to it for that.
    CHECK(pool.stats().arena_bytes == 64 * 1024);
    CHECK(pool.trim() == 64 * 1024);
}

// --- the arena

TEST_CASE("memory_pool: options that contradict each other are refused") {
    CHECK_THROWS_AS(MemoryPool({.initial_bytes = 2, .max_bytes = 1}), std::invalid_argument);
    CHECK_THROWS_AS(MemoryPool({.initial_bytes = kMax, .max_bytes = kMax}), std::bad_alloc);
    const MemoryPool whole({.initial_bytes = 1, .max_bytes = kMax});
    CHECK(whole.stats().arena_bytes == 4096);
    const MemoryPool odd({.initial_bytes = 5000, .max_bytes = 5000});
    CHECK(odd.stats().arena_bytes == 4096);
}

TEST_CASE("memory_pool: reserve brings in memory before it is needed and stops at the limit") {
    MemoryPool pool({.initial_bytes = 0, .max_bytes = std::size_t{4} << 20U});
    CHECK(pool.reserve(std::size_t{3} << 20U));
    CHECK(pool.stats().arena_bytes == std::size_t{3} << 20U);
    CHECK(pool.reserve(std::size_t{3} << 20U));  // it is there already
    CHECK(pool.stats().arena_bytes == std::size_t{3} << 20U);
    CHECK_FALSE(pool.reserve(std::size_t{5} << 20U));
    CHECK_FALSE(pool.reserve(kMax));
    CHECK(pool.reserve(0));
    void* const block = pool.allocate(4000);
    CHECK(pool.stats().arena_bytes == std::size_t{3} << 20U);
    pool.release(block);
}

TEST_CASE("memory_pool: the arena can be reserved little by little up to the limit") {
    constexpr std::size_t kLimit = std::size_t{16} << 20U;
    MemoryPool pool({.initial_bytes = 0, .max_bytes = kLimit});
    for (std::size_t bytes = 4096; bytes <= kLimit; bytes += 4096) REQUIRE(pool.reserve(bytes));
    CHECK_FALSE(pool.reserve(kLimit + 1));
    CHECK(pool.stats().arena_bytes == kLimit);
    void* const block = pool.allocate(30'000);  // needs several pages in a row
    CHECK(pool.owns(block));
    pool.release(block);
}

TEST_CASE("memory_pool: blocks of every size fill the arena but for a quarter") {
    constexpr std::size_t kLimit = std::size_t{16} << 20U;
    for (std::size_t bytes = 16; bytes <= 32'768; bytes += bytes < 256 ? 16 : bytes / 4) {
        CAPTURE(bytes);
        MemoryPool pool({.initial_bytes = 0, .max_bytes = kLimit});
        std::vector<void*> blocks;
        while (pool.stats().escaped == 0) blocks.push_back(pool.allocate(bytes));
        const auto payload = (blocks.size() - 1) * (bytes + 16);  // with the header
        CHECK(payload >= kLimit / 4 * 3);
        for (void* const block : blocks) pool.release(block);
    }
}

TEST_CASE("memory_pool: a limit alone may be small and a pool may be a member without a word") {
    for (const std::size_t max_bytes : {std::size_t{0}, std::size_t{100}, std::size_t{100'000}}) {
        MemoryPool pool({.max_bytes = max_bytes});
        CHECK(pool.stats().arena_bytes <= max_bytes);
        void* const block = pool.allocate(10);
        pool.release(block);
    }
    struct Owner {
        MemoryPool pool;
        int number;
    };
    const Owner owner{{}, 1};
    CHECK(owner.pool.stats().escaped == 0);
}

TEST_CASE("memory_pool: trim gives chunks without a block in use back and keeps the others") {
    MemoryPool pool({.initial_bytes = 0});
    std::vector<void*> blocks;
    for (int i = 0; i < 8000; ++i) blocks.push_back(pool.allocate(static_cast<std::size_t>(i % 7 + 1) * 150));
    const auto full = pool.stats().arena_bytes;
    CHECK(full > 4'000'000);
    CHECK(pool.trim() <= 1'000'000);  // no block has come back: only what was never used can go
    void* const kept = blocks.front();
    std::memset(kept, 42, 150);
    for (void* const block : blocks)
        if (block != kept) pool.release(block);
    const auto before = pool.stats().arena_bytes;
    const auto given = pool.trim();
    CHECK(pool.stats().arena_bytes == before - given);
    CHECK(pool.stats().arena_bytes <= 1 << 20);
    CHECK(pool.stats().arena_bytes > 0);
    CHECK(static_cast<unsigned char*>(kept)[149] == 42);
    CHECK(pool.owns(kept));
    for (auto& block : blocks) block = pool.allocate(150);  // and on it goes
    for (void* const block : blocks) pool.release(block);
    pool.release(kept);
    pool.trim();
    CHECK(pool.stats().arena_bytes == 0);
    CHECK(pool.trim() == 0);
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: trim reaches what other threads have released and what threads that ended have left") {
    MemoryPool pool({.initial_bytes = 0});
    std::vector<void*> blocks;
    for (int i = 0; i < 3000; ++i) blocks.push_back(pool.allocate(300));
    std::thread([&] {
        for (void* const block : blocks) pool.release(block);
        for (auto& block : blocks) block = pool.allocate(500);
    }).join();
    for (void* const block : blocks) pool.release(block);
    CHECK(live(pool) == 0);
    CHECK(pool.trim() > 2'000'000);
    CHECK(pool.stats().arena_bytes == 0);
}

TEST_CASE("memory_pool: a random history of trims and blocks leaves every block as it was") {
    const auto seed = std::random_device{}();
    CAPTURE(seed);
    std::mt19937 random(seed);
    MemoryPool pool({.initial_bytes = 0, .max_bytes = std::size_t{2} << 20U});
    std::map<unsigned char*, std::pair<std::size_t, unsigned char>> blocks;
    const auto check_and_release = [&](auto at) {
        const auto [bytes, mark] = at->second;
        CHECK(std::all_of(at->first, at->first + bytes, [want = mark](unsigned char byte) { return byte == want; }));
        CHECK(pool.release(at->first));
        blocks.erase(at);
    };
    for (int i = 0; i < stress_rounds(20000); ++i) {
        const auto what = random() % 1000;
        if (what == 0) {
            pool.trim();
        } else if (what < 10) {
            while (blocks.size() > random() % 50) check_and_release(blocks.begin());
        } else if (what < 600 || blocks.empty()) {
            const std::size_t bytes = random() % (random() % 10 == 0 ? 40000 : 700);
            const std::size_t alignment = random() % 8 == 0 ? std::size_t{1} << random() % 12 : 16;
            auto* const block = static_cast<unsigned char*>(pool.allocate(bytes, alignment));
            const auto mark = static_cast<unsigned char>(random());
            std::memset(block, mark, bytes);
            CHECK(blocks.emplace(block, std::pair{bytes, mark}).second);
        } else {
            const auto at = blocks.lower_bound(blocks.begin()->first + random() % (1U << 21U));
            check_and_release(at == blocks.end() ? blocks.begin() : at);
        }
    }
    while (!blocks.empty()) check_and_release(blocks.begin());
    CHECK(live(pool) == 0);
    CHECK(pool.stats().misuses == 0);
    pool.trim();
    CHECK(pool.stats().arena_bytes == 0);
}

// --- statistics

TEST_CASE("memory_pool: hits and misses and live blocks and the high water mark are counted") {
    MemoryPool pool;
    std::vector<void*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(pool.allocate(100));
    auto counted = class_for(pool, 100);
    CHECK(counted.block_bytes == 112);
    CHECK(counted.live == 5);
    CHECK(counted.misses == 5);
    CHECK(counted.hits == 0);
    CHECK(counted.high_water == 5);
    for (int i = 0; i < 3; ++i) {
        pool.release(blocks.back());
        blocks.pop_back();
    }
    blocks.push_back(pool.allocate(100));
    counted = class_for(pool, 100);
    CHECK(counted.live == 3);
    CHECK(counted.misses == 5);
    CHECK(counted.hits == 1);
    CHECK(counted.high_water == 5);
    std::thread([&] {
        for (void* const block : blocks) pool.release(block);
    }).join();
    counted = class_for(pool, 100);
    CHECK(counted.live == 0);  // also before the owner has looked
    CHECK(counted.high_water == 5);
}

TEST_CASE("memory_pool: blocks that others release come back in batches") {
    for (const std::size_t max_bytes : {std::size_t{1} << 20U, std::size_t{4096}}) {
        MemoryPool pool({.initial_bytes = 0, .max_bytes = max_bytes});
        void* const first = pool.allocate(100);
        std::thread([&] { pool.release(first); }).join();
        std::vector<void*> blocks;
        for (int i = 0; i < 32; ++i) blocks.push_back(pool.allocate(100));
        const auto counted = class_for(pool, 100);
        CHECK(counted.live == 32);  // which is just what fits into 4096 bytes
        CHECK(counted.misses == 2);
        CHECK(std::ranges::find(blocks, first) != blocks.end());
        CHECK(counted.high_water == counted.live);
        blocks.push_back(pool.allocate(100));
        CHECK(pool.owns(blocks.back()) == (max_bytes > 4096));
        for (void* const block : blocks) CHECK(pool.release(block));
        CHECK(live(pool) == 0);
    }
}

// --- memory that is not there

#if defined(MUSES_TEST_CAN_FAIL_NEW)
TEST_CASE("memory_pool: each allocation that fails on the way leaves the pool usable") {
    int failed = 0;
    for (int n = 0; n < 40; ++n) {
        std::thread([&] {
            const FailNew fail(n);
            try {
                MemoryPool pool({.initial_bytes = 0});
                void* const small = pool.allocate(100);
                CHECK(pool.release(small));
                void* const large = pool.allocate(100000);
                CHECK(pool.release(large));
            } catch (const std::bad_alloc&) {
                failed += fail.failed() ? 1 : 0;
            }
        }).join();
    }
    CHECK(failed >= 5);

    MemoryPool pool;
    for (int n = 0; n < 6; ++n) {
        void* block = nullptr;
        {
            const FailNew fail(n);
            try {
                block = pool.allocate(100000);
            } catch (const std::bad_alloc&) {
                CHECK(fail.failed());
            }
        }
        if (block != nullptr) CHECK(pool.release(block));
    }
    CHECK(live(pool) == 0);
}
#endif
