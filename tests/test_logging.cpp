#include "muses/logging.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <format>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "support/eventually.hpp"
#include "support/sanitizers.hpp"
#include "support/temp_dir.hpp"

using namespace std::chrono_literals;
using muses::Logger;
using muses::LoggerOptions;
using muses::LogLevel;
using muses::OverflowPolicy;
using muses::test::eventually;
using muses::test::stress_rounds;
using muses::test::TempDir;

namespace {

/// The message of a text line: what follows "] ".
std::string message_of(std::string_view line) {
    const auto at = line.find("] ");
    return at == std::string_view::npos ? std::string("no message in: ") + std::string(line) : std::string(line.substr(at + 2));
}

/// Collects lines; may be made to wait at a gate, so that a test decides when the logger's thread goes on.
class Collector {
public:
    std::unique_ptr<muses::CallbackSink> sink() {
        return std::make_unique<muses::CallbackSink>([this](std::string_view line) { take(line); });
    }

    /// The next line that arrives waits inside of the sink until open().
    void close() {
        const std::lock_guard lock(mutex_);
        until_ = 0;
    }
    /// Opens, and closes again before arrival number `count`.
    void open(std::size_t count = std::numeric_limits<std::size_t>::max()) {
        const std::lock_guard lock(mutex_);
        until_ = count;
        changed_.notify_all();
    }
    bool wait_for_arrivals(std::size_t count) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, 20s, [&] { return arrived_ >= count; });
    }

    std::vector<std::string> lines() const {
        const std::lock_guard lock(mutex_);
        return lines_;
    }
    std::vector<std::string> messages() const {
        std::vector<std::string> out;
        for (const auto& line : lines()) out.push_back(message_of(line));
        return out;
    }
    std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return lines_.size();
    }

private:
    void take(std::string_view line) {
        std::unique_lock lock(mutex_);
        const std::size_t mine = ++arrived_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return mine < until_; });
        lines_.emplace_back(line);
    }

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::string> lines_;
    std::size_t arrived_ = 0;
    std::size_t until_ = std::numeric_limits<std::size_t>::max();
};

/// What the loss lines among `messages` add up to; takes them out.
std::uint64_t take_losses(std::vector<std::string>& messages) {
    static constexpr std::string_view kTail = " log lines were dropped here";
    std::uint64_t sum = 0;
    std::erase_if(messages, [&](const std::string& m) {
        if (!m.ends_with(kTail)) return false;
        sum += std::stoull(m);
        return true;
    });
    return sum;
}

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
}

class Pipe {
public:
    Pipe() { REQUIRE(::pipe2(ends_, O_CLOEXEC) == 0); }
    ~Pipe() {
        close_read();
        close_write();
    }
    int read_end() const { return ends_[0]; }
    int write_end() const { return ends_[1]; }
    void close_read() { close_one(ends_[0]); }
    void close_write() { close_one(ends_[1]); }
    std::string read_all() {
        close_write();
        std::string out;
        char chunk[4096];
        for (ssize_t n = 0; (n = ::read(ends_[0], chunk, sizeof chunk)) > 0;) out.append(chunk, static_cast<std::size_t>(n));
        return out;
    }

private:
    static void close_one(int& fd) {
        if (fd >= 0) ::close(fd);
        fd = -1;
    }
    int ends_[2] = {-1, -1};
};

/// Sends file descriptor 2 into a pipe while it lives.
class CapturedStderr {
public:
    CapturedStderr() : saved_(::dup(2)) { ::dup2(pipe_.write_end(), 2); }
    ~CapturedStderr() { restore(); }
    std::string text() {
        restore();
        return pipe_.read_all();
    }

private:
    void restore() {
        if (saved_ < 0) return;
        ::dup2(saved_, 2);
        ::close(saved_);
        saved_ = -1;
    }
    Pipe pipe_;
    int saved_;
};

struct Point {
    int x;
    int y;
};
struct Grumpy {};  // its formatter throws

}  // namespace

template <>
struct std::formatter<Point> {
    bool hex = false;
    constexpr auto parse(std::format_parse_context& context) {
        auto at = context.begin();
        if (at != context.end() && *at == 'x') {
            hex = true;
            ++at;
        }
        return at;
    }
    auto format(const Point& p, std::format_context& context) const {
        return hex ? std::format_to(context.out(), "<{:x},{:x}>", p.x, p.y) : std::format_to(context.out(), "<{},{}>", p.x, p.y);
    }
};

template <>
struct std::formatter<Grumpy> {
    constexpr auto parse(std::format_parse_context& context) { return context.begin(); }
    std::format_context::iterator format(const Grumpy&, std::format_context&) const { throw std::runtime_error("not today"); }
};

TEST_CASE("logging: a line has time and level and thread and message") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    const auto before = std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now());
    MUSES_LOG_WARN(log, "{} of {}", 3, "five");
    const auto after = std::chrono::system_clock::now();
    REQUIRE(log.flush(10s));
    const auto lines = got.lines();
    REQUIRE(lines.size() == 1);
    const std::string expected_tail = std::format(" WARN  [{}] 3 of five", muses::detail::log_thread_id());
    CHECK(lines[0].substr(27) == expected_tail);
    const std::string time = lines[0].substr(0, 27);
    CHECK(time >= std::format("{:%FT%T}Z", before));
    CHECK(time <= std::format("{:%FT%T}Z", std::chrono::floor<std::chrono::microseconds>(after)));
    CHECK(log.stats().written == 1);
    CHECK(log.stats().dropped == 0);
    CHECK(log.stats().sink_errors == 0);
}

TEST_CASE("logging: times are right across the calendar") {
    muses::detail::LogTimeText text;
    CHECK(text(0) == "1970-01-01T00:00:00.000000Z");
    CHECK(text(999) == "1970-01-01T00:00:00.000000Z");
    CHECK(text(1'000) == "1970-01-01T00:00:00.000001Z");
    CHECK(text(-1) == "1969-12-31T23:59:59.999999Z");
    CHECK(text(951'782'399'999'999'000) == "2000-02-28T23:59:59.999999Z");
    CHECK(text(951'782'400'000'000'000) == "2000-02-29T00:00:00.000000Z");
    CHECK(text(1'796'063'679'123'456'789) == "2026-11-30T18:34:39.123456Z");
    CHECK(text(std::numeric_limits<std::int64_t>::max()) == "2262-04-11T23:47:16.854775Z");
    CHECK(text(std::numeric_limits<std::int64_t>::min()) == "1677-09-21T00:12:43.145224Z");
}

TEST_CASE("logging: every kind of scalar arrives as std::format writes it") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    const bool yes = true;
    const short small = -7;
    const unsigned long long large = std::numeric_limits<unsigned long long>::max();
    const long double wide = 1.25L;
    const void* const pointer = &log;
    void* const mutable_pointer = &got;
    MUSES_LOG_INFO(log, "{} {} {} {:#x} {} {:.3f} {} {}", yes, 'c', small, large, 1.5F, 2.0, wide, nullptr);
    MUSES_LOG_INFO(log, "{} {}", pointer, mutable_pointer);
    MUSES_LOG_INFO(log, "{1} {0} {{}} {2:>{3}}", 1, 2, 3, 5);
    MUSES_LOG_INFO(log, "nothing to fill in");
    REQUIRE(log.flush(10s));
    CHECK(got.messages() ==
          std::vector<std::string>{std::format("{} {} {} {:#x} {} {:.3f} {} {}", yes, 'c', small, large, 1.5F, 2.0, wide, nullptr),
                                   std::format("{} {}", pointer, mutable_pointer), "2 1 {}     3", "nothing to fill in"});
}

TEST_CASE("logging: text is copied by value whatever its type") {
    Collector got;
    got.close();
    Logger log;
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "gate");
    REQUIRE(got.wait_for_arrivals(1));  // from here on nothing is formatted until the texts are gone
    {
        std::string owned(500, 'o');
        auto heap = std::make_unique<char[]>(4);
        std::memcpy(heap.get(), "abc", 4);
        char array[8] = "array";
        const char unterminated[3] = {'x', 'y', 'z'};
        const char* const null = nullptr;
        std::string_view view(owned.data(), 3);
        MUSES_LOG_INFO(log, "{} {} {} {} {} {} {}", owned, static_cast<const char*>(heap.get()), array, unterminated, null, view,
                       heap.get());
        MUSES_LOG_INFO(log, "{:>6}|{:.2}|{}", view, array, std::string_view());
        std::ranges::fill(owned, '#');
        std::ranges::fill(array, '#');
        std::memcpy(heap.get(), "###", 4);
    }
    got.open();
    REQUIRE(log.flush(10s));
    const std::string o(500, 'o');
    CHECK(got.messages() == std::vector<std::string>{"gate", o + " abc array xyz (null) ooo abc", "   ooo|ar|"});
}

TEST_CASE("logging: arguments around the inline size survive the way through the ring") {
    Collector got;
    Logger log(LoggerOptions{.capacity = 64});
    log.add_sink(got.sink());
    std::vector<std::string> expected;
    for (std::size_t size = 0; size < 40; ++size) {
        const std::string text(120 + size, static_cast<char>('a' + size % 26));
        MUSES_LOG_INFO(log, "{}{}", text, size);
        expected.push_back(text + std::to_string(size));
        if (size % 16 == 15) REQUIRE(log.flush(10s));
    }
    REQUIRE(log.flush(10s));
    CHECK(got.messages() == expected);
}

TEST_CASE("logging: a text above 64 KiB is cut and says so") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    const std::size_t limit = muses::detail::LogRecord::kMaxText;
    const std::string fits(limit, 'f');
    const std::string longer(limit + 1, 'l');
    MUSES_LOG_INFO(log, "{}", fits);
    MUSES_LOG_INFO(log, "{}|{}", longer, 7);
    MUSES_LOG_INFO(log, "{}{}", Point{1, 2}, longer);  // formatted by the caller
    REQUIRE(log.flush(10s));
    const auto messages = got.messages();
    REQUIRE(messages.size() == 3);
    CHECK(messages[0] == fits);
    CHECK(messages[1] == std::string(limit - 3, 'l') + "...|7");
    CHECK(messages[2] == "<1,2>" + std::string(limit - 8, 'l') + "...");
}

TEST_CASE("logging: other types are formatted on the caller with their own format") {
    Collector got;
    got.close();
    Logger log;
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "gate");
    REQUIRE(got.wait_for_arrivals(1));
    {
        auto point = std::make_unique<Point>(Point{10, 11});
        MUSES_LOG_INFO(log, "{} {:x} {} {}", *point, *point, 1500ms, std::string("s"));
        point->x = 99;
    }
    got.open();
    REQUIRE(log.flush(10s));
    CHECK(got.messages() == std::vector<std::string>{"gate", "<10,11> <a,b> 1500ms s"});
}

TEST_CASE("logging: a formatter that throws makes a line that says so") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "{} and {}", 1, Grumpy{});
    MUSES_LOG_INFO(log, "{:{}}", 1, -5);  // a negative width, found only on the logger's thread
    MUSES_LOG_INFO(log, "next");
    REQUIRE(log.flush(10s));
    const auto messages = got.messages();
    REQUIRE(messages.size() == 3);
    CHECK(messages[0] == "[format error: not today] {} and {}");
    CHECK(messages[1].starts_with("[format error: "));
    CHECK(messages[1].ends_with("] {:{}}"));
    CHECK(messages[2] == "next");
}

TEST_CASE("logging: below the level nothing is evaluated") {
    Collector got;
    Logger log(LoggerOptions{.level = LogLevel::Warn});
    log.add_sink(got.sink());
    int evaluated = 0;
    const auto touch = [&] { return ++evaluated; };
    MUSES_LOG_TRACE(log, "{}", touch());
    MUSES_LOG_DEBUG(log, "{}", touch());
    MUSES_LOG_INFO(log, "{}", touch());
    CHECK(evaluated == 0);
    MUSES_LOG_WARN(log, "{}", touch());
    MUSES_LOG_ERROR(log, "{}", touch());
    CHECK(evaluated == 2);
    log.set_level(LogLevel::Trace);
    CHECK(log.level() == LogLevel::Trace);
    MUSES_LOG_TRACE(log, "{}", touch());
    MUSES_LOG_DEBUG(log, "{}", touch());
    log.set_level(LogLevel::Off);
    MUSES_LOG_ERROR(log, "{}", touch());
    log.log(LogLevel::Error, "not kept");
    log.log(LogLevel::Off, "no line has this level");
    CHECK_FALSE(log.enabled(LogLevel::Off));
    CHECK(evaluated == 4);
    log.set_level(LogLevel::Info);
    log.log(LogLevel::Info, "{}", "direct");
    log.log(LogLevel::Debug, "{}", "not kept");
    REQUIRE(log.flush(10s));
    CHECK(got.messages() == std::vector<std::string>{"1", "2", "3", "4", "direct"});
    CHECK(log.stats().written == 5);
}

TEST_CASE("logging: the macros are single statements and evaluate the logger once") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    int asked = 0;
    const auto which = [&]() -> Logger& {
        ++asked;
        return log;
    };
    if (asked == 0)
        MUSES_LOG_INFO(which(), "then");
    else
        MUSES_LOG_INFO(which(), "else");
    muses::LogTarget& target = log;
    MUSES_LOG_INFO(target, "through the light interface");
    CHECK(asked == 1);
    REQUIRE(log.flush(10s));
    CHECK(got.messages() == std::vector<std::string>{"then", "through the light interface"});
}

TEST_CASE("logging: no argument can forge a line or command a terminal") {
    TempDir dir;
    Pipe terminal;
    Collector got;
    {
        Logger log;
        log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = dir / "log"}));
        log.add_sink(std::make_unique<muses::StderrSink>(muses::LogColour::Auto, terminal.write_end()));
        log.add_sink(got.sink());
        using namespace std::string_literals;
        MUSES_LOG_INFO(log, "{}", "a\r\n2026-01-01T00:00:00.000000Z ERROR [1] forged"s);
        MUSES_LOG_INFO(log, "{}", "b\0c\x1b[2Jd\x7f\a\b\v\f\t|"s);
        MUSES_LOG_INFO(log, "newline in the format\n");
        MUSES_LOG_INFO(log, "{}", "\u0085 \u009b31m \u2028 \u2029 \u00e4 \u20ac \U0001F600"s);
        MUSES_LOG_INFO(log, "{}", "\x9b \xff \xc3( \xe2\x80 \xc0\x8a \xed\xa0\x80 \xf5\x80\x80\x80 \xc2"s);
    }
    const std::vector<std::string> expected{
        "a\\r\\n2026-01-01T00:00:00.000000Z ERROR [1] forged",
        "b\\x00c\\x1b[2Jd\\x7f\\x07\\x08\\x0b\\x0c\t|",
        "newline in the format\\n",
        "\\u0085 \\u009b31m \\u2028 \\u2029 \u00e4 \u20ac \U0001F600",
        "\\x9b \\xff \\xc3( \\xe2\\x80 \\xc0\\x8a \\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80 \\xc2",
    };
    CHECK(got.messages() == expected);
    for (const std::string& text : {read_file(dir / "log"), terminal.read_all()}) {
        std::vector<std::string> messages;
        for (const auto& line : lines_of(text)) messages.push_back(message_of(line));
        CHECK(messages == expected);
        CHECK(text.find('\033') == std::string::npos);
    }
}

TEST_CASE("logging: every control byte is escaped and every other text is left alone") {
    for (int value = 0; value < 256; ++value) {
        const char byte = static_cast<char>(value);
        std::string out;
        muses::detail::append_escaped(out, std::string_view(&byte, 1));
        CAPTURE(value);
        const bool plain = value == '\t' || (value >= 0x20 && value < 0x7F);
        CHECK((out == std::string(1, byte)) == plain);
        CHECK(std::ranges::all_of(out, [](char c) { return c == '\t' || (c >= 0x20 && c < 0x7F); }));
    }
    // Every character of Unicode: valid UTF-8 comes through unchanged but for the controls.
    for (unsigned point = 0x80; point <= 0x10FFFF; point += point < 0x3000 ? 1 : 0x101) {
        if (point >= 0xD800 && point < 0xE000) continue;
        std::string text;
        const auto put = [&](unsigned byte) { text += static_cast<char>(byte); };
        if (point < 0x800) {
            put(0xC0U | point >> 6U);
        } else if (point < 0x10000) {
            put(0xE0U | point >> 12U);
            put(0x80U | (point >> 6U & 0x3FU));
        } else {
            put(0xF0U | point >> 18U);
            put(0x80U | (point >> 12U & 0x3FU));
            put(0x80U | (point >> 6U & 0x3FU));
        }
        put(0x80U | (point & 0x3FU));
        std::string out;
        muses::detail::append_escaped(out, text);
        const bool control = point < 0xA0 || point == 0x2028 || point == 0x2029;
        if (out != (control ? std::format("\\u{:04x}", point) : text)) FAIL_CHECK("code point " << point << " became " << out);
        out.clear();
        muses::detail::append_json_escaped(out, text);
        if (out != (control ? std::format("\\u{:04x}", point) : text))
            FAIL_CHECK("code point " << point << " became " << out << " in JSON");
    }
}

TEST_CASE("logging: JSON lines are valid whatever the message holds") {
    TempDir dir;
    using namespace std::string_literals;
    {
        Logger log;
        log.add_sink(std::make_unique<muses::JsonSink>(muses::FileSinkOptions{.path = dir / "log.json"}));
        MUSES_LOG_ERROR(log, "{}", "\"q\" \\ \n\r\t\0\x1b\x7f \u2028 \u00e4 \xff"s);
    }
    const auto lines = lines_of(read_file(dir / "log.json"));
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].starts_with(R"({"time":"20)"));
    CHECK(lines[0].substr(36) == std::format(R"(","level":"error","thread":{},"message":"{}"}})", muses::detail::log_thread_id(),
                                             "\\\"q\\\" \\\\ \\n\\r\\t\\u0000\\u001b\\u007f \\u2028 \u00e4 \\ufffd"));
}

TEST_CASE("logging: colours only on a terminal or when asked for") {
    const auto run = [](muses::LogColour colour) {
        Pipe out;
        {
            Logger log(LoggerOptions{.level = LogLevel::Trace});
            log.add_sink(std::make_unique<muses::StderrSink>(colour, out.write_end()));
            MUSES_LOG_ERROR(log, "{}", "bad");
            MUSES_LOG_INFO(log, "{}", "good");
        }
        return lines_of(out.read_all());
    };
    const auto coloured = run(muses::LogColour::Always);
    REQUIRE(coloured.size() == 2);
    CHECK(coloured[0].substr(28).starts_with("\033[31mERROR\033[0m ["));
    CHECK(coloured[1].substr(28).starts_with("\033[32mINFO \033[0m ["));
    for (const auto colour : {muses::LogColour::Auto, muses::LogColour::Never}) {
        const auto plain = run(colour);
        REQUIRE(plain.size() == 2);
        CHECK(plain[0].substr(28).starts_with("ERROR ["));
    }

    // A pseudo terminal is one.
    const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) {
        MESSAGE("no pseudo terminals here");
        return;
    }
    const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
    REQUIRE(slave >= 0);
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    const auto on_terminal = [&] {
        {
            Logger log;
            log.add_sink(std::make_unique<muses::StderrSink>(muses::LogColour::Auto, slave));
            MUSES_LOG_WARN(log, "w");
        }
        char text[256];
        const ssize_t n = ::read(master, text, sizeof text);
        return std::string(text, n > 0 ? static_cast<std::size_t>(n) : 0);
    };
    CHECK(on_terminal().find("\033[33mWARN \033[0m") != std::string::npos);
    ::setenv("NO_COLOR", "1", 1);
    CHECK(on_terminal().find('\033') == std::string::npos);
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "dumb", 1);
    CHECK(on_terminal().find('\033') == std::string::npos);
    ::close(slave);
    ::close(master);
}

TEST_CASE("logging: DropOldest keeps the youngest lines and tells of the others") {
    Collector got;
    got.close();
    Logger log(LoggerOptions{.capacity = 4});
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "gate");
    REQUIRE(got.wait_for_arrivals(1));
    for (int i = 0; i < 10; ++i) MUSES_LOG_INFO(log, "{}", i);
    CHECK(log.stats().dropped == 6);
    got.open();
    REQUIRE(log.flush(10s));
    auto messages = got.messages();
    CHECK(take_losses(messages) == 6);
    CHECK(messages == std::vector<std::string>{"gate", "6", "7", "8", "9"});
    CHECK(log.stats().written == 5);
    CHECK(log.stats().dropped == 6);
}

TEST_CASE("logging: DropNew keeps the oldest lines and tells of the others") {
    Collector got;
    got.close();
    Logger log(LoggerOptions{.capacity = 4, .overflow = OverflowPolicy::DropNew});
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "gate");
    REQUIRE(got.wait_for_arrivals(1));
    for (int i = 0; i < 10; ++i) MUSES_LOG_INFO(log, "{}", i);
    CHECK(log.stats().dropped == 6);
    got.open();
    REQUIRE(log.flush(10s));
    auto messages = got.messages();
    CHECK(take_losses(messages) == 6);
    CHECK(messages == std::vector<std::string>{"gate", "0", "1", "2", "3"});
    CHECK(log.stats().written == 5);
}

TEST_CASE("logging: Block waits for room and loses nothing") {
    Collector got;
    got.close();
    Logger log(LoggerOptions{.capacity = 2, .overflow = OverflowPolicy::Block});
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "gate");
    REQUIRE(got.wait_for_arrivals(1));
    std::atomic<int> logged{0};
    std::thread producer([&] {
        for (int i = 0; i < 10; ++i) {
            MUSES_LOG_INFO(log, "{}", i);
            ++logged;
        }
    });
    CHECK(eventually([&] { return logged == 2; }));
    got.open();
    producer.join();
    REQUIRE(log.flush(10s));
    CHECK(got.messages() == std::vector<std::string>{"gate", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"});
    CHECK(log.stats().dropped == 0);
}

TEST_CASE("logging: impossible arguments are refused before anything starts") {
    CHECK_THROWS_AS(Logger(LoggerOptions{.capacity = 0}), std::invalid_argument);
    CHECK_THROWS_AS(Logger(LoggerOptions{.capacity = std::numeric_limits<std::size_t>::max()}), std::invalid_argument);
    CHECK_THROWS_AS(Logger(LoggerOptions{.overflow = static_cast<OverflowPolicy>(17)}), std::invalid_argument);
    CHECK_THROWS_AS(muses::CallbackSink({}), std::invalid_argument);
    CHECK_THROWS_AS(muses::FileSink(muses::FileSinkOptions{}), std::invalid_argument);
    CHECK_THROWS_AS(muses::FileSink(muses::FileSinkOptions{.path = "/no/such/folder/log"}), std::system_error);
    CHECK_THROWS_AS(muses::JsonSink(muses::FileSinkOptions{.path = "/"}), std::system_error);
    Logger log;
    CHECK_THROWS_AS(log.add_sink(nullptr), std::invalid_argument);
}

TEST_CASE("logging: a line logged after add_sink reaches the new sink") {
    std::vector<std::unique_ptr<Collector>> all;
    Logger log;
    for (int i = 0; i < stress_rounds(50); ++i) {
        all.push_back(std::make_unique<Collector>());
        log.add_sink(all.back()->sink());
        MUSES_LOG_INFO(log, "{}", i);
    }
    REQUIRE(log.flush(10s));
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto messages = all[i]->messages();
        CHECK(std::ranges::count(messages, std::to_string(i)) == 1);
        CHECK(messages.size() >= all.size() - i);
    }
    log.stop();  // before the collectors go
}

TEST_CASE("logging: flush waits for the sinks and gives up at its timeout") {
    Collector got;
    got.close();
    Logger log;
    log.add_sink(got.sink());
    CHECK(log.flush(10s));  // nothing to do
    MUSES_LOG_INFO(log, "slow");
    REQUIRE(got.wait_for_arrivals(1));
    CHECK_FALSE(log.flush(20ms));
    CHECK_FALSE(log.flush(0ms));
    CHECK_FALSE(log.flush(-1h));
    got.open();
    CHECK(log.flush(std::chrono::hours::max()));
    CHECK(got.size() == 1);
}

TEST_CASE("logging: flush returns only when the whole ring of its moment is written") {
    Collector got;
    got.close();
    Logger log(LoggerOptions{.capacity = 1024});
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "gate");
    REQUIRE(got.wait_for_arrivals(1));
    for (int i = 0; i < 1000; ++i) MUSES_LOG_INFO(log, "{}", i);
    std::atomic<bool> returned{false};
    std::thread flusher([&] {
        CHECK(log.flush(20s));
        returned = true;
    });
    std::this_thread::sleep_for(50ms);  // lets the flush begin, or else this shows less; it cannot fail for that
    got.open(1001);                     // the last one waits
    REQUIRE(got.wait_for_arrivals(1001));
    CHECK_FALSE(eventually([&] { return returned.load(); }, 100ms));
    got.open();
    flusher.join();
    CHECK(got.size() == 1001);
}

TEST_CASE("logging: a flush is not lost while lines are evicted around it") {
    // A ring of one line and a thread that never stops logging: everything that could carry a marker is evicted.
    Collector got;
    Logger log(LoggerOptions{.capacity = 1});
    log.add_sink(got.sink());
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> logged{0};
    std::thread noise([&] {
        while (!stop) {
            MUSES_LOG_INFO(log, "noise");
            ++logged;
        }
    });
    for (int i = 0; i < stress_rounds(200); ++i) CHECK(log.flush(20s));
    stop = true;
    noise.join();
    log.stop();
    const auto stats = log.stats();
    CHECK(stats.written + stats.dropped == logged);
    auto messages = got.messages();
    CHECK(take_losses(messages) == stats.dropped);
    CHECK(messages.size() == stats.written);
}

TEST_CASE("logging: what a thread logged before its flush is written when flush returns") {
    Collector got;
    Logger log(LoggerOptions{.capacity = 1024, .overflow = OverflowPolicy::Block});
    log.add_sink(got.sink());
    std::vector<std::thread> threads;
    std::atomic<int> missing{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < stress_rounds(100); ++i) {
                const std::string mine = std::format("t{} i{}", t, i);
                MUSES_LOG_INFO(log, "{}", mine);
                if (!log.flush(20s)) ++missing;
                if (i % 10 == 0 && std::ranges::count(got.messages(), mine) != 1) ++missing;
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(missing == 0);
}

TEST_CASE("logging: every line of many threads is written once and in order or counted") {
    for (const auto overflow : {OverflowPolicy::DropOldest, OverflowPolicy::DropNew, OverflowPolicy::Block}) {
        for (const std::size_t capacity : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{1024}}) {
            CAPTURE(static_cast<int>(overflow));
            CAPTURE(capacity);
            Collector got;
            constexpr int kThreads = 4;
            const int each = stress_rounds(400);
            muses::LogStats stats;
            {
                Logger log(LoggerOptions{.capacity = capacity, .overflow = overflow});
                log.add_sink(got.sink());
                std::vector<std::thread> threads;
                for (int t = 0; t < kThreads; ++t) {
                    threads.emplace_back([&, t] {
                        for (int i = 0; i < each; ++i) {
                            const std::string filler(static_cast<std::size_t>(i % 200), '.');  // inline and on the heap
                            MUSES_LOG_INFO(log, "{} {} {}", t, i, filler);
                        }
                    });
                }
                for (auto& thread : threads) thread.join();
                log.stop();
                stats = log.stats();
            }
            auto messages = got.messages();
            CHECK(take_losses(messages) == stats.dropped);
            CHECK(messages.size() == stats.written);
            CHECK(stats.written + stats.dropped == static_cast<std::uint64_t>(kThreads * each));
            if (overflow == OverflowPolicy::Block) CHECK(stats.dropped == 0);
            std::array<int, kThreads> last;
            last.fill(-1);
            bool in_order = true;
            bool whole = true;
            for (const auto& message : messages) {
                std::istringstream in(message);
                int t = -1;
                int i = -1;
                std::string filler;
                in >> t >> i >> filler;
                if (t < 0 || t >= kThreads || filler != std::string(static_cast<std::size_t>(i % 200), '.')) {
                    whole = false;
                    continue;
                }
                in_order = in_order && i > last[static_cast<std::size_t>(t)];
                last[static_cast<std::size_t>(t)] = i;
            }
            CHECK(whole);
            CHECK(in_order);
        }
    }
}

TEST_CASE("logging: lines logged while the logger stops are written or counted") {
    for (const auto overflow : {OverflowPolicy::DropOldest, OverflowPolicy::DropNew, OverflowPolicy::Block}) {
        for (int round = 0; round < stress_rounds(8); ++round) {
            Collector got;
            Logger log(LoggerOptions{.capacity = 8, .overflow = overflow});
            log.add_sink(got.sink());
            std::atomic<std::uint64_t> logged{0};
            std::atomic<bool> stop{false};
            std::vector<std::thread> threads;
            for (int t = 0; t < 3; ++t) {
                threads.emplace_back([&] {
                    while (!stop) {
                        MUSES_LOG_INFO(log, "line");
                        ++logged;
                    }
                });
            }
            REQUIRE(eventually([&] { return logged > 100; }));
            std::thread second([&] { log.stop(); });
            log.stop();
            second.join();
            const auto at_stop = got.size();
            stop = true;
            for (auto& thread : threads) thread.join();
            CHECK(got.size() == at_stop);
            const auto stats = log.stats();
            CHECK(stats.written + stats.dropped == logged);
            CHECK(log.flush(1s));  // nothing is left to wait for
        }
    }
}

TEST_CASE("logging: after stop lines are counted and a second stop is harmless") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    MUSES_LOG_INFO(log, "kept");
    log.stop();
    CHECK(got.messages() == std::vector<std::string>{"kept"});
    MUSES_LOG_INFO(log, "late");
    log.stop();
    log.reopen();
    CHECK(log.flush(1s));
    CHECK(got.size() == 1);
    CHECK(log.stats().written == 1);
    CHECK(log.stats().dropped == 1);
}

TEST_CASE("logging: a sleeping logger is woken by the next line") {
    Collector got;
    Logger log;
    log.add_sink(got.sink());
    for (int i = 0; i < stress_rounds(30); ++i) {
        // Long enough for the thread to go to sleep in most rounds; nothing is decided by it.
        std::this_thread::sleep_for(i % 3 == 0 ? 6ms : std::chrono::milliseconds(i % 5));
        MUSES_LOG_INFO(log, "{}", i);
        REQUIRE(eventually([&] { return got.size() == static_cast<std::size_t>(i + 1); }));
    }
}

TEST_CASE("logging: a sleeping logger hears of a flush and a reopen and a stop") {
    TempDir dir;
    const std::string path = dir / "log";
    Logger log;
    log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = path}));
    const auto fall_asleep = [] { std::this_thread::sleep_for(30ms); };  // its naps end within milliseconds
    REQUIRE(log.flush(10s));
    fall_asleep();
    CHECK(log.flush(10s));
    fall_asleep();
    std::filesystem::remove(path);
    log.reopen();
    CHECK(eventually([&] { return std::filesystem::exists(path); }));
    fall_asleep();
    const auto before = std::chrono::steady_clock::now();
    log.stop();
    CHECK(std::chrono::steady_clock::now() - before < 10s);
}

TEST_CASE("logging: an idle logger sleeps and does not look around") {
    Logger log;
    MUSES_LOG_INFO(log, "one line");
    REQUIRE(log.flush(10s));
    std::this_thread::sleep_for(50ms);  // its naps end within milliseconds
    const auto switches = [] {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        return usage.ru_nvcsw;
    };
    const auto before = switches();
    std::this_thread::sleep_for(300ms);
    CHECK(switches() - before < 50);  // a thread that naps for ever wakes some 300 times
}

TEST_CASE("logging: a throwing sink is counted and told once and harms no other sink") {
    class Throwing final : public muses::LogSink {
    public:
        void write(const muses::LogEntry& entry) override {
            if (entry.message.starts_with("odd")) throw 42;
            throw std::runtime_error("sink is \n broken");
        }
    };
    CapturedStderr captured;
    Collector first;
    Collector last;
    {
        Logger log;
        log.add_sink(first.sink());
        log.add_sink(std::make_unique<Throwing>());
        log.add_sink(last.sink());
        for (int i = 0; i < 5; ++i) MUSES_LOG_INFO(log, "{}", i);
        MUSES_LOG_INFO(log, "odd");
        REQUIRE(log.flush(10s));
        CHECK(log.stats().sink_errors == 6);
        CHECK(log.stats().written == 6);
    }
    const std::string report = "a log sink has failed: sink is \\n broken (later failures are only counted)";
    CHECK(first.messages() == std::vector<std::string>{"0", report, "1", "2", "3", "4", "odd"});
    CHECK(last.messages() == std::vector<std::string>{report, "0", "1", "2", "3", "4", "odd"});
    CHECK(first.lines()[1].substr(28, 5) == "ERROR");
    CHECK(captured.text().empty());
}

TEST_CASE("logging: a failed sink that is alone is told of on stderr once") {
    std::string told;
    {
        CapturedStderr captured;
        {
            Logger log;
            log.add_sink(std::make_unique<muses::CallbackSink>([](std::string_view) { throw std::runtime_error("alone"); }));
            log.add_sink(std::make_unique<muses::CallbackSink>([](std::string_view) { throw std::runtime_error("not better"); }));
            for (int i = 0; i < 3; ++i) MUSES_LOG_INFO(log, "{}", i);
            REQUIRE(log.flush(10s));
            CHECK(log.stats().sink_errors == 7);  // two of each line and one from being told of the other
        }
        told = captured.text();
    }
    const auto lines = lines_of(told);
    REQUIRE(lines.size() == 2);
    CHECK(told.find("alone (later") != std::string::npos);
    CHECK(told.find("not better (later") != std::string::npos);
}

TEST_CASE("logging: a full disk is counted and told once and harms no other sink") {
    if (::access("/dev/full", W_OK) != 0) {
        MESSAGE("no /dev/full here");
        return;
    }
    TempDir dir;
    {
        Logger log;
        log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = dir / "good"}));
        // The limit must not make the sink rename a device.
        log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = "/dev/full", .max_bytes = 10}));
        for (int i = 0; i < 3; ++i) {
            MUSES_LOG_INFO(log, "{}", i);
            REQUIRE(log.flush(10s));
            // What was told is flushed as well: no later line is needed to see it.
            CHECK(read_file(dir / "good").find("a log sink has failed") != std::string::npos);
        }
        CHECK(log.stats().sink_errors == 3);
        CHECK(log.stats().written == 3);
    }
    CHECK(std::filesystem::is_character_file("/dev/full"));
    std::vector<std::string> messages;
    for (const auto& line : lines_of(read_file(dir / "good"))) messages.push_back(message_of(line));
    CHECK(std::erase_if(messages, [](const std::string& m) { return m.starts_with("a log sink has failed: "); }) == 1);
    CHECK(messages == std::vector<std::string>{"0", "1", "2"});
}

TEST_CASE("logging: a line that a disk took half of does not swallow the next one") {
    // A pipe with a little room stands for the disk: non-blocking writes to it would wait, so the limit is a file size.
    TempDir dir;
    const pid_t child = ::fork();
    if (child == 0) {
        // In a process of its own, because the limit is one of the process. The logger's thread takes no SIGXFSZ.
        rlimit limit{100, 100};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(9);
        muses::detail::LogFile file(muses::FileSinkOptions{.path = dir / "log"});
        ::signal(SIGXFSZ, SIG_IGN);
        bool threw = false;
        file.append(std::string(80, 'a'), 0);
        file.append(std::string(80, 'b'), 0);
        try {
            file.flush();
        } catch (const std::system_error& e) {
            threw = e.code() == std::errc::file_too_large;
        }
        ::truncate((dir / "log").c_str(), 90);  // somebody has made room
        file.append("c", 0);
        file.flush();
        ::_exit(threw ? 0 : 8);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(read_file(dir / "log") == std::string(80, 'a') + "\n" + std::string(9, 'b') + "\nc\n");
}

TEST_CASE("logging: a reader that goes away is an error of the sink and not the end of the program") {
    Pipe out;
    Collector got;
    Logger log;
    log.add_sink(std::make_unique<muses::StderrSink>(muses::LogColour::Never, out.write_end()));
    log.add_sink(got.sink());
    out.close_read();
    MUSES_LOG_INFO(log, "into the void");
    REQUIRE(log.flush(10s));
    CHECK(log.stats().sink_errors == 1);
    CHECK(got.size() == 2);
    log.stop();
}

TEST_CASE("logging: a full non-blocking pipe is waited for") {
    Pipe out;
    REQUIRE(::fcntl(out.write_end(), F_SETFL, O_NONBLOCK) == 0);
    std::string text;
    std::thread reader;
    {
        Logger log(LoggerOptions{.overflow = OverflowPolicy::Block});
        log.add_sink(std::make_unique<muses::StderrSink>(muses::LogColour::Never, out.write_end()));
        const std::string filler(1000, 'x');
        for (int i = 0; i < 200; ++i) MUSES_LOG_INFO(log, "{} {}", i, filler);  // 200 KB; a pipe holds 64
        reader = std::thread([&] {
            char chunk[4096];
            for (ssize_t n = 0; (n = ::read(out.read_end(), chunk, sizeof chunk)) > 0;)
                text.append(chunk, static_cast<std::size_t>(n));
        });
        REQUIRE(log.flush(20s));
        CHECK(log.stats().sink_errors == 0);
    }
    out.close_write();
    reader.join();
    const auto lines = lines_of(text);
    REQUIRE(lines.size() == 200);
    for (std::size_t i = 0; i < lines.size(); ++i) CHECK(message_of(lines[i]) == std::format("{} {}", i, std::string(1000, 'x')));
}

TEST_CASE("logging: a file is appended to and rotated exactly at its size") {
    TempDir dir;
    const std::string path = dir / "log";
    std::ofstream(path) << "old\n";
    muses::detail::LogFile file(muses::FileSinkOptions{.path = path, .max_bytes = 12, .keep = 2});
    file.append("seven77", 0);  // 4 + 8 = 12: fits exactly
    file.flush();
    CHECK(read_file(path) == "old\nseven77\n");
    CHECK_FALSE(std::filesystem::exists(path + ".1"));
    file.append("x", 0);           // one byte too many
    file.append("0123456789", 0);  // does not fit either
    file.flush();
    CHECK(read_file(path + ".2") == "old\nseven77\n");
    CHECK(read_file(path + ".1") == "x\n");
    CHECK(read_file(path) == "0123456789\n");
    file.append("a line longer than a whole file", 0);
    file.append("y", 0);
    file.flush();
    CHECK(read_file(path) == "y\n");
    CHECK(read_file(path + ".1") == "a line longer than a whole file\n");
    CHECK(read_file(path + ".2") == "0123456789\n");
    CHECK_FALSE(std::filesystem::exists(path + ".3"));
}

TEST_CASE("logging: keep 0 begins anew and keeps no older file") {
    TempDir dir;
    const std::string path = dir / "log";
    muses::detail::LogFile file(muses::FileSinkOptions{.path = path, .max_bytes = 4, .keep = 0});
    for (const char* line : {"aaa", "bbb", "ccc"}) file.append(line, 0);
    file.flush();
    CHECK(read_file(path) == "ccc\n");
    CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("logging: with daily rotation a file holds the lines of one day") {
    constexpr std::int64_t kDay = std::int64_t{86'400} * 1'000'000'000;
    TempDir dir;
    const std::string path = dir / "log";
    const muses::FileSinkOptions options{.path = path, .keep = 3, .daily = true};
    {
        muses::detail::LogFile file(options);
        file.append("first", 20'000 * kDay);
        file.append("last", 20'001 * kDay - 1);
        file.append("midnight", 20'001 * kDay);
        file.append("the clock was set back", 20'000 * kDay + 5);
        file.append("weeks later", 20'030 * kDay);
        file.flush();
    }
    CHECK(read_file(path + ".2") == "first\nlast\n");
    CHECK(read_file(path + ".1") == "midnight\nthe clock was set back\n");
    CHECK(read_file(path) == "weeks later\n");
    // A program that starts anew goes by the day on which the file was last written.
    const timespec written{.tv_sec = std::time_t{20'030} * 86'400 + 3600, .tv_nsec = 0};
    const timespec times[] = {written, written};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
    muses::detail::LogFile file(options);
    file.append("today", 20'031 * kDay - 1);
    file.append("tomorrow", 20'031 * kDay);
    file.append("before 1970 is long ago", -1);
    file.flush();
    CHECK(read_file(path + ".1") == "weeks later\ntoday\n");
    CHECK(read_file(path) == "tomorrow\nbefore 1970 is long ago\n");
    CHECK(std::filesystem::exists(path + ".3"));
}

TEST_CASE("logging: size and day rotate side by side") {
    constexpr std::int64_t kDay = std::int64_t{86'400} * 1'000'000'000;
    TempDir dir;
    const std::string path = dir / "log";
    muses::detail::LogFile file(muses::FileSinkOptions{.path = path, .max_bytes = 4, .keep = 5, .daily = true});
    file.append("a", 0);
    file.append("b", 1);
    file.append("c", 2);     // too large for the first
    file.append("d", kDay);  // another day
    file.flush();
    CHECK(read_file(path + ".2") == "a\nb\n");
    CHECK(read_file(path + ".1") == "c\n");
    CHECK(read_file(path) == "d\n");
}

TEST_CASE("logging: rotation loses no line and makes no file too large") {
    TempDir dir;
    const std::string path = dir / "log";
    constexpr int kLines = 2000;
    {
        Logger log(LoggerOptions{.overflow = OverflowPolicy::Block});
        log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = path, .max_bytes = 4096, .keep = 1000}));
        for (int i = 0; i < kLines; ++i) MUSES_LOG_INFO(log, "{}", i);
        REQUIRE(log.flush(10s));
        CHECK(log.stats().sink_errors == 0);
    }
    int next = kLines - 1;
    std::size_t files = 0;
    for (std::string name = path; std::filesystem::exists(name); name = path + "." + std::to_string(++files)) {
        CHECK(std::filesystem::file_size(name) <= 4096);
        auto lines = lines_of(read_file(name));
        std::ranges::reverse(lines);
        for (const auto& line : lines) REQUIRE(message_of(line) == std::to_string(next--));
    }
    CHECK(next == -1);
    CHECK(files > 10);
}

TEST_CASE("logging: a rotation that fails is told once and the lines stay in the open file") {
    TempDir dir;
    const std::string path = dir / "log";
    Collector got;
    {
        Logger log(LoggerOptions{.overflow = OverflowPolicy::Block});
        // A folder stands where the older file would go. It is not empty, so rename() cannot replace it.
        std::filesystem::create_directories(path + ".1/occupied");
        log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = path, .max_bytes = 100, .keep = 1}));
        log.add_sink(got.sink());
        for (int i = 0; i < 50; ++i) MUSES_LOG_INFO(log, "{}", i);
        REQUIRE(log.flush(10s));
        CHECK(log.stats().sink_errors >= 1);
        CHECK(log.stats().sink_errors < 35);  // not one attempt per line: two lines fit before the next
    }
    std::vector<std::string> messages;
    for (const auto& line : lines_of(read_file(path))) messages.push_back(message_of(line));
    REQUIRE(messages.size() == 50);
    for (std::size_t i = 0; i < 50; ++i) CHECK(messages[i] == std::to_string(i));
    auto other = got.messages();
    CHECK(std::erase_if(other, [](const std::string& m) { return m.starts_with("a log sink has failed: rotating "); }) == 1);
    CHECK(other.size() == 50);
}

TEST_CASE("logging: reopen follows a file that was renamed") {
    TempDir dir;
    const std::string path = dir / "log";
    Logger log;
    log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{.path = path}));
    MUSES_LOG_INFO(log, "one");
    REQUIRE(log.flush(10s));
    std::filesystem::rename(path, path + ".old");
    MUSES_LOG_INFO(log, "two");
    REQUIRE(log.flush(10s));
    CHECK_FALSE(std::filesystem::exists(path));
    log.reopen();
    MUSES_LOG_INFO(log, "three");
    REQUIRE(log.flush(10s));
    CHECK(lines_of(read_file(path + ".old")).size() == 2);
    REQUIRE(lines_of(read_file(path)).size() == 1);
    CHECK(message_of(lines_of(read_file(path))[0]) == "three");

    // An idle logger reopens too, and one that cannot goes on with what it has.
    std::filesystem::rename(path, path + ".older");
    log.reopen();
    CHECK(eventually([&] { return std::filesystem::exists(path); }));
    std::filesystem::rename(path, path + ".oldest");
    std::filesystem::create_directory(path);
    CapturedStderr captured;
    log.reopen();
    MUSES_LOG_INFO(log, "four");
    REQUIRE(log.flush(10s));
    CHECK(log.stats().sink_errors == 1);
    CHECK(captured.text().find("cannot open the log file") != std::string::npos);
    CHECK(message_of(lines_of(read_file(path + ".oldest")).at(0)) == "four");
}

TEST_CASE("logging: a sink may log to its own logger under every policy") {
    for (const auto overflow : {OverflowPolicy::DropOldest, OverflowPolicy::DropNew, OverflowPolicy::Block}) {
        CAPTURE(static_cast<int>(overflow));
        std::atomic<std::uint64_t> logged{0};
        Logger log(LoggerOptions{.capacity = 1, .overflow = overflow});
        log.add_sink(std::make_unique<muses::CallbackSink>([&](std::string_view) {
            if (logged > 1000) return;
            for (int i = 0; i < 3; ++i) {
                ++logged;
                MUSES_LOG_INFO(log, "echo");
            }
            CHECK_FALSE(log.flush(10s));  // it cannot wait for itself
        }));
        ++logged;
        MUSES_LOG_INFO(log, "first");
        CHECK(eventually([&] { return logged > 1000; }));
        log.stop();
        const auto stats = log.stats();
        CHECK(stats.written + stats.dropped == logged);
    }
}

TEST_CASE("logging: a sink that always answers cannot keep the logger from stopping") {
    Logger log;
    log.add_sink(std::make_unique<muses::CallbackSink>([&](std::string_view) { MUSES_LOG_INFO(log, "again"); }));
    MUSES_LOG_INFO(log, "first");
    REQUIRE(eventually([&] { return log.stats().written > 100; }));
    CHECK(log.flush(20s));
    log.stop();
    CHECK(log.stats().written > 100);
}

TEST_CASE("logging: a sink may stop its logger and even destroy it") {
    Collector got;
    {
        Logger log;
        log.add_sink(std::make_unique<muses::CallbackSink>([&](std::string_view) { log.stop(); }));
        log.add_sink(got.sink());
        MUSES_LOG_INFO(log, "last");
    }
    CHECK(got.messages() == std::vector<std::string>{"last"});

    auto owned = std::make_unique<Logger>();
    std::atomic<bool> gone{false};
    struct Notice {
        std::atomic<bool>& flag;
        ~Notice() { flag = true; }
    };
    auto notice = std::make_shared<Notice>(gone);
    std::atomic<bool> logged{false};
    owned->add_sink(std::make_unique<muses::CallbackSink>([&owned, &logged, notice](std::string_view) {
        if (eventually([&] { return logged.load(); })) owned.reset();  // no call may be on its way into the logger
    }));
    notice.reset();
    MUSES_LOG_INFO(*owned, "destroy me");
    logged = true;
    CHECK(eventually([&] { return gone.load(); }));
}

TEST_CASE("logging: the rate limit lets one line per interval through and tells of the others") {
    muses::detail::LogRateGate gate;
    CHECK(gate.pass_at(-5, 100) == 0);
    CHECK(gate.pass_at(94, 100) == -1);
    CHECK(gate.pass_at(0, 100) == -1);
    CHECK(gate.pass_at(95, 100) == 2);
    CHECK(gate.pass_at(195, std::numeric_limits<std::int64_t>::max()) == 0);
    CHECK(gate.pass_at(std::numeric_limits<std::int64_t>::max() - 1, 1) == -1);
    CHECK(gate.pass_at(196, 0) == 1);  // no interval: no limit
    CHECK(gate.pass_at(196, -1) == 0);

    Collector got;
    Logger log;
    log.add_sink(got.sink());
    int evaluated = 0;
    for (int round = 0; round < 2; ++round)
        for (int i = 0; i < 5; ++i) MUSES_LOG_INFO_EVERY(log, 1h, "{} {}", i, ++evaluated);
    for (int i = 0; i < 3; ++i) MUSES_LOG_WARN_EVERY(log, 0s, "{}", i);
    MUSES_LOG_DEBUG_EVERY(log, 0s, "{}", ++evaluated);
    // One gate per type of interval, since each makes a function of its own.
    const auto limited = [&](auto interval) { MUSES_LOG_ERROR_EVERY(log, interval, "limited"); };
    limited(std::chrono::hours::max());
    for (int i = 0; i < 7; ++i) limited(std::chrono::duration<double>(std::numeric_limits<double>::infinity()));
    limited(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN()));
    REQUIRE(log.flush(10s));
    CHECK(evaluated == 1);
    CHECK(got.messages() ==
          std::vector<std::string>{"0 1", "0", "1", "2", "limited", "limited", "limited (6 similar lines held back)"});
}

TEST_CASE("logging: what a rate limit held back is told exactly with many threads") {
    muses::detail::LogRateGate gate;
    std::atomic<std::int64_t> clock{0};
    std::atomic<std::int64_t> passed{0};
    std::atomic<std::int64_t> told{0};
    const int each = stress_rounds(20'000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < each; ++i) {
                if (const auto held = gate.pass_at(clock++, 10); held >= 0) {
                    ++passed;
                    told += held;
                }
            }
        });
    }
    for (auto& thread : threads) thread.join();
    told += gate.pass_at(std::numeric_limits<std::int64_t>::max() - 1, 10);
    CHECK(passed + told == 4 * each);
    CHECK(passed <= 4 * each / 10 + 1);
    CHECK(passed >= 1);
}

// ---- at the end of threads and of the process ----

namespace {

/// Runs `scene` in a child process with its standard error in a pipe, and returns what it wrote and how it ended.
template <class Scene>
std::pair<std::string, int> in_a_process(Scene scene) {
    Pipe out;
    std::cout.flush();  // what the test program has not printed yet is not for the child to print at its end
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(out.write_end(), 2);
        out.close_read();
        out.close_write();
        scene();
        std::exit(0);
    }
    std::string text = out.read_all();
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return {text, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status)};
}

struct LogsWhenDestroyed {
    const char* what;
    ~LogsWhenDestroyed() { MUSES_LOG_INFO(muses::default_logger(), "{}", what); }
};

}  // namespace

TEST_CASE("logging: the default logger writes what static and thread_local destructors log") {
    const auto [text, status] = in_a_process([] {
        static LogsWhenDestroyed before{"static made before the logger"};
        MUSES_LOG_INFO(muses::default_logger(), "first");
        static LogsWhenDestroyed after{"static made after the logger"};
        std::thread([] {
            thread_local LogsWhenDestroyed local{"thread_local of a thread"};
            local.what = "thread_local of a thread";
        }).join();
        thread_local LogsWhenDestroyed local{"thread_local of main"};
        local.what = "thread_local of main";
        MUSES_LOG_DEBUG(muses::default_logger(), "below the level");
    });
    CHECK(status == 0);
    std::vector<std::string> messages;
    for (const auto& line : lines_of(text)) messages.push_back(message_of(line));
    CHECK(messages == std::vector<std::string>{"first", "thread_local of a thread", "thread_local of main",
                                               "static made after the logger", "static made before the logger"});
}

TEST_CASE("logging: a burst just before the end of the process is written") {
    const auto [text, status] = in_a_process([] {
        for (int i = 0; i < 3000; ++i) MUSES_LOG_INFO(muses::default_logger(), "{}", i);
    });
    CHECK(status == 0);
    CHECK(lines_of(text).size() == 3000);
}

TEST_CASE("logging: a static Logger is destroyed without a deadlock while threads of the process log") {
    const auto [text, status] = in_a_process([] {
        static Logger log;
        log.add_sink(std::make_unique<muses::StderrSink>());
        for (int i = 0; i < 100; ++i) MUSES_LOG_INFO(log, "{}", i);
    });
    CHECK(status == 0);
    CHECK(lines_of(text).size() == 100);
}

// ThreadSanitizer ends a forked child that starts a thread. In one of gcc's AddressSanitizer such a thread may wait for ever for a lock of
// the allocator, which some thread of the parent held at the fork.
#if defined(MUSES_TEST_TSAN) || (defined(__SANITIZE_ADDRESS__) && !defined(__clang__))
#define MUSES_TEST_NO_THREADS_IN_CHILD 1
#endif

TEST_CASE("logging: a forked child exits at once and writes no line of its parent") {
    const auto [text, status] = in_a_process([] {
        // Runs after the static logger's destructor, and before LeakSanitizer finds what the child's missing thread held.
        static bool in_child = false;
        std::atexit([] {
            if (in_child) ::_exit(0);
        });
        static Logger log(LoggerOptions{.capacity = 1, .overflow = OverflowPolicy::Block});
        static std::atomic<bool> open{false};
        log.add_sink(std::make_unique<muses::CallbackSink>([](std::string_view) {
            if (!eventually([] { return open.load(); })) std::abort();
        }));
        log.add_sink(std::make_unique<muses::StderrSink>());
        MUSES_LOG_INFO(log, "one");
        MUSES_LOG_INFO(log, "two");  // one of the two is in the ring when the child is made
        MUSES_LOG_INFO(muses::default_logger(), "default");
        const auto before = std::chrono::steady_clock::now();
        const pid_t child = ::fork();
        if (child == 0) {
            in_child = true;
            if (log.flush(10s)) ::_exit(3);                       // its sink is stuck
            if (!muses::default_logger().flush(10s)) ::_exit(4);  // nothing to do
            log.stop();
            std::exit(0);  // destroys the static logger
        }
        int ended = -1;
        ::waitpid(child, &ended, 0);
        if (std::chrono::steady_clock::now() - before > 5s) ended = -2;
        open = true;
        MUSES_LOG_INFO(log, "child {}", ended);
    });
    CHECK(status == 0);
    std::vector<std::string> messages;
    for (const auto& line : lines_of(text)) messages.push_back(message_of(line));
    std::ranges::sort(messages);
    CAPTURE(text);
    CHECK(messages == std::vector<std::string>{"child 0", "default", "one", "two"});
}

#if !defined(MUSES_TEST_NO_THREADS_IN_CHILD)
TEST_CASE("logging: a forked child logs and its child too and no line is written twice") {
    for (const auto overflow : {OverflowPolicy::DropOldest, OverflowPolicy::DropNew, OverflowPolicy::Block}) {
        const auto [text, status] = in_a_process([overflow] {
            auto log = std::make_unique<Logger>(LoggerOptions{.capacity = 64, .overflow = overflow});
            log->add_sink(std::make_unique<muses::StderrSink>());
            const auto wait_for = [](pid_t child) {
                int ended = -1;
                ::waitpid(child, &ended, 0);
                return ended;
            };
            for (int i = 0; i < 20; ++i) MUSES_LOG_INFO(*log, "parent {}", i);  // some of them are on their way at the fork
            const pid_t child = ::fork();
            if (child == 0) {
                for (int i = 0; i < 20; ++i) MUSES_LOG_INFO(*log, "child {}", i);
                const pid_t grandchild = ::fork();
                if (grandchild == 0) {
                    MUSES_LOG_INFO(*log, "grandchild");
                    if (!log->flush(10s)) ::_exit(3);
                    ::_exit(0);
                }
                if (wait_for(grandchild) != 0) ::_exit(4);
                log->reopen();
                MUSES_LOG_INFO(*log, "child at its end");
                if (log->stats().dropped != 0) ::_exit(5);
                log.reset();  // writes what is left
                ::_exit(0);
            }
            if (wait_for(child) != 0) ::_exit(6);
            MUSES_LOG_INFO(*log, "parent at its end");
            log->stop();
            if (log->stats().written != 21 || log->stats().dropped != 0) ::_exit(7);
        });
        CHECK(status == 0);
        std::multiset<std::string> expected{"grandchild", "child at its end", "parent at its end"};
        for (int i = 0; i < 20; ++i) expected.insert({"parent " + std::to_string(i), "child " + std::to_string(i)});
        std::multiset<std::string> messages;
        for (const auto& line : lines_of(text)) messages.insert(message_of(line));
        CAPTURE(text);
        CHECK(messages == expected);
    }
}

TEST_CASE("logging: forks amid the lines of other threads leave every child able to log") {
    const auto [text, status] = in_a_process([] {
        auto& log = *new Logger(LoggerOptions{.capacity = 32, .overflow = OverflowPolicy::Block});  // in use when the process ends
        log.add_sink(std::make_unique<muses::StderrSink>());
        std::atomic<bool> done{false};
        std::vector<std::thread> busy;
        for (int i = 0; i < 3; ++i) {
            busy.emplace_back([&] {
                while (!done) MUSES_LOG_INFO(log, "busy");
            });
        }
        int failures = 0;
        for (int i = 0; i < 20; ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                MUSES_LOG_INFO(log, "child {}", i);
                ::_exit(log.flush(10s) ? 0 : 3);
            }
            int ended = -1;
            ::waitpid(child, &ended, 0);
            if (ended != 0) ++failures;
        }
        done = true;
        for (auto& t : busy) t.join();
        log.stop();
        ::_exit(failures);
    });
    CHECK(status == 0);
    // A large write of the parent may be cut in two by a child's: the pipe keeps only small ones whole.
    for (int i = 0; i < 20; ++i) {
        const std::string line = "] child " + std::to_string(i) + "\n";
        const std::size_t at = text.find(line);
        CHECK(at != std::string::npos);
        CHECK(text.find(line, at + 1) == std::string::npos);
    }
}
#endif

TEST_CASE("logging: lines of a forked child whose sink was stuck are counted") {
    const auto [text, status] = in_a_process([] {
        auto log = std::make_unique<Logger>(LoggerOptions{.capacity = 64});
        std::atomic<bool> open{false};
        std::atomic<bool> stuck{false};
        log->add_sink(std::make_unique<muses::CallbackSink>([&](std::string_view) {
            stuck = true;
            if (!eventually([&] { return open.load(); }, 60s)) std::abort();
        }));
        MUSES_LOG_INFO(*log, "parent");
        if (!eventually([&] { return stuck.load(); })) ::_exit(2);
        const pid_t child = ::fork();
        if (child == 0) {
            const auto before = log->stats();
            for (int i = 0; i < 10; ++i) MUSES_LOG_INFO(*log, "child {}", i);  // far fewer than the ring holds
            const auto after = log->stats();
            if (after.dropped - before.dropped != 10 || after.written != before.written) ::_exit(3);
            log->reopen();
            log->add_sink(std::make_unique<muses::StderrSink>());
            if (log->flush(10s)) ::_exit(4);
            log.reset();
            ::_exit(0);
        }
        int ended = -1;
        ::waitpid(child, &ended, 0);
        open = true;
        log->stop();
        if (ended != 0 || log->stats().dropped != 0 || log->stats().written != 1) ::_exit(6);
    });
    CAPTURE(text);
    CHECK(status == 0);
}

TEST_CASE("logging: a forked child that destroys its parents logger leaks nothing") {
    const auto [text, status] = in_a_process([] {
        auto log = std::make_unique<Logger>();
        log->flush(10s);  // the thread has begun: what it was started with is its own
        const pid_t child = ::fork();
        if (child == 0) {
            log.reset();
            std::exit(0);  // where LeakSanitizer is built in it looks now
        }
        int ended = -1;
        ::waitpid(child, &ended, 0);
        if (ended != 0) ::_exit(3);
    });
    CAPTURE(text);
    CHECK(status == 0);
}

TEST_CASE("logging: loggers come and go with lines in flight") {
    for (int round = 0; round < stress_rounds(300); ++round) {
        Collector got;
        {
            Logger log(LoggerOptions{.capacity = 16});
            log.add_sink(got.sink());
            for (int i = 0; i < round % 10; ++i) MUSES_LOG_INFO(log, "{}", i);
        }
        REQUIRE(got.size() == static_cast<std::size_t>(round % 10));
    }
}
