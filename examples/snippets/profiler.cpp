// Scopes, a report, a trace and a clock of one's own; shown in docs/profiler.md.

#include "muses/profiler.hpp"

#include <atomic>
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <thread>

// [work]
std::uint64_t factorial(std::uint64_t n) {
    MUSES_PROFILE_SCOPE("factorial");  // until the end of the block
    return n < 2 ? 1 : n * factorial(n - 1);
}

void request() {
    MUSES_PROFILE_SCOPE("request");
    for (std::uint64_t n = 1; n <= 20; ++n) factorial(n);
}
// [/work]

int main() {
    {
        // [report]
        std::thread([] { request(); }).join();  // threads that have ended still count
        request();

        const muses::ProfileReport report = muses::Profiler::instance().report();
        assert(report.find("request")->count == 2);
        assert(report.find("factorial")->count == 2 * 210);
        // The time inside itself counts once: a recursion is not longer than what it is part of.
        assert(report.find("factorial")->total_ns <= report.find("request")->total_ns);
        std::fputs(report.table().c_str(), stdout);  // or json(), csv()
        // [/report]
    }
    {
        // [trace]
        std::ofstream("/dev/null") << muses::Profiler::instance().chrome_trace();  // for ui.perfetto.dev
        // [/trace]
    }
    {
        // [clock]
        muses::Profiler& profiler = muses::Profiler::instance();
        std::atomic<std::uint64_t> now{0};
        profiler.set_clock([&now] { return now.load(); });
        profiler.reset();
        {
            MUSES_PROFILE_SCOPE("exact");
            now += 42;
        }
        assert(profiler.report().find("exact")->total_ns == 42);
        profiler.set_clock(nullptr);  // the steady clock again
        profiler.set_enabled(false);  // from now on a scope costs a load and a branch
        // [/clock]
    }
}
