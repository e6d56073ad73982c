// Whether another thread of this process sleeps: the condition to wait for where a test needs a thread to be blocked.
#pragma once

#include <atomic>
#include <fstream>
#include <string>

#include "eventually.hpp"

#if defined(__linux__)
#include <unistd.h>
#endif

namespace muses::test {

/// A thread that says who it is, so that others can wait until it blocks.
class SleepWatch {
public:
    /// Called by the thread that is going to block, before it does.
    void here() noexcept {
#if defined(__linux__)
        thread_.store(::gettid());
#else
        thread_.store(1);
#endif
    }

    /// Waits until that thread has come by and then sleeps in the kernel. Where the system does not tell who sleeps, until it has come by.
    [[nodiscard]] bool eventually_asleep() const {
        return eventually([this] {
            const long thread = thread_.load();
            if (thread == 0) return false;
#if defined(__linux__)
            std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
            std::string line;
            std::getline(stat, line);
            const std::size_t end = line.rfind(") ");  // of the name, in which anything may stand
            return end != std::string::npos && line[end + 2] == 'S';
#else
            return true;
#endif
        });
    }

private:
    std::atomic<long> thread_{0};
};

}  // namespace muses::test
