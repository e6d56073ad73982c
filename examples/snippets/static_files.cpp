// A folder behind a ReactorPool; then one request to ourselves, and the end.
#include <cassert>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "muses/net/reactor.hpp"
#include "muses/net/socket.hpp"
#include "muses/net_components/http_handler.hpp"

std::string ask(std::uint16_t port, const std::string& request) {
    const muses::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "cannot connect";
    if (::send(fd.get(), request.data(), request.size(), 0) < 0) return "cannot send";
    std::string answer;
    char piece[4096];
    for (ssize_t got = 0; (got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0;)
        answer.append(piece, static_cast<std::size_t>(got));
    return answer;
}

int main() {
    const auto folder = std::filesystem::temp_directory_path() / ("muses_static_files_" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "index.html") << "<h1>Hello</h1>\n";

    // [main]
    muses::StaticFilesOptions options;
    options.root = folder.string();
    options.cache_bytes = 16 << 20;  // ready-made responses of small files; larger files are sent by the kernel

    muses::TCPListener listener("127.0.0.1", 0);
    muses::ReactorPool pool(*listener.get_listener(), muses::StaticFiles(options), /*shards=*/2, /*workers_per_shard=*/2);
    pool.start();
    const std::string answer = ask(listener.local_port(), "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    std::printf("%s", answer.c_str());
    pool.stop();
    // [/main]

    assert(answer.starts_with("HTTP/1.1 200 OK\r\n"));
    assert(answer.ends_with("\r\n\r\n<h1>Hello</h1>\n"));
    std::filesystem::remove_all(folder);
    return answer.ends_with("<h1>Hello</h1>\n") ? 0 : 1;
}
