#include "muses/net_components/byte_ranges.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

using muses::http::ByteRange;
using muses::http::evaluate_range;
using muses::http::RangeDecision;
using Kind = muses::http::RangeDecision::Kind;

namespace {

/// "0+10 90+10": first and length of each range; or "whole", or "none".
std::string shown(const RangeDecision& decision) {
    if (decision.kind == Kind::Whole) return "whole";
    if (decision.kind == Kind::Unsatisfiable) return "none";
    std::string text;
    for (const ByteRange range : decision.ranges) {
        if (!text.empty()) text += " ";
        text += std::to_string(range.first) + "+" + std::to_string(range.length);
    }
    return text;
}

/// The numbers 1 to `count` as "1-1,11-11,…", `step` apart.
std::string tiny_ranges(int count, int step) {
    std::string value = "bytes=";
    for (int i = 0; i < count; ++i) value += std::to_string(i * step + 1) + "-" + std::to_string(i * step + 1) + ",";
    return value;
}

}  // namespace

TEST_CASE("byte_ranges: what a Range field asks for") {
    struct Case {
        std::string_view value;
        std::uint64_t size;
        std::string_view expected;
    };
    const std::vector<Case> cases = {
        {"bytes=0-9", 100, "0+10"},
        {"bytes=10-", 100, "10+90"},
        {"bytes=-10", 100, "90+10"},
        {"bytes=0-0", 1, "0+1"},
        {"bytes=99-99", 100, "99+1"},
        {"bytes=90-1000", 100, "90+10"},  // cut at the end
        {"bytes=-1000", 100, "0+100"},
        {"BYTES=0-9", 100, "0+10"},
        {"bytes= 0-9 ", 100, "0+10"},
        {"bytes=,, 0-9,,", 100, "0+10"},
        {"bytes=0-18446744073709551615", 100, "0+100"},
        {"bytes=0-99999999999999999999999999", 100, "0+100"},  // does not fit, and is no small number for that
        {"bytes=-99999999999999999999999999", 100, "0+100"},
        {"bytes=18446744073709551614-", 18446744073709551615U, "18446744073709551614+1"},
        // not there
        {"bytes=100-", 100, "none"},
        {"bytes=100-200", 100, "none"},
        {"bytes=-0", 100, "none"},
        {"bytes=0-", 0, "none"},
        {"bytes=-5", 0, "none"},
        {"bytes=18446744073709551615-", 100, "none"},
        {"bytes=99999999999999999999999999-", 100, "none"},
        {"bytes=100-,200-300", 100, "none"},
        {"bytes=100-,0-0", 100, "0+1"},  // what is there counts
        // not understood
        {"", 100, "whole"},
        {"bytes", 100, "whole"},
        {"bytes=", 100, "whole"},
        {"bytes=,", 100, "whole"},
        {"bytes =0-1", 100, "whole"},
        {"bytes=-", 100, "whole"},
        {"bytes=5", 100, "whole"},
        {"bytes=9-5", 100, "whole"},
        {"bytes=a-b", 100, "whole"},
        {"bytes=0x0-9", 100, "whole"},
        {"bytes=+0-9", 100, "whole"},
        {"bytes=0 -9", 100, "whole"},
        {"bytes=0- 9", 100, "whole"},
        {"bytes=--5", 100, "whole"},
        {"bytes=0-1-2", 100, "whole"},
        {"bytes=0-9;10-19", 100, "whole"},
        {"bytes=0-9,x", 1000, "whole"},  // one bad element spoils the set
        {"lines=0-9", 100, "whole"},
        // several
        {"bytes=0-9,90-99", 1000, "0+10 90+10"},
        {"bytes=0-9 ,\t990-", 1000, "0+10 990+10"},
        {"bytes=0-9,10-19", 1000, "0+10 10+10"},
        {"bytes=0-9,-10", 1000, "0+10 990+10"},
        // not worth it
        {"bytes=0-9,5-14", 1000, "whole"},  // overlap
        {"bytes=0-9,0-9", 1000, "whole"},
        {"bytes=0-,0-,0-,0-", 1000, "whole"},
        {"bytes=90-99,0-9", 1000, "whole"},  // backwards
        {"bytes=0-9,20-29", 100, "whole"},   // the parts would be more than the whole
        {"bytes=0-400,500-", 1000, "whole"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.value);
        CAPTURE(c.size);
        CHECK(shown(evaluate_range(c.value, c.size)) == c.expected);
    }
}

TEST_CASE("byte_ranges: more ranges than anybody needs are answered with the whole") {
    CHECK(evaluate_range(tiny_ranges(32, 1000), 1'000'000).ranges.size() == 32);
    CHECK(evaluate_range(tiny_ranges(33, 1000), 1'000'000).kind == Kind::Whole);
    CHECK(evaluate_range(tiny_ranges(100'000, 2), 1'000'000).kind == Kind::Whole);
    std::string beyond = "bytes=";
    for (int i = 0; i < 33; ++i) beyond += "2000000-,";  // those that are not there count, too
    CHECK(evaluate_range(beyond, 1'000'000).kind == Kind::Whole);
}

TEST_CASE("byte_ranges: parts are never more bytes than the whole") {
    for (const std::uint64_t size : {1U, 10U, 159U, 160U, 161U, 319U, 320U, 321U, 5'000U, 100'000U}) {
        for (int count = 2; count <= 32; ++count) {
            const auto step = static_cast<int>(size) / count;
            if (step < 2) continue;
            const RangeDecision decision = evaluate_range(tiny_ranges(count, step), size);
            if (decision.kind != Kind::Partial || decision.ranges.size() < 2) continue;
            const std::string content(static_cast<std::size_t>(size), 'x');
            const auto response = muses::http::partial_response(
                decision.ranges, size, {{"Content-Type", "text/html; charset=utf-8"}},
                [&](muses::Payload& payload, ByteRange range) {
                    payload.append(content.substr(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.length)));
                });
            CAPTURE(size);
            CAPTURE(count);
            CHECK(response.body.size() <= size);
        }
    }
}

TEST_CASE("byte_ranges: several parts carry their type and their place and the boundary") {
    const std::string content = "The quick brown fox jumps over the lazy dog";
    const auto response = muses::http::partial_response(
        {{4, 5}, {40, 3}}, content.size(), {{"Content-Type", "text/plain"}, {"ETag", "\"x\""}},
        [&](muses::Payload& payload, ByteRange range) { payload.append(content.substr(range.first, range.length)); });
    CHECK(response.status == muses::http::Status::PartialContent);
    REQUIRE(response.fields.size() == 2);
    const std::string& type = response.fields[0].value;
    const std::string_view prefix = "multipart/byteranges; boundary=";
    REQUIRE(type.starts_with(prefix));
    const std::string boundary = type.substr(prefix.size());
    CHECK(boundary.size() <= 70);  // RFC 2046 section 5.1.1
    std::string body;
    for (std::size_t i = 0; i < response.body.segments(); ++i) body += std::get<std::string>(response.body.segment(i));
    CHECK(body == "--" + boundary + "\r\nContent-Type: text/plain\r\nContent-Range: bytes 4-8/43\r\n\r\nquick\r\n--" + boundary +
                      "\r\nContent-Type: text/plain\r\nContent-Range: bytes 40-42/43\r\n\r\ndog\r\n--" + boundary + "--\r\n");
}
