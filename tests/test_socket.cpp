#include "muses/net/socket.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/support/eventually.hpp"
#include "tests/support/sockets.hpp"

using muses::Endpoint;
using muses::TCPListener;
using muses::UniqueFd;
using muses::test::connect_to;

namespace {

// A folder of its own, gone at the end.
struct Scratch {
    std::string path = "/tmp/muses_socket_XXXXXX";
    Scratch() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        ::unlink((path + "/s").c_str());
        ::rmdir(path.c_str());
    }
    std::string socket() const { return path + "/s"; }
};

bool exists(const std::string& path) {
    struct stat unused{};
    return ::lstat(path.c_str(), &unused) == 0;
}

bool is_nonblocking(int fd) { return (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }
bool is_close_on_exec(int fd) { return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

// Another process that listens on a port of 127.0.0.1 for as long as this object lives.
struct OtherServer {
    pid_t pid = -1;
    int port = 0;

    explicit OtherServer(bool shares_port) {
        muses::test::FdPair pipe = muses::test::pipe_pair();
        pid = ::fork();
        if (pid == 0) {
            // Only system calls from here on, and no way back into the test.
            const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
            const int one = 1;
            if (shares_port) ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
            ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
            sockaddr_in address{};
            address.sin_family = AF_INET;
            address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            socklen_t length = sizeof address;
            std::uint16_t bound = 0;
            if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 && ::listen(fd, 16) == 0 &&
                ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0)
                bound = ntohs(address.sin_port);
            if (::write(pipe.b.get(), &bound, sizeof bound) != sizeof bound) ::_exit(1);
            for (;;) ::pause();
        }
        REQUIRE(pid > 0);
        std::uint16_t bound = 0;
        REQUIRE(muses::test::eventually([&] { return ::read(pipe.a.get(), &bound, sizeof bound) == sizeof bound; }));
        REQUIRE(bound != 0);
        port = bound;
    }
    OtherServer(const OtherServer&) = delete;
    OtherServer& operator=(const OtherServer&) = delete;
    ~OtherServer() {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }
};

}  // namespace

TEST_CASE("socket: endpoints are read and written in one form") {
    for (const char* text : {"127.0.0.1:80", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:80", "[::]:65535", "[2001:db8::ff]:443",
                             "[::ffff:1.2.3.4]:1", "unix:/run/m.sock", "unix:relative"}) {
        CAPTURE(text);
        const auto endpoint = Endpoint::parse(text);
        REQUIRE(endpoint.has_value());
        CHECK(static_cast<bool>(*endpoint));
        CHECK(endpoint->to_string() == text);
    }
    CHECK(Endpoint::parse("127.0.0.1:8864")->port() == 8864);
    CHECK(Endpoint::parse("[::1]:8864")->port() == 8864);
    CHECK(Endpoint::parse("[::1]:8864")->family() == AF_INET6);
    CHECK(Endpoint::parse("unix:/a")->family() == AF_UNIX);
    CHECK(Endpoint::parse("unix:/a")->port() == 0);
    CHECK(Endpoint::parse("unix:/a")->path() == "/a");
    CHECK(Endpoint::parse("[0:0:0:0:0:0:0:1]:1")->to_string() == "[::1]:1");
    CHECK(*Endpoint::parse("127.0.0.1:80") == *Endpoint::parse("127.0.0.1:80"));
    CHECK(*Endpoint::parse("127.0.0.1:80") != *Endpoint::parse("127.0.0.1:81"));
    CHECK(*Endpoint::parse("127.0.0.1:80") != *Endpoint::parse("[::1]:80"));
}

TEST_CASE("socket: what is no endpoint is refused") {
    for (const std::string_view text : {std::string_view(""),
                                        std::string_view(":"),
                                        std::string_view("127.0.0.1"),
                                        std::string_view("127.0.0.1:"),
                                        std::string_view("127.0.0.1:65536"),
                                        std::string_view("127.0.0.1:-1"),
                                        std::string_view("127.0.0.1:+1"),
                                        std::string_view("127.0.0.1: 1"),
                                        std::string_view("127.0.0.1:1 "),
                                        std::string_view("127.0.0.1:1x"),
                                        std::string_view("127.1:80"),
                                        std::string_view("256.0.0.1:80"),
                                        std::string_view("::1:80"),
                                        std::string_view("[::1]"),
                                        std::string_view("[::1]80"),
                                        std::string_view("[127.0.0.1]:80"),
                                        std::string_view("[::1:80"),
                                        std::string_view("[]:80"),
                                        std::string_view("localhost:80"),
                                        std::string_view("unix:"),
                                        std::string_view("[::1%nosuchzone]:80"),
                                        std::string_view("127.0.0.1%lo:80"),
                                        std::string_view("127.0.0.1\0:80", 13),
                                        std::string_view("unix:/a\0b", 9),
                                        std::string_view("[1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa]:80")}) {
        CAPTURE(text);
        const auto endpoint = Endpoint::parse(text);
        REQUIRE_FALSE(endpoint.has_value());
        CHECK(endpoint.error() == std::errc::invalid_argument);
    }
    CHECK(Endpoint::parse("unix:" + std::string(200, 'a')).error() == std::errc::filename_too_long);
}

TEST_CASE("socket: an endpoint with a zone keeps it") {
    const unsigned loopback = ::if_nametoindex("lo");
    if (loopback == 0) return;  // named otherwise here
    CHECK(Endpoint::parse("[fe80::1%lo]:80")->to_string() == "[fe80::1%lo]:80");
}

TEST_CASE("socket: the default endpoint is none") {
    const Endpoint none;
    CHECK_FALSE(static_cast<bool>(none));
    CHECK(none.family() == AF_UNSPEC);
    CHECK(none.port() == 0);
    CHECK(none.to_string().empty());
    CHECK(none == Endpoint());
    CHECK_FALSE(muses::connect_nonblocking(none).has_value());
    CHECK_FALSE(TCPListener(none).get_listener().has_value());
}

TEST_CASE("socket: a listener on port 0 serves the port that it names") {
    for (const char* host : {"127.0.0.1", "::1", "[::1]", "localhost"}) {
        CAPTURE(host);
        const TCPListener listener(host, 0);
        const auto fd = listener.get_listener();
        REQUIRE_MESSAGE(fd.has_value(), fd.error().message());
        CHECK(listener.get_listener() == fd);
        CHECK(is_nonblocking(*fd));
        CHECK(is_close_on_exec(*fd));
        CHECK(listener.local_port() != 0);
        CHECK(listener.local_endpoint()->port() == listener.local_port());
        CHECK(muses::accept_nonblocking(*fd).error() == std::errc::resource_unavailable_try_again);
        const UniqueFd client = connect_to(*listener.local_endpoint());
        std::expected<UniqueFd, std::error_code> server;
        REQUIRE(muses::test::eventually([&] { return (server = muses::accept_nonblocking(*fd)).has_value(); }));
        CHECK(is_nonblocking(server->get()));
        CHECK(is_close_on_exec(server->get()));
        CHECK(muses::set_nodelay(server->get()).has_value());
        CHECK(muses::peer_endpoint(server->get()) == muses::local_endpoint(client.get()));
        CHECK(muses::peer_endpoint(client.get()) == listener.local_endpoint());
    }
}

TEST_CASE("socket: an empty host and the star mean all addresses") {
    for (const char* host : {"", "*", "0.0.0.0"}) {
        const TCPListener listener(host, 0);
        REQUIRE(listener.get_listener().has_value());
        CHECK(listener.local_endpoint()->to_string() == "0.0.0.0:" + std::to_string(listener.local_port()));
    }
}

TEST_CASE("socket: all IPv4 and all IPv6 addresses can be listened on side by side") {
    const TCPListener v4("0.0.0.0", 0);
    const TCPListener v6("::", v4.local_port());
    CHECK(v4.get_listener().has_value());
    CHECK_MESSAGE(v6.get_listener().has_value(), v6.get_listener().error().message());
}

TEST_CASE("socket: a port out of range is misuse") {
    for (const int port : {-1, 65536, 70000}) CHECK_THROWS_AS(TCPListener("127.0.0.1", port), std::invalid_argument);
    CHECK_THROWS_AS(TCPListener("127.0.0.1", 0, 0), std::invalid_argument);
    CHECK_THROWS_AS(TCPListener("no such host", -1), std::invalid_argument);  // before anything is looked up
}

TEST_CASE("socket: what the system refuses is an error code") {
    const auto unassigned = TCPListener("192.0.2.1", 0).get_listener();  // an address for documentation
    REQUIRE_FALSE(unassigned.has_value());
    CHECK(unassigned.error() == std::errc::address_not_available);
    const auto unknown = TCPListener("no-such-host.invalid", 0).get_listener();
    REQUIRE_FALSE(unknown.has_value());
    CHECK(&unknown.error().category() == &muses::resolve_category());
    CHECK_FALSE(unknown.error().message().empty());
    CHECK(std::string_view(muses::resolve_category().name()) == "resolve");
    const TCPListener failed("192.0.2.1", 0);
    CHECK(failed.local_port() == 0);
    CHECK_FALSE(failed.local_endpoint().has_value());
    CHECK_FALSE(TCPListener(std::string_view("127.0.0.1\0", 10), 0).get_listener().has_value());
}

TEST_CASE("socket: names are resolved with IPv4 first") {
    const auto found = muses::resolve("localhost", 80);
    REQUIRE(found.has_value());
    REQUIRE_FALSE(found->empty());
    CHECK(found->front().to_string() == "127.0.0.1:80");
    CHECK(muses::resolve("::1", 81)->front().to_string() == "[::1]:81");
    CHECK(muses::resolve("*", 82, true)->front().to_string() == "0.0.0.0:82");
    CHECK_FALSE(muses::resolve("*", 82).has_value());
}

TEST_CASE("socket: a port that another process serves is refused also when that one shares it") {
    for (const bool shares : {false, true}) {
        CAPTURE(shares);
        const OtherServer other(shares);
        for (const char* host : {"127.0.0.1", "0.0.0.0", "localhost"}) {
            CAPTURE(host);
            const auto fd = TCPListener(host, other.port).get_listener();
            REQUIRE_FALSE(fd.has_value());
            CHECK(fd.error() == std::errc::address_in_use);
        }
    }
}

TEST_CASE("socket: a second listener of ours on a port is refused while siblings are there") {
    const TCPListener first("127.0.0.1", 0);
    REQUIRE(first.get_listener().has_value());
    CHECK(TCPListener("127.0.0.1", first.local_port()).get_listener().error() == std::errc::address_in_use);
#if defined(__linux__)
    const auto sibling = muses::sibling_listener(*first.get_listener());
    REQUIRE(sibling.has_value());
    CHECK(TCPListener("127.0.0.1", first.local_port()).get_listener().error() == std::errc::address_in_use);
#endif
}

TEST_CASE("socket: a port is free again when its server has closed although connections linger") {
    int port = 0;
    {
        const TCPListener listener("127.0.0.1", 0);
        port = listener.local_port();
        const UniqueFd client = connect_to(*listener.local_endpoint());
        std::expected<UniqueFd, std::error_code> server;
        REQUIRE(
            muses::test::eventually([&] { return (server = muses::accept_nonblocking(*listener.get_listener())).has_value(); }));
        server->reset();  // closes first: its side is the one that lingers in TIME_WAIT
    }
    const TCPListener again("127.0.0.1", port);
    CHECK_MESSAGE(again.get_listener().has_value(), again.get_listener().error().message());
}

#if defined(__linux__)
TEST_CASE("socket: siblings share the port and each gets connections") {
    for (const char* host : {"127.0.0.1", "::1"}) {
        CAPTURE(host);
        const TCPListener listener(host, 0);
        std::vector<int> fds{*listener.get_listener()};
        std::vector<UniqueFd> siblings;
        for (int i = 0; i < 3; ++i) {
            auto sibling = muses::sibling_listener(fds.front());
            REQUIRE_MESSAGE(sibling.has_value(), sibling.error().message());
            CHECK(is_nonblocking(sibling->get()));
            CHECK(is_close_on_exec(sibling->get()));
            CHECK(muses::local_endpoint(sibling->get()) == listener.local_endpoint());
            fds.push_back(sibling->get());
            siblings.push_back(std::move(*sibling));
        }
        // A sibling of a sibling is one more.
        CHECK(muses::sibling_listener(fds.back()).has_value());
        std::vector<int> accepted(fds.size());
        std::vector<UniqueFd> clients;
        int sum = 0;
        constexpr int kClients = 200;
        for (int i = 0; i < kClients; ++i) clients.push_back(connect_to(*listener.local_endpoint()));
        // What the closed sibling of a sibling would have got cannot be counted: it was closed before the first connection.
        CHECK(muses::test::eventually([&] {
            for (std::size_t s = 0; s < fds.size(); ++s)
                while (muses::accept_nonblocking(fds[s]).has_value()) ++accepted[s], ++sum;
            return sum == kClients;
        }));
        for (const int count : accepted) CHECK(count > 0);  // by chance 0 once in 10^24
    }
}
#endif

TEST_CASE("socket: a listener that does not share has no siblings") {
    const UniqueFd plain(::socket(AF_INET, SOCK_STREAM, 0));
    CHECK(muses::sibling_listener(plain.get()).error() == std::errc::operation_not_supported);
    const Scratch scratch;
    const TCPListener local("unix:" + scratch.socket(), 0);
    REQUIRE(local.get_listener().has_value());
    CHECK_FALSE(muses::sibling_listener(*local.get_listener()).has_value());
    CHECK_FALSE(muses::sibling_listener(-1).has_value());
}

TEST_CASE("socket: a unix socket is served and its file removed at the end") {
    const Scratch scratch;
    {
        const TCPListener listener("unix:" + scratch.socket(), 0);
        const auto fd = listener.get_listener();
        REQUIRE_MESSAGE(fd.has_value(), fd.error().message());
        CHECK(is_nonblocking(*fd));
        CHECK(listener.local_port() == 0);
        CHECK(listener.local_endpoint()->to_string() == "unix:" + scratch.socket());
        const UniqueFd client = connect_to(*listener.local_endpoint());
        const auto server = muses::accept_nonblocking(*fd);
        REQUIRE(server.has_value());
        CHECK(muses::peer_endpoint(server->get())->to_string() == "unix:");
        CHECK_FALSE(muses::set_nodelay(server->get()).has_value());
        CHECK(exists(scratch.socket()));
    }
    CHECK_FALSE(exists(scratch.socket()));
}

TEST_CASE("socket: a unix socket that is served is refused and left alone") {
    const Scratch scratch;
    const auto endpoint = Endpoint::unix_socket(scratch.socket());
    const TCPListener first(*endpoint, 1);
    REQUIRE(first.get_listener().has_value());
    // Its backlog may be full: a sign of life as well.
    std::vector<UniqueFd> waiting;
    for (int i = 0; i < 5; ++i)
        if (auto fd = muses::connect_nonblocking(*endpoint)) waiting.push_back(std::move(*fd));
    CHECK(TCPListener(*endpoint).get_listener().error() == std::errc::address_in_use);
    CHECK(exists(scratch.socket()));
    while (muses::accept_nonblocking(*first.get_listener()).has_value()) {}
    CHECK(muses::connect_nonblocking(*endpoint).has_value());
}

TEST_CASE("socket: a unix socket file on which nobody listens is replaced and any other file kept") {
    const Scratch scratch;
    const auto endpoint = Endpoint::unix_socket(scratch.socket());
    {
        const UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
        REQUIRE(::bind(dead.get(), endpoint->data(), endpoint->size()) == 0);
    }
    REQUIRE(exists(scratch.socket()));
    {
        const TCPListener listener(*endpoint);
        CHECK_MESSAGE(listener.get_listener().has_value(), listener.get_listener().error().message());
        CHECK(muses::connect_nonblocking(*endpoint).has_value());
    }
    const UniqueFd file(::open(scratch.socket().c_str(), O_CREAT | O_WRONLY, 0600));
    REQUIRE(file);
    CHECK(TCPListener(*endpoint).get_listener().error() == std::errc::address_in_use);
    CHECK(exists(scratch.socket()));
}

TEST_CASE("socket: the file of a unix socket that somebody has replaced is not removed") {
    const Scratch scratch;
    const auto endpoint = Endpoint::unix_socket(scratch.socket());
    {
        const TCPListener listener(*endpoint);
        REQUIRE(listener.get_listener().has_value());
        REQUIRE(::unlink(scratch.socket().c_str()) == 0);
        const UniqueFd file(::open(scratch.socket().c_str(), O_CREAT | O_WRONLY, 0600));
        REQUIRE(file);
    }
    CHECK(exists(scratch.socket()));
}

TEST_CASE("socket: a moved listener goes on and leaves nothing behind") {
    const Scratch scratch;
    TCPListener first("unix:" + scratch.socket(), 0);
    const int fd = *first.get_listener();
    TCPListener second(std::move(first));
    CHECK(second.get_listener() == fd);
    CHECK_FALSE(first.get_listener().has_value());  // NOLINT: moved from on purpose
    CHECK(first.local_port() == 0);
    TCPListener third("127.0.0.1", 0);
    const int port = third.local_port();
    third = std::move(second);
    CHECK(third.get_listener() == fd);
    CHECK(TCPListener("127.0.0.1", port).get_listener().has_value());
    CHECK(exists(scratch.socket()));
    third = TCPListener("127.0.0.1", 0);
    CHECK_FALSE(exists(scratch.socket()));
}

#if defined(__linux__)
TEST_CASE("socket: abstract unix names need no file") {
    const std::string name = "unix:@muses_test_" + std::to_string(::getpid());
    const auto endpoint = Endpoint::parse(name);
    REQUIRE(endpoint.has_value());
    CHECK(endpoint->to_string() == name);
    CHECK(endpoint->path().empty());
    const TCPListener listener(*endpoint);
    REQUIRE(listener.get_listener().has_value());
    CHECK(listener.local_endpoint()->to_string() == name);
    CHECK(muses::connect_nonblocking(*endpoint).has_value());
    CHECK(TCPListener(*endpoint).get_listener().error() == std::errc::address_in_use);
}
#endif

TEST_CASE("socket: a refused connection is told when it becomes writable") {
    Endpoint nobody;
    {
        const TCPListener listener("127.0.0.1", 0);
        nobody = *listener.local_endpoint();
    }
    const auto fd = muses::connect_nonblocking(nobody);
    if (!fd) {  // some systems know at once
        CHECK(fd.error() == std::errc::connection_refused);
        return;
    }
    pollfd waiting{fd->get(), POLLOUT, 0};
    REQUIRE(::poll(&waiting, 1, 10'000) == 1);
    CHECK(muses::take_socket_error(fd->get()) == std::errc::connection_refused);
    CHECK_FALSE(muses::take_socket_error(fd->get()));  // taken
}

TEST_CASE("socket: calls on what is no socket fail with a code") {
    CHECK_FALSE(muses::local_endpoint(-1).has_value());
    CHECK_FALSE(muses::peer_endpoint(-1).has_value());
    CHECK_FALSE(muses::accept_nonblocking(-1).has_value());
    CHECK_FALSE(muses::set_nodelay(-1).has_value());
    CHECK_FALSE(muses::set_nonblocking(-1).has_value());
    CHECK(muses::take_socket_error(-1) == std::errc::bad_file_descriptor);
}
