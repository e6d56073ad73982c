// How a log line looks: its level and its time. (Its text: text_escape.hpp.)
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "muses/detail/log_record.hpp"

namespace muses {

/// One line as the sinks see it. All views are valid until the sink's write() returns.
struct LogEntry {
    LogLevel level = LogLevel::Info;
    std::int64_t time_ns = 0;  ///< since 1970, UTC
    std::uint32_t thread = 0;  ///< the system's number of the thread that logged
    std::string_view time;     ///< "2026-11-30T18:34:39.123456Z"
    std::string_view message;  ///< as formatted; it may contain any byte
    std::string_view line;     ///< time, level, thread and the escaped message, without a newline
};

/// The name of a level in lower case.
[[nodiscard]] constexpr std::string_view to_string(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::Trace: return "trace";
        case LogLevel::Debug: return "debug";
        case LogLevel::Info: return "info";
        case LogLevel::Warn: return "warn";
        case LogLevel::Error: return "error";
        case LogLevel::Off: break;
    }
    return "off";
}

namespace detail {

/// The name of a level as it stands in a line: five characters.
[[nodiscard]] constexpr std::string_view log_level_column(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::Trace: return "TRACE";
        case LogLevel::Debug: return "DEBUG";
        case LogLevel::Info: return "INFO ";
        case LogLevel::Warn: return "WARN ";
        case LogLevel::Error: return "ERROR";
        case LogLevel::Off: break;
    }
    return "OFF  ";
}

/// Writes times as "2026-11-30T18:34:39.123456Z", in UTC. Remembers the last second, since most lines share it with their
/// neighbour. One thread.
class LogTimeText {
public:
    static constexpr std::size_t kWidth = 27;

    /// The text of a time in nanoseconds since 1970; valid until the next call.
    [[nodiscard]] std::string_view operator()(std::int64_t time_ns) {
        std::int64_t second = time_ns / kNsPerSecond;
        std::int64_t rest = time_ns % kNsPerSecond;
        if (rest < 0) {
            rest += kNsPerSecond;
            --second;
        }
        if (second != second_ || text_.empty()) {
            text_ = calendar(second);
            second_ = second;
        }
        auto micros = static_cast<unsigned>(rest / 1000);
        for (std::size_t i = kWidth - 2; i >= kWidth - 7; --i, micros /= 10) text_[i] = static_cast<char>('0' + micros % 10);
        return text_;
    }

private:
    static constexpr std::int64_t kNsPerSecond = 1'000'000'000;

    static std::string calendar(std::int64_t second) {  // 64 bits of nanoseconds stay within the years 1677 to 2262
        namespace chrono = std::chrono;
        const chrono::sys_seconds time{chrono::seconds{second}};
        const auto day = chrono::floor<chrono::days>(time);
        const chrono::year_month_day date{day};
        std::string text = "0000-00-00T00:00:00.000000Z";
        const auto put = [&](std::size_t at, std::size_t digits, std::int64_t value) {
            for (; digits > 0; --digits, value /= 10) text[at + digits - 1] = static_cast<char>('0' + value % 10);
        };
        const std::int64_t in_day = (time - day).count();
        put(0, 4, int{date.year()});
        put(5, 2, unsigned{date.month()});
        put(8, 2, unsigned{date.day()});
        put(11, 2, in_day / 3600);
        put(14, 2, in_day / 60 % 60);
        put(17, 2, in_day % 60);
        return text;
    }

    std::string text_;
    std::int64_t second_ = 0;
};

}  // namespace detail
}  // namespace muses
