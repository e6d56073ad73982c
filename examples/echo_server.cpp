// Sends back whatever it receives: a coroutine for each connection.   echo_server [PORT]
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "muses/net/async_listener.hpp"

using namespace std::chrono_literals;

muses::Task<> echo(muses::AsyncConnection peer) {
    std::array<char, 4096> room;
    while (const auto got = co_await peer.async_read(room, 60s)) {
        if (*got == 0) co_return;  // the peer has closed
        const auto sent = co_await peer.async_write({room.data(), *got}, 60s);
        if (!sent) co_return;
    }
}

muses::Task<> serve(muses::EventLoop& loop, int listener_fd) {
    muses::AsyncListener listener(loop, listener_fd);
    for (;;) {
        auto peer = co_await listener.async_accept();
        if (peer)
            muses::spawn(loop, echo(std::move(*peer)));
        else
            co_await muses::sleep_for(50ms);  // out of descriptors, for example
    }
}

int main(int argc, char** argv) {
    static muses::EventLoop loop;
    const muses::TCPListener socket("127.0.0.1", argc > 1 ? std::atoi(argv[1]) : 7777);
    const auto fd = socket.get_listener();
    if (!fd) return std::fprintf(stderr, "cannot listen: %s\n", fd.error().message().c_str()), 1;
    muses::spawn(loop, serve(loop, *fd));
    std::signal(SIGINT, [](int) { loop.stop(); });
    loop.run();  // connections that are open then are closed with the loop
}
