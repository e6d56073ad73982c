// Ways to cut a byte sequence, for tests that say "the result must not depend on how the bytes arrived".
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace muses::test {

/// Calls fn(cuts) once for: whole, every single byte, and each cut in two. `cuts` are the growing sizes of what has arrived,
/// the last of which is bytes.size().
template <class Fn>
void for_each_split(std::string_view bytes, Fn&& fn) {
    std::vector<std::size_t> cuts{bytes.size()};
    fn(cuts);
    cuts.clear();
    for (std::size_t i = 1; i <= bytes.size(); ++i) cuts.push_back(i);
    fn(cuts);
    for (std::size_t i = 1; i < bytes.size(); ++i) {
        cuts.assign({i, bytes.size()});
        fn(cuts);
    }
}

}  // namespace muses::test
