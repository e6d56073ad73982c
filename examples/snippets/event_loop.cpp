// An echo server on one event loop, a client on another thread; shown in docs/net.md.
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "muses/net/event_loop.hpp"
#include "muses/net/socket.hpp"

// [connection]
// Sends back what it receives, until the peer closes or is silent for ten seconds. Owns itself.
class Echo final : muses::EventLoop::IoHandler {
public:
    Echo(muses::EventLoop& loop, muses::UniqueFd fd) : loop_(loop), fd_(std::move(fd)) {
        handle_ = loop_.watch(fd_.get(), muses::EventMask::Readable, *this);
        loop_.arm(silence_, std::chrono::seconds(10));
    }

private:
    ~Echo() { loop_.forget(handle_); }  // the kernel forgets what fd_ closes; the timer unlinks itself

    void on_io(muses::EventMask) override {
        std::array<char, 4096> bytes;
        for (;;) {  // edge-triggered: until there is no more
            const auto got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
            if (got < 0 && errno == EAGAIN) break;
            if (got <= 0) return give_up();
            ::send(fd_.get(), bytes.data(), static_cast<std::size_t>(got), 0);  // a real server keeps what is not taken
        }
        loop_.arm(silence_, std::chrono::seconds(10));
    }

    void give_up() {
        loop_.stop();  // this server serves one connection
        delete this;
    }

    muses::EventLoop& loop_;
    muses::UniqueFd fd_;
    muses::EventLoop::IoHandle handle_;
    muses::EventLoop::Timer silence_ = muses::EventLoop::Timer::calling<&Echo::give_up>(*this);
};
// [/connection]

// [listener]
struct Listener final : muses::EventLoop::IoHandler {
    Listener(muses::EventLoop& l, int f) : loop(l), fd(f), handle(l.watch(f, muses::EventMask::Readable, *this)) {}
    ~Listener() { loop.unwatch(handle); }

    void on_io(muses::EventMask) override {
        while (auto accepted = muses::accept_nonblocking(fd)) new Echo(loop, std::move(*accepted));
    }

    muses::EventLoop& loop;
    int fd;
    muses::EventLoop::IoHandle handle;
};
// [/listener]

int main() {
    // [main]
    muses::TCPListener socket("127.0.0.1", 0);  // port 0: the system chooses
    const auto fd = socket.get_listener();
    if (!fd) return std::fprintf(stderr, "cannot listen: %s\n", fd.error().message().c_str()), 1;

    muses::EventLoop loop;
    Listener listener(loop, *fd);
    std::thread client([&] {
        const muses::Endpoint server = *socket.local_endpoint();
        const muses::UniqueFd peer(::socket(server.family(), SOCK_STREAM, 0));
        std::array<char, 5> answer{};
        if (::connect(peer.get(), server.data(), server.size()) == 0 && ::send(peer.get(), "hello", 5, 0) == 5)
            ::recv(peer.get(), answer.data(), answer.size(), MSG_WAITALL);
        loop.post([answer] { std::printf("%.5s\n", answer.data()); });  // on the loop's thread
    });
    loop.run();
    client.join();
    // [/main]
}
