// The part of BoundedQueue that waits for room: a deque behind a mutex, with a condition variable for each side.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/detail/element_batch.hpp"

namespace muses::detail {

/// What: bounded FIFO whose push waits while it is full. Elements are moved under the lock and destroyed outside.
/// Complexity: O(1); a notification only if the other side waits.
/// Threads: all members from any thread, constructor and destructor excepted.
/// Lifetime: must outlive every call; destroys the elements that are left.
/// Limits: memory grows with the elements, up to `capacity`. Adding may throw std::bad_alloc and then changes nothing.
template <class T>
class BlockingDeque {
public:
    explicit BlockingDeque(std::size_t capacity) : capacity_(capacity) {}

    /// Waits for room until `deadline`. False if that came first or the queue is stopped; `value` is then untouched.
    bool push_until(T& value, SteadyTime deadline) {
        std::unique_lock lock(mutex_);
        wait(lock, room_, waiting_producers_, deadline, [&] { return stopped_ || items_.size() < capacity_; });
        return push_locked(lock, value);
    }

    /// Never waits for room. False, with `value` untouched, if there is none or the queue is stopped.
    bool try_push(T& value) {
        std::unique_lock lock(mutex_);
        return push_locked(lock, value);
    }

    std::optional<T> try_pop() noexcept {
        std::unique_lock lock(mutex_);
        return pop_locked(lock);
    }

    void try_pop_batch(ElementBatch<T>& batch, std::size_t max) noexcept {
        std::unique_lock lock(mutex_);
        const std::size_t count = std::min({max, ElementBatch<T>::kCapacity, items_.size()});
        for (std::size_t i = 0; i < count; ++i) {
            batch.push(std::move(items_.front()));
            items_.pop_front();
        }
        const bool notify = count != 0 && waiting_producers_ != 0;
        lock.unlock();
        if (notify) room_.notify_all();
    }

    /// Waits for an element until `deadline` or until `*interrupted` (may be null) and interrupt_waiters(). Nothing when one of
    /// these came first, or when the queue is stopped and empty.
    std::optional<T> wait_pop_until(SteadyTime deadline, const std::atomic<bool>* interrupted) noexcept {
        std::unique_lock lock(mutex_);
        wait(lock, elements_, waiting_consumers_, deadline, [&] {
            // relaxed: interrupt_waiters() goes through the mutex after the flag was set
            return !items_.empty() || stopped_ || (interrupted != nullptr && interrupted->load(std::memory_order_relaxed));
        });
        return pop_locked(lock);
    }

    void interrupt_waiters() noexcept {
        { const std::lock_guard lock(mutex_); }  // a waiter has either not looked yet, or is asleep by now
        elements_.notify_all();
    }

    void stop() noexcept {
        {
            const std::lock_guard lock(mutex_);
            stopped_ = true;
        }
        room_.notify_all();
        elements_.notify_all();
    }

    [[nodiscard]] bool stopped() const noexcept {
        const std::lock_guard lock(mutex_);
        return stopped_;
    }

    [[nodiscard]] bool drained() const noexcept {
        const std::lock_guard lock(mutex_);
        return stopped_ && items_.empty();
    }

    [[nodiscard]] std::size_t size_approx() const noexcept {
        const std::lock_guard lock(mutex_);
        return items_.size();
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::uint64_t dropped() const noexcept { return 0; }
    static constexpr std::size_t slot_size() noexcept { return sizeof(T); }

private:
    template <class Condition>
    static void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& variable, std::size_t& waiting,
                     SteadyTime deadline, Condition condition) {
        if (condition()) return;
        ++waiting;
        if (deadline == kNever) {
            variable.wait(lock, condition);
        } else {
            variable.wait_until(lock, deadline, condition);
        }
        --waiting;
    }

    bool push_locked(std::unique_lock<std::mutex>& lock, T& value) {
        if (stopped_ || items_.size() >= capacity_) return false;
        items_.push_back(std::move(value));  // allocates first: if that throws, nothing has been moved
        const bool notify = waiting_consumers_ != 0;
        lock.unlock();
        if (notify) elements_.notify_one();
        return true;
    }

    std::optional<T> pop_locked(std::unique_lock<std::mutex>& lock) noexcept {
        std::optional<T> value;
        if (items_.empty()) return value;
        value.emplace(std::move(items_.front()));
        items_.pop_front();
        const bool notify = waiting_producers_ != 0;
        lock.unlock();
        if (notify) room_.notify_one();
        return value;
    }

    const std::size_t capacity_;
    mutable std::mutex mutex_;
    std::condition_variable room_;
    std::condition_variable elements_;
    std::deque<T> items_;
    std::size_t waiting_producers_ = 0;
    std::size_t waiting_consumers_ = 0;
    bool stopped_ = false;
};

}  // namespace muses::detail
