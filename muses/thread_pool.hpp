// A pool of worker threads with a queue for each, work stealing, futures, and a shutdown that loses nothing.
//
//     muses::ThreadPool pool(4, {.name = "crunch"});
//     std::future<int> sum = pool.submit([](int a, int b) { return a + b; }, 1, 2);
//     pool.post([] { std::puts("nobody waits for me"); });
//     pool.parallel_for(0, 1000, [&](int i) { out[i] = f(i); });
//     pool.wait_empty();
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <ranges>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/detail/block_loop.hpp"
#include "muses/detail/duration.hpp"
#include "muses/detail/pool_core.hpp"
#include "muses/detail/pool_job.hpp"
#include "muses/detail/pool_options.hpp"
#include "muses/detail/pool_task.hpp"
#include "muses/detail/this_thread.hpp"

namespace muses {

namespace detail {
/// An integer that std::in_range takes: a signed or unsigned integer type, not bool or a character type.
template <class T>
concept LoopIndex = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
                    !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

struct ThreadPoolSeam;  // defined by tests only: constructs a pool whose threads are started by a given function
}  // namespace detail

/// What: runs jobs on a fixed number of threads. Each worker has a queue of its own and steals from the others when it has run dry.
/// Complexity: submitting and taking a job are O(1); a callable of up to 48 bytes costs `post` no allocation. Idle workers sleep.
/// Threads: every member may be called from any thread at any time between construction and destruction.
/// Lifetime: the destructor refuses new work, finishes what is queued (and what that submits), and joins. It may run inside one of
///           the pool's own jobs: then the others are joined and that worker is detached; it ends after its job, or, if it is the
///           only one, after what is queued.
/// Limits: kMaxThreads workers; with max_queued set, that many waiting jobs. Jobs of a pool of one thread run in the order of their
///         submission; otherwise no order is promised. A job that waits for the future of another job of the same pool may
///         deadlock, because all workers may be waiting like that; parallel_for inside a job is safe.
class ThreadPool {
public:
    static constexpr std::size_t kMaxThreads = 32768;

    /// Starts `threads` workers; 0 means as many as the calling thread's affinity mask allows. Throws std::invalid_argument for
    /// more than kMaxThreads, and std::system_error when a thread cannot be started (those that were started are joined first).
    explicit ThreadPool(std::size_t threads = 0, ThreadPoolOptions options = {})
        : ThreadPool(StartWith{}, threads, std::move(options),
                     [](auto&& body) { return std::thread(std::forward<decltype(body)>(body)); }) {}

    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    ~ThreadPool() {
        core_->leave();
        join_threads();
    }

    /// Runs `f(args...)` on a worker. `f` and `args` are copied or moved in, and passed on as rvalues; use std::ref for references.
    /// Returns the future of the result, which also carries what `f` throws. The callable and its arguments are destroyed before
    /// the future becomes ready. The future's destructor does not wait.
    /// Throws PoolStopped after stop() (own workers may go on submitting), PoolQueueFull when the queue is full under DropNew,
    /// std::bad_alloc. Waits for room under Block, except on own workers.
    template <class F, class... Args>
        requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
    [[nodiscard]] auto submit(F&& f, Args&&... args) -> std::future<std::invoke_result_t<std::decay_t<F>, std::decay_t<Args>...>> {
        auto [job, future] = make_promise_job(std::forward<F>(f), std::forward<Args>(args)...);
        core_->add(job);
        return std::move(future);
    }

    /// Runs `f(args...)` on a worker; nobody waits for it and the result is thrown away. What it throws goes to
    /// ThreadPoolOptions::on_exception. Throws and waits like submit.
    template <class F, class... Args>
        requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
    void post(F&& f, Args&&... args) {
        using Task = detail::PostTask<std::decay_t<F>, std::decay_t<Args>...>;
        detail::Job job(std::in_place_type<Task>, std::in_place, std::forward<F>(f), std::forward<Args>(args)...);
        core_->add(job);
    }

    /// Submits every callable of a range, at once. They are moved out of a container that is passed as an rvalue, else copied.
    /// Returns the futures in the same order. Throws like submit; then nothing has been queued, and PoolQueueFull means that there
    /// was no room for all of them. Only in a pool bounded with Block or DropOldest the jobs go in one by one: what was queued
    /// before a throw still runs, and a range longer than max_queued may evict its own head.
    template <std::ranges::input_range Range>
        requires std::invocable<std::decay_t<std::ranges::range_reference_t<Range>>>
    [[nodiscard]] auto submit_bulk(Range&& callables) {
        using F = std::decay_t<std::ranges::range_reference_t<Range>>;
        constexpr bool kMayMove =
            !std::is_lvalue_reference_v<Range> && !std::ranges::borrowed_range<Range> && !std::ranges::view<Range>;
        std::vector<std::future<std::invoke_result_t<F>>> futures;
        detail::JobQueue jobs;
        const auto add = [&](auto&& f) {
            auto [job, future] = make_promise_job(std::forward<decltype(f)>(f));
            futures.push_back(std::move(future));
            jobs.push(std::move(job));
        };
        for (auto&& f : callables) {
            if constexpr (kMayMove)
                add(std::move(f));
            else
                add(std::forward<decltype(f)>(f));
        }
        if (jobs.empty()) {
            core_->check_open();
        } else if (core_->adds_one_by_one()) {
            const auto core = core_;  // one of the jobs may destroy the pool before the next is added
            while (!jobs.empty()) {
                detail::Job job = jobs.pop();
                core->add(job);
            }
        } else {
            core_->add_all(jobs);
        }
        return futures;
    }

    /// Calls `f(i)` for each i in [first, last), on the calling thread and on workers that have nothing better to do, and returns
    /// when all calls have ended. `f` is called concurrently and not copied. When a call throws, no further blocks are begun and
    /// the first exception is rethrown after those that had begun have ended. May be called inside a job. Indexes are handed out in
    /// blocks, so neighbours mostly run in order on one thread. The workers that help hold no place in the queue: max_queued and
    /// dropped() have nothing to do with them. Indexes are of the signed and unsigned integer types; not bool or a character type.
    /// Throws PoolStopped after stop() unless the range is empty (own workers excepted), std::invalid_argument for a negative
    /// `first` with an unsigned `last`, std::bad_alloc; then nothing has been called.
    template <detail::LoopIndex First, detail::LoopIndex Last, class F>
        requires std::invocable<F&, std::common_type_t<First, Last>>
    void parallel_for(First first, Last last, F&& f) {
        using Index = std::common_type_t<First, Last>;
        if (!std::in_range<Index>(first) || !std::in_range<Index>(last))
            throw std::invalid_argument("muses::ThreadPool::parallel_for: the index type cannot hold both ends");
        parallel_for_index(static_cast<Index>(first), static_cast<Index>(last), f);
    }

    /// Waits until no job is queued or running, including those that such jobs submit meanwhile. What happened before a job's end
    /// is visible afterwards. Any number of threads may wait. Throws std::logic_error inside one of the pool's own jobs.
    void wait_empty() { (void)core_->wait_empty(detail::kNever); }

    /// The same, for at most `timeout` (negative: 0; more than a year: for ever). Returns whether the pool was empty.
    template <class Rep, class Period>
    [[nodiscard]] bool wait_empty_for(std::chrono::duration<Rep, Period> timeout) {
        return core_->wait_empty(detail::deadline_after(timeout));
    }

    /// The number of workers; constant.
    [[nodiscard]] std::size_t size() const noexcept { return core_->workers(); }

    /// Jobs that wait for a worker; those running are not counted. Old by the time it is returned.
    [[nodiscard]] std::size_t queued_approx() const noexcept { return core_->queued(); }

    /// Jobs that were refused by DropNew, evicted by DropOldest, or discarded by stop_discarding().
    [[nodiscard]] std::uint64_t dropped() const noexcept { return core_->dropped(); }

    /// Exceptions that came out of hooks, which must not throw.
    [[nodiscard]] std::uint64_t hook_errors() const noexcept { return core_->hook_errors(); }

    /// Refuses new work from now on, except from the pool's own workers; what is queued still runs, and what that submits. Returns
    /// at once; wait_empty() or the destructor waits. A second call changes nothing.
    void stop() { core_->stop(); }

    /// Like stop(), but what is queued, and what jobs still running submit, is discarded instead of run: futures end with
    /// JobDiscarded. Running jobs end normally. Returns when the queue is empty, without waiting for running jobs.
    void stop_discarding() { core_->stop_discarding(); }

private:
    friend struct detail::ThreadPoolSeam;
    struct StartWith {};

    template <class StartThread>
    ThreadPool(StartWith, std::size_t threads, ThreadPoolOptions options, StartThread&& start_thread) {
        if (threads > kMaxThreads) throw std::invalid_argument("muses::ThreadPool: more than kMaxThreads threads");
        core_ = std::make_shared<detail::PoolCore>(threads == 0 ? detail::usable_processors() : threads, std::move(options));
        threads_.reserve(core_->workers());
        try {
            for (std::size_t i = 0; i < core_->workers(); ++i)
                threads_.push_back(start_thread([core = core_, i] { detail::PoolCore::work(core, i); }));
        } catch (...) {
            core_->stop();
            join_threads();
            throw;
        }
    }

    void join_threads() {
        for (std::thread& thread : threads_) {
            if (thread.get_id() == std::this_thread::get_id())
                thread.detach();  // it holds the core, and leaves after the job that brought it here
            else
                thread.join();
        }
    }

    template <class F, class... Args>
    static auto make_promise_job(F&& f, Args&&... args) {
        using Task = detail::PromiseTask<std::decay_t<F>, std::decay_t<Args>...>;
        std::promise<typename Task::Result> promise;
        auto future = promise.get_future();
        return std::pair(detail::Job(std::in_place_type<Task>, std::move(promise), std::forward<F>(f), std::forward<Args>(args)...),
                         std::move(future));
    }

    template <class Index, class F>
    void parallel_for_index(Index first, Index last, F& f) {
        if (!(first < last)) return;
        core_->check_open();

        // Unsigned arithmetic wraps, so the distance is right for negative ends too.
        const std::uint64_t count = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
        const std::uint64_t helpers_at_most = core_->workers() - (core_->on_own_worker() ? 1 : 0);
        const std::uint64_t block_size = std::max<std::uint64_t>(1, count / ((helpers_at_most + 1) * kBlocksPerThread));
        const std::uint64_t blocks = count / block_size + (count % block_size != 0 ? 1 : 0);
        const std::uint64_t helpers = std::min(helpers_at_most, blocks - 1);

        struct Range {
            F& f;
            Index first;
            std::uint64_t count;
            std::uint64_t block_size;

            void run(std::uint64_t block) const {
                const std::uint64_t begin = block * block_size;
                const std::uint64_t length = std::min(block_size, count - begin);
                auto index = static_cast<Index>(static_cast<std::uint64_t>(first) + begin);
                for (std::uint64_t i = 0; i < length; ++i) f(static_cast<Index>(static_cast<std::uint64_t>(index) + i));
            }
        };
        Range range{f, first, count, block_size};
        if (helpers == 0) {
            for (std::uint64_t block = 0; block < blocks; ++block) range.run(block);
            return;
        }

        const auto loop = std::make_shared<detail::BlockLoop>(
            blocks, [](void* context, std::uint64_t block) { static_cast<const Range*>(context)->run(block); }, &range);
        const auto core = core_;  // a call of `f` may destroy the pool
        core->run_loop(loop, helpers);
    }

    static constexpr std::uint64_t kBlocksPerThread = 8;  // enough to even out blocks of unequal cost

    std::shared_ptr<detail::PoolCore> core_;
    std::vector<std::thread> threads_;
};

}  // namespace muses
