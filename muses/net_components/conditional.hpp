// Conditional requests (RFC 9110 §13): what a client already has, and what follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "muses/detail/imf_date.hpp"
#include "muses/net/http_grammar.hpp"
#include "muses/net_components/http_message.hpp"

namespace muses::http {

/// True when a list of entity tags (the value of If-Match or If-None-Match) has `tag`, which is written with its quotes. "*"
/// has every tag. Weak comparison ignores W/ on either side; strong comparison matches no weak tag. A malformed element
/// has no tag, and what follows it is not looked at.
[[nodiscard]] constexpr bool tag_list_has(std::string_view list, std::string_view tag, bool weak_comparison) noexcept {
    list = grammar::trim(list);
    if (list == "*") return true;
    const bool tag_is_weak = tag.starts_with("W/");
    if (tag_is_weak) tag.remove_prefix(2);
    for (;;) {
        while (!list.empty() && (list.front() == ',' || list.front() == ' ' || list.front() == '\t')) list.remove_prefix(1);
        const bool weak = list.starts_with("W/");
        if (weak) list.remove_prefix(2);
        if (!list.starts_with('"')) return false;
        const std::size_t end = list.find('"', 1);
        if (end == std::string_view::npos) return false;
        const bool same = list.substr(0, end + 1) == tag && (weak_comparison || (!weak && !tag_is_weak));
        list = grammar::trim(list.substr(end + 1));
        if (!list.empty() && list.front() != ',') return false;
        if (same) return true;
    }
}

/// What the preconditions of a request come to.
enum class Precondition : std::uint8_t {
    Holds,        ///< or there is none: answer as usual
    NotModified,  ///< 304: the client has it
    Failed,       ///< 412
};

/// Judges the conditional fields of a GET or HEAD, in the order of RFC 9110 §13.2.2, against what is there: its entity tag with
/// its quotes, and when it was modified (seconds since 1970). A date that is none, or is repeated, is as if it were not there.
[[nodiscard]] inline Precondition evaluate_preconditions(const Request& request, std::string_view tag,
                                                         std::int64_t modified) noexcept {
    struct Seen {
        bool present = false;
        bool matches = false;
    };
    Seen match;
    Seen none_match;
    std::string_view since;
    std::string_view unless_since;
    unsigned sinces = 0;
    unsigned unless_sinces = 0;
    for (const Field& field : request.fields) {
        if (field.name.size() < 8 || (field.name[0] | 0x20) != 'i' || field.name[2] != '-') continue;
        switch (field.name.size()) {
            case 8:
                if (grammar::equals_lower(field.name, "if-match"))
                    match = {true, match.matches || tag_list_has(field.value, tag, false)};
                break;
            case 13:
                if (grammar::equals_lower(field.name, "if-none-match"))
                    none_match = {true, none_match.matches || tag_list_has(field.value, tag, true)};
                break;
            case 17:
                if (grammar::equals_lower(field.name, "if-modified-since")) since = field.value, ++sinces;
                break;
            case 19:
                if (grammar::equals_lower(field.name, "if-unmodified-since")) unless_since = field.value, ++unless_sinces;
                break;
            default: break;
        }
    }
    const auto date = [](std::string_view text, unsigned times) {
        return times == 1 ? muses::detail::parse_http_date(text) : std::nullopt;
    };
    if (match.present) {
        if (!match.matches) return Precondition::Failed;
    } else if (const auto limit = date(unless_since, unless_sinces); limit && modified > *limit) {
        return Precondition::Failed;
    }
    if (none_match.present) return none_match.matches ? Precondition::NotModified : Precondition::Holds;
    if (const auto limit = date(since, sinces); limit && modified <= *limit) return Precondition::NotModified;
    return Precondition::Holds;
}

/// Whether Range is to be looked at (RFC 9110 §13.1.5): there is no If-Range, or it names exactly what is there. A date does so only
/// when it is a strong validator: what was modified in the second of the answer may change within it.
[[nodiscard]] inline bool if_range_holds(const Request& request, std::string_view tag, std::int64_t modified,
                                         std::int64_t now) noexcept {
    bool holds = true;
    unsigned times = 0;
    request.fields.for_each("if-range", [&](std::string_view value) {
        ++times;
        if (value.starts_with('"') || value.starts_with("W/")) {
            holds = value == tag && !tag.starts_with("W/");
        } else {
            const auto date = muses::detail::parse_http_date(value);
            holds = date && *date == modified && modified < now;
        }
    });
    return holds && times <= 1;
}

}  // namespace muses::http
