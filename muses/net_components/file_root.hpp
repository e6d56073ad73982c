// A directory that files are opened beneath, and never outside of.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <expected>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#endif
#endif

#include "muses/net/unique_fd.hpp"

namespace muses {

/// What tells one state of a file from another without reading it. Times are nanoseconds since 1970.
struct FileStamp {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t size = 0;
    std::int64_t modified = 0;  ///< when the content was last written
    std::int64_t changed = 0;   ///< when content, mode, owner or names were last changed; nobody can set it back
    std::uint32_t mode = 0;     ///< type and permissions

    [[nodiscard]] bool is_regular() const noexcept { return (mode & S_IFMT) == S_IFREG; }
    [[nodiscard]] bool is_directory() const noexcept { return (mode & S_IFMT) == S_IFDIR; }
    friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

namespace detail {

[[nodiscard]] inline std::error_code file_error() noexcept { return {errno, std::generic_category()}; }

[[nodiscard]] inline FileStamp to_stamp(const struct ::stat& s) noexcept {
#if defined(__APPLE__)
    const auto& modified = s.st_mtimespec;
    const auto& changed = s.st_ctimespec;
#else
    const auto& modified = s.st_mtim;
    const auto& changed = s.st_ctim;
#endif
    const auto nanoseconds = [](const auto& t) {
        return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::int64_t>(t.tv_nsec);
    };
    return {static_cast<std::uint64_t>(s.st_dev),
            static_cast<std::uint64_t>(s.st_ino),
            static_cast<std::uint64_t>(s.st_size),
            nanoseconds(modified),
            nanoseconds(changed),
            static_cast<std::uint32_t>(s.st_mode)};
}

}  // namespace detail

/// The stamp of an open file.
[[nodiscard]] inline std::expected<FileStamp, std::error_code> stamp_of(int fd) noexcept {
    struct ::stat s{};
    if (::fstat(fd, &s) != 0) return std::unexpected(detail::file_error());
    return detail::to_stamp(s);
}

/// What: a directory beneath which files are opened: no `..`, no absolute link and no link that leads out gets past it.
/// Complexity: with openat2 one system call an open; else one or two a path component.
/// Threads: const calls from any thread.
/// Lifetime: keeps the directory open: it may be renamed or unlinked meanwhile. Descriptors that it gave out are their owner's.
/// Limits: symbolic links are followed while they stay inside (relative ones only), 40 of them at most. Mount points inside are
///         part of the tree.
class FileRoot {
public:
    enum class Resolver : std::uint8_t {
        Auto,    ///< Kernel where it works, else Walk; found out once, when the root is opened
        Kernel,  ///< openat2 with RESOLVE_BENEATH; opening the root fails where the kernel has none
        Walk,    ///< component by component, without following links that were not looked at
    };

    /// Opens `path` as a root; fails when it is not a directory that can be searched.
    [[nodiscard]] static std::expected<FileRoot, std::error_code> open(const std::string& path,
                                                                       Resolver resolver = Resolver::Auto) {
        UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!directory) return std::unexpected(detail::file_error());
        FileRoot root(std::move(directory), resolver);
        if (resolver != Resolver::Walk) {
            const auto probe = root.open_by_kernel(".", kPathOnly | O_DIRECTORY);
            if (!probe && resolver == Resolver::Kernel) return std::unexpected(probe.error());
            root.resolver_ = probe ? Resolver::Kernel : Resolver::Walk;
        }
        return root;
    }

    /// Flags that name a file without opening it: enough for stamp_of, and harmless for FIFOs and devices.
#if defined(O_PATH)
    static constexpr int kPathOnly = O_PATH;
#else
    static constexpr int kPathOnly = O_RDONLY | O_NONBLOCK | O_NOCTTY;
#endif
    /// Flags to read a file; never waits for a FIFO's writer or a device.
    static constexpr int kRead = O_RDONLY | O_NONBLOCK | O_NOCTTY;

    /// Opens `relative` ("" is the root itself) with `flags` and close-on-exec. Fails as open(2) does; ENOENT also for a path that
    /// leads out of the root.
    [[nodiscard]] std::expected<UniqueFd, std::error_code> open_beneath(const std::string& relative, int flags) const {
        if (relative.size() >= PATH_MAX || relative.find('\0') != std::string::npos) return error(ENOENT);
        const std::string name = relative.empty() ? "." : relative;
        auto opened = resolver_ == Resolver::Kernel ? open_by_kernel(name, flags) : open_by_walking(name, flags);
        if (!opened && (opened.error().value() == EXDEV || opened.error().value() == ELOOP)) return error(ENOENT);
        return opened;
    }

    /// The stamp of what `relative` names now. One system call. It follows links wherever they lead, so it serves to compare
    /// with a stamp of a file that was opened beneath, and for nothing else.
    [[nodiscard]] std::expected<FileStamp, std::error_code> stamp_at(const std::string& relative) const noexcept {
        const char* const name = relative.empty() ? "." : relative.c_str();
#if defined(__linux__) && defined(STATX_BASIC_STATS)
        struct ::statx s;  // NOLINT: filled by the call
        if (::statx(directory_.get(), name, AT_STATX_SYNC_AS_STAT | AT_NO_AUTOMOUNT, kStampMask, &s) != 0)
            return std::unexpected(detail::file_error());
        const auto nanoseconds = [](const auto& t) {
            return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::int64_t>(t.tv_nsec);
        };
        return FileStamp{static_cast<std::uint64_t>(makedev(s.stx_dev_major, s.stx_dev_minor)),
                         s.stx_ino,
                         s.stx_size,
                         nanoseconds(s.stx_mtime),
                         nanoseconds(s.stx_ctime),
                         s.stx_mode};
#else
        struct ::stat s{};
        if (::fstatat(directory_.get(), name, &s, 0) != 0) return std::unexpected(detail::file_error());
        return detail::to_stamp(s);
#endif
    }

    /// Kernel or Walk: how paths are resolved.
    [[nodiscard]] Resolver resolver() const noexcept { return resolver_; }

private:
    static constexpr int kMostLinks = 40;
    static constexpr std::size_t kDeepest = 256;  // directories open at once while walking
#if defined(__linux__) && defined(STATX_BASIC_STATS)
    static constexpr unsigned kStampMask = STATX_TYPE | STATX_MODE | STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME;
#endif

    FileRoot(UniqueFd directory, Resolver resolver) noexcept : directory_(std::move(directory)), resolver_(resolver) {}

    static std::unexpected<std::error_code> error(int number) {
        return std::unexpected(std::error_code(number, std::generic_category()));
    }

    [[nodiscard]] std::expected<UniqueFd, std::error_code> open_by_kernel([[maybe_unused]] const std::string& name,
                                                                          [[maybe_unused]] int flags) const {
#if defined(__linux__) && defined(SYS_openat2) && defined(RESOLVE_BENEATH)
        struct ::open_how how{};
        how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
        how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
        for (int attempt = 0;; ++attempt) {
            const long fd = ::syscall(SYS_openat2, directory_.get(), name.c_str(), &how, sizeof how);
            if (fd >= 0) return UniqueFd(static_cast<int>(fd));
            // EAGAIN: a rename somewhere in the system made the kernel unsure of a `..`; it asks to be asked again.
            if ((errno != EAGAIN || attempt >= 100) && errno != EINTR) return std::unexpected(detail::file_error());
        }
#else
        return error(ENOSYS);
#endif
    }

    // Walks with the directories from the root to the present one open, so that `..` leads where the path came from even if
    // somebody moves a directory meanwhile. A component is opened with O_NOFOLLOW; a link is read and its target walked in place.
    [[nodiscard]] std::expected<UniqueFd, std::error_code> open_by_walking(const std::string& name, int flags) const {
        std::deque<std::string> todo;
        push_components(todo, name);
        std::vector<UniqueFd> above;
        int links = 0;
        const auto here = [&] { return above.empty() ? directory_.get() : above.back().get(); };
        while (!todo.empty()) {
            const std::string component = std::move(todo.front());
            todo.pop_front();
            if (component == "." && !todo.empty()) continue;
            if (component == "..") {
                if (above.empty()) return error(EXDEV);
                above.pop_back();
                continue;
            }
            std::string link(PATH_MAX, '\0');
            const ssize_t length = ::readlinkat(here(), component.c_str(), link.data(), link.size());
            if (length == 0) return error(ENOENT);
            if (length > 0) {
                if (++links > kMostLinks) return error(ELOOP);
                link.resize(static_cast<std::size_t>(length));
                if (link.front() == '/') return error(EXDEV);
                push_components(todo, link);
                continue;
            }
            if (errno != EINVAL) return std::unexpected(detail::file_error());  // EINVAL: there, and not a link
            const bool last = todo.empty();
            const int how = last ? flags : kDirectory;
            UniqueFd fd(::openat(here(), component.c_str(), how | O_NOFOLLOW | O_CLOEXEC));
            if (!fd) return std::unexpected(detail::file_error());
            if (last) return not_a_link(std::move(fd));
            if (above.size() >= kDeepest) return error(ENAMETOOLONG);
            above.push_back(std::move(fd));
        }
        UniqueFd fd(::openat(here(), ".", flags | O_CLOEXEC));  // the path was only dots, or ended in them
        if (!fd) return std::unexpected(detail::file_error());
        return fd;
    }

#if defined(O_PATH)
    static constexpr int kDirectory = O_PATH | O_DIRECTORY;
#else
    static constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NONBLOCK;
#endif

    // O_PATH with O_NOFOLLOW opens a link itself, should the file have become one since it was looked at.
    static std::expected<UniqueFd, std::error_code> not_a_link(UniqueFd fd) {
        const auto stamp = stamp_of(fd.get());
        if (!stamp) return std::unexpected(stamp.error());
        if ((stamp->mode & S_IFMT) == S_IFLNK) return error(ELOOP);
        return fd;
    }

    // Puts the components of `path` in front of what is left to do. A trailing slash becomes a dot: what is before it must be
    // a directory.
    static void push_components(std::deque<std::string>& todo, std::string_view path) {
        std::vector<std::string> components;
        while (!path.empty()) {
            const std::size_t slash = path.find('/');
            const std::string_view component = path.substr(0, slash);
            if (!component.empty()) components.emplace_back(component);
            path.remove_prefix(component.size());
            if (path.starts_with('/')) {
                path.remove_prefix(1);
                if (path.empty() && !components.empty()) components.emplace_back(".");
            }
        }
        todo.insert(todo.begin(), components.begin(), components.end());
    }

    UniqueFd directory_;
    Resolver resolver_;
};

}  // namespace muses
