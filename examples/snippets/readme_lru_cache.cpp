// A cache bounded by bytes, whose entries expire, and whose misses are loaded once.
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "muses/lru_cache.hpp"

namespace {
std::string read_slowly(const std::string& name) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return "the text of " + name;
}
}  // namespace

int main() {
    // [main]
    muses::LruCache<std::string, std::string> pages({
        .max_weight = 64 << 20,  // bytes, because that is what the weigher says
        .weigher = [](const std::string& name, const std::string& text) { return name.size() + text.size(); },
        .ttl = std::chrono::minutes(5),
    });

    std::vector<std::thread> readers;
    for (int i = 0; i < 10; ++i) readers.emplace_back([&] { pages.get_or_load("index", read_slowly); });  // one of them loads
    for (auto& reader : readers) reader.join();

    if (auto page = pages.get("index")) std::printf("%s (%zu bytes kept)\n", page->c_str(), pages.weight());
    // [/main]
}
