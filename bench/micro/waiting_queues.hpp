// What the benchmarks of both queues compare waiting consumers with. One face for all: push(), and try_pop() and wait_pop(), which say
// whether there was an element.
#pragma once

#include <benchmark/benchmark.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#ifdef MUSES_BENCH_HAS_MOODYCAMEL
#include <concurrentqueue/moodycamel/blockingconcurrentqueue.h>
#endif

namespace muses::bench {

#ifdef MUSES_BENCH_HAS_MOODYCAMEL
struct WaitingMoodycamel {  // keeps no common order of its producers
    moodycamel::BlockingConcurrentQueue<std::uint64_t> queue;
    void push(std::uint64_t v) { queue.enqueue(v); }
    bool try_pop(std::uint64_t& v) { return queue.try_dequeue(v); }
    bool wait_pop(std::uint64_t& v) {
        queue.wait_dequeue(v);
        return true;
    }
};
#endif

struct MutexCondvar {
    std::mutex mutex;
    std::condition_variable filled;
    std::deque<std::uint64_t> queue;
    void push(std::uint64_t v) {
        {
            const std::lock_guard lock(mutex);
            queue.push_back(v);
        }
        filled.notify_one();
    }
    bool try_pop(std::uint64_t& v) {
        const std::lock_guard lock(mutex);
        return take(v);
    }
    bool wait_pop(std::uint64_t& v) {
        std::unique_lock lock(mutex);
        filled.wait(lock, [this] { return !queue.empty(); });
        return take(v);
    }

private:
    bool take(std::uint64_t& v) {
        if (queue.empty()) return false;
        v = queue.front();
        queue.pop_front();
        return true;
    }
};

/// Two threads that sleep until the other one's word comes: the time of there and back.
template <class Q>
void round_trip(benchmark::State& state) {
    Q there;
    Q back;
    std::thread echo([&] {
        for (std::uint64_t v = 1; v != 0;) {
            (void)there.wait_pop(v);
            back.push(v);
        }
    });
    std::uint64_t v = 0;
    for (auto _ : state) {
        there.push(1);
        benchmark::DoNotOptimize(back.wait_pop(v));
    }
    there.push(0);
    benchmark::DoNotOptimize(back.wait_pop(v));
    echo.join();
}

}  // namespace muses::bench
