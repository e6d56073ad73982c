#include "muses/memory_pool.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.hpp"
#include "support/memory_pools.hpp"
#include "support/queue_elements.hpp"

using muses::MemoryPool;
using muses::PoolAllocator;
using muses::PooledBuffer;
using muses::PooledSlice;
using muses::PoolPtr;
using muses::PoolResource;
using namespace muses::test;

namespace {

struct Node {
    explicit Node(int n) : number(n) { ++alive; }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node() { --alive; }
    int number;
    PoolPtr<Node> next;
    static inline std::atomic<int> alive{0};
};

struct Throwing {
    explicit Throwing(bool now) {
        if (now) throw std::runtime_error("constructor");
    }
};

}  // namespace

// --- PoolPtr

TEST_CASE_TEMPLATE("memory_pool: make constructs any kind of object and destroys it once", T, Plain, MoveOnly, OverAligned,
                   Counted) {
    MemoryPool pool;
    {
        std::vector<PoolPtr<T>> all;
        for (std::uint64_t i = 0; i < 100; ++i) {
            if constexpr (std::same_as<T, MoveOnly>)
                all.push_back(pool.make<T>(std::make_unique<std::uint64_t>(i)));
            else
                all.push_back(pool.make<T>(i));
        }
        const auto copies = all;
        for (std::uint64_t i = 0; i < 100; ++i) {
            CHECK(number_of(*copies[i]) == i);
            CHECK(copies[i].use_count() == 2);
            CHECK(reinterpret_cast<std::uintptr_t>(all[i].get()) % alignof(T) == 0);
        }
        all.clear();
        for (const auto& copy : copies) CHECK(copy.use_count() == 1);
        CHECK(live(pool) == 100);
    }
    CHECK(live(pool) == 0);
    CHECK(Counted::live == 0);
    CHECK(Counted::broken == 0);
    CHECK(OverAligned::misaligned == 0);
}

TEST_CASE("memory_pool: a handle copies by holding and moves by handing over") {
    MemoryPool pool;
    PoolPtr<Node> a = pool.make<Node>(7);
    Node* const node = a.get();
    CHECK(a.use_count() == 1);
    PoolPtr<Node> b = a;
    CHECK(b.get() == node);
    CHECK(node->number == 7);
    CHECK(a == b);
    CHECK(a.use_count() == 2);
    PoolPtr<Node> c = std::move(a);
    CHECK(a == nullptr);  // NOLINT(bugprone-use-after-move): that is what it is about
    CHECK_FALSE(a);
    CHECK(a.use_count() == 0);
    CHECK(c.use_count() == 2);
    b = nullptr;
    CHECK(c.use_count() == 1);
    const PoolPtr<const Node> constant = c;
    CHECK(constant->number == 7);
    CHECK(c.use_count() == 2);
    swap(a, c);
    CHECK(a.get() == node);
    CHECK(c == nullptr);
    CHECK(Node::alive == 1);
}

TEST_CASE("memory_pool: self-assignment and self-move and reset of get are safe") {
    MemoryPool pool;
    PoolPtr<Node> handle = pool.make<Node>(1);
    auto& same = handle;
    handle = same;
    CHECK(handle.use_count() == 1);
    handle = std::move(same);
    CHECK(handle.use_count() == 1);
    handle.reset(handle.get());
    CHECK(handle.use_count() == 1);
    CHECK(handle->number == 1);
    const PoolPtr<Node> twin = handle;
    handle = twin;
    CHECK(handle.use_count() == 2);
    swap(handle, same);
    CHECK(handle.use_count() == 2);
    CHECK(Node::alive == 1);
}

TEST_CASE("memory_pool: reset adopts one reference and detach gives one away") {
    MemoryPool pool;
    PoolPtr<Node> handle = pool.make<Node>(1);
    Node* const raw = handle.detach();
    CHECK(handle == nullptr);
    CHECK(pool.use_count(raw) == 1);
    PoolPtr<Node> other = pool.make<Node>(2);
    other.reset(raw);
    CHECK(Node::alive == 1);
    CHECK(other->number == 1);
    CHECK(other.use_count() == 1);
    pool.retain(raw);
    {
        const PoolPtr<Node> second(raw);
        CHECK(second.use_count() == 2);
    }
    CHECK(other.use_count() == 1);
    other.reset();
    CHECK(Node::alive == 0);
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: an assignment that ends an object which owns its source is safe") {
    MemoryPool pool;
    PoolPtr<Node> head = pool.make<Node>(1);
    head->next = pool.make<Node>(2);
    head->next->next = pool.make<Node>(3);
    head = head->next;
    CHECK(head->number == 2);
    head = std::move(head->next);
    CHECK(head->number == 3);
    CHECK(Node::alive == 1);
    head.reset();
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: a constructor that throws gives its block back") {
    MemoryPool pool;
    CHECK_THROWS_AS((void)pool.make<Throwing>(true), std::runtime_error);
    CHECK(live(pool) == 0);
    CHECK(pool.make<Throwing>(false) != nullptr);
    struct alignas(4096) Large : Throwing {
        using Throwing::Throwing;
    };
    CHECK_THROWS_AS((void)pool.make<Large>(true), std::runtime_error);
    CHECK(live(pool) == 0);
    CHECK(pool.stats().misuses == 0);
}

TEST_CASE("memory_pool: an object too large for the arena is held like any other") {
    MemoryPool pool;
    using Large = std::array<std::byte, 100000>;
    auto handle = pool.make<Large>();
    auto copy = handle;
    CHECK(copy.use_count() == 2);
    CHECK_FALSE(pool.owns(handle.get()));
    handle.reset();
    CHECK(copy.use_count() == 1);
}

// --- handles and threads that outlive what they came from

TEST_CASE("memory_pool: handles outlive the pool object") {
    std::optional<MemoryPool> pool(std::in_place);
    auto kept = pool->make<Node>(1);
    auto large = pool->make<std::array<int, 30000>>();
    void* const raw = pool->allocate(100, 128);
    std::vector<PoolPtr<Node>> many;
    for (int i = 0; i < 1000; ++i) many.push_back(pool->make<Node>(i));
    pool.reset();
    for (int i = 0; i < 1000; ++i) CHECK(many[static_cast<std::size_t>(i)]->number == i);
    const auto copy = kept;
    CHECK(copy.use_count() == 2);
    std::thread([&] { many.resize(500, nullptr); }).join();
    many.clear();
    kept.reset();
    CHECK(copy->number == 1);
    CHECK(Node::alive == 1);
    MemoryPool other;
    CHECK(other.release(raw));
    CHECK(large.use_count() == 1);
}

namespace {
// Pools that have not been freed yet.
std::size_t pools_left() { return muses::detail::MemRegistry::instance().size(); }
}  // namespace

TEST_CASE("memory_pool: the memory of a pool goes with its last block") {
    const std::size_t before = pools_left();
    auto pool = std::make_unique<MemoryPool>();
    auto handle = pool->make<Node>(1);
    void* raw = nullptr;
    std::thread([&] { raw = pool->allocate(1000); }).join();
    pool.reset();
    CHECK(pools_left() == before + 1);
    handle.reset();
    CHECK(pools_left() == before + 1);
    MemoryPool other;
    CHECK(other.release(raw));
    CHECK(pools_left() == before + 1);  // the other one
}

TEST_CASE("memory_pool: a pool that ends before the threads that used it is freed at once") {
    const std::size_t before = pools_left();
    std::atomic<int> step{0};
    auto pool = std::make_unique<MemoryPool>();
    std::thread user([&] {
        for (int i = 0; i < 100; ++i) (void)pool->make<Node>(i);
        step = 1;
        (void)eventually([&] { return step == 2; });
        MemoryPool next;  // likely where the first one was
        const auto handle = next.make<Node>(1);
        CHECK(next.owns(handle.get()));
    });
    CHECK(eventually([&] { return step == 1; }));
    pool.reset();
    CHECK(pools_left() == before);
    step = 2;
    user.join();
    CHECK(pools_left() == before);
}

TEST_CASE("memory_pool: a thread that holds caches of many pools keeps them apart") {
    std::vector<std::unique_ptr<MemoryPool>> pools;
    for (int i = 0; i < 20; ++i) pools.push_back(std::make_unique<MemoryPool>());
    std::vector<void*> blocks;
    for (int round = 0; round < 10; ++round)
        for (const auto& pool : pools) blocks.push_back(pool->allocate(64));
    for (std::size_t i = 0; i < blocks.size(); ++i)
        for (std::size_t k = 0; k < pools.size(); ++k) CHECK(pools[k]->owns(blocks[i]) == (i % pools.size() == k));
    for (void* const block : blocks) CHECK(pools[0]->release(block));
    for (const auto& pool : pools) CHECK(live(*pool) == 0);
    for (auto& pool : pools) pool = std::make_unique<MemoryPool>();
    for (const auto& pool : pools) CHECK(pool->release(pool->allocate(64)));
}

TEST_CASE("memory_pool: blocks are released after their thread has ended and its cache serves the next") {
    MemoryPool pool;
    std::vector<void*> blocks;
    for (int round = 0; round < 20; ++round) {
        std::thread([&] {
            for (int i = 0; i < 100; ++i) blocks.push_back(pool.allocate(200));
        }).join();
        for (void* const block : blocks) CHECK(pool.release(block));
        blocks.clear();
    }
    std::uint64_t misses = 0;
    for (const auto& size_class : pool.stats().classes) misses += size_class.misses;
    CHECK(misses < 100 + 20 + 1);  // the first round, and one look at what came back in each
    CHECK(live(pool) == 0);
}

namespace {
struct UsesPoolAtEnd {
    MemoryPool* pool = nullptr;
    PoolPtr<Node> kept;
    ~UsesPoolAtEnd() {
        if (pool == nullptr) return;
        kept.reset();
        void* const block = pool->allocate(10);
        CHECK_FALSE(pool->owns(block));
        CHECK(pool->release(block));
        pool->trim();
    }
};
}  // namespace

TEST_CASE("memory_pool: a pool can be used in destructors of thread_locals that run after its own") {
    MemoryPool pool;
    std::thread([&] {
        static thread_local UsesPoolAtEnd last;  // constructed before the pool's thread_locals, so destroyed after them
        last.pool = &pool;
        last.kept = pool.make<Node>(1);
    }).join();
    CHECK(Node::alive == 0);
    CHECK(live(pool) == 0);
    CHECK(pool.stats().escaped == 1);
}

// --- PoolAllocator, PoolResource

TEST_CASE("memory_pool: containers live in a pool") {
    MemoryPool pool;
    {
        std::vector<int, PoolAllocator<int>> numbers(pool);
        std::list<std::string, PoolAllocator<std::string>> texts(pool);
        std::map<int, int, std::less<>, PoolAllocator<std::pair<const int, int>>> map(pool);
        std::deque<OverAligned, PoolAllocator<OverAligned>> wide(pool);
        for (int i = 0; i < 10000; ++i) {
            numbers.push_back(i);
            if (i % 10 == 0) texts.push_back(std::to_string(i));
            map[i % 100] += i;
            if (i % 100 == 0) wide.emplace_back(static_cast<std::uint64_t>(i));
        }
        CHECK(numbers[9999] == 9999);
        CHECK(texts.back() == "9990");
        CHECK(map[99] == 504900);
        CHECK(live(pool) > 1000);
        auto moved = std::move(texts);
        CHECK(moved.size() == 1000);
        const auto shared = std::allocate_shared<Node>(PoolAllocator<Node>(pool), 5);
        CHECK(shared->number == 5);
    }
    CHECK(live(pool) == 0);
    CHECK(OverAligned::misaligned == 0);
}

TEST_CASE("memory_pool: allocators are equal when their pool is and go along with a move") {
    MemoryPool a;
    MemoryPool b;
    CHECK(PoolAllocator<int>(a) == PoolAllocator<char>(a));
    CHECK(PoolAllocator<int>(a) != PoolAllocator<int>(b));
    std::vector<int, PoolAllocator<int>> from({1, 2, 3}, a);
    std::vector<int, PoolAllocator<int>> to({4}, b);
    const int* const memory = from.data();
    to = std::move(from);
    CHECK(to.data() == memory);
    CHECK(&to.get_allocator().pool() == &a);
    CHECK_THROWS_AS((void)PoolAllocator<std::uint64_t>(a).allocate(SIZE_MAX / 4), std::bad_array_new_length);
}

TEST_CASE("memory_pool: a memory resource serves containers of pmr and compares by pool") {
    MemoryPool pool;
    MemoryPool other;
    PoolResource resource(pool);
    {
        std::pmr::vector<std::pmr::string> texts(&resource);
        for (int i = 0; i < 1000; ++i)
            texts.emplace_back("a text that is too long to be kept inside the string itself " + std::to_string(i));
        CHECK(texts.back().ends_with("999"));
        CHECK(live(pool) >= 1000);
        void* const aligned = resource.allocate(100, 256);
        CHECK(reinterpret_cast<std::uintptr_t>(aligned) % 256 == 0);
        resource.deallocate(aligned, 100, 256);
        resource.deallocate(resource.allocate(100, 1), 100, 1);
        const volatile std::size_t odd = 3;  // the compiler would see it, too
        CHECK_THROWS_AS((void)resource.allocate(100, odd), std::invalid_argument);
    }
    CHECK(live(pool) == 0);
    CHECK(resource.is_equal(PoolResource(pool)));
    CHECK_FALSE(resource.is_equal(PoolResource(other)));
    CHECK_FALSE(resource.is_equal(*std::pmr::new_delete_resource()));
}
