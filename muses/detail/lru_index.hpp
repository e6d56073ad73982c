// The hash index of the LRU cache: hash -> node, open addressing, no user code except the comparison that a search is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace muses::detail {

/// What: a flat table of (hash, node pointer) with linear probing; erasing shifts back, so there are no tombstones.
/// Complexity: O(1) expected with well-mixed hashes; growing doubles, O(n) amortised over the inserts.
/// Threads: one at a time; the cache's lock covers it.
/// Lifetime: the index does not own nodes.
/// Limits: memory. At most two thirds full.
template <class Node>
class LruIndex {
public:
    LruIndex() = default;
    LruIndex(const LruIndex&) = delete;
    LruIndex& operator=(const LruIndex&) = delete;

    /// The node with this hash for which `same(node)` holds, or null. Whatever `same` throws passes; nothing has changed then.
    template <class Same>
    [[nodiscard]] Node* find(std::uint64_t hash, Same&& same) const {
        if (size_ == 0) return nullptr;
        for (std::size_t i = home(hash); slots_[i].node != nullptr; i = next(i))
            if (slots_[i].hash == hash && same(std::as_const(*slots_[i].node))) return slots_[i].node;
        return nullptr;
    }

    /// Makes room for `count` nodes in all. Throws std::bad_alloc and changes nothing when there is no memory.
    void reserve(std::size_t count) {
        std::size_t wanted = slots_ ? mask_ + 1 : kFirst;
        while (wanted / 3 * 2 < count) {
            if (wanted > SIZE_MAX / sizeof(Slot) / 2) throw std::bad_alloc();
            wanted *= 2;
        }
        if (slots_ && wanted == mask_ + 1) return;
        auto larger = std::make_unique<Slot[]>(wanted);
        const std::size_t old = slots_ ? mask_ + 1 : 0;
        slots_.swap(larger);
        mask_ = wanted - 1;
        for (std::size_t i = 0; i < old; ++i)
            if (larger[i].node != nullptr) place(larger[i]);
    }

    /// Adds a node that is not there. Room must have been reserved.
    void insert(std::uint64_t hash, Node* node) noexcept {
        place(Slot{hash, node});
        ++size_;
    }

    /// Removes a node that is there, found by its address: no key is compared.
    void erase(std::uint64_t hash, const Node* node) noexcept {
        std::size_t hole = home(hash);
        while (slots_[hole].node != node) hole = next(hole);
        for (std::size_t i = next(hole); slots_[i].node != nullptr; i = next(i)) {
            // An element may move back into the hole when its home is not between the hole and itself.
            if (((i - home(slots_[i].hash)) & mask_) < ((i - hole) & mask_)) continue;
            slots_[hole] = slots_[i];
            hole = i;
        }
        slots_[hole] = Slot{};
        --size_;
    }

    /// Forgets everything and gives the memory back.
    void clear() noexcept {
        slots_.reset();
        mask_ = 0;
        size_ = 0;
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    struct Slot {
        std::uint64_t hash = 0;
        Node* node = nullptr;  // null: free
    };
    static constexpr std::size_t kFirst = 16;

    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept { return static_cast<std::size_t>(hash) & mask_; }
    [[nodiscard]] std::size_t next(std::size_t i) const noexcept { return (i + 1) & mask_; }
    void place(Slot slot) noexcept {
        std::size_t i = home(slot.hash);
        while (slots_[i].node != nullptr) i = next(i);
        slots_[i] = slot;
    }

    std::unique_ptr<Slot[]> slots_;
    std::size_t mask_ = 0;  // slots - 1; slots are a power of two
    std::size_t size_ = 0;
};

}  // namespace muses::detail
