// CountingBloomFilter beside the textbook's: seven counters of four bits anywhere, for a million keys at one percent.
// Names are <case>/<who>; a case is read across.
#include "muses/bloom_filter.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace {

constexpr std::uint64_t kItems = 1'000'000;
constexpr double kRate = 0.01;

struct Muses {
    muses::CountingBloomFilter filter{kItems, kRate};
    void insert(std::uint64_t key) { filter.insert(key); }
    [[nodiscard]] bool may_contain(std::uint64_t key) const { return filter.may_contain(key); }
};

/// 9.6 counters for each key, seven hashes by double hashing. Not for several threads.
struct Textbook {
    static constexpr std::size_t kCounters = 9'585'059;
    std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kCounters / 2 + 1);

    template <class F>
    static bool each(std::uint64_t key, F f) {
        std::uint64_t at = mixed(key);
        const std::uint64_t step = mixed(at) | 1U;
        for (int i = 0; i < 7; ++i, at += step)
            if (!f(at % kCounters)) return false;
        return true;
    }
    void insert(std::uint64_t key) {
        each(key, [&](std::size_t at) {
            const unsigned shift = at % 2 * 4;
            std::uint8_t& byte = bytes[at / 2];
            if (((byte >> shift) & 15U) != 15U) byte = static_cast<std::uint8_t>(byte + (1U << shift));
            return true;
        });
    }
    [[nodiscard]] bool may_contain(std::uint64_t key) const {
        return each(key, [&](std::size_t at) { return ((bytes[at / 2] >> (at % 2 * 4)) & 15U) != 0; });
    }

private:
    static std::uint64_t mixed(std::uint64_t x) {
        x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
        x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
        return x ^ (x >> 31U);
    }
};

struct LockedTextbook {
    mutable std::mutex mutex;
    Textbook filter;
    void insert(std::uint64_t key) {
        const std::lock_guard lock(mutex);
        filter.insert(key);
    }
    [[nodiscard]] bool may_contain(std::uint64_t key) const {
        const std::lock_guard lock(mutex);
        return filter.may_contain(key);
    }
};

struct Set {
    std::unordered_set<std::uint64_t> set;
    void insert(std::uint64_t key) { set.insert(key); }
    [[nodiscard]] bool may_contain(std::uint64_t key) const { return set.contains(key); }
};

template <class Filter>
Filter& full() {
    static Filter* const filter = [] {
        auto* const made = new Filter;
        for (std::uint64_t key = 0; key < kItems; ++key) made->insert(key);
        return made;
    }();
    return *filter;
}

template <class Filter>
void lookup(benchmark::State& state, std::uint64_t first) {
    const Filter& filter = full<Filter>();
    std::uint64_t found = 0;
    std::uint64_t key = 0;
    for (auto _ : state) {
        found += filter.may_contain(first + key) ? 1 : 0;
        key = key + 1 == kItems ? 0 : key + 1;
    }
    benchmark::DoNotOptimize(found);
}

/// Of keys that are there already: the counters' lines are those of a full filter, and nothing grows.
template <class Filter>
void insert(benchmark::State& state) {
    Filter& filter = full<Filter>();
    std::uint64_t key = 0;
    for (auto _ : state) {
        filter.insert(key);
        key = key + 1 == kItems ? 0 : key + 1;
    }
}

/// Two threads, of whose operations every second one is an insertion.
template <class Filter>
void mixed(benchmark::State& state) {
    Filter& filter = full<Filter>();
    std::uint64_t found = 0;
    std::uint64_t key = static_cast<std::uint64_t>(state.thread_index()) * (kItems / 2);
    for (auto _ : state) {
        if (key % 2 == 0)
            filter.insert(key);
        else
            found += filter.may_contain(key) ? 1 : 0;
        key = key + 1 == kItems ? 0 : key + 1;
    }
    benchmark::DoNotOptimize(found);
    state.SetItemsProcessed(state.iterations());
}

void bulk(benchmark::State& state) {
    const muses::CountingBloomFilter& filter = full<Muses>().filter;
    std::array<std::uint64_t, 1000> keys{};
    std::array<bool, 1000> answers{};
    std::uint64_t next = 0;
    for (auto _ : state) {
        for (std::uint64_t& key : keys) key = next++ % (2 * kItems);
        benchmark::DoNotOptimize(filter.may_contain_bulk(keys, answers.begin()));
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(keys.size()));
}

template <class Filter>
void add(const std::string& who) {
    benchmark::RegisterBenchmark(("found/" + who).c_str(), lookup<Filter>, std::uint64_t{0});
    benchmark::RegisterBenchmark(("absent/" + who).c_str(), lookup<Filter>, std::uint64_t{1} << 40U);
    benchmark::RegisterBenchmark(("insert/" + who).c_str(), insert<Filter>);
}

}  // namespace

int main(int argc, char** argv) {
    std::thread([] {}).join();  // atomic exchanges from the beginning, whichever case comes first
    add<Muses>("muses");
    add<Textbook>("textbook");
    add<Set>("unordered_set");
    benchmark::RegisterBenchmark("bulk/muses", bulk);
    benchmark::RegisterBenchmark("two_threads/muses", mixed<Muses>)->Threads(2)->UseRealTime();
    benchmark::RegisterBenchmark("two_threads/locked_textbook", mixed<LockedTextbook>)->Threads(2)->UseRealTime();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
