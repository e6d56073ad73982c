// Which Content-Type a file name stands for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace muses {

namespace detail {

struct MimeEntry {
    std::string_view extension;  // lower case, without the dot
    std::string_view type;
};

// Sorted by extension. Text is sent as UTF-8: that is what files are today, and a browser that is told nothing guesses.
inline constexpr std::array kMimeTypes = std::to_array<MimeEntry>({
    {"3gp", "video/3gpp"},
    {"7z", "application/x-7z-compressed"},
    {"aac", "audio/aac"},
    {"apk", "application/vnd.android.package-archive"},
    {"apng", "image/apng"},
    {"atom", "application/atom+xml; charset=utf-8"},
    {"avi", "video/x-msvideo"},
    {"avif", "image/avif"},
    {"bmp", "image/bmp"},
    {"bz2", "application/x-bzip2"},
    {"c", "text/plain; charset=utf-8"},
    {"cc", "text/plain; charset=utf-8"},
    {"conf", "text/plain; charset=utf-8"},
    {"cpp", "text/plain; charset=utf-8"},
    {"css", "text/css; charset=utf-8"},
    {"csv", "text/csv; charset=utf-8"},
    {"deb", "application/vnd.debian.binary-package"},
    {"doc", "application/msword"},
    {"docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"},
    {"eot", "application/vnd.ms-fontobject"},
    {"epub", "application/epub+zip"},
    {"flac", "audio/flac"},
    {"gif", "image/gif"},
    {"gz", "application/gzip"},
    {"h", "text/plain; charset=utf-8"},
    {"heic", "image/heic"},
    {"hpp", "text/plain; charset=utf-8"},
    {"htm", "text/html; charset=utf-8"},
    {"html", "text/html; charset=utf-8"},
    {"ico", "image/vnd.microsoft.icon"},
    {"ics", "text/calendar; charset=utf-8"},
    {"jar", "application/java-archive"},
    {"jpeg", "image/jpeg"},
    {"jpg", "image/jpeg"},
    {"js", "text/javascript; charset=utf-8"},
    {"json", "application/json"},
    {"jsonld", "application/ld+json"},
    {"jxl", "image/jxl"},
    {"log", "text/plain; charset=utf-8"},
    {"m3u8", "application/vnd.apple.mpegurl"},
    {"m4a", "audio/mp4"},
    {"m4v", "video/mp4"},
    {"map", "application/json"},
    {"md", "text/markdown; charset=utf-8"},
    {"mid", "audio/midi"},
    {"mjs", "text/javascript; charset=utf-8"},
    {"mkv", "video/matroska"},
    {"mov", "video/quicktime"},
    {"mp3", "audio/mpeg"},
    {"mp4", "video/mp4"},
    {"mpeg", "video/mpeg"},
    {"odp", "application/vnd.oasis.opendocument.presentation"},
    {"ods", "application/vnd.oasis.opendocument.spreadsheet"},
    {"odt", "application/vnd.oasis.opendocument.text"},
    {"oga", "audio/ogg"},
    {"ogg", "audio/ogg"},
    {"ogv", "video/ogg"},
    {"opus", "audio/ogg"},
    {"otf", "font/otf"},
    {"pdf", "application/pdf"},
    {"png", "image/png"},
    {"ppt", "application/vnd.ms-powerpoint"},
    {"pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"},
    {"py", "text/plain; charset=utf-8"},
    {"rar", "application/vnd.rar"},
    {"rss", "application/rss+xml; charset=utf-8"},
    {"rtf", "application/rtf"},
    {"sh", "text/plain; charset=utf-8"},
    {"svg", "image/svg+xml; charset=utf-8"},
    {"tar", "application/x-tar"},
    {"tif", "image/tiff"},
    {"tiff", "image/tiff"},
    {"toml", "application/toml"},
    {"ts", "video/mp2t"},
    {"ttf", "font/ttf"},
    {"txt", "text/plain; charset=utf-8"},
    {"vtt", "text/vtt; charset=utf-8"},
    {"wasm", "application/wasm"},
    {"wav", "audio/wav"},
    {"weba", "audio/webm"},
    {"webm", "video/webm"},
    {"webmanifest", "application/manifest+json"},
    {"webp", "image/webp"},
    {"woff", "font/woff"},
    {"woff2", "font/woff2"},
    {"xhtml", "application/xhtml+xml; charset=utf-8"},
    {"xls", "application/vnd.ms-excel"},
    {"xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
    {"xml", "application/xml; charset=utf-8"},
    {"xz", "application/x-xz"},
    {"yaml", "application/yaml"},
    {"yml", "application/yaml"},
    {"zip", "application/zip"},
    {"zst", "application/zstd"},
});

inline constexpr std::size_t kLongestExtension =
    std::max_element(kMimeTypes.begin(), kMimeTypes.end(), [](const MimeEntry& a, const MimeEntry& b) {
        return a.extension.size() < b.extension.size();
    })->extension.size();

static_assert(std::is_sorted(kMimeTypes.begin(), kMimeTypes.end(),
                             [](const MimeEntry& a, const MimeEntry& b) { return a.extension < b.extension; }),
              "the lookup is a binary search");

}  // namespace detail

namespace http {

/// What is sent for a name that says nothing: a browser saves it instead of guessing.
inline constexpr std::string_view kDefaultMimeType = "application/octet-stream";

/// The Content-Type for a file of this name or path, by its extension in any case of letters; kDefaultMimeType for an unknown
/// extension, for none, and for a name that is nothing but a dot and letters. The view is to static text.
[[nodiscard]] constexpr std::string_view mime_type(std::string_view path) noexcept {
    const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || dot == 0) return kDefaultMimeType;
    const std::string_view extension = name.substr(dot + 1);
    if (extension.empty() || extension.size() > detail::kLongestExtension) return kDefaultMimeType;
    std::array<char, detail::kLongestExtension> lower{};
    for (std::size_t i = 0; i < extension.size(); ++i)
        lower[i] = extension[i] >= 'A' && extension[i] <= 'Z' ? static_cast<char>(extension[i] + ('a' - 'A')) : extension[i];
    const std::string_view key(lower.data(), extension.size());
    const auto found =
        std::lower_bound(detail::kMimeTypes.begin(), detail::kMimeTypes.end(), key,
                         [](const detail::MimeEntry& entry, std::string_view wanted) { return entry.extension < wanted; });
    return found != detail::kMimeTypes.end() && found->extension == key ? found->type : kDefaultMimeType;
}

}  // namespace http
}  // namespace muses
