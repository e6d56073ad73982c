// What a bounded container does with an element for which it has no room.
#pragma once

namespace muses {

enum class OverflowPolicy {
    DropNew,     ///< refuse the new element
    DropOldest,  ///< make room by discarding the oldest element
    Block,       ///< wait until there is room
};

}  // namespace muses
