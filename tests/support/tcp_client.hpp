// A plain blocking client for tests that talk to a server over a real socket.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "muses/net/unique_fd.hpp"

namespace muses::test {

/// One connection to 127.0.0.1. Nothing waits longer than `kPatience`, which only a broken server needs.
class TcpClient {
public:
    static constexpr std::chrono::milliseconds kPatience{20'000};

    /// `receive_buffer` > 0 asks for a small receive buffer, so that the server soon can't send.
    explicit TcpClient(std::uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        if (receive_buffer > 0) ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
        const int on = 1;
        ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fd_.reset();
    }

    [[nodiscard]] bool connected() const noexcept { return static_cast<bool>(fd_); }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

    /// False when the connection is lost before all is written.
    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n < 0) {
                if (errno == EINTR) continue;
                return false;
            }
            bytes.remove_prefix(static_cast<std::size_t>(n));
        }
        return true;
    }

    /// Writes what the kernel takes without waiting; returns how much.
    std::size_t send_some(std::string_view bytes) {
        const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        return n > 0 ? static_cast<std::size_t>(n) : 0;
    }

    /// Reads exactly `size` bytes; shorter when the connection ends or nothing comes.
    std::string read(std::size_t size) {
        std::string got;
        while (got.size() < size && receive(got, size - got.size())) {}
        return got;
    }

    /// Reads until `end` is the end of what was read, or the connection ends.
    std::string read_until(std::string_view end) {
        std::string got;
        while (!got.ends_with(end) && receive(got, 1)) {}
        return got;
    }

    /// One HTTP response with a Content-Length, head and body; what there is of it when the connection ends early.
    std::string read_response() {
        std::string got = read_until("\r\n\r\n");
        constexpr std::string_view kField = "\r\nContent-Length: ";
        const std::size_t at = got.find(kField);
        if (at == std::string::npos) return got;
        return got + read(std::stoul(got.substr(at + kField.size())));
    }

    /// Reads to the end of the stream.
    std::string read_all() {
        std::string got;
        while (receive(got, std::size_t{64} * 1024)) {}
        return got;
    }

    /// True when the server closes without sending anything more.
    bool closed_silently() { return read_all().empty() && last_error_ == 0; }

    /// errno of the last failed read; 0 when the stream ended in order.
    [[nodiscard]] int last_error() const noexcept { return last_error_; }

    void shutdown_write() { ::shutdown(fd_.get(), SHUT_WR); }
    void close() { fd_.reset(); }

    /// Closes with a reset instead of an orderly end.
    void reset() {
        const linger now{1, 0};
        ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        fd_.reset();
    }

private:
    /// Appends at most `most` bytes; false at the end of the stream, on an error, or when nothing comes in time.
    bool receive(std::string& to, std::size_t most) {
        pollfd ready{fd_.get(), POLLIN, 0};
        if (::poll(&ready, 1, static_cast<int>(kPatience.count())) <= 0) {
            last_error_ = ETIMEDOUT;
            return false;
        }
        std::array<char, std::size_t{64} * 1024> block;
        const ssize_t n = ::recv(fd_.get(), block.data(), std::min(block.size(), most), 0);
        last_error_ = n < 0 ? errno : 0;
        if (n <= 0) return false;
        to.append(block.data(), static_cast<std::size_t>(n));
        return true;
    }

    UniqueFd fd_;
    int last_error_ = 0;
};

}  // namespace muses::test
