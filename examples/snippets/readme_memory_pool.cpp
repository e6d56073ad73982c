// Objects with a count of holders from a pool, used up on another thread after the pool has gone.
#include <array>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "muses/memory_pool.hpp"

struct Packet {
    int number;
    std::array<char, 500> bytes{};
};

int main() {
    // [main]
    std::vector<muses::PoolPtr<Packet>> packets;
    {
        muses::MemoryPool pool;
        for (int i = 0; i < 1000; ++i) packets.push_back(pool.make<Packet>(i));
    }  // the pool object may go first

    std::thread consumer([packets = std::move(packets)]() mutable {
        const auto last = packets.back();
        packets.clear();  // whoever lets go last destroys, on whatever thread
        std::printf("packet %d, %zu holder\n", last->number, last.use_count());
    });
    consumer.join();
    // [/main]
}
