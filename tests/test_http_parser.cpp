#include "muses/net_components/http_parser.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "muses/net/http_framing.hpp"
#include "muses/net_components/conditional.hpp"
#include "muses/net_components/http_codec.hpp"
#include "muses/net_components/request_path.hpp"

using namespace std::string_literals;
namespace http = muses::http;
using http::Method;
using http::parse_request;
using http::Status;
using muses::Refusal;

namespace {

std::string bytes_of(const muses::Payload& payload) {
    std::string bytes;
    for (std::size_t i = 0; i < payload.segments(); ++i) {
        if (const auto* owned = std::get_if<std::string>(&payload.segment(i))) bytes += *owned;
        if (const auto* shared = std::get_if<muses::SharedSlice>(&payload.segment(i)))
            bytes += shared->bytes->substr(shared->offset, shared->length);
    }
    return bytes;
}

bool wishes_to_stay(const std::string& version, const std::string& fields) {
    const std::string raw = "GET / HTTP/" + version + "\r\nHost: a\r\n" + fields + "\r\n";
    const auto request = parse_request(raw);
    REQUIRE(request.has_value());
    return request->keep_alive;
}

http::Precondition judge(const std::string& fields, std::string_view tag = "\"t\"", std::int64_t modified = 784111777) {
    const std::string raw = "GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n";
    const auto request = parse_request(raw);
    REQUIRE(request.has_value());
    return http::evaluate_preconditions(*request, tag, modified);
}

std::string resolved(std::string_view path, bool hidden = false) {
    std::string scratch;
    const auto name = http::resolve_path(path, hidden, scratch);
    return name ? std::string(*name) : "!" + std::to_string(http::code_of(name.error()));
}

}  // namespace

TEST_CASE("http_parser: a request is taken apart") {
    const std::string raw =
        "POST /a/b%20c?x=1&y=? HTTP/1.1\r\nhOST: example.org:8080\r\nX-Empty:\r\nX-Y: \t some value \r\nContent-Length: "
        "5\r\n\r\nhello";
    const auto request = parse_request(raw);
    REQUIRE(request.has_value());
    CHECK(request->method == Method::Post);
    CHECK(request->method_name == "POST");
    CHECK(request->target == "/a/b%20c?x=1&y=?");
    CHECK(request->path == "/a/b%20c");
    CHECK(request->query == "x=1&y=?");
    CHECK(request->has_query);
    CHECK(request->authority == "example.org:8080");
    CHECK(request->minor == 1);
    CHECK(request->keep_alive);
    CHECK(request->fields.size() == 4);
    CHECK(request->fields.find("host") == "example.org:8080");
    CHECK(request->fields.find("x-empty") == "");
    CHECK(request->fields.find("x-y") == "some value");
    CHECK(!request->fields.find("x-z"));
    CHECK(request->body.decoded() == "hello");
    // Zero-copy: the views are into the message.
    CHECK(request->path.data() == raw.data() + 5);
}

TEST_CASE("http_parser: methods are known by their exact names") {
    for (const std::string_view name : {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}) {
        CHECK(http::to_string(http::parse_method(name)) == name);
    }
    for (const std::string_view name : {"", "get", "Get", "GETS", "GE", "BREW", "PROPFIND"})
        CHECK(http::parse_method(name) == Method::Unknown);
    const auto request = parse_request("BREW / HTTP/1.1\r\nHost: a\r\n\r\n");
    REQUIRE(request.has_value());
    CHECK(request->method == Method::Unknown);
    CHECK(request->method_name == "BREW");
}

TEST_CASE("http_parser: targets have four forms") {
    struct Case {
        std::string method, target;
        bool good;
        std::string path = {}, query = {}, authority = "h";
    };
    for (const Case& c : std::vector<Case>{
             {"GET", "/", true, "/"},
             {"GET", "/?", true, "/"},
             {"GET", "/a?b?c", true, "/a", "b?c"},
             {"GET", "//a", true, "//a"},
             {"GET", "http://x.org", true, "/", "", "x.org"},
             {"GET", "HTTP://x.org:80/a?b", true, "/a", "b", "x.org:80"},
             {"GET", "https://[::1]:8443/a", true, "/a", "", "[::1]:8443"},
             {"GET", "http://x.org?b", true, "/", "b", "x.org"},
             {"OPTIONS", "*", true, "*"},
             {"OPTIONS", "http://x.org", true, "*", "", "x.org"},
             {"OPTIONS", "/a", true, "/a"},
             {"CONNECT", "x.org:443", true, "", "", "x.org:443"},
             {"GET", "*", false},
             {"GET", "a", false},
             {"GET", "a/b", false},
             {"GET", "x.org:443", false},
             {"GET", "ftp://x.org/", false},
             {"GET", "http:/x.org/", false},
             {"GET", "http:///a", false},
             {"GET", "http://:80/a", false},
             {"GET", "http://u@x.org/a", false},
             {"GET", "http://u:p@x.org/a", false},
             {"GET", "/a#b", false},
             {"GET", "?a", false},
             {"CONNECT", "/", false},
             {"CONNECT", "x.org", false},
             {"CONNECT", "x.org:", false},
             {"CONNECT", ":443", false},
         }) {
        CAPTURE(c.target);
        const std::string raw = c.method + " " + c.target + " HTTP/1.1\r\nHost: h\r\n\r\n";
        const auto request = parse_request(raw);
        REQUIRE(request.has_value() == c.good);
        if (!c.good) continue;
        CHECK(request->path == c.path);
        CHECK(request->query == c.query);
        CHECK(request->authority == c.authority);
    }
}

TEST_CASE("http_parser: Host must be there once and be one") {
    const auto answer = [](const std::string& version, const std::string& fields) {
        return parse_request("GET / HTTP/" + version + "\r\n" + fields + "\r\n").has_value();
    };
    CHECK(!answer("1.1", ""));
    CHECK(answer("1.0", ""));
    CHECK(answer("1.1", "Host:\r\n"));
    CHECK(!answer("1.1", "Host: a\r\nHost: a\r\n"));
    CHECK(!answer("1.0", "Host: a\r\nhost: a\r\n"));
    for (const std::string good :
         {"a", "a.b-c_d", "a:80", "a:", "127.0.0.1:1", "[::1]", "[::1]:80", "[::ffff:1.2.3.4]:65535", "a%20b", "A.B"})
        CHECK_MESSAGE(answer("1.1", "Host: " + good + "\r\n"), good);
    for (const std::string bad :
         {"a b",     "a,b c", "a/b",    "a@b", "http://a", "a:b", "a:80:80", "a:65536", "a:-1",  "[::1",     "::1",
          "[::1]80", "[]",    "[g::1]", "a%2", "a%zz",     "a?b", "a#b",     "a\\b",    "\"a\"", "\xc3\xa4", "a\tb"})
        CHECK_MESSAGE(!answer("1.1", "Host: " + bad + "\r\n"), bad);
}

TEST_CASE("http_parser: Connection decides about the next request") {
    CHECK(wishes_to_stay("1.1", ""));
    CHECK(!wishes_to_stay("1.0", ""));
    CHECK(!wishes_to_stay("1.1", "Connection: close\r\n"));
    CHECK(!wishes_to_stay("1.1", "connection: CLOSE\r\n"));
    CHECK(!wishes_to_stay("1.1", "Connection: upgrade,  Close , x\r\n"));
    CHECK(!wishes_to_stay("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
    CHECK(!wishes_to_stay("1.1", "Connection: close, keep-alive\r\n"));
    CHECK(wishes_to_stay("1.1", "Connection: closed\r\n"));
    CHECK(wishes_to_stay("1.1", "Connection: x-close, not close\r\n"));
    CHECK(wishes_to_stay("1.1", "X-Connection: close\r\n"));
    CHECK(wishes_to_stay("1.0", "Connection: Keep-Alive\r\n"));
    CHECK(wishes_to_stay("1.0", "Connection: a, keep-alive\r\n"));
    CHECK(!wishes_to_stay("1.0", "Connection: keep-alive, close\r\n"));
}

TEST_CASE("http_parser: what the framer refuses is refused without it too") {
    struct Case {
        std::string raw;
        Refusal why;
    };
    for (const Case& c : std::vector<Case>{
             {"", Refusal::Malformed},
             {"GET", Refusal::Malformed},
             {"GET / HTTP/1.1\r\nHost: a\r\n", Refusal::Malformed},
             {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", Refusal::UnsupportedVersion},
             {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", Refusal::UnsupportedCoding},
             {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", Refusal::Malformed},
             {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", Refusal::Malformed},
             {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell", Refusal::Malformed},
             {"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello!", Refusal::Malformed},
             {"GET / HTTP/1.1\r\nHost: a\r\n\r\nx", Refusal::Malformed},
             {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", Refusal::Malformed},
             {"GET / HTTP/1.1\nHost: a\n\n", Refusal::Malformed},
             {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::Malformed}}) {
        CAPTURE(c.raw);
        const auto request = parse_request(c.raw);
        REQUIRE(!request.has_value());
        CHECK(static_cast<int>(request.error()) == static_cast<int>(c.why));
    }
    CHECK(parse_request("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").has_value());
}

TEST_CASE("http_parser: a chunked body is decoded as it was meant") {
    const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    const std::string body = "5;x=\"y\"\r\nhello\r\n1\r\n \r\n00A\r\n0123\r\n\r\n89\r\n0\r\nTrailer-Field: x\r\n\r\n";
    const std::string raw = head + body;
    muses::HttpFramer framer;
    REQUIRE(framer.next(raw, {}).size == raw.size());
    const auto request = parse_request(raw);
    REQUIRE(request.has_value());
    CHECK(request->body.decoded() == "hello 0123\r\n\r\n89");
    std::vector<std::string> pieces;
    CHECK(request->body.for_each_piece([&](std::string_view piece) { pieces.emplace_back(piece); }));
    CHECK(pieces == std::vector<std::string>{"hello", " ", "0123\r\n\r\n89"});

    const std::string broken = head + "5\r\nhell\r\n0\r\n\r\n";
    const auto unframed = parse_request(broken);
    REQUIRE(unframed.has_value());
    CHECK(!unframed->body.decoded().has_value());
    CHECK(parse_request(head + "0\r\n\r\n")->body.decoded() == "");
}

TEST_CASE("http_parser: more fields than have a place keep their order") {
    std::string raw = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (int i = 0; i < 90; ++i) raw += "X-" + std::to_string(i) + ": " + std::to_string(i * 7) + "\r\n";
    raw += "\r\n";
    const auto request = parse_request(raw);
    REQUIRE(request.has_value());
    const http::Request copy = *request;
    REQUIRE(copy.fields.size() == 91);
    for (int i = 0; i < 90; ++i) {
        REQUIRE(copy.fields.begin()[i + 1].name == "X-" + std::to_string(i));
        REQUIRE(copy.fields.find("x-" + std::to_string(i)) == std::to_string(i * 7));
    }
}

TEST_CASE("http_parser: paths become names beneath the root and nothing else") {
    CHECK(resolved("/") == "");
    CHECK(resolved("/a") == "a");
    CHECK(resolved("/a/") == "a/");
    CHECK(resolved("/a/b.html") == "a/b.html");
    CHECK(resolved("/a%20b%2Bc+d") == "a b+c+d");
    CHECK(resolved("/%C3%A4") == "\xc3\xa4");
    CHECK(resolved("/100%25") == "100%");
    CHECK(resolved("/%2541") == "%41");  // once
    CHECK(resolved("//a//b//") == "a/b/");
    CHECK(resolved("/a/./b") == "a/b");
    CHECK(resolved("/a/.") == "a/");
    CHECK(resolved("/a/b/..") == "a/");
    CHECK(resolved("/a/../b") == "b");
    CHECK(resolved("/a/%2e%2E/b") == "b");
    CHECK(resolved("/a/b/../../c") == "c");
    CHECK(resolved("/a/..") == "");
    CHECK(resolved("/a..b") == "a..b");
    CHECK(resolved("/a/b.") == "a/b.");
    CHECK(resolved("/...") == "!404");  // hidden
    for (const std::string_view outside :
         {"/..", "/../", "/../a", "/a/../..", "/a/../../a", "/%2e%2e/a", "/.%2e/a", "/./../a", "//../a"})
        CHECK_MESSAGE(resolved(outside) == "!404", outside);
    for (const std::string_view slash : {"/a%2Fb", "/a%2fb", "/%2F", "/%2fetc%2fpasswd", "/..%2fa", "/a%2f..%2fb", "/a/%2e%2e%2fb"})
        CHECK_MESSAGE(resolved(slash) == "!404", slash);
    for (const std::string_view bad :
         {"/%", "/a%", "/a%2", "/%zz", "/%2g", "/%%20", "/a%00", "/%00", "/../%", "/a%2", "", "a", "*"})
        CHECK_MESSAGE(resolved(bad) == "!400", bad);
    for (const std::string_view hidden :
         {"/.git", "/.git/config", "/a/.b", "/%2egit", "/a/.well-known/x", "/.well-known-not", "/.well-known/.x", "/a/../.git"})
        CHECK_MESSAGE(resolved(hidden) == "!404", hidden);
    CHECK(resolved("/.well-known/acme") == ".well-known/acme");
    CHECK(resolved("/.git/config", true) == ".git/config");
    CHECK(resolved("/../.git", true) == "!404");
}

TEST_CASE("http_parser: a name that is sent back is escaped") {
    CHECK(http::encode_path("a b/c%d?e#f") == "/a%20b/c%25d%3Fe%23f");
    CHECK(http::encode_path("\r\n\"<\\") == "/%0D%0A%22%3C%5C");
    CHECK(http::encode_path("\xc3\xa4-._~") == "/%C3%A4-._~");
    for (int byte = 1; byte < 256; ++byte) {  // and comes back as it was
        if (byte == '/' || byte == '.') continue;
        const std::string name = "x"s + static_cast<char>(byte);
        CHECK(resolved(http::encode_path(name)) == name);
    }
}

TEST_CASE("http_parser: entity tags are compared weakly or strongly in lists") {
    using http::tag_list_has;
    CHECK(tag_list_has("\"t\"", "\"t\"", true));
    CHECK(tag_list_has("W/\"t\"", "\"t\"", true));
    CHECK(!tag_list_has("W/\"t\"", "\"t\"", false));
    CHECK(tag_list_has("\"t\"", "W/\"t\"", true));
    CHECK(!tag_list_has("\"t\"", "W/\"t\"", false));
    CHECK(tag_list_has("\"a\", \"b,c\" ,\"t\"", "\"t\"", false));
    for (const std::string_view junk : {"\"t\"x", "\"t\";", "\"t\" \"b\"", "\"t\"W/\"b\"", "\"t\" x, \"a\""})
        CHECK(!tag_list_has(junk, "\"t\"", true));
    CHECK(tag_list_has(", ,\"t\"", "\"t\"", false));
    CHECK(tag_list_has("\"b,c\"", "\"b,c\"", false));
    CHECK(!tag_list_has("\"b,c\"", "\"c\"", false));
    CHECK(tag_list_has("*", "\"t\"", false));
    CHECK(!tag_list_has("", "\"t\"", true));
    CHECK(!tag_list_has("t", "\"t\"", true));
    CHECK(!tag_list_has("\"t", "\"t\"", true));
    CHECK(!tag_list_has("w/\"t\"", "\"t\"", true));
    CHECK(!tag_list_has("\"a\" \"t\"", "\"t\"", true));
    CHECK(!tag_list_has("\"T\"", "\"t\"", true));
    CHECK(!tag_list_has("*x", "\"t\"", true));
}

TEST_CASE("http_parser: preconditions have an order") {
    using http::Precondition;
    const std::string same = "Sun, 06 Nov 1994 08:49:37 GMT";
    const std::string before = "Sun, 06 Nov 1994 08:49:36 GMT";
    const std::string after = "Sunday, 06-Nov-94 08:49:38 GMT";
    CHECK(judge("") == Precondition::Holds);
    CHECK(judge("If-Modified-Since: " + same + "\r\n") == Precondition::NotModified);
    CHECK(judge("If-Modified-Since: " + after + "\r\n") == Precondition::NotModified);
    CHECK(judge("If-Modified-Since: Sun Nov  6 08:49:37 1994\r\n") == Precondition::NotModified);
    CHECK(judge("If-Modified-Since: " + before + "\r\n") == Precondition::Holds);
    CHECK(judge("If-Modified-Since: yesterday\r\n") == Precondition::Holds);
    CHECK(judge("If-Modified-Since: " + same + "\r\nIf-Modified-Since: " + same + "\r\n") == Precondition::Holds);
    CHECK(judge("If-None-Match: \"t\"\r\n") == Precondition::NotModified);
    CHECK(judge("If-None-Match: W/\"t\"\r\n") == Precondition::NotModified);
    CHECK(judge("If-None-Match: \"a\"\r\nIf-None-Match: \"t\"\r\n") == Precondition::NotModified);
    CHECK(judge("If-None-Match: *\r\n") == Precondition::NotModified);
    CHECK(judge("If-None-Match: \"a\"\r\n") == Precondition::Holds);
    CHECK(judge("If-None-Match: \"a\"\r\nIf-Modified-Since: " + same + "\r\n") == Precondition::Holds);  // the tag wins
    CHECK(judge("If-Modified-Since: " + before + "\r\nIf-None-Match: \"t\"\r\n") == Precondition::NotModified);
    CHECK(judge("If-Match: \"t\"\r\n") == Precondition::Holds);
    CHECK(judge("If-Match: *\r\n") == Precondition::Holds);
    CHECK(judge("If-Match: \"a\"\r\n") == Precondition::Failed);
    CHECK(judge("If-Match: W/\"t\"\r\n") == Precondition::Failed);
    CHECK(judge("If-Match: \"a\"\r\nIf-None-Match: \"t\"\r\n") == Precondition::Failed);
    CHECK(judge("If-Match: \"t\"\r\nIf-Unmodified-Since: " + before + "\r\n") == Precondition::Holds);  // the tag wins
    CHECK(judge("If-Unmodified-Since: " + before + "\r\n") == Precondition::Failed);
    CHECK(judge("If-Unmodified-Since: " + same + "\r\n") == Precondition::Holds);
    CHECK(judge("If-Unmodified-Since: " + same + "\r\nIf-None-Match: \"t\"\r\n") == Precondition::NotModified);
}

TEST_CASE("http_parser: a response becomes bytes with the fields of its connection") {
    const auto encoded = [](const std::string& request_line, const std::string& fields, http::Response response, bool& stays) {
        const std::string raw = request_line + "\r\nHost: a\r\n" + fields + "\r\n";
        const auto request = parse_request(raw);
        REQUIRE(request.has_value());
        std::string bytes = bytes_of(http::encode(std::move(response), *request, stays));
        const std::size_t date = bytes.find("Date: ");
        REQUIRE(date != std::string::npos);
        CHECK(muses::detail::parse_http_date(std::string_view(bytes).substr(date + 6, 29)).has_value());
        return bytes.erase(date, 37);
    };
    const auto hello = [] { return http::text_response(Status::NotFound, "Hello"); };
    const std::string head = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 6\r\n";
    bool stays = false;
    CHECK(encoded("GET / HTTP/1.1", "", hello(), stays) == head + "\r\nHello\n");
    CHECK(stays);
    CHECK(encoded("HEAD / HTTP/1.1", "", hello(), stays) == head + "\r\n");
    CHECK(stays);
    CHECK(encoded("GET / HTTP/1.1", "Connection: close\r\n", hello(), stays) == head + "Connection: close\r\n\r\nHello\n");
    CHECK(!stays);
    CHECK(encoded("GET / HTTP/1.0", "", hello(), stays) == head + "Connection: close\r\n\r\nHello\n");
    CHECK(!stays);
    CHECK(encoded("GET / HTTP/1.0", "Connection: keep-alive\r\n", hello(), stays) ==
          head + "Connection: keep-alive\r\n\r\nHello\n");
    CHECK(stays);
    http::Response closing = hello();
    closing.close = true;
    CHECK(encoded("GET / HTTP/1.1", "", std::move(closing), stays) == head + "Connection: close\r\n\r\nHello\n");
    CHECK(!stays);
    http::Response empty;
    empty.status = Status::NoContent;
    CHECK(encoded("GET / HTTP/1.1", "", std::move(empty), stays) == "HTTP/1.1 204 No Content\r\n\r\n");

    http::Response ready;
    ready.ready = std::make_shared<const http::ReadyResponse>(Status::Ok, std::vector<http::ResponseField>{{"A", "b"}},
                                                              std::make_shared<const std::string>("body"));
    CHECK(encoded("GET / HTTP/1.0", "Connection: keep-alive\r\n", ready, stays) ==
          "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nbody");
    CHECK(encoded("HEAD / HTTP/1.1", "", ready, stays) == "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 4\r\n\r\n");
}
