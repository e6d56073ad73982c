// The floor under an HTTP server on this machine: the least that one thread can do to answer a request.
//
//   bench_http_floor RESPONSE_FILE [PORT]
//
// One edge-triggered epoll loop that looks for the blank line at the end of each request head and answers it with the bytes of
// RESPONSE_FILE, head and body in one write. It parses nothing, knows no limits, no timeouts and no errors worth an answer:
// it exists to be measured, by bench/http/run, beside servers that do all that.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct Connection {
    bool open = false;
    unsigned newlines = 0;    // how many bytes of "\r\n\r\n" the input so far ends with
    std::size_t owed = 0;     // requests whose answer is not wholly written
    std::size_t written = 0;  // bytes of the answer that is being written
};

class Floor {
public:
    Floor(int listener, std::string response)
        : listener_(listener), epoll_(::epoll_create1(EPOLL_CLOEXEC)), response_(std::move(response)) {
        watch(listener_, EPOLLIN | EPOLLET);
    }

    [[noreturn]] void run() {
        std::array<epoll_event, 256> events{};
        for (;;) {
            const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
            for (int i = 0; i < count; ++i) {
                const int fd = events[static_cast<std::size_t>(i)].data.fd;
                if (fd == listener_)
                    accept_all();
                else
                    serve(fd);
            }
        }
    }

private:
    static constexpr std::string_view kEnd = "\r\n\r\n";

    void watch(int fd, std::uint32_t events) const {
        epoll_event event{};
        event.events = events;
        event.data.fd = fd;
        ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    }

    void accept_all() {
        for (;;) {
            const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) return;
            const int on = 1;
            ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            if (static_cast<std::size_t>(fd) >= connections_.size()) connections_.resize(static_cast<std::size_t>(fd) + 64);
            connections_[static_cast<std::size_t>(fd)] = Connection{.open = true};
            watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
        }
    }

    void serve(int fd) {
        Connection& c = connections_[static_cast<std::size_t>(fd)];
        if (!c.open) return;
        while (answer(fd, c)) {
            const ssize_t got = ::read(fd, input_.data(), input_.size());
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
            if (got <= 0) {
                c.open = false;
                ::close(fd);
                return;
            }
            count_heads(c, static_cast<std::size_t>(got));
            // A read that did not fill the buffer has drained the socket: what comes later is a new edge.
            if (static_cast<std::size_t>(got) < input_.size()) {
                (void)answer(fd, c);
                return;
            }
        }
    }

    void count_heads(Connection& c, std::size_t size) const {
        const std::string_view bytes(input_.data(), size);
        if (c.newlines == 0 && bytes.ends_with(kEnd) && bytes.find(kEnd) == size - kEnd.size()) {  // one whole head: nearly always
            ++c.owed;
            return;
        }
        for (const char byte : bytes) {
            if (byte == kEnd[c.newlines])
                ++c.newlines;
            else
                c.newlines = byte == kEnd[0] ? 1 : 0;
            if (c.newlines == kEnd.size()) {
                ++c.owed;
                c.newlines = 0;
            }
        }
    }

    /// Writes what is owed. False when the socket takes no more for now, or is broken.
    bool answer(int fd, Connection& c) const {
        while (c.owed > 0) {
            const ssize_t put = ::send(fd, response_.data() + c.written, response_.size() - c.written, MSG_NOSIGNAL);
            if (put < 0) {
                if (errno == EINTR) continue;
                if (errno != EAGAIN && errno != EWOULDBLOCK) {
                    c.open = false;
                    ::close(fd);
                }
                return false;
            }
            c.written += static_cast<std::size_t>(put);
            if (c.written == response_.size()) {
                c.written = 0;
                --c.owed;
            }
        }
        return true;
    }

    int listener_;
    int epoll_;
    std::string response_;
    std::vector<Connection> connections_;  // by descriptor
    std::array<char, 16384> input_{};
};

int fail(const char* what) {
    std::fprintf(stderr, "bench_http_floor: %s: %s\n", what, std::strerror(errno));
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    std::uint16_t port = 0;
    if (argc == 3) {
        const char* const end = argv[2] + std::strlen(argv[2]);
        if (const auto read = std::from_chars(argv[2], end, port); read.ec != std::errc() || read.ptr != end) argc = 0;
    }
    if (argc != 2 && argc != 3) {
        std::fprintf(stderr, "usage: bench_http_floor RESPONSE_FILE [PORT]\n");
        return 2;
    }
    std::ifstream file(argv[1], std::ios::binary);
    std::string response((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file || response.empty()) return fail(argv[1]);

    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return fail("bind");
    if (::listen(listener, 4096) != 0) return fail("listen");
    socklen_t length = sizeof address;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    std::signal(SIGTERM, [](int) { ::_exit(0); });
    std::printf("bench_http_floor: http://127.0.0.1:%d/\n", static_cast<int>(ntohs(address.sin_port)));
    std::fflush(stdout);
    Floor(listener, std::move(response)).run();
}
