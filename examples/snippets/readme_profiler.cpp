// Shown in README.md.

#include "muses/profiler.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

namespace {
// [main]
double render(int frames) {
    MUSES_PROFILE_SCOPE("render");  // until the end of the block, in any thread
    double sum = 0;
    for (int i = 0; i < frames; ++i) {
        MUSES_PROFILE_SCOPE("frame");
        sum += std::sqrt(i);
    }
    return sum;
}
// [/main]
}  // namespace

int main() {
    std::printf("%g\n", render(1000));
    // [report]
    std::puts(
        muses::Profiler::instance().table().c_str());  // count, total, self, mean, p50, p99, max; or json(), csv(), chrome_trace()
    // [/report]
}
