// From the bytes of one complete HTTP/1.1 message to a Request. The grammar is that of muses/net/http_grammar.hpp; what is
// added here is what the parts mean: the target's forms, Host, Connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "muses/net/framing.hpp"
#include "muses/net/http_body.hpp"
#include "muses/net/http_grammar.hpp"
#include "muses/net_components/http_message.hpp"

namespace muses::http {

namespace grammar {

/// Characters of a registered name or an IPv4 address, besides percent escapes (RFC 3986 §3.2.2).
[[nodiscard]] constexpr bool is_host_char(char c) noexcept {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
    return std::string_view("-._~!$&'()*+,;=").find(c) != std::string_view::npos;
}

/// True for `host [":" port]`, where the host may be empty, a name, an IPv4 address or an IPv6 address in brackets.
[[nodiscard]] constexpr bool is_authority(std::string_view text) noexcept {
    std::size_t at = 0;
    if (text.starts_with('[')) {
        const std::size_t end = text.find(']');
        if (end == std::string_view::npos || end < 3) return false;
        for (const char c : text.substr(1, end - 1))
            if (hex_value(c) < 0 && c != ':' && c != '.') return false;
        at = end + 1;
    } else {
        for (; at < text.size() && text[at] != ':'; ++at) {
            if (text[at] == '%') {
                if (text.size() - at < 3 || hex_value(text[at + 1]) < 0 || hex_value(text[at + 2]) < 0) return false;
                at += 2;
            } else if (!is_host_char(text[at])) {
                return false;
            }
        }
    }
    if (at == text.size()) return true;
    if (text[at] != ':') return false;
    unsigned port = 0;
    for (const char c : text.substr(at + 1)) {
        if (c < '0' || c > '9') return false;
        port = port * 10 + static_cast<unsigned>(c - '0');
        if (port > 65535) return false;
    }
    return true;
}

/// Takes the request target apart (RFC 9112 §3.2); false when it has none of the four forms, or not the one of its method.
[[nodiscard]] constexpr bool parse_target(Request& request) noexcept {
    std::string_view rest = request.target;
    if (rest.find('#') != std::string_view::npos) return false;
    if (request.method == Method::Connect) {  // authority-form, and the port is not optional
        const std::size_t colon = rest.rfind(':');
        if (colon == std::string_view::npos || colon == 0 || colon + 1 == rest.size() || !is_authority(rest)) return false;
        request.authority = rest;
        return true;
    }
    if (rest == "*") {
        request.path = rest;
        return request.method == Method::Options;
    }
    if (!rest.starts_with('/')) {  // absolute-form
        const std::size_t scheme = rest.find("://");
        if (scheme == std::string_view::npos) return false;
        const std::string_view name = rest.substr(0, scheme);
        if (!equals_lower(name, "http") && !equals_lower(name, "https")) return false;
        rest.remove_prefix(scheme + 3);
        const std::size_t end = rest.find_first_of("/?");
        request.authority = rest.substr(0, end);
        if (request.authority.empty() || request.authority.front() == ':' || !is_authority(request.authority)) return false;
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end);
    }
    const std::size_t question = rest.find('?');
    request.has_query = question != std::string_view::npos;
    if (request.has_query) request.query = rest.substr(question + 1);
    request.path = rest.substr(0, question);
    if (request.path.empty()) request.path = request.method == Method::Options && !request.has_query ? "*" : "/";
    return true;
}

}  // namespace grammar

namespace grammar {

/// parse_request, into a Request that is as good as new. Returns why the message is refused, or nothing.
[[nodiscard]] inline std::optional<Refusal> parse_into(std::string_view message, Request& request) {
    FieldScanner scanner;
    FieldScanner::Step step = scanner.line(message);
    if (step.kind == FieldScanner::Kind::Field && step.value.empty()) step = scanner.line(message);  // a leading empty line
    if (step.kind != FieldScanner::Kind::Field) return Refusal::Malformed;
    RequestLine line;
    Refusal why = Refusal::Malformed;
    if (!parse_request_line(step.value, line, why)) return why;
    request.method = parse_method(line.method);
    request.method_name = line.method;
    request.target = line.target;
    request.minor = line.minor;
    request.keep_alive = line.minor != 0;
    if (!grammar::parse_target(request)) return Refusal::Malformed;

    BodyFraming framing;
    std::size_t hosts = 0;
    std::string_view host;
    bool close = false;
    for (;;) {
        step = scanner.next(message);
        if (step.kind != FieldScanner::Kind::Field) break;
        if (!framing.add(step.name, step.value)) return Refusal::Malformed;
        if (step.name.size() == 4 && grammar::equals_lower(step.name, "host")) {
            ++hosts;
            host = step.value;
        } else if (step.name.size() == 10 && grammar::equals_lower(step.name, "connection")) {
            grammar::for_each_element(step.value, [&](std::string_view option) {
                if (grammar::equals_lower(option, "close")) close = true;
                if (grammar::equals_lower(option, "keep-alive")) request.keep_alive = true;
            });
        }
        request.fields.push_back({step.name, step.value});
    }
    if (step.kind != FieldScanner::Kind::End) return Refusal::Malformed;
    if (close) request.keep_alive = false;
    if (hosts > 1 || (hosts == 0 && line.minor != 0) || !grammar::is_authority(host)) return Refusal::Malformed;
    if (request.authority.empty()) request.authority = host;

    if (const auto refused = framing.judge(line.minor, std::numeric_limits<std::uint64_t>::max())) return refused;
    const std::string_view body = message.substr(scanner.position());
    const bool chunked = framing.kind() == BodyFraming::Kind::Chunked;
    if (!chunked && framing.length() != body.size()) return Refusal::Malformed;
    request.body = BodyView(body, chunked);
    return std::nullopt;
}

}  // namespace grammar

/// Parses one complete message, as HttpFramer finds it: the head, and the raw body behind it. All of `message` must be that
/// message. The result refers to `message`. Fails as the framer would, and as Malformed when the target has no valid form, when
/// Host is missing (in HTTP/1.1), repeated or malformed, and when the body is not whole.
[[nodiscard]] inline std::expected<Request, Refusal> parse_request(std::string_view message) {
    std::expected<Request, Refusal> result(std::in_place);
    if (const auto refused = grammar::parse_into(message, *result)) result = std::unexpected(*refused);
    return result;
}

}  // namespace muses::http
