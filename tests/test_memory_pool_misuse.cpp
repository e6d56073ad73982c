#include "muses/memory_pool.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/memory_pools.hpp"

#if defined(MUSES_DETAIL_MEM_ASAN)
#include <sanitizer/asan_interface.h>
#endif

using muses::MemoryPool;
using muses::PoolMisuse;
using muses::PoolPtr;

namespace {

using Reports = std::vector<std::pair<PoolMisuse, const void*>>;

// A pool that writes down what it is told.
struct Watched {
    Reports reports;
    MemoryPool pool{{.on_misuse = [this](PoolMisuse misuse, const void* block) { reports.emplace_back(misuse, block); }}};

    std::uint64_t live() const { return muses::test::live(pool); }
    // The one report since the last call.
    bool told(PoolMisuse misuse, const void* block) { return std::exchange(reports, {}) == Reports{{misuse, block}}; }
};

std::byte* header_of(void* block) { return static_cast<std::byte*>(block) - 16; }

// What `run` printed to stderr, and how it ended, in a process of its own.
struct Ended {
    std::string output;
    int status = 0;
};
template <class Run>
Ended in_child(Run run) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        std::signal(SIGABRT, SIG_DFL);
        run();
        ::_exit(0);
    }
    ::close(ends[1]);
    Ended ended;
    std::array<char, 512> some{};
    for (ssize_t n; (n = ::read(ends[0], some.data(), some.size())) > 0;)
        ended.output.append(some.data(), static_cast<std::size_t>(n));
    ::close(ends[0]);
    ::waitpid(child, &ended.status, 0);
    return ended;
}

}  // namespace

TEST_CASE("memory_pool: a double release is caught before any link is touched") {
    Watched w;
    void* const other = w.pool.allocate(40);
    void* const block = w.pool.allocate(40);
    w.pool.release(other);
    CHECK(w.pool.release(block));
    CHECK_FALSE(w.pool.release(block));
    CHECK(w.told(PoolMisuse::DoubleRelease, block));
    CHECK(w.live() == 0);
    // The list is as it was: each block comes out once.
    void* const a = w.pool.allocate(40);
    void* const b = w.pool.allocate(40);
    void* const c = w.pool.allocate(40);
    CHECK(a == block);
    CHECK(b == other);
    CHECK(c != a);
    CHECK(c != b);
    CHECK(w.reports.empty());
    for (void* const each : {a, b, c}) w.pool.release(each);
    CHECK(w.pool.stats().misuses == 1);
}

TEST_CASE("memory_pool: a double release is caught on another thread and of an aligned block") {
    Watched w;
    void* const block = w.pool.allocate(40);
    void* const aligned = w.pool.allocate(40, 512);
    std::thread([&] {
        CHECK(w.pool.release(block));
        CHECK_FALSE(w.pool.release(block));
        CHECK(w.told(PoolMisuse::DoubleRelease, block));
        CHECK(w.pool.release(aligned));
        CHECK_FALSE(w.pool.release(aligned));
    }).join();
    CHECK(w.told(PoolMisuse::DoubleRelease, aligned));
    CHECK_FALSE(w.pool.release(block));
    CHECK(w.told(PoolMisuse::DoubleRelease, block));
    CHECK(w.live() == 0);
}

TEST_CASE("memory_pool: a block that is gone can be retained by nobody and its count stays 0") {
    Watched w;
    void* const block = w.pool.allocate(40);
    w.pool.release(block);
    w.pool.retain(block);
    CHECK(w.told(PoolMisuse::DoubleRelease, block));
    CHECK(w.pool.use_count(block) == 0);
    void* const again = w.pool.allocate(40);
    CHECK(again == block);
    CHECK(w.pool.use_count(again) == 1);
    CHECK(w.pool.release(again));
}

namespace {
struct Clinging {
    Watched* w;
    ~Clinging() {
        CHECK(w->pool.use_count(this) == 0);
        w->pool.retain(this);
        CHECK(w->told(PoolMisuse::DoubleRelease, this));
        CHECK(w->pool.use_count(this) == 0);
        CHECK_FALSE(w->pool.release(this));
        CHECK(w->told(PoolMisuse::DoubleRelease, this));
    }
};
}  // namespace

TEST_CASE("memory_pool: an object that is being destroyed cannot be held again") {
    Watched w;
    w.pool.make<Clinging>(&w).reset();
    CHECK(w.live() == 0);
}

TEST_CASE("memory_pool: a foreign pointer is found out without being followed") {
    Watched w;
    auto heap = std::make_unique<std::array<std::byte, 64>>();
    alignas(16) static std::array<std::byte, 64> fixed{};
    alignas(16) std::array<std::byte, 64> local{};
    void* const block = w.pool.allocate(100);
    const std::vector<void*> foreign = {
        heap.get(),
        fixed.data() + 16,
        local.data() + 16,
        local.data() + 17,
        reinterpret_cast<void*>(std::uintptr_t{8}),
        reinterpret_cast<void*>(std::uintptr_t{16}),
        reinterpret_cast<void*>(std::uintptr_t{4096}),                   // nothing is mapped there
        reinterpret_cast<void*>(std::uintptr_t{0x7FFF'0000'0000} + 16),  // nor there
        reinterpret_cast<void*>(~std::uintptr_t{15}),
        static_cast<std::byte*>(block) + 8,
    };
    for (void* const pointer : foreign) {
        CAPTURE(pointer);
        CHECK_FALSE(w.pool.release(pointer));
        CHECK(w.told(PoolMisuse::ForeignPointer, pointer));
        w.pool.retain(pointer);
        CHECK(w.told(PoolMisuse::ForeignPointer, pointer));
        CHECK(w.pool.use_count(pointer) == 0);
        CHECK_FALSE(w.pool.owns(pointer));
    }
    CHECK(w.reports.empty());
    CHECK(w.pool.release(block));
}

TEST_CASE("memory_pool: a pointer into an arena that is no beginning of a block is found out") {
    Watched w;
    auto* const block = static_cast<std::byte*>(w.pool.allocate(200));
    std::memset(block, 0xFF, 200);
    for (std::byte* inside = block + 16; inside < block + 192; inside += 16) {
        CHECK_FALSE(w.pool.release(inside));
        CHECK(w.told(PoolMisuse::BrokenHeader, inside));
    }
    // The pages that describe the chunk, and memory that no size has taken.
    auto* const chunk = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(block) & ~std::uintptr_t{0xFFFFF});
    for (std::byte* const no_run : {chunk + 16, chunk + 4096, chunk + 0xF0000}) {
        CHECK_FALSE(w.pool.release(no_run));
        CHECK(w.told(PoolMisuse::ForeignPointer, no_run));
    }
    CHECK(w.pool.release(block));
}

TEST_CASE("memory_pool: any change of a cookie or a size class is caught") {
    Watched w;
    void* const block = w.pool.allocate(100);
    std::byte* const header = header_of(block);
    for (unsigned bit = 0; bit < 64; ++bit) {
        header[bit / 8] ^= std::byte{1} << bit % 8;
        CAPTURE(bit);
        CHECK_FALSE(w.pool.release(block));
        CHECK(w.told(PoolMisuse::BrokenHeader, block));
        w.pool.retain(block);
        CHECK(w.told(PoolMisuse::BrokenHeader, block));
        CHECK(w.pool.use_count(block) == 0);
        header[bit / 8] ^= std::byte{1} << bit % 8;
    }
    CHECK(w.live() == 1);
    CHECK(w.pool.release(block));
}

TEST_CASE("memory_pool: a stamped-over header and a header that was copied elsewhere are caught") {
    Watched w;
    auto* const block = static_cast<std::byte*>(w.pool.allocate(100));
    std::array<std::byte, 16> saved{};
    std::memcpy(saved.data(), header_of(block), 16);
    std::memset(header_of(block), 0x41, 16);
    CHECK_FALSE(w.pool.release(block));
    CHECK(w.told(PoolMisuse::BrokenHeader, block));
    std::memcpy(header_of(block), saved.data(), 16);
    std::memcpy(block + 16, saved.data(), 16);
    CHECK_FALSE(w.pool.release(block + 32));
    CHECK(w.told(PoolMisuse::BrokenHeader, block + 32));
    CHECK(w.pool.release(block));
}

TEST_CASE("memory_pool: a header that was stamped over while its block was free is not handed out") {
    Watched w;
    void* const first = w.pool.allocate(100);
    void* const second = w.pool.allocate(100);
    w.pool.release(first);
    w.pool.release(second);
    std::memset(header_of(second), 0x41, 16);
    void* const block = w.pool.allocate(100);
    CHECK(w.told(PoolMisuse::BrokenFreeList, second));
    CHECK(block != first);
    CHECK(block != second);
    std::memset(block, 1, 100);
    CHECK(w.pool.release(block));
}

TEST_CASE("memory_pool: trim tells of a free block that was stamped over and does not follow it") {
    Watched w;
    std::vector<void*> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(w.pool.allocate(100));
    for (void* const block : blocks) w.pool.release(block);
    std::memset(header_of(blocks[4]), 0x41, 16);
    w.pool.trim();
    CHECK(w.told(PoolMisuse::BrokenFreeList, blocks[4]));
    void* const kept = w.pool.allocate(100);
    CHECK(std::ranges::find(blocks.begin() + 5, blocks.end(), kept) != blocks.end());
    w.pool.release(kept);
    w.pool.trim();
    CHECK(w.reports.empty());
}

TEST_CASE("memory_pool: an ESCAPED block is caught when it is released twice or stamped over") {
    Watched w;
    for (const std::size_t bytes : {40000U, 4000000U}) {  // the second one's memory is unmapped when it is gone
        void* const block = w.pool.allocate(bytes);
        header_of(block)[0] ^= std::byte{1};
        CHECK_FALSE(w.pool.release(block));
        CHECK(w.told(PoolMisuse::BrokenHeader, block));
        header_of(block)[0] ^= std::byte{1};
        CHECK(w.pool.release(block));
        CHECK_FALSE(w.pool.release(block));
        CHECK(w.told(PoolMisuse::ForeignPointer, block));
        w.pool.retain(block);
        CHECK(w.told(PoolMisuse::ForeignPointer, block));
        CHECK(w.pool.use_count(block) == 0);
    }
}

TEST_CASE("memory_pool: a block whose chunk has been given back is caught") {
    Watched w;
    void* const block = w.pool.allocate(100);
    w.pool.release(block);
    CHECK(w.pool.trim() > 0);
    CHECK_FALSE(w.pool.release(block));
    CHECK(w.told(PoolMisuse::ForeignPointer, block));
}

TEST_CASE("memory_pool: misuse is told to the pool of the block and else to the one that was asked") {
    Watched mine;
    Watched other;
    void* const block = mine.pool.allocate(100);
    mine.pool.release(block);
    other.pool.release(block);
    CHECK(mine.told(PoolMisuse::DoubleRelease, block));
    CHECK(other.reports.empty());
    int local = 0;
    other.pool.release(&local);
    CHECK(other.reports.size() == 1);
    CHECK(mine.reports.empty());
}

TEST_CASE("memory_pool: a handle whose block was released behind its back does no harm") {
    Watched w;
    {
        auto handle = w.pool.make<int>(1);
        int* const raw = handle.get();
        CHECK(w.pool.release(raw));
        const auto copy = handle;  // reports
        CHECK(w.told(PoolMisuse::DoubleRelease, raw));
    }
    CHECK(w.reports.size() == 2);  // both ends
    CHECK(w.live() == 0);
}

TEST_CASE("memory_pool: a hook may use the pool and what it throws is counted") {
    MemoryPool* self = nullptr;
    int calls = 0;
    MemoryPool pool({.on_misuse = [&](PoolMisuse, const void*) {
        ++calls;
        CHECK(self->release(self->allocate(100)));
        CHECK(self->stats().misuses > 0);
        throw std::runtime_error("from the hook");
    }});
    self = &pool;
    int local = 0;
    CHECK_FALSE(pool.release(&local));
    pool.retain(&local);
    CHECK(calls == 2);
    CHECK(pool.stats().misuses == 2);
    CHECK(pool.stats().hook_errors == 2);
}

TEST_CASE("memory_pool: without a hook misuse is printed and aborts unless all was compiled with NDEBUG") {
    auto& aborts = muses::detail::mem_misuse_aborts();
#if defined(NDEBUG)
    CHECK_FALSE(aborts.load());
#else
    CHECK(aborts.load());
#endif
    for (const bool debug : {true, false}) {
        const Ended ended = in_child([&] {
            aborts = debug;
            MemoryPool pool;
            void* const block = pool.allocate(10);
            pool.release(block);
            pool.release(block);
            pool.release(&pool);
        });
        CHECK(ended.output.contains("a block that has been released already"));
        CHECK(ended.output.contains("a pointer that is no block of a pool") == !debug);
        if (debug) {
            CHECK(WIFSIGNALED(ended.status));
            CHECK(WTERMSIG(ended.status) == SIGABRT);
        } else {
            CHECK(WIFEXITED(ended.status));
            CHECK(WEXITSTATUS(ended.status) == 0);
        }
    }
}

TEST_CASE("memory_pool: a handle does not adopt what is no block") {
    auto& aborts = muses::detail::mem_misuse_aborts();
    const Ended ended = in_child([&] {
        aborts = false;
        int local = 0;
        PoolPtr<int> handle(&local);
        if (handle) ::_exit(1);
        handle.reset(&local);
        if (handle) ::_exit(1);
    });
    CHECK(ended.output.contains("a pointer that is no block of a pool"));
    CHECK(WIFEXITED(ended.status));
    CHECK(WEXITSTATUS(ended.status) == 0);
}

#if defined(MUSES_DETAIL_MEM_ASAN)
TEST_CASE("memory_pool: free blocks and the unused ends of blocks are poisoned") {
    MemoryPool pool;
    for (const auto& [bytes, alignment] : {std::pair<std::size_t, std::size_t>{100, 16}, {16, 16}, {3000, 16}, {40, 256}}) {
        auto* const block = static_cast<std::byte*>(pool.allocate(bytes, alignment));
        CHECK(__asan_region_is_poisoned(block, bytes) == nullptr);
        if (bytes % 16 != 0 || alignment > 16) CHECK(__asan_address_is_poisoned(block + bytes) != 0);
        const auto all_poisoned = [&] {
            return std::all_of(block, block + bytes, [](std::byte& byte) { return __asan_address_is_poisoned(&byte) != 0; });
        };
        pool.release(block);
        CHECK(all_poisoned());
        auto* const again = static_cast<std::byte*>(pool.allocate(bytes, alignment));
        CHECK(again == block);
        CHECK(__asan_region_is_poisoned(block, bytes) == nullptr);
        std::thread([&] { pool.release(block); }).join();
        CHECK(all_poisoned());
    }
}

TEST_CASE("memory_pool: a pool that is gone leaves no poison behind") {
    // Addresses of the first pool are most likely those of the second; the sanitizer would speak up.
    for (int i = 0; i < 4; ++i) {
        MemoryPool pool;
        std::vector<void*> blocks;
        for (int k = 0; k < 2000; ++k)
            blocks.push_back(std::memset(pool.allocate(static_cast<std::size_t>(k)), 1, static_cast<std::size_t>(k)));
        for (void* const block : blocks) pool.release(block);
        if (i % 2 != 0) pool.trim();
    }
    std::vector<char> elsewhere(std::size_t{8} << 20U, 'x');
    CHECK(__asan_region_is_poisoned(elsewhere.data(), elsewhere.size()) == nullptr);
}
#endif
