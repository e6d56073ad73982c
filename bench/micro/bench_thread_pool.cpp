// ThreadPool beside a pool of one deque and one mutex, and TBB. Names are <case>/<who>; a case is read across.
#include "muses/thread_pool.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef MUSES_BENCH_HAS_TBB
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#endif

namespace {

// ---- one face for all ----------------------------------------------------------------------------------------------------------

struct Muses {
    muses::ThreadPool pool;
    explicit Muses(std::size_t threads) : pool(threads) {}
    template <class F>
    void post(F&& f) {
        pool.post(std::forward<F>(f));
    }
    template <class F>
    auto submit(F&& f) {
        return pool.submit(std::forward<F>(f));
    }
    void wait() { pool.wait_empty(); }
    template <class F>
    void loop(std::size_t n, const F& f) {
        pool.parallel_for(std::size_t{0}, n, f);
    }
};

/// A future for who has only a post(): the callable is copied around, so the task is shared.
template <class Pool, class F>
auto submit_by_post(Pool& pool, F f) {
    auto task = std::make_shared<std::packaged_task<std::invoke_result_t<F>()>>(std::move(f));
    auto future = task->get_future();
    pool.post([task] { (*task)(); });
    return future;
}

/// What most people write themselves.
struct MutexDeque {
    std::mutex mutex;
    std::condition_variable filled;
    std::condition_variable empty;
    std::deque<std::function<void()>> jobs;
    std::size_t open = 0;
    bool stopping = false;
    std::vector<std::thread> threads;

    explicit MutexDeque(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    }
    ~MutexDeque() {
        {
            const std::lock_guard lock(mutex);
            stopping = true;
        }
        filled.notify_all();
        for (std::thread& t : threads) t.join();
    }
    void work() {
        std::unique_lock lock(mutex);
        for (;;) {
            filled.wait(lock, [this] { return stopping || !jobs.empty(); });
            if (jobs.empty()) return;
            std::function<void()> job = std::move(jobs.front());
            jobs.pop_front();
            lock.unlock();
            job();
            lock.lock();
            if (--open == 0) empty.notify_all();
        }
    }
    template <class F>
    void post(F&& f) {
        {
            const std::lock_guard lock(mutex);
            jobs.emplace_back(std::forward<F>(f));
            ++open;
        }
        filled.notify_one();
    }
    template <class F>
    auto submit(F f) {
        return submit_by_post(*this, std::move(f));
    }
    void wait() {
        std::unique_lock lock(mutex);
        empty.wait(lock, [this] { return open == 0; });
    }
    template <class F>
    void loop(std::size_t n, const F& f) {
        const std::size_t block = (n + threads.size() - 1) / threads.size();
        for (std::size_t first = 0; first < n; first += block) {
            post([first, last = std::min(n, first + block), &f] {
                for (std::size_t i = first; i < last; ++i) f(i);
            });
        }
        wait();
    }
};

#ifdef MUSES_BENCH_HAS_TBB
struct Tbb {
    tbb::global_control control;
    tbb::task_arena arena;
    tbb::task_group group;
    explicit Tbb(std::size_t threads)
        // The thread that waits works as well, in TBB: with it, there are as many as elsewhere.
        : control(tbb::global_control::max_allowed_parallelism, threads + 1), arena(static_cast<int>(threads) + 1) {}
    ~Tbb() { wait(); }
    template <class F>
    void post(F&& f) {
        arena.execute([&] { group.run(std::forward<F>(f)); });
    }
    template <class F>
    auto submit(F f) {
        return submit_by_post(*this, std::move(f));
    }
    void wait() {
        arena.execute([&] { group.wait(); });
    }
    template <class F>
    void loop(std::size_t n, const F& f) {
        arena.execute([&] {
            tbb::parallel_for(tbb::blocked_range<std::size_t>(0, n), [&](const tbb::blocked_range<std::size_t>& range) {
                for (std::size_t i = range.begin(); i != range.end(); ++i) f(i);
            });
        });
    }
};
#endif

// ---- cases ---------------------------------------------------------------------------------------------------------------------

constexpr std::size_t kJobs = 100'000;

/// Jobs that do next to nothing, posted by one thread; time from the first post to the end of the last job, per job.
template <class P, class Capture>
void posts(benchmark::State& state) {
    P pool(static_cast<std::size_t>(state.range(0)));
    std::atomic<std::uint64_t> sink{0};
    for (auto _ : state) {
        for (std::size_t i = 0; i < kJobs; ++i) {
            pool.post([&sink, capture = Capture{}] {
                if (capture.back() != 0) sink.fetch_add(1, std::memory_order_relaxed);
            });
        }
        pool.wait();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kJobs));
}

/// Jobs that post jobs: a thousand of a hundred each.
template <class P>
void nested(benchmark::State& state) {
    P pool(static_cast<std::size_t>(state.range(0)));
    for (auto _ : state) {
        for (std::size_t i = 0; i < kJobs / 100; ++i) {
            pool.post([&pool] {
                for (std::size_t n = 0; n < 99; ++n) pool.post([] {});
            });
        }
        pool.wait();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kJobs));
}

/// Jobs with a future each, all of which are waited for.
template <class P>
void submits(benchmark::State& state) {
    P pool(static_cast<std::size_t>(state.range(0)));
    std::vector<std::future<int>> futures;
    for (auto _ : state) {
        futures.clear();
        for (int i = 0; i < static_cast<int>(kJobs); ++i) futures.push_back(pool.submit([i] { return i; }));
        for (auto& future : futures) benchmark::DoNotOptimize(future.get());
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kJobs));
}

/// One job, and wait for its future.
template <class P>
void round_trip(benchmark::State& state) {
    P pool(2);
    for (auto _ : state) benchmark::DoNotOptimize(pool.submit([] { return 1; }).get());
}

template <class P>
void loop(benchmark::State& state) {
    P pool(2);
    const auto n = static_cast<std::size_t>(state.range(0));
    std::vector<float> out(n);
    for (auto _ : state) pool.loop(n, [&](std::size_t i) { out[i] = out[i] * 0.5F + 1.0F; });
    benchmark::DoNotOptimize(out.data());
}

template <class P>
void add(const std::string& who) {
    const auto name = [&](const char* what) { return std::string(what) + "/" + who; };
    using Small = std::array<std::uint8_t, 1>;
    using Large = std::array<std::uint8_t, 40>;  // with the reference: 48 bytes
    benchmark::RegisterBenchmark(name("post").c_str(), posts<P, Small>)->Arg(2)->Arg(4)->UseRealTime();
    benchmark::RegisterBenchmark(name("post_48_bytes").c_str(), posts<P, Large>)->Arg(2)->Arg(4)->UseRealTime();
    benchmark::RegisterBenchmark(name("nested").c_str(), nested<P>)->Arg(2)->Arg(4)->UseRealTime();
    benchmark::RegisterBenchmark(name("submit").c_str(), submits<P>)->Arg(2)->UseRealTime();
    benchmark::RegisterBenchmark(name("round_trip").c_str(), round_trip<P>)->UseRealTime();
    benchmark::RegisterBenchmark(name("parallel_for").c_str(), loop<P>)->Arg(1'000)->Arg(10'000'000)->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
    add<Muses>("muses");
    add<MutexDeque>("mutex_deque");
#ifdef MUSES_BENCH_HAS_TBB
    add<Tbb>("tbb");
#endif
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
