// Shown in README.md.

#include "muses/queue.hpp"

#include <cstdio>
#include <thread>

int main() {
    // [main]
    muses::Queue<double> orders;  // any number of producers and consumers, no bound

    std::thread worker([&] {
        double sum = 0;
        while (auto order = orders.pop()) sum += *order;  // sleeps while empty
        std::printf("%g\n", sum);
    });
    for (int i = 0; i < 100'000; ++i) orders.push(i);  // wakes the worker only if it sleeps
    orders.close();                                    // what is queued still comes out
    worker.join();
    // [/main]
}
