// Tasks beside what people write by hand, and beside Asio's coroutines. Names are <case>/<who>.
#include "muses/task.hpp"

#include <benchmark/benchmark.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "muses/net/async_connection.hpp"
#include "muses/net/event_loop.hpp"

#if defined(MUSES_BENCH_HAS_ASIO)
#include <asio.hpp>
#include <asio/experimental/channel.hpp>
#endif

namespace {

constexpr int kBatch = 1000;  // operations inside of one iteration

std::atomic<std::uint64_t> allocations{0};

/// The least that a coroutine of this kind can be: a free list, a continuation, symmetric transfer, an int.
class Bare {
public:
    struct promise_type {
        static inline thread_local void* free = nullptr;
        static void* operator new(std::size_t bytes) {
            if (free == nullptr) return ::operator new(bytes);
            return std::exchange(free, *static_cast<void**>(free));
        }
        static void operator delete(void* frame) noexcept {
            *static_cast<void**>(frame) = free;
            free = frame;
        }
        struct Final {
            static bool await_ready() noexcept { return false; }
            static std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
                return h.promise().then;
            }
            static void await_resume() noexcept {}
        };
        Bare get_return_object() { return Bare(std::coroutine_handle<promise_type>::from_promise(*this)); }
        static std::suspend_always initial_suspend() noexcept { return {}; }
        static Final final_suspend() noexcept { return {}; }
        void return_value(int v) noexcept { value = v; }
        static void unhandled_exception() { std::terminate(); }
        std::coroutine_handle<> then = std::noop_coroutine();
        int value = 0;
    };
    explicit Bare(std::coroutine_handle<promise_type> h) noexcept : handle(h) {}
    Bare(const Bare&) = delete;
    Bare& operator=(const Bare&) = delete;
    ~Bare() { handle.destroy(); }

    static bool await_ready() noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> parent) noexcept {
        handle.promise().then = parent;
        return handle;
    }
    [[nodiscard]] int await_resume() const noexcept { return handle.promise().value; }

    std::coroutine_handle<promise_type> handle;
};

[[gnu::noinline]] Bare bare_number(int n) { co_return n; }
Bare bare_sum(int rounds) {
    int sum = 0;
    for (int i = 0; i < rounds; ++i) sum += co_await bare_number(i);
    co_return sum;
}

[[gnu::noinline]] muses::Task<int> muses_number(int n) { co_return n; }
muses::Task<int> muses_sum(int rounds) {
    int sum = 0;
    for (int i = 0; i < rounds; ++i) sum += co_await muses_number(i);
    co_return sum;
}

void create_and_await_by_hand(benchmark::State& state) {
    for (auto _ : state) {
        const Bare sum = bare_sum(kBatch);
        sum.handle.resume();
        benchmark::DoNotOptimize(sum.handle.promise().value);
    }
    state.SetItemsProcessed(state.iterations() * kBatch);
}

void create_and_await_muses(benchmark::State& state) {
    (void)muses::sync_wait(muses_sum(kBatch));
    const std::uint64_t before = allocations.load(std::memory_order_relaxed);  // relaxed: this thread's own
    for (auto _ : state) benchmark::DoNotOptimize(muses::sync_wait(muses_sum(kBatch)));
    if (allocations.load(std::memory_order_relaxed) != before) state.SkipWithError("a task has allocated");
    state.SetItemsProcessed(state.iterations() * kBatch);
}

muses::Task<> muses_send(muses::Channel<int>& channel, int n) {
    for (int i = 0; i < n; ++i) co_await channel.send(i);
}
muses::Task<int> muses_receive(muses::Channel<int>& channel, int n) {
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += *co_await channel.receive();
    co_return sum;
}

/// Each value waits for its receiver: two changes of coroutine for each.
void channel_muses(benchmark::State& state) {
    muses::Channel<int> channel(0);
    for (auto _ : state) (void)muses::sync_wait(muses::when_all(muses_send(channel, kBatch), muses_receive(channel, kBatch)));
    state.SetItemsProcessed(state.iterations() * kBatch);
}

muses::Task<> muses_player(muses::AsyncSemaphore& mine, muses::AsyncSemaphore& other, int n) {
    for (int i = 0; i < n; ++i) {
        co_await mine.acquire();
        other.release();
    }
}

/// Two tasks that wake each other; an operation is a turn of one.
void ping_pong_muses(benchmark::State& state) {
    for (auto _ : state) {
        muses::AsyncSemaphore ping(1);
        muses::AsyncSemaphore pong(0);
        (void)muses::sync_wait(muses::when_all(muses_player(ping, pong, kBatch / 2), muses_player(pong, ping, kBatch / 2)));
    }
    state.SetItemsProcessed(state.iterations() * kBatch);
}

#if defined(MUSES_BENCH_HAS_ASIO)
[[gnu::noinline]] asio::awaitable<int> asio_number(int n) { co_return n; }
asio::awaitable<void> asio_sum(int rounds) {
    int sum = 0;
    for (int i = 0; i < rounds; ++i) sum += co_await asio_number(i);
    benchmark::DoNotOptimize(sum);
}

void create_and_await_asio(benchmark::State& state) {
    for (auto _ : state) {
        asio::io_context context(1);
        asio::co_spawn(context, asio_sum(kBatch), asio::detached);
        context.run();
    }
    state.SetItemsProcessed(state.iterations() * kBatch);
}

using AsioChannel = asio::experimental::channel<void(asio::error_code, int)>;
asio::awaitable<void> asio_send(AsioChannel& channel, int n) {
    for (int i = 0; i < n; ++i) co_await channel.async_send(asio::error_code(), i, asio::use_awaitable);
}
asio::awaitable<void> asio_receive(AsioChannel& channel, int n) {
    int sum = 0;
    for (int i = 0; i < n; ++i) sum += co_await channel.async_receive(asio::use_awaitable);
    benchmark::DoNotOptimize(sum);
}

void channel_asio(benchmark::State& state) {
    asio::io_context context(1);
    AsioChannel channel(context, 0);
    for (auto _ : state) {
        context.restart();
        asio::co_spawn(context, asio_send(channel, kBatch), asio::detached);
        asio::co_spawn(context, asio_receive(channel, kBatch), asio::detached);
        context.run();
    }
    state.SetItemsProcessed(state.iterations() * kBatch);
}
#endif

// ---- echo: the processor time of the server's thread for each message of 64 bytes, over 32 connections ------------------------------

constexpr std::size_t kConnections = 32;
constexpr std::size_t kMessage = 64;

std::int64_t nanoseconds(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Connected pairs over TCP on the loopback; the second of each is the server's.
struct Pairs {
    std::vector<muses::UniqueFd> clients;
    std::vector<muses::UniqueFd> servers;
    Pairs() {
        const muses::TCPListener listener("127.0.0.1", 0);
        const auto address = *listener.local_endpoint();
        for (std::size_t i = 0; i < kConnections; ++i) {
            muses::UniqueFd client(::socket(address.family(), SOCK_STREAM, 0));
            if (::connect(client.get(), address.data(), address.size()) != 0) std::abort();
            auto server = muses::accept_nonblocking(*listener.get_listener());
            while (!server) server = muses::accept_nonblocking(*listener.get_listener());
            (void)muses::set_nodelay(client.get());
            (void)muses::set_nodelay(server->get());
            clients.push_back(std::move(client));
            servers.push_back(std::move(*server));
        }
    }
};

/// Runs `server(fds)` on a thread until its peers close, and reports its processor time.
template <class Server>
void echo(benchmark::State& state, Server server) {
    Pairs pairs;
    std::thread thread([&] { server(std::move(pairs.servers)); });
    clockid_t clock{};
    pthread_getcpuclockid(thread.native_handle(), &clock);
    std::array<char, kMessage> message{};
    const auto round = [&] {
        for (auto& client : pairs.clients)
            if (::send(client.get(), message.data(), message.size(), 0) != kMessage) std::abort();
        for (auto& client : pairs.clients)
            if (::recv(client.get(), message.data(), message.size(), MSG_WAITALL) != kMessage) std::abort();
    };
    for (int i = 0; i < 100; ++i) round();
    for (auto _ : state) {
        const std::int64_t before = nanoseconds(clock);
        for (int i = 0; i < 20; ++i) round();
        state.SetIterationTime(static_cast<double>(nanoseconds(clock) - before) / 1e9);
    }
    state.SetItemsProcessed(state.iterations() * 20 * static_cast<std::int64_t>(kConnections));
    pairs.clients.clear();
    thread.join();
}

void echo_by_hand(benchmark::State& state) {
    echo(state, [](std::vector<muses::UniqueFd> fds) {
        const muses::UniqueFd poller(::epoll_create1(0));
        for (auto& fd : fds) {
            epoll_event event{};
            event.events = EPOLLIN | EPOLLET | EPOLLRDHUP;
            event.data.fd = fd.get();
            ::epoll_ctl(poller.get(), EPOLL_CTL_ADD, fd.get(), &event);
        }
        std::array<epoll_event, 512> events{};
        std::array<char, 1024> room{};
        for (std::size_t open = fds.size(); open > 0;) {
            const int n = ::epoll_wait(poller.get(), events.data(), static_cast<int>(events.size()), -1);
            for (int i = 0; i < n; ++i) {
                const int fd = events[static_cast<std::size_t>(i)].data.fd;
                for (;;) {
                    const ssize_t got = ::recv(fd, room.data(), room.size(), 0);
                    if (got <= 0) {
                        if (got == 0) --open;
                        break;
                    }
                    ::send(fd, room.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
                    if (got < static_cast<ssize_t>(room.size()) && (events[static_cast<std::size_t>(i)].events & EPOLLRDHUP) == 0)
                        break;  // a short read has drained it
                }
            }
        }
    });
}

muses::Task<> echo_task(muses::AsyncConnection peer) {
    std::array<char, 1024> room;
    for (;;) {
        const auto got = co_await peer.async_read(room);
        if (!got || *got == 0) co_return;
        const auto sent = co_await peer.async_write({room.data(), *got});
        if (!sent) co_return;
    }
}

void echo_muses(benchmark::State& state) {
    echo(state, [](std::vector<muses::UniqueFd> fds) {
        muses::EventLoop loop;
        const auto all = [](muses::EventLoop& l, std::vector<muses::UniqueFd> connections) -> muses::Task<> {
            muses::TaskScope scope;
            for (auto& fd : connections) scope.spawn(echo_task(muses::AsyncConnection(l, std::move(fd))));
            co_await scope.join();
            l.stop();
        };
        muses::spawn(loop, all(loop, std::move(fds)));
        loop.run();
    });
}

#if defined(MUSES_BENCH_HAS_ASIO)
asio::awaitable<void> asio_echo(asio::ip::tcp::socket peer) {
    std::array<char, 1024> room;
    for (;;) {
        const auto [error, got] = co_await peer.async_read_some(asio::buffer(room), asio::as_tuple(asio::use_awaitable));
        if (error) co_return;
        const auto [failed, sent] = co_await asio::async_write(peer, asio::buffer(room, got), asio::as_tuple(asio::use_awaitable));
        if (failed) co_return;
    }
}

void echo_asio(benchmark::State& state) {
    echo(state, [](std::vector<muses::UniqueFd> fds) {
        asio::io_context context(1);
        for (auto& fd : fds)
            asio::co_spawn(context, asio_echo(asio::ip::tcp::socket(context, asio::ip::tcp::v4(), fd.release())), asio::detached);
        context.run();
    });
}
#endif

BENCHMARK(create_and_await_by_hand)->Name("create_and_await/by_hand");
BENCHMARK(create_and_await_muses)->Name("create_and_await/muses");
BENCHMARK(channel_muses)->Name("channel/muses");
BENCHMARK(ping_pong_muses)->Name("ping_pong/muses");
BENCHMARK(echo_by_hand)->Name("echo/by_hand")->UseManualTime();
BENCHMARK(echo_muses)->Name("echo/muses")->UseManualTime();
#if defined(MUSES_BENCH_HAS_ASIO)
BENCHMARK(create_and_await_asio)->Name("create_and_await/asio");
BENCHMARK(channel_asio)->Name("channel/asio");
BENCHMARK(echo_asio)->Name("echo/asio")->UseManualTime();
#endif

}  // namespace

// Every allocation of the program is counted. Not inlined: gcc would take malloc and free for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);  // relaxed: only counted
    if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

BENCHMARK_MAIN();
