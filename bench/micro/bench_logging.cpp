// What a line costs the thread that logs it, beside spdlog's asynchronous logger, both into a file. Names are <case>/<who>/<threads>.
#include "muses/logging.hpp"

#include <benchmark/benchmark.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#ifdef MUSES_BENCH_HAS_SPDLOG
#define SPDLOG_FMT_EXTERNAL
#define FMT_HEADER_ONLY
#include <spdlog/async.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#endif

namespace {

constexpr std::size_t kBurst = 2000;
constexpr std::size_t kBursts = 200;
constexpr std::size_t kCapacity = 8192;  // of the queue; the threads' bursts fit

struct File {
    File() : path(std::filesystem::temp_directory_path() / ("muses_bench_logging." + std::to_string(::getpid()))) {}
    ~File() { std::filesystem::remove(path); }
    std::string path;
};

struct Muses {
    File file;
    muses::Logger logger{muses::LoggerOptions{.capacity = kCapacity}};
    Muses() { logger.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = file.path})); }
    void line(int i, double d, std::string_view text) { MUSES_LOG_INFO(logger, "request {} took {} ms for {}", i, d, text); }
    void flush() { (void)logger.flush(std::chrono::seconds(10)); }
};

#ifdef MUSES_BENCH_HAS_SPDLOG
struct Spdlog {
    File file;
    std::shared_ptr<spdlog::details::thread_pool> pool = std::make_shared<spdlog::details::thread_pool>(kCapacity, 1);
    std::shared_ptr<spdlog::async_logger> logger =
        std::make_shared<spdlog::async_logger>("bench", std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.path, true), pool,
                                               spdlog::async_overflow_policy::overrun_oldest);
    void line(int i, double d, std::string_view text) { logger->info("request {} took {} ms for {}", i, d, text); }
    void flush() {
        logger->flush();
        while (pool->queue_size() != 0) std::this_thread::yield();
    }
};
#endif

/// Nanoseconds of single calls, in bursts that the queue has room for, by `threads` threads at once.
template <class L>
std::vector<std::uint32_t> latencies(L& log, std::size_t threads) {
    std::vector<std::vector<std::uint32_t>> all(threads);
    for (auto& mine : all) mine.reserve(kBurst * kBursts);
    for (std::size_t burst = 0; burst < kBursts; ++burst) {
        std::vector<std::thread> workers;
        const auto run = [&](std::vector<std::uint32_t>& mine) {
            using Clock = std::chrono::steady_clock;
            for (std::size_t i = 0; i < kBurst; ++i) {
                const auto begin = Clock::now();
                log.line(static_cast<int>(i), 0.25 * static_cast<double>(i), "/assets/site/style.css.gz");
                mine.push_back(static_cast<std::uint32_t>((Clock::now() - begin).count()));
            }
        };
        for (std::size_t t = 1; t < threads; ++t) workers.emplace_back(run, std::ref(all[t]));
        run(all[0]);
        for (std::thread& t : workers) t.join();
        log.flush();
    }
    std::vector<std::uint32_t> sum;
    for (auto& mine : all) sum.insert(sum.end(), mine.begin(), mine.end());
    return sum;
}

/// The time of the call that `per_mille` of a thousand calls do not exceed. Includes one reading of the clock.
template <class L>
void percentile(benchmark::State& state, std::size_t per_mille) {
    for (auto _ : state) {
        L log;
        auto times = latencies(log, static_cast<std::size_t>(state.range(0)));
        const auto at = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) * per_mille / 1000);
        std::nth_element(times.begin(), at, times.end());
        state.SetIterationTime(*at * 1e-9);
    }
}

/// Processor time of all threads for each line, until it is in the file.
template <class L>
void cpu(benchmark::State& state) {
    const auto used = [] {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
        return seconds(usage.ru_utime) + seconds(usage.ru_stime);
    };
    constexpr std::size_t kLines = kBurst * 50;
    for (auto _ : state) {
        L log;
        const double before = used();
        for (std::size_t i = 0; i < kLines; ++i) {
            log.line(static_cast<int>(i), 0.25 * static_cast<double>(i), "/assets/site/style.css.gz");
            if (i % kBurst == kBurst - 1) log.flush();
        }
        state.SetIterationTime((used() - before) / static_cast<double>(kLines));
    }
}

template <class L>
void add(const std::string& who) {
    const auto register_one = [](const std::string& name, auto run) {
        return benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Iterations(1);
    };
    register_one("p50/" + who, [](benchmark::State& state) { percentile<L>(state, 500); })->Arg(1)->Arg(2);
    register_one("p99.9/" + who, [](benchmark::State& state) { percentile<L>(state, 999); })->Arg(1)->Arg(2);
    register_one("cpu_per_line/" + who, [](benchmark::State& state) { cpu<L>(state); });
}

}  // namespace

int main(int argc, char** argv) {
    add<Muses>("muses");
#ifdef MUSES_BENCH_HAS_SPDLOG
    add<Spdlog>("spdlog");
#endif
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
