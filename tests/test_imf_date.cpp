#include "muses/detail/imf_date.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

using muses::detail::format_imf_date;
using muses::detail::imf_date_now;
using muses::detail::parse_http_date;

namespace {
constexpr std::int64_t kExample = 784111777;  // the example of RFC 9110
constexpr std::int64_t kNow = 1'700'000'000;  // 2023-11-14
}  // namespace

TEST_CASE("imf_date: known times are written as they should be") {
    CHECK(format_imf_date(kExample) == "Sun, 06 Nov 1994 08:49:37 GMT");
    CHECK(format_imf_date(0) == "Thu, 01 Jan 1970 00:00:00 GMT");
    CHECK(format_imf_date(-1) == "Wed, 31 Dec 1969 23:59:59 GMT");
    CHECK(format_imf_date(951782400) == "Tue, 29 Feb 2000 00:00:00 GMT");
    CHECK(format_imf_date(4107542399) == "Sun, 28 Feb 2100 23:59:59 GMT");
    CHECK(format_imf_date(4107542400) == "Mon, 01 Mar 2100 00:00:00 GMT");
    CHECK(format_imf_date(INT64_MAX) == "Fri, 31 Dec 9999 23:59:59 GMT");
    CHECK(format_imf_date(INT64_MIN) == "Sat, 01 Jan 0000 00:00:00 GMT");
}

TEST_CASE("imf_date: writing agrees with the system calendar on every day of 400 years") {
    for (std::int64_t day = -80000; day < 80000; ++day) {
        const std::int64_t seconds = day * 86400 + (day * 7919 % 86400 + 86400) % 86400;
        const auto time = static_cast<std::time_t>(seconds);
        std::tm parts{};
        REQUIRE(gmtime_r(&time, &parts) != nullptr);
        char text[64];
        REQUIRE(std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts) == 29);
        REQUIRE(format_imf_date(seconds) == std::string_view(text, 29));
        REQUIRE(parse_http_date(std::string_view(text, 29), kNow) == seconds);
    }
}

TEST_CASE("imf_date: all three forms are read") {
    CHECK(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT", kNow) == kExample);
    CHECK(parse_http_date("Sunday, 06-Nov-94 08:49:37 GMT", kNow) == kExample);
    CHECK(parse_http_date("Sun Nov  6 08:49:37 1994", kNow) == kExample);
    CHECK(parse_http_date("Wed Nov 16 08:49:37 1994", kNow) == kExample + 10 * 86400);
    CHECK(parse_http_date("Sun Nov 06 08:49:37 1994", kNow) == kExample);
    CHECK(parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT", kNow) == 1483228800);  // a leap second
}

TEST_CASE("imf_date: a two-digit year is at most 50 years ahead") {
    CHECK(parse_http_date("Monday, 01-Jan-73 00:00:00 GMT", kNow) == parse_http_date("Mon, 01 Jan 2073 00:00:00 GMT", kNow));
    CHECK(parse_http_date("Monday, 01-Jan-74 00:00:00 GMT", kNow) == parse_http_date("Mon, 01 Jan 1974 00:00:00 GMT", kNow));
    const std::int64_t late = 3'786'912'000;  // 2090
    CHECK(parse_http_date("Monday, 01-Jan-05 00:00:00 GMT", late) == parse_http_date("Mon, 01 Jan 2105 00:00:00 GMT", late));
}

TEST_CASE("imf_date: what is not a date is refused") {
    for (const std::string_view text : {"",
                                        " ",
                                        "Sun",
                                        "0",
                                        "-1",
                                        "now",
                                        "Sun, 06 Nov 1994 08:49:37",
                                        "Sun, 06 Nov 1994 08:49:37 UTC",
                                        "Sun, 06 Nov 1994 08:49:37 GMT ",
                                        " Sun, 06 Nov 1994 08:49:37 GMT",
                                        "Sun, 6 Nov 1994 08:49:37 GMT",
                                        "sun, 06 nov 1994 08:49:37 gmt",
                                        "Son, 06 Nov 1994 08:49:37 GMT",
                                        "Sun, 06 Nob 1994 08:49:37 GMT",
                                        "Sun, 00 Nov 1994 08:49:37 GMT",
                                        "Sun, 31 Nov 1994 08:49:37 GMT",
                                        "Sun, 29 Feb 1995 08:49:37 GMT",
                                        "Sun, 06 Nov 1994 24:49:37 GMT",
                                        "Sun, 06 Nov 1994 08:60:37 GMT",
                                        "Sun, 06 Nov 1994 08:49:61 GMT",
                                        "Sun, 06 Nov 94 08:49:37 GMT",
                                        "Sun, 0x Nov 1994 08:49:37 GMT",
                                        "Sun, -6 Nov 1994 08:49:37 GMT",
                                        "Sunday, 06-Nov-1994 08:49:37 GMT",
                                        "Sunday, 06 Nov 94 08:49:37 GMT",
                                        "Sun Nov 6 08:49:37 1994",
                                        "Sun Nov  6 08:49:37 94",
                                        "Sun Nov  6 08:49:37 1994 GMT",
                                        "1994-11-06T08:49:37Z"})
        CHECK_MESSAGE(!parse_http_date(text, kNow).has_value(), text);
    const std::string_view good = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (std::size_t size = 0; size < good.size(); ++size) CHECK(!parse_http_date(good.substr(0, size), kNow));
}

TEST_CASE("imf_date: the present text is the present time on every thread") {
    const auto check = [] {
        const auto before = static_cast<std::int64_t>(std::time(nullptr));
        const auto seen = parse_http_date(imf_date_now());
        const auto after = static_cast<std::int64_t>(std::time(nullptr));
        CHECK(seen.has_value());
        CHECK(*seen >= before);
        CHECK(*seen <= after);
    };
    check();
    std::thread(check).join();
    std::this_thread::sleep_for(std::chrono::milliseconds(1050));  // a second has certainly passed: the text must have moved
    check();
}
