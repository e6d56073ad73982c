// The distance that keeps two atomics from sharing a cache line.
//
// std::hardware_destructive_interference_size is missing in some libraries in use and changes with -mtune in others, which
// would make the layout of a public class depend on compiler flags. One constant per architecture does not.
#pragma once

#include <cstddef>

namespace muses::detail {

#if defined(__APPLE__) && defined(__aarch64__)
inline constexpr std::size_t kCacheLine = 128;
#else
inline constexpr std::size_t kCacheLine = 64;
#endif

}  // namespace muses::detail
