// Futures, jobs that nobody waits for, and a loop in parallel.
#include <cstddef>
#include <cstdio>
#include <future>
#include <vector>

#include "muses/thread_pool.hpp"

int main() {
    // [main]
    muses::ThreadPool pool;  // as many workers as there are processors for us

    std::future<int> answer = pool.submit([](int a, int b) { return a * b; }, 6, 7);
    pool.post([] { std::puts("nobody waits for me alone"); });

    std::vector<double> squares(1'000'000);
    pool.parallel_for(std::size_t{0}, squares.size(), [&](std::size_t i) { squares[i] = double(i) * double(i); });

    pool.wait_empty();  // nothing queued, nothing running
    std::printf("%d, %g\n", answer.get(), squares.back());
    // [/main]
}
