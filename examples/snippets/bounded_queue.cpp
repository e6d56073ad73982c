// The three policies of the bounded queue; shown in docs/bounded_queue.md.

#include "muses/bounded_queue.hpp"

#include <cassert>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

int main() {
    {
        // [block]
        muses::BoundedQueue<std::string, muses::OverflowPolicy::Block> lines(16);
        std::thread reader([&] {
            for (int i = 0; i < 100; ++i) lines.push("line " + std::to_string(i));  // waits while 16 lines are queued
            lines.stop();
        });
        int count = 0;
        while (auto line = lines.wait_pop()) ++count;  // ends when the queue is stopped and empty
        reader.join();
        assert(count == 100);
        // [/block]
    }
    {
        // [drop_new]
        muses::BoundedQueue<std::string> requests(2);  // DropNew: what does not fit is refused
        assert(requests.push("first") && requests.push("second"));
        std::string third = "third";
        assert(!requests.try_push(std::move(third)) && third == "third");  // try_push leaves what it refuses untouched ...
        assert(!requests.push("fourth") && requests.dropped() == 1);       // ... and push counts it
        // [/drop_new]
    }
    {
        // [drop_oldest]
        muses::BoundedQueue<int, muses::OverflowPolicy::DropOldest> samples(2);
        samples.push(1);
        samples.push(2);
        assert(samples.push_evicting(3) == 1);  // hands back what had to go; push(3) would have destroyed it
        assert(samples.try_pop() == 2);
        // [/drop_oldest]
    }
    {
        // [wait]
        using namespace std::chrono_literals;
        muses::BoundedQueue<int> events(8);
        assert(!events.wait_pop(10ms));  // nothing came in time

        muses::stop_source source;
        std::thread waiter([&] { assert(!events.wait_pop(source.get_token())); });
        source.request_stop();  // ends this one wait; events.stop() would end all of them, and the queue
        waiter.join();
        // [/wait]
    }
}
