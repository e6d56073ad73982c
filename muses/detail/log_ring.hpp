// The bounded ring between the threads that log and the thread that writes, under a policy chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "muses/bounded_queue.hpp"
#include "muses/detail/log_record.hpp"
#include "muses/detail/overflow_policy.hpp"
#include "muses/detail/stop_token.hpp"

namespace muses::detail {

/// What: a BoundedQueue of records whose policy is a value instead of a template argument.
/// Complexity: that of the queue, and one predictable branch.
/// Threads: any.
/// Lifetime: records that are still inside when it is destroyed are discarded.
/// Limits: `capacity` records exactly; an impossible one throws std::invalid_argument.
///
/// DropOldest evicts by itself, on a queue that refuses: the queue's own eviction waits when the oldest record belongs to a thread
/// that was interrupted in the middle of its push, and a line must not wait for that. Here the new record is refused then.
class LogRing {
public:
    LogRing(std::size_t capacity, OverflowPolicy policy) : policy_(policy) {
        switch (policy) {
            case OverflowPolicy::DropOldest:
            case OverflowPolicy::DropNew: queue_.emplace<DroppingQueue>(capacity); return;
            case OverflowPolicy::Block: queue_.emplace<BlockingQueue>(capacity); return;
        }
        throw std::invalid_argument("muses::Logger: no such overflow policy");
    }

    /// Puts a record in, by the policy. Returns how many were lost for that: 0, some that were evicted, and the record itself if it
    /// was refused (full, or stopped). Block asks `may_wait()` first when there is no room, and refuses if that is false.
    template <class MayWait>
    std::uint64_t push(LogRecord&& record, MayWait&& may_wait) noexcept {
        if (auto* const queue = std::get_if<DroppingQueue>(&queue_)) {
            if (queue->try_push(std::move(record))) [[likely]]
                return 0;
            return policy_ == OverflowPolicy::DropNew ? 1 : push_evicting(*queue, std::move(record));
        }
        try {
            auto& queue = *std::get_if<BlockingQueue>(&queue_);
            if (queue.try_push(std::move(record))) return 0;
            return may_wait() && queue.push(std::move(record)) ? 0 : 1;
        } catch (...) {  // no memory
            return 1;
        }
    }

    /// Moves up to `max` records to the end of `out`, oldest first. Returns how many. `out` must have the room.
    std::size_t pop(std::vector<LogRecord>& out, std::size_t max) {
        return visit([&](auto& queue) { return queue.try_pop_bulk(std::back_inserter(out), max); });
    }

    /// Sleeps until there is a record, which goes to the end of `out`, or until a stop is requested through `token`.
    void wait_pop(std::vector<LogRecord>& out, const stop_token& token) {
        auto record = visit([&](auto& queue) { return queue.wait_pop(token); });
        if (record) out.push_back(std::move(*record));
    }

    /// True when no record is inside, not even one that another thread is just about to make readable. After stop() that is final.
    [[nodiscard]] bool empty() noexcept {
        return visit([](auto& queue) { return queue.size_approx() == 0; });
    }

    /// From now on every push is refused; what is inside can still be popped.
    void stop() noexcept {
        visit([](auto& queue) { queue.stop(); });
    }

private:
    using DroppingQueue = BoundedQueue<LogRecord, OverflowPolicy::DropNew>;
    using BlockingQueue = BoundedQueue<LogRecord, OverflowPolicy::Block>;

    /// Each attempt evicts one record unless there is room; others may take the room in between.
    static constexpr int kAttempts = 4;

    static std::uint64_t push_evicting(DroppingQueue& queue, LogRecord&& record) noexcept {
        std::uint64_t lost = 0;
        for (int attempt = 0; attempt < kAttempts && !queue.stopped(); ++attempt) {
            if (queue.try_pop()) ++lost;
            if (queue.try_push(std::move(record))) return lost;
        }
        return lost + 1;
    }

    template <class F>
    std::invoke_result_t<F&, DroppingQueue&> visit(F&& f) {
        if (auto* const queue = std::get_if<DroppingQueue>(&queue_)) return f(*queue);
        return f(*std::get_if<BlockingQueue>(&queue_));
    }

    std::variant<std::monostate, DroppingQueue, BlockingQueue> queue_;
    OverflowPolicy policy_;
};

}  // namespace muses::detail
