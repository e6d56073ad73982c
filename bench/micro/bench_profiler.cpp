// A profiled scope beside two readings of the steady clock, the least that measuring a scope takes. Names are <case>/<who>.
#include "muses/profiler.hpp"

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>

namespace {

void one_scope(benchmark::State& state) {
    for (auto _ : state) {
        MUSES_PROFILE_SCOPE("bench");
        benchmark::ClobberMemory();
    }
}

/// What is written by hand: two readings, and a sum.
void clock_pair(benchmark::State& state) {
    std::int64_t sum = 0;
    for (auto _ : state) {
        const auto begin = std::chrono::steady_clock::now();
        benchmark::ClobberMemory();
        sum += (std::chrono::steady_clock::now() - begin).count();
    }
    benchmark::DoNotOptimize(sum);
}

void nested_scopes(benchmark::State& state) {
    for (auto _ : state) {
        MUSES_PROFILE_SCOPE("bench outer");
        {
            MUSES_PROFILE_SCOPE("bench inner");
            benchmark::ClobberMemory();
        }
    }
}

void nested_clock_pairs(benchmark::State& state) {
    std::int64_t sum = 0;
    for (auto _ : state) {
        const auto outer = std::chrono::steady_clock::now();
        const auto inner = std::chrono::steady_clock::now();
        benchmark::ClobberMemory();
        sum += (std::chrono::steady_clock::now() - inner).count();
        sum += (std::chrono::steady_clock::now() - outer).count();
    }
    benchmark::DoNotOptimize(sum);
}

void off(benchmark::State& state) {
    muses::Profiler::instance().set_enabled(false);
    one_scope(state);
    muses::Profiler::instance().set_enabled(true);
}

void nothing(benchmark::State& state) {
    for (auto _ : state) benchmark::ClobberMemory();
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::RegisterBenchmark("scope/muses", one_scope);
    benchmark::RegisterBenchmark("scope/clock_pair", clock_pair);
    benchmark::RegisterBenchmark("nested/muses", nested_scopes);
    benchmark::RegisterBenchmark("nested/clock_pairs", nested_clock_pairs);
    benchmark::RegisterBenchmark("off/muses", off);
    benchmark::RegisterBenchmark("off/nothing", nothing);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
