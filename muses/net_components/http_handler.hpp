// Static files behind a ReactorPool: StaticFiles, and the HttpContext façade over one of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <expected>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#else
#include <unistd.h>
#endif

#include "muses/net/handler.hpp"
#include "muses/net/http_framing.hpp"
#include "muses/net_components/file_service.hpp"
#include "muses/net_components/http_codec.hpp"
#include "muses/net_components/http_message.hpp"
#include "muses/net_components/http_parser.hpp"

namespace muses {

using http::StaticFilesOptions;
using http::StaticFilesStats;

/// What: a handler for ReactorPool that serves the files beneath a directory. Files that are kept in memory are answered on the
///       reactor's thread, everything else by a worker.
/// Complexity: a kept file costs one parse, one lookup and one statx.
/// Threads: all functions from any thread. A copy is another name for the same files and the same cache.
/// Lifetime: answers outlive it.
/// Limits: StaticFilesOptions.
class StaticFiles {
public:
    /// Opens the root. Throws std::system_error when it cannot be opened, std::invalid_argument for options that cannot be meant.
    explicit StaticFiles(StaticFilesOptions options) : StaticFiles(or_throw(open(std::move(options)))) {}

    /// The same; an error when the root cannot be opened.
    [[nodiscard]] static std::expected<StaticFiles, std::error_code> open(StaticFilesOptions options) {
        auto root = FileRoot::open(options.root, options.resolver);
        if (!root) return std::unexpected(root.error());
        return StaticFiles(std::make_shared<Shared>(*std::move(root), std::move(options)));
    }

    /// One complete HTTP/1.1 message -> its answer, or the work that makes it.
    [[nodiscard]] InlineResult operator()(std::string_view message) const {
        const auto request = http::parse_request(message);
        if (!request) return refused(message, request.error());
        if (auto response = shared_->files.try_respond(*request)) return encoded(*std::move(response), *request);
        return Blocking([files = *this, bytes = std::string(message)] { return files.answer(bytes); });
    }

    /// The same, at once; may wait for the file system.
    [[nodiscard]] HandlerResult answer(std::string_view message) const {
        const auto request = http::parse_request(message);
        if (!request) return refused(message, request.error());
        return encoded(shared_->files.respond(*request), *request);
    }

    /// The semantic layer alone, for routers and other codecs; may wait for the file system.
    [[nodiscard]] http::Response respond(const http::Request& request) const { return shared_->files.respond(request); }

    /// From now on every answer is the last one on its connection and says so (Connection: close, RFC 9112 section 9.6): for a server
    /// that is about to stop.
    void close_connections() const noexcept {
        shared_->closing.store(
            true, std::memory_order_relaxed);  // relaxed: an answer that misses it by a moment is as good as an earlier one
    }

    [[nodiscard]] StaticFilesStats stats() const { return shared_->files.stats(); }

private:
    struct Shared {
        Shared(FileRoot root, StaticFilesOptions options) : files(std::move(root), std::move(options)) {}
        http::FileService files;
        std::atomic<bool> closing{false};
    };

    explicit StaticFiles(std::shared_ptr<Shared> shared) noexcept : shared_(std::move(shared)) {}

    static StaticFiles or_throw(std::expected<StaticFiles, std::error_code> opened) {
        if (!opened) throw std::system_error(opened.error(), "muses::StaticFiles: the root cannot be opened");
        return *std::move(opened);
    }

    [[nodiscard]] HandlerResult encoded(http::Response response, const http::Request& request) const {
        HandlerResult result;
        if (shared_->closing.load(std::memory_order_relaxed)) response.close = true;  // relaxed: see close_connections()
        result.response = http::encode(std::move(response), request, result.keep_alive);
        return result;
    }

    // What cannot be understood is answered as the framer would, and the connection ends: nobody knows what follows.
    static HandlerResult refused(std::string_view message, Refusal why) {
        std::string text = HttpFramer::refusal(why);
        if (message.starts_with("HEAD ")) text.resize(text.find("\r\n\r\n") + 4);
        return {std::move(text), false};
    }

    std::shared_ptr<Shared> shared_;
};

/// What: one StaticFiles for the whole process, for handlers that are plain functions.
/// Complexity: as StaticFiles, but it waits for the file system where it has to.
/// Threads: all functions from any thread.
/// Lifetime: lives from its first use until the process ends.
/// Limits: serves ./statics, or else the folder `statics` beside the executable, unless configured before its first use.
class HttpContext {
public:
    using Result = HandlerResult;  ///< {Payload response; bool keep_alive}

    /// The answer to one complete HTTP/1.1 request. Everything is 404 when there is no folder to serve.
    [[nodiscard]] static Result handle_request(const std::string& request) {
        if (const auto files = instance()) return files->answer(request);
        const auto parsed = http::parse_request(request);
        if (!parsed) return {HttpFramer::refusal(parsed.error()), false};
        Result result;
        result.response = http::encode(http::FileService::error_response(http::Status::NotFound), *parsed, result.keep_alive);
        return result;
    }

    /// Serves another folder. Fails when the root cannot be opened, and with errc::device_or_resource_busy after the first use.
    [[nodiscard]] static std::expected<void, std::error_code> configure(StaticFilesOptions options) {
        auto files = StaticFiles::open(std::move(options));
        if (!files) return std::unexpected(files.error());
        bool taken = false;
        State& s = state();
        std::call_once(s.once, [&] {
            s.files = *std::move(files);
            taken = true;
        });
        if (!taken) return std::unexpected(std::make_error_code(std::errc::device_or_resource_busy));
        return {};
    }

    /// The folder `statics` in the working directory, else beside the executable, else nothing.
    [[nodiscard]] static std::optional<std::string> default_root() {
        for (std::string path : {std::string("statics"), executable_directory() + "/statics"}) {
            struct ::stat s{};
            if (::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode)) return path;
        }
        return std::nullopt;
    }

private:
    struct State {
        std::once_flag once;
        std::optional<StaticFiles> files;
    };

    static State& state() {
        static State& s = *new State;  // never destroyed: detached threads may still answer while the process exits
        return s;
    }

    static const std::optional<StaticFiles>& instance() {
        State& s = state();
        std::call_once(s.once, [&] {
            StaticFilesOptions options;
            if (auto root = default_root())
                options.root = *std::move(root);
            else
                return;
            if (auto files = StaticFiles::open(std::move(options))) s.files = *std::move(files);
        });
        return s.files;
    }

    static std::string executable_directory() {
        std::string path(4096, '\0');
#if defined(__APPLE__)
        std::uint32_t size = static_cast<std::uint32_t>(path.size());
        if (::_NSGetExecutablePath(path.data(), &size) != 0) return ".";
        path.resize(path.find('\0'));
#else
        const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
        if (size <= 0) return ".";
        path.resize(static_cast<std::size_t>(size));
#endif
        const std::size_t slash = path.rfind('/');
        return slash == std::string::npos ? "." : path.substr(0, slash);
    }
};

}  // namespace muses
