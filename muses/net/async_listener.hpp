// Connections for tasks: accepting them, and making them.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/net/async_connection.hpp"
#include "muses/net/async_socket.hpp"
#include "muses/net/endpoint.hpp"
#include "muses/net/event_loop.hpp"
#include "muses/net/socket.hpp"
#include "muses/net/unique_fd.hpp"
#include "muses/task.hpp"

namespace muses {

/// What: a listening socket whose connections tasks await.
/// Complexity: registered with the loop once; one system call for each connection, and one for each time that there is none.
/// Threads: the loop's; tasks that use it run there.
/// Lifetime: does not own the listening socket, which must stay open; must not outlive its loop. What is under way when it goes ends with operation_canceled.
/// Limits: one async_accept at a time; another one ends with device_or_resource_busy.
class AsyncListener {
public:
    class [[nodiscard]] Accept final : public detail::SocketOperation {
    public:
        [[nodiscard]] static bool await_ready() noexcept { return false; }
        std::expected<AsyncConnection, std::error_code> await_resume() {
            if (const std::error_code error = finish()) return std::unexpected(error);
            return AsyncConnection(*loop_, std::move(accepted_));
        }

    private:
        friend class AsyncListener;
        Accept(EventLoop& loop, detail::AsyncSocket* socket, detail::SteadyTime duration) noexcept
            : SocketOperation(socket, true, &Accept::attempt, duration), loop_(&loop) {}

        static bool attempt(SocketOperation& operation) noexcept {
            auto& self = static_cast<Accept&>(operation);
            for (;;) {
                auto fd = accept_nonblocking(self.socket().fd.get());
                if (fd) {
                    self.accepted_ = std::move(*fd);
                    return true;
                }
                if (fd.error() == std::errc::resource_unavailable_try_again || fd.error() == std::errc::operation_would_block)
                    return self.not_now();
                switch (fd.error().value()) {
                    case EBADF:
                    case EINVAL:
                    case ENOTSOCK:
                    case EOPNOTSUPP:
                    case EMFILE:
                    case ENFILE:
                    case ENOBUFS:
                    case ENOMEM: return self.fail_with(fd.error().value());
                    default: break;  // the connection died in the queue: the next one
                }
            }
        }

        EventLoop* loop_;
        UniqueFd accepted_;
    };

    /// Accepts from `listener_fd`, a non-blocking listening socket, as TCPListener::get_listener() gives it.
    AsyncListener(EventLoop& loop, int listener_fd)
        : loop_(&loop), socket_(std::make_unique<detail::AsyncSocket>(loop, UniqueFd(listener_fd), true)) {}

    /// `co_await listener.async_accept()`: waits for the next connection; gives it, or an error: timed_out after `deadline`; the system's,
    /// such as too_many_files_open, after which the same may follow at once: sleep a little before the next attempt. Throws
    /// muses::cancelled, std::bad_alloc.
    template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
    Accept async_accept(std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) noexcept {
        return {*loop_, socket_.get(), detail::deadline_after(deadline, detail::SteadyTime())};
    }

    /// Accepts nothing more; what is under way ends with operation_canceled. The socket stays open.
    void close() noexcept { socket_->close(); }

private:
    EventLoop* loop_;
    std::unique_ptr<detail::AsyncSocket> socket_;
};

namespace detail {

/// Waits until an attempt to connect is over.
class [[nodiscard]] Connecting final : public SocketOperation {
public:
    Connecting(AsyncSocket* socket, SteadyTime duration) noexcept : SocketOperation(socket, false, &Connecting::attempt, duration) {
        socket->writable = false;  // the first event tells
    }
    [[nodiscard]] static bool await_ready() noexcept { return false; }
    [[nodiscard]] std::error_code await_resume() { return finish(); }

private:
    static bool attempt(SocketOperation& operation) noexcept {
        auto& self = static_cast<Connecting&>(operation);
        if (const std::error_code error = take_socket_error(self.socket().fd.get())) return self.fail_with(error.value());
        return true;
    }
};

inline Task<std::expected<AsyncConnection, std::error_code>> run_connect(EventLoop& loop, Endpoint to, SteadyTime duration) {
    co_await move_to(loop);
    auto fd = connect_nonblocking(to);
    if (!fd) co_return std::unexpected(fd.error());
    auto socket = std::make_unique<AsyncSocket>(loop, std::move(*fd));
    Connecting connecting(socket.get(), duration);
    if (const std::error_code error = co_await connecting) co_return std::unexpected(error);
    co_return AsyncConnection(std::move(socket));
}

}  // namespace detail

/// `co_await async_connect(loop, endpoint)`: gives the connection, or an error: timed_out after `deadline`, connection_refused, …
/// Throws muses::cancelled, std::bad_alloc.
template <class Rep = std::chrono::hours::rep, class Period = std::chrono::hours::period>
[[nodiscard]] auto async_connect(EventLoop& loop, const Endpoint& to,
                                 std::chrono::duration<Rep, Period> deadline = std::chrono::duration<Rep, Period>::max()) {
    return detail::run_connect(loop, to, detail::deadline_after(deadline, detail::SteadyTime()));
}

}  // namespace muses
