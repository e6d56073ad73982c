// Addresses of sockets, and the look-up of names.
#pragma once

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace muses {

namespace detail {

class ResolveCategory final : public std::error_category {
public:
    [[nodiscard]] const char* name() const noexcept override { return "resolve"; }
    [[nodiscard]] std::string message(int code) const override { return ::gai_strerror(code); }
};

[[nodiscard]] inline std::unexpected<std::error_code> last_error() noexcept {
    return std::unexpected(std::error_code(errno, std::system_category()));
}

[[nodiscard]] inline std::unexpected<std::error_code> failed(std::errc code) noexcept {
    return std::unexpected(std::make_error_code(code));
}

}  // namespace detail

/// The category of errors that name resolution reports; its values are the EAI_ constants.
[[nodiscard]] inline const std::error_category& resolve_category() noexcept {
    static const detail::ResolveCategory category;
    return category;
}

/// What: the address of a socket: IPv4 or IPv6 with a port, or a unix socket's path; or none, which is the default.
/// Complexity: O(1); 132 bytes.
/// Threads: a value; distinct objects are independent.
/// Lifetime: holds no resources.
/// Limits: unix paths as long as the system allows (107 bytes on Linux); Linux's abstract names are written "unix:@name".
class Endpoint {
public:
    Endpoint() noexcept = default;

    /// Copies `length` bytes of a socket address as the system hands them out; one of more bytes than fit gives none.
    Endpoint(const sockaddr* address, socklen_t length) noexcept {
        if (length == 0 || length > sizeof storage_) return;
        std::memcpy(&storage_, address, length);
        length_ = length;
    }

    /// Reads "127.0.0.1:80", "[::1]:80", "[fe80::1%eth0]:80" or "unix:/run/m.sock". Fails with std::errc::invalid_argument; host
    /// names are not looked up here, see resolve().
    [[nodiscard]] static std::expected<Endpoint, std::error_code> parse(std::string_view text) {
        if (text.starts_with("unix:")) return unix_socket(text.substr(5));
        const std::size_t colon = text.rfind(':');
        if (colon == std::string_view::npos) return detail::failed(std::errc::invalid_argument);
        const std::string_view digits = text.substr(colon + 1);
        std::uint16_t port = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
        if (error != std::errc{} || end != digits.data() + digits.size()) return detail::failed(std::errc::invalid_argument);
        const std::string_view host = text.substr(0, colon);
        const bool bracketed = host.starts_with('[') && host.ends_with(']');
        if (!bracketed && host.find(':') != std::string_view::npos) return detail::failed(std::errc::invalid_argument);
        auto result = bracketed ? ip(host.substr(1, host.size() - 2), port) : ip(host, port);
        if (result && bracketed != (result->family() == AF_INET6)) return detail::failed(std::errc::invalid_argument);
        return result;
    }

    /// A numeric IPv4 or IPv6 address ("::1", without brackets; a zone may follow as in "fe80::1%eth0") and a port. Fails with
    /// std::errc::invalid_argument.
    [[nodiscard]] static std::expected<Endpoint, std::error_code> ip(std::string_view address, std::uint16_t port) {
        std::array<char, INET6_ADDRSTRLEN> text{};
        const std::size_t percent = address.find('%');
        const std::string_view digits = address.substr(0, percent);
        if (digits.empty() || digits.size() >= text.size() || digits.find('\0') != std::string_view::npos)
            return detail::failed(std::errc::invalid_argument);
        std::copy(digits.begin(), digits.end(), text.begin());
        Endpoint result;
        sockaddr_in v4{};
        sockaddr_in6 v6{};
        if (percent == std::string_view::npos && ::inet_pton(AF_INET, text.data(), &v4.sin_addr) == 1) {
            v4.sin_family = AF_INET;
            v4.sin_port = htons(port);
            result.assign(v4, sizeof v4);
            return result;
        }
        if (::inet_pton(AF_INET6, text.data(), &v6.sin6_addr) != 1) return detail::failed(std::errc::invalid_argument);
        if (percent != std::string_view::npos) {
            v6.sin6_scope_id = ::if_nametoindex(std::string(address.substr(percent + 1)).c_str());
            if (v6.sin6_scope_id == 0) return detail::failed(std::errc::invalid_argument);
        }
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        result.assign(v6, sizeof v6);
        return result;
    }

    /// A unix socket's path; one that begins with '@' is an abstract name (Linux). Fails with invalid_argument when it is empty or has
    /// a NUL, with filename_too_long.
    [[nodiscard]] static std::expected<Endpoint, std::error_code> unix_socket(std::string_view path) {
        sockaddr_un address{};
        if (path.empty() || path.find('\0') != std::string_view::npos) return detail::failed(std::errc::invalid_argument);
        if (path.size() >= sizeof address.sun_path) return detail::failed(std::errc::filename_too_long);
        address.sun_family = AF_UNIX;
        std::copy(path.begin(), path.end(), address.sun_path);
        std::size_t length = offsetof(sockaddr_un, sun_path) + path.size();
        if (path.front() == '@')
            address.sun_path[0] = '\0';  // an abstract name is as long as the address says
        else
            ++length;
        Endpoint result;
        result.assign(address, static_cast<socklen_t>(length));
        return result;
    }

    /// AF_INET, AF_INET6, AF_UNIX; AF_UNSPEC when there is none.
    [[nodiscard]] int family() const noexcept { return length_ == 0 ? AF_UNSPEC : storage_.ss_family; }
    [[nodiscard]] explicit operator bool() const noexcept { return length_ != 0; }
    [[nodiscard]] bool is_ip() const noexcept { return family() == AF_INET || family() == AF_INET6; }

    /// The port; 0 for what has none.
    [[nodiscard]] std::uint16_t port() const noexcept {
        if (family() == AF_INET) return ntohs(as<sockaddr_in>().sin_port);
        if (family() == AF_INET6) return ntohs(as<sockaddr_in6>().sin6_port);
        return 0;
    }

    /// The path of a unix socket; empty for all else, for unnamed and for abstract ones.
    [[nodiscard]] std::string path() const {
        const std::string name = unix_name();
        return name.starts_with('@') ? std::string() : name;
    }

    /// The form that parse() reads; "unix:" for an unnamed unix socket, empty when there is none.
    [[nodiscard]] std::string to_string() const {
        if (family() == AF_UNIX) return "unix:" + unix_name();
        if (!is_ip()) return {};
        std::array<char, INET6_ADDRSTRLEN> text{};
        if (family() == AF_INET) {
            const auto address = as<sockaddr_in>();
            ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
            return std::string(text.data()) + ':' + std::to_string(port());
        }
        const auto address = as<sockaddr_in6>();
        ::inet_ntop(AF_INET6, &address.sin6_addr, text.data(), text.size());
        std::string result = std::string("[") + text.data();
        if (address.sin6_scope_id != 0) {
            std::array<char, IF_NAMESIZE> zone{};
            if (::if_indextoname(address.sin6_scope_id, zone.data()) != nullptr) (result += '%') += zone.data();
        }
        return result + "]:" + std::to_string(port());
    }

    /// For the system's calls.
    [[nodiscard]] const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
    [[nodiscard]] socklen_t size() const noexcept { return length_; }

    [[nodiscard]] friend bool operator==(const Endpoint& a, const Endpoint& b) noexcept {
        return a.length_ == b.length_ && std::memcmp(&a.storage_, &b.storage_, a.length_) == 0;
    }

private:
    template <class Address>
    void assign(const Address& address, socklen_t length) noexcept {
        static_assert(sizeof(Address) <= sizeof(sockaddr_storage));
        std::memcpy(&storage_, &address, sizeof address);
        length_ = length;
    }

    template <class Address>
    [[nodiscard]] Address as() const noexcept {
        Address address;
        std::memcpy(&address, &storage_, sizeof address);
        return address;
    }

    [[nodiscard]] std::string unix_name() const {
        constexpr std::size_t kStart = offsetof(sockaddr_un, sun_path);
        if (family() != AF_UNIX || length_ <= kStart) return {};
        const auto address = as<sockaddr_un>();
        const std::size_t room = std::min<std::size_t>(length_ - kStart, sizeof address.sun_path);
        if (address.sun_path[0] == '\0') return room > 1 ? '@' + std::string(address.sun_path + 1, room - 1) : std::string();
        return {address.sun_path, std::find(address.sun_path, address.sun_path + room, '\0')};
    }

    sockaddr_storage storage_{};
    socklen_t length_ = 0;
};

/// The addresses of a host name or numeric address, IPv4 ones first, else in the order of the system. `passive`: to listen on; then
/// an empty name and "*" mean all addresses; else an empty name is this machine. Blocks while the system looks the name up. Fails with resolve_category() errors.
[[nodiscard]] inline std::expected<std::vector<Endpoint>, std::error_code> resolve(std::string_view host, std::uint16_t port,
                                                                                   bool passive = false) {
    if (host.find('\0') != std::string_view::npos) return detail::failed(std::errc::invalid_argument);
    if (host == "*") {
        if (!passive) return std::unexpected(std::error_code(EAI_NONAME, resolve_category()));
        host = {};
    }
    const std::string name(host);
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(name.empty() ? nullptr : name.c_str(), std::to_string(port).c_str(), &hints, &found);
    // Small systems and containers may have no file of hosts; this name needs none.
    if (error != 0 && name == "localhost") return std::vector{*Endpoint::ip("127.0.0.1", port), *Endpoint::ip("::1", port)};
    if (error == EAI_SYSTEM) return detail::last_error();
    if (error != 0) return std::unexpected(std::error_code(error, resolve_category()));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    std::vector<Endpoint> result;
    for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
        const Endpoint endpoint(entry->ai_addr, entry->ai_addrlen);
        if (endpoint.is_ip() && std::find(result.begin(), result.end(), endpoint) == result.end()) result.push_back(endpoint);
    }
    std::stable_partition(result.begin(), result.end(), [](const Endpoint& e) { return e.family() == AF_INET; });
    if (result.empty()) return std::unexpected(std::error_code(EAI_NONAME, resolve_category()));
    return result;
}

}  // namespace muses
