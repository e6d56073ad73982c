// Fetches a page over HTTP and prints it with its head.   http_get http://HOST[:PORT]/PATH
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "muses/net/async_listener.hpp"
#include "muses/net/async_resolver.hpp"

using namespace std::chrono_literals;

struct Url {
    std::string authority;  // as written
    std::string host;       // without the brackets of an IPv6 address
    std::uint16_t port = 80;
    std::string path = "/";
};

bool parse(std::string_view text, Url& url) {
    if (!text.starts_with("http://")) return false;
    text.remove_prefix(7);
    text = text.substr(0, text.find('#'));
    const std::size_t end_of_authority = std::min(text.find_first_of("/?"), text.size());
    if (text.substr(end_of_authority).starts_with('/')) url.path.clear();
    url.path += text.substr(end_of_authority);
    url.authority = text.substr(0, end_of_authority);

    std::string_view rest = url.authority;
    if (rest.starts_with('[')) {
        const std::size_t bracket = rest.find(']');
        if (bracket == std::string_view::npos) return false;
        url.host = rest.substr(1, bracket - 1);
        rest.remove_prefix(bracket + 1);
    } else {
        const std::size_t colon = std::min(rest.find(':'), rest.size());
        url.host = rest.substr(0, colon);
        rest.remove_prefix(colon);
    }
    if (url.host.empty()) return false;
    if (rest.empty()) return true;
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), url.port);
    return rest.front() == ':' && error == std::errc() && end == rest.data() + rest.size();
}

int complain(const char* what, const std::error_code& error) {
    std::fprintf(stderr, "http_get: %s: %s\n", what, error.message().c_str());
    return 1;
}

muses::Task<muses::AsyncConnection> connect(muses::EventLoop& loop, const std::vector<muses::Endpoint>& addresses) {
    std::error_code last;
    for (const muses::Endpoint& address : addresses) {
        auto connection = co_await muses::async_connect(loop, address, 5s);
        if (connection) co_return std::move(*connection);
        last = connection.error();
    }
    throw std::system_error(last, "cannot connect");
}

muses::Task<int> get(muses::EventLoop& loop, Url url) {
    muses::AsyncResolver resolver;
    const auto addresses = co_await resolver.resolve(url.host, url.port);
    if (!addresses) co_return complain("cannot find the host", addresses.error());
    muses::AsyncConnection server = co_await connect(loop, *addresses);

    const std::string request = "GET " + url.path + " HTTP/1.1\r\nHost: " + url.authority + "\r\nConnection: close\r\n\r\n";
    const auto sent = co_await server.async_write(request, 10s);
    if (!sent) co_return complain("cannot send", sent.error());
    std::array<char, 16384> room;
    for (;;) {
        const auto got = co_await server.async_read(room, 10s);
        if (!got) co_return complain("cannot read", got.error());
        if (*got == 0) co_return 0;
        std::fwrite(room.data(), 1, *got, stdout);
    }
}

muses::Task<> run(muses::EventLoop& loop, Url url, int& status) {
    try {
        const auto in_time = co_await muses::with_timeout(get(loop, std::move(url)), 60s);
        status = in_time ? *in_time : complain("gave up", std::make_error_code(std::errc::timed_out));
    } catch (const std::system_error& error) {
        std::fprintf(stderr, "http_get: %s\n", error.what());
    }
    loop.stop();
}

int main(int argc, char** argv) {
    Url url;
    if (argc != 2 || !parse(argv[1], url)) return std::fputs("usage: http_get http://HOST[:PORT]/PATH\n", stderr), 2;
    muses::EventLoop loop;
    int status = 1;
    muses::spawn(loop, run(loop, std::move(url), status));
    loop.run();
    return status;
}
