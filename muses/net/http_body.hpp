// How long the body of an HTTP/1 request is (RFC 9112 §6), and where the pieces of a chunked one are (§7). Part of the one strict
// reading that http_grammar.hpp begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "muses/net/framing.hpp"
#include "muses/net/http_grammar.hpp"

namespace muses::http {

/// What: the fields of a request head that decide how long its body is, gathered one by one and judged together.
/// Complexity: O(1) a field that does not matter here.
/// Threads: one object belongs to one thread at a time.
/// Lifetime: keeps no views.
/// Limits: one Content-Length, one Transfer-Encoding, and not both.
class BodyFraming {
public:
    enum class Kind : std::uint8_t { None, Length, Chunked };

    /// Takes one field line; false when it is a framing field that breaks the grammar (a refusal as Malformed).
    [[nodiscard]] bool add(std::string_view name, std::string_view value) noexcept {
        switch (name.size()) {
            case 6:
                if (grammar::equals_lower(name, "expect") && grammar::equals_lower(value, "100-continue")) expects_continue_ = true;
                return true;
            case 14: return !grammar::equals_lower(name, "content-length") || add_length(value);
            case 17: return !grammar::equals_lower(name, "transfer-encoding") || add_coding(value);
            default: return true;
        }
    }

    /// The verdict on all fields of a request: nothing when its body has a certain end, else why it is refused.
    /// `minor` is that of HTTP/1.minor.
    [[nodiscard]] std::optional<Refusal> judge(unsigned minor, std::uint64_t max_body) const noexcept {
        if (coding_ != Coding::None) {
            if (has_length_ || minor == 0) return Refusal::Malformed;
            if (coding_ == Coding::Other) return Refusal::UnsupportedCoding;
        } else if (has_length_ && length_ > max_body) {
            return Refusal::BodyTooLarge;
        }
        return std::nullopt;
    }

    [[nodiscard]] Kind kind() const noexcept {
        if (coding_ == Coding::Chunked) return Kind::Chunked;
        return has_length_ ? Kind::Length : Kind::None;
    }
    /// Bytes of the body by its Content-Length; the largest number when it is larger than that.
    [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
    /// The head says `Expect: 100-continue`.
    [[nodiscard]] bool expects_continue() const noexcept { return expects_continue_; }

private:
    enum class Coding : std::uint8_t { None, Chunked, Other };

    bool add_length(std::string_view value) noexcept {
        if (has_length_ || value.empty()) return false;
        has_length_ = true;
        constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
        for (const char c : value) {
            if (c < '0' || c > '9') return false;
            const auto digit = static_cast<std::uint64_t>(c - '0');
            length_ = length_ > (kMost - digit) / 10 ? kMost : length_ * 10 + digit;
        }
        return true;
    }

    bool add_coding(std::string_view value) noexcept {
        if (coding_ != Coding::None || value.empty()) return false;
        coding_ = grammar::equals_lower(value, "chunked") ? Coding::Chunked : Coding::Other;
        return true;
    }

    std::uint64_t length_ = 0;
    bool has_length_ = false;
    bool expects_continue_ = false;
    Coding coding_ = Coding::None;
};

/// What: walks through a chunked body and its trailers in bytes that grow.
/// Complexity: framing bytes are judged once, data bytes are passed in one step.
/// Threads: one object belongs to one thread at a time.
/// Lifetime: holds counts only; its position is the FieldScanner's that it is given each time.
/// Limits: decoded bytes: max_body_bytes; bytes of extensions, of trailers: max_head_bytes each; trailers: max_fields.
class ChunkScanner {
public:
    enum class Kind : std::uint8_t {
        NeedMore,  ///< all bytes are judged and good
        Data,      ///< `data` is the next piece of the decoded body; not empty
        End,       ///< the body and its trailers are passed
        Refused,   ///< `why`
    };
    struct Step {
        Kind kind;
        Refusal why = Refusal::Malformed;
        std::string_view data{};
    };

    /// `cursor` starts as FieldScanner(offset of the body) and moves along.
    [[nodiscard]] Step next(std::string_view bytes, FieldScanner& cursor, const MessageLimits& limits) noexcept {
        std::size_t at = cursor.position();
        if (at_ == At::Trailers) return trailers(bytes, cursor, limits);
        for (; at < bytes.size(); ++at) {
            const char c = bytes[at];
            switch (at_) {
                case At::Size: {
                    const int digit = grammar::hex_value(c);
                    if (digit < 0) {
                        if (digits_ == 0) return {Kind::Refused};
                        if (decoded_ > limits.max_body_bytes || left_ > limits.max_body_bytes - decoded_)
                            return {Kind::Refused, Refusal::BodyTooLarge};
                        decoded_ += left_;
                        if (c == '\r') {
                            at_ = At::SizeLineFeed;
                        } else if (!extension_char(c, limits, At::BeforeSemicolon)) {
                            return refused_extension();
                        }
                        break;
                    }
                    if (++digits_ > 16) return {Kind::Refused};  // leading zeros count: no size needs more
                    left_ = left_ << 4U | static_cast<std::uint64_t>(digit);
                    break;
                }
                case At::SizeLineFeed:
                    if (c != '\n') return {Kind::Refused};
                    if (left_ == 0) {
                        cursor = FieldScanner(at + 1);
                        at_ = At::Trailers;
                        overhead_ = 0;
                        return trailers(bytes, cursor, limits);
                    }
                    at_ = At::Data;
                    break;
                case At::Data: {
                    const std::uint64_t here = bytes.size() - at;
                    const auto size = static_cast<std::size_t>(here < left_ ? here : left_);
                    left_ -= size;
                    if (left_ == 0) at_ = At::DataReturn;
                    cursor = FieldScanner(at + size);
                    return {Kind::Data, Refusal::Malformed, bytes.substr(at, size)};
                }
                case At::DataReturn:
                    if (c != '\r') return {Kind::Refused};
                    at_ = At::DataLineFeed;
                    break;
                case At::DataLineFeed:
                    if (c != '\n') return {Kind::Refused};
                    at_ = At::Size;
                    digits_ = 0;
                    break;
                default:  // inside of an extension
                    if (c == '\r' && may_end_extension()) {
                        at_ = At::SizeLineFeed;
                    } else if (!extension_char(c, limits, at_)) {
                        return refused_extension();
                    }
                    break;
            }
        }
        cursor = FieldScanner(at);
        return {Kind::NeedMore};
    }

private:
    enum class At : std::uint8_t {
        Size,
        SizeLineFeed,
        Data,
        DataReturn,
        DataLineFeed,
        Trailers,
        BeforeSemicolon,
        BeforeName,
        Name,
        AfterName,
        BeforeValue,
        Value,
        Quoted,
        Escaped,
        AfterQuote,
        AfterValue,
    };

    // chunk-ext = *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] ); spaces at the very end are refused.
    bool extension_char(char c, const MessageLimits& limits, At at) noexcept {
        if (++overhead_ > limits.max_head_bytes) {
            too_large_ = true;
            return false;
        }
        const bool space = c == ' ' || c == '\t';
        const bool token = grammar::is_token_char(c);
        const auto go = [this](At next) {
            at_ = next;
            return true;
        };
        switch (at) {
            case At::BeforeSemicolon: return space ? go(At::BeforeSemicolon) : c == ';' && go(At::BeforeName);
            case At::BeforeName: return space || (token && go(At::Name));
            case At::Name:
                if (token) return true;
                [[fallthrough]];
            case At::AfterName:
                if (space) return go(At::AfterName);
                if (c == '=') return go(At::BeforeValue);
                return c == ';' && go(At::BeforeName);
            case At::BeforeValue:
                if (space) return true;
                return c == '"' ? go(At::Quoted) : token && go(At::Value);
            case At::Value:
                if (token) return true;
                [[fallthrough]];
            case At::AfterQuote:
            case At::AfterValue: return space ? go(At::AfterValue) : c == ';' && go(At::BeforeName);
            case At::Quoted:
                if (c == '"') return go(At::AfterQuote);
                if (c == '\\') return go(At::Escaped);
                return grammar::is_value_char(c);
            case At::Escaped: return grammar::is_value_char(c) && go(At::Quoted);
            default: return false;
        }
    }

    [[nodiscard]] bool may_end_extension() const noexcept { return at_ == At::Name || at_ == At::Value || at_ == At::AfterQuote; }

    [[nodiscard]] Step refused_extension() const noexcept {
        return {Kind::Refused, too_large_ ? Refusal::BodyTooLarge : Refusal::Malformed};
    }

    Step trailers(std::string_view bytes, FieldScanner& cursor, const MessageLimits& limits) noexcept {
        const std::size_t start = cursor.position() - static_cast<std::size_t>(overhead_);
        const std::size_t room = bytes.size() - start;
        const bool clipped = room > limits.max_head_bytes;
        const std::string_view visible = clipped ? bytes.substr(0, start + limits.max_head_bytes) : bytes;
        for (;;) {
            const FieldScanner::Step step = cursor.next(visible);
            overhead_ = cursor.position() - start;
            switch (step.kind) {
                case FieldScanner::Kind::NeedMore:
                    return clipped ? Step{Kind::Refused, Refusal::HeadTooLarge} : Step{Kind::NeedMore};
                case FieldScanner::Kind::End: return {Kind::End};
                case FieldScanner::Kind::Bad: return {Kind::Refused};
                case FieldScanner::Kind::Field:
                    if (++trailers_ > limits.max_fields) return {Kind::Refused, Refusal::HeadTooLarge};
                    if (is_framing_field(step.name)) return {Kind::Refused};
                    break;
            }
        }
    }

    // Fields that would change where the message ends or whom it is for, had they been read as part of the head.
    static bool is_framing_field(std::string_view name) noexcept {
        return grammar::equals_lower(name, "content-length") || grammar::equals_lower(name, "transfer-encoding") ||
               grammar::equals_lower(name, "host") || grammar::equals_lower(name, "trailer");
    }

    std::uint64_t left_ = 0;      // bytes of the present chunk not passed yet
    std::uint64_t decoded_ = 0;   // bytes of all chunks announced so far
    std::uint64_t overhead_ = 0;  // bytes of extensions; from the last chunk on: bytes of trailers
    std::uint32_t trailers_ = 0;
    std::uint8_t digits_ = 0;
    At at_ = At::Size;
    bool too_large_ = false;
};

}  // namespace muses::http
