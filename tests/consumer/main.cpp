// A program of somebody else that uses Muses: one header of each floor, and what they need at link time (threads).
#include <cstdio>
#include <string>

#include "muses/bounded_queue.hpp"
#include "muses/lru_cache.hpp"
#include "muses/net/socket.hpp"
#include "muses/net_components/http_parser.hpp"
#include "muses/thread_pool.hpp"

int main() {
    muses::BoundedQueue<int> queue(4);
    muses::LruCache<std::string, int> cache(2);
    muses::ThreadPool pool(2);
    const int sum = pool.submit([](int a, int b) { return a + b; }, 40, 2).get();
    queue.push(sum);
    cache.put("answer", *queue.wait_pop());
    const muses::TCPListener listener("127.0.0.1", 0);
    const bool good = cache.get("answer") == 42 && listener.get_listener().has_value();
    std::puts(good ? "consumer: ok" : "consumer: wrong");
    return good ? 0 : 1;
}
