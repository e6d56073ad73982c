// What HTTP means, whatever the bytes look like (RFC 9110): methods, status codes, fields, requests, responses.
//
// Nothing here knows a wire format. http_parser.hpp makes a Request of HTTP/1.1 bytes, http_codec.hpp makes bytes of a Response.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/net/http_body.hpp"
#include "muses/net/http_grammar.hpp"  // reason_phrase, grammar::equals_lower
#include "muses/net/payload.hpp"

namespace muses::http {

/// The methods that HTTP defines (RFC 9110 §9, RFC 5789). Method names are case-sensitive.
enum class Method : std::uint8_t { Get, Head, Post, Put, Delete, Connect, Options, Trace, Patch, Unknown };

namespace grammar {
inline constexpr std::array<std::string_view, 9> kMethodNames = {"GET",     "HEAD",    "POST",  "PUT",  "DELETE",
                                                                 "CONNECT", "OPTIONS", "TRACE", "PATCH"};
}

/// The method of this name, or Method::Unknown.
[[nodiscard]] constexpr Method parse_method(std::string_view name) noexcept {
    for (std::size_t i = 0; i < grammar::kMethodNames.size(); ++i)
        if (grammar::kMethodNames[i] == name) return static_cast<Method>(i);
    return Method::Unknown;
}

/// The name of a method; empty for Method::Unknown.
[[nodiscard]] constexpr std::string_view to_string(Method method) noexcept {
    return method == Method::Unknown ? std::string_view{} : grammar::kMethodNames[static_cast<std::size_t>(method)];
}

/// Status codes by name; any other code is static_cast<Status>(code).
enum class Status : std::uint16_t {
    Continue = 100,
    Ok = 200,
    NoContent = 204,
    PartialContent = 206,
    MovedPermanently = 301,
    Found = 302,
    NotModified = 304,
    BadRequest = 400,
    Forbidden = 403,
    NotFound = 404,
    MethodNotAllowed = 405,
    RequestTimeout = 408,
    PreconditionFailed = 412,
    ContentTooLarge = 413,
    UriTooLong = 414,
    RangeNotSatisfiable = 416,
    ExpectationFailed = 417,
    HeaderFieldsTooLarge = 431,
    InternalServerError = 500,
    NotImplemented = 501,
    BadGateway = 502,
    ServiceUnavailable = 503,
    GatewayTimeout = 504,
    VersionNotSupported = 505,
};

[[nodiscard]] constexpr unsigned code_of(Status status) noexcept { return static_cast<unsigned>(status); }

/// "Not Found" for Status::NotFound; empty for a code without a phrase here.
[[nodiscard]] constexpr std::string_view reason_phrase(Status status) noexcept { return reason_phrase(code_of(status)); }

/// True when a response of this status never has a body (RFC 9110 §6.4.1).
[[nodiscard]] constexpr bool is_bodiless(Status status) noexcept {
    return code_of(status) < 200 || status == Status::NoContent || status == Status::NotModified;
}

/// One field of a request: views into what was received.
struct Field {
    std::string_view name;   ///< a token, in the case it came in
    std::string_view value;  ///< without spaces at its ends
};

/// What: the fields of a request in the order in which they came.
/// Complexity: lookups are linear: requests have few fields. Up to kInline fields allocate nothing.
/// Threads: distinct objects are independent.
/// Lifetime: holds views; a pointer or iterator is valid until the next push_back.
/// Limits: none of its own.
class FieldList {
public:
    static constexpr std::size_t kInline = 24;

    FieldList() noexcept {}  // NOLINT: the inline places are deliberately not initialised
    FieldList(const FieldList& other) { append(other); }
    FieldList& operator=(const FieldList& other) {
        if (this != &other) {
            clear();
            append(other);
        }
        return *this;
    }
    ~FieldList() = default;

    void push_back(Field field) {
        if (more_.empty() && size_ < kInline) {
            places_.inline_fields[size_] = field;
        } else {
            if (more_.empty()) more_.assign(places_.inline_fields, places_.inline_fields + size_);
            more_.push_back(field);
        }
        ++size_;
    }

    void clear() noexcept {
        more_.clear();
        size_ = 0;
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] const Field* begin() const noexcept { return more_.empty() ? places_.inline_fields : more_.data(); }
    [[nodiscard]] const Field* end() const noexcept { return begin() + size_; }

    /// The value of the first field of this name, or nothing. `lower` is the name without letters in upper case.
    [[nodiscard]] std::optional<std::string_view> find(std::string_view lower) const noexcept {
        for (const Field& field : *this)
            if (grammar::equals_lower(field.name, lower)) return field.value;
        return std::nullopt;
    }

    /// Calls fn(value) for each field of this name, in order.
    template <class Fn>
    void for_each(std::string_view lower, Fn&& fn) const {
        for (const Field& field : *this)
            if (grammar::equals_lower(field.name, lower)) fn(field.value);
    }

private:
    void append(const FieldList& other) {
        for (const Field& field : other) push_back(field);
    }

    union Places {
        Places() noexcept {}
        Field inline_fields[kInline];  // NOLINT: raw places
    };
    static_assert(std::is_trivially_destructible_v<Field> && std::is_trivially_copyable_v<Field>, "places are never destroyed");

    Places places_;
    std::size_t size_ = 0;
    std::vector<Field> more_;  // all of them, once there are more than kInline
};

/// What: the body of a request as it was received, and its bytes as they were meant.
/// Complexity: for_each_piece is linear and copies nothing.
/// Threads: const calls may run at once.
/// Lifetime: a view into what was received.
/// Limits: the codings that the framing accepts: none and chunked.
class BodyView {
public:
    BodyView() = default;
    BodyView(std::string_view raw, bool chunked) noexcept : raw_(raw), chunked_(chunked) {}

    /// True when there is nothing to read, not even an empty chunk.
    [[nodiscard]] bool empty() const noexcept { return raw_.empty(); }

    /// Calls fn(std::string_view piece) for each non-empty piece of the decoded body, in order. False when a chunk breaks the
    /// grammar, which cannot be in a message that HttpFramer has passed.
    template <class Fn>
    bool for_each_piece(Fn&& fn) const {
        if (!chunked_) {
            if (!raw_.empty()) fn(raw_);
            return true;
        }
        MessageLimits unlimited;
        unlimited.max_head_bytes = unlimited.max_fields = unlimited.max_body_bytes = raw_.size();
        FieldScanner cursor;
        ChunkScanner chunks;
        for (;;) {
            const ChunkScanner::Step step = chunks.next(raw_, cursor, unlimited);
            if (step.kind == ChunkScanner::Kind::Data)
                fn(step.data);
            else
                return step.kind == ChunkScanner::Kind::End;
        }
    }

    /// The decoded body in one piece, or nothing when a chunk breaks the grammar.
    [[nodiscard]] std::optional<std::string> decoded() const {
        std::string bytes;
        if (!chunked_) return bytes.assign(raw_), bytes;
        if (!for_each_piece([&](std::string_view piece) { bytes.append(piece); })) return std::nullopt;
        return bytes;
    }

private:
    std::string_view raw_;
    bool chunked_ = false;
};

/// What: one request, understood.
/// Complexity: moving and copying copy views only.
/// Threads: const access may run at once.
/// Lifetime: views into the bytes that it was parsed from; they must outlive it.
/// Limits: see FieldList.
struct Request {
    Method method = Method::Unknown;
    std::string_view method_name;  ///< as received, for methods that are Unknown
    std::string_view target;       ///< as received
    std::string_view path;         ///< of the target: starts with '/', still percent-encoded; "*" as such; empty for CONNECT
    std::string_view query;        ///< of the target: behind the '?', or empty
    bool has_query = false;        ///< tells "/a?" from "/a"
    std::string_view authority;    ///< host and port that are asked for: from the target, else from Host; may be empty
    unsigned minor = 1;            ///< of HTTP/1.minor
    bool keep_alive = true;        ///< what the client wishes for the connection after this request
    FieldList fields;
    BodyView body;
};

// Of http_codec.hpp: a response whose bytes were made once and are sent many times.
class ReadyResponse;

/// One field of a response.
struct ResponseField {
    std::string name;
    std::string value;
};

/// What: one response, before it becomes bytes.
/// Complexity: moves are O(1); a body of shared bytes or of a file range copies nothing.
/// Threads: one object belongs to one thread at a time.
/// Lifetime: owns or shares all it refers to.
/// Limits: Date, Content-Length, Connection and Transfer-Encoding are written by the codec and must not be among `fields`.
///         Values must not hold CR, LF or NUL.
struct Response {
    Status status = Status::Ok;
    std::vector<ResponseField> fields;
    Payload body;                                ///< not sent for HEAD and for statuses without a body, but counted
    bool close = false;                          ///< the connection ends after this response
    std::shared_ptr<const ReadyResponse> ready;  ///< when set, it is sent instead of status, fields and body
};

/// A small response of plain text: one sentence and a line end.
[[nodiscard]] inline Response text_response(Status status, std::string_view sentence) {
    Response response;
    response.status = status;
    response.fields.push_back({"Content-Type", "text/plain; charset=utf-8"});
    response.body.append(std::string(sentence).append("\n"));
    return response;
}

}  // namespace muses::http
