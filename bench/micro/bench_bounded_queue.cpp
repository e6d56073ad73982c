// BoundedQueue beside the bounded and unbounded queues that people would take instead. Names are <case>/<who>; a case is read across.
#include "muses/bounded_queue.hpp"

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "waiting_queues.hpp"

#ifdef MUSES_BENCH_HAS_MOODYCAMEL
#include <concurrentqueue/moodycamel/concurrentqueue.h>
#endif
#ifdef MUSES_BENCH_HAS_BOOST
#include <boost/lockfree/queue.hpp>
#endif
#ifdef MUSES_BENCH_HAS_TBB
#include <tbb/concurrent_queue.h>
#endif

namespace {

using namespace muses::bench;

constexpr std::size_t kCapacity = 1024;

// ---- one face for all: a Producer and a Consumer each, made by the thread that uses it ---------------------------------------

struct Muses {
    muses::BoundedQueue<std::uint64_t> queue{kCapacity};
    struct Producer {
        Muses& q;
        bool push(std::uint64_t v) { return q.queue.try_push(std::move(v)); }
    };
    struct Consumer {
        Muses& q;
        bool pop(std::uint64_t& v) {
            auto got = q.queue.try_pop();
            if (!got) return false;
            v = *got;
            return true;
        }
    };
};

#ifdef MUSES_BENCH_HAS_MOODYCAMEL
struct Moodycamel {
    moodycamel::ConcurrentQueue<std::uint64_t> queue{kCapacity};
    struct Producer {
        Moodycamel& q;
        moodycamel::ProducerToken token{q.queue};
        bool push(std::uint64_t v) { return q.queue.enqueue(token, v); }  // it keeps no bound: the producer may run ahead
    };
    struct Consumer {
        Moodycamel& q;
        moodycamel::ConsumerToken token{q.queue};
        bool pop(std::uint64_t& v) { return q.queue.try_dequeue(token, v); }
    };
};
#endif

#ifdef MUSES_BENCH_HAS_BOOST
struct Boost {
    boost::lockfree::queue<std::uint64_t, boost::lockfree::capacity<kCapacity>> queue;
    struct Producer {
        Boost& q;
        bool push(std::uint64_t v) { return q.queue.push(v); }
    };
    struct Consumer {
        Boost& q;
        bool pop(std::uint64_t& v) { return q.queue.pop(v); }
    };
};
#endif

#ifdef MUSES_BENCH_HAS_TBB
struct Tbb {
    tbb::concurrent_bounded_queue<std::uint64_t> queue;
    Tbb() { queue.set_capacity(kCapacity); }
    struct Producer {
        Tbb& q;
        bool push(std::uint64_t v) { return q.queue.try_push(v); }
    };
    struct Consumer {
        Tbb& q;
        bool pop(std::uint64_t& v) { return q.queue.try_pop(v); }
    };
};
#endif

struct MutexDeque {
    std::mutex mutex;
    std::deque<std::uint64_t> queue;
    struct Producer {
        MutexDeque& q;
        bool push(std::uint64_t v) {
            const std::lock_guard lock(q.mutex);
            if (q.queue.size() == kCapacity) return false;
            q.queue.push_back(v);
            return true;
        }
    };
    struct Consumer {
        MutexDeque& q;
        bool pop(std::uint64_t& v) {
            const std::lock_guard lock(q.mutex);
            if (q.queue.empty()) return false;
            v = q.queue.front();
            q.queue.pop_front();
            return true;
        }
    };
};

// ---- cases -------------------------------------------------------------------------------------------------------------------

/// One thread, one push and one pop.
template <class Q>
void pair(benchmark::State& state) {
    Q queue;
    typename Q::Producer producer{queue};
    typename Q::Consumer consumer{queue};
    std::uint64_t v = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(producer.push(v));
        benchmark::DoNotOptimize(consumer.pop(v));
    }
}

/// Producers and consumers as many, each with a thread; time is per element. Who meets a full or empty queue yields.
template <class Q>
void through(benchmark::State& state) {
    const auto threads = static_cast<std::size_t>(state.range(0));
    constexpr std::uint64_t kItems = 1'000'000;
    for (auto _ : state) {
        Q queue;
        std::atomic<std::size_t> ready{0};
        std::atomic<std::uint64_t> taken{0};
        std::vector<std::thread> all;
        const auto arrive = [&] {
            ready.fetch_add(1);
            while (ready.load() < 2 * threads + 1) std::this_thread::yield();
        };
        for (std::size_t i = 0; i < threads; ++i) {
            all.emplace_back([&] {
                typename Q::Producer producer{queue};
                arrive();
                for (std::uint64_t n = 0; n < kItems / threads; ++n)
                    while (!producer.push(n)) std::this_thread::yield();
            });
            all.emplace_back([&] {
                typename Q::Consumer consumer{queue};
                arrive();
                std::uint64_t v = 0;
                std::uint64_t mine = 0;
                for (;;) {
                    if (consumer.pop(v)) {
                        if (++mine == 1000) taken.fetch_add(std::exchange(mine, 0));
                    } else {
                        taken.fetch_add(std::exchange(mine, 0));
                        if (taken.load() >= kItems / threads * threads) return;
                        std::this_thread::yield();
                    }
                }
            });
        }
        while (ready.load() < 2 * threads) std::this_thread::yield();
        const auto begin = std::chrono::steady_clock::now();
        ready.fetch_add(1);
        for (std::thread& t : all) t.join();
        state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    state.SetItemsProcessed(static_cast<std::int64_t>(kItems) * state.iterations());
}

struct MusesBlocking {
    muses::BoundedQueue<std::uint64_t> queue{kCapacity};
    void push(std::uint64_t v) { queue.push(v); }
    bool wait_pop(std::uint64_t& v) {
        v = *queue.wait_pop();
        return true;
    }
};

template <class Q>
void add(const std::string& who) {
    benchmark::RegisterBenchmark(("pair/" + who).c_str(), pair<Q>);
    benchmark::RegisterBenchmark(("through/" + who).c_str(), through<Q>)
        ->Arg(1)
        ->Arg(2)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
    add<Muses>("muses");
#ifdef MUSES_BENCH_HAS_MOODYCAMEL
    add<Moodycamel>("moodycamel");
#endif
#ifdef MUSES_BENCH_HAS_BOOST
    add<Boost>("boost");
#endif
#ifdef MUSES_BENCH_HAS_TBB
    add<Tbb>("tbb");
#endif
    add<MutexDeque>("mutex_deque");
    benchmark::RegisterBenchmark("round_trip/muses", round_trip<MusesBlocking>)->UseRealTime();
#ifdef MUSES_BENCH_HAS_MOODYCAMEL
    benchmark::RegisterBenchmark("round_trip/moodycamel", round_trip<WaitingMoodycamel>)->UseRealTime();
#endif
    benchmark::RegisterBenchmark("round_trip/mutex_condvar", round_trip<MutexCondvar>)->UseRealTime();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
