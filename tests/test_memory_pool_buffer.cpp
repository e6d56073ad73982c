#include "muses/memory_pool.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.hpp"
#include "support/failing_new.hpp"
#include "support/memory_pools.hpp"

using muses::MemoryPool;
using muses::PooledBuffer;
using muses::PooledSlice;
using namespace muses::test;

namespace {

void write(PooledBuffer& buffer, std::string_view text) {
    const auto room = buffer.prepare(text.size() + 10);
    std::memcpy(room.data(), text.data(), text.size());
    buffer.commit(text.size());
}

}  // namespace

TEST_CASE("memory_pool: a buffer is written by prepare and commit and read by data and consume") {
    MemoryPool pool;
    PooledBuffer buffer(pool);
    CHECK(buffer.empty());
    CHECK(buffer.data().empty());
    CHECK(live(pool) == 0);  // no block before one is needed
    const std::span<std::byte> room = buffer.prepare(100);
    CHECK(room.size() == 100);
    CHECK(buffer.empty());
    std::memcpy(room.data(), "hello world", 11);
    buffer.commit(5);
    CHECK(buffer.text() == "hello");
    buffer.commit(6);  // more of the same preparation
    CHECK(buffer.text() == "hello world");
    buffer.consume(6);
    CHECK(buffer.text() == "world");
    CHECK(buffer.size() == 5);
    buffer.append("!");
    CHECK(buffer.text() == "world!");
    buffer.append(std::as_bytes(std::span("ab", 2)));
    CHECK(buffer.text() == "world!ab");
    buffer.consume(8);
    CHECK(buffer.empty());
    buffer.clear();
    CHECK(buffer.capacity() > 0);
    buffer.reset();
    CHECK(buffer.capacity() == 0);
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: a commit or a consume that is too large throws and changes nothing") {
    MemoryPool pool;
    PooledBuffer buffer(pool);
    CHECK_THROWS_AS(buffer.commit(1), std::invalid_argument);
    CHECK_THROWS_AS(buffer.consume(1), std::invalid_argument);
    (void)buffer.prepare(10);
    CHECK_THROWS_AS(buffer.commit(11), std::invalid_argument);
    CHECK_THROWS_AS(buffer.commit(SIZE_MAX), std::invalid_argument);
    buffer.commit(4);
    CHECK_THROWS_AS(buffer.commit(7), std::invalid_argument);
    buffer.commit(0);
    CHECK(buffer.size() == 4);
    CHECK_THROWS_AS(buffer.consume(5), std::invalid_argument);
    CHECK_THROWS_AS(buffer.consume(SIZE_MAX), std::invalid_argument);
    CHECK(buffer.size() == 4);
    (void)buffer.prepare(10);
    buffer.append("x");
    CHECK_THROWS_AS(buffer.commit(1), std::invalid_argument);  // append has made the preparation void
    CHECK_THROWS_AS((void)buffer.slice(6, 0), std::invalid_argument);
    CHECK_THROWS_AS((void)buffer.slice(0, 6), std::invalid_argument);
    CHECK_THROWS_AS((void)buffer.slice(1, SIZE_MAX), std::invalid_argument);
    CHECK(buffer.slice(5, 0).empty());
}

TEST_CASE("memory_pool: a buffer refuses to hold more than its limit and keeps what it has") {
    MemoryPool pool;
    PooledBuffer buffer(pool, 1000);
    buffer.append(std::string(1000, 'a'));
    CHECK_THROWS_AS(buffer.append("b"), std::length_error);
    CHECK_THROWS_AS((void)buffer.prepare(1), std::length_error);
    CHECK_THROWS_AS((void)buffer.prepare(SIZE_MAX), std::length_error);
    CHECK(buffer.text() == std::string(1000, 'a'));
    buffer.consume(10);
    buffer.append(std::string(10, 'b'));
    CHECK(buffer.text() == std::string(990, 'a') + std::string(10, 'b'));
    PooledBuffer unlimited(pool);
    CHECK_THROWS((void)unlimited.prepare(SIZE_MAX));
    CHECK_THROWS((void)unlimited.prepare(PTRDIFF_MAX));
    CHECK(unlimited.empty());
}

TEST_CASE("memory_pool: a buffer grows and keeps its bytes and moves them to the front rather than grow") {
    MemoryPool pool;
    PooledBuffer buffer(pool);
    std::string expected;
    for (int i = 0; i < 300; ++i) {
        const std::string part(static_cast<std::size_t>(i * 7 % 401), static_cast<char>('a' + i % 26));
        write(buffer, part);
        expected += part;
        CHECK(buffer.text() == expected);
    }
    buffer.clear();
    // A stream that is read as it is written needs no more than it holds at a time.
    const auto capacity = buffer.capacity();
    for (int i = 0; i < 2000; ++i) {
        buffer.append(std::string(300, 'x'));
        buffer.consume(300);
    }
    CHECK(buffer.capacity() == capacity);
    CHECK(live(pool) <= 1);
}

TEST_CASE("memory_pool: a buffer appends a part of itself") {
    MemoryPool pool;
    PooledBuffer buffer(pool);
    buffer.append("0123456789");
    std::string expected = "0123456789";
    for (int i = 0; i < 14; ++i) {
        buffer.append(buffer.data().subspan(1));
        expected += expected.substr(1);
        if (i % 3 == 0) {
            buffer.consume(buffer.size() / 2);
            expected.erase(0, expected.size() / 2);
        }
        CHECK(buffer.text() == expected);
    }
    CHECK(live(pool) <= 1);

    // In a block where the data is moved to the front first.
    PooledBuffer other(pool);
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i % 23);
    other.append(text);
    const auto* const front = other.data().data();
    REQUIRE(other.capacity() < 550);
    other.consume(250);
    other.append(other.data());
    CHECK(other.data().data() == front);
    CHECK(other.text() == text.substr(250) + text.substr(250));
}

TEST_CASE("memory_pool: slices show the same bytes whatever becomes of the buffer") {
    std::optional<MemoryPool> pool(std::in_place);
    std::optional<PooledBuffer> buffer(std::in_place, *pool);
    buffer->append("GET /index.html HTTP/1.1");
    PooledSlice method = buffer->slice(0, 3);
    const PooledSlice path = buffer->slice(4, 11);
    CHECK(method.text() == "GET");
    const auto check = [&] { CHECK(path.text() == "/index.html"); };
    buffer->append(" and more");
    check();
    buffer->clear();
    check();
    buffer->append(std::string(500, 'x'));
    check();
    buffer->consume(500);
    for (int i = 0; i < 100; ++i) {
        buffer->append(std::string(400, 'y'));
        buffer->consume(400);
    }
    check();
    const PooledSlice name = path.slice(1, 5);
    CHECK(name.text() == "index");
    CHECK_THROWS_AS((void)path.slice(5, 7), std::invalid_argument);
    PooledSlice copy = name;
    PooledSlice moved = std::move(method);
    CHECK(method.empty());  // NOLINT(bugprone-use-after-move)
    CHECK(method.data().data() == nullptr);
    moved = copy;
    moved = std::move(copy);
    auto& same = moved;
    moved = same;
    CHECK(moved.text() == "index");
    buffer.reset();
    pool.reset();
    check();
    CHECK(moved.text() == "index");
}

TEST_CASE("memory_pool: a buffer is reused for the next request as long as nobody holds a slice") {
    MemoryPool pool;
    PooledBuffer buffer(pool);
    buffer.append(std::string(2000, 'a'));
    const auto* const memory = buffer.data().data();
    for (int request = 0; request < 50; ++request) {
        buffer.clear();
        buffer.append("request");
        CHECK(buffer.data().data() == memory);
        const auto slice = buffer.slice(0, 3);
    }
    const auto slice = buffer.slice(0, 3);
    buffer.clear();
    CHECK(buffer.empty());
    buffer.append("other");
    CHECK(buffer.data().data() != memory);
    CHECK(slice.text() == "req");
    CHECK(live(pool) == 2);
}

TEST_CASE("memory_pool: a buffer that is moved leaves an empty one") {
    MemoryPool pool;
    PooledBuffer a(pool);
    a.append("text");
    PooledBuffer b = std::move(a);
    CHECK(b.text() == "text");
    CHECK(a.empty());  // NOLINT(bugprone-use-after-move)
    a.append("new");
    b = std::move(a);
    CHECK(b.text() == "new");
    auto& same = b;
    b = std::move(same);
    CHECK(b.text() == "new");
    CHECK(live(pool) == 1);
}

TEST_CASE("memory_pool: slices end on other threads while the buffer goes on") {
    MemoryPool pool;
    for (int round = 0; round < stress_rounds(50); ++round) {
        PooledBuffer buffer(pool);
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; ++i) {
            const std::string text = "message " + std::to_string(i);
            buffer.clear();
            buffer.append(text);
            threads.emplace_back([slice = buffer.slice(0, text.size()), text] { CHECK(slice.text() == text); });
        }
        for (auto& thread : threads) thread.join();
    }
    CHECK(live(pool) == 0);
}

TEST_CASE("memory_pool: a buffer behaves as a string does over a random history") {
    const auto seed = std::random_device{}();
    CAPTURE(seed);
    std::mt19937 random(seed);
    MemoryPool pool;
    PooledBuffer buffer(pool);
    std::string model;
    std::vector<std::pair<PooledSlice, std::string>> slices;
    for (int i = 0; i < stress_rounds(5000); ++i) {
        const std::string text(random() % (random() % 20 == 0 ? 5000 : 200), static_cast<char>('a' + random() % 26));
        switch (random() % 8) {
            case 0: {
                const auto room = buffer.prepare(text.size());
                std::memcpy(room.data(), text.data(), text.size());
                const auto count = text.empty() ? 0 : random() % text.size();
                buffer.commit(count);
                model += text.substr(0, count);
                break;
            }
            case 1:
            case 2:
                buffer.append(text);
                model += text;
                break;
            case 3:
            case 4: {
                const auto count = model.empty() ? 0 : random() % (model.size() + 1);
                buffer.consume(count);
                model.erase(0, count);
                break;
            }
            case 5: {
                const auto offset = random() % (model.size() + 1);
                const auto count = random() % (model.size() - offset + 1);
                slices.emplace_back(buffer.slice(offset, count), model.substr(offset, count));
                break;
            }
            case 6:
                if (!slices.empty()) slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(random() % slices.size()));
                break;
            default:
                if (random() % 4 != 0) break;
                buffer.clear();
                model.clear();
        }
        REQUIRE(buffer.text() == model);
        for (const auto& [slice, expected] : slices) REQUIRE(slice.text() == expected);
    }
    slices.clear();
    buffer.reset();
    CHECK(live(pool) == 0);
}

#if defined(MUSES_TEST_CAN_FAIL_NEW)
TEST_CASE("memory_pool: a buffer that gets no memory keeps its bytes") {
    MemoryPool pool({.initial_bytes = 0, .max_bytes = 0});
    PooledBuffer buffer(pool);
    buffer.append("kept");
    {
        const FailNew fail(0);
        CHECK_THROWS_AS((void)buffer.prepare(100000), std::bad_alloc);
        CHECK(fail.failed());
    }
    CHECK(buffer.text() == "kept");
    const std::string large(100000, 'x');
    {
        const FailNew fail(0);
        CHECK_THROWS_AS(buffer.append(large), std::bad_alloc);
    }
    CHECK(buffer.text() == "kept");
}
#endif
