// From a Response to the bytes of HTTP/1.1. The fields that belong to the connection and the moment (Date, Connection,
// Content-Length) are written here and nowhere else.
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muses/detail/imf_date.hpp"
#include "muses/net/payload.hpp"
#include "muses/net_components/http_message.hpp"

namespace muses::http {

namespace codec {

/// What the head of a response says about the connection.
enum class Connection : std::uint8_t {
    Implied,    ///< stays open, as HTTP/1.1 does by itself
    KeepAlive,  ///< stays open, and the client (HTTP/1.0) has to be told
    Close,
};

inline constexpr std::array<std::string_view, 3> kConnectionLines = {"\r\n", "Connection: keep-alive\r\n\r\n",
                                                                     "Connection: close\r\n\r\n"};

/// The last lines of a head.
[[nodiscard]] constexpr std::string_view head_end(Connection connection) noexcept {
    return kConnectionLines[static_cast<std::size_t>(connection)];
}

inline void append_number(std::string& text, std::uint64_t number) {
    std::array<char, 20> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    text.append(digits.data(), end.ptr);
}

/// A head without its last lines; sets `date_at` to where the 29 characters of the date are.
[[nodiscard]] inline std::string write_head(Status status, const std::vector<ResponseField>& fields, std::uint64_t length,
                                            std::size_t& date_at) {
    std::string head;
    head.reserve(320);
    head.append("HTTP/1.1 ");
    append_number(head, code_of(status));
    head.append(" ").append(reason_phrase(status)).append("\r\nDate: ");
    date_at = head.size();
    head.append(muses::detail::imf_date_now()).append("\r\n");
    for (const ResponseField& field : fields) head.append(field.name).append(": ").append(field.value).append("\r\n");
    if (!is_bodiless(status)) {
        head.append("Content-Length: ");
        append_number(head, length);
        head.append("\r\n");
    }
    return head;
}

inline void append_body(Payload& payload, const Payload& body) {
    for (std::size_t i = 0; i < body.segments(); ++i) {
        std::visit(
            [&](const auto& segment) {
                if constexpr (std::is_same_v<std::remove_cvref_t<decltype(segment)>, SharedSlice>)
                    payload.append(segment.bytes, segment.offset, segment.length);
                else
                    payload.append(segment);
            },
            body.segment(i));
    }
}

}  // namespace codec

/// What: a response whose head was written once; only its date and its last lines differ from one sending to the next.
/// Complexity: write() copies the head and shares the body: no field is formatted.
/// Threads: const calls from any thread.
/// Lifetime: shares the body with what has been written from it.
/// Limits: the body is shared bytes or one file range.
class ReadyResponse {
public:
    ReadyResponse() = default;
    ReadyResponse(Status status, const std::vector<ResponseField>& fields, SharedBytes body)
        : bytes_(std::move(body)), head_(codec::write_head(status, fields, bytes_ ? bytes_->size() : 0, date_at_)) {}
    ReadyResponse(Status status, const std::vector<ResponseField>& fields, FileRange body)
        : file_(std::move(body)), head_(codec::write_head(status, fields, file_.length, date_at_)) {}

    /// The bytes for one request.
    [[nodiscard]] Payload write(codec::Connection connection, bool with_body) const {
        const std::string_view end = codec::head_end(connection);
        const std::string_view date = muses::detail::imf_date_now();
        std::string head;
        head.reserve(head_.size() + end.size());
        head.append(head_, 0, date_at_).append(date).append(head_, date_at_ + date.size()).append(end);
        Payload payload(std::move(head));
        if (with_body && bytes_) payload.append(bytes_);
        if (with_body && file_.file) payload.append(file_);
        return payload;
    }

    /// Bytes in the body.
    [[nodiscard]] std::uint64_t length() const noexcept { return bytes_ ? bytes_->size() : file_.length; }

    /// Adds a part of the body, which must be there.
    void append_body(Payload& payload, std::uint64_t offset, std::uint64_t length) const {
        if (bytes_) payload.append(bytes_, static_cast<std::size_t>(offset), static_cast<std::size_t>(length));
        if (file_.file) payload.append(FileRange{file_.file, file_.offset + offset, length});
    }

    /// Bytes of memory that it holds, besides the object itself.
    [[nodiscard]] std::size_t weight() const noexcept { return head_.capacity() + (bytes_ ? bytes_->capacity() : 0); }

private:
    SharedBytes bytes_;
    FileRange file_;
    std::size_t date_at_ = 0;
    std::string head_;  // after date_at_, which writing it sets
};

/// The bytes of a response to a request, and in `keep_alive` whether the connection stays open after them.
[[nodiscard]] inline Payload encode(Response response, const Request& request, bool& keep_alive) {
    keep_alive = request.keep_alive && !response.close;
    const codec::Connection connection = !keep_alive          ? codec::Connection::Close
                                         : request.minor == 0 ? codec::Connection::KeepAlive
                                                              : codec::Connection::Implied;
    const bool with_body = request.method != Method::Head;
    if (response.ready) return response.ready->write(connection, with_body);
    std::size_t date_at = 0;
    std::string head = codec::write_head(response.status, response.fields, response.body.size(), date_at);
    head.append(codec::head_end(connection));
    Payload payload(std::move(head));
    if (with_body && !is_bodiless(response.status)) codec::append_body(payload, response.body);
    return payload;
}

}  // namespace muses::http
