// Shown in README.md.

#include "muses/bloom_filter.hpp"

#include <cstdio>
#include <string>

int main() {
    // [main]
    muses::CountingBloomFilter revoked(1'000'000, 0.01);  // a million keys at 1 %: 5.2 MB

    revoked.insert("session-4711");
    if (!revoked.may_contain("session-4712")) std::puts("certainly not revoked: no need to ask the database");
    revoked.remove("session-4711");  // unlike in a plain Bloom filter
    // [/main]
}
