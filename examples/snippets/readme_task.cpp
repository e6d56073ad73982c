// Two tasks that talk through a channel, and a third one that is given up.
#include <chrono>
#include <cstdio>
#include <string>

#include "muses/task.hpp"

using namespace std::chrono_literals;

// [main]
muses::Task<> produce(muses::Channel<std::string>& channel) {
    for (const char* word : {"calliope", "clio", "erato"}) co_await channel.send(word);
    channel.close();
}

muses::Task<int> consume(muses::Channel<std::string>& channel) {
    int letters = 0;
    while (auto word = co_await channel.receive()) letters += static_cast<int>(word->size());
    co_return letters;
}

muses::Task<int> slow() {
    co_await muses::sleep_for(1h);
    co_return 0;
}

muses::Task<> run() {
    muses::Channel<std::string> channel(2);  // a sender waits while two words are inside
    auto all = co_await muses::when_all(produce(channel), consume(channel), muses::with_timeout(slow(), 10ms));
    std::printf("%d letters%s\n", std::get<1>(all), std::get<2>(all) ? "" : ", and the slow one was given up");
}

int main() { muses::sync_wait(run()); }
// [/main]
