#include "muses/queue.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "support/sanitizers.hpp"

// Counts what is allocated. ThreadSanitizer does not let operator new be replaced.

#if defined(MUSES_TEST_TSAN)
TEST_CASE("queue: memory is not counted under this sanitizer") {}
#else

namespace {
std::atomic<std::int64_t> blocks{0};
std::atomic<std::int64_t> allocations{0};

void* counted(void* memory) {
    if (memory == nullptr) throw std::bad_alloc();
    ++blocks;
    ++allocations;
    return memory;
}
void uncounted(void* memory) noexcept {
    if (memory != nullptr) --blocks;
    std::free(memory);
}
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { uncounted(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { uncounted(memory); }

TEST_CASE("queue: memory goes back after a burst whether elements are popped or drained") {
    muses::Queue<std::uint64_t> queue;
    const std::int64_t idle = blocks;
    for (int round = 0; round < 3; ++round) {
        for (std::uint64_t i = 0; i < 100'000; ++i) queue.push(i);
        CHECK(blocks > idle + 300);
        while (queue.try_pop()) {}
        CHECK(blocks <= idle + 1);  // one is kept for the next time
        for (std::uint64_t i = 0; i < 100'000; ++i) queue.push(i);
        CHECK(queue.drain().size() == 100'000);
        CHECK(blocks <= idle + 1);
    }
}

TEST_CASE("queue: a queue that stays short allocates nothing") {
    muses::Queue<std::uint64_t> queue;
    for (std::uint64_t i = 0; i < 2000; ++i) {
        queue.push(i);
        (void)queue.try_pop();
    }
    const std::int64_t before = allocations;
    for (std::uint64_t i = 0; i < 100'000; ++i) {
        queue.push(i);
        queue.emplace(i);
        (void)queue.try_pop();
        (void)queue.pop();
    }
    CHECK(allocations == before);
}

#endif
