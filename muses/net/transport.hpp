// How the bytes of a connection reach the wire: the seam under the reactor.
//
// The plain transport is empty and its calls inline to one system call each. TLS, or a double that fails on purpose in a test,
// is another class of the same shape; each connection owns one object of it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#if defined(__linux__)
#include <sys/sendfile.h>
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace muses {

/// What one call to a transport did. `error` is an errno value, 0 for success. A read of 0 bytes without an error is the end of
/// the stream; a send_file of 0 bytes without an error means that the file ended early.
struct IoResult {
    std::size_t bytes = 0;
    int error = 0;

    [[nodiscard]] bool ok() const noexcept { return error == 0; }
    [[nodiscard]] bool would_block() const noexcept { return error == EAGAIN || error == EWOULDBLOCK; }
};

/// All calls are non-blocking. `write` and `send_file` may do less than asked; `more` says that further bytes follow at once, so
/// that a head and its body can share a packet. `kShortReadDrains` says that a read that does not fill the room has left nothing
/// behind, which saves the read that would say EAGAIN.
template <class T>
concept Transport =
    std::default_initializable<T> && std::same_as<decltype(T::kShortReadDrains), const bool> &&
    requires(T transport, int fd, std::span<char> room, std::span<const iovec> pieces, std::uint64_t offset, std::size_t length) {
        { transport.read(fd, room) } -> std::same_as<IoResult>;
        { transport.write(fd, pieces, true) } -> std::same_as<IoResult>;
        { transport.send_file(fd, fd, offset, length) } -> std::same_as<IoResult>;
        { transport.shutdown_write(fd) };
    };

/// What: bytes straight to and from a stream socket.
/// Complexity: one system call each; repeated when a signal interrupts it.
/// Threads: stateless.
/// Lifetime: owns nothing.
/// Limits: whatever the kernel takes in one call.
class PlainTransport {
public:
    static constexpr bool kShortReadDrains = true;

    [[nodiscard]] IoResult read(int fd, std::span<char> room) noexcept {
        return repeat([&] { return ::recv(fd, room.data(), room.size(), 0); });
    }

    [[nodiscard]] IoResult write(int fd, std::span<const iovec> pieces, bool more) noexcept {
        const int flags = kNoSignal | (more ? kMore : 0);
        if (pieces.size() == 1) return repeat([&] { return ::send(fd, pieces[0].iov_base, pieces[0].iov_len, flags); });
        msghdr message{};
        message.msg_iov = const_cast<iovec*>(pieces.data());  // sendmsg only reads it
        message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(pieces.size());
        return repeat([&] { return ::sendmsg(fd, &message, flags); });
    }

    [[nodiscard]] IoResult send_file(int fd, int file, std::uint64_t offset, std::size_t length) noexcept {
        if (offset > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) return {0, EOVERFLOW};
#if defined(__linux__)
        return repeat([&] {
            auto position = static_cast<off_t>(offset);
            return ::sendfile(fd, file, &position, length);
        });
#else
        // Portable: the BSDs' sendfile calls differ in signature and in how they report a partial success.
        std::array<char, std::size_t{64} * 1024> block;
        const IoResult got =
            repeat([&] { return ::pread(file, block.data(), std::min(length, block.size()), static_cast<off_t>(offset)); });
        if (!got.ok() || got.bytes == 0) return got;
        return repeat([&] { return ::send(fd, block.data(), got.bytes, kNoSignal); });
#endif
    }

    void shutdown_write(int fd) noexcept { ::shutdown(fd, SHUT_WR); }

private:
#if defined(MSG_NOSIGNAL)
    static constexpr int kNoSignal = MSG_NOSIGNAL;
#else
    static constexpr int kNoSignal = 0;  // there the accepted socket carries SO_NOSIGPIPE
#endif
#if defined(MSG_MORE)
    static constexpr int kMore = MSG_MORE;
#else
    static constexpr int kMore = 0;
#endif

    template <class Call>
    static IoResult repeat(Call call) noexcept {
        for (;;) {
            if (const auto n = call(); n >= 0) return {static_cast<std::size_t>(n), 0};
            if (errno != EINTR) return {0, errno};
        }
    }
};

static_assert(Transport<PlainTransport>);

}  // namespace muses
