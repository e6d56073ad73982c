#include "muses/net/async_connection.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "muses/net/async_listener.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/sanitizers.hpp"

using namespace std::chrono_literals;
using muses::AsyncConnection;
using muses::AsyncListener;
using muses::EventLoop;
using muses::Task;

namespace {

constexpr std::size_t kMessage = 1024;

// Bytes that this thread has allocated and not freed, by what it has asked for.
[[maybe_unused]] thread_local std::ptrdiff_t bytes_in_use = 0;

}  // namespace

#if !defined(MUSES_TEST_TSAN)
// Counts in a header of 16 bytes. Not inlined: gcc would take malloc and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
    auto* const block = static_cast<std::size_t*>(std::malloc(size + 16));
    if (block == nullptr) throw std::bad_alloc();
    block[0] = size;
    bytes_in_use += static_cast<std::ptrdiff_t>(size);
    return block + 2;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    if (memory == nullptr) return;
    auto* const block = static_cast<std::size_t*>(memory) - 2;
    bytes_in_use -= static_cast<std::ptrdiff_t>(block[0]);
    std::free(block);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept { operator delete(memory); }
#endif

namespace {

Task<> echo(AsyncConnection peer) {
    std::array<char, kMessage> room;  // NOLINT: filled by the read
    for (;;) {
        const auto got = co_await peer.async_read(room);
        if (!got || *got == 0) co_return;
        const auto sent = co_await peer.async_write({room.data(), *got});
        if (!sent) co_return;
    }
}

Task<> serve(EventLoop& loop, int listener_fd, muses::TaskScope& connections, std::size_t expected, std::atomic<bool>& all_there) {
    AsyncListener listener(loop, listener_fd);
    for (std::size_t i = 0; i < expected; ++i) {
        auto peer = co_await listener.async_accept();
        connections.spawn(echo(std::move(peer.value())));
    }
    all_there = true;
}

Task<bool> converse(EventLoop& loop, muses::Endpoint server, muses::AsyncSemaphore& connecting, muses::AsyncEvent& go,
                    std::atomic<std::size_t>& connected, char letter) {
    std::expected<AsyncConnection, std::error_code> peer;
    co_await connecting.acquire();
    peer = co_await muses::async_connect(loop, server, 60s);
    connecting.release();
    ++connected;
    co_await go.wait();
    if (!peer) co_return false;
    std::array<char, kMessage> room;  // NOLINT: filled below
    room.fill(letter);
    const auto sent = co_await peer->async_write({room.data(), room.size()}, 60s);
    if (!sent) co_return false;
    room.fill('-');
    std::size_t have = 0;
    while (have < kMessage) {
        const auto got = co_await peer->async_read(std::span(room).subspan(have), 60s);
        if (!got || *got == 0) co_return false;
        have += *got;
    }
    co_return std::ranges::count(room, letter) == static_cast<std::ptrdiff_t>(kMessage);
}

Task<std::size_t> converse_all(EventLoop& loop, muses::Endpoint server, std::size_t count, muses::AsyncEvent& go,
                               std::atomic<std::size_t>& connected) {
    co_await muses::move_to(loop);
    muses::AsyncSemaphore connecting(500);  // fewer than the backlog holds
    std::vector<Task<bool>> tasks;
    for (std::size_t i = 0; i < count; ++i)
        tasks.push_back(converse(loop, server, connecting, go, connected, static_cast<char>('a' + i % 26)));
    const auto results = co_await muses::when_all(std::move(tasks));
    co_return static_cast<std::size_t>(std::ranges::count(results, true));
}

}  // namespace

TEST_CASE("async_connection: ten thousand echo connections at once on one loop lose nothing and cost little while idle" *
          doctest::test_suite("slow")) {
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (const rlimit more{32'768, 32'768}; limit.rlim_max < 32'768) (void)::setrlimit(RLIMIT_NOFILE, &more);  // root may
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    const std::size_t count = std::min<std::size_t>(10'000, (static_cast<std::size_t>(limit.rlim_cur) - 100) / 2);
    if (count < 10'000) MESSAGE("only as many as descriptors are allowed: ", count);

    muses::TCPListener socket("127.0.0.1", 0);
    EventLoop server;
    EventLoop clients;
    muses::TaskScope connections(server);
    std::atomic<bool> all_there{false};
    std::atomic<std::size_t> connected{0};
    muses::AsyncEvent go;
    muses::spawn(server, serve(server, *socket.get_listener(), connections, count, all_there));
    std::thread server_thread([&] { server.run(); });
    std::thread client_thread([&] { clients.run(); });

    std::size_t answered = 0;
    std::thread driver([&] { answered = muses::sync_wait(converse_all(clients, *socket.local_endpoint(), count, go, connected)); });
    CHECK(muses::test::eventually([&] { return all_there && connected == count; }, 100s));

#if !defined(MUSES_TEST_TSAN)
    // All are idle now.
    std::atomic<std::ptrdiff_t> used{-1};
    server.post([&] { used = bytes_in_use; });
    CHECK(muses::test::eventually([&] { return used >= 0; }));
    const auto each = static_cast<std::size_t>(used.load()) / count;
    MESSAGE("bytes for an idle connection, with its buffer of ", kMessage, ": ", each);
    CHECK(each < 2048 + kMessage);
#endif

    go.set();
    driver.join();
    CHECK(answered == count);
    CHECK(muses::test::eventually([&] { return connections.size_approx() == 0; }, 100s));
    server.stop();
    clients.stop();
    server_thread.join();
    client_thread.join();
    CHECK(server.watched() == 0);
    CHECK(clients.watched() == 0);
}
