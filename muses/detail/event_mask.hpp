// Bit flags for what a descriptor is watched for, and for what happened to it.
#pragma once

#include <cstdint>

namespace muses {

enum class EventMask : std::uint8_t {
    None = 0,
    Readable = 1U << 0U,    ///< bytes, a connection, or end-of-file can be read
    Writable = 1U << 1U,    ///< there is room to write
    PeerClosed = 1U << 2U,  ///< the peer has shut its writing side; bytes may still be unread (reported, never asked for)
    Error = 1U << 3U,       ///< the descriptor has failed or cannot be watched (reported, never asked for)
};

[[nodiscard]] constexpr EventMask operator|(EventMask a, EventMask b) noexcept {
    return static_cast<EventMask>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}

[[nodiscard]] constexpr EventMask operator&(EventMask a, EventMask b) noexcept {
    return static_cast<EventMask>(static_cast<std::uint8_t>(a) & static_cast<std::uint8_t>(b));
}

constexpr EventMask& operator|=(EventMask& a, EventMask b) noexcept { return a = a | b; }

/// True when `mask` has at least one of the bits of `bits`.
[[nodiscard]] constexpr bool has(EventMask mask, EventMask bits) noexcept { return (mask & bits) != EventMask::None; }

}  // namespace muses
