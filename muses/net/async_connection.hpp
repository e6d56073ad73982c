// A connection for tasks: co_await its reads and writes.
//
//     muses::Task<> echo(muses::AsyncConnection peer) {
//         std::array<char, 4096> room;
//         while (auto got = co_await peer.async_read(room)) {
//             if (*got == 0 || !co_await peer.async_write({room.data(), *got})) co_return;
//         }
//     }
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/duration.hpp"
#include "muses/net/async_socket.hpp"
#include "muses/net/event_loop.hpp"
#include "muses/net/socket.hpp"
#include "muses/net/transport.hpp"
#include "muses/net/unique_fd.hpp"
#include "muses/task.hpp"

namespace muses {

/// What: a stream connection whose reads and writes tasks await.
/// Complexity: registered with the loop once; an operation that needs no wait is one system call, one that waits has no further one.
/// Threads: the loop's; tasks that use it run there.
/// Lifetime: closes its socket; must not outlive its loop. Operations that are under way then end with operation_canceled. The buffers that an operation was
///     given stay valid until it has ended, or its task is destroyed.
/// Limits: one reading and one writing operation at a time; another one ends with device_or_resource_busy. async_sendfile may
///     raise SIGPIPE when the peer is gone: ignore that signal.
class AsyncConnection {
public:
    class [[nodiscard]] Read final : public detail::SocketOperation {
    public:
        [[nodiscard]] static bool await_ready() noexcept { return false; }
        std::expected<std::size_t, std::error_code> await_resume() {
            if (const std::error_code error = finish()) return std::unexpected(error);
            return got_;
        }

    private:
        friend class AsyncConnection;
        Read(detail::AsyncSocket* socket, std::span<char> room, detail::SteadyTime duration) noexcept
            : SocketOperation(socket, true, &Read::attempt, duration), room_(room) {}

        static bool attempt(SocketOperation& operation) noexcept {
            auto& self = static_cast<Read&>(operation);
            if (self.room_.empty()) return self.fail_with(EINVAL);
            detail::AsyncSocket& from = self.socket();
            const IoResult result = PlainTransport().read(from.fd.get(), self.room_);
            if (result.would_block()) return self.not_now();
            if (!result.ok()) return self.fail_with(result.error);
            self.got_ = result.bytes;
            // A read that leaves room has found the end of what is there; what comes later is an event.
            if (PlainTransport::kShortReadDrains && result.bytes < self.room_.size()) from.readable = false;
            return true;
        }

        std::span<char> room_;
        std::size_t got_ = 0;
    };

    class [[nodiscard]] Write final : public detail::SocketOperation {
    public:
        [[nodiscard]] static bool await_ready() noexcept { return false; }
        std::expected<std::size_t, std::error_code> await_resume() {
            if (const std::error_code error = finish()) return std::unexpected(error);
            return sent_;
        }

    private:
        friend class AsyncConnection;
        Write(detail::AsyncSocket* socket, std::span<const char> bytes, detail::SteadyTime duration) noexcept
            : SocketOperation(socket, false, &Write::attempt, duration), bytes_(bytes) {}

        static bool attempt(SocketOperation& operation) noexcept {
            auto& self = static_cast<Write&>(operation);
            while (!self.bytes_.empty()) {
                const iovec piece{const_cast<char*>(self.bytes_.data()), self.bytes_.size()};  // it is only read
                const IoResult result = PlainTransport().write(self.socket().fd.get(), {&piece, 1}, false);
                if (result.would_block()) return self.not_now();
                if (!result.ok()) return self.fail_with(result.error);
                self.bytes_ = self.bytes_.subspan(result.bytes);
                self.sent_ += result.bytes;
            }
            return true;
        }

        std::span<const char> bytes_;  // what is left
        std::size_t sent_ = 0;
    };

    class [[nodiscard]] SendFile final : public detail::SocketOperation {
    public:
        [[nodiscard]] static bool await_ready() noexcept { return false; }
        std::expected<std::uint64_t, std::error_code> await_resume() {
            if (const std::error_code error = finish()) return std::unexpected(error);
            return sent_;
        }

    private:
        friend class AsyncConnection;
        SendFile(detail::AsyncSocket* socket, int file, std::uint64_t offset, std::uint64_t length,
                 detail::SteadyTime duration) noexcept
            : SocketOperation(socket, false, &SendFile::attempt, duration), file_(file), offset_(offset), left_(length) {}

        static bool attempt(SocketOperation& operation) noexcept {
            auto& self = static_cast<SendFile&>(operation);
            while (self.left_ > 0) {
                const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(self.left_, std::uint64_t{1} << 30U));
                const IoResult result = PlainTransport().send_file(self.socket().fd.get(), self.file_, self.offset_, most);
                if (result.would_block()) return self.not_now();
                if (!result.ok()) return self.fail_with(result.error);
                if (result.bytes == 0) return true;  // the file is shorter
                self.offset_ += result.bytes;
                self.left_ -= result.bytes;
                self.sent_ += result.bytes;
            }
            return true;
        }

        int file_;
        std::uint64_t offset_;
        std::uint64_t left_;
        std::uint64_t sent_ = 0;
    };

    /// No connection: every operation ends with bad_file_descriptor.
    AsyncConnection() noexcept = default;

    /// Takes a connected, non-blocking socket, as accept_nonblocking() gives it, and has a TCP one send small writes at once. Throws
    /// std::bad_alloc.
    AsyncConnection(EventLoop& loop, UniqueFd fd) : AsyncConnection(std::make_unique<detail::AsyncSocket>(loop, std::move(fd))) {}

    /// Takes a socket that is registered already: for async_connect.
    explicit AsyncConnection(std::unique_ptr<detail::AsyncSocket> socket) noexcept : socket_(std::move(socket)) {
        (void)set_nodelay(fd());  // others than TCP have no such thing
    }

    /// `co_await c.async_read(room)`: waits for bytes; gives how many were put into `room`, 0 at the end of the stream, or an error
    /// (timed_out after `deadline`, invalid_argument for no room). Throws muses::cancelled.
    template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
    Read async_read(std::span<char> room,
                    std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) noexcept {
        return {socket_.get(), room, detail::deadline_after(deadline, detail::SteadyTime())};
    }
    template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
    Read async_read(std::span<std::byte> room,
                    std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) noexcept {
        return async_read(std::span(reinterpret_cast<char*>(room.data()), room.size()), deadline);
    }

    /// `co_await c.async_write(bytes)`: waits until the system has taken all of them; gives their number, or an error (timed_out
    /// when `deadline` for the whole of it is over: some may have been sent). Throws muses::cancelled: likewise.
    template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
    Write async_write(std::string_view bytes,
                      std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) noexcept {
        return {socket_.get(), bytes, detail::deadline_after(deadline, detail::SteadyTime())};
    }
    template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
    Write async_write(std::span<const std::byte> bytes,
                      std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) noexcept {
        return async_write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), deadline);
    }

    /// `co_await c.async_sendfile(file, offset, length)`: sends a part of a file without copying it through the program; gives how many
    /// bytes were sent (fewer when the file ends before), or an error as async_write.
    template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
    SendFile async_sendfile(int file, std::uint64_t offset, std::uint64_t length,
                            std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) noexcept {
        return {socket_.get(), file, offset, length, detail::deadline_after(deadline, detail::SteadyTime())};
    }

    /// Tells the peer that nothing more will be written. Reading goes on.
    void shutdown_write() noexcept {
        if (is_open()) PlainTransport().shutdown_write(fd());
    }

    /// Closes the socket; what is under way ends with operation_canceled. Twice is harmless.
    void close() noexcept {
        if (socket_ != nullptr) socket_->close();
    }

    [[nodiscard]] bool is_open() const noexcept { return socket_ != nullptr && socket_->fd; }

    /// The descriptor, which stays this object's, or -1.
    [[nodiscard]] int fd() const noexcept { return socket_ != nullptr ? socket_->fd.get() : -1; }

private:
    std::unique_ptr<detail::AsyncSocket> socket_;
};

/// Sends all that comes from `from` on to `to`, until the end of the stream. Gives the number of bytes, or the first error; each step
/// has `deadline`. Holds 64 KiB meanwhile; reads no faster than `to` takes. Throws muses::cancelled, std::bad_alloc.
template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
Task<std::expected<std::uint64_t, std::error_code>> async_copy(
    AsyncConnection& from, AsyncConnection& to,
    std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) {
    std::vector<char> room(std::size_t{64} * 1024);
    std::uint64_t total = 0;
    for (;;) {
        const auto got = co_await from.async_read(std::span<char>(room), deadline);
        if (!got) co_return std::unexpected(got.error());
        if (*got == 0) co_return total;
        const auto sent = co_await to.async_write(std::string_view(room.data(), *got), deadline);
        if (!sent) co_return std::unexpected(sent.error());
        total += *got;
    }
}

}  // namespace muses
