#include "muses/net/async_connection.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <expected>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "muses/net/async_listener.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/loop_tasks.hpp"
#include "tests/support/sockets.hpp"
#include "tests/support/tasks.hpp"

using namespace std::chrono_literals;
using muses::AsyncConnection;
using muses::AsyncListener;
using muses::EventLoop;
using muses::Task;
using muses::test::FdPair;
using muses::test::live_frames;
using muses::test::run;
using muses::test::socket_pair;
using muses::test::stress_rounds;
using muses::test::write_all;

namespace {

// Two connected AsyncConnections on one loop.
struct Ends {
    explicit Ends(EventLoop& loop, FdPair pair = socket_pair()) : a(loop, std::move(pair.a)), b(loop, std::move(pair.b)) {}
    AsyncConnection a;
    AsyncConnection b;
};

Task<> echo(AsyncConnection peer) {
    std::array<char, 1024> room;  // NOLINT: filled by the read
    for (;;) {
        const auto got = co_await peer.async_read(room);
        if (!got || *got == 0) co_return;
        const auto sent = co_await peer.async_write({room.data(), *got});
        if (!sent) co_return;
    }
}

// Reads until `size` bytes are there, the stream ends, or it fails.
Task<std::string> read_exactly(AsyncConnection& from, std::size_t size) {
    std::string all;
    std::array<char, 1000> room;  // NOLINT
    while (all.size() < size) {
        const auto got = co_await from.async_read(room);
        if (!got || *got == 0) break;
        all.append(room.data(), *got);
    }
    co_return all;
}

}  // namespace

TEST_CASE("async_connection: bytes go both ways and the end of the stream is a read of nothing") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop, muses::test::tcp_pair());
            muses::TaskScope scope;
            scope.spawn(echo(std::move(ends.b)));
            for (int i = 0; i < 100; ++i) {
                const std::string message(1 + static_cast<std::size_t>(i) * 37, static_cast<char>('a' + i % 26));
                const auto sent = co_await ends.a.async_write(message);
                CHECK(sent.value() == message.size());
                CHECK(co_await read_exactly(ends.a, message.size()) == message);
            }
            ends.a.shutdown_write();
            std::array<std::byte, 8> room{};
            const auto end = co_await ends.a.async_read(room);
            CHECK(end.value() == 0);
            co_await scope.join();
        }));
    CHECK(loop.watched() == 0);
}

TEST_CASE("async_connection: a write of more than the system takes waits for room and arrives whole") {
    EventLoop loop;
    std::string large(3'000'000, '\0');
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 + i / 7919);
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop);
            const auto write = [](AsyncConnection& to, const std::string& bytes) -> Task<std::size_t> {
                const auto sent = co_await to.async_write(bytes, 30s);
                co_return sent.value();
            };
            const auto both = co_await muses::when_all(write(ends.a, large), read_exactly(ends.b, large.size()));
            CHECK(std::get<0>(both) == large.size());
            CHECK((std::get<1>(both) == large));
        }));
}

TEST_CASE("async_connection: what the peer has sent before it closed is read, then the end") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop, muses::test::tcp_pair());
            const auto waiting = [](AsyncConnection& c) -> Task<std::string> {
                std::string all;
                std::array<char, 3> room;  // NOLINT: smaller than what comes
                for (;;) {
                    const auto got = co_await c.async_read(room);
                    if (!got || *got == 0) co_return all;
                    all.append(room.data(), *got);
                }
            };
            const auto closing = [](AsyncConnection& c) -> Task<> {
                co_await muses::sleep_for(1ms);
                (void)co_await c.async_write("last words");
                c.close();
            };
            const auto both = co_await muses::when_all(waiting(ends.a), closing(ends.b));
            CHECK(std::get<0>(both) == "last words");
            const auto closed = co_await ends.b.async_write("x");
            CHECK(closed.error() == std::errc::bad_file_descriptor);
        }));
}

TEST_CASE("async_connection: deadlines end reads and writes and the connection can be used on") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop);
            std::array<char, 16> room{};
            const auto late = co_await ends.a.async_read(room, 2ms);
            CHECK(late.error() == std::errc::timed_out);
            const auto polled = co_await ends.a.async_read(room, 0ms);
            CHECK(polled.error() == std::errc::timed_out);
            (void)muses::test::fill(ends.a.fd());
            const auto stuck = co_await ends.a.async_write("no room", 2ms);
            CHECK(stuck.error() == std::errc::timed_out);
            write_all(ends.b.fd(), "still here");
            const auto got = co_await ends.a.async_read(room, std::chrono::hours::max());
            CHECK(std::string_view(room.data(), got.value()) == "still here");
            (void)muses::test::drain(ends.b.fd());
            const auto sent = co_await ends.a.async_write("room again", 10s);
            CHECK(sent.value() == 10);
        }));
}

TEST_CASE("async_connection: a cancelled read throws and a stop before it reads nothing") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop);
            muses::stop_source source;
            const auto reads = [](AsyncConnection& c) -> Task<std::size_t> {
                std::array<char, 16> room{};
                const auto got = co_await c.async_read(room);
                co_return got.value();
            };
            int cancelled = 0;
            std::thread stopper([&] { source.request_stop(); });
            for (int i = 0; i < 2; ++i) {
                try {
                    (void)co_await muses::with_stop_token(reads(ends.a), source.get_token());
                } catch (const muses::cancelled&) {
                    ++cancelled;
                }
                if (i == 0) write_all(ends.b.fd(), "kept");
            }
            stopper.join();
            CHECK(cancelled == 2);
            CHECK(co_await reads(ends.a) == 4);
        }));
}

TEST_CASE("async_connection: a second reader gets an error and closing ends the first one") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop);
            const auto reads = [](AsyncConnection& c) -> Task<std::error_code> {
                std::array<char, 16> room{};
                const auto got = co_await c.async_read(room);
                co_return got ? std::error_code() : got.error();
            };
            const auto closes = [](AsyncConnection& c) -> Task<> {
                co_await muses::sleep_for(1ms);
                c.close();
                c.close();
            };
            const auto all = co_await muses::when_all(reads(ends.a), reads(ends.a), closes(ends.a));
            CHECK(std::get<0>(all) == std::errc::operation_canceled);
            CHECK(std::get<1>(all) == std::errc::device_or_resource_busy);
            CHECK(ends.a.fd() == -1);
            CHECK_FALSE(AsyncConnection().is_open());
            const auto none = co_await AsyncConnection().async_write("x");
            CHECK(none.error() == std::errc::bad_file_descriptor);
        }));
    CHECK(loop.watched() == 0);
}

TEST_CASE("async_connection: one that is destroyed between the event and the reader's turn harms nobody") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            auto ends = std::make_unique<Ends>(loop);
            FdPair trigger = socket_pair();
            std::size_t read = 0;
            muses::TaskScope scope;
            scope.spawn(muses::invoke([&]() -> Task<> {
                (void)co_await muses::IoAwaiter(loop, trigger.a.get(), muses::EventMask::Readable);
                ends.reset();
            }));
            co_await muses::sleep_for(0ms);
            scope.spawn(muses::invoke([&]() -> Task<> {
                std::array<char, 16> room{};
                const auto got = co_await ends->a.async_read(room);
                read = got.value();
            }));
            co_await muses::sleep_for(1ms);
            write_all(trigger.b.get(), "x");
            write_all(ends->b.fd(), "hello");
            co_await scope.join();
            CHECK(read == 5);
        }));
    CHECK(loop.watched() == 0);
}

TEST_CASE(
    "async_connection: an operation that was moved on its way, or is never awaited, does not touch a connection that is gone") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            for (int form = 0; form < 4; ++form) {
                CAPTURE(form);
                auto ends = std::make_unique<Ends>(loop);
                std::array<char, 16> room{};
                std::error_code error;
                const auto gone = [](std::unique_ptr<Ends>& e) -> Task<> {
                    co_await muses::sleep_for(1ms);
                    e.reset();
                };
                const auto note = [&error](const auto& result) { error = result ? std::error_code() : result.error(); };
                if (form == 0) {
                    const auto both = co_await muses::when_all(ends->a.async_read(room), gone(ends));
                    note(std::get<0>(both));
                } else if (form == 1) {
                    const auto both = co_await muses::when_all(muses::with_timeout(ends->a.async_read(room), 10s), gone(ends));
                    REQUIRE(std::get<0>(both).has_value());
                    note(*std::get<0>(both));
                } else if (form == 2) {
                    (void)muses::test::fill(ends->a.fd());
                    const auto both = co_await muses::when_all(ends->a.async_write("x"), gone(ends));
                    note(std::get<0>(both));
                } else {
                    auto read = ends->a.async_read(room);
                    const auto moved = std::move(read);
                    ends.reset();
                    error = std::make_error_code(std::errc::operation_canceled);
                }
                CHECK(error == std::errc::operation_canceled);
            }
            muses::TCPListener socket("127.0.0.1", 0);
            auto listener = std::make_unique<AsyncListener>(loop, *socket.get_listener());
            const auto closes = [](std::unique_ptr<AsyncListener>& l) -> Task<> {
                co_await muses::sleep_for(1ms);
                l.reset();
            };
            const auto both = co_await muses::when_all(listener->async_accept(), closes(listener));
            CHECK(std::get<0>(both).error() == std::errc::operation_canceled);
        }));
    CHECK(loop.watched() == 0);
}

TEST_CASE("async_connection: a peer that never pauses does not starve the rest of the loop") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop);
            bool over = false;
            std::uint64_t reads = 0;
            const auto flood = [](AsyncConnection& to, AsyncConnection& from, bool& stop, std::uint64_t& n) -> Task<> {
                std::array<char, 1> room{};
                while (!stop) {
                    (void)co_await to.async_write("x");
                    (void)co_await from.async_read(room);
                    ++n;
                }
            };
            const auto clock = [](bool& stop) -> Task<> {
                co_await muses::sleep_for(5ms);
                stop = true;
            };
            (void)co_await muses::when_all(flood(ends.a, ends.b, over, reads), clock(over));
            CHECK(reads > 100);
        }));
}

TEST_CASE("async_connection: a file is sent without passing through the program, from any offset, and a short one ends early") {
    ::signal(SIGPIPE, SIG_IGN);
    EventLoop loop;
    std::FILE* const file = std::tmpfile();
    REQUIRE(file != nullptr);
    std::string content(300'000, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 + i / 251);
    REQUIRE(std::fwrite(content.data(), 1, content.size(), file) == content.size());
    std::fflush(file);
    run(loop, muses::invoke([&]() -> Task<> {
            Ends ends(loop, muses::test::tcp_pair());
            const auto send = [](AsyncConnection& to, int fd) -> Task<std::uint64_t> {
                const auto first = co_await to.async_sendfile(fd, 1000, 100'000);
                const auto rest = co_await to.async_sendfile(fd, 101'000, 1'000'000, 30s);
                to.shutdown_write();
                co_return first.value() * 1'000'000 + rest.value();
            };
            const auto both = co_await muses::when_all(send(ends.a, ::fileno(file)), read_exactly(ends.b, content.size()));
            CHECK(std::get<0>(both) == std::uint64_t{100'000} * 1'000'000 + 199'000);
            CHECK((std::get<1>(both) == content.substr(1000)));
            ends.b.close();
            co_await muses::sleep_for(1ms);
            (void)co_await ends.a.async_sendfile(::fileno(file), 0, 300'000);
            const auto broken = co_await ends.a.async_sendfile(::fileno(file), 0, 300'000);
            CHECK_FALSE(broken.has_value());
        }));
    std::fclose(file);
}

TEST_CASE("async_connection: async_copy moves a stream to its end") {
    EventLoop loop;
    run(loop, muses::invoke([&]() -> Task<> {
            Ends in(loop);
            Ends out(loop);
            const std::string text(500'000, 'c');
            const auto feed = [](AsyncConnection& to, const std::string& bytes) -> Task<> {
                (void)co_await to.async_write(bytes);
                to.shutdown_write();
            };
            const auto copy = [](AsyncConnection& from, AsyncConnection& to) -> Task<std::uint64_t> {
                const auto moved = co_await muses::async_copy(from, to, 30s);
                to.close();
                co_return moved.value();
            };
            const auto all = co_await muses::when_all(feed(in.a, text), copy(in.b, out.a), read_exactly(out.b, text.size() + 1));
            CHECK(std::get<1>(all) == text.size());
            CHECK((std::get<2>(all) == text));
        }));
}

TEST_CASE("async_connection: connections are accepted and made, refused and given up in time") {
    EventLoop loop;
    muses::TCPListener socket("127.0.0.1", 0);
    run(loop, muses::invoke([&]() -> Task<> {
            AsyncListener listener(loop, *socket.get_listener());
            const auto nobody = co_await listener.async_accept(2ms);
            CHECK(nobody.error() == std::errc::timed_out);

            const auto serve = [](AsyncListener& l) -> Task<> {
                auto peer = co_await l.async_accept(10s);
                co_await echo(std::move(peer.value()));
            };
            const auto ask = [](EventLoop& l, muses::Endpoint to) -> Task<std::string> {
                auto peer = co_await muses::async_connect(l, to, 10s);
                (void)co_await peer.value().async_write("who is there");
                co_return co_await read_exactly(*peer, 12);
            };
            const auto both = co_await muses::when_all(serve(listener), ask(loop, *socket.local_endpoint()));
            CHECK(std::get<1>(both) == "who is there");

            muses::Endpoint closed;
            {
                const muses::TCPListener gone("127.0.0.1", 0);
                closed = *gone.local_endpoint();
            }
            const auto refused = co_await muses::async_connect(loop, closed, 10s);
            CHECK(refused.error() == std::errc::connection_refused);
            listener.close();
            const auto after = co_await listener.async_accept();
            CHECK(after.error() == std::errc::bad_file_descriptor);
        }));
    CHECK(loop.watched() == 0);
    CHECK(live_frames() == 0);
}

TEST_CASE("async_connection: sync_wait on another thread may use connections of a running loop") {
    EventLoop loop;
    std::thread thread([&] { loop.run(); });
    muses::TCPListener socket("127.0.0.1", 0);
    const auto body = [](EventLoop& l, const muses::TCPListener& s) -> Task<std::string> {
        co_await muses::move_to(l);
        AsyncListener listener(l, *s.get_listener());
        muses::TaskScope scope;
        const auto serve = [](AsyncListener& from) -> Task<> {
            auto peer = co_await from.async_accept();
            co_await echo(std::move(peer.value()));
        };
        scope.spawn(serve(listener));
        std::string answer;
        {
            auto peer = co_await muses::async_connect(l, *s.local_endpoint());
            (void)co_await peer.value().async_write("over there");
            answer = co_await read_exactly(*peer, 10);
        }
        co_await scope.join();
        co_return answer;
    };
    CHECK(muses::sync_wait(body(loop, socket)) == "over there");
    EventLoop elsewhere;
    AsyncConnection foreign(elsewhere, std::move(socket_pair().a));
    std::array<char, 4> room{};
    CHECK_THROWS_AS((void)muses::sync_wait(foreign.async_read(room)), std::logic_error);
    loop.stop();
    thread.join();
}
