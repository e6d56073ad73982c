// Channel<T>: values from task to task.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/detail/task_core.hpp"
#include "muses/detail/task_wait.hpp"

namespace muses {

namespace detail {

/// A ring that grows by doubling: to push never allocates while there are fewer elements than there once were.
template <class T>
class ChannelRing {
public:
    ChannelRing() noexcept = default;
    ChannelRing(const ChannelRing&) = delete;
    ChannelRing& operator=(const ChannelRing&) = delete;
    ~ChannelRing() {
        while (size_ > 0) (void)pop_front();
        deallocate();
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// Throws std::bad_alloc, and then leaves `value` untouched.
    void push_back(T& value) {
        make_room();
        std::construct_at(slot(size_), std::move(value));
        ++size_;
    }
    /// Before what is `index` now; O(index). As above.
    void insert(std::size_t index, T& value) {
        make_room();
        first_ = (first_ - 1) & (room_ - 1);
        for (std::size_t i = 0; i < index; ++i) {
            T* const from = slot(i + 1);
            std::construct_at(slot(i), std::move(*from));
            std::destroy_at(from);
        }
        std::construct_at(slot(index), std::move(value));
        ++size_;
    }
    [[nodiscard]] T pop_front() noexcept {
        T* const slot = slots_ + first_;
        T value = std::move(*slot);
        std::destroy_at(slot);
        first_ = (first_ + 1) & (room_ - 1);
        --size_;
        return value;
    }

private:
    [[nodiscard]] T* slot(std::size_t index) const noexcept { return slots_ + ((first_ + index) & (room_ - 1)); }

    void make_room() {
        if (size_ < room_) return;
        const std::size_t room = std::max<std::size_t>(8, 2 * room_);
        if (room > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
        T* const slots = std::allocator<T>().allocate(room);
        for (std::size_t i = 0; i < size_; ++i) {
            T* const from = slot(i);
            std::construct_at(slots + i, std::move(*from));
            std::destroy_at(from);
        }
        deallocate();
        slots_ = slots;
        room_ = room;
        first_ = 0;
    }
    void deallocate() noexcept {
        if (slots_ != nullptr) std::allocator<T>().deallocate(slots_, room_);
    }

    T* slots_ = nullptr;
    std::size_t room_ = 0;  // 0 or a power of two
    std::size_t first_ = 0;
    std::size_t size_ = 0;
};

}  // namespace detail

/// What: a queue of values between tasks; a sender waits while it is full, a receiver while it is empty.
/// Complexity: O(1); no allocation once the buffer has its size.
/// Threads: any; each task goes on with its own scheduler. Values arrive in the order in which their sends began to be carried out.
/// Lifetime: waits that are under way when it is destroyed end with std::logic_error, values inside are destroyed, those that have been handed
///     over are received. A value that
///     was handed to a receiver which is destroyed before it runs goes to the next receiver, or back to the front, in its old order.
/// Limits: `capacity` values beside those of waiting senders; 0: a send ends when a receiver has taken the value. Values that came back are
///     kept beyond that, for their sends have ended; none is taken in before they are fewer than the capacity again.
template <class T>
class Channel {
    static_assert(std::is_nothrow_move_constructible_v<T>, "muses::Channel: moving a value must not throw, it would be lost");

public:
    class [[nodiscard]] Send final : public detail::QueuedWaiter {
    public:
        [[nodiscard]] bool await_ready() {
            const std::lock_guard lock(channel_->receivers_.mutex);
            return channel_->send_locked(value_, sent_);
        }
        [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) {
            if (!enter_scope()) return false;
            const std::lock_guard lock(channel_->receivers_.mutex);
            if (channel_->send_locked(value_, sent_)) return false;
            channel_->senders_.push(*this);
            return true;
        }
        bool await_resume() {
            leave_queue();
            throw_if_cancelled();
            return sent_;
        }

    private:
        friend class Channel;
        Send(Channel& channel, T&& value) noexcept : channel_(&channel), value_(std::move(value)) {}
        Channel* channel_;
        T value_;
        bool sent_ = false;
    };

    class [[nodiscard]] Receive final : public detail::QueuedWaiter {
    public:
        Receive(Receive&&) noexcept = default;
        ~Receive() {
            leave_unclaimed([this] { channel_->give_back(*this); });
        }
        [[nodiscard]] bool await_ready() noexcept {
            const std::lock_guard lock(channel_->receivers_.mutex);
            return channel_->receive_locked(value_);
        }
        [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) noexcept {
            if (!enter_scope()) return false;
            const std::lock_guard lock(channel_->receivers_.mutex);
            if (channel_->receive_locked(value_)) return false;
            channel_->receivers_.push(*this);
            return true;
        }
        [[nodiscard]] std::optional<T> await_resume() {
            leave_queue();
            throw_if_cancelled();
            return std::move(value_);
        }

    private:
        friend class Channel;
        explicit Receive(Channel& channel) noexcept : channel_(&channel) {}
        Channel* channel_;
        std::optional<T> value_;
        std::uint64_t number_ = 0;  // which hand-over it was, counted by the channel
    };

    explicit Channel(std::size_t capacity = 0) noexcept : capacity_(capacity) {}
    // Before the ring goes: a receiver on another thread might give back to it. Who has been handed a value keeps it.
    ~Channel() { receivers_.end(detail::WaitOutcome::Done); }

    /// `co_await channel.send(value)`: true when the channel has taken it, false when it is closed (before or meanwhile). Throws
    /// muses::cancelled (it was not taken), std::bad_alloc.
    Send send(T value) noexcept { return Send(*this, std::move(value)); }

    /// `co_await channel.receive()`: the next value; none when the channel is closed and empty. Throws muses::cancelled.
    Receive receive() noexcept { return Receive(*this); }

    /// Sends when that needs no waiting; else false, and `value` is untouched. Throws std::bad_alloc.
    [[nodiscard]] bool try_send(T&& value) {
        const std::lock_guard lock(receivers_.mutex);
        bool sent = false;
        (void)send_locked(value, sent);
        return sent;
    }

    /// The next value when there is one.
    [[nodiscard]] std::optional<T> try_receive() noexcept {
        const std::lock_guard lock(receivers_.mutex);
        std::optional<T> value;
        (void)receive_locked(value);
        return value;
    }

    /// Ends all sends with false. What is inside can still be received. Twice is harmless.
    void close() noexcept {
        const std::lock_guard lock(receivers_.mutex);
        closed_ = true;
        while (senders_.wake_first()) {}
        while (receivers_.wake_first()) {  // who waits has found nothing inside
        }
    }

    [[nodiscard]] bool closed() const noexcept {
        const std::lock_guard lock(receivers_.mutex);
        return closed_;
    }

    /// How many values are inside, those of waiting senders not counted, nor those that came back beyond the capacity.
    [[nodiscard]] std::size_t size_approx() const noexcept {
        const std::lock_guard lock(receivers_.mutex);
        return std::min(ring_.size(), capacity_);
    }

private:
    // True when there is nothing to wait for; `sent` tells whether the value has been taken.
    bool send_locked(T& value, bool& sent) {
        if (closed_) return true;
        if (hand_over(value, handed_ + 1)) {
            ++handed_;
        } else if (ring_.size() < capacity_) {
            ring_.push_back(value);
        } else {
            return false;
        }
        sent = true;
        return true;
    }

    // True when there is nothing to wait for.
    bool receive_locked(std::optional<T>& value) noexcept {
        auto* const sender = static_cast<Send*>(senders_.front());
        if (ring_.size() > 0) {
            value.emplace(ring_.pop_front());
            if (!came_back_.empty()) came_back_.erase(came_back_.begin());
            if (sender == nullptr || ring_.size() >= capacity_) return true;
            ring_.push_back(sender->value_);  // into the place that is free now: no allocation
        } else if (sender != nullptr) {
            value.emplace(std::move(sender->value_));
        } else {
            return closed_;
        }
        sender->sent_ = true;
        senders_.wake_first();
        return true;
    }

    // To the first receiver that waits; false when none does.
    bool hand_over(T& value, std::uint64_t number) noexcept {
        auto* const receiver = static_cast<Receive*>(receivers_.front());
        if (receiver == nullptr) return false;
        receiver->value_.emplace(std::move(value));
        receiver->number_ = number;
        return receivers_.hand_to_first();
    }

    // What has been handed over is older than what has stayed inside: it comes before that, and among its like in the order of the hand-overs.
    void give_back(Receive& receiver) noexcept {
        if (hand_over(*receiver.value_, receiver.number_)) return;
        try {
            const auto place = std::ranges::upper_bound(came_back_, receiver.number_);
            const auto index = static_cast<std::size_t>(place - came_back_.begin());
            came_back_.insert(place, receiver.number_);
            try {
                ring_.insert(index, *receiver.value_);
            } catch (const std::bad_alloc&) {
                came_back_.erase(came_back_.begin() + static_cast<std::ptrdiff_t>(index));
            }
        } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): in a destructor, without memory, it is lost
        }
    }

    mutable detail::WaitQueue receivers_;
    detail::WaitQueue senders_{receivers_, 0};
    detail::ChannelRing<T> ring_;
    std::vector<std::uint64_t> came_back_;  // the numbers of the first values in the ring: those that were handed over in vain
    std::uint64_t handed_ = 0;
    const std::size_t capacity_;
    bool closed_ = false;
};

}  // namespace muses
