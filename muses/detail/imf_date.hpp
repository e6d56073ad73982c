// Dates as HTTP writes them (RFC 9110 §5.6.7): one form to send, three forms to accept, all in GMT.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

namespace muses::detail {

inline constexpr std::size_t kImfDateSize = 29;  // "Sun, 06 Nov 1994 08:49:37 GMT"

namespace imf {

inline constexpr std::string_view kDays = "SunMonTueWedThuFriSat";
inline constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
inline constexpr std::array<std::string_view, 7> kLongDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                              "Thursday", "Friday", "Saturday"};

struct Civil {
    std::int64_t year = 1970;
    unsigned month = 1;  // 1..12
    unsigned day = 1;    // 1..31
    unsigned hour = 0;
    unsigned minute = 0;
    unsigned second = 0;  // 60 in a leap second
};

[[nodiscard]] constexpr bool is_leap(std::int64_t year) noexcept { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

[[nodiscard]] constexpr unsigned days_in(std::int64_t year, unsigned month) noexcept {
    constexpr std::array<unsigned, 12> kLength = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return month == 2 && is_leap(year) ? 29U : kLength[month - 1];
}

/// Days from 1970-01-01 to the given day of the Gregorian calendar; years are counted from March so that the leap day comes last.
[[nodiscard]] constexpr std::int64_t days_from_civil(std::int64_t year, unsigned month, unsigned day) noexcept {
    if (month <= 2) --year;
    const std::int64_t era = (year >= 0 ? year : year - 399) / 400;
    const std::int64_t year_of_era = year - era * 400;
    const std::int64_t day_of_year = (153 * (static_cast<std::int64_t>(month) + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

/// The inverse of days_from_civil.
[[nodiscard]] constexpr Civil civil_from_days(std::int64_t days) noexcept {
    days += 719468;
    const std::int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    const std::int64_t day_of_era = days - era * 146097;
    const std::int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const std::int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const std::int64_t month_from_march = (5 * day_of_year + 2) / 153;
    Civil civil;
    civil.day = static_cast<unsigned>(day_of_year - (153 * month_from_march + 2) / 5 + 1);
    civil.month = static_cast<unsigned>(month_from_march < 10 ? month_from_march + 3 : month_from_march - 9);
    civil.year = year_of_era + era * 400 + (civil.month <= 2 ? 1 : 0);
    return civil;
}

/// Reads a date from left to right; the first mismatch makes every later step fail.
class Reader {
public:
    constexpr explicit Reader(std::string_view text) noexcept : text_(text) {}

    constexpr Reader& literal(std::string_view expected) noexcept {
        if (text_.starts_with(expected))
            text_.remove_prefix(expected.size());
        else
            ok_ = false;
        return *this;
    }

    /// Exactly `digits` decimal digits.
    template <class Number>
    constexpr Reader& number(Number& out, std::size_t digits) noexcept {
        if (text_.size() < digits) {
            ok_ = false;
            return *this;
        }
        unsigned value = 0;
        for (std::size_t i = 0; i < digits; ++i) {
            const char c = text_[i];
            if (c < '0' || c > '9') ok_ = false;
            value = value * 10 + static_cast<unsigned>(c - '0');
        }
        text_.remove_prefix(digits);
        out = static_cast<Number>(value);
        return *this;
    }

    /// A day of the month in two columns, the first of which may be a space.
    constexpr Reader& padded_day(unsigned& out) noexcept {
        return text_.starts_with(' ') ? literal(" ").number(out, 1) : number(out, 2);
    }

    constexpr Reader& month(unsigned& out) noexcept {
        out = three_letters(kMonths) + 1;
        return *this;
    }
    constexpr Reader& short_day() noexcept {
        (void)three_letters(kDays);
        return *this;
    }
    constexpr Reader& clock(Civil& civil) noexcept {
        return number(civil.hour, 2).literal(":").number(civil.minute, 2).literal(":").number(civil.second, 2);
    }

    [[nodiscard]] constexpr bool done() const noexcept { return ok_ && text_.empty(); }

private:
    constexpr unsigned three_letters(std::string_view names) noexcept {
        if (text_.size() >= 3) {
            for (std::size_t i = 0; i < names.size(); i += 3) {
                if (text_.substr(0, 3) == names.substr(i, 3)) {
                    text_.remove_prefix(3);
                    return static_cast<unsigned>(i / 3);
                }
            }
        }
        ok_ = false;
        return 0;
    }

    std::string_view text_;
    bool ok_ = true;
};

/// Seconds since 1970, or nothing for a day or time of day that does not exist. A leap second counts as the second after it.
[[nodiscard]] constexpr std::optional<std::int64_t> to_seconds(const Civil& c) noexcept {
    if (c.month < 1 || c.month > 12 || c.day < 1 || c.day > days_in(c.year, c.month)) return std::nullopt;
    if (c.hour > 23 || c.minute > 59 || c.second > 60) return std::nullopt;
    return days_from_civil(c.year, c.month, c.day) * 86400 + std::int64_t{c.hour} * 3600 + std::int64_t{c.minute} * 60 +
           std::int64_t{c.second};
}

}  // namespace imf

/// Writes `seconds` (since 1970, UTC) as an IMF-fixdate of kImfDateSize characters, without a terminating zero.
/// Times outside of the years 0 to 9999 are written as the nearest one that can be.
inline void write_imf_date(char* out, std::int64_t seconds) noexcept {
    constexpr std::int64_t kFirst = imf::days_from_civil(0, 1, 1) * 86400;
    constexpr std::int64_t kLast = imf::days_from_civil(10000, 1, 1) * 86400 - 1;
    if (seconds < kFirst) seconds = kFirst;
    if (seconds > kLast) seconds = kLast;
    std::int64_t days = seconds / 86400;
    std::int64_t rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        --days;
    }
    const imf::Civil civil = imf::civil_from_days(days);
    const auto week_day = static_cast<std::size_t>(((days % 7) + 11) % 7);  // 1970-01-01 was a Thursday
    const auto two = [out](std::size_t at, std::int64_t value) {
        out[at] = static_cast<char>('0' + value / 10 % 10);
        out[at + 1] = static_cast<char>('0' + value % 10);
    };
    std::memcpy(out, "Ddd, 00 Mmm 0000 00:00:00 GMT", kImfDateSize);
    std::memcpy(out, imf::kDays.data() + week_day * 3, 3);
    two(5, civil.day);
    std::memcpy(out + 8, imf::kMonths.data() + (civil.month - 1) * 3, 3);
    two(12, civil.year / 100);
    two(14, civil.year % 100);
    two(17, rest / 3600);
    two(20, rest / 60 % 60);
    two(23, rest % 60);
}

/// `seconds` (since 1970, UTC) as an IMF-fixdate.
[[nodiscard]] inline std::string format_imf_date(std::int64_t seconds) {
    std::string text(kImfDateSize, '\0');
    write_imf_date(text.data(), seconds);
    return text;
}

/// The present second as an IMF-fixdate. The text is written once a second and thread; the view is valid on this thread until
/// its next call.
[[nodiscard]] inline std::string_view imf_date_now() noexcept {
    struct Cache {
        std::int64_t second = -1;
        std::array<char, kImfDateSize> text{};
    };
    thread_local Cache cache;
    if (const auto now = static_cast<std::int64_t>(std::time(nullptr)); now != cache.second) {
        write_imf_date(cache.text.data(), now);
        cache.second = now;
    }
    return {cache.text.data(), cache.text.size()};
}

/// Seconds since 1970 of an HTTP date in any of its three forms: IMF-fixdate, RFC 850 and asctime; nothing for any other text.
/// `now` (same unit) places the two-digit year of the RFC 850 form: not more than 50 years ahead. The name of the day must be
/// one, but it is not compared with the date.
[[nodiscard]] constexpr std::optional<std::int64_t> parse_http_date(std::string_view text, std::int64_t now) noexcept {
    imf::Civil civil;
    {
        imf::Reader in(text);
        in.short_day()
            .literal(", ")
            .number(civil.day, 2)
            .literal(" ")
            .month(civil.month)
            .literal(" ")
            .number(civil.year, 4)
            .literal(" ");
        if (in.clock(civil).literal(" GMT").done()) return imf::to_seconds(civil);
    }
    {
        imf::Reader in(text);
        in.short_day().literal(" ").month(civil.month).literal(" ").padded_day(civil.day).literal(" ").clock(civil).literal(" ");
        if (in.number(civil.year, 4).done()) return imf::to_seconds(civil);
    }
    for (const std::string_view day : imf::kLongDays) {
        if (!text.starts_with(day)) continue;
        imf::Reader in(text.substr(day.size()));
        in.literal(", ").number(civil.day, 2).literal("-").month(civil.month).literal("-").number(civil.year, 2).literal(" ");
        if (!in.clock(civil).literal(" GMT").done()) return std::nullopt;
        const std::int64_t present = imf::civil_from_days((now >= 0 ? now : now - 86399) / 86400).year;
        civil.year += present - present % 100;
        if (civil.year > present + 50) civil.year -= 100;
        if (civil.year <= present - 50) civil.year += 100;
        return imf::to_seconds(civil);
    }
    return std::nullopt;
}

/// The same, with the present time for `now`.
[[nodiscard]] inline std::optional<std::int64_t> parse_http_date(std::string_view text) noexcept {
    return parse_http_date(text, static_cast<std::int64_t>(std::time(nullptr)));
}

}  // namespace muses::detail
