// A queue without a bound for any number of producers and consumers, that can be waited for and closed.
//
//     muses::Queue<Job> jobs;
//     jobs.push(job);                                        // never waits; false after close()
//     while (auto job = jobs.pop()) run(*job);               // sleeps while empty; ends when closed and empty
//     for (Job& job : jobs.drain()) run(job);                // everything at once
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "muses/detail/backoff.hpp"
#include "muses/detail/cache_line.hpp"
#include "muses/detail/duration.hpp"
#include "muses/detail/queue_segments.hpp"
#include "muses/detail/spin_lock.hpp"

namespace muses {

/// What: unbounded FIFO queue for many producers and many consumers, linearizable: there is one order of all pushes, and elements come
///     out in it. A consumer sees what the producer did before it pushed.
/// Complexity: O(1) per operation. One lock for the producers' end and one for the consumers', so that the two do not wait for each
///     other; an allocation per 2 KB of elements, none while the queue is short; a system call only to sleep and to wake who sleeps.
/// Threads: every member from any thread, constructor and destructor excepted. Elements are constructed, copied and destroyed outside
///     of the locks; inside they are only moved.
/// Lifetime: the queue must outlive every call, also that of a producer whose element has been popped already. What is left is destroyed
///     with the queue. Memory follows the number of elements down again, but for two blocks of 2 KB.
/// Limits: memory. T must move and be destroyed without throwing; it may be move-only, over-aligned and without default constructor.
template <class T>
class Queue {
    static_assert(std::is_object_v<T> && !std::is_array_v<T> && !std::is_const_v<T> && !std::is_volatile_v<T>,
                  "Queue: the element type must be an object type that is neither an array nor const; wrap it in a struct");
    static_assert(
        std::is_nothrow_move_constructible_v<T>,
        "Queue: moving an element must not throw, or elements could be lost halfway; declare the move constructor noexcept, or "
        "queue std::unique_ptr<T>");
    static_assert(std::is_nothrow_destructible_v<T>, "Queue: the destructor of an element must not throw");

    using Segment = detail::QueueSegment<T>;
    using Chain = detail::SegmentChain<T>;

public:
    using value_type = T;

    /// An empty queue. Throws std::bad_alloc.
    Queue() { head_.segment = tail_.segment = new Segment; }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;
    ~Queue() {
        Chain rest;
        rest.adopt(head_.segment, head_.index, tail_.segment, tail_.index);
        delete spare_.load(std::memory_order_relaxed);  // relaxed: no other thread is here any more
    }

    // --- adding

    /// Adds `value` at the end. False after close(). When it returns false or throws (std::bad_alloc, or what the copy throws), `value`
    /// is untouched and the queue as before.
    bool push(const T& value)
        requires std::copy_constructible<T>
    {
        if (closed()) return false;
        T copy(value);
        return append(std::move(copy));
    }
    bool push(T&& value) { return append(std::move(value)); }

    /// push() of T(args...), constructed outside of the locks. The constructor runs only when the element will be added: until then
    /// `args` are untouched, and a close() meanwhile does not keep it out, so that who pops from a closed queue waits for it.
    template <class... Args>
        requires std::constructible_from<T, Args...>
    bool emplace(Args&&... args) {
        if constexpr (sizeof...(Args) == 1 && (std::same_as<std::remove_cvref_t<Args>, T> && ...)) {
            return push(std::forward<Args>(args)...);
        } else {
            std::unique_ptr<Segment> room = new_segment();
            const Admission admission(*this);
            if (!admission) {
                keep(std::move(room));
                return false;
            }
            T value(std::forward<Args>(args)...);
            std::unique_lock lock(tail_.lock);
            if (tail_.index == Segment::kSlots) link(std::move(room));
            tail_.segment->construct(tail_.index++, std::move(value));
            published(std::move(lock), 1);
            keep(std::move(room));
            return true;
        }
    }

    /// Adds all elements of the range, next to each other: all or, after close(), none: then the range is untouched. The elements are
    /// made from the range's before the lock; what that throws leaves the queue as before. std::views::as_rvalue moves them. The range
    /// must not wait for the end of this very queue, which comes after it.
    template <std::ranges::input_range Range>
        requires std::constructible_from<T, std::ranges::range_reference_t<Range>>
    bool push_range(Range&& range) {
        const Admission admission(*this);
        if (!admission) return false;
        Chain chain;
        for (auto&& value : range) chain.emplace_back(std::forward<decltype(value)>(value));
        if (chain.size() == 0) return true;
        const std::size_t size = chain.size();
        std::unique_lock lock(tail_.lock);
        if (size <= Segment::kSlots - tail_.index) {
            for (std::size_t i = 0; i < size; ++i) tail_.segment->construct(tail_.index++, std::move(*chain.first()->at(i)));
        } else {
            // relaxed: a consumer that needs to know has seen, with acquire, that there are elements behind this segment
            tail_.segment->end.store(tail_.index, std::memory_order_relaxed);
            tail_.segment->next = chain.first();
            tail_.segment = chain.last();
            tail_.index = chain.elements_in_last();
            chain.release();
        }
        published(std::move(lock), size);
        return true;
    }

    // --- taking

    /// Takes the oldest element; nothing when there is none.
    [[nodiscard]] std::optional<T> try_pop() {
        if (empty()) return std::nullopt;
        std::unique_ptr<Segment> used;  // given back when the lock is released
        std::optional<T> value;
        {
            const std::scoped_lock lock(head_.lock);
            const std::uint64_t position = head_.popped.load(std::memory_order_relaxed);  // relaxed: only written under this lock
            if (position == head_.seen) {
                // acquire: pairs with the release in published(); what is below is constructed, and the links to it are there.
                head_.seen = tail_.pushed.load(std::memory_order_acquire);
                if (position == head_.seen) return std::nullopt;
            }
            // There is an element; if this segment has no more, it is in a later one. relaxed: see push_range()
            while (head_.index == head_.segment->end.load(std::memory_order_relaxed)) {
                used.reset(std::exchange(head_.segment, head_.segment->next));
                head_.index = 0;
            }
            T* const element = head_.segment->at(head_.index++);
            value.emplace(std::move(*element));
            element->~T();
            // release: pairs with the acquire in size_approx() and empty().
            head_.popped.store(position + 1, std::memory_order_release);
        }
        if (used) keep(std::move(used));
        return value;
    }

    /// Waits for an element. Nothing only when the queue is closed and empty.
    [[nodiscard]] std::optional<T> pop() { return pop_until(detail::kNever); }

    /// Waits up to `timeout` for an element. Nothing when it ran out, or when the queue is closed and empty. Negative is 0, more than a
    /// year is for ever.
    template <class Rep, class Period>
    [[nodiscard]] std::optional<T> pop_for(std::chrono::duration<Rep, Period> timeout) {
        return pop_until(detail::deadline_after(timeout));
    }

    /// Takes everything that is queued at one moment, oldest first. Throws std::bad_alloc, and then the queue is as before.
    std::vector<T> drain() {
        std::vector<T> elements;
        Chain all;
        while (all.first() == nullptr) {
            const std::size_t expected = size_approx();
            if (expected == 0) return elements;
            elements.reserve(expected + expected / 8);  // others may be pushing
            std::unique_ptr<Segment> room = new_segment();
            if (!detach(all, elements.capacity(), room)) keep(std::move(room));
        }
        all.take_all([&](T&& element) noexcept { elements.push_back(std::move(element)); });
        return elements;
    }

    // --- the end, and observers

    /// From now on nothing is added, and who waits returns once the queue is empty. What is queued can still be taken. It is a state: who
    /// comes later sees it at once. Twice is fine.
    void close() {
        {
            const std::unique_lock lock(tail_.lock);
            // seq_cst: pairs with the load in Admission. Either the admission is counted before, or it sees this.
            tail_.closed.store(true, std::memory_order_seq_cst);
        }
        wake_all();
    }

    /// True after close().
    [[nodiscard]] bool closed() const noexcept {
        return tail_.closed.load(std::memory_order_acquire);  // acquire: pairs with close()
    }

    /// Elements queued; may be out of date when it returns.
    [[nodiscard]] std::size_t size_approx() const noexcept {
        // acquire: pairs with the release in try_pop(); so many had been pushed before, and `pushed` is not behind.
        const std::uint64_t popped = head_.popped.load(std::memory_order_acquire);
        return static_cast<std::size_t>(tail_.pushed.load(std::memory_order_relaxed) - popped);
    }

private:
    // An operation that was begun before close() and will add its elements even after it, so that it may use up its arguments.
    class Admission {
    public:
        explicit Admission(Queue& queue) noexcept : queue_(queue) {
            // seq_cst, both: either close() comes after the first, and who asks whether all is over sees it counted, or the second sees
            // the queue closed.
            queue_.tail_.admitted.fetch_add(1, std::memory_order_seq_cst);
            granted_ = !queue_.tail_.closed.load(std::memory_order_seq_cst);
        }
        Admission(const Admission&) = delete;
        Admission& operator=(const Admission&) = delete;
        ~Admission() {
            // seq_cst, both: the same the other way round. Either this sees the queue closed and wakes who waits for the end, or close()
            // comes after the first and wakes them.
            if (queue_.tail_.admitted.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
            if (!queue_.tail_.closed.load(std::memory_order_seq_cst)) return;
            queue_.wake_all();
        }
        explicit operator bool() const noexcept { return granted_; }

    private:
        Queue& queue_;
        bool granted_;
    };

    [[nodiscard]] bool empty() const noexcept { return size_approx() == 0; }

    // The segment for an element is made before the element is moved, and not under the lock.
    bool append(T&& value) {
        std::unique_ptr<Segment> room;
        std::unique_lock lock(tail_.lock);
        while (!tail_.closed.load(std::memory_order_relaxed)) {  // relaxed: written under this lock
            if (tail_.index == Segment::kSlots) {
                if (!room) {
                    lock.unlock();
                    room = new_segment();
                    lock.lock();
                    continue;
                }
                link(std::move(room));
            }
            tail_.segment->construct(tail_.index++, std::move(value));
            published(std::move(lock), 1);
            keep(std::move(room));
            return true;
        }
        lock.unlock();
        keep(std::move(room));
        return false;
    }

    // Under the producers' lock: the full last segment gets a successor.
    void link(std::unique_ptr<Segment> room) noexcept {
        tail_.segment->next = room.get();
        tail_.segment = room.release();
        tail_.index = 0;
    }

    // Under the producers' lock, which it releases: `count` more elements are there. This store is where a push takes effect: stores come
    // in the order of the lock, which is that of the elements, and a pop, under the consumers' lock, takes the first that was not taken.
    // It finds none only if it has read all that was published.
    void published(std::unique_lock<detail::SpinLock> lock, std::size_t count) {
        // relaxed load: only written under this lock. release: pairs with the acquire in try_pop().
        tail_.pushed.store(tail_.pushed.load(std::memory_order_relaxed) + count, std::memory_order_release);
        const std::size_t calls = std::min(count, tail_.waiting - tail_.called);
        tail_.called += calls;
        lock.unlock();
        if (calls == 0) return;
        settle_sleepers();
        for (std::size_t i = 0; i < calls; ++i) wake_.notify_one();
    }

    std::optional<T> pop_until(detail::SteadyTime deadline) {
        for (;;) {
            if (auto value = try_pop()) return value;
            await_briefly();
            if (auto value = try_pop()) return value;
            if (!sleep_until(deadline)) return try_pop();
        }
    }

    // What a consumer does before it sleeps: looks now and then, later lets other threads run, one of which may be the producer: some 10
    // microseconds in all. Not too often: each look takes the producers' cache line away from them, and a consumer that is quicker than
    // they are would slow them down to the speed of that line. Between looks a batch comes together.
    void await_briefly() const noexcept {
        constexpr int kFirstPause = 8;
        constexpr int kLooks = 4;
        constexpr int kYields = 15;
        for (int i = 0; i < kLooks + kYields; ++i) {
            if (i < kLooks) {
                for (int pause = 0; pause < (kFirstPause << i); ++pause) detail::cpu_pause();
            } else {
                std::this_thread::yield();
            }
            if (!empty() || closed()) return;
        }
    }

    // True when there seems to be an element, false when there will be none, or none came before the deadline.
    //
    // A consumer looks for the last time, and announces itself, under the producers' lock: none that publishes later misses it. Each of
    // them calls a consumer that waits and has not been called yet. Whoever was called, or ran into its deadline, looks again, so that
    // a call is not wasted on it.
    bool sleep_until(detail::SteadyTime deadline) {
        std::unique_lock sleeping(sleep_mutex_);
        for (;;) {
            {
                const std::scoped_lock lock(tail_.lock);
                // seq_cst: pairs with Admission's fetch_sub. When nothing is admitted any more, the next look is the last.
                const bool over = closed() && tail_.admitted.load(std::memory_order_seq_cst) == 0;
                if (!empty()) return true;
                if (over) return false;
                ++tail_.waiting;
            }
            bool in_time = true;
            if (deadline == detail::kNever)
                wake_.wait(sleeping);
            else
                in_time = wake_.wait_until(sleeping, deadline) == std::cv_status::no_timeout;
            const std::scoped_lock lock(tail_.lock);
            --tail_.waiting;
            // Who was called may run only after its deadline, and then cannot tell whether it was. So everyone who leaves takes a call with
            // it: one too many is only an idle look later, one too few would leave somebody asleep.
            if (tail_.called != 0) --tail_.called;
            tail_.called = std::min(tail_.called, tail_.waiting);
            if (!in_time) return false;
        }
    }

    // Who has looked but does not sleep yet holds this mutex until it does.
    void settle_sleepers() { const std::scoped_lock lock(sleep_mutex_); }

    void wake_all() {
        settle_sleepers();
        wake_.notify_all();
    }

    // Takes the whole chain if it has at most `most` elements, and leaves `room` in its place.
    bool detach(Chain& all, std::size_t most, std::unique_ptr<Segment>& room) {
        const std::scoped_lock head_lock(head_.lock);
        const std::scoped_lock tail_lock(tail_.lock);  // nobody takes the two in the other order
        if (size_approx() > most) return false;
        all.adopt(head_.segment, head_.index, tail_.segment, tail_.index);
        head_.segment = tail_.segment = room.release();
        head_.index = tail_.index = 0;
        head_.seen = tail_.pushed.load(std::memory_order_relaxed);  // relaxed: only written under these locks
        head_.popped.store(head_.seen, std::memory_order_release);  // release: as in try_pop()
        return true;
    }

    // One segment is kept for the next time, so that a queue that stays short allocates nothing. The exchanges acquire and release: they
    // pair with each other, and hand over the segment's memory.
    [[nodiscard]] std::unique_ptr<Segment> new_segment() {
        if (Segment* const kept = spare_.exchange(nullptr, std::memory_order_acquire)) {
            kept->next = nullptr;
            kept->end.store(Segment::kSlots, std::memory_order_relaxed);  // relaxed: nobody else knows it yet
            return std::unique_ptr<Segment>(kept);
        }
        return std::make_unique<Segment>();
    }
    void keep(std::unique_ptr<Segment> segment) noexcept {
        if (segment) segment.reset(spare_.exchange(segment.release(), std::memory_order_acq_rel));
    }

    // The consumers' end.
    struct alignas(detail::kCacheLine) Head {
        detail::SpinLock lock;
        Segment* segment = nullptr;
        std::size_t index = 0;   // of the next element in it
        std::uint64_t seen = 0;  // pushed, when a consumer last asked: while popped is below, the producers' line is left alone
        std::atomic<std::uint64_t> popped{0};
    };
    // The producers' end. All but `closed` and `admitted` are written under the lock only.
    struct alignas(detail::kCacheLine) Tail {
        detail::SpinLock lock;
        Segment* segment = nullptr;
        std::size_t index = 0;  // of the next element in it
        std::atomic<std::uint64_t> pushed{0};
        std::size_t waiting = 0;  // consumers that sleep
        std::size_t called = 0;   // of these, so many have been notified
        std::atomic<bool> closed{false};
        std::atomic<std::size_t> admitted{0};
    };

    Head head_;
    Tail tail_;
    alignas(detail::kCacheLine) std::atomic<Segment*> spare_{nullptr};
    std::mutex sleep_mutex_;
    std::condition_variable wake_;
};

}  // namespace muses
