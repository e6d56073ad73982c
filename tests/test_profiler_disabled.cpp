#define MUSES_PROFILE_DISABLED
#include "muses/profiler.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {
// Not even possible with a scope in it, unless that is nothing.
constexpr int twice(int n) {
    MUSES_PROFILE_SCOPE("compiled out");
    return 2 * n;
}
static_assert(twice(21) == 42);
}  // namespace

TEST_CASE("profiler: compiled out a scope is nothing and the profiler is still there") {
    if (twice(1) == 2) MUSES_PROFILE_SCOPE("a statement");
    CHECK(muses::Profiler::instance().report().empty());
    CHECK(muses::Profiler::instance().csv() == "name,count,total_ns,self_ns,mean_ns,p50_ns,p99_ns,max_ns\n");
}
