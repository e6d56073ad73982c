// The queue from its simplest use to draining; shown in docs/queue.md.

#include "muses/queue.hpp"

#include <cassert>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

int main() {
    {
        // [simple]
        muses::Queue<std::string> lines;
        std::thread printer([&] {
            while (auto line = lines.pop()) std::puts(line->c_str());  // sleeps while empty; ends when closed and empty
        });
        lines.push("never waits, from any number of threads");
        lines.emplace(3U, '!');
        lines.close();
        printer.join();
        // [/simple]
    }
    {
        // [batch]
        muses::Queue<int> samples;
        samples.push_range(std::vector{1, 2, 3});  // stay next to each other
        samples.push(4);
        assert(samples.pop_for(std::chrono::seconds(1)) == 1);
        assert((samples.drain() == std::vector{2, 3, 4}));  // all that is queued at one moment
        assert(!samples.try_pop());
        // [/batch]
    }
}
