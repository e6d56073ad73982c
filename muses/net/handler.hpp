// What a user of the reactor writes: a callable from one whole message to its answer.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "muses/detail/move_only_function.hpp"
#include "muses/net/payload.hpp"

namespace muses {

/// The answer to one message, and whether the connection serves another one after it.
struct HandlerResult {
    Payload response;
    bool keep_alive = true;
};

/// Work that may block: an inline handler returns it to have it run by one of the shard's workers.
using Blocking = detail::move_only_function<HandlerResult()>;

/// What an inline handler returns: the answer at once, or the work that makes it.
using InlineResult = std::variant<HandlerResult, Blocking>;

/// A handler takes the message as std::string_view (which is valid during the call only) or as const std::string&, and returns
/// HandlerResult (run by a worker where the shard has workers) or InlineResult (always run on the reactor's thread). It is
/// called by all shards and workers at the same time.
template <class H>
concept Handler = std::move_constructible<H> && (std::invocable<H&, std::string_view> || std::invocable<H&, const std::string&>);

namespace detail {

/// A handler with its type erased: one virtual call a message.
class MessageHandler {
public:
    virtual ~MessageHandler() = default;
    MessageHandler(const MessageHandler&) = delete;
    MessageHandler& operator=(const MessageHandler&) = delete;

    virtual InlineResult call(std::string_view message) = 0;
    virtual InlineResult call(const std::string& message) = 0;

    /// True when the handler answers on the reactor's thread even where there are workers.
    [[nodiscard]] virtual bool is_inline() const noexcept = 0;

protected:
    MessageHandler() = default;
};

template <Handler H>
class MessageHandlerFor final : public MessageHandler {
    static constexpr bool kTakesView = std::invocable<H&, std::string_view>;
    using Argument = std::conditional_t<kTakesView, std::string_view, const std::string&>;
    using Result = std::invoke_result_t<H&, Argument>;
    static_assert(
        std::same_as<Result, HandlerResult> || std::same_as<Result, InlineResult>,
        "a handler returns muses::HandlerResult (may run on a worker) or muses::InlineResult (runs on the reactor's thread); "
        "write the return type of the lambda");

public:
    explicit MessageHandlerFor(H handler) : handler_(std::move(handler)) {}

    InlineResult call(std::string_view message) override {
        if constexpr (kTakesView)
            return std::invoke(handler_, message);
        else
            return std::invoke(handler_, std::string(message));
    }

    InlineResult call(const std::string& message) override { return std::invoke(handler_, message); }

    [[nodiscard]] bool is_inline() const noexcept override { return std::same_as<Result, InlineResult>; }

private:
    H handler_;
};

}  // namespace detail
}  // namespace muses
