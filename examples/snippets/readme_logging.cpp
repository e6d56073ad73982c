// A logger whose callers never wait for a disk.
#include <chrono>
#include <memory>
#include <string>

#include "muses/logging.hpp"

int main() {
    // [main]
    muses::Logger log;  // 8192 lines may wait; when they are full the oldest goes, and the log says so
    log.add_sink(std::make_unique<muses::StderrSink>());

    const std::string user = "Clio";
    MUSES_LOG_INFO(log, "{} read {} pages in {:.1f} s", user, 12, 3.25);
    MUSES_LOG_DEBUG(log, "not evaluated: {}", user + " costs nothing below the level");
    MUSES_LOG_WARN(log, "no forged lines: {}", "first\nsecond");

    log.flush(std::chrono::seconds(1));
    // [/main]
}
