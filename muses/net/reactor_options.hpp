// The limits of a reactor, and what it counts.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "muses/net/framing.hpp"

namespace muses {

/// Limits and hooks. Every limit has a default that is safe on an open port; a limit that is met is counted in ReactorStats.
struct ReactorOptions {
    MessageLimits message;  ///< sizes of one message

    std::size_t max_connections = 10'000;       ///< over all shards; a connection above it gets Refusal::Overloaded and is closed
    std::size_t high_water_bytes = 256 * 1024;  ///< a connection with more unsent bytes than this is neither read nor served
    std::size_t outbox_capacity = 1024;         ///< answers from workers that wait for one shard, lock-free; more take a slower way

    std::chrono::milliseconds head_timeout{10'000};   ///< from the first byte of a message (or from accept) to the end of its head
    std::chrono::milliseconds body_timeout{30'000};   ///< between two reads of a body
    std::chrono::milliseconds idle_timeout{60'000};   ///< a kept-alive connection without a message
    std::chrono::milliseconds write_timeout{30'000};  ///< unsent bytes of which the peer takes none
    std::chrono::milliseconds linger_timeout{2'000};  ///< after the last answer: how long to wait for the peer to close
    std::size_t linger_bytes = 1024 * 1024;  ///< after the last answer: how much of what still arrives is read and thrown away

    std::string thread_name = "muses-net";  ///< threads of shard i are named <thread_name>-i
    std::function<void(std::exception_ptr)>
        on_exception;  ///< what a handler threw; empty: one line to standard error. Called on the thread that ran the handler
};

/// Sums over all shards since the start. Each number is exact; together they are not one instant's picture.
struct ReactorStats {
    std::uint64_t accepted = 0;  ///< connections taken from the kernel, those over the limit too
    std::uint64_t closed = 0;    ///< connections that ended, for whatever reason
    std::uint64_t messages = 0;  ///< complete messages given to the handler
    std::uint64_t bytes_read = 0;
    std::uint64_t bytes_written = 0;
    std::uint64_t over_limit = 0;        ///< connections refused because of max_connections
    std::uint64_t refused_messages = 0;  ///< malformed, too large or unsupported
    std::uint64_t head_timeouts = 0;
    std::uint64_t body_timeouts = 0;
    std::uint64_t idle_timeouts = 0;
    std::uint64_t write_timeouts = 0;
    std::uint64_t handler_failures = 0;    ///< handlers that threw
    std::uint64_t orphaned_answers = 0;    ///< answers whose connection had died before they were ready
    std::uint64_t outbox_overflows = 0;    ///< answers that took the slower way because the outbox was full
    std::uint64_t accept_pauses = 0;       ///< times that accepting stopped for a moment for want of descriptors or memory
    std::uint64_t handed_over = 0;         ///< connections that went to a less loaded shard than the one that accepted them
    std::uint64_t forced_closes = 0;       ///< connections still busy when the deadline of stop() passed
    std::vector<std::size_t> connections;  ///< open now, per shard
};

namespace detail {

/// One counter a field of ReactorStats; the order is that of kStatFields.
enum class Stat : std::uint8_t {
    Accepted,
    Closed,
    Messages,
    BytesRead,
    BytesWritten,
    OverLimit,
    RefusedMessages,
    HeadTimeouts,
    BodyTimeouts,
    IdleTimeouts,
    WriteTimeouts,
    HandlerFailures,
    OrphanedAnswers,
    OutboxOverflows,
    AcceptPauses,
    HandedOver,
    ForcedCloses,
    Count
};

inline constexpr std::array kStatFields{
    &ReactorStats::accepted,         &ReactorStats::closed,           &ReactorStats::messages,
    &ReactorStats::bytes_read,       &ReactorStats::bytes_written,    &ReactorStats::over_limit,
    &ReactorStats::refused_messages, &ReactorStats::head_timeouts,    &ReactorStats::body_timeouts,
    &ReactorStats::idle_timeouts,    &ReactorStats::write_timeouts,   &ReactorStats::handler_failures,
    &ReactorStats::orphaned_answers, &ReactorStats::outbox_overflows, &ReactorStats::accept_pauses,
    &ReactorStats::handed_over,      &ReactorStats::forced_closes};
static_assert(kStatFields.size() == static_cast<std::size_t>(Stat::Count));

/// The counters of one shard. Relaxed throughout: each is a number of its own and publishes nothing else.
class StatCounters {
public:
    /// Adds from any thread.
    void add(Stat stat, std::uint64_t n = 1) noexcept { at(stat).fetch_add(n, std::memory_order_relaxed); }

    /// Adds from the shard's own thread only, to a counter that no other thread adds to: no locked instruction.
    void add_owned(Stat stat, std::uint64_t n = 1) noexcept {
        auto& counter = at(stat);
        counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }

    void add_to(ReactorStats& sums) const noexcept {
        for (std::size_t i = 0; i < kStatFields.size(); ++i) sums.*kStatFields[i] += counters_[i].load(std::memory_order_relaxed);
    }

private:
    std::atomic<std::uint64_t>& at(Stat stat) noexcept { return counters_[static_cast<std::size_t>(stat)]; }

    std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Stat::Count)> counters_{};
};

/// Throws std::invalid_argument with a sentence that names the first option that cannot be meant.
inline void validate(const ReactorOptions& options) {
    const auto positive = [](std::chrono::milliseconds d, const char* name) {
        if (d <= std::chrono::milliseconds::zero())
            throw std::invalid_argument(std::string("muses::ReactorOptions: ") + name + " must be positive");
    };
    const auto not_zero = [](std::size_t n, const char* name) {
        if (n == 0) throw std::invalid_argument(std::string("muses::ReactorOptions: ") + name + " must not be 0");
    };
    not_zero(options.max_connections, "max_connections");
    not_zero(options.high_water_bytes, "high_water_bytes");
    not_zero(options.outbox_capacity, "outbox_capacity");
    not_zero(options.message.max_start_line_bytes, "message.max_start_line_bytes");
    not_zero(options.message.max_head_bytes, "message.max_head_bytes");
    positive(options.head_timeout, "head_timeout");
    positive(options.body_timeout, "body_timeout");
    positive(options.idle_timeout, "idle_timeout");
    positive(options.write_timeout, "write_timeout");
    positive(options.linger_timeout, "linger_timeout");
}

}  // namespace detail
}  // namespace muses
