// A file descriptor that is closed once.
#pragma once

#include <unistd.h>

#include <utility>

namespace muses {

/// What: sole owner of a file descriptor; -1 is none.
/// Complexity: O(1).
/// Threads: distinct objects are independent.
/// Lifetime: closes its descriptor when destroyed, reset or assigned to.
/// Limits: none.
class UniqueFd {
public:
    UniqueFd() noexcept = default;
    explicit UniqueFd(int fd) noexcept : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other) reset(std::exchange(other.fd_, -1));
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() { reset(); }

    /// The descriptor, or -1.
    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }

    /// Gives the descriptor away without closing it.
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

    /// Closes what is owned and takes `fd`. The result of close() is not looked at: on Linux the number is free in any case.
    void reset(int fd = -1) noexcept {
        if (const int old = std::exchange(fd_, fd); old >= 0) ::close(old);
    }

private:
    int fd_ = -1;
};

}  // namespace muses
