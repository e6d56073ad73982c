// All that a line of logging needs, and nothing of the thread, ring and sinks behind it.
//
// Include this where you log through a `LogTarget&` that somebody else has made; include "muses/logging.hpp" where the Logger is
// made (it includes this one).
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <format>
#include <limits>
#include <type_traits>
#include <utility>

#include "muses/detail/log_record.hpp"

namespace muses {

/// What: the part of a Logger that a log line uses: its level, and where a line goes.
/// Complexity: a line below the level costs one load and one branch; one above it the copy of its arguments.
/// Threads: any, at the same time.
/// Lifetime: must outlive the call; arguments need not outlive it.
/// Limits: see detail::LogRecord for the length of one text argument.
class LogTarget {
public:
    LogTarget(const LogTarget&) = delete;
    LogTarget& operator=(const LogTarget&) = delete;

    /// True when a line of this level is kept. Any thread.
    [[nodiscard]] bool enabled(LogLevel level) const noexcept {
        // Relaxed: the level guards no data; another thread may see a change a little later.
        return level >= level_.load(std::memory_order_relaxed) && level != LogLevel::Off;
    }

    /// The lowest level that is kept. Any thread.
    [[nodiscard]] LogLevel level() const noexcept { return level_.load(std::memory_order_relaxed); }  // relaxed: as in enabled()

    /// Changes it from now on; lines that are queued already stay. Any thread.
    void set_level(LogLevel level) noexcept { level_.store(level, std::memory_order_relaxed); }  // relaxed: as in enabled()

    /// Logs one line, if the level is enabled. Never throws: a line that cannot be kept is counted as dropped. Arguments are
    /// evaluated by the caller in any case, which the macros below avoid. Any thread, also in destructors of static objects.
    template <class... Args>
    void log(LogLevel level, std::format_string<Args...> format, Args&&... args) noexcept {
        if (enabled(level)) log_after(0, level, format, std::forward<Args>(args)...);
    }

    /// Logs one line without asking for the level, and notes how many similar ones a rate limit held back before it.
    template <class... Args>
    void log_after(std::uint32_t suppressed, LogLevel level, std::format_string<Args...> format, Args&&... args) noexcept {
        detail::LogRecord record(level, suppressed);
        bool captured = false;
        if constexpr ((detail::LogCapturable<std::remove_cvref_t<Args>> && ...))
            captured = record.capture(format.get(), args...);
        else
            captured = record.capture_formatted(format.get(), std::make_format_args(args...));
        if (captured)
            submit(std::move(record));
        else
            count_lost();
    }

protected:
    explicit LogTarget(LogLevel level) noexcept : level_(level) {}
    ~LogTarget() = default;

    /// Takes a captured line, or counts it as dropped.
    virtual void submit(detail::LogRecord&& record) noexcept = 0;
    /// Counts a line for whose arguments there was no memory.
    virtual void count_lost() noexcept = 0;

private:
    std::atomic<LogLevel> level_;
};

namespace detail {

/// Lets one line per interval through at one place of the program, and counts the others.
class LogRateGate {
public:
    constexpr LogRateGate() noexcept = default;

    /// -1 when the line is to be held back; else how many were held back since the last one that passed. Any thread. An
    /// interval of zero or less lets everything through.
    template <class Duration>
    std::int64_t pass(Duration interval) noexcept {
        timespec now{};
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        return pass_at(std::int64_t{now.tv_sec} * 1'000'000'000 + std::int64_t{now.tv_nsec}, to_ns(interval));
    }

    /// The same at a given time in nanoseconds.
    std::int64_t pass_at(std::int64_t now, std::int64_t interval) noexcept {
        // All relaxed: the gate publishes no data, each counter is exact by itself, and only one thread can win the exchange.
        if (interval > 0) {
            std::int64_t next = next_.load(std::memory_order_relaxed);
            const std::int64_t then = now > 0 && interval > kNever - now ? kNever : now + interval;
            if (now < next || !next_.compare_exchange_strong(next, then, std::memory_order_relaxed)) {
                suppressed_.fetch_add(1, std::memory_order_relaxed);
                return -1;
            }
        }
        return suppressed_.exchange(0, std::memory_order_relaxed);
    }

private:
    static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

    template <class Duration>
    static std::int64_t to_ns(Duration d) noexcept {  // by hand: <chrono> would double what this header costs to include
        const auto ns = static_cast<long double>(d.count()) * 1e9L * Duration::period::num / Duration::period::den;
        if (!(ns > 0)) return 0;  // negative, zero or not a number
        return ns < 9e18L ? static_cast<std::int64_t>(ns) : kNever;
    }

    std::atomic<std::int64_t> next_{std::numeric_limits<std::int64_t>::min()};
    std::atomic<std::uint32_t> suppressed_{0};
};

}  // namespace detail
}  // namespace muses

// The macros: MUSES_LOG_INFO(logger, "{} of {}", a, b). The format string is checked when it is compiled; `logger` is evaluated
// once, the arguments once or, below the level, not at all.
#define MUSES_DETAIL_LOG(target, level, ...)                                                       \
    do {                                                                                           \
        ::muses::LogTarget& muses_log_target_ = (target);                                          \
        if (muses_log_target_.enabled(level)) muses_log_target_.log_after(0U, level, __VA_ARGS__); \
    } while (false)

#define MUSES_DETAIL_LOG_EVERY(target, level, interval, ...)                                                  \
    do {                                                                                                      \
        ::muses::LogTarget& muses_log_target_ = (target);                                                     \
        if (muses_log_target_.enabled(level)) {                                                               \
            static constinit ::muses::detail::LogRateGate muses_log_gate_;                                    \
            if (const auto muses_log_held_ = muses_log_gate_.pass(interval); muses_log_held_ >= 0)            \
                muses_log_target_.log_after(static_cast<std::uint32_t>(muses_log_held_), level, __VA_ARGS__); \
        }                                                                                                     \
    } while (false)

#define MUSES_LOG_TRACE(logger, ...) MUSES_DETAIL_LOG(logger, ::muses::LogLevel::Trace, __VA_ARGS__)
#define MUSES_LOG_DEBUG(logger, ...) MUSES_DETAIL_LOG(logger, ::muses::LogLevel::Debug, __VA_ARGS__)
#define MUSES_LOG_INFO(logger, ...) MUSES_DETAIL_LOG(logger, ::muses::LogLevel::Info, __VA_ARGS__)
#define MUSES_LOG_WARN(logger, ...) MUSES_DETAIL_LOG(logger, ::muses::LogLevel::Warn, __VA_ARGS__)
#define MUSES_LOG_ERROR(logger, ...) MUSES_DETAIL_LOG(logger, ::muses::LogLevel::Error, __VA_ARGS__)

// At most one line per interval (a std::chrono::duration) from this place of the program; the next line that passes says how many
// were held back.
#define MUSES_LOG_TRACE_EVERY(logger, interval, ...) MUSES_DETAIL_LOG_EVERY(logger, ::muses::LogLevel::Trace, interval, __VA_ARGS__)
#define MUSES_LOG_DEBUG_EVERY(logger, interval, ...) MUSES_DETAIL_LOG_EVERY(logger, ::muses::LogLevel::Debug, interval, __VA_ARGS__)
#define MUSES_LOG_INFO_EVERY(logger, interval, ...) MUSES_DETAIL_LOG_EVERY(logger, ::muses::LogLevel::Info, interval, __VA_ARGS__)
#define MUSES_LOG_WARN_EVERY(logger, interval, ...) MUSES_DETAIL_LOG_EVERY(logger, ::muses::LogLevel::Warn, interval, __VA_ARGS__)
#define MUSES_LOG_ERROR_EVERY(logger, interval, ...) MUSES_DETAIL_LOG_EVERY(logger, ::muses::LogLevel::Error, interval, __VA_ARGS__)
