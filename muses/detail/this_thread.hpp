// What the standard library does not say about threads: how many processors this one may use, its name, and a short pause.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>

#include <memory>
#elif defined(__APPLE__)
#include <pthread.h>
#endif

namespace muses::detail {

/// How many processors the calling thread may run on: its affinity mask where there is one (taskset and containers narrow it),
/// else all of the machine. At least 1.
[[nodiscard]] inline std::size_t usable_processors() {
#if defined(__linux__)
    // The kernel refuses a mask that is smaller than its own; the sizes that are tried go well beyond any kernel's.
    for (int processors = 1024; processors <= 1024 * 1024; processors *= 2) {
        struct Free {
            void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
        };
        const std::unique_ptr<cpu_set_t, Free> set(CPU_ALLOC(processors));
        if (!set) break;
        const std::size_t bytes = CPU_ALLOC_SIZE(processors);
        if (::sched_getaffinity(0, bytes, set.get()) == 0)
            return std::max<std::size_t>(1, static_cast<std::size_t>(CPU_COUNT_S(bytes, set.get())));
    }
#endif
    return std::max<std::size_t>(1, std::thread::hardware_concurrency());
}

/// Passes a few hundred nanoseconds in a loop that waits for another processor, sparing the other thread of this core.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#elif defined(__aarch64__)
    for (int i = 0; i < 8; ++i) asm volatile("isb" ::: "memory");
#endif
}

/// The longest thread name that every supported system keeps, in bytes.
inline constexpr std::size_t kThreadNameBytes = 15;

/// Names the calling thread for debuggers and `top -H`; a longer name is cut to kThreadNameBytes. Without effect where threads
/// have no names.
inline void name_this_thread(const std::string& name) {
#if defined(__linux__)
    (void)::pthread_setname_np(::pthread_self(), name.substr(0, kThreadNameBytes).c_str());
#elif defined(__APPLE__)
    (void)::pthread_setname_np(name.substr(0, kThreadNameBytes).c_str());
#else
    (void)name;
#endif
}

}  // namespace muses::detail
