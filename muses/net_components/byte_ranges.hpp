// Range requests (RFC 9110 §14): which bytes are asked for, and the response that brings them.
//
// A set of ranges costs the client a few bytes and the server as many parts as it names. So a set that would make the answer larger
// than the whole, or that no honest client needs (more than kMaxRanges, overlapping, not in ascending order), is answered with the
// whole: a server may ignore Range (§14.2).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muses/detail/hash.hpp"
#include "muses/net/http_grammar.hpp"
#include "muses/net/payload.hpp"
#include "muses/net_components/http_message.hpp"

namespace muses::http {

/// Some bytes of a representation: at least one.
struct ByteRange {
    std::uint64_t first = 0;
    std::uint64_t length = 0;
};

/// What a Range field comes to.
struct RangeDecision {
    enum class Kind : std::uint8_t {
        Whole,          ///< 200: the field is not understood, or not worth the parts
        Partial,        ///< 206: `ranges`, in ascending order and disjoint
        Unsatisfiable,  ///< 416: understood, but none of it is there
    };
    Kind kind = Kind::Whole;
    std::vector<ByteRange> ranges;
};

inline constexpr std::size_t kMaxRanges = 32;

namespace ranges {

/// Bytes that a part of a multipart response takes besides its content and its type, at most.
inline constexpr std::uint64_t kPartOverhead = 256;

/// A decimal number, digits only; one that does not fit is as good as the largest.
[[nodiscard]] constexpr std::optional<std::uint64_t> number(std::string_view digits) noexcept {
    if (digits.empty()) return std::nullopt;
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t value = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return std::nullopt;
        const auto digit = static_cast<std::uint64_t>(c - '0');
        value = value > (kMost - digit) / 10 ? kMost : value * 10 + digit;
    }
    return value;
}

/// One range-spec against `size` bytes: false when it breaks the grammar; `found` is empty when none of it is there.
[[nodiscard]] constexpr bool resolve(std::string_view spec, std::uint64_t size, std::optional<ByteRange>& found) noexcept {
    const std::size_t dash = spec.find('-');
    if (dash == std::string_view::npos) return false;
    const std::string_view head = spec.substr(0, dash);
    const std::string_view tail = spec.substr(dash + 1);
    if (head.empty()) {  // the last so many
        const auto count = number(tail);
        if (!count) return false;
        const std::uint64_t length = std::min(*count, size);
        if (length > 0) found = ByteRange{size - length, length};
        return true;
    }
    const auto first = number(head);
    if (!first) return false;
    std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
    if (!tail.empty()) {
        const auto given = number(tail);
        if (!given || *given < *first) return false;
        last = *given;
    }
    if (*first < size) found = ByteRange{*first, std::min(last, size - 1) - *first + 1};
    return true;
}

}  // namespace ranges

/// Judges the value of a Range field for a representation of `size` bytes.
[[nodiscard]] inline RangeDecision evaluate_range(std::string_view value, std::uint64_t size) {
    constexpr std::string_view kUnit = "bytes=";
    if (value.size() < kUnit.size() || !grammar::equals_lower(value.substr(0, kUnit.size()), kUnit)) return {};
    value.remove_prefix(kUnit.size());
    RangeDecision decision;
    std::size_t specs = 0;
    std::uint64_t next = 0;  // where the next range may begin
    std::uint64_t sum = 0;
    while (!value.empty()) {
        const std::size_t comma = std::min(value.find(','), value.size());
        const std::string_view spec = grammar::trim(value.substr(0, comma));
        value.remove_prefix(std::min(comma + 1, value.size()));
        if (spec.empty()) continue;  // a list may have empty elements (§5.6.1)
        std::optional<ByteRange> found;
        if (++specs > kMaxRanges || !ranges::resolve(spec, size, found)) return {};
        if (!found) continue;
        if (found->first < next && !decision.ranges.empty()) return {};
        next = found->first + found->length;
        sum += found->length + ranges::kPartOverhead;
        decision.ranges.push_back(*found);
    }
    if (specs == 0) return {};
    if (decision.ranges.empty())
        decision.kind = RangeDecision::Kind::Unsatisfiable;
    else if (decision.ranges.size() == 1 || sum <= size)
        decision.kind = RangeDecision::Kind::Partial;
    return decision;
}

/// The value of Content-Range: "bytes 0-99/1234".
[[nodiscard]] inline std::string content_range(ByteRange range, std::uint64_t size) {
    return "bytes " + std::to_string(range.first) + "-" + std::to_string(range.first + range.length - 1) + "/" +
           std::to_string(size);
}

/// The response to a range that is not there: 416 with the size, so that the client knows better.
[[nodiscard]] inline Response range_not_satisfiable(std::uint64_t size) {
    Response response = text_response(Status::RangeNotSatisfiable, "The file does not have these bytes.");
    response.fields.push_back({"Content-Range", "bytes */" + std::to_string(size)});
    return response;
}

/// The 206 to `ranges` (at least one) of `size` bytes. `fields` are those of the whole, with its Content-Type; `append(payload,
/// range)` adds the bytes of a range.
template <class Append>
[[nodiscard]] Response partial_response(const std::vector<ByteRange>& ranges, std::uint64_t size, std::vector<ResponseField> fields,
                                        Append&& append) {
    Response response;
    response.status = Status::PartialContent;
    if (ranges.size() == 1) {
        fields.push_back({"Content-Range", content_range(ranges[0], size)});
        append(response.body, ranges[0]);
    } else {
        // Nobody who wrote the file could know what stands between its parts.
        const std::string boundary = std::to_string(muses::detail::random_seed()) + std::to_string(muses::detail::random_seed());
        std::string type;
        for (ResponseField& field : fields)
            if (field.name == "Content-Type") type = std::exchange(field.value, "multipart/byteranges; boundary=" + boundary);
        std::string between = "--" + boundary;
        for (const ByteRange range : ranges) {
            between += "\r\nContent-Type: " + type + "\r\nContent-Range: " + content_range(range, size) + "\r\n\r\n";
            response.body.append(std::exchange(between, "\r\n--" + boundary));
            append(response.body, range);
        }
        response.body.append(between + "--\r\n");
    }
    response.fields = std::move(fields);
    return response;
}

}  // namespace muses::http
