// Queue beside a deque behind a mutex with a condition variable, and the unbounded queues that people would take instead.
// Names are <case>/<who>; a case is read across.
#include "muses/queue.hpp"

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "waiting_queues.hpp"

#ifdef MUSES_BENCH_HAS_TBB
#include <tbb/concurrent_queue.h>
#endif

namespace {

using namespace muses::bench;

// ---- one face for all: push; try_pop and wait_pop that say whether there was an element --------------------------------------

struct Muses {
    muses::Queue<std::uint64_t> queue;
    void push(std::uint64_t v) { queue.push(v); }
    bool try_pop(std::uint64_t& v) { return take(queue.try_pop(), v); }
    bool wait_pop(std::uint64_t& v) { return take(queue.pop(), v); }

private:
    static bool take(std::optional<std::uint64_t> got, std::uint64_t& v) {
        if (got) v = *got;
        return got.has_value();
    }
};

#ifdef MUSES_BENCH_HAS_TBB
struct Tbb {  // the one that can wait
    tbb::concurrent_bounded_queue<std::uint64_t> queue;
    void push(std::uint64_t v) { queue.push(v); }
    bool try_pop(std::uint64_t& v) { return queue.try_pop(v); }
    bool wait_pop(std::uint64_t& v) {
        queue.pop(v);
        return true;
    }
};
#endif

// ---- cases -------------------------------------------------------------------------------------------------------------------

/// One thread, one push and one pop.
template <class Q>
void pair(benchmark::State& state) {
    Q queue;
    std::uint64_t v = 0;
    for (auto _ : state) {
        queue.push(v);
        benchmark::DoNotOptimize(queue.try_pop(v));
    }
}

/// Producers and consumers as many, each with a thread; consumers wait. Time is per element.
template <class Q>
void through(benchmark::State& state) {
    const auto threads = static_cast<std::size_t>(state.range(0));
    constexpr std::uint64_t kItems = 1'000'000;
    constexpr std::uint64_t kEnd = UINT64_MAX;
    for (auto _ : state) {
        Q queue;
        std::atomic<std::size_t> ready{0};
        std::vector<std::thread> producers;
        std::vector<std::thread> consumers;
        const auto arrive = [&] {
            ready.fetch_add(1);
            while (ready.load() < 2 * threads + 1) std::this_thread::yield();
        };
        for (std::size_t i = 0; i < threads; ++i) {
            producers.emplace_back([&] {
                arrive();
                for (std::uint64_t n = 0; n < kItems / threads; ++n) queue.push(n);
            });
            consumers.emplace_back([&] {
                arrive();
                for (std::uint64_t v = 0; v != kEnd;) (void)queue.wait_pop(v);
            });
        }
        while (ready.load() < 2 * threads) std::this_thread::yield();
        const auto begin = std::chrono::steady_clock::now();
        ready.fetch_add(1);
        for (std::thread& t : producers) t.join();
        for (std::size_t i = 0; i < threads; ++i) queue.push(kEnd);
        for (std::thread& t : consumers) t.join();
        state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(kItems) * state.iterations());
}

template <class Q>
void add(const std::string& who) {
    benchmark::RegisterBenchmark(("pair/" + who).c_str(), pair<Q>);
    benchmark::RegisterBenchmark(("through/" + who).c_str(), through<Q>)
        ->Arg(1)
        ->Arg(2)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("round_trip/" + who).c_str(), round_trip<Q>)->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
    std::thread([] {}).join();  // from here on the C library takes its locks in earnest, whichever case comes first
    add<Muses>("muses");
#ifdef MUSES_BENCH_HAS_MOODYCAMEL
    add<WaitingMoodycamel>("moodycamel");
#endif
#ifdef MUSES_BENCH_HAS_TBB
    add<Tbb>("tbb");
#endif
    add<MutexCondvar>("mutex_condvar");
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
