// A folder of its own for a test, removed with all that is in it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace muses::test {

class TempDir {
public:
    TempDir() {
        std::string pattern = (std::filesystem::temp_directory_path() / "muses-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
        path_ = pattern;
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

    /// Writes a file in place (the same inode when it exists), making the folders above it.
    void write(std::string_view name, std::string_view content) const {
        const std::string file = *this / name;
        std::filesystem::create_directories(std::filesystem::path(file).parent_path());
        std::FILE* const out = std::fopen(file.c_str(), "wb");
        if (out == nullptr) throw std::runtime_error("cannot write " + file);
        const bool written = std::fwrite(content.data(), 1, content.size(), out) == content.size();
        if (std::fclose(out) != 0 || !written) throw std::runtime_error("cannot write " + file);
    }

    /// Writes over the first bytes of a file that exists. It is not truncated first, so nothing is flushed and it is quick: many
    /// of these fit into one tick of the file system's clock.
    void overwrite(std::string_view name, std::string_view content) const {
        const int fd = ::open((*this / name).c_str(), O_WRONLY | O_CLOEXEC);
        const bool written = fd >= 0 && ::pwrite(fd, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size());
        if (fd >= 0) ::close(fd);
        if (!written) throw std::runtime_error("cannot overwrite " + std::string(name));
    }

    /// Puts a new file in the place of an old one, all at once.
    void replace(std::string_view name, std::string_view content) const {
        const std::string next = std::string(name) + ".next";
        write(next, content);
        if (std::rename((*this / next).c_str(), (*this / name).c_str()) != 0) throw std::runtime_error("cannot rename");
    }

private:
    std::string path_;
};

}  // namespace muses::test
