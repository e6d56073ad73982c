// Static files as http::Request -> http::Response, without a wire format: what StaticFiles (http_handler.hpp) does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <expected>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/hash.hpp"
#include "muses/detail/imf_date.hpp"
#include "muses/lru_cache.hpp"
#include "muses/net/payload.hpp"
#include "muses/net_components/byte_ranges.hpp"
#include "muses/net_components/conditional.hpp"
#include "muses/net_components/file_root.hpp"
#include "muses/net_components/http_codec.hpp"
#include "muses/net_components/http_message.hpp"
#include "muses/net_components/mime_types.hpp"
#include "muses/net_components/request_path.hpp"

namespace muses::http {

/// What a StaticFiles serves, and what it may keep.
struct StaticFilesOptions {
    std::string root = ".";                            ///< the directory that is served
    std::string index = "index.html";                  ///< served for a directory; empty: none
    bool hidden = false;                               ///< serve names that start with a dot, too (.well-known always is)
    std::size_t cache_bytes = std::size_t{64} << 20U;  ///< memory for ready-made responses; 0: keep none
    std::size_t max_cached_file_bytes = 64 * 1024;     ///< a larger file is never read into memory: the kernel sends it
    std::size_t max_open_files = 128;                  ///< descriptors of larger files kept open; 0: open for each request
    /// A file changed more recently is served, but not kept. Its next change may bear the same time stamp (the clock of time stamps
    /// ticks every few ms), and a write under way has stamped the file before all its bytes are in (the system may let it pause for
    /// 200 ms in between).
    std::chrono::milliseconds settle_time{250};
    FileRoot::Resolver resolver = FileRoot::Resolver::Auto;  ///< how files are opened beneath the root
};

/// Counters since construction.
struct StaticFilesStats {
    std::uint64_t hits = 0;        ///< answered from a kept response or descriptor that was still true
    std::uint64_t stale = 0;       ///< a kept one was found to be no longer true
    std::uint64_t loads = 0;       ///< files opened to answer
    std::size_t cached_bytes = 0;  ///< memory in use by kept responses
    std::size_t open_files = 0;    ///< descriptors kept
};

/// What: answers GET, HEAD and OPTIONS for the files beneath a root.
/// Complexity: a kept file costs one statx and no copy of its content; others cost a few system calls.
/// Threads: all functions from any thread.
/// Lifetime: responses share what they need: they outlive the service.
/// Limits: StaticFilesOptions. What is written through a memory mapping is seen when the system stamps the file.
class FileService {
public:
    /// Throws std::invalid_argument for an index that is a path, a negative settle_time.
    FileService(FileRoot root, StaticFilesOptions options)
        : options_(validated(std::move(options))),
          root_(std::move(root)),
          ready_(ready_options(), ready_shards()),
          open_(open_options(), 4) {}

    FileService(const FileService&) = delete;
    FileService& operator=(const FileService&) = delete;

    /// The response if it can be given at once (at most one system call, which waits for no device but the file system's
    /// memory of the name); nothing when a file must be opened.
    [[nodiscard]] std::optional<Response> try_respond(const Request& request) {
        if (auto refused = refuse_method(request)) return refused;
        std::string scratch;
        const auto name = resolve_path(request.path, options_.hidden, scratch);
        if (!name) return error_response(name.error());
        return respond_from_memory(request, *name);
    }

    /// The response; may wait for the file system.
    [[nodiscard]] Response respond(const Request& request) {
        if (auto refused = refuse_method(request)) return *std::move(refused);
        std::string scratch;
        const auto name = resolve_path(request.path, options_.hidden, scratch);
        if (!name) return error_response(name.error());
        if (auto kept = respond_from_memory(request, *name)) return *std::move(kept);
        return load(request, std::string(*name));
    }

    /// The counters, summed over threads; together they are not one instant's picture.
    [[nodiscard]] StaticFilesStats stats() const {
        StaticFilesStats stats;
        // Relaxed: each is a number of its own and publishes nothing.
        stats.stale = stale_.load(std::memory_order_relaxed);
        stats.loads = loads_.load(std::memory_order_relaxed);
        stats.hits = ready_.stats().hits + open_.stats().hits - stats.stale;
        stats.cached_bytes = ready_.weight();
        stats.open_files = open_.size();
        return stats;
    }

    /// A plain-text response for an error.
    [[nodiscard]] static Response error_response(Status status) {
        switch (status) {
            case Status::BadRequest: return text_response(status, "The path of the request is not valid.");
            case Status::Forbidden: return text_response(status, "This file may not be read.");
            case Status::NotFound: return text_response(status, "There is nothing at this address.");
            case Status::PreconditionFailed: return text_response(status, "The file is not what the request expects it to be.");
            case Status::NotImplemented: return text_response(status, "This server does not know the method of the request.");
            case Status::ServiceUnavailable: return text_response(status, "The server is busy; try again in a moment.");
            default: return text_response(status, reason_phrase(status));
        }
    }

private:
    // A file as it was when it was read or opened, and the responses made of it.
    struct KnownFile {
        std::string name;  // relative to the root
        FileStamp stamp;
        std::string tag;
        std::int64_t modified = 0;  // seconds
        ReadyResponse whole;
        ReadyResponse not_modified;
    };
    using KnownFilePtr = std::shared_ptr<const KnownFile>;
    using Cache = ShardedLruCache<std::string, KnownFilePtr>;

    static constexpr std::string_view kAllowed = "GET, HEAD, OPTIONS";

    static StaticFilesOptions validated(StaticFilesOptions options) {
        if (options.index.find('/') != std::string::npos || options.index.find('\0') != std::string::npos || options.index == "." ||
            options.index == "..")
            throw std::invalid_argument("muses::StaticFilesOptions: index must be a file name, not a path");
        if (options.settle_time < std::chrono::milliseconds::zero())
            throw std::invalid_argument("muses::StaticFilesOptions: settle_time must not be negative");
        return options;
    }

    [[nodiscard]] LruOptions<std::string, KnownFilePtr> ready_options() const {
        LruOptions<std::string, KnownFilePtr> options;
        options.max_weight = options_.cache_bytes;
        options.weigher = [](const std::string& key, const KnownFilePtr& file) {
            return sizeof(KnownFile) + 160 + key.capacity() + file->name.capacity() + file->whole.weight() +
                   file->not_modified.weight();
        };
        return options;
    }

    // Few enough that a shard's share holds several of the largest files.
    [[nodiscard]] std::size_t ready_shards() const noexcept {
        const std::size_t largest = std::min(options_.max_cached_file_bytes, options_.cache_bytes) + 1024;
        return std::clamp<std::size_t>(options_.cache_bytes / 4 / largest, 1, 16);
    }

    [[nodiscard]] LruOptions<std::string, KnownFilePtr> open_options() const {
        LruOptions<std::string, KnownFilePtr> options;
        options.max_entries = options_.max_open_files;
        return options;
    }

    static std::optional<Response> refuse_method(const Request& request) {
        switch (request.method) {
            case Method::Get:
            case Method::Head: return std::nullopt;
            case Method::Options: {
                Response response;
                response.status = Status::NoContent;
                response.fields.push_back({"Allow", std::string(kAllowed)});
                return response;
            }
            case Method::Unknown: return error_response(Status::NotImplemented);
            default: {
                Response response = text_response(Status::MethodNotAllowed, "Files can only be read.");
                response.fields.push_back({"Allow", std::string(kAllowed)});
                return response;
            }
        }
    }

    [[nodiscard]] std::optional<Response> respond_from_memory(const Request& request, std::string_view name) {
        Cache* from = &ready_;
        std::optional<KnownFilePtr> file = ready_.get(name);
        if (!file) {
            from = &open_;
            file = open_.get(name);
        }
        if (!file) return std::nullopt;
        if (const auto now = root_.stamp_at((*file)->name); !now || *now != (*file)->stamp) {
            from->erase(name);
            stale_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
            return std::nullopt;
        }
        return answer(request, *std::move(file));
    }

    static Response answer(const Request& request, KnownFilePtr file) {
        Response response;
        const ReadyResponse* part = nullptr;
        switch (evaluate_preconditions(request, file->tag, file->modified)) {
            case Precondition::Holds:
                if (auto partial = answer_range(request, *file)) return *std::move(partial);
                part = &file->whole;
                break;
            case Precondition::NotModified: part = &file->not_modified; break;
            case Precondition::Failed: return error_response(Status::PreconditionFailed);
        }
        response.ready = std::shared_ptr<const ReadyResponse>(std::move(file), part);
        return response;
    }

    // Nothing when the request is for the whole. Only GET has ranges (RFC 9110 §14.2).
    static std::optional<Response> answer_range(const Request& request, const KnownFile& file) {
        if (request.method != Method::Get) return std::nullopt;
        const auto field = request.fields.find("range");
        if (!field || !if_range_holds(request, file.tag, file.modified, wall_clock() / kSecond)) return std::nullopt;
        const std::uint64_t size = file.whole.length();
        const RangeDecision decision = evaluate_range(*field, size);
        switch (decision.kind) {
            case RangeDecision::Kind::Whole: return std::nullopt;
            case RangeDecision::Kind::Unsatisfiable: return range_not_satisfiable(size);
            case RangeDecision::Kind::Partial: break;
        }
        return partial_response(decision.ranges, size, fields_of(file, true), [&](Payload& payload, ByteRange range) {
            file.whole.append_body(payload, range.first, range.length);
        });
    }

    // Opens, reads and answers. What is read is what the file was at one moment, or it is tried again: a file that is replaced
    // meanwhile is found anew by its name.
    [[nodiscard]] Response load(const Request& request, std::string key) {
        loads_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
        const bool directory = key.empty() || key.back() == '/';
        if (directory && options_.index.empty()) return error_response(Status::NotFound);
        const std::string name = directory ? key + options_.index : key;
        constexpr int kAttempts = 3;
        for (int attempt = 1;; ++attempt) {
            // Looked at before it is opened: opening a device or a FIFO can have effects of its own.
            const auto seen = root_.open_beneath(name, FileRoot::kPathOnly);
            if (!seen) return failure(key, seen.error());
            const auto kind = stamp_of(seen->get());
            if (!kind) return failure(key, kind.error());
            if (kind->is_directory() && !directory) return redirect(request, key);
            if (!kind->is_regular()) return forget(key, Status::NotFound);
            auto opened = root_.open_beneath(name, FileRoot::kRead);
            if (!opened) return failure(key, opened.error());
            const std::int64_t now = wall_clock();
            const auto stamp = stamp_of(opened->get());
            if (!stamp) return failure(key, stamp.error());
            if (!stamp->is_regular()) return forget(key, Status::NotFound);
            const bool settled = stamp->changed <= now - std::chrono::nanoseconds(options_.settle_time).count();
            if (stamp->size > options_.max_cached_file_bytes) {
                ready_.erase(key);
                return answer(request, keep(open_, settled, key, make_large(name, *stamp, *std::move(opened))));
            }
            std::string content;
            if (const auto error = read_all(opened->get(), static_cast<std::size_t>(stamp->size), content))
                return failure(key, error);
            const auto after = stamp_of(opened->get());
            const bool whole = after && *after == *stamp && content.size() == stamp->size;
            if (!whole && attempt < kAttempts) continue;
            open_.erase(key);
            return answer(request, keep(ready_, settled && whole, key, make_small(name, *stamp, std::move(content))));
        }
    }

    KnownFilePtr keep(Cache& cache, bool settled, std::string& key, KnownFilePtr file) {
        if (settled)
            cache.put(std::move(key), file);
        else
            cache.erase(key);
        return file;
    }

    Response forget(const std::string& key, Status status) {
        ready_.erase(key);
        open_.erase(key);
        return error_response(status);
    }

    Response failure(const std::string& key, std::error_code error) {
        switch (error.value()) {
            case EACCES:
            case EPERM: return forget(key, Status::Forbidden);
            case ENOENT:
            case ENOTDIR:
            case ENAMETOOLONG:
            case EINVAL:
            case EILSEQ:
            case EISDIR:
            case ENXIO:
            case ENODEV:
            case ESTALE: return forget(key, Status::NotFound);
            case EMFILE:
            case ENFILE:
            case ENOMEM:
            case EAGAIN: return forget(key, Status::ServiceUnavailable);
            default: return forget(key, Status::InternalServerError);
        }
    }

    Response redirect(const Request& request, const std::string& key) {
        ready_.erase(key);
        open_.erase(key);
        std::string location = encode_path(key).append("/");
        if (request.has_query) location.append("?").append(request.query);
        Response response = text_response(Status::MovedPermanently, "The address of this directory ends in a slash.");
        response.fields.push_back({"Location", std::move(location)});
        return response;
    }

    static KnownFilePtr make_small(const std::string& name, const FileStamp& stamp, std::string content) {
        // The content is part of the tag, so that it changes even when a file is rewritten within one tick of its clock.
        std::string tag = tag_of(stamp, 0);
        tag.insert(tag.size() - 1, "-");
        append_hex(tag, muses::detail::hash_bytes(content.data(), content.size(), kTagSeed), tag.size() - 1);
        auto file = make_known(name, stamp, std::move(tag));
        content.shrink_to_fit();
        file->whole = ReadyResponse(Status::Ok, fields_of(*file, true), std::make_shared<const std::string>(std::move(content)));
        return file;
    }

    static KnownFilePtr make_large(const std::string& name, const FileStamp& stamp, UniqueFd fd) {
        auto file = make_known(name, stamp, tag_of(stamp, stamp.changed));
        file->whole = ReadyResponse(Status::Ok, fields_of(*file, true),
                                    FileRange{std::make_shared<const UniqueFd>(std::move(fd)), 0, stamp.size});
        return file;
    }

    static std::shared_ptr<KnownFile> make_known(const std::string& name, const FileStamp& stamp, std::string tag) {
        auto file = std::make_shared<KnownFile>();
        file->name = name;
        file->stamp = stamp;
        file->tag = std::move(tag);
        file->modified = stamp.modified >= 0 ? stamp.modified / kSecond : (stamp.modified - (kSecond - 1)) / kSecond;
        file->not_modified = ReadyResponse(Status::NotModified, fields_of(*file, false), SharedBytes());
        return file;
    }

    static std::vector<ResponseField> fields_of(const KnownFile& file, bool with_type) {
        std::vector<ResponseField> fields;
        if (with_type) fields.push_back({"Content-Type", std::string(mime_type(file.name))});
        // A date in the future would be a lie to caches (RFC 9110 §8.8.2.1).
        if (file.stamp.modified <= wall_clock()) fields.push_back({"Last-Modified", muses::detail::format_imf_date(file.modified)});
        fields.push_back({"ETag", file.tag});
        if (with_type) fields.push_back({"Accept-Ranges", "bytes"});
        return fields;
    }

    // `changed` is the time of change where it has to vouch for content that nobody looks at: the time of modification can be set
    // back by a program. Where the content is part of the tag it would only change the tag for nothing, with a chmod say.
    static std::string tag_of(const FileStamp& stamp, std::int64_t changed) {
        const std::array<std::uint64_t, 4> facts = {stamp.inode, stamp.size, static_cast<std::uint64_t>(stamp.modified),
                                                    static_cast<std::uint64_t>(changed)};
        std::string tag = "\"\"";
        append_hex(tag, muses::detail::hash_bytes(facts.data(), sizeof facts, kTagSeed), 1);
        return tag;
    }

    static void append_hex(std::string& text, std::uint64_t number, std::size_t at) {
        std::array<char, 16> digits{};
        for (std::size_t i = 0; i < digits.size(); ++i) digits[i] = "0123456789abcdef"[(number >> (60 - 4 * i)) & 15U];
        text.insert(at, digits.data(), digits.size());
    }

    // Reads up to `size` bytes; fewer when the file ends before. Returns an error, or none.
    static std::error_code read_all(int fd, std::size_t size, std::string& content) {
        content.resize(size);
        std::size_t have = 0;
        while (have < size) {
            const ssize_t got = ::pread(fd, content.data() + have, size - have, static_cast<off_t>(have));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return muses::detail::file_error();
            if (got == 0) break;
            have += static_cast<std::size_t>(got);
        }
        content.resize(have);
        return {};
    }

    static std::int64_t wall_clock() noexcept {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    }

    static constexpr std::int64_t kSecond = 1'000'000'000;
    static constexpr std::uint64_t kTagSeed = 0x6d75736573;  // fixed: a tag must survive a restart

    const StaticFilesOptions options_;
    const FileRoot root_;
    Cache ready_;  // small files, whole
    Cache open_;   // larger files: their descriptors
    std::atomic<std::uint64_t> stale_{0};
    std::atomic<std::uint64_t> loads_{0};
};

}  // namespace muses::http
