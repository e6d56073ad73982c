#pragma once

/// Waiting in tests without sleeping for luck.
///
/// A test that needs another thread to get somewhere waits for the condition itself, with a deadline that only a broken
/// program reaches. The deadline is generous on purpose: a busy machine makes a test slower, never red.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace muses::test {

/// Calls `condition()` until it returns true or `timeout` has passed; returns what the last call said.
/// Polls at first without a pause, then with pauses that grow to 5 ms, so a quick condition costs microseconds and a slow one
/// no processor. The condition is always asked once more after the deadline.
template <class Condition>
[[nodiscard]] bool eventually(Condition&& condition, std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    auto pause = std::chrono::microseconds(0);
    for (int round = 0;; ++round) {
        if (static_cast<bool>(condition())) {
            return true;
        }
        if (std::chrono::steady_clock::now() >= deadline) {
            return static_cast<bool>(condition());
        }
        if (round < 16) {
            std::this_thread::yield();
            continue;
        }
        pause = pause.count() == 0 ? std::chrono::microseconds(20) : std::min(pause * 2, std::chrono::microseconds(5000));
        std::this_thread::sleep_for(pause);
    }
}

/// Factor from the environment variable MUSES_STRESS_FACTOR: a positive decimal number, 1 when it is unset or not a number.
/// Nightly runs set it above 1, runs under slow instruments below.
[[nodiscard]] inline double stress_factor() {
    const char* text = std::getenv("MUSES_STRESS_FACTOR");
    if (text == nullptr) {
        return 1.0;
    }
    char* end = nullptr;
    const double factor = std::strtod(text, &end);
    return end != text && *end == '\0' && factor > 0.0 && factor < 1e6 ? factor : 1.0;
}

/// `rounds` times the stress factor, at least 1: how often a stress test repeats.
template <class Integer>
[[nodiscard]] Integer stress_rounds(Integer rounds) {
    const double scaled = static_cast<double>(rounds) * stress_factor();
    return scaled < 1.0 ? Integer{1} : static_cast<Integer>(scaled);
}

}  // namespace muses::test
