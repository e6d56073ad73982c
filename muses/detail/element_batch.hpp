// A few elements on the way from a container to a caller, taken out under a lock or a claim and handed over after it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace muses::detail {

/// What: a fixed number of places on the stack, filled and emptied in order.
/// Complexity: O(1) per element, no allocation.
/// Threads: one.
/// Lifetime: destroys the elements that were not written out.
/// Limits: kCapacity elements, as many as fit in about 1 KB, at most 32 and at least one.
template <class T>
class ElementBatch {
public:
    static constexpr std::size_t kCapacity = std::clamp<std::size_t>(1024 / sizeof(T), 1, 32);

    ElementBatch() noexcept {}
    ElementBatch(const ElementBatch&) = delete;
    ElementBatch& operator=(const ElementBatch&) = delete;
    ~ElementBatch() {
        while (first_ != last_) at(first_++)->~T();
    }

    [[nodiscard]] std::size_t size() const noexcept { return last_ - first_; }

    void push(T&& value) noexcept { ::new (static_cast<void*>(bytes_ + sizeof(T) * last_++)) T(std::move(value)); }

    /// Moves all elements to `out`. If that throws, the element being written is lost to the caller and the rest stays here.
    template <class OutputIt>
    OutputIt write_to(OutputIt out) {
        while (first_ != last_) {
            T* const element = at(first_++);
            struct Destroy {
                T* element;
                ~Destroy() { element->~T(); }
            } const destroy{element};
            *out = std::move(*element);
            ++out;
        }
        return out;
    }

private:
    T* at(std::size_t index) noexcept { return std::launder(reinterpret_cast<T*>(bytes_ + sizeof(T) * index)); }

    std::size_t first_ = 0;
    std::size_t last_ = 0;
    alignas(T) std::byte bytes_[sizeof(T) * kCapacity];
};

}  // namespace muses::detail
