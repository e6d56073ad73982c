// The filter from its simplest use to its upkeep; shown in docs/bloom_filter.md.

#include "muses/bloom_filter.hpp"

#include <cassert>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

int main() {
    {
        // [simple]
        muses::CountingBloomFilter blocked(100'000, 0.01);  // so many keys, one false alarm in a hundred others
        blocked.insert("203.0.113.7");
        assert(blocked.may_contain("203.0.113.7"));  // always
        if (!blocked.may_contain("198.51.100.1")) std::puts("certainly not blocked");
        blocked.remove("203.0.113.7");
        assert(!blocked.may_contain("203.0.113.7"));
        // [/simple]
    }
    {
        // [once]
        muses::CountingBloomFilter seen(1'000'000, 0.001);
        for (const std::string url : {"/a", "/b", "/a"}) {
            if (seen.try_insert(url)) std::printf("first time: %s\n", url.c_str());
        }
        // [/once]
    }
    {
        // [upkeep]
        muses::CountingBloomFilter here(10'000, 0.01, /*seed=*/42);
        muses::CountingBloomFilter there(10'000, 0.01, /*seed=*/42);
        const std::vector<std::uint64_t> ids{3, 5, 8, 13};
        there.insert_bulk(ids);
        here.merge(there);  // same size, rate and seed: now `here` knows the keys of both
        assert(here.estimated_items() == 4);
        const std::vector<std::byte> image = here.serialize();
        const auto back = muses::CountingBloomFilter::deserialize(image);
        assert(back && back->may_contain(13));
        here.decay();  // forgets what was inserted once, halves the rest
        // [/upkeep]
    }
}
