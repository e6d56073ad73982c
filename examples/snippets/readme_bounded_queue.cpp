// A queue that keeps the newest: the producer never waits, the consumer sees at most 1024 samples of the past.
#include <cstdio>
#include <thread>

#include "muses/bounded_queue.hpp"

int main() {
    // [main]
    muses::BoundedQueue<double, muses::OverflowPolicy::DropOldest> samples(1024);

    std::thread consumer([&] {
        double sum = 0;
        while (auto sample = samples.wait_pop()) sum += *sample;  // sleeps while empty; ends when stopped and drained
        std::printf("sum %g, too old to matter: %llu\n", sum, static_cast<unsigned long long>(samples.dropped()));
    });

    for (int i = 0; i < 100'000; ++i) samples.push(i);  // any number of threads; never blocks
    samples.stop();
    consumer.join();
    // [/main]
}
