// One log line on its way from the thread that logs to the thread that writes: the arguments as bytes, and the function that
// knows how to read them back.
//
// Scalars are copied in binary, text is copied by value (so a view may dangle as soon as the call returns). A line with an
// argument of any other type is formatted where it is logged, because only there its copy is certain to be allowed.
#pragma once

#include <time.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <format>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace muses {

/// How much a line matters. A logger keeps lines of its own level and above; `Off` is a level of loggers only, it keeps nothing.
enum class LogLevel : std::uint8_t { Trace, Debug, Info, Warn, Error, Off };

namespace detail {

/// Nanoseconds since 1970 in UTC.
inline std::int64_t log_wall_clock() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + std::int64_t{now.tv_nsec};
}

/// The number by which the system knows the calling thread, asked for once per thread. Safe in destructors of thread_local objects.
inline std::uint32_t log_thread_id() noexcept {
    static thread_local std::uint32_t id = 0;  // trivial, so it is never destroyed
    if (id == 0) {
#if defined(__linux__)
        id = static_cast<std::uint32_t>(::syscall(SYS_gettid));
#elif defined(__APPLE__)
        std::uint64_t wide = 0;
        ::pthread_threadid_np(nullptr, &wide);
        id = static_cast<std::uint32_t>(wide);
#else
        id = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(::pthread_self()) >> 4U);
#endif
    }
    return id;
}

template <class T>
inline constexpr bool kIsLogText = false;
template <>
inline constexpr bool kIsLogText<char*> = true;
template <>
inline constexpr bool kIsLogText<const char*> = true;
template <std::size_t N>
inline constexpr bool kIsLogText<char[N]> = true;
template <class Traits, class Allocator>
inline constexpr bool kIsLogText<std::basic_string<char, Traits, Allocator>> = true;
template <class Traits>
inline constexpr bool kIsLogText<std::basic_string_view<char, Traits>> = true;

/// A type whose value is its bytes.
template <class T>
concept LogScalar =
    std::is_arithmetic_v<T> || std::is_null_pointer_v<T> || std::is_same_v<T, void*> || std::is_same_v<T, const void*>;

/// A type that the logging thread can copy into the record without formatting it.
template <class T>
concept LogCapturable = LogScalar<T> || kIsLogText<T>;

/// Characters before the first NUL, at most `bound`.
inline std::size_t log_array_length(const char* text, std::size_t bound) noexcept {
    const void* const end = std::memchr(text, 0, bound);
    return end == nullptr ? bound : static_cast<std::size_t>(static_cast<const char*>(end) - text);
}

/// What stands for an argument in a record: scalars for themselves, all text as a view. One template rather than overloads, because
/// an array would prefer to become a pointer and lose the bound that protects an unterminated one.
template <LogCapturable T>
auto log_prepare(const T& value) noexcept {
    if constexpr (LogScalar<T>)
        return value;
    else if constexpr (std::is_array_v<T>)
        return std::string_view(value, log_array_length(value, std::extent_v<T>));
    else if constexpr (std::is_pointer_v<T>)
        return value == nullptr ? std::string_view("(null)") : std::string_view(value);
    else
        return std::string_view(value.data(), value.size());
}

template <class T>
using LogPrepared = decltype(log_prepare(std::declval<const T&>()));

/// What: one captured log line.
/// Complexity: a capture is O(bytes); up to kInlineBytes it allocates nothing.
/// Threads: one thread at a time.
/// Lifetime: owns copies of its arguments; refers to the format string, which is a constant of the program.
/// Limits: one text argument, or one line formatted by the caller, is cut after kMaxText bytes and then ends with "...".
class LogRecord {
public:
    /// Chosen so that a record and the sequence number of a ring's slot fill three cache lines.
    static constexpr std::size_t kInlineBytes = 143;
    static constexpr std::size_t kMaxText = 64 * 1024;

    LogRecord() noexcept = default;
    explicit LogRecord(LogLevel level, std::uint32_t suppressed = 0) noexcept
        : time_ns_(log_wall_clock()), thread_(log_thread_id()), suppressed_(suppressed), level_(level) {}
    LogRecord(LogRecord&& other) noexcept { take(other); }
    LogRecord& operator=(LogRecord&& other) noexcept {
        if (this != &other) {
            free_heap();
            take(other);
        }
        return *this;
    }
    LogRecord(const LogRecord&) = delete;
    LogRecord& operator=(const LogRecord&) = delete;
    ~LogRecord() { free_heap(); }

    [[nodiscard]] std::int64_t time_ns() const noexcept { return time_ns_; }
    [[nodiscard]] std::uint32_t thread() const noexcept { return thread_; }
    [[nodiscard]] std::uint32_t suppressed() const noexcept { return suppressed_; }
    [[nodiscard]] LogLevel level() const noexcept { return level_; }

    /// Copies the arguments of a line. False when memory for them is refused; then the record is empty.
    template <LogCapturable... Args>
    [[nodiscard]] bool capture(std::string_view format, const Args&... args) noexcept {
        return store<LogPrepared<Args>...>(&render_format<LogPrepared<Args>...>, format, log_prepare(args)...);
    }

    /// Takes a line that the caller has formatted. False when memory for it is refused.
    [[nodiscard]] bool capture_text(std::string_view text) noexcept { return store<std::string_view>(&render_text, {}, text); }

    /// Formats here and now. A formatter that throws makes a line that says so; false when memory is refused.
    [[nodiscard]] bool capture_formatted(std::string_view format, std::format_args args) noexcept {
        try {
            std::string text;
            try {
                std::vformat_to(std::back_inserter(text), format, args);
            } catch (const std::bad_alloc&) {
                return false;
            } catch (...) {
                text.clear();
                append_format_error(text, format);
            }
            return capture_text(text);
        } catch (...) {
            return false;
        }
    }

    /// Appends the message to `out`. A format error (a bad dynamic width, say) is written in place of it; throws only std::bad_alloc.
    void render(std::string& out) const {
        const std::size_t before = out.size();
        try {
            if (render_ != nullptr) render_(out, {format_, format_size_}, bytes());
        } catch (const std::bad_alloc&) {
            throw;
        } catch (...) {
            out.resize(before);
            append_format_error(out, {format_, format_size_});
        }
    }

private:
    using Render = void (*)(std::string& out, std::string_view format, const std::byte* bytes);

    /// Inside a catch block: describes the exception in flight.
    static void append_format_error(std::string& out, std::string_view format) {
        out += "[format error: ";
        try {
            throw;
        } catch (const std::exception& e) {
            out += e.what();
        } catch (...) {
            out += "unknown exception";
        }
        out += "] ";
        out += format;
    }

    template <class T>
    static std::size_t encoded_size(const T& value) noexcept {
        if constexpr (std::is_same_v<T, std::string_view>)
            return sizeof(std::uint32_t) + std::min(value.size(), kMaxText);
        else
            return sizeof(T);
    }

    template <class T>
    static std::byte* encode(std::byte* at, const T& value) noexcept {
        if constexpr (std::is_same_v<T, std::string_view>) {
            static constexpr std::string_view kCut = "...";
            const auto size = static_cast<std::uint32_t>(std::min(value.size(), kMaxText));
            std::memcpy(at, &size, sizeof size);
            at += sizeof size;
            if (size != 0) std::memcpy(at, value.data(), size);
            if (value.size() > kMaxText) std::memcpy(at + kMaxText - kCut.size(), kCut.data(), kCut.size());
            return at + size;
        } else {
            std::memcpy(at, &value, sizeof value);
            return at + sizeof value;
        }
    }

    template <class T>
    static T decode(const std::byte*& at) noexcept {
        if constexpr (std::is_same_v<T, std::string_view>) {
            std::uint32_t size = 0;
            std::memcpy(&size, at, sizeof size);
            const std::string_view text(reinterpret_cast<const char*>(at + sizeof size), size);
            at += sizeof size + size;
            return text;
        } else {
            T value;
            std::memcpy(&value, at, sizeof value);
            at += sizeof value;
            return value;
        }
    }

    template <class... Stored>
    static void render_format(std::string& out, std::string_view format, [[maybe_unused]] const std::byte* at) {
        std::tuple<Stored...> values{decode<Stored>(at)...};  // braces: decoded from left to right
        std::apply([&](auto&... value) { std::vformat_to(std::back_inserter(out), format, std::make_format_args(value...)); },
                   values);
    }

    static void render_text(std::string& out, std::string_view, const std::byte* at) { out += decode<std::string_view>(at); }

    template <class... Stored>
    bool store(Render reader, std::string_view format, const Stored&... values) noexcept {
        const std::size_t size = (std::size_t{0} + ... + encoded_size(values));
        if (size > std::size_t{UINT32_MAX}) return false;
        [[maybe_unused]] std::byte* at = inline_;
        if constexpr (sizeof...(values) != 0) {
            if (size > kInlineBytes) {
                at = static_cast<std::byte*>(::operator new(size, std::nothrow));
                if (at == nullptr) return false;
                std::memcpy(inline_, &at, sizeof at);
            }
        }
        used_ = static_cast<std::uint32_t>(size);
        render_ = reader;
        format_ = format.data();
        format_size_ = static_cast<std::uint32_t>(format.size());
        ((at = encode(at, values)), ...);
        return true;
    }

    [[nodiscard]] std::byte* heap() const noexcept {
        std::byte* block = nullptr;
        std::memcpy(&block, inline_, sizeof block);
        return block;
    }
    [[nodiscard]] const std::byte* bytes() const noexcept { return used_ > kInlineBytes ? heap() : inline_; }

    void free_heap() noexcept {
        if (used_ > kInlineBytes) ::operator delete(heap());
        used_ = 0;
    }

    void take(LogRecord& other) noexcept {
        render_ = other.render_;
        format_ = other.format_;
        time_ns_ = other.time_ns_;
        format_size_ = other.format_size_;
        used_ = other.used_;
        thread_ = other.thread_;
        suppressed_ = other.suppressed_;
        level_ = other.level_;
        std::memcpy(inline_, other.inline_, used_ > kInlineBytes ? sizeof(std::byte*) : used_);
        other.used_ = 0;
        other.render_ = nullptr;
    }

    Render render_ = nullptr;
    const char* format_ = nullptr;
    std::int64_t time_ns_ = 0;
    std::uint32_t format_size_ = 0;
    std::uint32_t used_ = 0;  // bytes of arguments; above kInlineBytes they are on the heap and inline_ starts with the pointer
    std::uint32_t thread_ = 0;
    std::uint32_t suppressed_ = 0;  // lines that a rate limit held back before this one
    LogLevel level_ = LogLevel::Off;
    std::byte inline_[kInlineBytes];  // not initialised: only the first used_ bytes mean something
};

static_assert(sizeof(LogRecord) == 184, "a record and a sequence number fill three cache lines");

}  // namespace detail
}  // namespace muses
