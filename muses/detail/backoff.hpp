// What a thread does while it waits for a step that another thread is about to make.
#pragma once

#include <chrono>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace muses::detail {

/// Tells the processor that this is a waiting loop: tens of cycles, no system call.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ __volatile__("yield");
#endif
}

/// What: pauses that grow: first a few processor pauses, then the rest of the time slice, then sleeps of up to 1 ms.
/// Complexity: O(1) per pause.
/// Threads: one.
/// Lifetime: a local variable of the waiting loop.
/// Limits: meant for steps that take nanoseconds unless the other thread was descheduled; it never gives up by itself.
class Backoff {
public:
    void pause() noexcept {
        ++rounds_;
        if (rounds_ <= kProcessorRounds) {
            for (unsigned i = 0; i < (1U << rounds_); ++i) cpu_pause();
        } else if (rounds_ <= kYieldRounds) {
            std::this_thread::yield();
        } else {
            // The other thread may have a lower real-time priority than this one: only sleeping lets it run.
            rounds_ = rounds_ < kYieldRounds + kLongestSleepRounds ? rounds_ : kYieldRounds + kLongestSleepRounds;
            std::this_thread::sleep_for(std::chrono::microseconds(20) * (rounds_ - kYieldRounds));
        }
    }

private:
    static constexpr unsigned kProcessorRounds = 5;  // 62 pauses in all: about 2 microseconds
    static constexpr unsigned kYieldRounds = 100;
    static constexpr unsigned kLongestSleepRounds = 50;  // 1 ms

    unsigned rounds_ = 0;
};

}  // namespace muses::detail
