// The cache from its simplest use to its options; shown in docs/lru_cache.md.

#include "muses/lru_cache.hpp"

#include <cassert>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

// [page]
std::string render(const std::string& path) { return "<h1>" + path + "</h1>"; }  // slow, in real life
// [/page]

int main() {
    {
        // [simple]
        muses::LruCache<std::string, int> ages(2);  // two entries at most
        ages.put("ada", 36);
        ages.put("alan", 41);
        ages.get("ada");        // now "alan" is the one that was used longest ago ...
        ages.put("grace", 85);  // ... so it goes
        assert(!ages.contains("alan"));
        assert(ages.get(std::string_view("grace")) == 85);  // text is looked up without a temporary string
        // [/simple]
    }
    {
        // [load]
        muses::LruCache<std::string, std::string> pages(1000);
        const std::string page = pages.get_or_load("/index", render);  // one call of render(), however many threads ask
        assert(page == "<h1>/index</h1>");
        // [/load]
    }
    {
        // [options]
        using namespace std::chrono_literals;
        muses::LruOptions<std::string, std::string> options;
        options.max_weight = 64 * 1024 * 1024;  // bytes, since that is what the weigher says
        options.weigher = [](const std::string& path, const std::string& body) { return path.size() + body.size(); };
        options.ttl = 5min;
        options.on_evict = [](const std::string& path, const std::string&, muses::EvictCause cause) {
            if (cause == muses::EvictCause::Capacity) std::printf("no room for %s any more\n", path.c_str());
        };
        muses::ShardedLruCache<std::string, std::string> pages(options, 8);  // eight locks instead of one
        pages.put("/index", render("/index"));
        if (const auto page = pages.get("/index")) std::printf("%s\n", page->c_str());
        // [/options]
    }
}
