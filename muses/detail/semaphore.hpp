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
// which is what "exact": a permit never outlives the threads that it is for, so nothing is left over after a time-out, an
// eviction or an element that somebody else took. The sleeping itself is a futex on the permits half (Linux) or a mutex and a
// condition variable (elsewhere).
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

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace muses::detail {

/// The two halves of the semaphore's word.
struct SemaphoreWord {
    static constexpr std::uint64_t kOnePermit = 1;
    static constexpr std::uint64_t kOneSleeper = std::uint64_t{1} << 32U;

    static constexpr std::uint32_t permits(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
    static constexpr std::uint32_t sleepers(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32U); }
};

/// Sleeps with a mutex and a condition variable: for systems without a futex.
class CondvarParker {
public:
    /// Sleeps while `word` has no permit. False when `deadline` came first; true may be spurious.
    bool park(const std::atomic<std::uint64_t>& word, SteadyTime deadline) noexcept {
        std::unique_lock lock(mutex_);
        // relaxed: the caller takes the permit with an acquire operation of its own.
        const auto has_permit = [&] { return SemaphoreWord::permits(word.load(std::memory_order_relaxed)) != 0; };
        if (deadline != kNever) return woken_.wait_until(lock, deadline, has_permit);
        woken_.wait(lock, has_permit);
        return true;
    }

    /// Wakes up to `count` threads; the permits must be in the word already.
    void unpark(const std::atomic<std::uint64_t>& /*word*/, std::uint32_t count) noexcept {
        // Through the mutex: a thread that saw no permit under it is asleep by now, and not on its way to sleep.
        { const std::lock_guard lock(mutex_); }
        if (count == 1) {
            woken_.notify_one();
        } else {
            woken_.notify_all();
        }
    }

private:
    std::mutex mutex_;
    std::condition_variable woken_;
};

#if defined(__linux__)

/// Sleeps on the permits half of the word itself.
class FutexParker {
public:
    /// Sleeps while `word` has no permit. False when `deadline` came first; true may be spurious.
    bool park(const std::atomic<std::uint64_t>& word, SteadyTime deadline) noexcept {
        timespec time{};
        if (deadline != kNever) {  // steady_clock is CLOCK_MONOTONIC, the clock that FUTEX_WAIT_BITSET measures by
            const auto since = deadline.time_since_epoch();
            const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
            time.tv_sec = static_cast<decltype(time.tv_sec)>(seconds.count());
            time.tv_nsec = static_cast<decltype(time.tv_nsec)>(std::chrono::nanoseconds(since - seconds).count());
        }
        const long result = ::syscall(SYS_futex, permits_address(word), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0U,
                                      deadline == kNever ? nullptr : &time, nullptr, FUTEX_BITSET_MATCH_ANY);
        return !(result == -1 && errno == ETIMEDOUT);  // EAGAIN: a permit came first. EINTR: the caller looks and comes back.
    }

    /// Wakes up to `count` threads; the permits must be in the word already.
    void unpark(const std::atomic<std::uint64_t>& word, std::uint32_t count) noexcept {
        const int at_most = count > static_cast<std::uint32_t>(INT_MAX) ? INT_MAX : static_cast<int>(count);
        ::syscall(SYS_futex, permits_address(word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, at_most, nullptr, nullptr, 0U);
    }

private:
    static const std::uint32_t* permits_address(const std::atomic<std::uint64_t>& word) noexcept {
        static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free,
                      "FutexParker: the kernel reads the permits in place, so the atomic must be the plain 64-bit word");
        return reinterpret_cast<const std::uint32_t*>(&word) + (std::endian::native == std::endian::little ? 0 : 1);
    }
};

using DefaultParker = FutexParker;
#else
using DefaultParker = CondvarParker;
#endif

/// What: the semaphore described on top of this file. A sleeper calls announce(), looks once more at what it waits for, and then
///     either wait_until() or withdraw(). A waker changes what is waited for, asks has_sleepers(), and calls wake_one() if so.
/// Complexity: O(1); a wake-up is one system call per sleeper woken, has_sleepers() a plain load.
/// Threads: all members from any thread.
/// Lifetime: must outlive every call; the last thread to leave may be a waker that has yet to return from wake_one().
/// Limits: 2^32 - 1 threads.
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

    /// Enters the calling thread as a sleeper, before its last look. To be followed by wait_until() or withdraw().
    void announce() noexcept {
        // seq_cst: pairs with has_sleepers(). As an acquire it pairs with wake_all(), see there.
        word_.fetch_add(SemaphoreWord::kOneSleeper, std::memory_order_seq_cst);
    }

    /// Takes the announcement back. True when a permit was on its way to the caller, or to somebody in the same position: it is
    /// used up now, and the caller has to do what the permit was for, or pass it on with wake_one().
    bool withdraw() noexcept {
        std::uint64_t word = word_.load(std::memory_order_relaxed);  // relaxed: only a guess for the exchange
        for (;;) {
            // Prefer the announcement: a permit that is left is then for somebody who still sleeps.
            const bool permit = SemaphoreWord::sleepers(word) == 0;
            const std::uint64_t next = word - (permit ? SemaphoreWord::kOnePermit : SemaphoreWord::kOneSleeper);
            // acquire: pairs with the release in wake(); whoever uses up a permit sees what it was given for.
            if (word_.compare_exchange_weak(word, next, std::memory_order_acquire, std::memory_order_relaxed)) return permit;
        }
    }

    /// Sleeps until a permit comes and takes it: true. False when `deadline` came first: the caller is still announced and has to
    /// withdraw() itself. kNever is for ever.
    [[nodiscard]] bool wait_until(SteadyTime deadline) noexcept {
        for (;;) {
            std::uint64_t word = word_.load(std::memory_order_relaxed);  // relaxed: only a guess for the exchange
            while (SemaphoreWord::permits(word) != 0) {
                // acquire: pairs with the release in wake().
                if (word_.compare_exchange_weak(word, word - SemaphoreWord::kOnePermit, std::memory_order_acquire,
                                                std::memory_order_relaxed)) {
                    return true;
                }
            }
            if (!parker_.park(word_, deadline)) return false;
        }
    }

    /// Gives one permit to one sleeper, if there is any.
    void wake_one() noexcept { wake(1); }

    /// Gives a permit to each sleeper. Always writes the word, also with nobody asleep: a thread that announces itself later then
    /// synchronizes with this call and sees all that its caller wrote before (a stop flag, say).
    void wake_all() noexcept { wake(UINT32_MAX); }

    /// Threads that are announced and not woken, and permits not yet taken: for tests. Stale at once.
    [[nodiscard]] std::uint32_t sleepers_approx() const noexcept {
        return SemaphoreWord::sleepers(word_.load(std::memory_order_relaxed));  // relaxed: a number, nothing follows from it
    }
    [[nodiscard]] std::uint32_t permits_approx() const noexcept {
        return SemaphoreWord::permits(word_.load(std::memory_order_relaxed));  // relaxed: the same
    }

private:
    void wake(std::uint32_t at_most) noexcept {
        std::uint64_t word = word_.load(std::memory_order_relaxed);  // relaxed: only a guess for the exchange
        for (;;) {
            const std::uint32_t sleepers = SemaphoreWord::sleepers(word);
            const std::uint32_t count = sleepers < at_most ? sleepers : at_most;
            const std::uint64_t next = word - count * SemaphoreWord::kOneSleeper + count * SemaphoreWord::kOnePermit;
            // release: pairs with the acquires in wait_until(), withdraw() and announce().
            if (!word_.compare_exchange_weak(word, next, std::memory_order_release, std::memory_order_relaxed)) continue;
            if (count != 0) parker_.unpark(word_, count);
            return;
        }
    }

    std::atomic<std::uint64_t> word_{0};
    [[no_unique_address]] Parker parker_;
};

}  // namespace muses::detail
