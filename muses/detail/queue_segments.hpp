// Where the elements of a Queue lie: arrays that are linked to each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace muses::detail {

/// What: places for some elements in order, and the way to the next ones. Which places hold an element, its owner knows.
/// Complexity: O(1); about 2 KB, or eight elements.
/// Threads: those of its owner. Only `end` may be read while another thread writes it.
/// Lifetime: does not destroy elements.
/// Limits: kSlots elements.
template <class T>
struct QueueSegment {
    static constexpr std::size_t kSlots = std::clamp<std::size_t>(2000 / sizeof(T), 8, 250);

    QueueSegment() noexcept {}
    QueueSegment(const QueueSegment&) = delete;
    QueueSegment& operator=(const QueueSegment&) = delete;
    ~QueueSegment() = default;

    [[nodiscard]] T* at(std::size_t index) noexcept { return std::launder(reinterpret_cast<T*>(bytes + sizeof(T) * index)); }

    template <class... Args>
    void construct(std::size_t index, Args&&... args) {
        ::new (static_cast<void*>(bytes + sizeof(T) * index)) T(std::forward<Args>(args)...);
    }

    QueueSegment* next = nullptr;
    std::atomic<std::size_t> end{
        kSlots};  // the elements are below; lowered once, when the next segment is linked before this one is full
    alignas(T) std::byte bytes[sizeof(T) * kSlots];
};

/// What: a list of segments with elements that no other thread knows of. Complexity: O(1) per element. Threads: one.
/// Lifetime: destroys elements and segments, unless they were released. Limits: memory.
template <class T>
class SegmentChain {
    using Segment = QueueSegment<T>;

public:
    SegmentChain() = default;
    SegmentChain(const SegmentChain&) = delete;
    SegmentChain& operator=(const SegmentChain&) = delete;
    ~SegmentChain() {
        take_all([](T&&) noexcept {});
    }

    /// Strong guarantee: what the constructor or the allocation throws leaves the chain as it was.
    template <class... Args>
    void emplace_back(Args&&... args) {
        if (last_ == nullptr || to_ == Segment::kSlots) {
            auto segment = std::make_unique<Segment>();
            segment->construct(0, std::forward<Args>(args)...);
            (last_ == nullptr ? first_ : last_->next) = segment.get();
            last_ = segment.release();
            to_ = 0;
        } else {
            last_->construct(to_, std::forward<Args>(args)...);
        }
        ++to_;
        ++size_;
    }

    /// Calls take(T&&) for each element in order, destroys it, and frees the segments.
    template <class Take>
    void take_all(Take take) noexcept {
        std::size_t index = std::exchange(from_, 0);
        while (first_ != nullptr) {
            // relaxed: whoever wrote it handed the segment over to this thread, under a lock
            const std::size_t end = first_ == last_ ? to_ : first_->end.load(std::memory_order_relaxed);
            for (; index < end; ++index) {
                T* const element = first_->at(index);
                take(std::move(*element));
                element->~T();
            }
            index = 0;
            delete std::exchange(first_, first_ == last_ ? nullptr : first_->next);
        }
        last_ = nullptr;
        size_ = 0;
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] Segment* first() const noexcept { return first_; }
    [[nodiscard]] Segment* last() const noexcept { return last_; }
    [[nodiscard]] std::size_t elements_in_last() const noexcept { return to_; }
    /// Now the segments belong to the caller.
    void release() noexcept { first_ = last_ = nullptr; }
    /// An empty chain takes over these, of which the first has elements from `from` on, and the last one below `to`.
    void adopt(Segment* first, std::size_t from, Segment* last, std::size_t to) noexcept {
        first_ = first;
        from_ = from;
        last_ = last;
        to_ = to;
    }

private:
    Segment* first_ = nullptr;
    Segment* last_ = nullptr;
    std::size_t from_ = 0;
    std::size_t to_ = 0;
    std::size_t size_ = 0;
};

}  // namespace muses::detail
