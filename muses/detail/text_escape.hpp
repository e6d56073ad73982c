// Text from anywhere, made safe for a line of a log or for JSON: everything is escaped by which a line could be forged or a terminal
// commanded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muses::detail {

/// Bytes of the UTF-8 character at the start of `text` (not empty), or 0 when it is not a valid one.
[[nodiscard]] constexpr std::size_t utf8_character(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (text.size() < length) return 0;
    // The second byte has a narrower range after four leads: no overlong form, no surrogate, nothing above U+10FFFF.
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(1) < low || byte(1) > high) return 0;
    for (std::size_t i = 2; i < length; ++i)
        if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
    return length;
}

/// True for the characters of two or three bytes that end a line or command a terminal: U+0080..U+009F, U+2028, U+2029.
[[nodiscard]] constexpr bool is_wide_control(std::string_view character) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
    if (character.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
    return character.size() == 3 && byte(0) == 0xE2 && byte(1) == 0x80 && (byte(2) == 0xA8 || byte(2) == 0xA9);
}

/// True for a byte that both writers below copy as it is.
[[nodiscard]] constexpr bool is_plain_byte(char c) noexcept {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x7F;
}

inline void append_hex(std::string& out, std::string_view prefix, unsigned value, int digits) {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    out += prefix;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kDigits[(value >> static_cast<unsigned>(shift)) & 0xFU];
}

/// The code point of a character for which is_wide_control() is true.
[[nodiscard]] constexpr unsigned wide_control_value(std::string_view character) noexcept {
    const auto last = static_cast<unsigned char>(character.back());
    return character.size() == 2 ? unsigned{last} : 0x2028U + (last - 0xA8U);
}

/// Appends `text` as one line of valid UTF-8: control characters other than the tab, and bytes that are not UTF-8, become escapes.
inline void append_escaped(std::string& out, std::string_view text) {
    std::size_t plain = 0;  // start of what can be copied in one go
    for (std::size_t i = 0; i < text.size();) {
        if (is_plain_byte(text[i]) || text[i] == '\t') {
            ++i;
            continue;
        }
        const std::size_t length = utf8_character(text.substr(i));
        const std::string_view character = text.substr(i, length);
        if (length > 1 && !is_wide_control(character)) {
            i += length;
            continue;
        }
        out += text.substr(plain, i - plain);
        if (length > 1)
            append_hex(out, "\\u", wide_control_value(character), 4);
        else if (text[i] == '\n')
            out += "\\n";
        else if (text[i] == '\r')
            out += "\\r";
        else
            append_hex(out, "\\x", static_cast<unsigned char>(text[i]), 2);
        i += length == 0 ? 1 : length;
        plain = i;
    }
    out += text.substr(plain);
}

/// Appends `text` as the inside of a JSON string; bytes that are not UTF-8 become U+FFFD.
inline void append_json_escaped(std::string& out, std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_character(text.substr(i));
        const std::string_view character = text.substr(i, length);
        i += length == 0 ? 1 : length;
        if (length == 0)
            out += "\\ufffd";
        else if (length > 1 && is_wide_control(character))
            append_hex(out, "\\u", wide_control_value(character), 4);
        else if (length > 1)
            out += character;
        else if (character[0] == '"' || character[0] == '\\')
            (out += '\\') += character[0];
        else if (is_plain_byte(character[0]))
            out += character[0];
        else if (character[0] == '\n')
            out += "\\n";
        else if (character[0] == '\r')
            out += "\\r";
        else if (character[0] == '\t')
            out += "\\t";
        else
            append_hex(out, "\\u", static_cast<unsigned char>(character[0]), 4);
    }
}

}  // namespace muses::detail
