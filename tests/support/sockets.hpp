// Descriptors for tests: connected pairs, a pipe, and the little that is done with them. What fails here throws.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "muses/net/socket.hpp"

namespace muses::test {

[[noreturn]] inline void fail(const char* what) { throw std::system_error(errno, std::system_category(), what); }

struct FdPair {
    UniqueFd a;
    UniqueFd b;
};

/// Two non-blocking ends of a unix stream: what one writes is readable at the other when write() returns.
[[nodiscard]] inline FdPair socket_pair() {
    std::array<int, 2> fds{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()) != 0) fail("socketpair");
    FdPair pair{UniqueFd(fds[0]), UniqueFd(fds[1])};
    if (!set_nonblocking(fds[0]) || !set_nonblocking(fds[1])) fail("set_nonblocking");
    return pair;
}

/// A pipe: `a` is the end to read from, `b` the one to write to; both non-blocking.
[[nodiscard]] inline FdPair pipe_pair() {
    std::array<int, 2> fds{};
    if (::pipe(fds.data()) != 0) fail("pipe");
    FdPair pair{UniqueFd(fds[0]), UniqueFd(fds[1])};
    if (!set_nonblocking(fds[0]) || !set_nonblocking(fds[1])) fail("set_nonblocking");
    return pair;
}

/// A TCP connection to `listener_fd` (waited for); non-blocking afterwards.
[[nodiscard]] inline UniqueFd connect_to(const Endpoint& endpoint) {
    UniqueFd fd(::socket(endpoint.family(), SOCK_STREAM, 0));
    if (!fd) fail("socket");
    if (::connect(fd.get(), endpoint.data(), endpoint.size()) != 0) fail("connect");
    if (!set_nonblocking(fd.get())) fail("set_nonblocking");
    return fd;
}

/// Both ends of a TCP connection on the loopback.
[[nodiscard]] inline FdPair tcp_pair() {
    const TCPListener listener("127.0.0.1", 0);
    UniqueFd a = connect_to(listener.local_endpoint().value());
    for (;;) {
        auto b = accept_nonblocking(listener.get_listener().value());
        if (b) return {std::move(a), std::move(*b)};
        if (b.error() != std::errc::resource_unavailable_try_again) throw std::system_error(b.error(), "accept");
    }
}

inline void write_all(int fd, std::string_view text) {
    if (::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail("write");
}

/// Writes until the system takes no more; returns how much it took.
inline std::size_t fill(int fd) {
    const std::string block(16 * 1024, 'x');
    std::size_t sum = 0;
    for (;;) {
        const ssize_t n = ::write(fd, block.data(), block.size());
        if (n > 0)
            sum += static_cast<std::size_t>(n);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return sum;
        else
            fail("write");
    }
}

/// Reads until there is no more for now or ever; returns what there was.
inline std::string drain(int fd) {
    std::string all;
    std::array<char, 16 * 1024> block{};
    for (;;) {
        const ssize_t n = ::read(fd, block.data(), block.size());
        if (n <= 0) return all;
        all.append(block.data(), static_cast<std::size_t>(n));
    }
}

/// A number at which no descriptor is open.
[[nodiscard]] inline int closed_number() {
    const UniqueFd fd(::dup(0));
    if (!fd) fail("dup");
    return fd.get();
}

/// Opens `source` under the number `number`, which must be free; false when another one has it.
[[nodiscard]] inline bool move_to(UniqueFd& source, int number) {
    const int got = ::fcntl(source.get(), F_DUPFD_CLOEXEC, number);
    source.reset(got);
    return got == number;
}

}  // namespace muses::test
