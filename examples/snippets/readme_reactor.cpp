// A whole HTTP server, and one request to it.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "muses/net/reactor.hpp"
#include "muses/net/socket.hpp"
#include "muses/net_components/http_handler.hpp"

namespace {
// What a client would do: sends `request`, returns all that comes back until the server closes.
std::string ask(const muses::TCPListener& listener, const std::string& request) {
    const auto server = listener.local_endpoint();
    const muses::UniqueFd fd(::socket(server->family(), SOCK_STREAM, 0));
    if (::connect(fd.get(), server->data(), server->size()) != 0) return {};
    if (::send(fd.get(), request.data(), request.size(), 0) < 0) return {};
    std::string answer;
    std::array<char, 4096> bytes;
    for (ssize_t got; (got = ::recv(fd.get(), bytes.data(), bytes.size(), 0)) > 0;)
        answer.append(bytes.data(), static_cast<std::size_t>(got));
    return answer;
}
}  // namespace

int main() {
    const int port = 0;  // the system chooses one

    // [main]
    muses::TCPListener listener("127.0.0.1", port);
    int lfd = *listener.get_listener();
    muses::ReactorPool pool(
        lfd,
        [](const std::string& req) -> muses::HandlerResult {
            auto hr = muses::HttpContext::handle_request(req);
            return {std::move(hr.response), hr.keep_alive};
        },
        /*shards=*/4, /*workers_per_shard=*/2);
    pool.start();
    // [/main]

    const std::string answer = ask(listener, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    std::printf("%s\n", answer.substr(0, answer.find('\r')).c_str());
    pool.stop();
    return answer.starts_with("HTTP/1.1 ") ? 0 : 1;
}
