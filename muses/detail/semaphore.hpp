// An exact counting semaphore for threads that sleep next to a lock-free structure, which does not touch it while nobody sleeps.
//
// Why not std::counting_semaphore: its acquire() has lost wake-ups in libraries in use (GCC bug 98033; libc++ had one of its
// own), it has no way to take an announcement back, and its release() costs an atomic write for every element even when nobody
// waits. Why not an event count: between waking a sleeper and the sleeper's running, every further push would wake again.
//
// Here one 64-bit word holds both counts: the sleepers that nobody has woken yet, and the permits for those that were woken but
// have not left yet. A wake-up moves one from the left count to the right one in a single step, so each announced thread is woken
// at most once and at all times
//
//     sleepers + permits == threads between announce() and their leaving by wait_until() == true or by withdraw()
//
// which is what "exact" means: a permit never outlives the threads that it is for, so nothing is left over after a time-out, an
// eviction or an element that somebody else took. A permit is for whoever comes first: a thread that finds nothing to do and
// announces itself again may take the permit of another, which then sleeps on in its place. For elements that is right. For an
// interruption, which is meant for particular threads, it would not be: so interrupt() gives no permits, but changes a number
// that all sleepers compare, and they look whether they were meant.
//
// The sleeping itself is a futex on one half of the word (64-bit Linux), or a mutex and a condition variable (elsewhere).
#pragma once

#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "muses/detail/duration.hpp"

#if defined(__linux__) && defined(__LP64__)  // on 32 bits the call wants another timespec than the library's
#define MUSES_DETAIL_FUTEX 1
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace muses::detail {

/// The parts of the semaphore's word: 32 bits sleepers; and the half that threads sleep on: 16 bits epoch, 16 bits permits.
struct SemaphoreWord {
    static constexpr std::uint64_t kOnePermit = 1;
    static constexpr std::uint64_t kOneEpoch = std::uint64_t{1} << 16U;
    static constexpr std::uint64_t kEpochMask = std::uint64_t{0xFFFF} << 16U;
    static constexpr std::uint64_t kOneSleeper = std::uint64_t{1} << 32U;

    static constexpr std::uint32_t sleepers(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32U); }
    static constexpr std::uint32_t permits(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word & 0xFFFFU); }
    /// What a sleeper compares: it changes with each permit and each interruption.
    static constexpr std::uint32_t sleeping_half(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
};

/// Sleeps with a mutex and a condition variable: for systems without a futex.
class CondvarParker {
public:
    /// Sleeps while the sleeping half of `word` is `expected`. False when `deadline` came first; true may be spurious.
    bool park(const std::atomic<std::uint64_t>& word, std::uint32_t expected, SteadyTime deadline) noexcept {
        std::unique_lock lock(mutex_);
        // relaxed: the caller looks again with an acquire load of its own.
        const auto changed = [&] { return SemaphoreWord::sleeping_half(word.load(std::memory_order_relaxed)) != expected; };
        if (deadline != kNever) return woken_.wait_until(lock, deadline, changed);
        woken_.wait(lock, changed);
        return true;
    }

    /// Wakes one thread, or all of them; the word must be changed already.
    void unpark(const std::atomic<std::uint64_t>& /*word*/, bool all) noexcept {
        // Through the mutex: a thread that saw no change under it is asleep by now, and not on its way to sleep.
        { const std::lock_guard lock(mutex_); }
        if (all) {
            woken_.notify_all();
        } else {
            woken_.notify_one();
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable woken_;
};

#if defined(MUSES_DETAIL_FUTEX)

/// Sleeps on the word itself.
class FutexParker {
public:
    /// Sleeps while the sleeping half of `word` is `expected`. False when `deadline` came first; true may be spurious.
    bool park(const std::atomic<std::uint64_t>& word, std::uint32_t expected, SteadyTime deadline) noexcept {
        timespec time{};
        if (deadline != kNever) {  // steady_clock is CLOCK_MONOTONIC, the clock that FUTEX_WAIT_BITSET measures by
            const auto since = deadline.time_since_epoch();
            const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
            time.tv_sec = static_cast<decltype(time.tv_sec)>(seconds.count());
            time.tv_nsec = static_cast<decltype(time.tv_nsec)>(std::chrono::nanoseconds(since - seconds).count());
        }
        const long result = ::syscall(SYS_futex, sleeping_half(word), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
                                      deadline == kNever ? nullptr : &time, nullptr, FUTEX_BITSET_MATCH_ANY);
        return !(result == -1 && errno == ETIMEDOUT);  // EAGAIN: the word changed first. EINTR: the caller looks and comes back.
    }

    /// Wakes one thread, or all of them; the word must be changed already.
    void unpark(const std::atomic<std::uint64_t>& word, bool all) noexcept {
        ::syscall(SYS_futex, sleeping_half(word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, all ? INT_MAX : 1, nullptr, nullptr, 0U);
    }

private:
    static const std::uint32_t* sleeping_half(const std::atomic<std::uint64_t>& word) noexcept {
        static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free,
                      "FutexParker: the kernel reads the word in place, so the atomic must be a plain 64-bit word");
        return reinterpret_cast<const std::uint32_t*>(&word) + (std::endian::native == std::endian::little ? 0 : 1);
    }
};

using DefaultParker = FutexParker;
#else
using DefaultParker = CondvarParker;
#endif

/// What: the semaphore described on top of this file. A sleeper calls announce(), looks once more at what it waits for, and then
///     either wait_until() or withdraw(). A waker changes what is waited for, asks has_sleepers(), and calls wake_one() if so.
/// Complexity: O(1); a wake-up is one system call, has_sleepers() a plain load.
/// Threads: all members from any thread.
/// Lifetime: must outlive every call; the last thread to leave may be a waker that has yet to return from wake_one().
/// Limits: 65,535 threads at once.
template <class Parker = DefaultParker>
class SleepSemaphore {
public:
    /// True when there may be somebody to wake. The waker's half of a Dekker pair: a sequentially consistent write to what is
    /// waited for, then this load; the sleeper's half is announce(), then a sequentially consistent load of what is waited for.
    /// In the single order of these four one side is first, so either the waker sees the sleeper or the sleeper sees the write.
    [[nodiscard]] bool has_sleepers() const noexcept {
        // seq_cst: pairs with announce(). On x86 and ARMv8 it costs no more than an acquire load.
        return SemaphoreWord::sleepers(word_.load(std::memory_order_seq_cst)) != 0;
    }

    /// Gives one permit to one sleeper, if there is any.
    void wake_one() noexcept {
        std::uint64_t word = word_.load(std::memory_order_relaxed);  // relaxed: only a guess for the exchange
        do {
            if (SemaphoreWord::sleepers(word) == 0) return;
            // release: pairs with the acquires in wait_until() and withdraw().
        } while (!word_.compare_exchange_weak(word, word - SemaphoreWord::kOneSleeper + SemaphoreWord::kOnePermit,
                                              std::memory_order_release, std::memory_order_relaxed));
        parker_.unpark(word_, false);
    }

    /// Makes each sleeper ask its `interrupted` once more. Set what that reads before.
    void interrupt() noexcept {
        std::uint64_t word = word_.load(std::memory_order_relaxed);  // relaxed: only a guess for the exchange
        std::uint64_t next = 0;
        do {
            next = (word & ~SemaphoreWord::kEpochMask) | ((word + SemaphoreWord::kOneEpoch) & SemaphoreWord::kEpochMask);
            // release: pairs with the acquire load in wait_until(): a thread that compares the new epoch sees what was set before.
        } while (!word_.compare_exchange_weak(word, next, std::memory_order_release, std::memory_order_relaxed));
        parker_.unpark(word_, true);
    }

    /// Enters the calling thread as a sleeper, before its last look. To be followed by wait_until() or withdraw().
    void announce() noexcept {
        word_.fetch_add(SemaphoreWord::kOneSleeper, std::memory_order_seq_cst);  // seq_cst: pairs with has_sleepers()
    }

    /// Takes the announcement back. True when a permit was on its way to the caller, or to somebody in the same position: it is
    /// used up now, and the caller has to do what the permit was for, or pass it on with wake_one().
    bool withdraw() noexcept {
        std::uint64_t word = word_.load(std::memory_order_relaxed);  // relaxed: only a guess for the exchange
        for (;;) {
            // Prefer the announcement: a permit that is left is then for somebody who still sleeps.
            const bool permit = SemaphoreWord::sleepers(word) == 0;
            const std::uint64_t next = word - (permit ? SemaphoreWord::kOnePermit : SemaphoreWord::kOneSleeper);
            // acquire: pairs with the release in wake_one(); whoever uses up a permit sees what it was given for.
            if (word_.compare_exchange_weak(word, next, std::memory_order_acquire, std::memory_order_relaxed)) return permit;
        }
    }

    /// Sleeps until a permit comes and takes it: true. False when `deadline` came first (kNever is for ever) or interrupted()
    /// returned true: the caller is still announced and has to withdraw() itself.
    template <class Interrupted>
    [[nodiscard]] bool wait_until(SteadyTime deadline, Interrupted interrupted) noexcept {
        for (;;) {
            // acquire: pairs with the release in interrupt(). Either interrupted() sees what was set before the new epoch, or the
            // epoch read here is an older one and park() will not sleep on it.
            std::uint64_t word = word_.load(std::memory_order_acquire);
            while (SemaphoreWord::permits(word) != 0) {
                // acquire: pairs with the release in wake_one(), and on failure again with interrupt().
                if (word_.compare_exchange_weak(word, word - SemaphoreWord::kOnePermit, std::memory_order_acquire,
                                                std::memory_order_acquire)) {
                    return true;
                }
            }
            if (interrupted() || !parker_.park(word_, SemaphoreWord::sleeping_half(word), deadline)) return false;
        }
    }

    /// Threads that are announced and not woken, and permits not yet taken: for tests. Stale at once.
    [[nodiscard]] std::uint32_t sleepers_approx() const noexcept {
        return SemaphoreWord::sleepers(word_.load(std::memory_order_relaxed));  // relaxed: a number, nothing follows from it
    }
    [[nodiscard]] std::uint32_t permits_approx() const noexcept {
        return SemaphoreWord::permits(word_.load(std::memory_order_relaxed));  // relaxed: the same
    }

private:
    std::atomic<std::uint64_t> word_{0};
    [[no_unique_address]] Parker parker_;
};

}  // namespace muses::detail
