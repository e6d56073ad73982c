// MemoryPool beside the allocators that people would take instead, and PoolPtr beside std::shared_ptr. Names are <case>/<who>; a case is
// read across.
#include "muses/memory_pool.hpp"

#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

// ---- one face for all: allocate(bytes) and release(block, bytes) --------------------------------------------------------------

struct Muses {
    muses::MemoryPool pool;
    void* allocate(std::size_t bytes) { return pool.allocate(bytes); }
    void release(void* block, std::size_t /*bytes*/) { pool.release(block); }
};

struct Malloc {
    void* allocate(std::size_t bytes) { return std::malloc(bytes); }
    void release(void* block, std::size_t /*bytes*/) { std::free(block); }
};

template <class Resource>
struct Pmr {
    Resource resource;
    void* allocate(std::size_t bytes) { return resource.allocate(bytes); }
    void release(void* block, std::size_t bytes) { resource.deallocate(block, bytes); }
};

// Called by way of two pointers, as a function of a shared library is; everything else in the process stays on the C library's malloc.
struct Library {
    void* (*malloc)(std::size_t) = nullptr;
    void (*free)(void*) = nullptr;
    void* allocate(std::size_t bytes) { return malloc(bytes); }
    void release(void* block, std::size_t /*bytes*/) { free(block); }
};

Library open_library(const char* file, const char* malloc_name, const char* free_name) {
    void* const opened = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
        std::fprintf(stderr, "goes without %s: %s\n", file, ::dlerror());
        return {};
    }
    return {reinterpret_cast<void* (*)(std::size_t)>(::dlsym(opened, malloc_name)),
            reinterpret_cast<void (*)(void*)>(::dlsym(opened, free_name))};
}

// ---- cases -------------------------------------------------------------------------------------------------------------------

constexpr std::size_t kLive = 256;

struct Step {
    std::size_t place;
    std::size_t bytes;
};

/// The same random steps for all: 16 to 4096 bytes, each in the place of one of the last ones.
const std::vector<Step>& steps() {
    static const std::vector<Step> all = [] {
        std::vector<Step> made(1U << 15U);
        std::mt19937 random(1);  // NOLINT: the same each time is meant
        for (Step& step : made) step = {random() % kLive, 16 + random() % 4081};
        return made;
    }();
    return all;
}

template <class Allocator>
class Mixed {
public:
    explicit Mixed(Allocator& allocator) : allocator_(allocator) {}
    ~Mixed() {
        for (const auto& [block, bytes] : live_)
            if (block != nullptr) allocator_.release(block, bytes);
    }
    void step(std::size_t i) {
        const Step step = steps()[i % steps().size()];
        auto& [block, bytes] = live_[step.place];
        if (block != nullptr) allocator_.release(block, bytes);
        bytes = step.bytes;
        block = allocator_.allocate(bytes);
        *static_cast<char*>(block) = 1;
    }

private:
    struct Block {
        void* block = nullptr;
        std::size_t bytes = 0;
    };
    Allocator& allocator_;
    std::array<Block, kLive> live_{};
};

/// One block of 16 to 4096 bytes goes, another one comes; 256 are out.
template <class Allocator>
void mixed(benchmark::State& state, Allocator& allocator) {
    Mixed<Allocator> blocks(allocator);
    std::size_t i = 0;
    for (auto _ : state) blocks.step(i++);
}

/// The same on two threads at once, each with its own 256; time is the clock's, per step of one thread.
template <class Allocator>
void mixed_on_two(benchmark::State& state, Allocator& allocator) {
    constexpr std::size_t kSteps = 200'000;
    for (auto _ : state) {
        std::atomic<int> ready{0};
        const auto run = [&] {
            Mixed<Allocator> blocks(allocator);
            ready.fetch_add(1);
            while (ready.load() < 2) std::this_thread::yield();
            for (std::size_t i = 0; i < kSteps; ++i) blocks.step(i);
        };
        std::thread other(run);
        run();
        other.join();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kSteps));
}

/// A block of 64 bytes comes and goes.
template <class Allocator>
void pair_64(benchmark::State& state, Allocator& allocator) {
    for (auto _ : state) {
        void* block = allocator.allocate(64);
        benchmark::DoNotOptimize(block);
        allocator.release(block, 64);
    }
}

/// One thread allocates blocks of 64 bytes while another one frees them; 64 at a time go over, at most 1024 are on the way. Per block, by
/// the clock.
template <class Allocator>
void streamed(benchmark::State& state, Allocator& allocator) {
    constexpr std::size_t kBlocks = 400'000;
    constexpr std::size_t kBatch = 64;
    constexpr std::size_t kRing = 1024;
    struct Ring {
        alignas(64) std::atomic<std::size_t> filled{0};
        alignas(64) std::atomic<std::size_t> emptied{0};
        alignas(64) std::array<void*, kRing> slots{};
    };
    const auto ring = std::make_unique<Ring>();
    for (auto _ : state) {
        ring->filled = ring->emptied = 0;
        std::thread consumer([&] {
            for (std::size_t i = 0; i < kBlocks;) {
                const std::size_t filled = ring->filled.load(std::memory_order_acquire);
                if (filled == i) std::this_thread::yield();
                for (; i < filled; ++i) allocator.release(ring->slots[i % kRing], 64);
                ring->emptied.store(i, std::memory_order_release);
            }
        });
        for (std::size_t i = 0; i < kBlocks; i += kBatch) {
            while (i + kBatch - ring->emptied.load(std::memory_order_acquire) > kRing) std::this_thread::yield();
            for (std::size_t k = i; k < i + kBatch; ++k) {
                void* const block = allocator.allocate(64);
                *static_cast<char*>(block) = 1;
                ring->slots[k % kRing] = block;
            }
            ring->filled.store(i + kBatch, std::memory_order_release);
        }
        consumer.join();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBlocks));
}

// ---- in turns, on two processors: what the work itself costs, however busy the machine is

void stay_on(int processor) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
#else
    (void)processor;
#endif
}

double processor_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

/// One thread allocates 1000 blocks of 64 bytes, then another one on another processor frees them, and so on. Time is what both
/// threads spent on a processor inside these loops, per block.
template <class Allocator>
void handed_over(benchmark::State& state, Allocator& allocator) {
    constexpr std::size_t kBlocks = 1000;
    constexpr int kRounds = 100;
    std::vector<void*> blocks(kBlocks);
    for (auto _ : state) {
        std::binary_semaphore full(0);
        std::binary_semaphore empty(1);
        double allocating = 0;
        double freeing = 0;
        std::thread first([&] {
            stay_on(0);
            for (int round = 0; round < kRounds; ++round) {
                empty.acquire();
                const double begin = processor_seconds();
                for (void*& block : blocks) {
                    block = allocator.allocate(64);
                    *static_cast<char*>(block) = 1;
                }
                allocating += processor_seconds() - begin;
                full.release();
            }
        });
        std::thread second([&] {
            stay_on(1);
            for (int round = 0; round < kRounds; ++round) {
                full.acquire();
                const double begin = processor_seconds();
                for (void* const block : blocks) allocator.release(block, 64);
                freeing += processor_seconds() - begin;
                empty.release();
            }
        });
        first.join();
        second.join();
        state.SetIterationTime(allocating + freeing);
    }
    state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBlocks) * kRounds);
}

struct Object {
    explicit Object(std::uint64_t n) : first(n) {}
    std::uint64_t first;
    std::array<std::uint64_t, 3> others{};
};

void copy_muses(benchmark::State& state) {
    muses::MemoryPool pool;
    const auto object = pool.make<Object>(1U);
    for (auto _ : state) {
        auto copy = object;
        benchmark::DoNotOptimize(copy.get());
    }
}
void copy_shared(benchmark::State& state) {
    const auto object = std::make_shared<Object>(1U);
    for (auto _ : state) {
        auto copy = object;
        benchmark::DoNotOptimize(copy.get());
    }
}
void make_muses(benchmark::State& state) {
    muses::MemoryPool pool;
    for (auto _ : state) {
        auto object = pool.make<Object>(1U);
        benchmark::DoNotOptimize(object.get());
    }
}
void make_shared(benchmark::State& state) {
    for (auto _ : state) {
        auto object = std::make_shared<Object>(1U);
        benchmark::DoNotOptimize(object.get());
    }
}

// ---- who meets whom ----------------------------------------------------------------------------------------------------------

/// `run` with an allocator of its own: a new one, or a copy of the prototype.
template <class Allocator, class Run>
auto with(const Allocator* prototype, Run run) {
    return [=](benchmark::State& state) {
        if constexpr (std::is_copy_constructible_v<Allocator>) {
            Allocator allocator = prototype != nullptr ? *prototype : Allocator{};
            run(state, allocator);
        } else {
            Allocator allocator;
            run(state, allocator);
        }
    };
}

template <class Allocator>
void one_thread(const std::string& who, const Allocator* prototype = nullptr) {
    benchmark::RegisterBenchmark("mixed_16_to_4096/" + who, with(prototype, mixed<Allocator>));
    benchmark::RegisterBenchmark("pair_64/" + who, with(prototype, pair_64<Allocator>));
}

template <class Allocator>
void two_threads(const std::string& who, const Allocator* prototype = nullptr) {
    one_thread<Allocator>(who, prototype);
    benchmark::RegisterBenchmark("mixed_on_two_threads/" + who, with(prototype, mixed_on_two<Allocator>))->UseRealTime();
    benchmark::RegisterBenchmark("streamed_to_another_thread/" + who, with(prototype, streamed<Allocator>))->UseRealTime();
    benchmark::RegisterBenchmark("freed_on_another_thread/" + who, with(prototype, handed_over<Allocator>))->UseManualTime();
}

}  // namespace

int main(int argc, char** argv) {
    // jemalloc wants more room for its thread_locals than the loader keeps free by default; that is read when a process starts.
    if (::getenv("GLIBC_TUNABLES") == nullptr) {
        ::setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384", 1);
        ::execv("/proc/self/exe", argv);  // on failure it goes without
    }
    std::thread([] {}).join();  // some libraries leave out atomics in a process that never had a second thread
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;

    two_threads<Muses>("muses");
    static const Library tcmalloc = open_library("libtcmalloc_minimal.so.4", "tc_malloc", "tc_free");
    static const Library mimalloc = open_library("libmimalloc.so.3", "mi_malloc", "mi_free");
    static const Library jemalloc = open_library("libjemalloc.so.2", "malloc", "free");
    if (tcmalloc.malloc != nullptr) two_threads("tcmalloc", &tcmalloc);
    if (mimalloc.malloc != nullptr) two_threads("mimalloc", &mimalloc);
    if (jemalloc.malloc != nullptr) two_threads("jemalloc", &jemalloc);
    two_threads<Malloc>("malloc");
    two_threads<Pmr<std::pmr::synchronized_pool_resource>>("pmr_synchronized");
    one_thread<Pmr<std::pmr::unsynchronized_pool_resource>>("pmr_unsynchronized");

    benchmark::RegisterBenchmark("copy_a_handle/muses", copy_muses);
    benchmark::RegisterBenchmark("copy_a_handle/shared_ptr", copy_shared);
    benchmark::RegisterBenchmark("make_and_end/muses", make_muses);
    benchmark::RegisterBenchmark("make_and_end/shared_ptr", make_shared);

    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
