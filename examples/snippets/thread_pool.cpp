// The thread pool from its simplest use to its options; shown in docs/thread_pool.md.

#include "muses/thread_pool.hpp"

#include <atomic>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <stdexcept>
#include <utility>
#include <vector>

int main() {
    {
        // [simple]
        muses::ThreadPool pool;  // as many workers as this thread may use processors
        std::future<int> sum = pool.submit([](int a, int b) { return a + b; }, 1, 2);
        assert(sum.get() == 3);

        std::atomic<int> done = 0;
        for (int i = 0; i < 100; ++i) pool.post([&done] { ++done; });  // nobody waits for one of these ...
        pool.wait_empty();                                             // ... but for all of them
        assert(done == 100);
        // [/simple]
    }
    {
        // [parallel]
        muses::ThreadPool pool(4);
        std::vector<double> values(10'000);
        pool.parallel_for(std::size_t{0}, values.size(), [&](std::size_t i) { values[i] = static_cast<double>(i) / 2; });
        assert(values[9'999] == 4'999.5);

        std::vector<std::function<int()>> jobs;
        for (int i = 0; i < 10; ++i) jobs.emplace_back([i] { return i * i; });
        int total = 0;
        for (std::future<int>& square : pool.submit_bulk(std::move(jobs))) total += square.get();
        assert(total == 285);
        // [/parallel]
    }
    {
        // [options]
        using namespace std::chrono_literals;
        std::atomic<int> failures = 0;
        muses::ThreadPool pool(2, {.name = "mailer",
                                   .max_queued = 1000,
                                   .overflow = muses::OverflowPolicy::Block,
                                   .on_exception = [&failures](const std::exception_ptr&) { ++failures; }});
        pool.post([] { throw std::runtime_error("no such mailbox"); });
        pool.stop();  // no new work; what is queued still runs
        try {
            pool.post([] {});
            assert(false);
        } catch (const muses::PoolStopped&) {}
        if (!pool.wait_empty_for(10s)) pool.stop_discarding();  // enough: what is still queued ends with JobDiscarded
        assert(failures == 1);
        // [/options]
    }
}
