#include "muses/net/payload.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "muses/net/send_queue.hpp"

using muses::FileRange;
using muses::IoResult;
using muses::Payload;
using muses::SharedBytes;
using muses::detail::FlushResult;
using muses::detail::SendQueue;

namespace {

SharedBytes shared(std::string bytes) { return std::make_shared<const std::string>(std::move(bytes)); }

std::shared_ptr<const muses::UniqueFd> some_file() {
    return std::make_shared<const muses::UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

/// Takes at most `room` bytes a call, from a total of `total`; a file's bytes are its offsets' last digits.
struct NarrowTransport {
    static constexpr bool kShortReadDrains = false;
    std::size_t room = 3;
    std::size_t total = ~std::size_t{0};
    std::string taken;
    int calls = 0;
    int fail_with = 0;

    IoResult read(int, std::span<char>) { return {0, EAGAIN}; }

    IoResult write(int, std::span<const iovec> pieces, bool) {
        ++calls;
        if (fail_with != 0) return {0, fail_with};
        std::size_t left = std::min(room, total);
        if (left == 0) return {0, EAGAIN};
        std::size_t done = 0;
        for (const iovec& piece : pieces) {
            const std::size_t n = std::min(left, piece.iov_len);
            taken.append(static_cast<const char*>(piece.iov_base), n);
            left -= n;
            done += n;
        }
        total -= done;
        return {done, 0};
    }

    IoResult send_file(int, int, std::uint64_t offset, std::size_t length) {
        ++calls;
        const std::size_t n = std::min({room, total, length});
        if (n == 0) return {0, EAGAIN};
        for (std::size_t i = 0; i < n; ++i) taken.push_back(static_cast<char>('0' + (offset + i) % 10));
        total -= n;
        return {n, 0};
    }

    void shutdown_write(int) {}
};
static_assert(muses::Transport<NarrowTransport>);

/// head, shared slice, file range, tail
Payload mixed() {
    Payload payload("head:");
    payload.append(shared("abcdefgh"), 2, 3).append(FileRange{some_file(), 17, 12}).append(std::string(":tail"));
    return payload;
}
constexpr std::string_view kMixed = "head:cde789012345678:tail";

}  // namespace

TEST_CASE("payload: counts the bytes of all its segments and keeps their order") {
    CHECK(Payload().empty());
    CHECK(Payload("abc").size() == 3);
    CHECK(Payload(std::string()).segments() == 0);
    const Payload payload = mixed();
    CHECK(payload.size() == kMixed.size());
    REQUIRE(payload.segments() == 4);
    CHECK(std::get<std::string>(payload.segment(0)) == "head:");
    CHECK(std::get<muses::SharedSlice>(payload.segment(1)).length == 3);
    CHECK(std::get<FileRange>(payload.segment(2)).offset == 17);
    CHECK(std::get<std::string>(payload.segment(3)) == ":tail");
}

TEST_CASE("payload: empty segments are left out") {
    Payload payload;
    payload.append(std::string()).append(shared("")).append(shared("x"), 1, 0).append(FileRange{some_file(), 5, 0});
    CHECK(payload.segments() == 0);
    payload.append(shared("only"));
    CHECK(payload.segments() == 1);
    CHECK(payload.size() == 4);
}

TEST_CASE("payload: a slice outside of its bytes and a file that is not open are refused") {
    Payload payload;
    CHECK_THROWS_AS(payload.append(shared("abc"), 2, 2), std::invalid_argument);
    CHECK_THROWS_AS(payload.append(shared("abc"), 4, 1), std::invalid_argument);
    CHECK_THROWS_AS(payload.append(shared("abc"), ~std::size_t{0}, 2), std::invalid_argument);
    CHECK_THROWS_AS(payload.append(SharedBytes()), std::invalid_argument);
    CHECK_THROWS_AS(payload.append(FileRange{nullptr, 0, 1}), std::invalid_argument);
    CHECK_THROWS_AS(payload.append(FileRange{std::make_shared<const muses::UniqueFd>(), 0, 1}), std::invalid_argument);
    CHECK(payload.empty());
}

TEST_CASE("payload: shared bytes live as long as a payload holds a slice of them") {
    auto bytes = shared("shared");
    const std::weak_ptr<const std::string> watch = bytes;
    Payload payload;
    payload.append(std::move(bytes));
    CHECK_FALSE(watch.expired());
    payload = Payload();
    CHECK(watch.expired());
}

TEST_CASE("send_queue: every width of the socket gives the same bytes") {
    for (std::size_t room = 1; room <= 2 * kMixed.size() + 1; ++room) {
        SendQueue queue;
        queue.push(mixed());
        queue.push(Payload());
        queue.push("|");
        queue.push(mixed());
        NarrowTransport transport;
        transport.room = room;
        std::uint64_t written = 0;
        CHECK(queue.flush(transport, 0, ~std::uint64_t{0}, written) == FlushResult::Drained);
        CHECK(transport.taken == std::string(kMixed) + "|" + std::string(kMixed));
        CHECK(written == transport.taken.size());
        CHECK(queue.empty());
    }
}

TEST_CASE("send_queue: a socket that is full at any byte is gone on with from there") {
    for (std::size_t first = 0; first <= kMixed.size(); ++first) {
        SendQueue queue;
        queue.push(mixed());
        NarrowTransport transport;
        transport.room = 100;
        transport.total = first;
        std::uint64_t written = 0;
        CHECK(queue.flush(transport, 0, ~std::uint64_t{0}, written) ==
              (first == kMixed.size() ? FlushResult::Drained : FlushResult::Blocked));
        CHECK(queue.unsent() == kMixed.size() - first);
        transport.total = 1000;
        CHECK(queue.flush(transport, 0, ~std::uint64_t{0}, written) == FlushResult::Drained);
        CHECK(transport.taken == kMixed);
    }
}

TEST_CASE("send_queue: the budget ends a flush and loses nothing") {
    SendQueue queue;
    for (int i = 0; i < 3; ++i) queue.push(mixed());
    NarrowTransport transport;
    transport.room = 4;
    std::uint64_t written = 0;
    int turns = 0;
    while (queue.flush(transport, 0, 10, written) == FlushResult::Yielded) REQUIRE(++turns < 100);
    CHECK(turns > 3);
    CHECK(transport.taken == std::string(kMixed) + std::string(kMixed) + std::string(kMixed));
}

TEST_CASE("send_queue: many small answers leave in few calls") {
    SendQueue queue;
    std::string expected;
    for (int i = 0; i < 200; ++i) {
        queue.push(std::to_string(i));
        expected += std::to_string(i);
    }
    NarrowTransport transport;
    transport.room = 1'000'000;
    std::uint64_t written = 0;
    CHECK(queue.flush(transport, 0, ~std::uint64_t{0}, written) == FlushResult::Drained);
    CHECK(transport.taken == expected);
    CHECK(transport.calls == 4);  // 64 pieces a call
}

TEST_CASE("send_queue: a payload is freed when its last byte is out and a lost connection is told") {
    const auto bytes = shared("0123456789");
    const std::weak_ptr<const std::string> watch = bytes;
    {
        SendQueue queue;
        queue.push(Payload().append(bytes));
        queue.push(Payload().append(bytes));
        CHECK(bytes.use_count() == 3);
        NarrowTransport transport;
        transport.room = 100;
        transport.total = 12;
        std::uint64_t written = 0;
        CHECK(queue.flush(transport, 0, ~std::uint64_t{0}, written) == FlushResult::Blocked);
        CHECK(bytes.use_count() == 2);
        transport.fail_with = EPIPE;
        CHECK(queue.flush(transport, 0, ~std::uint64_t{0}, written) == FlushResult::Failed);
    }
    CHECK(bytes.use_count() == 1);
}
