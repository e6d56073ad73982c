// Where an HTTP/1 request ends (RFC 9112 §6 and §7): the framing that the reactor uses by default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "muses/detail/imf_date.hpp"
#include "muses/net/framing.hpp"
#include "muses/net/http_body.hpp"
#include "muses/net/http_grammar.hpp"

namespace muses {

/// What: finds the end of the first HTTP/1 request in the bytes of a connection, and refuses what is not one, strictly: a
///       message whose end two readers could see in different places is never served.
/// Complexity: every byte is judged once, however the input was cut; bodies of known length are not looked at.
/// Threads: one object belongs to one thread at a time.
/// Lifetime: keeps positions, no views; `next` needs the same message's bytes, grown, each time.
/// Limits: MessageLimits. One empty line before the request line is tolerated and belongs to the message. The bytes that
///         announce chunks are not counted as body: a message of one-byte chunks is six times as long as what it carries.
class HttpFramer {
public:
    /// What the first message of `buffered` has come to. Refused is final until reset(). Every answer but `interim`, which is
    /// given at most once a message, depends on the bytes alone.
    [[nodiscard]] FrameStep next(std::string_view buffered, const MessageLimits& limits) noexcept {
        switch (at_) {
            case At::StartLine:
                if (const FrameStep step = start_line(buffered, limits); at_ != At::Fields) return step;
                [[fallthrough]];
            case At::Fields:
                if (const FrameStep step = fields(buffered, limits); at_ == At::Fields || at_ == At::Refused) return step;
                return at_ == At::Length ? length(buffered) : chunks(buffered, limits);
            case At::Length: return length(buffered);
            case At::Chunks: return chunks(buffered, limits);
            case At::Refused: break;
        }
        return refused();
    }

    /// Starts the next message.
    void reset() noexcept { *this = HttpFramer(); }

    /// A whole answer for a request that never reaches a handler; the connection closes after it.
    [[nodiscard]] static std::string refusal(Refusal why) {
        const Answer answer = answer_to(why);
        std::string text;
        text.reserve(256);
        text.append("HTTP/1.1 ").append(std::to_string(answer.code)).append(" ").append(http::reason_phrase(answer.code));
        text.append("\r\nDate: ").append(detail::imf_date_now());
        text.append("\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ")
            .append(std::to_string(answer.sentence.size() + 1));
        if (answer.code == 503) text.append("\r\nRetry-After: 1");
        text.append("\r\nConnection: close\r\n\r\n").append(answer.sentence).append("\n");
        return text;
    }

private:
    enum class At : std::uint8_t { StartLine, Fields, Length, Chunks, Refused };

    struct Answer {
        unsigned code;
        std::string_view sentence;
    };

    static constexpr Answer answer_to(Refusal why) noexcept {
        switch (why) {
            case Refusal::Malformed: return {400, "The request is not valid HTTP/1.1."};
            case Refusal::StartLineTooLong: return {414, "The request line is longer than this server accepts."};
            case Refusal::HeadTooLarge: return {431, "The request has more or longer header fields than this server accepts."};
            case Refusal::BodyTooLarge: return {413, "The body of the request is larger than this server accepts."};
            case Refusal::UnsupportedCoding: return {501, "The request uses a transfer coding that this server does not know."};
            case Refusal::UnsupportedVersion: return {505, "This server speaks HTTP/1.0 and HTTP/1.1."};
            case Refusal::HeadTimeout: return {408, "The request did not arrive in time."};
            case Refusal::BodyTimeout: return {408, "The body of the request did not arrive in time."};
            case Refusal::Overloaded: return {503, "The server is busy; try again in a moment."};
            case Refusal::HandlerFailed: break;
        }
        return {500, "The server failed to answer this request."};
    }

    FrameStep refuse(Refusal why) noexcept {
        at_ = At::Refused;
        why_ = why;
        return refused();
    }

    [[nodiscard]] FrameStep refused() const noexcept {
        FrameStep step;
        step.kind = FrameStep::Kind::Refused;
        step.why = why_;
        return step;
    }

    static FrameStep complete(std::size_t size) noexcept {
        FrameStep step;
        step.kind = FrameStep::Kind::Complete;
        step.size = size;
        return step;
    }

    FrameStep start_line(std::string_view buffered, const MessageLimits& limits) noexcept {
        using Kind = http::FieldScanner::Kind;
        for (;;) {
            // A line and its end must fit into what is shown; the byte that would not is never judged.
            const std::size_t start = skipped_empty_line_ ? 2 : 0;
            const std::size_t most = limits.max_start_line_bytes > kMostBytes ? kMostBytes : limits.max_start_line_bytes + 2;
            const bool clipped = buffered.size() - start > most;
            const http::FieldScanner::Step step = scanner_.line(clipped ? buffered.substr(0, start + most) : buffered);
            if (step.kind == Kind::NeedMore) return clipped ? refuse(Refusal::StartLineTooLong) : FrameStep{};
            if (step.kind != Kind::Field) return refuse(Refusal::Malformed);
            if (step.value.empty() && !skipped_empty_line_) {
                skipped_empty_line_ = true;
                continue;
            }
            http::RequestLine line;
            Refusal why = Refusal::Malformed;
            if (!http::parse_request_line(step.value, line, why)) return refuse(why);
            minor_ = static_cast<std::uint8_t>(line.minor);
            at_ = At::Fields;
            return {};
        }
    }

    FrameStep fields(std::string_view buffered, const MessageLimits& limits) noexcept {
        using Kind = http::FieldScanner::Kind;
        const bool clipped = buffered.size() > limits.max_head_bytes;
        const std::string_view visible = clipped ? buffered.substr(0, limits.max_head_bytes) : buffered;
        if (scanner_.position() > visible.size()) return refuse(Refusal::HeadTooLarge);  // by the request line alone
        for (;;) {
            const http::FieldScanner::Step step = scanner_.next(visible);
            switch (step.kind) {
                case Kind::NeedMore: return clipped ? refuse(Refusal::HeadTooLarge) : FrameStep{};
                case Kind::Bad: return refuse(Refusal::Malformed);
                case Kind::Field:
                    if (++fields_ > limits.max_fields) return refuse(Refusal::HeadTooLarge);
                    if (!stage_.framing.add(step.name, step.value)) return refuse(Refusal::Malformed);
                    break;
                case Kind::End: return head_end(limits);
            }
        }
    }

    FrameStep head_end(const MessageLimits& limits) noexcept {
        const http::BodyFraming framing = stage_.framing;
        if (const auto why = framing.judge(minor_, limits.max_body_bytes)) return refuse(*why);
        say_continue_ = framing.expects_continue() && minor_ != 0;
        if (framing.kind() == http::BodyFraming::Kind::Chunked) {
            stage_.chunks = http::ChunkScanner();
            at_ = At::Chunks;
            return {};
        }
        if (framing.length() > kMostBytes - scanner_.position()) return refuse(Refusal::BodyTooLarge);
        stage_.message_size = scanner_.position() + static_cast<std::size_t>(framing.length());
        at_ = At::Length;
        return {};
    }

    FrameStep length(std::string_view buffered) noexcept {
        if (buffered.size() >= stage_.message_size) return complete(stage_.message_size);
        return wait_for_body();
    }

    FrameStep chunks(std::string_view buffered, const MessageLimits& limits) noexcept {
        using Kind = http::ChunkScanner::Kind;
        for (;;) {
            const http::ChunkScanner::Step step = stage_.chunks.next(buffered, scanner_, limits);
            switch (step.kind) {
                case Kind::NeedMore: return wait_for_body();
                case Kind::Data: break;
                case Kind::End: return complete(scanner_.position());
                case Kind::Refused: return refuse(step.why);
            }
        }
    }

    FrameStep wait_for_body() noexcept {
        FrameStep step;
        step.head_complete = true;
        if (say_continue_) step.interim = "HTTP/1.1 100 Continue\r\n\r\n";
        say_continue_ = false;
        return step;
    }

    static constexpr std::size_t kMostBytes = std::numeric_limits<std::size_t>::max() - 2;

    // What is needed of the fields until the head ends, and of the body afterwards; which one lives follows from at_.
    union Stage {
        http::BodyFraming framing{};  // StartLine, Fields
        std::size_t message_size;     // Length
        http::ChunkScanner chunks;    // Chunks
    };

    http::FieldScanner scanner_;
    Stage stage_;
    std::uint32_t fields_ = 0;
    std::uint8_t minor_ = 1;
    At at_ = At::StartLine;
    Refusal why_ = Refusal::Malformed;
    bool skipped_empty_line_ : 1 = false;
    bool say_continue_ : 1 = false;
};

static_assert(MessageFramer<HttpFramer>);
static_assert(sizeof(HttpFramer) <= 64, "one lives in every connection");

}  // namespace muses
