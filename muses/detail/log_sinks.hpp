// Where log lines end: files, the terminal, JSON, a function.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "muses/detail/log_file.hpp"
#include "muses/detail/log_text.hpp"
#include "muses/detail/text_escape.hpp"

namespace muses {

/// What: the interface of everything that takes log lines.
/// Complexity: up to the sink; all sinks of a logger share one thread, so a slow one delays the others.
/// Threads: a logger calls its sinks from its own thread only, one call at a time.
/// Lifetime: owned by the logger it was added to; destroyed with it.
/// Limits: may throw: that is counted in LogStats::sink_errors, told once per sink to the other sinks (to stderr when there is no
/// other), and keeps no line from the other sinks. May log to its own logger; must not destroy it.
class LogSink {
public:
    LogSink() = default;
    LogSink(const LogSink&) = delete;
    LogSink& operator=(const LogSink&) = delete;
    virtual ~LogSink() = default;

    /// Takes one line. It may be kept in a buffer until flush().
    virtual void write(const LogEntry& entry) = 0;
    /// Called after each batch of lines: nothing may stay in a buffer.
    virtual void flush() {}
    /// Called after Logger::reopen(): the file behind this sink may have been renamed.
    virtual void reopen() {}
};

/// What: appends lines of text to a file, and begins a new one above a given size.
/// Complexity: one system call per batch of lines.
/// Threads: see LogSink.
/// Lifetime: holds one descriptor.
/// Limits: FileSinkOptions.
class FileSink final : public LogSink {
public:
    /// Opens the file. Throws std::invalid_argument for an empty path and std::system_error when the file cannot be opened.
    explicit FileSink(FileSinkOptions options) : file_(std::move(options)) {}

    void write(const LogEntry& entry) override { file_.append(entry.line, entry.time_ns); }
    void flush() override { file_.flush(); }
    void reopen() override { file_.reopen(); }

private:
    detail::LogFile file_;
};

/// What: appends one JSON object per line: {"time":…,"level":…,"thread":…,"message":…}. Always valid UTF-8.
/// Complexity: one system call per batch of lines.
/// Threads: see LogSink.
/// Lifetime: holds one descriptor.
/// Limits: FileSinkOptions.
class JsonSink final : public LogSink {
public:
    /// Opens the file. Throws std::invalid_argument for an empty path and std::system_error when the file cannot be opened.
    explicit JsonSink(FileSinkOptions options) : file_(std::move(options)) {}

    void write(const LogEntry& entry) override {
        text_ = R"({"time":")";
        text_ += entry.time;
        text_ += R"(","level":")";
        text_ += to_string(entry.level);
        text_ += R"(","thread":)";
        text_ += std::to_string(entry.thread);
        text_ += R"(,"message":")";
        detail::append_json_escaped(text_, entry.message);
        text_ += R"("})";
        file_.append(text_, entry.time_ns);
    }
    void flush() override { file_.flush(); }
    void reopen() override { file_.reopen(); }

private:
    detail::LogFile file_;
    std::string text_;
};

/// Whether a StderrSink colours the level of a line.
enum class LogColour {
    Auto,  ///< when the descriptor is a terminal, NO_COLOR is not set and TERM is not "dumb"
    Never,
    Always,
};

/// What: writes lines of text to standard error, with coloured levels on a terminal.
/// Complexity: one system call per batch of lines.
/// Threads: see LogSink.
/// Lifetime: does not own its descriptor.
/// Limits: none.
class StderrSink final : public LogSink {
public:
    /// `fd` stands in for standard error. Never throws.
    explicit StderrSink(LogColour colour = LogColour::Auto, int fd = STDERR_FILENO) noexcept
        : fd_(fd), coloured_(colour == LogColour::Always || (colour == LogColour::Auto && is_colour_terminal(fd))) {}

    void write(const LogEntry& entry) override {
        if (coloured_) {
            text_ = entry.line;
            const std::size_t level = entry.time.size() + 1;
            text_.insert(level + detail::log_level_column(entry.level).size(), "\033[0m");
            text_.insert(level, colour_of(entry.level));
            buffer_.append(text_);
        } else {
            buffer_.append(entry.line);
        }
        if (buffer_.size() >= detail::LogBuffer::kFlushAt) buffer_.write_to(fd_, written_);
    }
    void flush() override {
        if (buffer_.size() != 0) buffer_.write_to(fd_, written_);
    }

private:
    static bool is_colour_terminal(int fd) noexcept {
        const char* const no_colour = std::getenv("NO_COLOR");
        const char* const terminal = std::getenv("TERM");
        return ::isatty(fd) == 1 && (no_colour == nullptr || *no_colour == '\0') && terminal != nullptr &&
               std::string_view(terminal) != "dumb";
    }

    static std::string_view colour_of(LogLevel level) noexcept {
        switch (level) {
            case LogLevel::Trace: return "\033[90m";  // grey
            case LogLevel::Debug: return "\033[36m";  // cyan
            case LogLevel::Info: return "\033[32m";   // green
            case LogLevel::Warn: return "\033[33m";   // yellow
            case LogLevel::Error: return "\033[31m";  // red
            case LogLevel::Off: break;
        }
        return "";
    }

    detail::LogBuffer buffer_;
    std::string text_;
    std::uint64_t written_ = 0;
    int fd_;
    bool coloured_;
};

/// What: hands each line of text to a function.
/// Complexity: that of the function.
/// Threads: the function is called from the logger's thread; see LogSink.
/// Lifetime: owns the function; what it captures must outlive the logger.
/// Limits: the view is valid during the call only.
class CallbackSink final : public LogSink {
public:
    /// Throws std::invalid_argument when there is no function.
    explicit CallbackSink(std::function<void(std::string_view line)> function) : function_(std::move(function)) {
        if (!function_) throw std::invalid_argument("muses::CallbackSink: the function is empty");
    }

    void write(const LogEntry& entry) override { function_(entry.line); }

private:
    std::function<void(std::string_view)> function_;
};

}  // namespace muses
