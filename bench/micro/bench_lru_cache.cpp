// LruCache and ShardedLruCache beside what most people write: a list, an unordered_map and a mutex. Names are <case>/<who>.
#include "muses/lru_cache.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kEntries = 100'000;
constexpr std::size_t kUniverse = 1'000'000;  // ten keys for each place
constexpr std::size_t kRequests = 1 << 20;

/// Keys by Zipf's law with exponent 0.99, by inversion of the sums; the same in each run. They lie in memory in the order in which they
/// are asked for, so that reading them costs little: what is measured is the cache.
template <class Key>
const std::vector<Key>& requests() {
    static const std::vector<Key> keys = [] {
        std::vector<double> sums(kUniverse);
        double sum = 0;
        for (std::size_t i = 0; i < kUniverse; ++i) sums[i] = sum += 1 / std::pow(static_cast<double>(i + 1), 0.99);
        std::mt19937_64 random(42);
        std::uniform_real_distribution<double> uniform(0, sum);
        std::vector<Key> result(kRequests);
        for (Key& key : result) {
            const auto rank =
                static_cast<std::uint64_t>(std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin());
            const std::uint64_t scattered = rank * 0x9E3779B97F4A7C15U;  // popular keys are no neighbours
            if constexpr (std::is_same_v<Key, std::string>)
                key = "key" + std::to_string(scattered % 999'999'999'989U);
            else
                key = scattered;
        }
        return result;
    }();
    return keys;
}

template <class Key>
struct Baseline {
    using List = std::list<std::pair<Key, std::uint64_t>>;
    std::mutex mutex;
    List list;
    std::unordered_map<Key, typename List::iterator> map;

    explicit Baseline(std::size_t) {}
    std::optional<std::uint64_t> get(const Key& key) {
        const std::lock_guard lock(mutex);
        const auto found = map.find(key);
        if (found == map.end()) return std::nullopt;
        list.splice(list.begin(), list, found->second);
        return found->second->second;
    }
    void put(const Key& key, std::uint64_t value) {
        const std::lock_guard lock(mutex);
        if (const auto found = map.find(key); found != map.end()) {
            found->second->second = value;
            list.splice(list.begin(), list, found->second);
            return;
        }
        if (map.size() == kEntries) {
            map.erase(list.back().first);
            list.pop_back();
        }
        list.emplace_front(key, value);
        map.emplace(key, list.begin());
    }
};

/// Nine gets and one put in ten, keys by Zipf's law; the threads start at different places of the sequence.
template <class Cache, class Key>
void mixed(benchmark::State& state) {
    static Cache* cache;
    const auto& sequence = requests<Key>();
    if (state.thread_index() == 0) {
        cache = new Cache(kEntries);
        for (const Key& key : sequence) cache->put(key, 1);
    }
    std::size_t at = static_cast<std::size_t>(state.thread_index()) * (kRequests / 3);
    std::uint64_t hits = 0;
    for (auto _ : state) {
        const Key& key = sequence[at++ % kRequests];
        if (at % 10 == 0)
            cache->put(key, at);
        else
            hits += cache->get(key).has_value() ? 1 : 0;
    }
    benchmark::DoNotOptimize(hits);
    state.SetItemsProcessed(state.iterations());
    if (state.thread_index() == 0) delete cache;
}

template <class Cache, class Key>
void add(const char* what, const std::string& who, bool threads) {
    const std::string name = std::string(what) + "/" + who;
    auto* const benchmark = benchmark::RegisterBenchmark(name.c_str(), mixed<Cache, Key>);
    if (threads)
        benchmark->Threads(2)->UseRealTime();
    else
        benchmark->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
    using std::string;
    add<muses::LruCache<string, std::uint64_t>, string>("strings", "muses", false);
    add<Baseline<string>, string>("strings", "list_map_mutex", false);
    add<muses::LruCache<std::uint64_t, std::uint64_t>, std::uint64_t>("integers", "muses", false);
    add<Baseline<std::uint64_t>, std::uint64_t>("integers", "list_map_mutex", false);
    add<muses::ShardedLruCache<string, std::uint64_t>, string>("two_threads", "muses", true);
    add<Baseline<string>, string>("two_threads", "list_map_mutex", true);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
