#include "muses/net/reactor.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/tcp_client.hpp"

using namespace std::chrono_literals;
using muses::test::eventually;
using muses::test::TcpClient;

namespace {

std::string ok(std::string_view body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string get(std::string_view path) { return "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n\r\n"; }

/// The request target, which the handlers here answer with.
std::string target(std::string_view request) {
    const std::size_t begin = request.find(' ') + 1;
    return std::string(request.substr(begin, request.find(' ', begin) - begin));
}

muses::HandlerResult echo(std::string_view request) { return {ok(target(request)), true}; }
muses::InlineResult echo_inline(std::string_view request) { return echo(request); }

/// A pool on a free port of 127.0.0.1, started.
template <class Pool = muses::ReactorPool>
struct Server {
    template <class Handler>
    explicit Server(Handler handler, std::size_t shards = 1, std::size_t workers = 0, muses::ReactorOptions options = {})
        : pool(*listener.get_listener(), std::move(handler), shards, workers, std::move(options)) {
        pool.start();
    }

    [[nodiscard]] std::uint16_t port() const { return listener.local_port(); }
    [[nodiscard]] muses::ReactorStats stats() const { return pool.stats(); }

    muses::TCPListener listener{"127.0.0.1", 0};
    Pool pool;
};

/// A door that handlers wait at.
class Gate {
public:
    void wait() {
        arrived_.fetch_add(1);
        std::unique_lock lock(mutex_);
        opened_.wait(lock, [this] { return open_; });
    }
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        opened_.notify_all();
    }
    [[nodiscard]] int arrived() const { return arrived_.load(); }

private:
    std::mutex mutex_;
    std::condition_variable opened_;
    bool open_ = false;
    std::atomic<int> arrived_{0};
};

/// A temporary file, unlinked at once, filled with `size` bytes of a pattern.
std::shared_ptr<const muses::UniqueFd> file_of(std::size_t size) {
    std::string name = "/tmp/muses-test-XXXXXX";
    muses::UniqueFd fd(::mkstemp(name.data()));
    ::unlink(name.c_str());
    std::string block(size, '\0');
    for (std::size_t i = 0; i < size; ++i) block[i] = static_cast<char>(i * 31 + i / 251);
    std::size_t done = 0;
    while (done < size) done += static_cast<std::size_t>(::write(fd.get(), block.data() + done, size - done));
    return std::make_shared<const muses::UniqueFd>(std::move(fd));
}

std::string pattern(std::size_t size) {
    std::string block(size, '\0');
    for (std::size_t i = 0; i < size; ++i) block[i] = static_cast<char>(i * 31 + i / 251);
    return block;
}

/// Remembers on which descriptor it was last used.
struct RecordingTransport : muses::PlainTransport {
    static inline std::atomic<int> last_fd{-1};
    muses::IoResult write(int fd, std::span<const iovec> pieces, bool more) noexcept {
        last_fd = fd;
        return PlainTransport::write(fd, pieces, more);
    }
    muses::IoResult read(int fd, std::span<char> room) noexcept {
        last_fd = fd;
        return PlainTransport::read(fd, room);
    }
};

/// Does the n-th operation badly: only one byte of it, or not at all.
struct FaultyTransport : muses::PlainTransport {
    enum class Fault { Short, Reset, NoBuffers };
    static constexpr bool kShortReadDrains = false;

    static void arm(Fault fault, int n) {
        kind = fault;
        countdown = n;
    }
    /// True when the fault was not met.
    static bool disarm() { return countdown.exchange(0) > 0; }

    muses::IoResult read(int fd, std::span<char> room) noexcept {
        const bool bad = due();
        if (bad && kind != Fault::Short) return {0, error()};
        return PlainTransport::read(fd, bad ? room.first(1) : room);
    }
    muses::IoResult write(int fd, std::span<const iovec> pieces, bool more) noexcept {
        if (!due()) return PlainTransport::write(fd, pieces, more);
        if (kind != Fault::Short) return {0, error()};
        const iovec one{pieces[0].iov_base, 1};
        return PlainTransport::write(fd, {&one, 1}, more);
    }
    muses::IoResult send_file(int fd, int file, std::uint64_t offset, std::size_t length) noexcept {
        const bool bad = due();
        if (bad && kind != Fault::Short) return {0, error()};
        return PlainTransport::send_file(fd, file, offset, bad ? 1 : length);
    }

private:
    static bool due() noexcept { return countdown > 0 && --countdown == 0; }
    static int error() noexcept { return kind == Fault::Reset ? ECONNRESET : ENOBUFS; }
    static inline std::atomic<Fault> kind{Fault::Short};
    static inline std::atomic<int> countdown{0};
};

struct Way {
    const char* name;
    bool is_inline;
    std::size_t shards;
    std::size_t workers;
};
constexpr Way kWays[] = {{"inline without workers", true, 1, 0},
                         {"inline beside workers", true, 2, 2},
                         {"on workers", false, 2, 2},
                         {"plain handler without workers", false, 1, 0}};

std::unique_ptr<Server<>> echo_server(const Way& way, muses::ReactorOptions options = {}) {
    if (way.is_inline) return std::make_unique<Server<>>(echo_inline, way.shards, way.workers, std::move(options));
    return std::make_unique<Server<>>(echo, way.shards, way.workers, std::move(options));
}

}  // namespace

TEST_CASE("reactor: 50 pipelined requests in one write and the same bytes one at a time give the same 50 answers in order") {
    std::string requests;
    std::string answers;
    for (int i = 0; i < 50; ++i) {
        requests += get("/" + std::to_string(i));
        answers += ok("/" + std::to_string(i));
    }
    for (const Way& way : kWays) {
        CAPTURE(way.name);
        const auto server = echo_server(way);
        TcpClient at_once(server->port());
        REQUIRE(at_once.send(requests));
        CHECK((at_once.read(answers.size()) == answers));

        TcpClient bytewise(server->port());
        for (const char byte : requests) REQUIRE(bytewise.send({&byte, 1}));
        CHECK((bytewise.read(answers.size()) == answers));
    }
}

TEST_CASE("reactor: a handler that takes const std::string& gets the whole message with its body") {
    for (const std::size_t workers : {0U, 2U}) {
        Server<> server([](const std::string& message) -> muses::HandlerResult { return {ok(message), true}; }, 1, workers);
        TcpClient client(server.port());
        const std::string request = "POST /x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        REQUIRE(client.send(request + get("/next")));
        CHECK(client.read_response() == ok(request));
        CHECK(client.read_response() == ok(get("/next")));
    }
}

TEST_CASE("reactor: at most one message of a connection is with the workers") {
    std::atomic<int> running{0};
    std::atomic<int> most{0};
    Server<> server(
        [&](std::string_view request) -> muses::HandlerResult {
            const int now = ++running;
            int seen = most.load();
            while (now > seen && !most.compare_exchange_weak(seen, now)) {}
            std::this_thread::yield();
            --running;
            return echo(request);
        },
        1, 4);
    TcpClient client(server.port());
    std::string requests;
    for (int i = 0; i < 200; ++i) requests += get("/" + std::to_string(i));
    REQUIRE(client.send(requests));
    for (int i = 0; i < 200; ++i) REQUIRE(client.read_response() == ok("/" + std::to_string(i)));
    CHECK(most == 1);
}

TEST_CASE("reactor: an inline handler may hand its work to a worker") {
    for (const std::size_t workers : {0U, 2U}) {
        std::atomic<bool> elsewhere{false};
        Server<> server(
            [&](std::string_view request) -> muses::InlineResult {
                if (target(request) == "/now") return echo(request);
                return muses::Blocking([&, copy = std::string(request), here = std::this_thread::get_id()] {
                    elsewhere = std::this_thread::get_id() != here;
                    return echo(copy);
                });
            },
            1, workers);
        TcpClient client(server.port());
        REQUIRE(client.send(get("/now") + get("/later") + get("/now")));
        CHECK(client.read_response() == ok("/now"));
        CHECK(client.read_response() == ok("/later"));
        CHECK(client.read_response() == ok("/now"));
        CHECK(elsewhere == (workers > 0));
    }
}

TEST_CASE("reactor: keep_alive false closes after the answer and serves nothing behind it") {
    for (const Way& way : kWays) {
        CAPTURE(way.name);
        std::atomic<int> calls{0};
        const auto handler = [&calls](std::string_view) -> muses::HandlerResult {
            ++calls;
            return {ok("last"), false};
        };
        Server<> server(handler, way.shards, way.workers);
        TcpClient client(server.port());
        REQUIRE(client.send(get("/1") + get("/2") + get("/3")));
        CHECK(client.read_all() == ok("last"));
        CHECK(client.last_error() == 0);
        client.close();
        CHECK(eventually([&] { return server.stats().closed == 1; }));
        CHECK(calls == 1);
    }
}

TEST_CASE("reactor: a client that shuts its writing side is still answered") {
    for (const Way& way : kWays) {
        CAPTURE(way.name);
        const auto server = echo_server(way);
        TcpClient client(server->port());
        REQUIRE(client.send(get("/a") + get("/b")));
        client.shutdown_write();
        CHECK(client.read_all() == ok("/a") + ok("/b"));
        CHECK(client.last_error() == 0);
        CHECK(eventually([&] { return server->stats().closed == 1; }));
    }
}

TEST_CASE("reactor: half a message and the end of the stream close without an answer") {
    const auto server = echo_server(kWays[0]);
    TcpClient client(server->port());
    REQUIRE(client.send(get("/a") + "GET /half HTT"));
    client.shutdown_write();
    CHECK(client.read_all() == ok("/a"));
    CHECK(eventually([&] { return server->stats().closed == 1; }));
}

TEST_CASE("reactor: a malformed message is refused behind the answers before it") {
    for (const Way& way : kWays) {
        CAPTURE(way.name);
        const auto server = echo_server(way);
        TcpClient client(server->port());
        REQUIRE(client.send(get("/a") + "BAD\r\n\r\n" + get("/never")));
        const std::string all = client.read_all();
        CHECK(all.starts_with(ok("/a") + "HTTP/1.1 400 "));
        CHECK(all.find("/never") == std::string::npos);
        CHECK(client.last_error() == 0);
        CHECK(server->stats().refused_messages == 1);
    }
}

TEST_CASE("reactor: a client that is still sending a refused body reads the answer and no reset") {
    muses::ReactorOptions options;
    options.message.max_body_bytes = 1000;
    for (int round = 0; round < 20; ++round) {
        const auto server = echo_server(kWays[0], options);
        TcpClient client(server->port());
        REQUIRE(client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 500000\r\n\r\n"));
        for (int i = 0; i < 10; ++i) client.send(std::string(50'000, 'x'));
        const std::string answer = client.read_all();
        CHECK(answer.starts_with("HTTP/1.1 413 "));
        CHECK(client.last_error() == 0);
    }
}

TEST_CASE("reactor: 100-continue is sent once and the body is then served") {
    const auto server = echo_server(kWays[0]);
    TcpClient client(server->port());
    REQUIRE(client.send("POST /up HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"));
    CHECK(client.read_until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
    REQUIRE(client.send("abc"));
    CHECK(client.read_response() == ok("/up"));
}

TEST_CASE("reactor: an empty Blocking is the handler's failure and not a crash") {
    for (const std::size_t workers : {0U, 1U}) {
        std::atomic<int> seen{0};
        muses::ReactorOptions options;
        options.on_exception = [&](const std::exception_ptr&) { ++seen; };
        Server<> server([](std::string_view) -> muses::InlineResult { return muses::Blocking(); }, 1, workers, options);
        TcpClient client(server.port());
        REQUIRE(client.send(get("/")));
        CHECK(client.read_all().starts_with("HTTP/1.1 500 "));
        CHECK(seen == 1);
    }
}

TEST_CASE("reactor: what a handler throws becomes a 500 and goes to the hook") {
    for (const std::size_t workers : {0U, 2U}) {
        std::atomic<int> seen{0};
        muses::ReactorOptions options;
        options.on_exception = [&](std::exception_ptr error) {
            try {
                std::rethrow_exception(std::move(error));
            } catch (const std::runtime_error& e) {
                if (std::string_view(e.what()) == "planned") ++seen;
            }
        };
        Server<> server(
            [](std::string_view request) -> muses::HandlerResult {
                if (target(request) == "/bad") throw std::runtime_error("planned");
                return echo(request);
            },
            1, workers, options);
        TcpClient client(server.port());
        REQUIRE(client.send(get("/good") + get("/bad") + get("/never")));
        CHECK(client.read_response() == ok("/good"));
        CHECK(client.read_all().starts_with("HTTP/1.1 500 "));
        CHECK(seen == 1);
        CHECK(server.stats().handler_failures == 1);
        TcpClient next(server.port());
        REQUIRE(next.send(get("/alive")));
        CHECK(next.read_response() == ok("/alive"));
    }
}

TEST_CASE("reactor: an answer made of owned and shared bytes and file ranges arrives whole and in order") {
    const auto file = file_of(3'000'000);
    const std::string all = pattern(3'000'000);
    const auto shared = std::make_shared<const std::string>("0123456789");
    Server<> server([&](std::string_view) -> muses::InlineResult {
        muses::Payload payload("first ");
        payload.append(shared, 3, 4)
            .append(muses::FileRange{file, 1000, 2'000'000})
            .append(std::string(" then "))
            .append(shared)
            .append(muses::FileRange{file, 0, 5});
        return muses::HandlerResult{std::move(payload), true};
    });
    const std::string expected = "first 3456" + all.substr(1000, 2'000'000) + " then 0123456789" + all.substr(0, 5);
    TcpClient client(server.port(), 4096);
    REQUIRE(client.send(get("/1") + get("/2")));
    CHECK((client.read(expected.size()) == expected));
    CHECK((client.read(expected.size()) == expected));
}

TEST_CASE("reactor: a file that is shorter than announced ends in a closed connection") {
    const auto file = file_of(1000);
    Server<> server([&](std::string_view) -> muses::InlineResult {
        muses::Payload payload("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n");
        payload.append(muses::FileRange{file, 0, 5000});
        return muses::HandlerResult{std::move(payload), true};
    });
    TcpClient client(server.port());
    REQUIRE(client.send(get("/") + get("/")));
    const std::string got = client.read_all();
    CHECK((got == "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + pattern(1000)));
}

TEST_CASE("reactor: a client that does not read is not read from, and gets every byte once it reads") {
    muses::ReactorOptions options;
    options.high_water_bytes = 64 * 1024;
    const std::string body(32 * 1024, 'b');
    Server<> server([&](std::string_view) -> muses::InlineResult { return muses::HandlerResult{ok(body), true}; }, 1, 0, options);
    TcpClient client(server.port(), 4096);
    const std::string request = get("/" + std::string(7000, 'x'));
    // Write until the kernel takes no more: the server has stopped reading.
    std::size_t sent = 0;
    std::size_t idle = 0;
    while (idle < 50 && sent < 64'000'000) {
        const std::size_t n = client.send_some(std::string_view(request).substr(sent % request.size()));
        sent += n;
        idle = n == 0 ? idle + 1 : 0;
        if (n == 0) std::this_thread::sleep_for(1ms);
    }
    CHECK(sent < 64'000'000);
    const std::size_t served = server.stats().messages;
    CHECK(served * body.size() < 32'000'000);
    // Complete the last request, then every answer arrives.
    const std::size_t rest = sent % request.size() == 0 ? 0 : request.size() - sent % request.size();
    const std::size_t count = (sent + rest) / request.size();
    std::thread writer([&] { client.send(std::string_view(request).substr(request.size() - rest)); });
    const std::string answer = ok(body);
    for (std::size_t i = 0; i < count; ++i) REQUIRE((client.read(answer.size()) == answer));
    writer.join();
    CHECK(server.stats().messages == count);
}

TEST_CASE("reactor: an answer for a connection that died goes nowhere even when its descriptor number is reused") {
    using Pool = muses::BasicReactorPool<RecordingTransport, muses::HttpFramer>;
    Gate gate;
    Server<Pool> server(
        [&](std::string_view request) -> muses::HandlerResult {
            if (target(request) == "/slow") {
                gate.wait();
                return {ok("SECRET"), true};
            }
            return echo(request);
        },
        1, 2);

    TcpClient victim(server.port());
    REQUIRE(victim.send(get("/slow")));
    REQUIRE(eventually([&] { return gate.arrived() == 1; }));
    const int number = RecordingTransport::last_fd;
    victim.reset();
    REQUIRE(eventually([&] { return server.stats().closed == 1; }));

    // The kernel gives out the lowest free number: after a few connections the old one is taken again.
    std::vector<std::unique_ptr<TcpClient>> others;
    TcpClient* heir = nullptr;
    for (int i = 0; i < 4; ++i) {
        others.push_back(std::make_unique<TcpClient>(server.port()));
        REQUIRE(others.back()->send(get("/before")));
        REQUIRE(others.back()->read_response() == ok("/before"));
        if (RecordingTransport::last_fd == number) heir = others.back().get();
    }
    REQUIRE(heir != nullptr);
    gate.open();
    REQUIRE(eventually([&] { return server.stats().orphaned_answers == 1; }));
    for (auto& other : others) {
        REQUIRE(other->send(get("/after")));
        CHECK(other->read_response() == ok("/after"));
    }
}

TEST_CASE("reactor: whichever operation on a connection fails or falls short no wrong byte is sent and nothing is left behind") {
    using Pool = muses::BasicReactorPool<FaultyTransport, muses::HttpFramer>;
    const auto file = file_of(20'000);
    std::string body = pattern(20'000).substr(100, 15'000);
    const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 15000\r\n\r\n" + body;
    for (const std::size_t workers : {0U, 1U}) {
        for (const FaultyTransport::Fault fault :
             {FaultyTransport::Fault::Short, FaultyTransport::Fault::Reset, FaultyTransport::Fault::NoBuffers}) {
            bool clean = false;
            for (int n = 1; !clean; ++n) {
                REQUIRE(n < 1000);
                CAPTURE(n);
                FaultyTransport::arm(fault, n);
                Server<Pool> server(
                    [&](std::string_view) -> muses::HandlerResult {
                        muses::Payload payload("HTTP/1.1 200 OK\r\nContent-Length: 15000\r\n\r\n");
                        payload.append(muses::FileRange{file, 100, 15'000});
                        return {std::move(payload), true};
                    },
                    1, workers);
                TcpClient client(server.port());
                std::string got;
                for (int i = 0; i < 3; ++i) {
                    client.send(get("/") + get("/"));
                    got += client.read(2 * answer.size());
                }
                clean = FaultyTransport::disarm();
                std::string whole;
                for (int i = 0; i < 6; ++i) whole += answer;
                if (clean || fault == FaultyTransport::Fault::Short)
                    CHECK((got == whole));
                else
                    CHECK(whole.starts_with(got));
                client.close();
                CHECK(eventually([&] { return server.stats().closed == 1; }));
            }
        }
    }
}

TEST_CASE("reactor: a full outbox loses nothing") {
    muses::ReactorOptions options;
    options.outbox_capacity = 2;
    Gate inside;
    Gate work;
    std::atomic<std::uint64_t> done{0};
    Server<> server(
        [&](std::string_view request) -> muses::InlineResult {
            if (target(request) == "/hold") {  // keeps the reactor's thread while the outbox fills
                inside.wait();
                return echo(request);
            }
            return muses::Blocking([&, copy = std::string(request)] {
                work.wait();
                ++done;
                return echo(copy);
            });
        },
        1, 4, options);

    constexpr std::size_t kClients = 50;
    std::vector<std::unique_ptr<TcpClient>> clients;
    const auto path = [](std::size_t i) { return "/" + std::to_string(i); };
    for (std::size_t i = 0; i < kClients; ++i) {
        clients.push_back(std::make_unique<TcpClient>(server.port()));
        REQUIRE(clients[i]->send(get(path(i))));
    }
    REQUIRE(eventually([&] { return server.stats().messages == kClients; }));
    TcpClient holder(server.port());
    REQUIRE(holder.send(get("/hold")));
    REQUIRE(eventually([&] { return inside.arrived() == 1; }));
    work.open();
    REQUIRE(eventually([&] { return server.stats().outbox_overflows == kClients - 2; }));
    inside.open();
    for (int round = 0; round < 20; ++round) {
        for (std::size_t i = 0; i < kClients; ++i) {
            REQUIRE(clients[i]->read_response() == ok(path(i)));
            REQUIRE(clients[i]->send(get(path(i))));
        }
    }
    for (std::size_t i = 0; i < kClients; ++i) REQUIRE(clients[i]->read_response() == ok(path(i)));
    CHECK(holder.read_response() == ok("/hold"));
    CHECK(done == 21 * kClients);
}

TEST_CASE("outbox: what does not fit in the bounded part comes out as well") {
    muses::detail::Outbox<int> outbox(2);
    CHECK(outbox.put(1).wake);
    CHECK_FALSE(outbox.put(2).wake);
    const auto third = outbox.put(3);
    CHECK(third.overflowed);
    CHECK_FALSE(third.wake);
    std::vector<int> out;
    outbox.drain([&](int value) { out.push_back(value); });
    std::ranges::sort(out);
    CHECK(out == std::vector{1, 2, 3});
    CHECK(outbox.put(4).wake);
}

TEST_CASE("outbox: with a waiting consumer no element and no wake-up is lost") {
    muses::detail::Outbox<int> outbox(2);
    const int rounds = muses::test::stress_rounds(20'000);
    std::atomic<int> wakes{0};
    std::vector<std::thread> producers;
    for (int p = 0; p < 3; ++p)
        producers.emplace_back([&] {
            for (int i = 0; i < rounds; ++i)
                if (outbox.put(1).wake) {
                    wakes.fetch_add(1, std::memory_order_release);
                    wakes.notify_one();
                }
        });
    int got = 0;
    int seen = 0;
    while (got < 3 * rounds) {
        wakes.wait(seen, std::memory_order_acquire);  // sleeps until somebody was told to wake
        seen = wakes.load(std::memory_order_acquire);
        outbox.drain([&](int value) { got += value; });
    }
    for (auto& producer : producers) producer.join();
    CHECK(got == 3 * rounds);
}

TEST_CASE("reactor: each deadline ends the connection that meets it, with its answer and its count") {
    muses::ReactorOptions options;
    options.head_timeout = 150ms;
    options.body_timeout = 150ms;
    options.idle_timeout = 150ms;
    options.write_timeout = 150ms;
    options.linger_timeout = 150ms;
    const std::string big(8'000'000, 'x');
    Server<> server(
        [&](std::string_view request) -> muses::InlineResult {
            if (target(request) == "/big") return muses::HandlerResult{ok(big), true};
            return echo(request);
        },
        1, 0, options);

    SUBCASE("a head that does not end") {
        TcpClient client(server.port());
        REQUIRE(client.send("GET / HTTP/1.1\r\nHos"));
        CHECK(client.read_all().starts_with("HTTP/1.1 408 "));
        CHECK(server.stats().head_timeouts == 1);
    }
    SUBCASE("a head that grows a byte at a time") {
        TcpClient client(server.port());
        bool alive = true;
        for (int i = 0; alive && i < 20'000; ++i) {
            alive = client.send("x") && server.stats().head_timeouts == 0;
            std::this_thread::sleep_for(1ms);
        }
        CHECK_FALSE(alive);
        CHECK(server.stats().head_timeouts == 1);
    }
    SUBCASE("a connection that says nothing") {
        TcpClient client(server.port());
        CHECK(client.closed_silently());
        CHECK(server.stats().head_timeouts == 1);
    }
    SUBCASE("a kept-alive connection without a further message") {
        TcpClient client(server.port());
        REQUIRE(client.send(get("/a")));
        CHECK(client.read_all() == ok("/a"));
        CHECK(server.stats().idle_timeouts == 1);
    }
    SUBCASE("a body that stops") {
        TcpClient client(server.port());
        REQUIRE(client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nabc"));
        CHECK(client.read_all().starts_with("HTTP/1.1 408 "));
        CHECK(server.stats().body_timeouts == 1);
    }
    SUBCASE("a client that takes nothing of its answer") {
        TcpClient client(server.port(), 4096);
        REQUIRE(client.send(get("/big")));
        CHECK(eventually([&] { return server.stats().write_timeouts == 1; }));
        CHECK(server.stats().closed == 1);
    }
    SUBCASE("a client that never closes after the last answer") {
        TcpClient client(server.port());
        REQUIRE(client.send("BAD\r\n\r\n"));
        CHECK(client.read_all().starts_with("HTTP/1.1 400 "));
        CHECK(eventually([&] { return server.stats().closed == 1; }));
    }
}

TEST_CASE("reactor: the longest timeout that can be written means never and not at once") {
    muses::ReactorOptions options;
    options.head_timeout = options.body_timeout = options.idle_timeout = options.write_timeout = std::chrono::milliseconds::max();
    const auto server = echo_server(kWays[0], options);
    TcpClient client(server->port());
    for (const char* path : {"/a", "/b"}) {
        REQUIRE(client.send(get(path)));
        CHECK(client.read_response() == ok(path));
    }
    CHECK(server->stats().head_timeouts + server->stats().idle_timeouts == 0);
}

TEST_CASE("reactor: a client above the connection limit is told so and the others are not disturbed") {
    muses::ReactorOptions options;
    options.max_connections = 3;
    const auto server = echo_server(kWays[1], options);
    std::vector<std::unique_ptr<TcpClient>> clients;
    for (int i = 0; i < 3; ++i) {
        clients.push_back(std::make_unique<TcpClient>(server->port()));
        REQUIRE(clients.back()->send(get("/in")));
        REQUIRE(clients.back()->read_response() == ok("/in"));
    }
    for (int i = 0; i < 5; ++i) {
        TcpClient refused(server->port());
        refused.send(get("/out"));
        CHECK(refused.read_all().starts_with("HTTP/1.1 503 "));
        CHECK(refused.last_error() == 0);
    }
    CHECK(server->stats().over_limit == 5);
    clients.pop_back();
    CHECK(eventually([&] {
        TcpClient again(server->port());
        return again.send(get("/room")) && again.read_response() == ok("/room");
    }));
    REQUIRE(clients[0]->send(get("/still")));
    CHECK(clients[0]->read_response() == ok("/still"));
}

TEST_CASE("reactor: without descriptors accepting rests and does not spin, then goes on") {
    const auto server = echo_server(kWays[0]);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    std::vector<muses::UniqueFd> hoard;
    TcpClient client(server->port());  // connected by the kernel, accepted later
    REQUIRE(client.send(get("/a")));
    REQUIRE(client.read_response() == ok("/a"));
    const auto begin = std::chrono::steady_clock::now();
    rlimit low = before;
    low.rlim_cur = 64;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    muses::UniqueFd spare(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (;;) {
        muses::UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!fd) break;
        hoard.push_back(std::move(fd));
    }
    spare.reset();
    TcpClient waiting(server->port());  // takes the spare number; the server's side finds none
    CHECK(waiting.connected());
    CHECK(waiting.send(get("/b")));
    CHECK(eventually([&] { return server->stats().accept_pauses >= 3; }));
    const auto pauses = server->stats().accept_pauses;
    const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
    CHECK(pauses <= static_cast<std::uint64_t>(elapsed / 50 + 2));
    CHECK(client.send(get("/c")));
    CHECK(client.read_response() == ok("/c"));
    hoard.clear();
    CHECK(waiting.read_response() == ok("/b"));
    ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("reactor: connections are spread evenly over the shards and all listening sockets are served") {
    muses::TCPListener first("127.0.0.1", 0);
    muses::TCPListener second("127.0.0.1", 0);
    muses::ReactorPool pool({*first.get_listener(), *second.get_listener()}, echo_inline, 4);
    pool.start();
    constexpr int kClients = 80;
    std::vector<std::unique_ptr<TcpClient>> clients;
    for (int i = 0; i < kClients; ++i) {
        clients.push_back(std::make_unique<TcpClient>(i % 2 == 0 ? first.local_port() : second.local_port()));
        REQUIRE(clients.back()->send(get("/x")));
        REQUIRE(clients.back()->read_response() == ok("/x"));
    }
    const auto stats = pool.stats();
    REQUIRE(stats.connections.size() == 4);
    for (const std::size_t n : stats.connections) {
        CHECK(n >= kClients / 4 - 6);
        CHECK(n <= kClients / 4 + 6);
    }
    CHECK(stats.accepted == kClients);
}

TEST_CASE("reactor: stop answers what is in flight closes what is idle and refuses newcomers") {
    for (const bool on_worker : {true, false}) {
        Gate gate;
        Server<> server(
            [&, on_worker](std::string_view request) -> muses::InlineResult {
                if (target(request) != "/slow") return echo(request);
                if (!on_worker) {
                    gate.wait();
                    return echo(request);
                }
                return muses::Blocking([&, copy = std::string(request)] {
                    gate.wait();
                    return echo(copy);
                });
            },
            1, 1);
        TcpClient idle(server.port());
        REQUIRE(idle.send(get("/a")));
        REQUIRE(idle.read_response() == ok("/a"));
        TcpClient busy(server.port());
        REQUIRE(busy.send(get("/slow") + (on_worker ? get("/never") : "")));
        REQUIRE(eventually([&] { return gate.arrived() == 1; }));
        std::thread stopper([&] { server.pool.stop(); });
        if (on_worker) CHECK(idle.closed_silently());
        gate.open();
        CHECK(busy.read_all() == ok("/slow"));
        CHECK(busy.last_error() == 0);
        busy.close();
        stopper.join();
        CHECK(idle.closed_silently());
        CHECK_FALSE(TcpClient(server.port()).connected());
        const auto stats = server.stats();
        CHECK(stats.accepted == 2);
        CHECK(stats.closed == 2);
        CHECK(stats.forced_closes == 0);
    }
}

TEST_CASE("reactor: stop sends a large answer to its end") {
    const auto file = file_of(4'000'000);
    Server<> server([&](std::string_view) -> muses::InlineResult {
        return muses::HandlerResult{muses::Payload().append(muses::FileRange{file, 0, 4'000'000}), true};
    });
    TcpClient client(server.port(), 4096);
    REQUIRE(client.send(get("/")));
    REQUIRE(client.read(100).size() == 100);
    std::thread stopper([&] { server.pool.stop(); });
    CHECK(100 + client.read_all().size() == 4'000'000);
    client.close();
    stopper.join();
    CHECK(server.stats().forced_closes == 0);
}

TEST_CASE("reactor: stop closes what is still busy at its deadline") {
    const std::string big(8'000'000, 'x');
    Server<> server([&](std::string_view) -> muses::InlineResult { return muses::HandlerResult{ok(big), true}; });
    TcpClient client(server.port(), 4096);
    REQUIRE(client.send(get("/")));
    REQUIRE(client.read(100).size() == 100);
    server.pool.stop(50ms);
    CHECK(server.stats().forced_closes == 1);
    CHECK(server.stats().closed == 1);
}

TEST_CASE("reactor: stop right after start and twice and never started") {
    for (int i = 0; i < 20; ++i) {
        Server<> server(echo, 2, 1);
        server.pool.stop();
        server.pool.stop();
        CHECK_THROWS_AS(server.pool.start(), std::logic_error);
    }
    muses::TCPListener listener("127.0.0.1", 0);
    muses::ReactorPool never(*listener.get_listener(), echo, 2, 2);
    never.stop();
    CHECK_THROWS_AS(never.start(), std::logic_error);
}

TEST_CASE("reactor: stop in a storm of new connections leaves none behind and nobody waiting") {
    for (int round = 0; round < muses::test::stress_rounds(8); ++round) {
        Server<> server(echo_inline, 3, 1);
        std::atomic<bool> end{false};
        std::atomic<int> unanswered{0};
        std::vector<std::thread> clients;
        for (int i = 0; i < 4; ++i)
            clients.emplace_back([&] {
                while (!end) {
                    TcpClient client(server.port());
                    if (!client.connected() || !client.send(get("/x"))) continue;
                    client.read_response();
                    if (client.last_error() == ETIMEDOUT) ++unanswered;
                }
            });
        CHECK(eventually([&] { return server.stats().messages > 20 * static_cast<std::uint64_t>(round); }));
        server.pool.stop(2s);
        const auto stats = server.stats();
        CHECK(stats.accepted == stats.closed);
        for (const std::size_t n : stats.connections) CHECK(n == 0);
        end = true;
        for (auto& client : clients) client.join();
        CHECK(unanswered == 0);
    }
}

TEST_CASE("reactor: a handler that stops its own pool gets an error instead of a deadlock") {
    for (const std::size_t workers : {0U, 1U}) {
        std::atomic<muses::ReactorPool*> pool{nullptr};
        Server<> server(
            [&](std::string_view request) -> muses::HandlerResult {
                try {
                    pool.load()->stop();
                } catch (const std::logic_error&) {
                    return echo(request);
                }
                return {ok("stopped"), true};
            },
            1, workers);
        pool = &server.pool;
        TcpClient client(server.port());
        REQUIRE(client.send(get("/refused")));
        CHECK(client.read_response() == ok("/refused"));
    }
}

TEST_CASE("reactor: what cannot be meant is refused before anything is acquired") {
    muses::TCPListener listener("127.0.0.1", 0);
    const int fd = *listener.get_listener();
    CHECK_THROWS_AS(muses::ReactorPool(-1, echo, 1), std::invalid_argument);
    const muses::UniqueFd no_socket(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    CHECK_THROWS_AS(muses::ReactorPool(no_socket.get(), echo, 1), std::invalid_argument);
    CHECK_THROWS_AS(muses::Reactor(no_socket.get(), echo), std::invalid_argument);
    CHECK_THROWS_AS(muses::ReactorPool(std::vector<int>{}, echo, 1), std::invalid_argument);
    CHECK_THROWS_AS(muses::ReactorPool(fd, echo, 1'000'000), std::invalid_argument);
    muses::ReactorOptions options;
    options.idle_timeout = 0ms;
    CHECK_THROWS_AS(muses::ReactorPool(fd, echo, 1, 0, options), std::invalid_argument);
    options = {};
    options.max_connections = 0;
    CHECK_THROWS_AS(muses::ReactorPool(fd, echo, 1, 0, options), std::invalid_argument);
}

TEST_CASE("reactor: one Reactor serves on the thread that runs it") {
    muses::TCPListener listener("127.0.0.1", 0);
    auto reactor = std::make_unique<muses::Reactor>(*listener.get_listener(), echo);
    std::thread thread([&] { reactor->run(); });
    TcpClient client(listener.local_port());
    REQUIRE(client.send(get("/one")));
    CHECK(client.read_response() == ok("/one"));
    reactor->stop();
    CHECK(client.closed_silently());
    thread.join();
    CHECK(reactor->stats().closed == 1);
}

TEST_CASE("reactor: clients that come and go at random leave nothing behind") {
    for (const Way& way : kWays) {
        CAPTURE(way.name);
        const auto server = echo_server(way);
        const int rounds = muses::test::stress_rounds(60);
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                unsigned random = 12345 + t;
                for (int i = 0; i < rounds; ++i) {
                    random = random * 1664525U + 1013904223U;
                    TcpClient client(server->port());
                    const std::string name = "/" + std::to_string(t) + "-" + std::to_string(i);
                    switch ((random >> 16U) % 5) {
                        case 0: client.send(get(name).substr(0, 7)); break;
                        case 1: client.send(get(name)); break;  // and does not wait for the answer
                        case 2:
                            client.send(get(name));
                            client.reset();
                            break;
                        default:
                            for (int k = 0; k < 3; ++k)
                                if (!client.send(get(name)) || client.read_response() != ok(name)) ++wrong;
                    }
                }
            });
        for (auto& thread : threads) thread.join();
        CHECK(wrong == 0);
        const auto all = static_cast<std::uint64_t>(4 * rounds);
        CHECK(eventually([&] { return server->stats().closed == all; }));  // some may have been waiting to be accepted until now
        const auto stats = server->stats();
        CHECK(stats.accepted == all);
        for (const std::size_t n : stats.connections) CHECK(n == 0);
    }
}
