// The bytes of one answer: owned, shared, or a range of a file, in the order in which they are sent.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "muses/net/unique_fd.hpp"

namespace muses {

/// Immutable bytes that many answers may hold at once.
using SharedBytes = std::shared_ptr<const std::string>;

/// A part of immutable shared bytes; the bytes live as long as a slice of them.
struct SharedSlice {
    SharedBytes bytes;
    std::size_t offset = 0;
    std::size_t length = 0;
};

/// A part of a file that is sent by the kernel and never loaded. The descriptor may be shared: its file position is not used.
struct FileRange {
    std::shared_ptr<const UniqueFd> file;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
};

/// What: an ordered list of segments: bytes owned, bytes shared, file ranges.
/// Complexity: append O(1) amortised; one or two segments (a head and a body) allocate nothing beyond the bytes themselves.
/// Threads: distinct objects are independent; one object belongs to one thread at a time.
/// Lifetime: owns or shares all it refers to.
/// Limits: none of its own; the sum of the lengths must fit 64 bits.
class Payload {
public:
    using Segment = std::variant<std::string, SharedSlice, FileRange>;

    Payload() = default;

    /// Anything that makes a std::string, implicitly, so that a handler can `return {text, true}`.
    template <class S>
        requires(std::convertible_to<S, std::string> && !std::same_as<std::remove_cvref_t<S>, Payload>)
    Payload(S&& bytes) : first_(std::in_place_type<std::string>, std::forward<S>(bytes)) {}

    /// Adds bytes to the end. Returns *this.
    Payload& append(std::string bytes) {
        if (!bytes.empty()) add(Segment(std::in_place_type<std::string>, std::move(bytes)));
        return *this;
    }

    /// Adds `length` bytes of `bytes` from `offset` on; throws std::invalid_argument when they are not all there.
    Payload& append(SharedBytes bytes, std::size_t offset, std::size_t length) {
        if (length == 0) return *this;
        if (!bytes || offset > bytes->size() || length > bytes->size() - offset)
            throw std::invalid_argument("muses::Payload::append: the slice is outside of the shared bytes");
        add(SharedSlice{std::move(bytes), offset, length});
        return *this;
    }

    /// Adds all of `bytes`; a null pointer throws std::invalid_argument.
    Payload& append(SharedBytes bytes) {
        if (!bytes) throw std::invalid_argument("muses::Payload::append: the shared bytes are null");
        const std::size_t length = bytes->size();
        return append(std::move(bytes), 0, length);
    }

    /// Adds `length` bytes of the file from `offset` on. A file that turns out shorter ends the connection: the length is announced.
    Payload& append(FileRange range) {
        if (range.length == 0) return *this;
        if (!range.file || !*range.file) throw std::invalid_argument("muses::Payload::append: the file is not open");
        add(std::move(range));
        return *this;
    }

    /// Bytes in all segments.
    [[nodiscard]] std::uint64_t size() const noexcept {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < segments(); ++i) sum += length_of(segment(i));
        return sum;
    }

    [[nodiscard]] bool empty() const noexcept { return size() == 0; }

    /// How many segments there are; `segment(i)` is valid for i below it.
    [[nodiscard]] std::size_t segments() const noexcept {
        return (is_empty(first_) ? 0U : 1U) + (is_empty(second_) ? 0U : 1U) + rest_.size();
    }
    [[nodiscard]] const Segment& segment(std::size_t i) const noexcept {
        if (i == 0) return first_;
        return i == 1 ? second_ : rest_[i - 2];
    }

    /// Bytes in one segment.
    [[nodiscard]] static std::uint64_t length_of(const Segment& s) noexcept {
        struct Length {
            std::uint64_t operator()(const std::string& bytes) const noexcept { return bytes.size(); }
            std::uint64_t operator()(const SharedSlice& slice) const noexcept { return slice.length; }
            std::uint64_t operator()(const FileRange& range) const noexcept { return range.length; }
        };
        return std::visit(Length{}, s);
    }

private:
    static bool is_empty(const Segment& s) noexcept { return length_of(s) == 0; }

    void add(Segment s) {
        if (is_empty(first_))
            first_ = std::move(s);
        else if (is_empty(second_))
            second_ = std::move(s);
        else
            rest_.push_back(std::move(s));
    }

    Segment first_;  // filled in this order; an empty string is an unused place
    Segment second_;
    std::vector<Segment> rest_;
};

}  // namespace muses
