// Where one message of a byte stream ends: the seam between the reactor, which moves bytes, and a protocol's framing.
//
// The reactor hands its framer the bytes that a connection has sent and not yet had answered; the framer says whether the
// first message is complete, and if not, whether it ever can be. `HttpFramer` (http_framing.hpp) is the one used by default.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muses {

/// Limits on one message. A message beyond them is refused, never truncated.
struct MessageLimits {
    std::size_t max_start_line_bytes = 8 * 1024;  ///< first line; above: Refusal::StartLineTooLong
    std::size_t max_head_bytes = 32 * 1024;       ///< everything before the body; above: Refusal::HeadTooLarge
    std::size_t max_fields = 100;                 ///< header fields (trailers count for themselves); above: Refusal::HeadTooLarge
    std::size_t max_body_bytes = 1024 * 1024;     ///< decoded body; above: Refusal::BodyTooLarge
};

/// Why a message or a connection is answered by the reactor instead of by the handler. After any of them the connection closes.
enum class Refusal : std::uint8_t {
    Malformed,           ///< breaks the grammar, or its end is ambiguous
    StartLineTooLong,    ///< over MessageLimits::max_start_line_bytes
    HeadTooLarge,        ///< over MessageLimits::max_head_bytes or max_fields
    BodyTooLarge,        ///< announced or grown over MessageLimits::max_body_bytes
    UnsupportedCoding,   ///< a transfer coding that is not implemented
    UnsupportedVersion,  ///< a protocol version that is not implemented
    HeadTimeout,         ///< the head was begun, but not complete in time
    BodyTimeout,         ///< the body made no progress in time
    Overloaded,          ///< a connection or work limit is reached
    HandlerFailed,       ///< the handler threw
};

/// What a framer found in the bytes at hand.
struct FrameStep {
    enum class Kind : std::uint8_t {
        NeedMore,  ///< no complete message yet
        Complete,  ///< the first `size` bytes are one message
        Refused,   ///< `why` says why these bytes can never become a message that is served
    };

    Kind kind = Kind::NeedMore;
    Refusal why = Refusal::Malformed;  ///< Refused only
    bool head_complete = false;        ///< NeedMore only: the head is whole, the body is not
    std::size_t size = 0;              ///< Complete only: bytes of the message, head and body
    std::string_view interim;          ///< NeedMore only: bytes to send to the peer now (100 Continue); said once a message
};

/// A framer lives in one connection and sees its messages one after another. It need not look twice at bytes that it has
/// seen: `next` is called with the same message's bytes, grown, until it says Complete or Refused; `reset` starts the next
/// message. The result must not depend on how the bytes were cut.
template <class F>
concept MessageFramer =
    std::default_initializable<F> && requires(F framer, std::string_view buffered, const MessageLimits& limits) {
        { framer.next(buffered, limits) } -> std::same_as<FrameStep>;
        { framer.reset() };
        { F::refusal(Refusal::Malformed) } -> std::same_as<std::string>;  // the whole answer; empty: close without a word
    };

}  // namespace muses
