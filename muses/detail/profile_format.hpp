// A profiler's report as a table, as JSON, as CSV.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <format>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "muses/detail/text_escape.hpp"

namespace muses {

/// One scope in a report. Times are in nanoseconds.
struct ProfileRow {
    std::string name;
    std::uint64_t count = 0;     ///< passes, those of a recursion included
    std::uint64_t total_ns = 0;  ///< time inside; of a recursion only the outermost pass counts
    std::uint64_t self_ns =
        0;               ///< time inside that was not inside another scope (a recursion's own passes do not take from each other)
    double mean_ns = 0;  ///< total_ns / count
    std::uint64_t p50_ns = 0;  ///< half of the passes took no longer; right to 1/32
    std::uint64_t p99_ns = 0;
    std::uint64_t max_ns = 0;
};

/// What the profiler itself costs, measured on this machine with the steady clock.
struct ProfileOverhead {
    double clock_ns = 0;  ///< one reading of the clock
    double scope_ns = 0;  ///< one pass through a scope, its two readings included; about half of it shows in the scope's own time
};

/// What: what Profiler::report() found; a range of its rows, those with the greatest total first.
/// Complexity: O(rows).
/// Threads: a value.
/// Lifetime: independent of the profiler.
/// Limits: none.
struct ProfileReport {
    std::vector<ProfileRow> rows;
    ProfileOverhead overhead;
    std::uint64_t lost = 0;  ///< passes that could not be recorded, for lack of memory or at the very end of a thread

    [[nodiscard]] auto begin() const noexcept { return rows.begin(); }
    [[nodiscard]] auto end() const noexcept { return rows.end(); }
    [[nodiscard]] std::size_t size() const noexcept { return rows.size(); }
    [[nodiscard]] bool empty() const noexcept { return rows.empty(); }
    [[nodiscard]] const ProfileRow& operator[](std::size_t i) const noexcept { return rows[i]; }

    /// The row of a name, or null.
    [[nodiscard]] const ProfileRow* find(std::string_view name) const noexcept {
        const auto at = std::ranges::find(rows, name, &ProfileRow::name);
        return at == rows.end() ? nullptr : &*at;
    }

    /// For people: aligned columns, times with units, and a line about the overhead.
    [[nodiscard]] std::string table() const;
    /// {"overhead": {…}, "lost": n, "scopes": [{"name": …, "count": …, "total_ns": …}, …]}
    [[nodiscard]] std::string json() const;
    /// A line of column names, then a line for each row, as RFC 4180 has it.
    [[nodiscard]] std::string csv() const;
};

namespace detail {

/// `text` between quotes, for JSON. Bytes that are no UTF-8 become U+FFFD.
inline void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    append_json_escaped(out, text);
    out += '"';
}

/// A CSV field: between quotes if it has to be.
inline void append_csv_field(std::string& out, std::string_view text) {
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
        out += text;
        return;
    }
    out += '"';
    for (const char c : text) {
        if (c == '"') out += '"';
        out += c;
    }
    out += '"';
}

/// "812 ns", "1.52 us", "3.40 s".
[[nodiscard]] inline std::string readable_ns(double ns) {
    if (ns < 1e3) return std::format("{:.0f} ns", ns);
    if (ns < 1e6) return std::format("{:.2f} us", ns / 1e3);
    if (ns < 1e9) return std::format("{:.2f} ms", ns / 1e6);
    return std::format("{:.2f} s", ns / 1e9);
}

}  // namespace detail

inline std::string ProfileReport::table() const {
    std::size_t width = 5;
    for (const ProfileRow& row : rows) width = std::max(width, row.name.size());
    std::string out = std::format("{:<{}} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "scope", width, "count", "total",
                                  "self", "mean", "p50", "p99", "max");
    using detail::readable_ns;
    for (const ProfileRow& row : rows) {
        std::string name = row.name;
        std::ranges::replace_if(name, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');  // one line is one scope
        std::format_to(std::back_inserter(out), "{:<{}} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", name, width, row.count,
                       readable_ns(static_cast<double>(row.total_ns)), readable_ns(static_cast<double>(row.self_ns)),
                       readable_ns(row.mean_ns), readable_ns(static_cast<double>(row.p50_ns)),
                       readable_ns(static_cast<double>(row.p99_ns)), readable_ns(static_cast<double>(row.max_ns)));
    }
    std::format_to(std::back_inserter(out), "(a pass costs {:.1f} ns, of which {:.1f} ns are two readings of the clock)\n",
                   overhead.scope_ns, 2 * overhead.clock_ns);
    if (lost != 0) std::format_to(std::back_inserter(out), "({} passes were lost)\n", lost);
    return out;
}

inline std::string ProfileReport::json() const {
    std::string out = std::format("{{\"overhead\":{{\"clock_ns\":{:.2f},\"scope_ns\":{:.2f}}},\"lost\":{},\"scopes\":[",
                                  overhead.clock_ns, overhead.scope_ns, lost);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const ProfileRow& row = rows[i];
        out += i == 0 ? "\n{\"name\":" : ",\n{\"name\":";
        detail::append_json_string(out, row.name);
        std::format_to(
            std::back_inserter(out),
            ",\"count\":{},\"total_ns\":{},\"self_ns\":{},\"mean_ns\":{:.3f},\"p50_ns\":{},\"p99_ns\":{},\"max_ns\":{}}}",
            row.count, row.total_ns, row.self_ns, row.mean_ns, row.p50_ns, row.p99_ns, row.max_ns);
    }
    out += "\n]}\n";
    return out;
}

inline std::string ProfileReport::csv() const {
    std::string out = "name,count,total_ns,self_ns,mean_ns,p50_ns,p99_ns,max_ns\n";
    for (const ProfileRow& row : rows) {
        detail::append_csv_field(out, row.name);
        std::format_to(std::back_inserter(out), ",{},{},{},{:.3f},{},{},{}\n", row.count, row.total_ns, row.self_ns, row.mean_ns,
                       row.p50_ns, row.p99_ns, row.max_ns);
    }
    return out;
}

}  // namespace muses
