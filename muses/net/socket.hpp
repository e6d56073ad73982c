// Listening sockets, and the few socket calls that a server needs, with std::error_code instead of errno.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <expected>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "muses/net/endpoint.hpp"
#include "muses/net/unique_fd.hpp"

namespace muses {

/// The address that a socket is bound to.
[[nodiscard]] inline std::expected<Endpoint, std::error_code> local_endpoint(int fd) noexcept {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return detail::last_error();
    return Endpoint(reinterpret_cast<const sockaddr*>(&address), length);
}

/// The address of whoever a socket is connected to; fails when it is not connected.
[[nodiscard]] inline std::expected<Endpoint, std::error_code> peer_endpoint(int fd) noexcept {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return detail::last_error();
    return Endpoint(reinterpret_cast<const sockaddr*>(&address), length);
}

/// Sets an integer socket option.
inline std::expected<void, std::error_code> set_option(int fd, int level, int name, int value) noexcept {
    if (::setsockopt(fd, level, name, &value, sizeof value) != 0) return detail::last_error();
    return {};
}

/// Small writes go out at once instead of waiting for the acknowledgement of earlier ones. Fails for what is not TCP.
inline std::expected<void, std::error_code> set_nodelay(int fd) noexcept { return set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); }

/// Makes reads and writes of `fd` return EAGAIN instead of waiting.
inline std::expected<void, std::error_code> set_nonblocking(int fd) noexcept {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return detail::last_error();
    return {};
}

/// The pending error of a socket, which this call takes from it; no error when there is none.
[[nodiscard]] inline std::error_code take_socket_error(int fd) noexcept {
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    return {error, std::system_category()};
}

namespace detail {

// Where accept4 and SOCK_NONBLOCK are missing: the same in steps. A fork between two steps may leak the descriptor there.
[[nodiscard]] inline std::expected<UniqueFd, std::error_code> made_ready([[maybe_unused]] UniqueFd fd) noexcept {
#if !defined(SOCK_NONBLOCK)
    if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) < 0) return last_error();
    if (auto done = set_nonblocking(fd.get()); !done) return std::unexpected(done.error());
#endif
#if defined(SO_NOSIGPIPE)
    if (auto done = set_option(fd.get(), SOL_SOCKET, SO_NOSIGPIPE, 1); !done) return std::unexpected(done.error());
#endif
    return fd;
}

[[nodiscard]] inline std::expected<UniqueFd, std::error_code> stream_socket(int family) noexcept {
#if defined(SOCK_NONBLOCK)
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
#else
    UniqueFd fd(::socket(family, SOCK_STREAM, 0));
#endif
    if (!fd) return last_error();
    return made_ready(std::move(fd));
}

}  // namespace detail

/// Takes the next connection of a listening socket: non-blocking, close-on-exec. Fails with resource_unavailable_try_again when
/// there is none, with what accept(2) says else (connection_aborted, too_many_files_open, …). Interrupted calls are repeated.
[[nodiscard]] inline std::expected<UniqueFd, std::error_code> accept_nonblocking(int listener_fd) noexcept {
    for (;;) {
#if defined(SOCK_NONBLOCK)
        UniqueFd fd(::accept4(listener_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
#else
        UniqueFd fd(::accept(listener_fd, nullptr, nullptr));
#endif
        if (fd) return detail::made_ready(std::move(fd));
        if (errno != EINTR) return detail::last_error();
    }
}

/// Begins to connect: non-blocking, close-on-exec. The socket becomes Writable when the attempt is over, and take_socket_error() then
/// says how it went. Fails with what is known at once.
[[nodiscard]] inline std::expected<UniqueFd, std::error_code> connect_nonblocking(const Endpoint& to) noexcept {
    auto fd = detail::stream_socket(to.family());
    if (!fd) return fd;
    // An interrupted attempt goes on by itself, like one in progress.
    if (::connect(fd->get(), to.data(), to.size()) != 0 && errno != EINPROGRESS && errno != EINTR) return detail::last_error();
    return fd;
}

/// Connections that the system holds ready for accept, unless its own limit is lower.
inline constexpr int kDefaultBacklog = 4096;

/// A further listening socket on the address of `listener_fd`, between which the system divides new connections (Linux:
/// SO_REUSEPORT). Fails with operation_not_supported where that does not exist, and for a socket that does not allow it.
[[nodiscard]] inline std::expected<UniqueFd, std::error_code> sibling_listener(int listener_fd,
                                                                               int backlog = kDefaultBacklog) noexcept {
#if defined(__linux__)
    int shared = 0;
    socklen_t length = sizeof shared;
    if (::getsockopt(listener_fd, SOL_SOCKET, SO_REUSEPORT, &shared, &length) != 0) return detail::last_error();
    auto address = local_endpoint(listener_fd);
    if (!address) return std::unexpected(address.error());
    if (shared == 0 || !address->is_ip()) return detail::failed(std::errc::operation_not_supported);
    auto fd = detail::stream_socket(address->family());
    if (!fd) return fd;
    int only_v6 = 0;
    length = sizeof only_v6;
    if (address->family() == AF_INET6 && (::getsockopt(listener_fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, &length) != 0 ||
                                          !set_option(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, only_v6)))
        return detail::last_error();
    if (!set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1) || !set_option(fd->get(), SOL_SOCKET, SO_REUSEPORT, 1) ||
        ::bind(fd->get(), address->data(), address->size()) != 0 || ::listen(fd->get(), backlog) != 0)
        return detail::last_error();
    return fd;
#else
    (void)listener_fd;
    (void)backlog;
    return detail::failed(std::errc::operation_not_supported);
#endif
}

/// What: a listening stream socket: IPv4, IPv6 or unix; non-blocking, close-on-exec.
/// Complexity: the constructor makes a handful of system calls, and looks a host name up (which may block).
/// Threads: distinct objects are independent; const members from any thread.
/// Lifetime: owns its socket: closed when this is destroyed; the file of a unix socket is removed then.
/// Limits: one address. A name with several gets the first on which this machine can listen, IPv4 ones first. "::" is IPv6 only.
///
/// The port is exclusive: one that another process serves is refused (address_in_use), also when that process shares it by
/// SO_REUSEPORT. The socket is bound and listening without that option; only then is it set, for sibling_listener(), so there is no
/// moment in which two servers can both believe to own the port. A process of the same user that shares ports on purpose can
/// still join afterwards; the system offers no way to refuse it.
class TCPListener {
public:
    /// Listens on `host` (a numeric address, with or without brackets for IPv6; a name; "" or "*" for all IPv4 addresses;
    /// "unix:/path") and `port` (0: the system chooses, see local_port(); no meaning for unix). Throws std::invalid_argument for a port
    /// outside 0..65535 or a backlog below 1; whatever the system refuses is what get_listener() returns.
    explicit TCPListener(std::string_view host, int port, int backlog = kDefaultBacklog) {
        check(port, backlog);
        if (host.starts_with("unix:"))
            open(Endpoint::parse(host), backlog);
        else
            open_host(host, static_cast<std::uint16_t>(port), backlog);
    }

    /// Listens on `endpoint`. Throws std::invalid_argument for a backlog below 1.
    explicit TCPListener(const Endpoint& endpoint, int backlog = kDefaultBacklog) {
        check(0, backlog);
        open(endpoint, backlog);
    }

    TCPListener(TCPListener&& other) noexcept
        : fd_(std::move(other.fd_)), error_(other.error_), file_(std::exchange(other.file_, {})) {}
    TCPListener& operator=(TCPListener&& other) noexcept {
        if (this != &other) {
            remove_file();
            fd_ = std::move(other.fd_);
            error_ = other.error_;
            file_ = std::exchange(other.file_, {});
        }
        return *this;
    }
    TCPListener(const TCPListener&) = delete;
    TCPListener& operator=(const TCPListener&) = delete;
    ~TCPListener() { remove_file(); }

    /// The listening socket, which stays this object's, or why there is none.
    [[nodiscard]] std::expected<int, std::error_code> get_listener() const noexcept {
        if (error_) return std::unexpected(error_);
        if (!fd_) return detail::failed(std::errc::bad_file_descriptor);  // moved from
        return fd_.get();
    }

    /// The port listened on; 0 when there is none.
    [[nodiscard]] std::uint16_t local_port() const noexcept {
        const auto endpoint = local_endpoint();
        return endpoint ? endpoint->port() : std::uint16_t{0};
    }

    /// The address listened on; fails as get_listener() does.
    [[nodiscard]] std::expected<Endpoint, std::error_code> local_endpoint() const noexcept {
        const auto fd = get_listener();
        if (!fd) return std::unexpected(fd.error());
        return muses::local_endpoint(*fd);
    }

private:
    // The socket file that this object has made. Removed only while it is still that one.
    struct SocketFile {
        std::string path;
        dev_t device = 0;
        ino_t inode = 0;
    };

    static void check(int port, int backlog) {
        if (port < 0 || port > 65535) throw std::invalid_argument("muses::TCPListener: the port is not in 0..65535");
        if (backlog < 1) throw std::invalid_argument("muses::TCPListener: the backlog is below 1");
    }

    void open_host(std::string_view host, std::uint16_t port, int backlog) {
        if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
        if (const auto numeric = Endpoint::ip(host, port)) return open(numeric, backlog);
        const auto found = resolve(host, port, /*passive=*/true);
        if (!found) {
            error_ = found.error();
            return;
        }
        for (const Endpoint& endpoint : *found) {
            open(endpoint, backlog);
            // Only an address that this machine has not got leads to the next one: a port in use must not be side-stepped.
            if (error_ != std::errc::address_not_available && error_ != std::errc::address_family_not_supported) return;
        }
    }

    void open(const std::expected<Endpoint, std::error_code>& endpoint, int backlog) {
        auto fd = endpoint ? (endpoint->family() == AF_UNIX ? open_unix(*endpoint, backlog) : open_ip(*endpoint, backlog))
                           : std::unexpected(endpoint.error());
        error_ = fd ? std::error_code{} : fd.error();
        if (fd) fd_ = std::move(*fd);
    }

    static std::expected<UniqueFd, std::error_code> open_ip(const Endpoint& endpoint, int backlog) noexcept {
        auto fd = detail::stream_socket(endpoint.family());
        if (!fd) return fd;
        if (endpoint.family() == AF_INET6 && !set_option(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, 1)) return detail::last_error();
        // SO_REUSEADDR: connections of a former server that linger in TIME_WAIT are no reason to refuse. With a port that the system
        // chooses it would allow one that another socket has bound and not yet listened on, so there it comes after bind.
        const bool chosen = endpoint.port() != 0;
        if (chosen && !set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1)) return detail::last_error();
        if (::bind(fd->get(), endpoint.data(), endpoint.size()) != 0) return detail::last_error();
        if (!chosen && !set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1)) return detail::last_error();
        if (::listen(fd->get(), backlog) != 0) return detail::last_error();
#if defined(__linux__)
        if (!set_option(fd->get(), SOL_SOCKET, SO_REUSEPORT, 1)) return detail::last_error();
#endif
        return fd;
    }

    std::expected<UniqueFd, std::error_code> open_unix(const Endpoint& endpoint, int backlog) {
        auto fd = detail::stream_socket(AF_UNIX);
        if (!fd) return fd;
        const std::string path = endpoint.path();
        if (::bind(fd->get(), endpoint.data(), endpoint.size()) != 0) {
            if (errno != EADDRINUSE || path.empty()) return detail::last_error();
            if (!remove_stale(endpoint, path)) return detail::failed(std::errc::address_in_use);
            if (::bind(fd->get(), endpoint.data(), endpoint.size()) != 0) return detail::last_error();
        }
        if (struct stat made{}; !path.empty() && ::stat(path.c_str(), &made) == 0) file_ = {path, made.st_dev, made.st_ino};
        if (::listen(fd->get(), backlog) != 0) {
            const int error = errno;
            remove_file();
            errno = error;
            return detail::last_error();
        }
        return fd;
    }

    // Removes a socket file on which nobody listens: a server that died leaves one. A refused connection is the proof; a full
    // backlog, for one, is a sign of life. Two servers that start at the same moment on the same stale file may both find it so.
    static bool remove_stale(const Endpoint& endpoint, const std::string& path) noexcept {
        struct stat before{};
        if (::lstat(path.c_str(), &before) != 0) return errno == ENOENT;
        if (!S_ISSOCK(before.st_mode)) return false;
        const auto probe = detail::stream_socket(AF_UNIX);
        if (!probe || ::connect(probe->get(), endpoint.data(), endpoint.size()) == 0 || errno != ECONNREFUSED) return false;
        struct stat after{};
        if (::lstat(path.c_str(), &after) != 0 || after.st_dev != before.st_dev || after.st_ino != before.st_ino) return false;
        return ::unlink(path.c_str()) == 0;
    }

    void remove_file() noexcept {
        struct stat current{};
        if (!file_.path.empty() && ::lstat(file_.path.c_str(), &current) == 0 && current.st_dev == file_.device &&
            current.st_ino == file_.inode)
            ::unlink(file_.path.c_str());
        file_.path.clear();
    }

    UniqueFd fd_;
    std::error_code error_;
    SocketFile file_;
};

}  // namespace muses
