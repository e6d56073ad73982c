// Tasks: awaiting, cancelling, scopes, waiting for descriptors.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "muses/net/event_loop.hpp"
#include "muses/task.hpp"

using namespace std::chrono_literals;

// [basics]
muses::Task<int> half(int n) {
    if (n % 2 != 0) throw std::invalid_argument("odd");
    co_return n / 2;
}

muses::Task<int> quarter(int n) { co_return co_await half(co_await half(n)); }  // an exception goes to who awaits
// [/basics]

// [cancel]
muses::Task<> patient() {
    try {
        co_await muses::sleep_for(1h);
    } catch (const muses::cancelled&) {  // thrown by the wait, on this task's own thread
        std::puts("asked to stop");
        throw;
    }
}
// [/cancel]

// [scope]
muses::Task<> worker(muses::AsyncSemaphore& places, muses::AsyncMutex& mutex, int& sum, int n) {
    co_await places.acquire();
    {
        const auto guard = co_await mutex.scoped_lock();
        sum += n;
    }
    places.release();
}

muses::Task<int> crowd() {
    muses::AsyncSemaphore places(3);  // three at a time
    muses::AsyncMutex mutex;
    int sum = 0;
    muses::TaskScope scope;
    for (int i = 1; i <= 10; ++i) scope.spawn(worker(places, mutex, sum, i));
    co_await scope.join();
    co_return sum;
}
// [/scope]

// [io]
muses::Task<std::string> read_line(muses::EventLoop& loop, int fd) {
    std::string line;
    for (;;) {
        // Without the last argument it waits for ever. The result is an error_code when the descriptor cannot be watched, or is late.
        const auto ready = co_await muses::IoAwaiter(loop, fd, muses::EventMask::Readable, 5s);
        if (!ready) throw std::system_error(ready.error());
        std::array<char, 64> bytes;
        const auto got = ::read(fd, bytes.data(), bytes.size());
        if (got <= 0) co_return line;
        line.append(bytes.data(), static_cast<std::size_t>(got));
        if (line.ends_with('\n')) co_return line;
    }
}
// [/io]

int main() {
    if (muses::sync_wait(quarter(28)) != 7) return 1;

    muses::stop_source source;
    std::thread stopper([&] { source.request_stop(); });
    try {
        muses::sync_wait(muses::with_stop_token(patient(), source.get_token()));
        return 1;
    } catch (const muses::cancelled&) {}
    stopper.join();

    if (muses::sync_wait(crowd()) != 55) return 1;

    // [run]
    muses::EventLoop loop;
    std::thread thread([&] { loop.run(); });
    std::array<int, 2> pipe_ends{};
    if (::pipe(pipe_ends.data()) != 0) return 1;
    if (::write(pipe_ends[1], "a line\n", 7) != 7) return 1;
    const std::string line = muses::sync_wait(read_line(loop, pipe_ends[0]));  // runs on the loop's thread, waits on this one
    loop.stop();
    thread.join();
    // [/run]
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
    return line == "a line\n" ? 0 : 1;
}
