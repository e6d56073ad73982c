#include "muses/thread_pool.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/failing_new.hpp"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#endif

// The seam declared by thread_pool.hpp: a pool whose threads are started by a function of the test.
struct muses::detail::ThreadPoolSeam {
    template <class StartThread>
    static std::unique_ptr<ThreadPool> make(std::size_t threads, ThreadPoolOptions options, StartThread start_thread) {
        return std::unique_ptr<ThreadPool>(new ThreadPool(ThreadPool::StartWith{}, threads, std::move(options), start_thread));
    }
};

namespace {

using namespace std::chrono_literals;
using muses::OverflowPolicy;
using muses::ThreadPool;
using muses::ThreadPoolOptions;
using muses::test::eventually;
using muses::test::stress_rounds;

// Closed until opened, for any number of threads.
class Gate {
public:
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        opened_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        opened_.wait(lock, [this] { return open_; });
    }

private:
    std::mutex mutex_;
    std::condition_variable opened_;
    bool open_ = false;
};

// Lets go of its threads when `count` of them have come.
class Rendezvous {
public:
    explicit Rendezvous(int count) : missing_(count) {}
    void arrive() {
        std::unique_lock lock(mutex_);
        if (--missing_ == 0) complete_.notify_all();
        complete_.wait(lock, [this] { return missing_ <= 0; });
    }

private:
    std::mutex mutex_;
    std::condition_variable complete_;
    int missing_;
};

// Keeps `workers` workers of the pool busy until it is released or destroyed. All are running when the constructor returns.
class Plug {
public:
    Plug(ThreadPool& pool, int workers) {
        for (int i = 0; i < workers; ++i) {
            pool.post([state = state_] {
                ++state->running;
                state->gate.wait();
            });
        }
        REQUIRE(eventually([&] { return state_->running == workers; }));
    }
    ~Plug() { release(); }
    void release() { state_->gate.open(); }

private:
    struct State {
        Gate gate;
        std::atomic<int> running{0};
    };
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Counts the objects alive; a copy or move counts.
struct Counted {
    static inline std::atomic<int> alive{0};
    Counted() { ++alive; }
    Counted(const Counted&) { ++alive; }
    Counted(Counted&&) noexcept { ++alive; }
    Counted& operator=(const Counted&) = default;
    Counted& operator=(Counted&&) = default;
    ~Counted() { --alive; }
};

// Sets its flag when the last of its kind dies, after having given other threads plenty of time to be seen too early.
struct SlowToDie {
    std::atomic<bool>* dead;
    explicit SlowToDie(std::atomic<bool>& flag) : dead(&flag) {}
    SlowToDie(SlowToDie&& other) noexcept : dead(std::exchange(other.dead, nullptr)) {}
    SlowToDie(const SlowToDie&) = delete;
    SlowToDie& operator=(SlowToDie&&) = delete;
    SlowToDie& operator=(const SlowToDie&) = delete;
    ~SlowToDie() {
        if (dead == nullptr) return;
        std::this_thread::sleep_for(2ms);
        *dead = true;
    }
};

// Does not look into the exception: its reference count lives in the standard library, where ThreadSanitizer cannot see that the
// worker lets go of it before or after.
template <class Error, class T>
bool ends_with(std::future<T>& future) {
    try {
        future.get();
    } catch (const Error&) {
        return true;
    } catch (...) {}
    return false;
}

bool is_ready(auto& future) { return future.wait_for(0s) == std::future_status::ready; }

}  // namespace

// ---- results

TEST_CASE("thread_pool: submit gives the result back") {
    ThreadPool pool(2);
    CHECK(pool.submit([] { return 42; }).get() == 42);
    CHECK(pool.submit([](int a, long b) { return a + b; }, 1, 2L).get() == 3);
    CHECK(pool.submit(&std::string::size, std::string("four")).get() == 4);
    bool ran = false;
    pool.submit([&] { ran = true; }).get();
    CHECK(ran);
}

TEST_CASE("thread_pool: results may be references or move-only or without a default") {
    ThreadPool pool(2);
    int x = 1;
    std::future<int&> reference = pool.submit([&]() -> int& { return x; });
    CHECK(&reference.get() == &x);
    CHECK(&pool.submit([](int& y) -> int& { return y; }, std::ref(x)).get() == &x);
    CHECK(*pool.submit([] { return std::make_unique<int>(7); }).get() == 7);
    struct NoDefault {
        explicit NoDefault(int v) : value(v) {}
        int value;
    };
    CHECK(pool.submit([] { return NoDefault(8); }).get().value == 8);
}

TEST_CASE("thread_pool: callables and arguments may be move-only or large or over-aligned") {
    ThreadPool pool(2);
    CHECK(pool.submit([p = std::make_unique<int>(3)] { return *p; }).get() == 3);
    CHECK(pool.submit([](std::unique_ptr<int> p) { return *p; }, std::make_unique<int>(4)).get() == 4);

    std::array<int, 1000> large{};
    std::iota(large.begin(), large.end(), 0);
    CHECK(pool.submit([large] { return std::accumulate(large.begin(), large.end(), 0); }).get() == 499500);

    struct alignas(256) Wide {
        int value = 5;
    };
    const auto misalignment = [w = Wide{}] { return reinterpret_cast<std::uintptr_t>(&w) % 256 + static_cast<unsigned>(w.value); };
    CHECK(pool.submit(misalignment).get() == 5);

    std::atomic<int> sum{0};
    pool.post([&sum](const std::unique_ptr<int>& p) { sum += *p; }, std::make_unique<int>(6));
    pool.post([&sum, large] { sum += large[4]; });
    pool.wait_empty();
    CHECK(sum == 10);
}

TEST_CASE("thread_pool: what a submitted job throws comes out of its future") {
    std::atomic<int> hooked{0};
    ThreadPool pool(2, {.on_exception = [&](const std::exception_ptr&) { ++hooked; }});
    auto future = pool.submit([](int x) -> int { throw std::out_of_range("x is " + std::to_string(x)); }, 3);
    pool.wait_empty();  // the worker has let go of the exception, whose reference count ThreadSanitizer cannot see
    CHECK_THROWS_WITH_AS(future.get(), "x is 3", std::out_of_range);
    CHECK(hooked == 0);
}

TEST_CASE("thread_pool: a job and its captures are destroyed before its future is ready") {
    ThreadPool pool(1);
    for (int i = 0; i < 10; ++i) {
        std::atomic<bool> capture_dead{false};
        std::atomic<bool> argument_dead{false};
        auto value = pool.submit([c = SlowToDie(capture_dead)](const SlowToDie&) { return 1; }, SlowToDie(argument_dead));
        CHECK(value.get() == 1);
        CHECK(capture_dead);
        CHECK(argument_dead);

        capture_dead = false;
        pool.submit([c = SlowToDie(capture_dead)] {}).get();
        CHECK(capture_dead);

        capture_dead = false;
        auto failed = pool.submit([c = SlowToDie(capture_dead)] { throw std::runtime_error("no"); });
        failed.wait();
        CHECK(capture_dead);
    }
}

TEST_CASE("thread_pool: a discarded job and its captures are destroyed before its future is ready") {
    ThreadPool pool(1);
    Plug plug(pool, 1);
    std::atomic<bool> capture_dead{false};
    auto future = pool.submit([c = SlowToDie(capture_dead)] {});
    std::thread stopper([&] { pool.stop_discarding(); });
    future.wait();
    CHECK(capture_dead);
    CHECK(ends_with<muses::JobDiscarded>(future));
    stopper.join();
}

TEST_CASE("thread_pool: a submission that throws on the way in leaves the pool as it was") {
    struct BadCopy {
        BadCopy() = default;
        BadCopy(const BadCopy&) { throw std::runtime_error("no copy"); }
        void operator()() const {}
    };
    ThreadPool pool(2);
    const BadCopy bad;
    CHECK_THROWS_AS(pool.post(bad), std::runtime_error);
    CHECK_THROWS_AS((void)pool.submit(bad), std::runtime_error);
    pool.wait_empty();
    CHECK(pool.queued_approx() == 0);
    CHECK(pool.submit([] { return 1; }).get() == 1);
}

// ---- posts

TEST_CASE("thread_pool: what a posted job throws goes to the hook and the worker lives on") {
    std::mutex mutex;
    std::vector<std::string> seen;
    ThreadPool pool(1, {.on_exception = [&](const std::exception_ptr& error) {
                        try {
                            std::rethrow_exception(error);
                        } catch (const std::exception& e) {
                            const std::lock_guard lock(mutex);
                            seen.emplace_back(e.what());
                        } catch (int number) {
                            const std::lock_guard lock(mutex);
                            seen.push_back(std::to_string(number));
                        }
                    }});
    pool.post([] { throw std::runtime_error("first"); });
    pool.post([] { throw 2; });
    CHECK(pool.submit([] { return 3; }).get() == 3);
    pool.wait_empty();
    CHECK(seen == std::vector<std::string>{"first", "2"});
    CHECK(pool.hook_errors() == 0);
}

#if defined(__linux__)
TEST_CASE("thread_pool: without a hook what a posted job throws is printed") {
    std::FILE* file = std::tmpfile();
    REQUIRE(file != nullptr);
    std::fflush(stderr);
    const int saved = ::dup(2);
    REQUIRE(saved >= 0);
    REQUIRE(::dup2(::fileno(file), 2) == 2);
    {
        ThreadPool pool(1, {.name = "printer"});
        pool.post([] { throw std::runtime_error("out of ink"); });
        pool.post([] { throw 1; });
    }
    std::fflush(stderr);
    ::dup2(saved, 2);
    ::close(saved);
    std::rewind(file);
    std::string text(1000, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    CHECK(text.find("printer") != std::string::npos);
    CHECK(text.find("out of ink") != std::string::npos);
    CHECK(text.find("no std::exception") != std::string::npos);
}
#endif

TEST_CASE("thread_pool: one worker runs its jobs in the order of submission") {
    ThreadPool pool(1);
    std::vector<int> order;
    for (int i = 0; i < 1000; ++i) pool.post([&order, i] { order.push_back(i); });
    pool.wait_empty();
    std::vector<int> expected(1000);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(order == expected);
}

// ---- bulk

TEST_CASE("thread_pool: submit_bulk gives one future for each job in their order") {
    ThreadPool pool(2);
    struct Job {
        std::shared_ptr<int> value;
        int operator()() const { return *value; }
    };
    std::vector<Job> jobs;
    for (int i = 0; i < 500; ++i) jobs.push_back(Job{std::make_shared<int>(i)});
    auto futures = pool.submit_bulk(jobs);
    REQUIRE(futures.size() == 500);
    for (int i = 0; i < 500; ++i) CHECK(futures[static_cast<std::size_t>(i)].get() == i);
    CHECK(jobs[7].value);  // passed as an lvalue: copied

    auto again = pool.submit_bulk(std::span(jobs));  // a view does not own what it shows: copied
    CHECK(again.back().get() == 499);
    CHECK(jobs[499].value);

    auto moved = pool.submit_bulk(std::move(jobs));
    for (auto& future : moved) (void)future.get();
    CHECK_FALSE(jobs[7].value);  // NOLINT(bugprone-use-after-move): moved out one by one
}

TEST_CASE("thread_pool: submit_bulk takes move-only jobs and other ranges and none") {
    ThreadPool pool(2);
    const auto job = [](int value) { return [p = std::make_unique<int>(value)] { return *p; }; };
    std::deque<decltype(job(0))> jobs;
    jobs.push_back(job(1));
    jobs.push_back(job(2));
    auto futures = pool.submit_bulk(std::move(jobs));
    CHECK(futures[0].get() + futures[1].get() == 3);

    auto made = pool.submit_bulk(std::views::iota(0, 10) | std::views::transform([](int i) { return [i] { return i * i; }; }));
    CHECK(made[9].get() == 81);

    std::vector<void (*)()> none;
    CHECK(pool.submit_bulk(none).empty());
    pool.stop();
    CHECK_THROWS_AS((void)pool.submit_bulk(none), muses::PoolStopped);
}

TEST_CASE("thread_pool: submit_bulk is spread over all workers") {
    ThreadPool pool(4);
    Rendezvous all(4);  // passes only when four workers run at once
    std::vector<std::function<void()>> jobs(4, [&] { all.arrive(); });
    auto futures = pool.submit_bulk(jobs);
    for (auto& future : futures) future.get();
}

// ---- parallel_for

TEST_CASE("thread_pool: parallel_for calls every index once") {
    ThreadPool pool(3);
    for (const std::size_t n : {0U, 1U, 2U, 3U, 7U, 31U, 32U, 33U, 1000U, 12345U}) {
        std::vector<std::atomic<int>> calls(n);
        pool.parallel_for(std::size_t{0}, n, [&](std::size_t i) { ++calls[i]; });
        std::size_t once = 0;
        for (const auto& c : calls) once += c == 1 ? 1 : 0;
        CHECK(once == n);
    }
    pool.parallel_for(5, 5, [](int) { FAIL("an empty range has no index"); });
    pool.parallel_for(6, 5, [](int) { FAIL("a backward range is empty"); });
}

TEST_CASE("thread_pool: parallel_for takes any integers") {
    ThreadPool pool(2);
    std::atomic<long> sum{0};
    const auto add = [&](auto i) { sum += static_cast<long>(i); };
    pool.parallel_for(-10, 11, add);
    CHECK(sum == 0);
    pool.parallel_for(std::int8_t{-128}, std::int8_t{127}, add);
    CHECK(sum == -128 - 127);
    sum = 0;
    pool.parallel_for(0, std::size_t{5}, add);  // mixed types meet in their common type
    CHECK(sum == 10);
    CHECK_THROWS_AS(pool.parallel_for(-1, std::size_t{5}, add), std::invalid_argument);

    std::atomic<int> calls{0};
    constexpr auto kTop = std::numeric_limits<std::uint64_t>::max();
    pool.parallel_for(kTop - 100, kTop, [&](std::uint64_t) { ++calls; });
    constexpr auto kBottom = std::numeric_limits<std::int64_t>::min();
    pool.parallel_for(kBottom, kBottom + 100, [&](std::int64_t i) { calls += i < 0 ? 1 : 0; });
    CHECK(calls == 200);
    // The longest range there is: each block ends only by the exception, and no sum overflows before it.
    CHECK_THROWS_AS(pool.parallel_for(std::uint64_t{0}, kTop,
                                      [](std::uint64_t i) {
                                          if (i % 64 == 5) throw std::runtime_error("five");
                                      }),
                    std::runtime_error);
}

TEST_CASE("thread_pool: parallel_for does not copy its function") {
    ThreadPool pool(2);
    struct Once {
        std::atomic<int> calls{0};
        void operator()(int) { ++calls; }
    };
    Once once;
    pool.parallel_for(0, 100, once);
    CHECK(once.calls == 100);
    pool.parallel_for(0, 100, Once{});
}

TEST_CASE("thread_pool: parallel_for is helped by the workers") {
    ThreadPool pool(2);
    Rendezvous all(3);  // the caller and both workers
    pool.parallel_for(0, 3, [&](int) { all.arrive(); });
}

TEST_CASE("thread_pool: parallel_for rethrows the first exception after all calls have ended") {
    ThreadPool pool(3);
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> inside{0};
        std::atomic<int> calls{0};
        CHECK_THROWS_AS(pool.parallel_for(0, 1000,
                                          [&](int i) {
                                              ++inside;
                                              ++calls;
                                              if (i == 10) {
                                                  --inside;
                                                  throw std::runtime_error("ten");
                                              }
                                              std::this_thread::yield();
                                              --inside;
                                          }),
                        std::runtime_error);
        CHECK(inside == 0);
        CHECK(calls <= 1000);
    }
    CHECK_THROWS_AS(pool.parallel_for(0, 100, [](int) { throw 1; }), int);  // every block throws
    pool.wait_empty();
}

TEST_CASE("thread_pool: parallel_for works inside a job and nested and with every worker inside one") {
    ThreadPool pool(2);
    std::atomic<int> calls{0};
    const auto three_deep = [&] {
        pool.parallel_for(0, 4,
                          [&](int) { pool.parallel_for(0, 4, [&](int) { pool.parallel_for(0, 4, [&](int) { ++calls; }); }); });
    };
    three_deep();
    CHECK(calls == 64);
    std::vector<std::future<void>> futures;
    for (int i = 0; i < 8; ++i) futures.push_back(pool.submit(three_deep));
    for (auto& future : futures) future.get();
    CHECK(calls == 9 * 64);

    ThreadPool single(1);
    CHECK(single
              .submit([&] {
                  int sum = 0;
                  single.parallel_for(0, 10, [&](int i) { sum += i; });
                  return sum;
              })
              .get() == 45);
}

TEST_CASE("thread_pool: parallel_for does not wait for workers that are busy with something else") {
    ThreadPool pool(2);
    Plug plug(pool, 2);
    std::atomic<int> calls{0};
    pool.parallel_for(0, 100, [&](int) { ++calls; });
    CHECK(calls == 100);
}

TEST_CASE("thread_pool: parallel_for neither waits for nor evicts anything in a bounded pool") {
    for (const auto policy : {OverflowPolicy::DropNew, OverflowPolicy::DropOldest, OverflowPolicy::Block}) {
        ThreadPool pool(1, {.max_queued = 1, .overflow = policy});
        Plug plug(pool, 1);
        auto queued = pool.submit([] { return 1; });
        std::atomic<int> calls{0};
        pool.parallel_for(0, 100, [&](int) { ++calls; });
        CHECK(calls == 100);
        plug.release();
        CHECK(queued.get() == 1);
        CHECK(pool.dropped() == 0);
    }
}

TEST_CASE("thread_pool: parallel_for leaves nothing in the queue and drops nothing") {
    for (const auto policy : {OverflowPolicy::DropNew, OverflowPolicy::DropOldest, OverflowPolicy::Block}) {
        ThreadPool pool(1, {.max_queued = 1, .overflow = policy});
        Plug plug(pool, 1);
        std::future<int> inside;
        pool.parallel_for(0, 100, [&](int i) {
            CHECK(pool.queued_approx() == (inside.valid() ? 1 : 0));
            if (i == 50) inside = pool.submit([] { return 1; });  // there is room during the loop
        });
        CHECK(pool.queued_approx() == 1);
        plug.release();
        CHECK(inside.get() == 1);
        pool.wait_empty();

        Plug again(pool, 1);
        pool.parallel_for(0, 100, [](int) {});
        CHECK(pool.queued_approx() == 0);
        auto after = pool.submit([] { return 2; });  // and after it
        again.release();
        CHECK(after.get() == 2);
        CHECK(pool.dropped() == 0);
    }
    ThreadPool pool(2);
    Plug plug(pool, 2);
    pool.parallel_for(0, 100, [](int) {});
    CHECK(pool.queued_approx() == 0);
    pool.stop_discarding();
    CHECK(pool.dropped() == 0);
}

TEST_CASE("thread_pool: wait_empty waits for the calls that workers make for a parallel_for") {
    ThreadPool pool(2);
    Gate gate;
    std::atomic<int> running{0};
    std::thread caller([&] {
        pool.parallel_for(0, 3, [&](int) {
            ++running;
            gate.wait();
        });
    });
    CHECK(eventually([&] { return running == 3; }));
    CHECK_FALSE(pool.wait_empty_for(1ms));
    gate.open();
    pool.wait_empty();
    caller.join();
}

template <class Index>
concept CanLoopOver = requires(ThreadPool& pool, Index i) { pool.parallel_for(i, i, [](Index) {}); };
static_assert(CanLoopOver<int> && CanLoopOver<unsigned long long> && CanLoopOver<signed char> && CanLoopOver<std::uint8_t>);
static_assert(!CanLoopOver<char> && !CanLoopOver<wchar_t> && !CanLoopOver<char8_t> && !CanLoopOver<char32_t> && !CanLoopOver<bool>);

TEST_CASE("thread_pool: parallel_for after stop throws unless there is nothing to do or a worker calls it") {
    ThreadPool pool(1);
    Gate stopped;
    std::atomic<int> calls{0};
    auto inside = pool.submit([&] {
        stopped.wait();
        pool.parallel_for(0, 10, [&](int) { ++calls; });
    });
    pool.stop();
    pool.parallel_for(0, 0, [&](int) { ++calls; });
    CHECK_THROWS_AS(pool.parallel_for(0, 10, [&](int) { ++calls; }), muses::PoolStopped);
    CHECK(calls == 0);
    stopped.open();
    inside.get();
    CHECK(calls == 10);
}

// ---- wait_empty

TEST_CASE("thread_pool: wait_empty waits for children and their children") {
    ThreadPool pool(2);
    pool.wait_empty();
    for (int round = 0; round < 200; ++round) {
        std::atomic<int> ran{0};
        std::function<void(int)> spawn = [&](int depth) {
            ++ran;
            if (depth > 0) {
                pool.post([&, depth] { spawn(depth - 1); });
                pool.post([&, depth] { spawn(depth - 1); });
            }
        };
        pool.post([&] { spawn(5); });
        pool.wait_empty();
        CHECK(ran == 63);
    }
}

TEST_CASE("thread_pool: wait_empty serves any number of waiters") {
    ThreadPool pool(2);
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> ran{0};
        Gate go;
        for (int i = 0; i < 8; ++i) {
            pool.post([&] {
                go.wait();
                ++ran;
            });
        }
        std::vector<std::thread> waiters;
        std::atomic<int> too_early{0};
        for (int i = 0; i < 4; ++i) {
            waiters.emplace_back([&] {
                pool.wait_empty();
                if (ran != 8) ++too_early;
            });
        }
        go.open();
        for (auto& waiter : waiters) waiter.join();
        CHECK(too_early == 0);
    }
}

TEST_CASE("thread_pool: wait_empty sees everything that the waiter itself has submitted") {
    ThreadPool pool(2);
    const int rounds = stress_rounds(3000);
    std::vector<std::thread> threads;
    std::atomic<int> missed{0};
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < rounds; ++i) {
                int plain = 0;  // not atomic: the end of the job must happen before the end of the wait
                pool.post([&plain] { plain = 1; });
                pool.wait_empty();
                if (plain != 1) ++missed;
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(missed == 0);
}

TEST_CASE("thread_pool: wait_empty_for gives up in time and takes any duration") {
    ThreadPool pool(1);
    CHECK(pool.wait_empty_for(0s));
    CHECK(pool.wait_empty_for(-1h));
    CHECK(pool.wait_empty_for(std::chrono::hours::max()));
    Plug plug(pool, 1);
    CHECK_FALSE(pool.wait_empty_for(1ms));
    CHECK_FALSE(pool.wait_empty_for(0s));
    CHECK_FALSE(pool.wait_empty_for(-1s));
    CHECK_FALSE(pool.wait_empty_for(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())));
    std::thread releaser([&] { plug.release(); });
    CHECK(pool.wait_empty_for(std::chrono::years(1000)));
    releaser.join();
}

TEST_CASE("thread_pool: wait_empty inside an own job throws and inside a job of another pool waits") {
    ThreadPool pool(1);
    ThreadPool other(1);
    auto inside = pool.submit([&] { pool.wait_empty(); });
    CHECK(ends_with<std::logic_error>(inside));
    inside = pool.submit([&] { (void)pool.wait_empty_for(1s); });
    CHECK(ends_with<std::logic_error>(inside));
    std::atomic<bool> ran{false};
    pool.submit([&] {
            other.post([&] { ran = true; });
            other.wait_empty();
        })
        .get();
    CHECK(ran);
}

// ---- stop and destruction

TEST_CASE("thread_pool: stop refuses outsiders and finishes what is queued") {
    ThreadPool pool(2);
    std::atomic<int> ran{0};
    Plug plug(pool, 2);
    for (int i = 0; i < 100; ++i) pool.post([&] { ++ran; });
    pool.stop();
    pool.stop();
    CHECK_THROWS_AS(pool.post([] {}), muses::PoolStopped);
    CHECK_THROWS_AS((void)pool.submit([] {}), muses::PoolStopped);
    CHECK_THROWS_AS((void)pool.submit_bulk(std::vector<void (*)()>{[] {}}), muses::PoolStopped);
    CHECK(ran == 0);
    plug.release();
    pool.wait_empty();
    CHECK(ran == 100);
    CHECK_THROWS_AS(pool.post([] {}), muses::PoolStopped);
    pool.wait_empty();
}

TEST_CASE("thread_pool: own workers may submit while the pool stops") {
    std::atomic<int> ran{0};
    {
        Gate stopped;
        std::function<void(int)> chain;
        ThreadPool pool(3);
        chain = [&](int left) {
            ++ran;
            if (left > 0) pool.post([&, left] { chain(left - 1); });
        };
        pool.post([&] {
            stopped.wait();
            chain(1000);  // the last job submits the next one, long after all other workers have had nothing to do
        });
        pool.stop();
        stopped.open();
    }
    CHECK(ran == 1001);
}

TEST_CASE("thread_pool: jobs submitted while stopping still find all workers") {
    ThreadPool pool(4);
    Gate stopped;
    Rendezvous all(4);
    pool.post([&] {
        stopped.wait();
        for (int i = 0; i < 4; ++i) pool.post([&] { all.arrive(); });
    });
    pool.stop();
    stopped.open();
    pool.wait_empty();
}

TEST_CASE("thread_pool: stop may be called inside a job") {
    ThreadPool pool(2);
    pool.submit([&] { pool.stop(); }).get();
    CHECK_THROWS_AS(pool.post([] {}), muses::PoolStopped);
}

TEST_CASE("thread_pool: of submissions that race with stop each is refused or run") {
    for (int round = 0; round < stress_rounds(300); ++round) {
        std::atomic<int> ran{0};
        std::atomic<int> accepted{0};
        {
            ThreadPool pool(2);
            std::vector<std::thread> pushers;
            std::atomic<bool> go{false};
            for (int t = 0; t < 2; ++t) {
                pushers.emplace_back([&] {
                    while (!go) std::this_thread::yield();
                    try {
                        for (;;) {
                            pool.post([&] { ++ran; });
                            ++accepted;
                        }
                    } catch (const muses::PoolStopped&) {}
                });
            }
            go = true;
            pool.stop();
            for (auto& pusher : pushers) pusher.join();
        }
        REQUIRE(ran == accepted);
    }
}

TEST_CASE("thread_pool: the destructor finishes what is queued and what that submits") {
    std::atomic<int> ran{0};
    {
        ThreadPool pool(2);
        for (int i = 0; i < 1000; ++i) {
            pool.post([&] {
                ++ran;
                pool.post([&] { ++ran; });
            });
        }
    }
    CHECK(ran == 2000);
}

TEST_CASE("thread_pool: destroyed right after a submission it loses nothing" * doctest::test_suite("slow")) {
    const int rounds = stress_rounds(10'000);
    int wrong = 0;
    for (int i = 0; i < rounds; ++i) {
        std::atomic<int> ran{0};
        std::future<int> future;
        {
            ThreadPool pool(static_cast<std::size_t>(1 + i % 2), {.name = ""});
            if (i % 3 != 0) pool.post([&] { ++ran; });
            if (i % 3 != 1) future = pool.submit([&ran] { return ++ran; });
        }
        const int expected = i % 3 == 2 ? 2 : 1;
        if (ran != expected || (future.valid() && !is_ready(future))) ++wrong;
    }
    CHECK(wrong == 0);
}

TEST_CASE("thread_pool: a pool that never gets a job ends") {
    for (int i = 0; i < 200; ++i) ThreadPool pool(3);
}

TEST_CASE("thread_pool: stop_discarding ends queued futures with an error and lets running jobs end") {
    ThreadPool pool(2);
    std::atomic<int> ran{0};
    Gate gate;
    std::atomic<int> running{0};
    std::vector<std::future<int>> started;
    for (int i = 0; i < 2; ++i) {
        started.push_back(pool.submit([&] {
            ++running;
            gate.wait();
            return 5;
        }));
    }
    REQUIRE(eventually([&] { return running == 2; }));
    std::vector<std::future<void>> queued;
    for (int i = 0; i < 100; ++i) queued.push_back(pool.submit([&] { ++ran; }));
    for (int i = 0; i < 10; ++i) pool.post([&] { ++ran; });
    pool.stop_discarding();
    CHECK(pool.queued_approx() == 0);
    int discarded = 0;
    for (auto& future : queued) discarded += is_ready(future) && ends_with<muses::JobDiscarded>(future) ? 1 : 0;
    CHECK(discarded == 100);
    CHECK(pool.dropped() == 110);
    CHECK_THROWS_AS(pool.post([] {}), muses::PoolStopped);
    pool.stop_discarding();
    pool.stop();
    gate.open();
    for (auto& future : started) CHECK(future.get() == 5);
    pool.wait_empty();
    CHECK(ran == 0);
}

TEST_CASE("thread_pool: what own workers submit after stop_discarding is discarded too") {
    std::future<int> child;
    {
        std::function<void()> again;
        ThreadPool pool(2);
        again = [&] { pool.post(again); };  // would never end by itself
        pool.post(again);
        pool.submit([&] {
                pool.stop_discarding();
                child = pool.submit([] { return 1; });
            })
            .get();
    }
    CHECK(ends_with<muses::JobDiscarded>(child));
}

TEST_CASE("thread_pool: wait_empty ends when stop_discarding throws the rest away") {
    ThreadPool pool(1);
    Plug plug(pool, 1);
    for (int i = 0; i < 10; ++i) pool.post([] {});
    std::thread waiter([&] { pool.wait_empty(); });
    pool.stop_discarding();
    plug.release();
    waiter.join();
    CHECK(pool.dropped() == 10);
}

// ---- the pool dies inside of one of its jobs

#if defined(MUSES_TEST_CAN_FAIL_NEW)
TEST_CASE("thread_pool: a job is dropped with an error when there is no memory") {
    ThreadPool pool(1, {.max_queued = 1, .overflow = OverflowPolicy::DropOldest});
    Plug plug(pool, 1);
    auto evicted = pool.submit([] { return 1; });
    auto discarded = pool.submit([] { return 2; });
    CHECK(ends_with<muses::JobDiscarded>(evicted));
    {
        const muses::test::FailNew fail(0);
        pool.stop_discarding();
        CHECK_FALSE(fail.failed());
    }
    CHECK(is_ready(discarded));
    CHECK(ends_with<muses::JobDiscarded>(discarded));
}
#endif

TEST_CASE("thread_pool: a submission may hand over the last owner") {
    // Under ThreadSanitizer: the submitter has done with the pool's core before the job's worker frees it.
    for (int round = 0; round < stress_rounds(2000); ++round) {
        const auto policy = round % 3 == 0 ? OverflowPolicy::DropOldest : OverflowPolicy::DropNew;
        auto pool = std::make_shared<ThreadPool>(1, ThreadPoolOptions{.max_queued = round % 2 == 0 ? 0U : 9U, .overflow = policy});
        ThreadPool& raw = *pool;
        const auto last = [&raw](auto owner) {
            std::vector<std::function<void()>> jobs;
            jobs.emplace_back([owner = std::move(owner)]() mutable { owner.reset(); });
            return raw.submit_bulk(std::move(jobs));
        };
        if (round % 4 < 2)
            raw.post([owner = std::move(pool)]() mutable { owner.reset(); });
        else
            (void)last(std::move(pool));
    }
}

TEST_CASE("thread_pool: the core waits for every submitter that is still inside") {
    muses::detail::Lane lane;
    CHECK(lane.abandoned());
    muses::detail::Job job(std::in_place_type<muses::detail::PostTask<void (*)()>>, std::in_place, +[] {});
    muses::detail::Job evicted;
    REQUIRE(lane.push(job, false, evicted) == muses::detail::Lane::Outcome::Queued);
    CHECK_FALSE(lane.abandoned());
    REQUIRE(lane.take(job));
    CHECK_FALSE(lane.abandoned());
    lane.submitter_left(1);
    CHECK(lane.abandoned());
}

TEST_CASE("thread_pool: the last owner may be released inside a job") {
    for (int round = 0; round < stress_rounds(200); ++round) {
        std::atomic<int> exited{0};
        std::atomic<int> ran{0};
        Gate released;
        auto pool = std::make_shared<ThreadPool>(3, ThreadPoolOptions{.on_exit = [&](std::size_t) { ++exited; }});
        pool->post([pool, &released, &ran]() mutable {
            released.wait();
            pool.reset();  // runs the destructor on this worker
            ++ran;         // and the job goes on
        });
        for (int i = 0; i < 20; ++i) pool->post([&] { ++ran; });
        pool.reset();
        released.open();
        REQUIRE(eventually([&] { return exited == 3; }));
        REQUIRE(ran == 21);
    }
}

TEST_CASE("thread_pool: the last owner may be a capture that dies with its job") {
    for (int round = 0; round < stress_rounds(200); ++round) {
        std::atomic<int> exited{0};
        std::atomic<int> ran{0};
        auto pool = std::make_shared<ThreadPool>(2, ThreadPoolOptions{.on_exit = [&](std::size_t) { ++exited; }});
        auto* raw = pool.get();
        for (int i = 0; i < 5; ++i) {
            raw->post([pool, &ran] {
                ++ran;
                pool->post([&ran] { ++ran; });
            });
        }
        auto future = raw->submit([pool, &ran] { ++ran; });
        pool.reset();
        future.get();
        REQUIRE(eventually([&] { return exited == 2; }));
        REQUIRE(ran == 11);
    }
}

TEST_CASE("thread_pool: the last owner may be a capture of a job that is discarded") {
    // By an outsider's stop_discarding. The running jobs go on only when the last owner is about to die, so that no worker can take
    // its job before.
    struct LastOwner {
        std::shared_ptr<ThreadPool> pool;
        Gate* gate;
        LastOwner(std::shared_ptr<ThreadPool> p, Gate& g) : pool(std::move(p)), gate(&g) {}
        LastOwner(LastOwner&& other) noexcept : pool(std::move(other.pool)), gate(other.gate) {}
        LastOwner(const LastOwner&) = delete;
        LastOwner& operator=(LastOwner&&) = delete;
        LastOwner& operator=(const LastOwner&) = delete;
        ~LastOwner() {
            if (pool) gate->open();
        }
    };
    std::atomic<int> exited{0};
    Gate gate;
    auto pool = std::make_shared<ThreadPool>(2, ThreadPoolOptions{.on_exit = [&](std::size_t) { ++exited; }});
    auto* raw = pool.get();
    std::atomic<int> running{0};
    for (int i = 0; i < 2; ++i) {
        raw->post([&] {
            ++running;
            gate.wait();
        });
    }
    REQUIRE(eventually([&] { return running == 2; }));
    for (int i = 0; i < 3; ++i) raw->post([] {});
    raw->post([owner = LastOwner(std::move(pool), gate)] {});
    for (int i = 0; i < 3; ++i) raw->post([] {});
    raw->stop_discarding();  // the destructor runs in here, waits for the two that are running, and drops the rest
    CHECK(exited == 2);

    // By a worker that discards, and by an eviction on an own worker.
    for (const bool evict : {false, true}) {
        exited = 0;
        Gate go;
        auto second = std::make_shared<ThreadPool>(
            1,
            ThreadPoolOptions{.on_exit = [&](std::size_t) { ++exited; }, .max_queued = 1, .overflow = OverflowPolicy::DropOldest});
        auto* second_raw = second.get();
        std::atomic<bool> went_on{false};
        second_raw->post([&go, &went_on, second_raw, evict] {
            go.wait();
            if (evict)
                second_raw->post([] {});
            else
                second_raw->stop_discarding();
            went_on = true;
        });
        REQUIRE(eventually([&] { return second_raw->queued_approx() == 0; }));
        second_raw->post([second] {});
        second.reset();
        go.open();
        CHECK(eventually([&] { return exited == 1; }));
        CHECK(went_on);
    }
}

TEST_CASE("thread_pool: a pool of one thread that is destroyed inside its job still runs what is queued") {
    std::atomic<int> exited{0};
    std::atomic<int> ran{0};
    Gate released;
    auto pool = std::make_shared<ThreadPool>(1, ThreadPoolOptions{.on_exit = [&](std::size_t) { ++exited; }});
    pool->post([pool, &released]() mutable {
        released.wait();
        pool.reset();
    });
    for (int i = 0; i < 200; ++i) pool->post([&] { ++ran; });
    pool.reset();
    released.open();
    CHECK(eventually([&] { return exited == 1; }));
    CHECK(ran == 200);
}

TEST_CASE("thread_pool: a pool may be destroyed inside a job of another pool") {
    ThreadPool outer(2);
    std::atomic<int> ran{0};
    outer
        .submit([&] {
            ThreadPool inner(2);
            for (int i = 0; i < 100; ++i) inner.post([&] { ++ran; });
        })
        .get();
    CHECK(ran == 100);
}

// ---- threads, names, hooks

TEST_CASE("thread_pool: it has as many threads as asked for or as the affinity mask allows") {
    CHECK(ThreadPool(3).size() == 3);
    CHECK(ThreadPool(1).size() == 1);
    CHECK(ThreadPool().size() == muses::detail::usable_processors());
    CHECK_THROWS_AS(ThreadPool{std::numeric_limits<std::size_t>::max()}, std::invalid_argument);
    CHECK_THROWS_AS(ThreadPool{ThreadPool::kMaxThreads + 1}, std::invalid_argument);
#if defined(__linux__)
    std::size_t size = 0;
    std::thread([&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
        if (::sched_setaffinity(0, sizeof one, &one) == 0) size = ThreadPool(0).size();
    }).join();
    CHECK(size == 1);
#endif
}

TEST_CASE("thread_pool: a thread that cannot be started ends those that were and throws") {
    for (int fail_at = 0; fail_at < 4; ++fail_at) {
        std::atomic<int> started{0};
        std::atomic<int> exited{0};
        int asked = 0;
        const auto start_thread = [&](auto body) {
            if (asked++ == fail_at)
                throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), "no thread left");
            return std::thread(std::move(body));
        };
        ThreadPoolOptions options{.on_start = [&](std::size_t) { ++started; }, .on_exit = [&](std::size_t) { ++exited; }};
        CHECK_THROWS_AS((void)muses::detail::ThreadPoolSeam::make(4, options, start_thread), std::system_error);
        CHECK(asked == fail_at + 1);
        CHECK(started == fail_at);
        CHECK(exited == fail_at);
    }
}

TEST_CASE("thread_pool: hooks run on each worker before its first job and after its last") {
    std::mutex mutex;
    std::set<std::pair<std::size_t, std::thread::id>> started;
    std::set<std::pair<std::size_t, std::thread::id>> exited;
    std::set<std::thread::id> ran;
    {
        ThreadPool pool(3, {.on_start =
                                [&](std::size_t i) {
                                    const std::lock_guard lock(mutex);
                                    CHECK(ran.count(std::this_thread::get_id()) == 0);
                                    started.emplace(i, std::this_thread::get_id());
                                },
                            .on_exit =
                                [&](std::size_t i) {
                                    const std::lock_guard lock(mutex);
                                    exited.emplace(i, std::this_thread::get_id());
                                }});
        Rendezvous all(3);
        for (int i = 0; i < 3; ++i) {
            pool.post([&] {
                all.arrive();
                const std::lock_guard lock(mutex);
                ran.insert(std::this_thread::get_id());
            });
        }
        pool.wait_empty();
        CHECK(exited.empty());
    }
    CHECK(started.size() == 3);
    CHECK(started == exited);
    std::set<std::size_t> indexes;
    std::set<std::thread::id> ids;
    for (const auto& [index, id] : started) {
        indexes.insert(index);
        ids.insert(id);
    }
    CHECK(indexes == std::set<std::size_t>{0, 1, 2});
    CHECK(ids == ran);
}

TEST_CASE("thread_pool: what hooks throw is counted and harms nothing") {
    std::atomic<int> exits{0};
    {
        ThreadPool pool(2, {.on_start = [](std::size_t) { throw 1; },
                            .on_exit =
                                [&](std::size_t) {
                                    ++exits;
                                    throw 2;
                                },
                            .on_exception = [](const std::exception_ptr& error) { std::rethrow_exception(error); }});
        pool.post([] { throw std::runtime_error("job"); });
        pool.wait_empty();
        CHECK(eventually([&] { return pool.hook_errors() == 3; }));
        CHECK(pool.submit([] { return 1; }).get() == 1);
    }
    CHECK(exits == 2);
}

TEST_CASE("thread_pool: a start hook may submit and an exit hook may not") {
    std::atomic<int> ran{0};
    std::atomic<int> refused{0};
    {
        ThreadPool* self = nullptr;
        Gate known;
        ThreadPool pool(2, {.on_start =
                                [&](std::size_t) {
                                    known.wait();
                                    self->post([&] { ++ran; });
                                },
                            .on_exit =
                                [&](std::size_t) {
                                    try {
                                        self->post([&] { ++ran; });
                                    } catch (const muses::PoolStopped&) {
                                        ++refused;
                                    }
                                }});
        self = &pool;
        pool.stop();
        known.open();
    }
    CHECK(ran == 2);
    CHECK(refused == 2);
}

#if defined(__linux__)
TEST_CASE("thread_pool: workers carry the name of the pool cut to what the system keeps") {
    const auto name_in = [](const std::string& name) {
        ThreadPool pool(1, {.name = name});
        return pool
            .submit([] {
                std::array<char, 64> buffer{};
                ::pthread_getname_np(::pthread_self(), buffer.data(), buffer.size());
                return std::string(buffer.data());
            })
            .get();
    };
    CHECK(name_in("crunch") == "crunch");
    CHECK(name_in("exactly15bytes_") == "exactly15bytes_");
    CHECK(name_in("much longer than fifteen") == "much longer tha");
    CHECK_FALSE(name_in("").empty());  // the creator's
}

TEST_CASE("thread_pool: an idle pool uses no processor time") {
    ThreadPool pool(4);
    pool.post([] {});
    pool.wait_empty();
    CHECK(eventually([&] {
        const std::clock_t before = std::clock();
        std::this_thread::sleep_for(200ms);
        return std::clock() - before < CLOCKS_PER_SEC / 100;  // below 5 %, the test's own included
    }));
}
#endif

// ---- a bounded queue

TEST_CASE("thread_pool: a full queue with DropNew refuses by an exception") {
    ThreadPool pool(2, {.max_queued = 3, .overflow = OverflowPolicy::DropNew});
    Plug plug(pool, 2);
    std::atomic<int> ran{0};
    std::vector<std::future<void>> futures;
    for (int i = 0; i < 3; ++i) futures.push_back(pool.submit([&] { ++ran; }));
    CHECK(pool.queued_approx() == 3);
    CHECK_THROWS_AS(pool.post([&] { ++ran; }), muses::PoolQueueFull);
    CHECK_THROWS_AS((void)pool.submit([&] { ++ran; }), muses::PoolQueueFull);
    CHECK(pool.dropped() == 2);
    plug.release();
    for (auto& future : futures) future.get();
    pool.wait_empty();
    pool.post([&] { ++ran; });
    pool.wait_empty();
    CHECK(ran == 4);
    CHECK(pool.dropped() == 2);
}

TEST_CASE("thread_pool: a full queue with DropNew refuses own workers too and takes a bulk whole or not") {
    ThreadPool pool(1, {.max_queued = 4, .overflow = OverflowPolicy::DropNew});
    std::vector<std::function<int()>> jobs(4, [] { return 1; });
    pool.submit([&] {
            auto futures = pool.submit_bulk(jobs);
            CHECK(futures.size() == 4);
            CHECK_THROWS_AS(pool.post([] {}), muses::PoolQueueFull);
        })
        .get();
    pool.wait_empty();
    Plug plug(pool, 1);
    pool.post([] {});
    CHECK_THROWS_AS((void)pool.submit_bulk(jobs), muses::PoolQueueFull);
    CHECK(pool.queued_approx() == 1);
    CHECK(pool.dropped() == 5);
    jobs.pop_back();
    auto futures = pool.submit_bulk(jobs);
    CHECK(pool.queued_approx() == 4);
    plug.release();
    for (auto& future : futures) CHECK(future.get() == 1);
}

TEST_CASE("thread_pool: a full queue with DropOldest ends the oldest job with an error") {
    ThreadPool pool(2, {.max_queued = 3, .overflow = OverflowPolicy::DropOldest});
    Plug plug(pool, 2);
    std::vector<std::future<int>> futures;
    for (int i = 0; i < 8; ++i) futures.push_back(pool.submit([i] { return i; }));
    CHECK(pool.queued_approx() == 3);
    CHECK(pool.dropped() == 5);
    for (std::size_t i = 0; i < 5; ++i) CHECK(ends_with<muses::JobDiscarded>(futures[i]));
    plug.release();
    for (std::size_t i = 5; i < 8; ++i) CHECK(futures[i].get() == static_cast<int>(i));

    pool.wait_empty();
    Plug again(pool, 2);
    auto bulk = pool.submit_bulk(std::vector<std::function<int()>>(5, [] { return 1; }));
    CHECK(ends_with<muses::JobDiscarded>(bulk[0]));
    CHECK(ends_with<muses::JobDiscarded>(bulk[1]));
    again.release();
    CHECK(bulk[4].get() == 1);
}

TEST_CASE("thread_pool: a full queue with Block makes outsiders wait") {
    ThreadPool pool(1, {.max_queued = 2, .overflow = OverflowPolicy::Block});
    Plug plug(pool, 1);
    std::atomic<int> pushed{0};
    std::atomic<int> ran{0};
    std::vector<std::thread> pushers;
    for (int t = 0; t < 3; ++t) {
        pushers.emplace_back([&] {
            for (int i = 0; i < 100; ++i) {
                pool.post([&] { ++ran; });
                ++pushed;
            }
        });
    }
    CHECK(eventually([&] { return pushed == 2; }));
    std::this_thread::sleep_for(5ms);  // time in which a faulty bound would be exceeded
    CHECK(pushed == 2);
    CHECK(pool.queued_approx() == 2);
    plug.release();
    for (auto& pusher : pushers) pusher.join();
    pool.wait_empty();
    CHECK(ran == 300);
    CHECK(pool.dropped() == 0);
}

TEST_CASE("thread_pool: a full queue with Block never makes own workers wait") {
    ThreadPool pool(1, {.max_queued = 1, .overflow = OverflowPolicy::Block});
    std::atomic<int> ran{0};
    pool.submit([&] {
            for (int i = 0; i < 10; ++i) pool.post([&] { ++ran; });
        })
        .get();
    pool.wait_empty();
    CHECK(ran == 10);
}

TEST_CASE("thread_pool: who waits for room is told when the pool stops") {
    for (const bool discard : {false, true}) {
        ThreadPool pool(1, {.max_queued = 1, .overflow = OverflowPolicy::Block});
        Plug plug(pool, 1);
        pool.post([] {});
        std::atomic<int> refused{0};
        std::vector<std::thread> pushers;
        for (int t = 0; t < 3; ++t) {
            pushers.emplace_back([&] {
                try {
                    pool.post([] {});
                } catch (const muses::PoolStopped&) {
                    ++refused;
                }
            });
        }
        std::this_thread::sleep_for(2ms);  // most of them will be waiting by then; right in any case
        discard ? pool.stop_discarding() : pool.stop();
        for (auto& pusher : pushers) pusher.join();
        CHECK(refused == 3);
    }
}

TEST_CASE("thread_pool: a bounded queue loses nothing that it does not count") {
    for (const auto policy : {OverflowPolicy::DropNew, OverflowPolicy::DropOldest, OverflowPolicy::Block}) {
        for (const std::size_t bound : {1U, 2U, 3U, 1024U}) {
            std::atomic<int> ran{0};
            std::uint64_t dropped = 0;
            const int each = stress_rounds(2000);
            {
                ThreadPool pool(2, {.max_queued = bound, .overflow = policy});
                std::vector<std::thread> pushers;
                for (int t = 0; t < 3; ++t) {
                    pushers.emplace_back([&] {
                        for (int i = 0; i < each; ++i) {
                            try {
                                pool.post([&ran, c = Counted()] { ++ran; });
                            } catch (const muses::PoolQueueFull&) {}
                        }
                    });
                }
                for (auto& pusher : pushers) pusher.join();
                pool.wait_empty();
                dropped = pool.dropped();
            }
            CHECK(static_cast<std::uint64_t>(ran) + dropped == static_cast<std::uint64_t>(each) * 3);
            CHECK(Counted::alive == 0);
        }
    }
}

// ---- wake-ups and stress

TEST_CASE("thread_pool: as many jobs as workers run at once however they come in") {
    // Each round ends only if all workers are awake at the same time: a lost wake-up, or a job that is stuck in a busy worker's
    // hands, would hang it.
    const int rounds = stress_rounds(500);
    for (const int workers : {2, 3, 5}) {
        ThreadPool pool(static_cast<std::size_t>(workers));
        for (int round = 0; round < rounds; ++round) {
            Rendezvous all(workers);
            std::vector<std::future<void>> futures;
            switch (round % 3) {
                case 0:
                    for (int i = 0; i < workers; ++i) pool.post([&] { all.arrive(); });
                    break;
                case 1:
                    pool.post([&, workers] {
                        for (int i = 1; i < workers; ++i) pool.post([&] { all.arrive(); });
                        all.arrive();
                    });
                    break;
                default:
                    futures = pool.submit_bulk(
                        std::vector<std::function<void()>>(static_cast<std::size_t>(workers), [&] { all.arrive(); }));
            }
            pool.wait_empty();
        }
    }
}

TEST_CASE("thread_pool: single jobs to a sleeping pool all come back") {
    ThreadPool pool(2);
    const int rounds = stress_rounds(3000);
    long sum = 0;
    for (int i = 0; i < rounds; ++i) sum += pool.submit([i] { return i; }).get();
    CHECK(sum == static_cast<long>(rounds) * (rounds - 1) / 2);
}

TEST_CASE("thread_pool: a job wakes a pool that has fallen asleep") {
    ThreadPool pool(2);
    ThreadPool bounded(2, {.max_queued = 4});
    for (int i = 0; i < 20; ++i) {
        std::this_thread::sleep_for(4ms);  // by now both pools sleep, most of the times; right in any case
        switch (i % 4) {
            case 0: CHECK(pool.submit([] { return 1; }).get() == 1); break;
            case 1: CHECK(bounded.submit([] { return 1; }).get() == 1); break;
            case 2: CHECK(pool.submit_bulk(std::vector<int (*)()>{[] { return 1; }})[0].get() == 1); break;
            default: CHECK(bounded.submit_bulk(std::vector<int (*)()>{[] { return 1; }})[0].get() == 1);
        }
    }
}

TEST_CASE("thread_pool: many producers and many workers lose and repeat nothing") {
    const int each = stress_rounds(4000);
    for (const std::size_t workers : {1U, 2U, 8U}) {
        for (const int producers : {1, 2, 8}) {
            std::atomic<std::int64_t> sum{0};
            // Futures are let go of after the workers: ThreadSanitizer does not see the reference count inside the standard library.
            std::vector<std::vector<std::future<void>>> futures(static_cast<std::size_t>(producers));
            {
                ThreadPool pool(workers);
                std::vector<std::thread> threads;
                for (int p = 0; p < producers; ++p) {
                    threads.emplace_back([&, p] {
                        for (int i = 0; i < each; ++i) {
                            const std::int64_t value = p * each + i;
                            if (i % 4 == 0) {
                                pool.post([&, value, c = Counted()] { pool.post([&sum, value, d = c] { sum += value; }); });
                            } else if (i % 64 == 1) {
                                futures[static_cast<std::size_t>(p)].push_back(
                                    pool.submit([&sum, value, c = std::make_unique<Counted>()] { sum += value; }));
                            } else {
                                pool.post([&sum, value, c = Counted()] { sum += value; });
                            }
                        }
                    });
                }
                for (auto& thread : threads) thread.join();
            }
            const std::int64_t n = static_cast<std::int64_t>(producers) * each;
            CHECK(sum == n * (n - 1) / 2);
            CHECK(Counted::alive == 0);
        }
    }
}

TEST_CASE("thread_pool: far more workers than processors") {
    ThreadPool pool(32);
    std::atomic<int> ran{0};
    for (int i = 0; i < 2000; ++i) pool.post([&] { ++ran; });
    pool.parallel_for(0, 2000, [&](int) { ++ran; });
    pool.wait_empty();
    CHECK(ran == 4000);
}

TEST_CASE("thread_pool: a long job does not hold up those queued behind it") {
    ThreadPool pool(2);
    Gate gate;
    std::atomic<int> ran{0};
    auto blocked = pool.submit([&] {
        for (int i = 0; i < 500; ++i) pool.post([&] { ++ran; });  // into the queue of the worker that is about to block
        gate.wait();
    });
    CHECK(eventually([&] { return ran == 500; }));
    gate.open();
    blocked.get();
}

// ---- the parts

TEST_CASE("thread_pool: the queue of jobs keeps their order over blocks and splices and swaps") {
    using muses::detail::Job;
    using muses::detail::JobQueue;
    std::vector<int> ran;
    const auto job = [&ran](int i) {
        auto f = [&ran, i, c = Counted()] { ran.push_back(i); };
        return Job(std::in_place_type<muses::detail::PostTask<decltype(f)>>, std::in_place, std::move(f));
    };
    {
        JobQueue queue;
        int next = 0;
        std::vector<int> expected;
        for (int round = 0; round < 60; ++round) {
            JobQueue more;
            for (int i = 0; i < round * 7 % 150; ++i) {
                expected.push_back(next);
                more.push(job(next++));
            }
            const std::size_t before = queue.size();
            const std::size_t added = more.size();
            queue.splice(more);
            CHECK(more.empty());
            CHECK(queue.size() == before + added);
            for (int i = 0; i < 3; ++i) {
                expected.push_back(next);
                queue.push(job(next++));
            }
            more.push(job(-1));  // an emptied queue can be used again
            for (std::size_t i = 0; i < added / 2; ++i) {
                Job taken = queue.pop();
                taken.run();
            }
            if (round % 5 == 0) {
                JobQueue other(std::move(queue));
                queue.swap(other);
            }
        }
        while (!queue.empty()) queue.pop().run();
        CHECK(ran == expected);
        for (int i = 0; i < 200; ++i) queue.push(job(i));  // destroyed unrun
    }
    CHECK(Counted::alive == 0);
}
