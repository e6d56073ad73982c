// The grammar of HTTP/1 messages (RFC 9112): characters, request lines, field lines; http_body.hpp adds bodies. One strict reading
// of it, used where a message's end is found (http_framing.hpp) and where its parts are (net_components/http_parser.hpp).
//
// Everything here consumes bytes from left to right and judges each byte once, so that the outcome cannot depend on how the
// bytes were cut, and input that arrives byte by byte costs no more than the same input at once.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "muses/net/framing.hpp"

namespace muses::http {

namespace grammar {

/// tchar of RFC 9110 §5.6.2: what methods and field names are made of.
inline constexpr std::array<bool, 256> kTokenChar = [] {
    std::array<bool, 256> table{};
    for (const char c : std::string_view("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        table[static_cast<unsigned char>(c)] = true;
    return table;
}();

[[nodiscard]] constexpr bool is_token_char(char c) noexcept { return kTokenChar[static_cast<unsigned char>(c)]; }

/// Anything that a field value may hold: visible characters, space, tab, and bytes above 127.
[[nodiscard]] constexpr bool is_value_char(char c) noexcept {
    const auto byte = static_cast<unsigned char>(c);
    return (byte >= 0x20 && byte != 0x7f) || byte == '\t';
}

[[nodiscard]] constexpr char to_lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

/// The value of a hexadecimal digit, or -1.
[[nodiscard]] constexpr int hex_value(char c) noexcept {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = to_lower(c);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// Compares ignoring the case of ASCII letters; `lower` has none in upper case.
[[nodiscard]] constexpr bool equals_lower(std::string_view text, std::string_view lower) noexcept {
    if (text.size() != lower.size()) return false;
    for (std::size_t i = 0; i < text.size(); ++i)
        if (to_lower(text[i]) != lower[i]) return false;
    return true;
}

/// `text` without spaces and tabs at its ends.
[[nodiscard]] constexpr std::string_view trim(std::string_view text) noexcept {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

/// The first byte of [first, last) that is not a value character, or `last`. Eight bytes a step.
[[nodiscard]] inline const char* skip_value_chars(const char* first, const char* last) noexcept {
    constexpr std::uint64_t kOnes = 0x0101010101010101U;
    constexpr std::uint64_t kHigh = 0x8080808080808080U;
    if constexpr (std::endian::native == std::endian::little) {
        while (last - first >= 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, first, sizeof word);
            const std::uint64_t zero_if_del = word ^ (kOnes * 0x7f);
            const std::uint64_t control = (((word - kOnes * 0x20) & ~word) | ((zero_if_del - kOnes) & ~zero_if_del)) & kHigh;
            if (control == 0) {
                first += 8;
                continue;
            }
            first += std::countr_zero(control) / 8;  // the lowest mark is exact; a borrow can only have spoilt marks above it
            if (*first != '\t') return first;
            ++first;
        }
    }
    while (first != last && is_value_char(*first)) ++first;
    return first;
}

/// The first byte of [first, last) that is not a token character, or `last`.
[[nodiscard]] inline const char* skip_token_chars(const char* first, const char* last) noexcept {
    while (first != last && is_token_char(*first)) ++first;
    return first;
}

/// Calls fn(element) for each non-empty element of a comma-separated list, spaces around it removed. Not for lists whose
/// elements may hold quoted commas.
template <class Fn>
constexpr void for_each_element(std::string_view list, Fn&& fn) {
    while (!list.empty()) {
        const std::size_t comma = list.find(',');
        if (const std::string_view element = trim(list.substr(0, comma)); !element.empty()) fn(element);
        list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    }
}

/// True when the comma-separated list has this element; `lower` has no letters in upper case.
[[nodiscard]] constexpr bool has_element(std::string_view list, std::string_view lower) noexcept {
    bool found = false;
    for_each_element(list, [&](std::string_view element) { found = found || equals_lower(element, lower); });
    return found;
}

}  // namespace grammar

/// The reason phrase for a status code, or an empty text for one that has none here.
[[nodiscard]] constexpr std::string_view reason_phrase(unsigned code) noexcept {
    switch (code) {
        case 100: return "Continue";
        case 101: return "Switching Protocols";
        case 200: return "OK";
        case 201: return "Created";
        case 202: return "Accepted";
        case 204: return "No Content";
        case 206: return "Partial Content";
        case 301: return "Moved Permanently";
        case 302: return "Found";
        case 303: return "See Other";
        case 304: return "Not Modified";
        case 307: return "Temporary Redirect";
        case 308: return "Permanent Redirect";
        case 400: return "Bad Request";
        case 401: return "Unauthorized";
        case 403: return "Forbidden";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 406: return "Not Acceptable";
        case 408: return "Request Timeout";
        case 409: return "Conflict";
        case 410: return "Gone";
        case 411: return "Length Required";
        case 412: return "Precondition Failed";
        case 413: return "Content Too Large";
        case 414: return "URI Too Long";
        case 415: return "Unsupported Media Type";
        case 416: return "Range Not Satisfiable";
        case 417: return "Expectation Failed";
        case 421: return "Misdirected Request";
        case 422: return "Unprocessable Content";
        case 426: return "Upgrade Required";
        case 428: return "Precondition Required";
        case 429: return "Too Many Requests";
        case 431: return "Request Header Fields Too Large";
        case 500: return "Internal Server Error";
        case 501: return "Not Implemented";
        case 502: return "Bad Gateway";
        case 503: return "Service Unavailable";
        case 504: return "Gateway Timeout";
        case 505: return "HTTP Version Not Supported";
        default: return {};
    }
}

/// The three parts of a request line. The views are into the line.
struct RequestLine {
    std::string_view method;  ///< a token
    std::string_view target;  ///< at least one character; no spaces, no control characters
    unsigned minor = 1;       ///< of HTTP/1.minor
};

/// Reads a request line without its line end. On failure returns false and sets `why` to Malformed or UnsupportedVersion.
[[nodiscard]] inline bool parse_request_line(std::string_view line, RequestLine& out, Refusal& why) noexcept {
    why = Refusal::Malformed;
    constexpr std::string_view kVersion = " HTTP/1.1";
    const char* const first = line.data();
    const char* const method_end = grammar::skip_token_chars(first, first + line.size());
    const auto method_size = static_cast<std::size_t>(method_end - first);
    // Shortest: one character of method, a space, one of target, then the version.
    if (method_size == 0 || line.size() < method_size + 2 + kVersion.size() || *method_end != ' ') return false;
    const std::string_view version = line.substr(line.size() - kVersion.size());
    const std::string_view target = line.substr(method_size + 1, line.size() - method_size - 1 - kVersion.size());
    // The line holds no control characters but tabs (it was scanned as a value); one space on either side of the target.
    if (target.empty() || std::memchr(target.data(), ' ', target.size()) != nullptr) return false;
    if (std::memchr(line.data(), '\t', line.size()) != nullptr) return false;
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (!version.starts_with(" HTTP/") || version[7] != '.' || !is_digit(version[6]) || !is_digit(version[8])) return false;
    if (version[6] != '1') {
        why = Refusal::UnsupportedVersion;
        return false;
    }
    out = {line.substr(0, method_size), target, static_cast<unsigned>(version[8] - '0')};
    return true;
}

/// What: finds field lines, and the empty line after the last of them, in bytes that grow.
/// Complexity: each byte is judged once, however the bytes were cut.
/// Threads: one object belongs to one thread at a time.
/// Lifetime: holds positions only; give it the same message's bytes, grown, each time.
/// Limits: none of its own: the caller bounds the bytes that it shows. A name is at most 65,535 bytes long.
class FieldScanner {
public:
    enum class Kind : std::uint8_t {
        NeedMore,  ///< all bytes are judged and good, but the line is not complete
        Field,     ///< `name` and `value` are one field line
        End,       ///< the empty line has been passed
        Bad,       ///< the byte at position() breaks the grammar
    };
    struct Step {
        Kind kind;
        std::string_view name;   ///< Field only: a token
        std::string_view value;  ///< Field only: no spaces or tabs at the ends; may be empty
    };

    FieldScanner() = default;
    /// Starts with a field line, or the empty line, at offset `position`.
    explicit FieldScanner(std::size_t position) noexcept : position_(position), line_(position) {}

    /// The offset of the first byte that is not judged yet. After End: of the first byte behind the empty line.
    [[nodiscard]] std::size_t position() const noexcept { return position_; }

    /// Passes one whole line that is not a field line, as the first of a message is: returns Field with the line as `value`
    /// once it is complete. Any value characters are allowed in it.
    [[nodiscard]] Step line(std::string_view bytes) noexcept {
        if (at_ == At::LineStart || at_ == At::Name) at_ = At::Value;
        name_size_ = 0;
        return next(bytes);
    }

    [[nodiscard]] Step next(std::string_view bytes) noexcept {
        const char* const base = bytes.data();
        const char* const last = base + bytes.size();
        const char* p = base + position_;
        for (;;) {
            if (p == last) return stop(Kind::NeedMore, p, base);
            switch (at_) {
                case At::LineStart:
                    line_ = static_cast<std::size_t>(p - base);
                    if (*p == '\r') {
                        ++p;
                        at_ = At::EndLineFeed;
                        break;
                    }
                    at_ = At::Name;
                    [[fallthrough]];
                case At::Name: {
                    p = grammar::skip_token_chars(p, last);
                    const std::size_t size = static_cast<std::size_t>(p - base) - line_;
                    if (size > std::numeric_limits<std::uint16_t>::max()) return stop(Kind::Bad, p, base);
                    if (p == last) break;
                    if (*p != ':' || size == 0)
                        return stop(Kind::Bad, p, base);  // a space before the colon, a folded line, no name
                    name_size_ = static_cast<std::uint16_t>(size);
                    ++p;
                    at_ = At::Value;
                    break;
                }
                case At::Value:
                    p = grammar::skip_value_chars(p, last);
                    if (p == last) break;
                    if (*p != '\r') return stop(Kind::Bad, p, base);  // a bare LF, a NUL, another control character
                    ++p;
                    at_ = At::LineFeed;
                    break;
                case At::LineFeed: {
                    if (*p != '\n') return stop(Kind::Bad, p, base);  // a bare CR
                    const std::size_t end = static_cast<std::size_t>(p - base) - 1;
                    const std::size_t start = line_;
                    position_ = end + 2;
                    at_ = At::LineStart;
                    line_ = position_;
                    if (name_size_ == 0) return {Kind::Field, {}, bytes.substr(start, end - start)};
                    const std::size_t value = start + name_size_ + 1;
                    return {Kind::Field, bytes.substr(start, name_size_), grammar::trim(bytes.substr(value, end - value))};
                }
                case At::EndLineFeed:
                    if (*p != '\n') return stop(Kind::Bad, p, base);
                    at_ = At::LineStart;
                    return stop(Kind::End, p + 1, base);
            }
        }
    }

private:
    enum class At : std::uint8_t { LineStart, Name, Value, LineFeed, EndLineFeed };

    Step stop(Kind kind, const char* p, const char* base) noexcept {
        position_ = static_cast<std::size_t>(p - base);
        return {kind, {}, {}};
    }

    std::size_t position_ = 0;     // of the first byte not judged
    std::size_t line_ = 0;         // where the present line starts
    std::uint16_t name_size_ = 0;  // 0: a line without a name
    At at_ = At::LineStart;
};

}  // namespace muses::http
