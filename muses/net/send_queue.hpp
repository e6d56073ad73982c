// What a connection has still to send: payloads in order, written as far as the socket takes them.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "muses/net/payload.hpp"
#include "muses/net/transport.hpp"

namespace muses::detail {

/// How far a flush came.
enum class FlushResult : std::uint8_t {
    Drained,  ///< nothing is left
    Blocked,  ///< the socket takes no more for now
    Yielded,  ///< the budget of this turn is spent; the socket may take more
    Failed,   ///< the connection is lost, or a file ended before its announced length
};

/// What: a FIFO of payloads with a position in the first of them.
/// Complexity: flush gathers up to 64 neighbouring segments of bytes, over payload borders, in one system call; a file range is one call of its own.
/// Threads: one.
/// Lifetime: a payload is destroyed as soon as its last byte is written.
/// Limits: unbounded; the connection stops serving above its high-water mark.
class SendQueue {
public:
    /// Adds a payload to the end; an empty one is dropped.
    void push(Payload payload) {
        const std::uint64_t size = payload.size();
        if (size == 0) return;
        payloads_.push_back(std::move(payload));
        unsent_ += size;
    }

    [[nodiscard]] bool empty() const noexcept { return unsent_ == 0; }
    [[nodiscard]] std::uint64_t unsent() const noexcept { return unsent_; }

    /// Writes until drained, blocked, or `budget` bytes are written. `written` is raised by the number of bytes that went out.
    template <Transport T>
    FlushResult flush(T& transport, int fd, std::uint64_t budget, std::uint64_t& written) {
        while (unsent_ > 0) {
            if (budget == 0) return FlushResult::Yielded;
            const auto* range = std::get_if<FileRange>(&payloads_[first_].segment(segment_));
            const IoResult sent = range != nullptr ? send_range(transport, fd, *range, budget) : send_bytes(transport, fd);
            if (sent.would_block()) return FlushResult::Blocked;
            if (!sent.ok() || sent.bytes == 0) return FlushResult::Failed;
            advance(sent.bytes);
            written += sent.bytes;
            budget -= std::min<std::uint64_t>(budget, sent.bytes);
        }
        return FlushResult::Drained;
    }

private:
    static constexpr std::size_t kMaxPieces = 64;
    static constexpr std::size_t kKeptPayloads = 2;  // room that a drained queue keeps, so that the next answer allocates nothing

    template <Transport T>
    IoResult send_range(T& transport, int fd, const FileRange& range, std::uint64_t budget) {
        const std::uint64_t rest = std::min(range.length - offset_, budget);
        constexpr std::uint64_t kMaxCall = std::uint64_t{1} << 30U;  // sendfile takes at most 2 GiB a call
        return transport.send_file(fd, range.file->get(), range.offset + offset_,
                                   static_cast<std::size_t>(std::min(rest, kMaxCall)));
    }

    template <Transport T>
    IoResult send_bytes(T& transport, int fd) {
        std::array<iovec, kMaxPieces> pieces;
        std::size_t count = 0;
        bool more = false;
        std::size_t skip = static_cast<std::size_t>(offset_);
        std::size_t s = segment_;
        for (std::size_t p = first_; p < payloads_.size() && !more; ++p, s = 0) {
            for (; s < payloads_[p].segments() && !more; ++s) {
                const Payload::Segment& segment = payloads_[p].segment(s);
                more = count == kMaxPieces || std::holds_alternative<FileRange>(segment);
                if (more) break;
                const std::string_view bytes = view(segment).substr(std::exchange(skip, 0));
                pieces[count++] = {const_cast<char*>(bytes.data()), bytes.size()};  // iovec serves reading and writing alike
            }
        }
        return transport.write(fd, std::span<const iovec>(pieces.data(), count), more);
    }

    static std::string_view view(const Payload::Segment& segment) noexcept {
        if (const auto* owned = std::get_if<std::string>(&segment)) return *owned;
        const auto& slice = *std::get_if<SharedSlice>(&segment);
        return std::string_view(*slice.bytes).substr(slice.offset, slice.length);
    }

    void advance(std::uint64_t bytes) noexcept {
        unsent_ -= bytes;
        offset_ += bytes;
        while (first_ < payloads_.size()) {
            const Payload& payload = payloads_[first_];
            while (segment_ < payload.segments()) {
                const std::uint64_t length = Payload::length_of(payload.segment(segment_));
                if (offset_ < length) return;
                offset_ -= length;
                ++segment_;
            }
            payloads_[first_] = Payload();  // frees its bytes now, not when the whole queue is drained
            ++first_;
            segment_ = 0;
        }
        payloads_.clear();
        first_ = 0;
        if (payloads_.capacity() > kKeptPayloads) std::vector<Payload>().swap(payloads_);
    }

    std::vector<Payload> payloads_;  // those before first_ are sent and empty
    std::size_t first_ = 0;
    std::size_t segment_ = 0;   // in payloads_[first_]
    std::uint64_t offset_ = 0;  // in that segment
    std::uint64_t unsent_ = 0;  // sum over all that is left
};

}  // namespace muses::detail
