// From the path of a request to the name of a file beneath a root.
#pragma once

#include <cstddef>
#include <expected>
#include <string>
#include <string_view>

#include "muses/net/http_grammar.hpp"
#include "muses/net_components/http_message.hpp"

namespace muses::http {

namespace path_rules {

inline constexpr std::string_view kWellKnown = ".well-known";  // RFC 8615: the one hidden name that is meant to be served

/// True when nothing in `path` needs work: no escapes, no empty, dot or hidden segments.
[[nodiscard]] constexpr bool is_plain(std::string_view path) noexcept {
    char before = 0;
    for (const char c : path) {
        if (c == '%' || c == '\0' || (before == '/' && (c == '/' || c == '.'))) return false;
        before = c;
    }
    return true;
}

/// Undoes percent escapes, once. BadRequest for a bad escape or a NUL.
[[nodiscard]] inline std::expected<void, Status> decode(std::string_view segment, std::string& out) {
    out.clear();
    for (std::size_t i = 0; i < segment.size(); ++i) {
        char c = segment[i];
        if (c == '%') {
            if (segment.size() - i < 3) return std::unexpected(Status::BadRequest);
            const int high = grammar::hex_value(segment[i + 1]);
            const int low = grammar::hex_value(segment[i + 2]);
            if (high < 0 || low < 0) return std::unexpected(Status::BadRequest);
            c = static_cast<char>(high * 16 + low);
            i += 2;
        }
        if (c == '\0') return std::unexpected(Status::BadRequest);
        out.push_back(c);
    }
    return {};
}

}  // namespace path_rules

/// The name, relative to a root, of what the path of a request asks for: no leading slash, escapes decoded once, empty and dot
/// segments resolved. It ends in '/' (or is empty, for the root itself) when the path names a directory.
/// `path` starts with '/'. The result refers to `path`, or to `scratch` when the name had to be written anew.
/// Fails with BadRequest for a bad escape or an encoded NUL. Fails with NotFound for what cannot be a served name: an encoded
/// slash inside of a segment, dot segments that lead above the root, and (unless `allow_hidden`) a segment that starts with a
/// dot, except .well-known at the root.
[[nodiscard]] inline std::expected<std::string_view, Status> resolve_path(std::string_view path, bool allow_hidden,
                                                                          std::string& scratch) {
    if (!path.starts_with('/')) return std::unexpected(Status::BadRequest);
    if (path_rules::is_plain(path)) return path.substr(1);
    scratch.clear();
    std::string segment;
    bool above_root = false;  // an error only after all escapes are known to be good
    bool forbidden = false;
    while (!path.empty()) {
        path.remove_prefix(1);  // the slash
        const std::string_view raw = path.substr(0, path.find('/'));
        path.remove_prefix(raw.size());
        const bool last = path.empty();
        if (const auto decoded = path_rules::decode(raw, segment); !decoded) return std::unexpected(decoded.error());
        if (segment.empty() || segment == ".") continue;
        if (segment == "..") {
            if (scratch.empty()) {
                above_root = true;
                continue;
            }
            scratch.pop_back();
            scratch.resize(scratch.rfind('/') + 1);  // npos + 1 is 0
            continue;
        }
        if (segment.find('/') != std::string::npos) forbidden = true;
        if (segment.front() == '.' && !allow_hidden && !(scratch.empty() && segment == path_rules::kWellKnown)) forbidden = true;
        scratch.append(segment);
        if (!last) scratch.push_back('/');
    }
    if (above_root || forbidden) return std::unexpected(Status::NotFound);
    return scratch;
}

/// A path for a Location field: '/' and `name`, with everything escaped that is not an unreserved character or a slash.
[[nodiscard]] inline std::string encode_path(std::string_view name) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    std::string path = "/";
    for (const char c : name) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           std::string_view("/-._~!$&'()*+,;=:@").find(c) != std::string_view::npos;
        if (plain) {
            path.push_back(c);
        } else {
            const auto byte = static_cast<unsigned char>(c);
            path.append({'%', kHex[byte >> 4U], kHex[byte & 15U]});
        }
    }
    return path;
}

}  // namespace muses::http
