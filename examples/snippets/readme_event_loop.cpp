// One thread that waits for everything at once: descriptors, timers, and work from other threads.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

#include "muses/net/event_loop.hpp"
#include "muses/net/socket.hpp"

// [main]
struct Reader final : muses::EventLoop::IoHandler {
    Reader(muses::EventLoop& l, int f) : loop(l), fd(f), handle(loop.watch(fd, muses::EventMask::Readable, *this)) {
        loop.arm(impatience, std::chrono::seconds(5));
    }
    ~Reader() { loop.unwatch(handle); }

    void on_io(muses::EventMask) override {  // edge-triggered: read until there is no more
        std::array<char, 256> bytes;
        while (const auto got = ::read(fd, bytes.data(), bytes.size())) {
            if (got < 0) return;
            std::printf("%.*s", static_cast<int>(got), bytes.data());
        }
        loop.stop();  // the other end has closed
    }
    void give_up() { loop.stop(); }

    muses::EventLoop& loop;
    int fd;
    muses::EventLoop::IoHandle handle;
    muses::EventLoop::Timer impatience = muses::EventLoop::Timer::calling<&Reader::give_up>(*this);
};
// [/main]

int main() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0 || !muses::set_nonblocking(ends[0])) return 1;

    muses::EventLoop loop;
    Reader reader(loop, ends[0]);
    std::thread other([&] {
        loop.post([&] { std::puts("posted by another thread, run by the loop's"); });
        const char text[] = "bytes through a pipe\n";
        if (::write(ends[1], text, sizeof text - 1) < 0) std::perror("write");
        ::close(ends[1]);
    });
    loop.run();
    other.join();
    ::close(ends[0]);
}
