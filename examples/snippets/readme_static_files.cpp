// compiled only: this one serves until it is told to stop.
#include <csignal>
#include <cstdio>

#include "muses/net/reactor.hpp"
#include "muses/net/socket.hpp"
#include "muses/net_components/http_handler.hpp"

int main() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);

    // [main]
    // Files that are cached are answered on the event loop itself; the rest is work for the two workers of each shard.
    muses::StaticFiles files({.root = "/usr/share/doc", .max_cached_file_bytes = 256 * 1024});
    muses::TCPListener listener("::1", 8080);
    if (auto fd = listener.get_listener()) {
        muses::ReactorPool pool(*fd, files, /*shards=*/2, /*workers_per_shard=*/2);
        pool.start();
        int signal = 0;
        sigwait(&signals, &signal);
        pool.stop(std::chrono::seconds(10));  // what was begun ends whole
    } else {
        std::fprintf(stderr, "cannot listen: %s\n", fd.error().message().c_str());
    }
    // [/main]
}
