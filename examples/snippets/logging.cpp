// The logger from its simplest use to its options; shown in docs/logging.md.

#include "muses/logging.hpp"

#include <cassert>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

// [light]
// "muses/log.hpp" is enough here.
void serve_page(muses::LogTarget& log, std::string_view path) { MUSES_LOG_INFO(log, "GET {}", path); }
// [/light]

int main() {
    const auto folder = std::filesystem::temp_directory_path() / "muses-snippet-logging";
    std::filesystem::create_directories(folder);
    const std::string path = folder / "server.log";
    {
        // [simple]
        muses::Logger log;
        log.add_sink(std::make_unique<muses::StderrSink>());                                           // coloured on a terminal
        log.add_sink(std::make_unique<muses::FileSink>(muses::FileSinkOptions{path, 10'000'000, 5}));  // path, path.1 ... path.5
        MUSES_LOG_INFO(log, "{} connections, {:.1f} MB", 12, 3.5);
        // [/simple]
        serve_page(log, "/index.html");
    }
    {
        // [options]
        using namespace std::chrono_literals;
        muses::Logger log({.capacity = 1024, .overflow = muses::OverflowPolicy::Block, .level = muses::LogLevel::Debug});
        log.add_sink(std::make_unique<muses::CallbackSink>([](std::string_view line) { std::puts(std::string(line).c_str()); }));
        log.add_sink(std::make_unique<muses::JsonSink>(muses::FileSinkOptions{path + ".json"}));

        for (int i = 0; i < 1000; ++i)
            MUSES_LOG_WARN_EVERY(log, 1s, "request {} was slow", i);  // one line; the next one counts them

        if (!log.flush(2s)) std::puts("the disk is slow");
        const muses::LogStats stats = log.stats();
        assert(stats.written == 1 && stats.dropped == 0 && stats.sink_errors == 0);
        // [/options]
    }
    std::filesystem::remove_all(folder);
}
