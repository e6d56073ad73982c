// Where a logger's records become lines: the sinks, and what they are told. Used by the logger's own thread.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muses/detail/log_record.hpp"
#include "muses/detail/log_sinks.hpp"
#include "muses/detail/log_text.hpp"
#include "muses/detail/text_escape.hpp"

namespace muses::detail {

/// What: renders records and hands them to every sink; a sink that throws keeps nothing from the others, and is told of once.
/// Complexity: O(length of the line), once for all sinks; no allocation once the buffers have grown.
/// Threads: one, but for errors().
/// Lifetime: owns the sinks.
/// Limits: memory; a line for which there is none is refused.
class LogWriter {
public:
    /// Takes all of `sinks`, which is empty afterwards. Throws std::bad_alloc and takes none.
    void add(std::vector<std::unique_ptr<LogSink>>& sinks) {
        sinks_.reserve(sinks_.size() + sinks.size());  // before anything is moved
        for (std::unique_ptr<LogSink>& sink : sinks) sinks_.push_back(Sink{std::move(sink)});
        sinks.clear();
    }

    /// Gives all sinks away.
    [[nodiscard]] std::vector<std::unique_ptr<LogSink>> take() {
        std::vector<std::unique_ptr<LogSink>> sinks;
        sinks.reserve(sinks_.size());
        for (Sink& sink : sinks_) sinks.push_back(std::move(sink.sink));
        sinks_.clear();
        return sinks;
    }

    /// False when there is no memory for the text.
    bool write(const LogRecord& record) noexcept {
        try {
            message_.clear();
            record.render(message_);
            if (record.suppressed() != 0) {
                message_ += " (";
                message_ += std::to_string(record.suppressed());
                message_ += " similar lines held back)";
            }
            write(record.level(), record.time_ns(), record.thread(), message_);
        } catch (...) {
            return false;
        }
        return true;
    }

    /// Writes a line about `lost` lines. False when there is no memory for it.
    bool write_loss(std::uint64_t lost) noexcept {
        try {
            write(LogLevel::Warn, log_wall_clock(), log_thread_id(), std::to_string(lost) + " log lines were dropped here");
        } catch (...) {
            return false;
        }
        return true;
    }

    void flush() noexcept {
        for_each_sink([](LogSink& sink) { sink.flush(); });
    }
    void reopen() noexcept {
        for_each_sink([](LogSink& sink) { sink.reopen(); });
    }

    /// Calls into a sink that threw. Any thread.
    [[nodiscard]] std::uint64_t errors() const noexcept {
        return errors_.load(std::memory_order_relaxed);  // relaxed: a counter guards nothing
    }

private:
    struct Sink {
        std::unique_ptr<LogSink> sink;
        bool failure_told = false;
    };

    void write(LogLevel level, std::int64_t time_ns, std::uint32_t thread, std::string_view message) {
        const LogEntry entry = compose(level, time_ns, thread, message);
        for_each_sink([&](LogSink& sink) { sink.write(entry); });
    }

    /// The entry's views are valid until the next call.
    LogEntry compose(LogLevel level, std::int64_t time_ns, std::uint32_t thread, std::string_view message) {
        const std::string_view time = time_text_(time_ns);
        line_ = time;
        line_ += ' ';
        line_ += log_level_column(level);
        line_ += " [";
        line_ += std::to_string(thread);
        line_ += "] ";
        append_escaped(line_, message);
        return {level, time_ns, thread, time, message, line_};
    }

    /// Calls f on every sink; one that throws keeps nothing from the others.
    template <class F>
    void for_each_sink(F&& f) noexcept {
        for (Sink& sink : sinks_) {
            try {
                f(*sink.sink);
            } catch (const std::exception& e) {
                count_failure(sink, e.what());
            } catch (...) {
                count_failure(sink, "unknown exception");
            }
        }
    }

    /// Counts; the first time also tells the other sinks, or standard error when there is none that takes it.
    void count_failure(Sink& failed, const char* what) noexcept {
        errors_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter guards nothing
        if (std::exchange(failed.failure_told, true)) return;
        try {
            const std::string message = std::string("a log sink has failed: ") + what + " (later failures are only counted)";
            LogTimeText time_text;  // the members are in use: a line is on its way
            std::string line(time_text(log_wall_clock()));
            const std::string time = line;
            line += " ERROR [" + std::to_string(log_thread_id()) + "] ";
            append_escaped(line, message);
            const LogEntry entry{LogLevel::Error, log_wall_clock(), log_thread_id(), time, message, line};
            bool taken = false;
            for (Sink& other : sinks_) {
                if (&other == &failed || other.failure_told) continue;
                try {
                    other.sink->write(entry);
                    other.sink->flush();  // this may be the flush of the last batch for a while
                    taken = true;
                } catch (const std::exception& e) {
                    count_failure(other, e.what());  // not deep: each sink tells of itself once
                } catch (...) {
                    count_failure(other, "unknown exception");
                }
            }
            line += '\n';
            if (!taken && ::write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody left to tell
        } catch (...) {                                                                  // no memory for the report; it is counted
        }
    }

    std::vector<Sink> sinks_;
    std::string message_;
    std::string line_;
    LogTimeText time_text_;
    std::atomic<std::uint64_t> errors_{0};
};

}  // namespace muses::detail
