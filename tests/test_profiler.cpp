#include "muses/profiler.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/failing_new.hpp"

using muses::Profiler;
using muses::ProfileReport;
using muses::ProfileRow;
using muses::detail::LogLinear;
using muses::detail::LogLinearHistogram;
using muses::test::eventually;
using muses::test::stress_rounds;

namespace {

// A clock that goes when it is told to, and a profiler that knows nothing.
struct FakeTime {
    FakeTime() {
        now = 1'000'000;
        Profiler::instance().set_clock([] { return now.load(); });
        Profiler::instance().reset();
    }
    FakeTime(const FakeTime&) = delete;
    FakeTime& operator=(const FakeTime&) = delete;
    ~FakeTime() {
        Profiler::instance().set_clock(nullptr);
        Profiler::instance().set_enabled(true);
    }
    static inline std::atomic<std::uint64_t> now{0};
};

void pass(std::uint64_t ns) { FakeTime::now += ns; }

ProfileRow row(const char* name) {
    const ProfileReport report = Profiler::instance().report();
    const ProfileRow* const found = report.find(name);
    return found != nullptr ? *found : ProfileRow{};
}

std::size_t occurrences(std::string_view text, std::string_view of) {
    std::size_t count = 0;
    for (std::size_t at = text.find(of); at != std::string_view::npos; at = text.find(of, at + of.size())) ++count;
    return count;
}

// Scopes may also be passed when everything is over.
struct AtTheEnd {
    ~AtTheEnd() {
        { MUSES_PROFILE_SCOPE("static destructor"); }
        // The main thread's records may be with the profiler by now: then the pass was lost, and nothing worse.
        const auto report = Profiler::instance().report();
        if (report.lost == 0 && report.find("static destructor") == nullptr) std::_Exit(1);
    }
} at_the_end;

}  // namespace

TEST_CASE("profiler: a scope has count and total and self time and mean and extremes") {
    const FakeTime time;
    for (const std::uint64_t inside : {10U, 20U, 60U}) {
        MUSES_PROFILE_SCOPE("outer");
        pass(5);
        {
            MUSES_PROFILE_SCOPE("inner");
            pass(inside);
        }
        pass(5);
    }
    const ProfileReport report = Profiler::instance().report();
    REQUIRE(report.size() == 2);
    CHECK(report[0].name == "outer");  // the greatest total first
    CHECK(report[0].count == 3);
    CHECK(report[0].total_ns == 120);
    CHECK(report[0].self_ns == 30);
    CHECK(report[0].mean_ns == 40);
    CHECK(report[0].max_ns == 70);
    const ProfileRow& inner = report[1];
    CHECK(inner.name == "inner");
    CHECK(inner.count == 3);
    CHECK(inner.total_ns == 90);
    CHECK(inner.self_ns == 90);
    CHECK(inner.mean_ns == 30);
    CHECK(inner.p50_ns == 20);
    CHECK(inner.max_ns == 60);
    CHECK(report.find("nobody") == nullptr);
    CHECK_FALSE(report.empty());
    std::size_t rows = 0;
    for (const ProfileRow& each : report) rows += each.count == 3 ? 1 : 0;
    CHECK(rows == 2);
}

namespace {
void recursive(int depth) {
    MUSES_PROFILE_SCOPE("recursive");
    pass(10);
    if (depth > 1) recursive(depth - 1);
}
void even(int n);
void odd(int n) {
    MUSES_PROFILE_SCOPE("odd");
    pass(1);
    if (n > 0) even(n - 1);
}
void even(int n) {
    MUSES_PROFILE_SCOPE("even");
    pass(100);
    if (n > 0) odd(n - 1);
}
}  // namespace

TEST_CASE("profiler: the time of a recursion counts once") {
    const FakeTime time;
    recursive(5);
    CHECK(row("recursive").count == 5);
    CHECK(row("recursive").total_ns == 50);  // not 50 + 40 + 30 + 20 + 10
    CHECK(row("recursive").self_ns == 50);
    CHECK(row("recursive").mean_ns == 10);
    CHECK(row("recursive").max_ns == 50);
    recursive(1);
    CHECK(row("recursive").total_ns == 60);

    even(3);  // even odd even odd
    CHECK(row("even").count == 2);
    CHECK(row("even").total_ns == 202);
    CHECK(row("even").self_ns == 200);
    CHECK(row("odd").count == 2);
    CHECK(row("odd").total_ns == 102);
    CHECK(row("odd").self_ns == 2);
}

TEST_CASE("profiler: places of one name are one scope also when one is inside the other") {
    const FakeTime time;
    {
        MUSES_PROFILE_SCOPE("shared");
        pass(10);
        {
            MUSES_PROFILE_SCOPE("shared");
            pass(20);
        }
    }
    CHECK(row("shared").count == 2);
    CHECK(row("shared").total_ns == 30);
    CHECK(row("shared").self_ns == 30);
    CHECK(Profiler::instance().report().size() == 1);
}

TEST_CASE("profiler: a scope that is left by an exception is measured") {
    const FakeTime time;
    try {
        MUSES_PROFILE_SCOPE("throwing");
        pass(7);
        throw std::runtime_error("out");
    } catch (const std::runtime_error&) {}
    {
        MUSES_PROFILE_SCOPE("after");
        pass(1);
    }
    CHECK(row("throwing").total_ns == 7);
    CHECK(row("after").self_ns == 1);
}

// --- quantiles

TEST_CASE("profiler: quantiles are right to a thirty-second of their value") {
    const FakeTime time;
    for (std::uint64_t ns = 1; ns <= 10'000; ++ns) {
        MUSES_PROFILE_SCOPE("spread");
        pass(ns);
    }
    CHECK(static_cast<double>(row("spread").p50_ns) == doctest::Approx(5000).epsilon(1.0 / 31));
    CHECK(static_cast<double>(row("spread").p99_ns) == doctest::Approx(9900).epsilon(1.0 / 31));
    CHECK(row("spread").max_ns == 10'000);
    for (int i = 0; i < 100; ++i) {
        MUSES_PROFILE_SCOPE("constant");
        pass(123'456);
    }
    CHECK(row("constant").p50_ns == 123'456);
    CHECK(row("constant").p99_ns == 123'456);
    for (int i = 0; i < 100; ++i) {
        MUSES_PROFILE_SCOPE("no time");
    }
    CHECK(row("no time").p99_ns == 0);
    CHECK(row("no time").count == 100);
}

TEST_CASE("profiler: each value has a bucket that is narrow and contains it") {
    std::mt19937_64 random(7);
    std::size_t last = 0;
    for (std::uint64_t value = 0; value < 5000; ++value) {
        CHECK(LogLinear::bucket_of(value) >= last);
        CHECK(LogLinear::bucket_of(value) <= last + 1);  // none is left out
        last = LogLinear::bucket_of(value);
    }
    for (int i = 0; i < 10'000; ++i) {
        const std::uint64_t value = random() >> (20U + random() % 44U);
        const std::size_t bucket = LogLinear::bucket_of(value);
        REQUIRE(bucket < LogLinear::kBuckets);
        const std::uint64_t middle = LogLinear::value_of(bucket);
        CHECK(LogLinear::bucket_of(middle) == bucket);
        CHECK((middle > value ? middle - value : value - middle) <= value / 32);
    }
    CHECK(LogLinear::bucket_of(UINT64_MAX) == LogLinear::kBuckets - 1);
    CHECK(LogLinear::bucket_of((std::uint64_t{1} << 44U) - 1) == LogLinear::kBuckets - 1);
}

TEST_CASE("profiler: merged histograms are the histogram of all values") {
    LogLinearHistogram all;
    LogLinearHistogram some;
    LogLinearHistogram others;
    CHECK(all.quantile(0.5) == 0);
    std::mt19937_64 random(8);
    for (int i = 0; i < 5000; ++i) {
        const std::uint64_t value = random() >> (random() % 64U);
        all.add(value);
        (i % 3 == 0 ? some : others).add(value);
    }
    some.merge(others);
    CHECK(some.buckets == all.buckets);
    for (const double q : {0.0, 0.5, 0.9, 1.0}) CHECK(some.quantile(q) == all.quantile(q));
    CHECK(some.largest == all.largest);
    CHECK(some.smallest == all.smallest);
}

// --- clocks

TEST_CASE("profiler: a clock that steps back makes a pass short and nothing worse") {
    const FakeTime time;
    {
        MUSES_PROFILE_SCOPE("around");
        pass(100);
        {
            MUSES_PROFILE_SCOPE("back");
            FakeTime::now -= 50;
        }
    }
    {
        MUSES_PROFILE_SCOPE("far back");
        FakeTime::now = 0;
    }
    CHECK(row("back").count == 1);
    CHECK(row("back").total_ns == 0);
    CHECK(row("back").max_ns == 0);
    CHECK(row("around").total_ns == 50);
    CHECK(row("around").self_ns == 50);
    CHECK(row("far back").total_ns == 0);

    std::uint64_t reading = 1'000'000;
    Profiler::instance().set_clock([&reading] { return reading -= 10; });
    for (int i = 0; i < 10; ++i) {
        MUSES_PROFILE_SCOPE("backwards");
    }
    CHECK(row("backwards").total_ns == 0);
}

TEST_CASE("profiler: a clock may return nanoseconds or a duration or a point in time") {
    const FakeTime time;
    using namespace std::chrono;
    std::uint64_t ticks = 0;
    const auto once = [&](auto clock) {
        Profiler::instance().reset();
        Profiler::instance().set_clock(clock);
        { MUSES_PROFILE_SCOPE("typed"); }
        return row("typed").total_ns;
    };
    CHECK(once([&] { return ticks += 3; }) == 3);
    CHECK(once([&] { return static_cast<int>(ticks += 4); }) == 4);
    CHECK(once([&] { return microseconds(ticks += 1); }) == 1000);
    CHECK(once([&] { return steady_clock::time_point(duration_cast<steady_clock::duration>(milliseconds(ticks += 1))); }) ==
          1'000'000);
    Profiler::instance().set_clock(nullptr);
    Profiler::instance().reset();
    {
        MUSES_PROFILE_SCOPE("real");
        const auto start = steady_clock::now();
        while (steady_clock::now() - start < microseconds(100)) {}
    }
    CHECK(row("real").total_ns >= 100'000);
}

TEST_CASE("profiler: a pass ends on the clock on which it began") {
    const FakeTime time;
    {
        MUSES_PROFILE_SCOPE("changed");
        pass(11);
        Profiler::instance().set_clock([] { return std::uint64_t{1} << 60U; });
    }
    CHECK(row("changed").total_ns == 11);
}

TEST_CASE("profiler: a pass whose clock throws is lost and ends nothing") {
    const FakeTime time;
    static std::atomic<int> readings{0};
    readings = 0;
    Profiler::instance().set_clock([]() -> std::uint64_t {
        if (readings++ != 3) throw std::runtime_error("no time");
        return 1'000'000'000'000;
    });
    { MUSES_PROFILE_SCOPE("timeless"); }  // both readings fail
    { MUSES_PROFILE_SCOPE("timeless"); }  // the first does
    CHECK(Profiler::instance().report().lost == 2);
    CHECK(row("timeless").count == 0);
    Profiler::instance().set_clock([] { return FakeTime::now.load(); });
    {
        MUSES_PROFILE_SCOPE("timeless");
        pass(3);
    }
    CHECK(row("timeless").count == 1);
    CHECK(row("timeless").total_ns == 3);
}

TEST_CASE("profiler: a clock below zero stands still") {
    const FakeTime time;
    static std::atomic<std::int64_t> at{-5};
    at = -5;
    Profiler::instance().set_clock([] { return at.exchange(at == -5 ? 5 : 7); });
    { MUSES_PROFILE_SCOPE("before the epoch"); }
    CHECK(row("before the epoch").total_ns == 5);
    CHECK(Profiler::instance().chrome_trace().find("\"ts\":0.000,\"dur\":0.005") != std::string::npos);
}

TEST_CASE("profiler: the empty name is a name") {
    const FakeTime time;
    for (int i = 0; i < 5; ++i) {
        MUSES_PROFILE_SCOPE("");
        pass(2);
    }
    CHECK(row("").count == 5);
    CHECK(row("").total_ns == 10);
    CHECK(Profiler::instance().report().lost == 0);
}

TEST_CASE("profiler: an impossible trace capacity is refused") {
    for (const std::size_t passes : {Profiler::kMaxTraceCapacity + 1, SIZE_MAX / 3 + 1, SIZE_MAX})
        CHECK_THROWS_AS(Profiler::instance().set_trace_capacity(passes), std::invalid_argument);
}

// --- the gate, and forgetting

TEST_CASE("profiler: while it is off nothing is measured and what began before is") {
    const FakeTime time;
    Profiler& profiler = Profiler::instance();
    CHECK(profiler.enabled());
    {
        MUSES_PROFILE_SCOPE("begun on");
        pass(1);
        profiler.set_enabled(false);
        {
            MUSES_PROFILE_SCOPE("begun off");
            pass(2);
            profiler.set_enabled(true);
        }
        profiler.set_enabled(false);
    }
    CHECK_FALSE(profiler.enabled());
    CHECK(row("begun on").total_ns == 3);
    CHECK(row("begun off").count == 0);
    profiler.set_enabled(true);
    {
        MUSES_PROFILE_SCOPE("on again");
        pass(1);
    }
    CHECK(row("on again").count == 1);
}

TEST_CASE("profiler: reset forgets what was measured and what is open") {
    const FakeTime time;
    Profiler& profiler = Profiler::instance();
    recursive(3);
    {
        MUSES_PROFILE_SCOPE("open");
        pass(10);
        profiler.reset();
        CHECK(profiler.report().empty());
        {
            MUSES_PROFILE_SCOPE("open");  // the outermost pass of those that count
            pass(3);
        }
        pass(10);
    }
    const ProfileReport report = profiler.report();
    CHECK(report.size() == 1);
    CHECK(row("open").count == 1);
    CHECK(row("open").total_ns == 3);
    CHECK(profiler.chrome_trace().find("recursive") == std::string::npos);
    recursive(2);
    CHECK(row("recursive").count == 2);
    CHECK(row("recursive").total_ns == 20);
}

// --- threads

TEST_CASE("profiler: threads that have ended still count") {
    const FakeTime time;
    for (int round = 0; round < 3; ++round) {
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([] {
                for (int i = 0; i < 100; ++i) {
                    MUSES_PROFILE_SCOPE("in threads");
                }
            });
        }
        for (auto& thread : threads) thread.join();
    }
    CHECK(row("in threads").count == 1200);
    Profiler::instance().reset();
    CHECK(row("in threads").count == 0);
}

TEST_CASE("profiler: a thread that runs is in the report") {
    const FakeTime time;
    std::atomic<bool> passed{false};
    std::atomic<bool> stop{false};
    std::thread thread([&] {
        { MUSES_PROFILE_SCOPE("running"); }
        passed = true;
        while (!stop) std::this_thread::yield();
        { MUSES_PROFILE_SCOPE("running"); }
    });
    while (!passed) std::this_thread::yield();
    CHECK(row("running").count == 1);
    stop = true;
    thread.join();
    CHECK(row("running").count == 2);
}

TEST_CASE("profiler: reports and resets while many threads record lose nothing and invent nothing") {
    Profiler& profiler = Profiler::instance();
    profiler.reset();
    std::atomic<bool> stop{false};
    std::thread reader([&] {
        while (!stop) {
            const ProfileReport report = profiler.report();
            for (const ProfileRow& each : report) {
                if (each.count > 1'000'000'000) std::abort();
            }
            (void)profiler.chrome_trace();
        }
    });
    const int rounds = stress_rounds(20'000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < rounds; ++i) {
                MUSES_PROFILE_SCOPE("busy");
                MUSES_PROFILE_SCOPE("busier");
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(row("busy").count == static_cast<std::uint64_t>(3 * rounds));
    CHECK(row("busier").count == static_cast<std::uint64_t>(3 * rounds));

    std::thread recorder([&] {
        while (!stop) {
            MUSES_PROFILE_SCOPE("reset under way");
        }
    });
    for (int i = 0; i < stress_rounds(200); ++i) {
        profiler.reset();
        CHECK(eventually([] { return row("reset under way").count > 0; }));
    }
    stop = true;
    recorder.join();
    reader.join();
    profiler.reset();
    CHECK(profiler.report().empty());
}

TEST_CASE("profiler: a scope in a late destructor of a thread is counted as lost") {
    const FakeTime time;
    struct Late {
        ~Late() {
            MUSES_PROFILE_SCOPE("late");
            pass(1);
        }
    };
    std::thread([] {
        static thread_local const Late late;  // constructed before the profiler's own, so destroyed after it
        (void)&late;
        MUSES_PROFILE_SCOPE("early");
    }).join();
    CHECK(row("early").count == 1);
    CHECK(row("late").count == 0);
    CHECK(Profiler::instance().report().lost == 1);
}

#ifdef MUSES_TEST_CAN_FAIL_NEW
TEST_CASE("profiler: a scope without memory for its first pass is lost and the next one is not") {
    const FakeTime time;
    std::thread([] {
        for (int nth = 0; nth < 3; ++nth) {
            const muses::test::FailNew fail(nth);
            MUSES_PROFILE_SCOPE("a name that is long enough to need memory of its own");
        }
        MUSES_PROFILE_SCOPE("a name that is long enough to need memory of its own");
    }).join();
    const std::uint64_t lost = Profiler::instance().report().lost;
    CHECK(lost >= 2);
    CHECK(row("a name that is long enough to need memory of its own").count == 4 - lost);
}
#endif

// --- output

TEST_CASE("profiler: the table has a line for each scope and one for the overhead") {
    const FakeTime time;
    {
        MUSES_PROFILE_SCOPE("slow\nand odd");
        pass(3'400'000'000);
    }
    for (int i = 0; i < 2; ++i) {
        MUSES_PROFILE_SCOPE("quick");
        pass(1520);
    }
    const std::string table = Profiler::instance().table();
    CHECK(occurrences(table, "\n") == 4);
    CHECK(table.find("slow and odd            1     3.40 s") != std::string::npos);
    CHECK(table.find("quick                   2    3.04 us    3.04 us    1.52 us") != std::string::npos);
    CHECK(table.find("a pass costs") != std::string::npos);
}

TEST_CASE("profiler: JSON and CSV are exact and escaped") {
    const FakeTime time;
    {
        MUSES_PROFILE_SCOPE("a \"b\", \\c\t");
        pass(40);
    }
    {
        MUSES_PROFILE_SCOPE("plain");
        pass(10);
    }
    {
        MUSES_PROFILE_SCOPE("plain");
        pass(11);
    }
    const std::string json = Profiler::instance().json();
    CHECK(json.starts_with("{\"overhead\":{\"clock_ns\":"));
    CHECK(
        json.ends_with("\"lost\":0,\"scopes\":[\n"
                       "{\"name\":\"a \\\"b\\\", \\\\c\\t\",\"count\":1,\"total_ns\":40,\"self_ns\":40,\"mean_ns\":40.000,"
                       "\"p50_ns\":40,\"p99_ns\":40,\"max_ns\":40},\n"
                       "{\"name\":\"plain\",\"count\":2,\"total_ns\":21,\"self_ns\":21,\"mean_ns\":10.500,"
                       "\"p50_ns\":10,\"p99_ns\":11,\"max_ns\":11}\n]}\n"));
    CHECK(Profiler::instance().csv() ==
          "name,count,total_ns,self_ns,mean_ns,p50_ns,p99_ns,max_ns\n"
          "\"a \"\"b\"\", \\c\t\",1,40,40,40.000,40,40,40\n"
          "plain,2,21,21,10.500,10,11,11\n");
    Profiler::instance().reset();
    CHECK(Profiler::instance().json().ends_with("\"scopes\":[\n]}\n"));
    CHECK(occurrences(Profiler::instance().csv(), "\n") == 1);
}

TEST_CASE("profiler: a name that is no UTF-8 leaves JSON valid") {
    const FakeTime time;
    { MUSES_PROFILE_SCOPE("bad \xff"); }
    CHECK(Profiler::instance().json().find("{\"name\":\"bad \\ufffd\",") != std::string::npos);
    CHECK(Profiler::instance().chrome_trace().find("{\"name\":\"bad \\ufffd\",") != std::string::npos);
}

TEST_CASE("profiler: the trace has every pass with its thread") {
    const FakeTime time;
    {
        MUSES_PROFILE_SCOPE("here \"quoted\"");
        pass(1'234);
    }
    std::thread([] {
        MUSES_PROFILE_SCOPE("there");
        pass(5);
    }).join();
    const std::string trace = Profiler::instance().chrome_trace();
    CHECK(trace.starts_with("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"forgotten\":0},\"traceEvents\":[\n{"));
    CHECK(trace.ends_with("}\n]}\n"));
    CHECK(trace.find("{\"name\":\"here \\\"quoted\\\"\",\"ph\":\"X\",\"pid\":1,\"tid\":") != std::string::npos);
    CHECK(trace.find("\"ts\":1000.000,\"dur\":1.234}") != std::string::npos);
    CHECK(trace.find("\"ts\":1001.234,\"dur\":0.005}") != std::string::npos);
    CHECK(occurrences(trace, "\"thread_name\"") == 2);
    CHECK(occurrences(trace, "{") == occurrences(trace, "}"));
    Profiler::instance().reset();
    CHECK(occurrences(Profiler::instance().chrome_trace(), "\"ph\"") == 0);
}

TEST_CASE("profiler: a trace keeps the last passes and says how many it forgot") {
    const FakeTime time;
    const auto passes = [](int count) {
        for (int i = 0; i < count; ++i) {
            MUSES_PROFILE_SCOPE("many");
            pass(1000);
        }
    };
    passes(5000);
    std::string trace = Profiler::instance().chrome_trace();
    CHECK(occurrences(trace, "\"many\"") == 4096);
    CHECK(trace.find("\"forgotten\":904}") != std::string::npos);
    CHECK(trace.find("\"ts\":5999.000,") != std::string::npos);
    CHECK(trace.find("\"ts\":1903.000,") == std::string::npos);
    CHECK(trace.find("\"ts\":1904.000,") != std::string::npos);

    Profiler::instance().reset();
    Profiler::instance().set_trace_capacity(10);
    std::thread(passes, 25).join();
    Profiler::instance().set_trace_capacity(0);
    std::thread(passes, 25).join();
    Profiler::instance().set_trace_capacity(4096);
    trace = Profiler::instance().chrome_trace();
    CHECK(occurrences(trace, "\"many\"") == 10);
    CHECK(row("many").count == 50);
    for (int i = 0; i < 20; ++i) std::thread(passes, 4096).join();
    CHECK(occurrences(Profiler::instance().chrome_trace(), "\"many\"") == 65'536);
}

TEST_CASE("profiler: what it costs itself is measured apart from what is reported") {
    const FakeTime time;
    const ProfileReport report = Profiler::instance().report();
    CHECK(report.empty());
    CHECK(report.overhead.clock_ns > 0);
    CHECK(report.overhead.scope_ns > 0);
    CHECK(report.overhead.scope_ns < 1e8);
    CHECK(occurrences(Profiler::instance().chrome_trace(), "\"ph\"") == 0);
}
