#include "muses/net/http_framing.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/for_each_split.hpp"

namespace {

using muses::FrameStep;
using muses::HttpFramer;
using muses::MessageLimits;
using muses::Refusal;
using std::string_view_literals::operator""sv;
using Kind = FrameStep::Kind;

struct Case {
    std::string_view what;
    std::string raw;
    Kind kind = Kind::Complete;
    Refusal why = Refusal::Malformed;
    std::size_t rest = 0;  // bytes behind the first message
};

MessageLimits small_limits() {
    MessageLimits limits;
    limits.max_start_line_bytes = 40;
    limits.max_head_bytes = 200;
    limits.max_fields = 4;
    limits.max_body_bytes = 32;
    return limits;
}

/// Runs a framer over `raw`, which arrives in the given steps, each in a buffer of its own: what the framer remembers of an
/// earlier one must be positions.
FrameStep run(std::string_view raw, const std::vector<std::size_t>& cuts, const MessageLimits& limits, int* interims = nullptr) {
    HttpFramer framer;
    FrameStep step;
    for (const std::size_t cut : cuts) {
        const auto copy = std::make_unique<char[]>(cut);  // exact size: ASan sees one byte too many
        raw.copy(copy.get(), cut);
        step = framer.next(std::string_view(copy.get(), cut), limits);
        if (!step.interim.empty() && interims != nullptr) ++*interims;
        if (step.kind != Kind::NeedMore) return step;
    }
    return step;
}

void check(const Case& c, const MessageLimits& limits) {
    CAPTURE(c.what);
    muses::test::for_each_split(c.raw, [&](const std::vector<std::size_t>& cuts) {
        CAPTURE(cuts.size());
        CAPTURE(cuts.front());
        const FrameStep step = run(c.raw, cuts, limits);
        REQUIRE(static_cast<int>(step.kind) == static_cast<int>(c.kind));
        if (c.kind == Kind::Complete) REQUIRE(step.size == c.raw.size() - c.rest);
        if (c.kind == Kind::Refused) REQUIRE(static_cast<int>(step.why) == static_cast<int>(c.why));
    });
}

std::string get(std::string_view fields) { return std::string("GET / HTTP/1.1\r\nHost: a\r\n").append(fields).append("\r\n"); }

std::string post(std::string_view fields, std::string_view body) {
    return std::string("POST / HTTP/1.1\r\nHost: a\r\n").append(fields).append("\r\n").append(body);
}

std::string chunked(std::string_view body) { return post("Transfer-Encoding: chunked\r\n", body); }

}  // namespace

TEST_CASE("http_framing: good messages end where they end however they are cut") {
    const std::vector<Case> cases = {
        {"smallest 1.0", "GET / HTTP/1.0\r\n\r\n"},
        {"plain 1.1", get("")},
        {"no space after the colon", get("A:b\r\n")},
        {"much space around the value", get("A: \t b \t\r\n")},
        {"empty value", get("A:\r\n")},
        {"tab inside of a value", get("A: b\tc and a longer tail\r\n")},
        {"bytes above 127 in a value", get("A: \x80\xff\xc3\xa4 utf-8\r\n")},
        {"bytes above 127 in the target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n"},
        {"every token character in a name", get("!#$%&'*+-.^_`|~09azAZ: b\r\n")},
        {"unknown method", "BREW /pot HTTP/1.1\r\n\r\n"},
        {"later minor version", "GET / HTTP/1.9\r\n\r\n"},
        {"one leading empty line", "\r\nGET / HTTP/1.1\r\n\r\n"},
        {"two pipelined", get("") + get(""), Kind::Complete, Refusal::Malformed, get("").size()},
        {"garbage behind a message is not looked at", get("") + "\x01\x02", Kind::Complete, Refusal::Malformed, 2},
        {"length zero", post("Content-Length: 0\r\n", "")},
        {"length with leading zeros", post("Content-Length: 0005\r\n", "hello")},
        {"length and more behind", post("Content-Length: 5\r\n", "helloGET"), Kind::Complete, Refusal::Malformed, 3},
        {"length in 1.0", "POST / HTTP/1.0\r\ncontent-length: 3\r\n\r\nabc"},
        {"body on GET", "GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"},
        {"length at the limit", post("Content-Length: 32\r\n", std::string(32, 'x'))},
        {"no chunk", chunked("0\r\n\r\n")},
        {"two chunks", chunked("5\r\nhello\r\n00A\r\n0123456789\r\n0\r\n\r\n")},
        {"chunked in another case", post("TRANSFER-ENCODING: ChUnKeD\r\n", "1\r\na\r\n0\r\n\r\n")},
        {"chunk data that looks like an end", chunked("7\r\n0\r\n\r\n\r\n\r\n0\r\n\r\n")},
        {"extensions", chunked("1;a;b=c; d = \"e;\\\"\r\"\r\na\r\n0\r\n\r\n").replace(0, 0, ""),
         Kind::Refused},  // CR inside quotes
        {"good extensions", chunked("1;a;b=c ; d = \"e;\\\"\t\"\r\na\r\n0;x\r\n\r\n")},
        {"trailers", chunked("1\r\na\r\n0\r\nA: b\r\nC:d\r\n\r\n")},
        {"trailers and more behind", chunked("0\r\nA: b\r\n\r\nGET"), Kind::Complete, Refusal::Malformed, 3},
        {"body at the limit in chunks", chunked("10\r\n0123456789abcdef\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n")},
        {"as many fields as allowed", get("A:1\r\nB:2\r\nC:3\r\n")},
        {"start line at its limit", "GET /" + std::string(26, 'x') + " HTTP/1.1\r\n\r\n"},
        {"head at its limit", "GET / HTTP/1.1\r\nA:" + std::string(200 - 16 - 2 - 4, 'x') + "\r\n\r\n"},
        {"other expectations are not our business", get("Expect: tea\r\n")},
    };
    for (const Case& c : cases) check(c, small_limits());
}

TEST_CASE("http_framing: bad messages are refused for the same reason however they are cut") {
    const auto bad = Kind::Refused;
    const std::vector<Case> cases = {
        {"NUL at the start", std::string("\0GET / HTTP/1.1\r\n\r\n", 19), bad},
        {"TLS", "\x16\x03\x01\x02", bad},
        {"two leading empty lines", "\r\n\r\nGET / HTTP/1.1\r\n\r\n", bad},
        {"a leading bare LF", "\nGET / HTTP/1.1\r\n\r\n", bad},
        {"a leading bare CR", "\rGET / HTTP/1.1\r\n\r\n", bad},
        {"leading space", " GET / HTTP/1.1\r\n\r\n", bad},
        {"no version", "GET /\r\n\r\n", bad},
        {"no target", "GET HTTP/1.1\r\n\r\n", bad},
        {"empty target", "GET  HTTP/1.1\r\n\r\n", bad},
        {"method only", "GET\r\n\r\n", bad},
        {"bad method character", "G@T / HTTP/1.1\r\n\r\n", bad},
        {"space in the target", "GET /a b HTTP/1.1\r\n\r\n", bad},
        {"two spaces before the version", "GET /  HTTP/1.1\r\n\r\n", bad},
        {"tab in the target", "GET /a\tb HTTP/1.1\r\n\r\n", bad},
        {"tab as separator", "GET\t/ HTTP/1.1\r\n\r\n", bad},
        {"space behind the version", "GET / HTTP/1.1 \r\n\r\n", bad},
        {"control character in the target", "GET /\x01 HTTP/1.1\r\n\r\n", bad},
        {"DEL in the target", "GET /\x7f HTTP/1.1\r\n\r\n", bad},
        {"lower-case version", "GET / http/1.1\r\n\r\n", bad},
        {"other protocol", "GET / ICAP/1.1\r\n\r\n", bad},
        {"version with two digits", "GET / HTTP/1.10\r\n\r\n", bad},
        {"version without minor", "GET / HTTP/1\r\n\r\n", bad},
        {"version with a letter", "GET / HTTP/1.x\r\n\r\n", bad},
        {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bad, Refusal::UnsupportedVersion},
        {"HTTP/0.9", "GET / HTTP/0.9\r\n\r\n", bad, Refusal::UnsupportedVersion},
        {"bare LF behind the request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", bad},
        {"bare LF behind a field", "GET / HTTP/1.1\r\nHost: a\nB: c\r\n\r\n", bad},
        {"bare LF as the empty line", "GET / HTTP/1.1\r\nHost: a\r\n\n", bad},
        {"bare CR in a value", get("A: b\rc\r\n"), bad},
        {"bare CR as the empty line", "GET / HTTP/1.1\r\nHost: a\r\n\rX", bad},
        {"NUL in a value", get(std::string_view("A: b\0c\r\n", 8)), bad},
        {"control character in a value", get("A: b\x0b c and more of it\r\n"), bad},
        {"DEL in a value", get("A: some bytes before \x7f\r\n"), bad},
        {"space before the colon", get("A : b\r\n"), bad},
        {"space before the first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", bad},
        {"folded line", get("A: b\r\n c\r\n"), bad},
        {"folded line with a tab", get("A: b\r\n\tc\r\n"), bad},
        {"no name", get(": b\r\n"), bad},
        {"no colon", get("A\r\n"), bad},
        {"bad name character", get("A(: b\r\n"), bad},
        {"name above 127", get("\xc3\xa4: b\r\n"), bad},
        {"length twice", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), bad},
        {"length twice in another case", post("Content-Length: 5\r\ncOntent-length: 6\r\n", "hello"), bad},
        {"length as a list", post("Content-Length: 5, 5\r\n", "hello"), bad},
        {"length with a sign", post("Content-Length: +5\r\n", "hello"), bad},
        {"negative length", post("Content-Length: -5\r\n", "hello"), bad},
        {"empty length", post("Content-Length:\r\n", ""), bad},
        {"hexadecimal length", post("Content-Length: 0x5\r\n", "hello"), bad},
        {"length with a space inside", post("Content-Length: 1 2\r\n", "hello"), bad},
        {"length over the limit", post("Content-Length: 33\r\n", ""), bad, Refusal::BodyTooLarge},
        {"length of 2^64", post("Content-Length: 18446744073709551616\r\n", ""), bad, Refusal::BodyTooLarge},
        {"length of 2^64 + 3", post("Content-Length: 18446744073709551619\r\n", "abc"), bad, Refusal::BodyTooLarge},
        {"length of many digits", post("Content-Length: 99999999999999999999999999999999\r\n", ""), bad, Refusal::BodyTooLarge},
        {"chunked with a length", post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"), bad},
        {"length with chunked", post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), bad},
        {"other coding with a length", post("Content-Length: 5\r\nTransfer-Encoding: gzip\r\n", "0\r\n\r\n"), bad},
        {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", bad},
        {"chunked twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), bad},
        {"empty coding", post("Transfer-Encoding:\r\n", "0\r\n\r\n"), bad},
        {"gzip", post("Transfer-Encoding: gzip\r\n", ""), bad, Refusal::UnsupportedCoding},
        {"gzip then chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), bad, Refusal::UnsupportedCoding},
        {"identity", post("Transfer-Encoding: identity\r\n", ""), bad, Refusal::UnsupportedCoding},
        {"nearly chunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), bad, Refusal::UnsupportedCoding},
        {"chunked in quotes", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), bad, Refusal::UnsupportedCoding},
        {"chunked with a parameter", post("Transfer-Encoding: chunked;a=b\r\n", "0\r\n\r\n"), bad, Refusal::UnsupportedCoding},
        {"no chunk size", chunked("\r\na\r\n0\r\n\r\n"), bad},
        {"chunk size that is none", chunked("g\r\n"), bad},
        {"chunk size with a sign", chunked("+1\r\na\r\n0\r\n\r\n"), bad},
        {"chunk size with 0x", chunked("0x1\r\na\r\n0\r\n\r\n"), bad},
        {"space before the chunk size", chunked(" 1\r\na\r\n0\r\n\r\n"), bad},
        {"space behind the chunk size", chunked("1 \r\na\r\n0\r\n\r\n"), bad},
        {"chunk size of 17 digits", chunked("00000000000000001\r\na\r\n0\r\n\r\n"), bad},
        {"chunk size over the limit", chunked("21\r\n"), bad, Refusal::BodyTooLarge},
        {"chunk size of 2^64 - 1", chunked("1\r\na\r\nffffffffffffffff\r\n"), bad, Refusal::BodyTooLarge},
        {"chunks over the limit together", chunked("20\r\n0123456789abcdef0123456789abcdef\r\n1\r\n"), bad, Refusal::BodyTooLarge},
        {"bare LF behind the chunk size", chunked("1\na\r\n0\r\n\r\n"), bad},
        {"bare CR behind the chunk size", chunked("1\ra\r\n0\r\n\r\n"), bad},
        {"chunk longer than its size", chunked("1\r\nab\r\n0\r\n\r\n"), bad},
        {"chunk shorter than its size", chunked("3\r\na\r\n0\r\n\r\n").append("xxxx"), bad},
        {"chunk ends in a bare LF", chunked("1\r\na\n0\r\n\r\n"), bad},
        {"bare LF in an extension", chunked("1;a\nb\r\na\r\n0\r\n\r\n"), bad},
        {"NUL in an extension", chunked(std::string_view("1;a=\"\0\"\r\na\r\n0\r\n\r\n", 18)), bad},
        {"extension without a name", chunked("1;\r\na\r\n0\r\n\r\n"), bad},
        {"extension without a value", chunked("1;a=\r\na\r\n0\r\n\r\n"), bad},
        {"extension with an open quote", chunked("1;a=\"b\r\na\r\n0\r\n\r\n"), bad},
        {"space behind an extension", chunked("1;a=\"b\" \r\na\r\n0\r\n\r\n"), bad},
        {"extension without a semicolon", chunked("1 a\r\na\r\n0\r\n\r\n"), bad},
        {"extensions over the limit", chunked("1;" + std::string(200, 'a') + "\r\n"), bad, Refusal::BodyTooLarge},
        {"extensions over the limit together", chunked("1;" + std::string(150, 'a') + "\r\na\r\n1;" + std::string(60, 'a')), bad,
         Refusal::BodyTooLarge},
        {"space before a trailer's colon", chunked("0\r\nA : b\r\n\r\n"), bad},
        {"folded trailer", chunked("0\r\nA: b\r\n c\r\n\r\n"), bad},
        {"bare LF in the trailers", chunked("0\r\n\n"), bad},
        {"length in the trailers", chunked("0\r\nContent-Length: 3\r\n\r\n"), bad},
        {"coding in the trailers", chunked("0\r\nTransfer-Encoding: chunked\r\n\r\n"), bad},
        {"host in the trailers", chunked("0\r\nHost: b\r\n\r\n"), bad},
        {"too many trailers", chunked("0\r\nA:1\r\nB:2\r\nC:3\r\nD:4\r\nE:5\r\n\r\n"), bad, Refusal::HeadTooLarge},
        {"too long trailers", chunked("0\r\nA:" + std::string(200, 'x') + "\r\n\r\n"), bad, Refusal::HeadTooLarge},
        {"start line over its limit", "GET /" + std::string(27, 'x') + " HTTP/1.1\r\n\r\n", bad, Refusal::StartLineTooLong},
        {"endless start line", std::string(60, 'x'), bad, Refusal::StartLineTooLong},
        {"the limit comes before what is wrong behind it", "GET /" + std::string(60, 'x') + "\x01", bad, Refusal::StartLineTooLong},
        {"what is wrong comes before the limit", "GET /\x01" + std::string(60, 'x'), bad},
        {"too many fields", get("A:1\r\nB:2\r\nC:3\r\nD:4\r\n"), bad, Refusal::HeadTooLarge},
        {"head over its limit", "GET / HTTP/1.1\r\nA:" + std::string(200 - 16 - 2 - 3, 'x') + "\r\n\r\n", bad,
         Refusal::HeadTooLarge},
        {"endless field", "GET / HTTP/1.1\r\nA:" + std::string(300, 'x'), bad, Refusal::HeadTooLarge},
        {"endless name", "GET / HTTP/1.1\r\n" + std::string(300, 'x'), bad, Refusal::HeadTooLarge},
    };
    for (const Case& c : cases) check(c, small_limits());
}

TEST_CASE("http_framing: a message that is not whole yet needs more at every byte") {
    for (const std::string& raw : {get("A: b\r\n"), post("Content-Length: 5\r\n", "hello"),
                                   chunked("5;a=\"b\"\r\nhello\r\n0\r\nA: b\r\n\r\n"), "\r\n" + get("")}) {
        for (std::size_t size = 0; size < raw.size(); ++size) {
            const FrameStep step = run(raw, {size}, small_limits());
            REQUIRE(step.kind == Kind::NeedMore);
            const std::size_t body = raw.find("\r\n\r\n") + 4;
            REQUIRE(step.head_complete == (size >= body));
        }
    }
}

TEST_CASE("http_framing: a single bad byte anywhere in a head never yields a longer message") {
    const std::string good = "GET /a HTTP/1.1\r\nHost: b\r\nX-Y: some value\r\n\r\n";
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (const char c : {'\0', '\n', '\r', '\x0b', '\x7f', '\x1b'}) {
            std::string raw = good;
            if (raw[at] == c) continue;
            raw[at] = c;
            CAPTURE(at);
            muses::test::for_each_split(raw, [&](const auto& cuts) {
                const FrameStep step = run(raw, cuts, {});
                REQUIRE(step.kind == Kind::Refused);
                REQUIRE(step.why == Refusal::Malformed);
            });
        }
    }
}

TEST_CASE("http_framing: Expect is answered once when the head is whole and the body is not") {
    const std::string raw = post("Expect: 100-Continue\r\nContent-Length: 5\r\n", "hello");
    std::vector<std::size_t> bytewise;
    for (std::size_t i = 1; i <= raw.size(); ++i) bytewise.push_back(i);
    int interims = 0;
    CHECK(run(raw, bytewise, {}, &interims).kind == Kind::Complete);
    CHECK(interims == 1);
    interims = 0;
    CHECK(run(raw, {raw.size()}, {}, &interims).kind == Kind::Complete);
    CHECK(interims == 0);
    HttpFramer framer;
    CHECK(framer.next(std::string_view(raw).substr(0, raw.size() - 5), {}).interim == "HTTP/1.1 100 Continue\r\n\r\n");
    CHECK(framer.next(std::string_view(raw).substr(0, raw.size() - 1), {}).interim.empty());
    CHECK(framer.next(raw, {}).size == raw.size());

    interims = 0;
    const std::string chunks = post("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", "");
    CHECK(run(chunks, {chunks.size()}, {}, &interims).head_complete);
    CHECK(interims == 1);

    interims = 0;
    const std::string old = "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    CHECK(run(old, {old.size()}, {}, &interims).head_complete);
    CHECK(interims == 0);
    const std::string no_body = get("Expect: 100-continue\r\n");
    CHECK(run(no_body, {no_body.size()}, {}, &interims).kind == Kind::Complete);
    CHECK(interims == 0);
}

TEST_CASE("http_framing: a refusal stays until reset and reset starts afresh") {
    HttpFramer framer;
    CHECK(framer.next("G@", {}).kind == Kind::NeedMore);  // judged with its line
    CHECK(framer.next("G@T / HTTP/1.1\r\n", {}).kind == Kind::Refused);
    CHECK(framer.next(get(""), {}).kind == Kind::Refused);
    framer.reset();
    CHECK(framer.next(get(""), {}).size == get("").size());
    framer.reset();
    const std::string chunks = chunked("1\r\na\r\n0\r\n\r\n");
    CHECK(framer.next(chunks, {}).size == chunks.size());
    framer.reset();
    CHECK(framer.next(post("Content-Length: 1\r\n", "a"), {}).size == post("Content-Length: 1\r\n", "a").size());
}

TEST_CASE("http_framing: huge limits do not overflow") {
    MessageLimits limits;
    limits.max_start_line_bytes = limits.max_head_bytes = limits.max_fields = limits.max_body_bytes = static_cast<std::size_t>(-1);
    for (const std::string_view length :
         {"18446744073709551615"sv, "18446744073709551614"sv, "99999999999999999999"sv, "18446744073709551580"sv}) {
        const std::string raw = post(std::string("Content-Length: ").append(length).append("\r\n"), "x");
        const FrameStep step = run(raw, {raw.size()}, limits);
        CHECK(step.kind != Kind::Complete);
    }
    const std::string chunks = chunked("1\r\na\r\nffffffffffffffff\r\nb");
    CHECK(run(chunks, {chunks.size()}, limits).kind == Kind::Refused);
    CHECK(run(chunked("ffffffffffffffff\r\nb"), {chunked("ffffffffffffffff\r\nb").size()}, limits).kind == Kind::NeedMore);
}

TEST_CASE("http_framing: default limits refuse what is beyond them") {
    const MessageLimits limits;
    const std::string line = "GET /" + std::string(limits.max_start_line_bytes, 'x') + " HTTP/1.1\r\n\r\n";
    CHECK(run(line, {line.size()}, limits).why == Refusal::StartLineTooLong);
    std::string fields;
    for (std::size_t i = 0; i < limits.max_fields; ++i) fields += "A: b\r\n";
    CHECK(run(get(fields), {get(fields).size()}, limits).why == Refusal::HeadTooLarge);
    const std::string long_field = get("A: " + std::string(limits.max_head_bytes, 'x') + "\r\n");
    CHECK(run(long_field, {long_field.size()}, limits).why == Refusal::HeadTooLarge);
    const std::string body = post("Content-Length: " + std::to_string(limits.max_body_bytes + 1) + "\r\n", "");
    CHECK(run(body, {body.size()}, limits).why == Refusal::BodyTooLarge);
}

TEST_CASE("http_framing: input that arrives byte by byte stays linear") {
    MessageLimits limits;
    limits.max_head_bytes = limits.max_body_bytes = 64 * 1024 * 1024;
    limits.max_start_line_bytes = limits.max_head_bytes;
    limits.max_fields = 1'000'000;
    const std::size_t size = 400'000;  // a quadratic scan would judge 10^10 bytes more
    std::string fields;
    while (fields.size() < size) fields += "A: bcdefghijklmnopqrstuvwxyz\r\n";
    for (const std::string& raw :
         {"GET /" + std::string(size, 'x') + " HTTP/1.1\r\n\r\n", get("A: " + std::string(size, ' ') + "\r\n"), get(fields),
          chunked("1;a=" + std::string(size, 'x') + "\r\nx\r\n0\r\n\r\n"),
          chunked("0\r\nA: " + std::string(size, 'x') + "\r\n\r\n"),
          post("Content-Length: " + std::to_string(size) + "\r\n", std::string(size, 'x'))}) {
        HttpFramer framer;
        FrameStep step;
        const auto start = std::chrono::steady_clock::now();
        for (std::size_t i = 1; i <= raw.size(); ++i) {
            step = framer.next(std::string_view(raw).substr(0, i), limits);
            if (step.kind != Kind::NeedMore) break;
        }
        CHECK(step.kind == Kind::Complete);
        CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
    }
}

TEST_CASE("http_framing: a refusal is a whole small answer that closes the connection") {
    struct Expected {
        Refusal why;
        std::string_view status;
    };
    for (const auto& [why, status] : std::vector<Expected>{{Refusal::Malformed, "400 Bad Request"},
                                                           {Refusal::StartLineTooLong, "414 URI Too Long"},
                                                           {Refusal::HeadTooLarge, "431 Request Header Fields Too Large"},
                                                           {Refusal::BodyTooLarge, "413 Content Too Large"},
                                                           {Refusal::UnsupportedCoding, "501 Not Implemented"},
                                                           {Refusal::UnsupportedVersion, "505 HTTP Version Not Supported"},
                                                           {Refusal::HeadTimeout, "408 Request Timeout"},
                                                           {Refusal::BodyTimeout, "408 Request Timeout"},
                                                           {Refusal::Overloaded, "503 Service Unavailable"},
                                                           {Refusal::HandlerFailed, "500 Internal Server Error"}}) {
        const std::string text = HttpFramer::refusal(why);
        CAPTURE(text);
        CHECK(text.starts_with("HTTP/1.1 " + std::string(status) + "\r\n"));
        CHECK(text.find("\r\nDate: ") != std::string::npos);
        CHECK(text.find("\r\nConnection: close\r\n") != std::string::npos);
        CHECK(text.find("\r\nContent-Type: text/plain; charset=utf-8\r\n") != std::string::npos);
        const std::size_t body = text.find("\r\n\r\n") + 4;
        CHECK(text.find("\r\nContent-Length: " + std::to_string(text.size() - body) + "\r\n") != std::string::npos);
        CHECK(text.size() > body);
    }
}

TEST_CASE("http_framing: value scanning agrees with its definition for every byte at every place") {
    namespace grammar = muses::http::grammar;
    for (int byte = 0; byte < 256; ++byte) {
        for (std::size_t size = 1; size <= 20; ++size) {
            for (std::size_t at = 0; at < size; ++at) {
                std::string text(size, '\xff');
                for (std::size_t i = 0; i < size; i += 3) text[i] = '\t';
                for (std::size_t i = 1; i < size; i += 3) text[i] = ' ';
                text[at] = static_cast<char>(byte);
                if (at + 1 < size) text[at + 1] = '\x80';  // a borrow would show here
                const char* const found = grammar::skip_value_chars(text.data(), text.data() + size);
                const std::size_t expected = grammar::is_value_char(static_cast<char>(byte)) ? size : at;
                REQUIRE(static_cast<std::size_t>(found - text.data()) == expected);
            }
        }
    }
}
