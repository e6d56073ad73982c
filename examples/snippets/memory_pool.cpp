// Blocks, handles, buffers and containers on a memory pool; shown in docs/memory_pool.md.

#include "muses/memory_pool.hpp"

#include <cassert>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory_resource>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
struct Order {
    int id;
    double price;
};
}  // namespace

int main() {
    {
        // [blocks]
        muses::MemoryPool pool;
        void* block = pool.allocate(300);                  // one holder
        void* page = pool.allocate(100, 512);              // at a multiple of 512
        pool.retain(block);                                // two
        assert(!pool.release(block));                      // one is left
        std::thread([&] { pool.release(block); }).join();  // the last one frees it, on whatever thread
        pool.release(page);
        // [/blocks]
    }
    {
        // [handles]
        muses::PoolPtr<Order> kept;
        {
            muses::MemoryPool pool;
            muses::PoolPtr<Order> order = pool.make<Order>(7, 12.5);  // throws what the constructor throws, and keeps nothing then
            kept = order;
            assert(order.use_count() == 2 && order->id == 7);
        }
        assert(kept->price == 12.5);  // the pool object is gone; its memory goes with the last block
        // [/handles]
    }
    {
        // [buffer]
        muses::MemoryPool pool;
        muses::PooledBuffer in(pool, 1 << 20);  // never more than 1 MiB of unread bytes
        const auto room = in.prepare(4096);     // where read(2) may write
        std::memcpy(room.data(), "GET /index.html\r\n", 17);
        in.commit(17);

        muses::PooledSlice path = in.slice(4, 11);  // nothing is copied
        in.consume(17);
        in.clear();  // for the next request; the block stays with the slice
        in.append("GET /other.html\r\n");
        assert(path.text() == "/index.html");
        // [/buffer]
    }
    {
        // [containers]
        muses::MemoryPool pool;
        std::vector<int, muses::PoolAllocator<int>> numbers({1, 2, 3}, pool);

        muses::PoolResource resource(pool);
        std::pmr::vector<std::pmr::string> names(&resource);
        names.emplace_back("strings and vector alike come from the pool");
        // [/containers]
        assert(numbers.size() == 3 && names.size() == 1);
    }
    {
        // [misuse]
        int reports = 0;
        muses::MemoryPool pool({.on_misuse = [&](muses::PoolMisuse what, const void* block) {
            std::printf("%s: %p\n", muses::to_string(what), block);
            ++reports;
        }});
        void* block = pool.allocate(100);
        pool.release(block);
        pool.release(block);     // reported, and nothing is done
        pool.release(&reports);  // also reported; what is before it is not even read
        assert(reports == 2 && pool.stats().misuses == 2);
        // [/misuse]
    }
    {
        // [limits]
        muses::MemoryPool pool({.initial_bytes = 1 << 20, .max_bytes = 64 << 20});
        pool.reserve(8 << 20);  // page faults and system calls now rather than later
        void* large = pool.allocate(1'000'000);
        assert(!pool.owns(large));  // ESCAPED: from operator new, and released like any other
        pool.release(large);
        for (const auto& size : pool.stats().classes)
            if (size.misses != 0)
                std::printf("%zu bytes: %llu out\n", size.block_bytes, static_cast<unsigned long long>(size.live));
        pool.trim();  // what is not in use goes back to the system
        // [/limits]
    }
}
