// The way back from a shard's workers to its reactor thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "muses/bounded_queue.hpp"

namespace muses::detail {

/// What: a bounded lock-free queue with one consumer that loses nothing: what does not fit goes to an overflow list behind a mutex.
/// Complexity: put and take O(1); put takes the lock only when the queue is full. No order is kept between elements.
/// Threads: put() any thread, drain() the consumer.
/// Lifetime: what was not drained is destroyed with the outbox.
/// Limits: the lock-free part holds `capacity`; the overflow list is bounded by what the producers have to put (here: one answer a connection).
template <class T>
class Outbox {
public:
    explicit Outbox(std::size_t capacity) : queue_(capacity) {}

    /// How a put went: whether the consumer must be woken, and whether the bounded part was full.
    struct Put {
        bool wake = false;
        bool overflowed = false;
    };

    /// Never fails for want of room; may throw std::bad_alloc when the overflow list cannot grow. When `wake` is set, this call
    /// is the one that must wake the consumer.
    Put put(T value) {
        Put result;
        if (!queue_.try_push(std::move(value))) {
            const std::lock_guard lock(overflow_mutex_);
            overflow_.push_back(std::move(value));
            result.overflowed = true;
        }
        // Pairs with the exchange in drain(). The two exchanges are read-modify-writes of one object, so one of them comes first:
        // either this one, then drain() acquires what was put above and finds it; or drain()'s, then this one reads false and wakes.
        result.wake = !signalled_.exchange(true, std::memory_order_acq_rel);
        return result;
    }

    /// Gives every element that was put before the call to `consume`.
    template <class Consume>
    void drain(Consume&& consume) {
        // A turn of the loop in which nobody has put anything costs this load alone. Relaxed: a put that is missed here has
        // read false or will, and wakes the loop for another turn.
        if (!signalled_.load(std::memory_order_relaxed)) return;
        signalled_.exchange(false, std::memory_order_acq_rel);  // pairs with the exchange in put()
        while (auto value = queue_.try_pop()) consume(std::move(*value));
        std::vector<T> overflow;
        {
            const std::lock_guard lock(overflow_mutex_);
            overflow.swap(overflow_);
        }
        for (T& value : overflow) consume(std::move(value));
    }

private:
    BoundedQueue<T> queue_;
    std::mutex overflow_mutex_;
    std::vector<T> overflow_;
    std::atomic<bool> signalled_{false};  // something was put since the last drain
};

}  // namespace muses::detail
