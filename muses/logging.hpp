// Asynchronous logging: the thread that logs copies the arguments, another one formats and writes.
//
//     muses::Logger log;
//     log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{"server.log", 10'000'000, 5}));
//     MUSES_LOG_INFO(log, "{} connections, {:.1f} MB", count, megabytes);
//
// A line looks like this:
//
//     2026-11-30T18:34:39.123456Z INFO  [4711] 12 connections, 3.5 MB
//
// A header that only logs through a `LogTarget&` includes "muses/log.hpp", which is lighter.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/detail/log_core.hpp"
#include "muses/detail/log_sinks.hpp"
#include "muses/detail/overflow_policy.hpp"
#include "muses/log.hpp"

namespace muses {

struct LoggerOptions {
    std::size_t capacity = 8192;                           ///< lines that may wait for the writing thread; about 200 bytes each
    OverflowPolicy overflow = OverflowPolicy::DropOldest;  ///< what happens to a line for which there is no room
    LogLevel level = LogLevel::Info;                       ///< lines below it are not kept
};

/// What: takes lines from any thread and hands them, formatted, to its sinks on a thread of its own.
/// Complexity: a line costs the copy of its arguments and a push into a bounded ring; no allocation up to 143 bytes of arguments.
/// Threads: any, at the same time; construction and destruction excepted. Lines of one thread keep their order.
/// Lifetime: the destructor is stop(). Nothing may be logged once it has begun; default_logger() has no such moment. A child of fork()
/// logs with its copy of the logger as the parent does, through the same sinks; no line of the parent is written there. Only where
/// a sink was stuck at the fork, or has called fork() itself, the child's lines count as dropped and flush() returns false.
/// Limits: LoggerOptions. Under DropOldest and DropNew a line never waits; losses are counted and written into the log. A logger
/// without sinks formats and forgets.
class Logger final : public LogTarget {
public:
    /// Starts the thread. Throws std::invalid_argument for an impossible capacity (0 is one) and std::system_error when the system
    /// refuses a thread.
    explicit Logger(LoggerOptions options = {})
        : LogTarget(options.level), core_(std::make_shared<detail::LogCore>(options.capacity, options.overflow)) {
        detail::LogCore::start(core_);
    }

    ~Logger() {
        core_->stop();
        if (core_->inherited()) {
            detail::LogCore::abandon(std::move(core_));
            return;
        }
        core_->detach();  // of use only when a sink destroys its own logger
    }

    /// Adds a place where lines go; every line logged after this call reaches it. Throws std::invalid_argument for a null pointer.
    void add_sink(std::unique_ptr<LogSink> sink) {
        if (!sink) throw std::invalid_argument("muses::Logger::add_sink: the sink is null");
        core_->add_sink(std::move(sink));
    }

    /// Waits until every line logged before (by this thread, or by others whose call happened before this one) has been handed to
    /// the sinks and these were flushed, or dropped and counted. False when `timeout` came first (a sink is slow), or when called
    /// by a sink of this logger. Lines logged meanwhile do not delay it beyond one content of the ring.
    template <class Rep, class Period>
    bool flush(std::chrono::duration<Rep, Period> timeout) {
        return core_->flush(detail::deadline_after(timeout));
    }

    /// Writes what is queued, and ends the thread; waits for both (called by a sink of this logger it does not wait). Lines logged
    /// afterwards are counted as dropped. A second call is harmless. It takes as long as the sinks do: flush() with a limit first,
    /// where that matters.
    void stop() { core_->stop(); }

    /// Tells the sinks that their files may have been renamed (logrotate): they open their path anew before the next line. Returns
    /// at once. Not for signal handlers: call it from where the signal is taken up.
    void reopen() { core_->reopen(); }

    /// What became of the lines so far. The numbers may be a little behind while others log.
    [[nodiscard]] LogStats stats() const noexcept { return core_->stats(); }

private:
    friend Logger& default_logger();

    void submit(detail::LogRecord&& record) noexcept override { core_->submit(std::move(record)); }
    void count_lost() noexcept override { core_->count_lost(1); }

    std::shared_ptr<detail::LogCore> core_;
};

/// The logger for all who have no other: level Info, to standard error. It is made by the first call and never destroyed, so that
/// destructors of static and thread_local objects may log too. What is queued at the end of the process is written; lines that come
/// later still are written one by one.
inline Logger& default_logger() {
    static Logger& logger = *[] {
        auto made = std::make_unique<Logger>();
        made->add_sink(std::make_unique<StderrSink>());
        made->core_->detach();  // it runs until the process ends, and nobody joins it
        return made.release();
    }();
    struct AtExit {
        ~AtExit() {
            logger.core_->set_synchronous();
            logger.flush(std::chrono::seconds(2));
        }
    };
    static const AtExit at_exit;
    return logger;
}

}  // namespace muses
