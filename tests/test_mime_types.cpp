#include "muses/net_components/mime_types.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <string>
#include <string_view>

using muses::http::kDefaultMimeType;
using muses::http::mime_type;

TEST_CASE("mime_types: a web page has what a browser needs") {
    CHECK(mime_type("index.html") == "text/html; charset=utf-8");
    CHECK(mime_type("a/b/style.css") == "text/css; charset=utf-8");
    CHECK(mime_type("app.js") == "text/javascript; charset=utf-8");
    CHECK(mime_type("app.mjs") == "text/javascript; charset=utf-8");
    CHECK(mime_type("data.json") == "application/json");
    CHECK(mime_type("logo.svg") == "image/svg+xml; charset=utf-8");
    CHECK(mime_type("x.woff2") == "font/woff2");
    CHECK(mime_type("x.wasm") == "application/wasm");
    CHECK(mime_type("x.webmanifest") == "application/manifest+json");
}

TEST_CASE("mime_types: the case of the extension does not matter and only the last one counts") {
    CHECK(mime_type("PHOTO.JPG") == "image/jpeg");
    CHECK(mime_type("page.HtMl") == mime_type("page.html"));
    CHECK(mime_type("archive.tar.gz") == "application/gzip");
    CHECK(mime_type("style.css.txt") == "text/plain; charset=utf-8");
}

TEST_CASE("mime_types: a name that says nothing is octets") {
    for (const std::string_view name : {"", "/", "README", "a.b/README", "a.", ".html", "dir/.css", "a.unknown", "a.htmlx",
                                        "a.htm l", "a.\xc3\xa4", "a.averyveryverylongextension", "..", "a.html/"})
        CHECK_MESSAGE(mime_type(name) == kDefaultMimeType, name);
}

TEST_CASE("mime_types: each entry finds itself and text names its charset") {
    for (const auto& [extension, type] : muses::detail::kMimeTypes) {
        CHECK(mime_type("x." + std::string(extension)) == type);
        CHECK(type.find('/') != std::string_view::npos);
        if (type.starts_with("text/")) CHECK_MESSAGE(type.ends_with("; charset=utf-8"), extension);
    }
}

static_assert(mime_type("a.css") == "text/css; charset=utf-8", "usable in constant expressions");
