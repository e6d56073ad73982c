// Black-box tests of muses_http_server: the real program, real sockets, real signals.
//
// The program is found by the environment variable MUSES_HTTP_SERVER_PATH, else by the compile definition of that name, else as
// MUSES_BUILD_DIR/muses_http_server (tests/CMakeLists.txt passes MUSES_BUILD_DIR and builds the program first).
#include "muses/net/unique_fd.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/eventually.hpp"
#include "support/temp_dir.hpp"

extern char** environ;

using muses::UniqueFd;
using muses::test::eventually;
using muses::test::TempDir;

namespace {

std::string program() {
    if (const char* const path = std::getenv("MUSES_HTTP_SERVER_PATH")) return path;
#if defined(MUSES_HTTP_SERVER_PATH)
    return MUSES_HTTP_SERVER_PATH;
#elif defined(MUSES_BUILD_DIR)
    return MUSES_BUILD_DIR "/muses_http_server";
#else
    return "./muses_http_server";
#endif
}

std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// A program that runs, and is ended with the test.
class Process {
public:
    Process(const std::string& path, std::vector<std::string> arguments, const std::vector<std::string>& variables = {},
            const std::string& directory = {}) {
        arguments.insert(arguments.begin(), path);
        std::vector<std::string> environment(variables);
        for (char** entry = environ; *entry != nullptr; ++entry) {
            if (std::string_view(*entry).starts_with("MUSES_")) continue;
            environment.emplace_back(*entry);
        }
        const auto pointers = [](std::vector<std::string>& texts) {
            std::vector<char*> result;
            for (std::string& text : texts) result.push_back(text.data());
            result.push_back(nullptr);
            return result;
        };
        posix_spawn_file_actions_t actions;
        REQUIRE(::posix_spawn_file_actions_init(&actions) == 0);
        if (!directory.empty()) ::posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
        ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        ::posix_spawn_file_actions_addopen(&actions, 1, (files_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::posix_spawn_file_actions_addopen(&actions, 2, (files_ / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        const int failed =
            ::posix_spawn(&pid_, path.c_str(), &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
        ::posix_spawn_file_actions_destroy(&actions);
        REQUIRE_MESSAGE(failed == 0, "cannot start " << path);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process() {
        if (!status_) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }

    void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }

    [[nodiscard]] bool ended() {
        if (status_) return true;
        int status = 0;
        if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        return true;
    }
    /// The exit code; minus the number of the signal that ended it.
    [[nodiscard]] int exit_code(std::chrono::seconds timeout = std::chrono::seconds(30)) {
        REQUIRE_MESSAGE(eventually([&] { return ended(); }, timeout), "the program does not end");
        return *status_;
    }
    [[nodiscard]] std::string out() const { return read_file(files_ / "out"); }
    [[nodiscard]] std::string err() const { return read_file(files_ / "err"); }

private:
    TempDir files_;
    pid_t pid_ = -1;
    std::optional<int> status_;
};

/// A server that has said where it is.
struct Server : Process {
    explicit Server(std::vector<std::string> arguments, const std::vector<std::string>& variables = {},
                    const std::string& directory = {})
        : Server(program(), std::move(arguments), variables, directory) {}
    Server(const std::string& path, std::vector<std::string> arguments, const std::vector<std::string>& variables,
           const std::string& directory)
        : Process(path, std::move(arguments), variables, directory) {
        const bool started = eventually([&] { return ended() || out().ends_with('\n'); }, std::chrono::seconds(30));
        REQUIRE_MESSAGE((started && !ended()), err());
        line = out();
        const std::size_t at = line.find("http://");
        REQUIRE(at != std::string::npos);
        url = line.substr(at, line.find_first_of(" \n", at) - at);
        port = std::stoi(url.substr(url.rfind(':') + 1));
    }

    std::string line;
    std::string url;
    int port = 0;
};

class Client {
public:
    explicit Client(int port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        if (receive_buffer != 0) ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
        const int on = 1;
        ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<std::uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    }

    [[nodiscard]] bool connected() const { return connected_; }

    void send(std::string_view bytes) const {
        while (!bytes.empty()) {
            const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            REQUIRE(sent > 0);
            bytes.remove_prefix(static_cast<std::size_t>(sent));
        }
    }

    /// Reads up to `most` bytes: nothing at the end of the stream, REQUIREs that the server does not reset or keep silent.
    [[nodiscard]] std::string receive(std::size_t most = 65536) const {
        pollfd wait{fd_.get(), POLLIN, 0};
        REQUIRE_MESSAGE(::poll(&wait, 1, 20'000) == 1, "the server keeps silent");
        std::string bytes(most, '\0');
        const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
        REQUIRE_MESSAGE(got >= 0, "the server has reset the connection");
        bytes.resize(static_cast<std::size_t>(got));
        return bytes;
    }

    [[nodiscard]] std::string receive_all() const {
        std::string all;
        for (std::string piece = receive(); !piece.empty(); piece = receive()) all += piece;
        return all;
    }

    /// One response: head and as much body as it announces.
    [[nodiscard]] std::string receive_response(bool head_only = false) {
        std::size_t end = 0;
        while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
            const std::string piece = receive();
            REQUIRE_MESSAGE(!piece.empty(), "the connection ended inside of a head");
            buffer_ += piece;
        }
        std::size_t size = end + 4;
        const std::size_t field = buffer_.find("\r\nContent-Length: ");
        if (!head_only && field < end) size += std::stoul(buffer_.substr(field + 18));
        while (buffer_.size() < size) {
            const std::string piece = receive();
            REQUIRE_MESSAGE(!piece.empty(), "the connection ended inside of a body");
            buffer_ += piece;
        }
        std::string response = buffer_.substr(0, size);
        buffer_.erase(0, size);
        return response;
    }

private:
    UniqueFd fd_;
    bool connected_ = false;
    std::string buffer_;
};

std::string get(std::string_view target, std::string_view fields = {}) {
    return std::string("GET ").append(target).append(" HTTP/1.1\r\nHost: localhost\r\n").append(fields).append("\r\n");
}

std::string fetch(int port, std::string_view target) {
    Client client(port);
    REQUIRE(client.connected());
    client.send(get(target));
    return client.receive_response();
}

std::string body_of(const std::string& response) { return response.substr(response.find("\r\n\r\n") + 4); }

std::string without_date(std::string response) {
    const std::size_t at = response.find("Date: ");
    return at == std::string::npos ? response : response.erase(at, 37);
}

}  // namespace

TEST_CASE("http_server: one line tells the URL and the folder is there") {
    const TempDir dir;
    dir.write("index.html", "<h1>Hello</h1>");
    dir.write("a b/c.txt", "c");
    Server server({"--port", "0", "--max-connections", "100", dir.path()});
    CHECK(std::ranges::count(server.line, '\n') == 1);
    CHECK(server.url == "http://127.0.0.1:" + std::to_string(server.port) + "/");
    CHECK(server.port != 0);
    CHECK(server.line.find(dir.path()) != std::string::npos);
    CHECK(body_of(fetch(server.port, "/")) == "<h1>Hello</h1>");
    CHECK(body_of(fetch(server.port, "/a%20b/c.txt")) == "c");
    CHECK(fetch(server.port, "/none").starts_with("HTTP/1.1 404 "));
    CHECK(fetch(server.port, "/a%20b").find("\r\nLocation: /a%20b/\r\n") != std::string::npos);
    server.signal(SIGTERM);
    CHECK(server.exit_code() == 0);
    CHECK(server.out() == server.line);
    CHECK(server.err() == "");
}

TEST_CASE("http_server: every mistake is one line that names it and exit code 2") {
    const TempDir dir;
    dir.write("file", "x");
    const std::string root = dir.path();
    struct Case {
        std::vector<std::string> arguments;
        std::vector<std::string> variables;
        std::string named;
    };
    for (const Case& c : std::vector<Case>{
             {{"--port", "abc", root}, {}, "--port"},
             {{"--port", "65536", root}, {}, "65536"},
             {{"--port=-1", root}, {}, "--port"},
             {{"--port", "1\n2", root}, {}, "--port"},
             {{dir / "no\nne"}, {}, "no?ne"},
             {{"--port=", root}, {}, "--port"},
             {{"--port", "80 ", root}, {}, "--port"},
             {{"--port", "99999999999999999999", root}, {}, "--port"},
             {{root, "--port"}, {}, "--port"},
             {{"--port", "1", "--port", "2", root}, {}, "--port"},
             {{"--reactors", "1.5", root}, {}, "--reactors"},
             {{"--reactors", "1025", root}, {}, "--reactors"},
             {{"--workers", "x", root}, {}, "--workers"},
             {{"--idle-timeout", "0", root}, {}, "--idle-timeout"},
             {{"--max-connections", "0", root}, {}, "--max-connections"},
             {{"--nonsense", root}, {}, "--nonsense"},
             {{root, "second"}, {}, "second"},
             {{root, "--root", "/"}, {}, "--root"},
             {{dir / "none"}, {}, dir / "none"},
             {{"--root", dir / "none"}, {}, "--root"},
             {{dir / "file"}, {}, dir / "file"},
             {{"--host", "not a host", "--port", "0", root}, {}, "--host"},
             {{"--host", "192.0.2.1", "--port", "0", root}, {}, "--host"},
             {{root}, {"MUSES_PORT=http"}, "MUSES_PORT"},
             {{root}, {"MUSES_REACTORS=-2"}, "MUSES_REACTORS"},
             {{root}, {"MUSES_WORKERS=many"}, "MUSES_WORKERS"},
             {{root}, {"MUSES_IDLE_TIMEOUT=1s"}, "MUSES_IDLE_TIMEOUT"},
             {{root}, {"MUSES_MAX_CONNECTIONS=0"}, "MUSES_MAX_CONNECTIONS"},
             {{"--port", "0"}, {"MUSES_ROOT=/does/not/exist"}, "MUSES_ROOT"},
         }) {
        CAPTURE(c.named);
        Process process(program(), c.arguments, c.variables);
        CHECK(process.exit_code() == 2);
        const std::string text = process.err();
        CAPTURE(text);
        CHECK(std::ranges::count(text, '\n') == 1);
        CHECK(text.starts_with("muses_http_server: "));
        CHECK(text.find(c.named) != std::string::npos);
        CHECK(process.out() == "");
    }
}

TEST_CASE("http_server: flags win over variables and empty variables are not there") {
    const TempDir dir;
    dir.write("a", "here");
    const TempDir other;
    Server server({"--root", dir.path(), "--port", "0", "--workers", "0", "--reactors", "1"},
                  {"MUSES_PORT=nonsense", "MUSES_ROOT=" + other.path(), "MUSES_IDLE_TIMEOUT=", "MUSES_WORKERS=x"});
    CHECK(body_of(fetch(server.port, "/a")) == "here");
    Server second({}, {"MUSES_ROOT=" + dir.path(), "MUSES_PORT=0", "MUSES_REACTORS=2", "MUSES_WORKERS=1", "MUSES_MAX_CONNECTIONS=1",
                       "MUSES_IDLE_TIMEOUT=5"});
    Client only(second.port);
    only.send(get("/a"));
    CHECK(body_of(only.receive_response()) == "here");
    Client refused(second.port);
    CHECK(refused.receive_all().starts_with("HTTP/1.1 503 "));
}

TEST_CASE("http_server: without a folder statics is served") {
    const TempDir dir;
    dir.write("statics/index.html", "statics here");
    Server server({"--port", "0"}, {}, dir.path());
    CHECK(body_of(fetch(server.port, "/")) == "statics here");
    // And when there is none in the working directory, the one beside the program.
    const TempDir elsewhere;
    std::filesystem::copy_file(program(), dir / "copy_of_server");
    Server beside(dir / "copy_of_server", {"--port", "0"}, {}, elsewhere.path());
    CHECK(body_of(fetch(beside.port, "/")) == "statics here");
    std::filesystem::remove_all(dir / "statics");
    Process nothing(dir / "copy_of_server", {"--port", "0"}, {}, elsewhere.path());
    CHECK(nothing.exit_code() == 2);
    CHECK(nothing.err().find("DIR") != std::string::npos);
}

TEST_CASE("http_server: help and version end with 0") {
    Process help(program(), {"--help"});
    CHECK(help.exit_code() == 0);
    for (const std::string flag : {"--root", "--host", "--port", "--reactors", "--workers", "--idle-timeout", "--max-connections",
                                   "--help", "--version", "MUSES_PORT", "8864"})
        CHECK_MESSAGE(help.out().find(flag) != std::string::npos, flag);
    Process version(program(), {"--version"});
    CHECK(version.exit_code() == 0);
    CHECK(version.out().starts_with("muses_http_server "));
    CHECK(std::ranges::count(version.out(), '\n') == 1);
}

TEST_CASE("http_server: a port that is served already is refused and stays served") {
    const TempDir dir;
    dir.write("a", "first");
    Server server({"--port", "0", dir.path()});
    Process second(program(), {"--port", std::to_string(server.port), dir.path()});
    CHECK(second.exit_code() == 2);
    const std::string text = second.err();
    CAPTURE(text);
    CHECK(std::ranges::count(text, '\n') == 1);
    CHECK(text.find("--port") != std::string::npos);
    CHECK(text.find(std::to_string(server.port)) != std::string::npos);
    for (int i = 0; i < 20; ++i) CHECK(body_of(fetch(server.port, "/a")) == "first");
}

TEST_CASE("http_server: pipelined requests are answered in order at once and byte by byte") {
    const TempDir dir;
    for (int i = 0; i < 10; ++i)
        dir.write("f" + std::to_string(i), std::string(static_cast<std::size_t>(i * 997 + 1), static_cast<char>('0' + i)));
    dir.write("large", std::string(200'000, 'L'));
    Server server({"--port", "0", "--reactors", "1", dir.path()});
    std::string requests;
    std::vector<std::string> expected;
    for (int i = 0; i < 50; ++i) {
        const std::string target = i % 7 == 3 ? "/none" : i % 11 == 5 ? "/large" : "/f" + std::to_string(i % 10);
        requests += get(target);
        expected.push_back(without_date(fetch(server.port, target)));
    }
    Client at_once(server.port);
    at_once.send(requests);
    for (const std::string& response : expected) REQUIRE(without_date(at_once.receive_response()) == response);
    Client bytewise(server.port);
    for (const char c : requests) bytewise.send(std::string_view(&c, 1));
    for (const std::string& response : expected) REQUIRE(without_date(bytewise.receive_response()) == response);
}

TEST_CASE("http_server: what breaks the protocol is answered and the connection ends") {
    const TempDir dir;
    dir.write("a", "first");
    Server server({"--port", "0", dir.path()});
    struct Case {
        std::string raw, status;
    };
    for (const Case& c : std::vector<Case>{
             {"GET / HTTP/1.1\n\n", "400"},
             {"GET /a HTTP/1.1\r\n\r\n", "400"},
             {"GET /a HTTP/3.0\r\nHost: a\r\n\r\n", "505"},
             {"GET /" + std::string(9000, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n", "414"},
             {"GET /a HTTP/1.1\r\nHost: a\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n", "431"},
             {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" + std::string(100'000, 'x'), "413"},
             {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nx", "501"},
             {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + get("/smuggled"),
              "400"},
             {get("/a", "Connection: close\r\n") + get("/a"), "200"},
             {"GET /a HTTP/1.0\r\n\r\n", "200"}}) {
        CAPTURE(c.raw.substr(0, 60));
        Client client(server.port);
        client.send(c.raw);
        const std::string all = client.receive_all();
        CHECK(all.starts_with("HTTP/1.1 " + c.status + " "));
        CHECK(all.find("\r\nConnection: close\r\n") != std::string::npos);
        CHECK(all.find("HTTP/1.1 ", 1) == std::string::npos);  // one answer
    }
    Client second(server.port);
    second.send(get("/a") + "nonsense\r\n\r\n");
    CHECK(body_of(second.receive_response()) == "first");
    CHECK(second.receive_response().starts_with("HTTP/1.1 400 "));
    CHECK(second.receive() == "");
}

TEST_CASE("http_server: bodies are read and skipped") {
    const TempDir dir;
    dir.write("a", "first");
    Server server({"--port", "0", dir.path()});
    Client client(server.port);
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\nGET / x\r\n\r\nyz" + get("/a") +
                "GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n" + get("/a"));
    CHECK(client.receive_response().starts_with("HTTP/1.1 405 "));
    for (int i = 0; i < 3; ++i) CHECK(body_of(client.receive_response()) == "first");
    client.send("PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    CHECK(client.receive_response(true) == "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("abc");
    CHECK(client.receive_response().starts_with("HTTP/1.1 405 "));
}

TEST_CASE("http_server: a tree of files arrives byte for byte also after it changed") {
    const TempDir dir;
    std::uint32_t state = 1;
    const auto noise = [&](std::size_t size) {
        std::string bytes(size, '\0');
        for (char& c : bytes) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24U);
        return bytes;
    };
    std::vector<std::pair<std::string, std::string>> tree;
    for (const std::size_t size : {0U, 1U, 100U, 65'535U, 65'536U, 65'537U, 300'000U, 3'000'000U}) {
        for (const std::string folder : {"", "one/", "one/two/"})
            tree.emplace_back(folder + "f" + std::to_string(size), noise(size));
    }
    for (const auto& [name, bytes] : tree) dir.write(name, bytes);
    Server server({"--port", "0", dir.path()});
    Client client(server.port);
    for (int round = 0; round < 3; ++round) {
        for (const auto& [name, bytes] : tree) {
            client.send(get("/" + name));
            REQUIRE(body_of(client.receive_response()) == bytes);
        }
        if (round == 1) {
            for (auto& [name, bytes] : tree) dir.replace(name, bytes = noise(bytes.size()));
        }
    }
}

TEST_CASE("http_server: SIGTERM lets what was begun end whole and then exits with 0") {
    const TempDir dir;
    const std::string large(12'000'000, 'x');
    dir.write("large", large);
    for (const int signal : {SIGTERM, SIGINT}) {
        Server server({"--port", "0", dir.path()});
        Client idle(server.port);
        idle.send(get("/large", "Range: bytes=0-0\r\n"));
        CHECK(body_of(idle.receive_response()) == "x");
        Client busy(server.port, 8192);
        busy.send(get("/large"));
        std::string response = busy.receive(1000);
        CHECK(!response.empty());
        Client begun(server.port);
        begun.send("GET /none HTTP/1.1\r\n");
        server.signal(signal);
        CHECK(idle.receive() == "");  // an idle connection is closed
        begun.send("Host: x\r\n\r\n");
        const std::string last = begun.receive_all();  // a request that had begun to arrive is answered, as the last one
        CHECK(last.starts_with("HTTP/1.1 404 "));
        CHECK(last.find("\r\nConnection: close\r\n") != std::string::npos);
        CHECK(eventually([&] { return !Client(server.port).connected(); }));
        CHECK(!server.ended());
        response += busy.receive_all();
        CHECK(body_of(response).size() == large.size());
        CHECK(server.exit_code() == 0);
        CHECK(server.err() == "");
    }
}

TEST_CASE("http_server: SIGHUP does not end it") {
    const TempDir dir;
    dir.write("file", "x");
    Server server({"--port", "0", dir.path()});
    server.signal(SIGHUP);
    CHECK(body_of(fetch(server.port, "/file")) == "x");
    server.signal(SIGTERM);
    CHECK(server.exit_code() == 0);
}

TEST_CASE("http_server: a second signal ends it at once") {
    const TempDir dir;
    dir.write("large", std::string(12'000'000, 'x'));
    Server server({"--port", "0", dir.path()});
    Client busy(server.port, 8192);
    busy.send(get("/large"));
    CHECK(!busy.receive(100).empty());
    server.signal(SIGTERM);
    CHECK(eventually([&] { return !Client(server.port).connected(); }));
    CHECK(!server.ended());
    server.signal(SIGINT);
    CHECK(server.exit_code(std::chrono::seconds(5)) == 128 + SIGINT);
}

TEST_CASE("http_server: with few descriptors it takes fewer connections and says so and still opens files") {
    const TempDir dir;
    dir.write("file", "there");
    Server server(
        "/bin/sh",
        {"-c", "ulimit -n 64 && exec \"$0\" \"$@\"", program(), dir.path(), "--port", "0", "--reactors", "1", "--workers", "1"}, {},
        {});
    CHECK(server.err().find("64 descriptors") != std::string::npos);
    Client first(server.port);
    first.send(get("/none"));
    CHECK(first.receive_response().find(" 404 ") != std::string::npos);
    std::vector<std::unique_ptr<Client>> idle;
    for (int i = 0; i < 100; ++i) idle.push_back(std::make_unique<Client>(server.port));
    // The last ones have been told that there is no room: now all that the server would take is taken.
    CHECK(idle.back()->receive_all().starts_with("HTTP/1.1 503 "));
    first.send(get("/file"));
    CHECK(body_of(first.receive_response()) == "there");
    server.signal(SIGTERM);
    CHECK(server.exit_code() == 0);
}

TEST_CASE("http_server: a client that goes away harms nobody") {
    const TempDir dir;
    dir.write("large", std::string(5'000'000, 'x'));
    dir.write("a", "first");
    Server server({"--port", "0", "--reactors", "1", dir.path()});
    for (int i = 0; i < 20; ++i) {
        Client rude(server.port, 4096);
        rude.send(get("/large"));
        (void)rude.receive(10);
    }
    CHECK(body_of(fetch(server.port, "/a")) == "first");
    CHECK(!server.ended());
}

TEST_CASE("http_server: curl gets what it asks for") {
    if (std::system("curl --version >/dev/null 2>&1") != 0) {
        MESSAGE("curl is not installed: skipped");
        return;
    }
    const TempDir dir;
    const TempDir out;
    dir.write("a.txt", "hello");
    dir.write("sub/index.html", "index");
    dir.write("\xc3\xa4 \xe2\x82\xac.txt", "named");
    Server server({"--port", "0", dir.path()});
    const auto curl = [&](const std::string& arguments, const std::string& path) {
        const std::string command = "curl -sS " + arguments + " '" + server.url + path + "' > '" + (out / "body") + "' 2>&1";
        return std::system(command.c_str()) == 0 ? read_file(out / "body") : "curl failed: " + read_file(out / "body");
    };
    CHECK(curl("", "a.txt") == "hello");
    CHECK(curl("--http1.0", "a.txt") == "hello");
    CHECK(curl("-L", "sub") == "index");
    CHECK(curl("", "%C3%A4%20%E2%82%AC.txt") == "named");
    CHECK(curl("-r 1-2", "a.txt") == "el");
    CHECK(curl("-r 9- -o /dev/null -w '%{http_code}'", "a.txt") == "416");
    CHECK(curl("-d x=y -o /dev/null -w '%{http_code}'", "a.txt") == "405");
    CHECK(curl("-o /dev/null -w '%{http_code}'", "%zz") == "400");
    CHECK(curl("--path-as-is -o /dev/null -w '%{http_code}'", "../../etc/passwd") == "404");
    CHECK(curl("-I -o /dev/null -w '%{http_code} %header{content-length}'", "a.txt") == "200 5");
    // A download that broke off goes on where it was.
    out.write("rest", "he");
    (void)curl("-C - -o '" + (out / "rest") + "'", "a.txt");
    CHECK(read_file(out / "rest") == "hello");
    // One file twice: the second time with what the first answer said.
    (void)curl("--etag-save '" + (out / "tag") + "'", "a.txt");
    CHECK(curl("--etag-compare '" + (out / "tag") + "' -o /dev/null -w '%{http_code}'", "a.txt") == "304");
    (void)curl("-R -o '" + (out / "a.txt") + "'", "a.txt");
    CHECK(curl("-z '" + (out / "a.txt") + "' -o /dev/null -w '%{http_code}'", "a.txt") == "304");
}
