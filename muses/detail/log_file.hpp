// Writing lines to descriptors: a buffer that survives short writes and full disks, and a file that rotates by size and by day.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace muses {

/// Where a file sink writes, and when it begins a new file.
struct FileSinkOptions {
    std::string path;             ///< created when missing, appended to when there; its folder must exist
    std::uint64_t max_bytes = 0;  ///< a file does not grow above this, unless one line alone is longer; 0 = no limit
    std::uint32_t keep = 5;       ///< older files kept as path.1 (the youngest) to path.keep; 0 = none
    bool daily = false;           ///< a file holds lines of one day only; a day is that of the lines' time stamps, UTC
};

namespace detail {

/// Lines on their way to a descriptor. One thread.
class LogBuffer {
public:
    /// Enough to make system calls rare; a longer line is written at once, whole.
    static constexpr std::size_t kFlushAt = 64 * 1024;

    /// Adds a line and its newline.
    void append(std::string_view line) {
        if (torn_ && bytes_.empty()) bytes_ += '\n';  // the last write ended inside a line: do not glue this one to it
        bytes_ += line;
        bytes_ += '\n';
    }

    [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

    /// Writes everything to `fd` and adds to `total` what was written. When the system refuses, the rest is discarded (a log may
    /// not grow without bound in memory) and std::system_error is thrown.
    void write_to(int fd, std::uint64_t& total) {
        const auto [written, error] = write_all(fd, bytes_);
        if (written != 0) torn_ = bytes_[written - 1] != '\n';
        total += written;
        bytes_.clear();
        if (error != 0) throw std::system_error(error, std::generic_category(), "write");
    }

    /// The next line goes to another file.
    void begin_file() noexcept { torn_ = false; }

private:
    struct Outcome {
        std::size_t written;
        int error;
    };

    static Outcome write_all(int fd, std::string_view bytes) noexcept {
        std::size_t written = 0;
        while (written < bytes.size()) {
            const ssize_t n = ::write(fd, bytes.data() + written, bytes.size() - written);
            if (n >= 0) {
                written += static_cast<std::size_t>(n);
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                // Somebody else has made the terminal or pipe that we share non-blocking.
                pollfd ready{fd, POLLOUT, 0};
                ::poll(&ready, 1, -1);
            } else if (errno != EINTR) {
                return {written, errno};
            }
        }
        return {written, 0};
    }

    std::string bytes_;
    bool torn_ = false;
};

/// What: an append-only file of lines with rotation by size and by day.
/// Complexity: a line is a copy; one system call per 64 KiB or flush(). A rotation is one rename per kept file.
/// Threads: one at a time.
/// Lifetime: the descriptor is open from construction to destruction; what was not flushed by then is lost.
/// Limits: FileSinkOptions; a path that is no regular file (a device, a pipe) is never rotated.
class LogFile {
public:
    /// Throws std::invalid_argument for an empty path and std::system_error when the file cannot be opened.
    explicit LogFile(FileSinkOptions options) : options_(std::move(options)) {
        if (options_.path.empty()) throw std::invalid_argument("muses::FileSink: the path is empty");
        open();
    }
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;
    ~LogFile() { ::close(fd_); }

    /// Adds one line (without its newline), logged at `time_ns` (nanoseconds since 1970). Throws std::system_error when a write or a
    /// rotation fails; the line itself is then in the buffer all the same, for the file that is open.
    void append(std::string_view line, std::int64_t time_ns) {
        std::error_code trouble;
        const bool empty = size_ + buffer_.size() == 0;
        const std::int64_t day = day_of(time_ns);
        const bool full = options_.max_bytes != 0 && size_ + buffer_.size() + line.size() + 1 > rotate_above_;
        const bool over = options_.daily && day > day_;  // a clock that was set back does not begin a file
        if (regular_ && !empty && (full || over)) trouble = rotate();
        if (empty || over) day_ = day;  // after a rotation that failed, too: the next attempt is due tomorrow
        buffer_.append(line);
        if (trouble) throw std::system_error(trouble, "rotating " + options_.path);
        if (buffer_.size() >= LogBuffer::kFlushAt) flush();
    }

    /// Hands what is buffered to the system. Throws std::system_error; what could not be written is lost then.
    void flush() {
        if (buffer_.size() != 0) buffer_.write_to(fd_, size_);
    }

    /// Opens the path anew, because somebody has renamed the file. When that fails the old file stays in use and
    /// std::system_error is thrown.
    void reopen() {
        std::error_code trouble = try_flush();
        open();
        if (trouble) throw std::system_error(trouble, options_.path);
    }

private:
    static constexpr std::int64_t kNsPerDay = std::int64_t{86'400} * 1'000'000'000;

    [[nodiscard]] static std::int64_t day_of(std::int64_t time_ns) noexcept {
        return time_ns / kNsPerDay - (time_ns % kNsPerDay < 0 ? 1 : 0);
    }

    void open() {
        const int fd = ::open(options_.path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) throw std::system_error(errno, std::generic_category(), "cannot open the log file " + options_.path);
        if (fd_ >= 0) ::close(fd_);
        fd_ = fd;
        buffer_.begin_file();
        struct stat status{};
        const bool known = ::fstat(fd_, &status) == 0;
        regular_ = known && S_ISREG(status.st_mode);
        size_ = regular_ ? static_cast<std::uint64_t>(status.st_size) : 0;
        rotate_above_ = options_.max_bytes;
        // What is in it was written by the day of its last change. Of an empty file the first line says the day.
        if (regular_ && size_ != 0) day_ = std::int64_t{status.st_mtime} / 86'400;
    }

    std::error_code try_flush() {
        try {
            flush();
        } catch (const std::system_error& e) {
            return e.code();
        }
        return {};
    }

    /// Begins a new file. On an error lines go on into the open one, and the next attempt waits until that has grown by another
    /// max_bytes, or for the next day: a folder that cannot be written must not cost a rename per line.
    std::error_code rotate() {
        std::error_code trouble = try_flush();
        if (const std::error_code refused = move_aside()) {
            trouble = refused;
        } else {
            try {
                open();
            } catch (const std::system_error& e) {
                trouble = e.code();
            }
        }
        if (trouble) {
            const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - size_;
            rotate_above_ = size_ + (options_.max_bytes < room ? options_.max_bytes : room);
        }
        return trouble;
    }

    [[nodiscard]] std::string numbered(std::uint32_t i) const { return options_.path + '.' + std::to_string(i); }

    /// path.1 becomes path.2 and so on up to the first free number or the last kept one, then path becomes path.1.
    std::error_code move_aside() const {
        if (options_.keep == 0) return ::unlink(options_.path.c_str()) == 0 || errno == ENOENT ? std::error_code{} : last_error();
        std::uint32_t end = 1;
        while (end < options_.keep && ::access(numbered(end).c_str(), F_OK) == 0) ++end;
        for (; end > 1; --end)
            if (::rename(numbered(end - 1).c_str(), numbered(end).c_str()) != 0) return last_error();
        return ::rename(options_.path.c_str(), numbered(1).c_str()) == 0 || errno == ENOENT ? std::error_code{} : last_error();
    }

    static std::error_code last_error() noexcept { return {errno, std::generic_category()}; }

    FileSinkOptions options_;
    LogBuffer buffer_;
    std::uint64_t size_ = 0;          // bytes in the open file, as far as we wrote them
    std::uint64_t rotate_above_ = 0;  // max_bytes, or more after a rotation that failed
    std::int64_t day_ = 0;            // of the lines in the open file, counted from 1970; meaningless while it is empty
    int fd_ = -1;
    bool regular_ = false;
};

}  // namespace detail
}  // namespace muses
