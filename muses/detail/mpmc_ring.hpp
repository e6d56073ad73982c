// A bounded ring for many producers and many consumers, after Dmitry Vyukov: the part of BoundedQueue that never waits.
//
// Each slot carries a sequence number that says which position may do what with it next, so producers and consumers meet only at
// the slot, and each side has one cursor of its own. Position p lives in slot p mod slots. The slot's sequence is p while a
// producer may fill it for p, p + 1 once the element of p may be taken, and p + slots when the next lap may fill it. An operation
// has two steps: it claims a position by moving a cursor, and then finishes with the slot by moving its sequence. A thread that
// stops for a while between the two steps delays only what comes to the same slot.
//
// Three things are added to that scheme.
//
// Closing is exact. Cursors and sequences count in steps of two; the lowest bit of the producers' cursor says "closed". A claim is
// an exchange of that very word, so no position is claimed after close(), and "closed, and the cursors are equal" means that
// nothing will ever come any more.
//
// Capacity is exact, though the slots are a power of two. claim_within() lets a producer claim position t only if t - h < capacity
// for an h that it read from the consumers' cursor. That cursor only grows, so at the moment of the claim (which succeeds only if t
// is still the next position) at most t - h < capacity positions were taken: the bound holds for any number of producers. And
// it refuses only if t - h >= capacity where h was read between two reads of t from the producers' cursor: at that moment all
// places were taken. One leeway is left: a consumer frees its place when it claims but the slot only when it has moved the element
// out, and a producer that comes to that very slot in between is refused as well.
//
// Eviction takes at most one element per push, so push_evicting() can hand it back. Evicting first and claiming then would not do:
// another producer could steal the room that was made. So claim_any() claims a position even with capacity taken (there are some
// more slots than that), the element is published, and only then does evict_excess() take the oldest element, if there are still
// more than capacity; see there why the excess is always paid back.
//
// Differences of positions are computed modulo the index type and are believed only if the cursor that they were computed from has
// not moved meanwhile. So they need no sign, and a narrow index may wrap as often as it likes.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "muses/detail/backoff.hpp"
#include "muses/detail/cache_line.hpp"
#include "muses/detail/element_batch.hpp"

namespace muses::detail {

/// The position that a ring starts at; for tests that want to begin shortly before an index wraps.
struct RingStart {
    std::size_t position = 0;
};

/// What: the ring described on top of this file, with uninitialised places for elements.
/// Complexity: O(1) per operation, one atomic exchange on a cursor each.
/// Threads: all members from any thread, constructor and destructor excepted.
/// Lifetime: must outlive every call; destroys the elements that are left.
/// Limits: 1 <= capacity <= 2^(bits of Index - 2), checked by the caller. An Index below 32 bits is for one producer and one
///     consumer, because a cursor could come round to the same value while a thread sleeps between reading and exchanging it.
template <class T, std::unsigned_integral Index>
class MpmcRing {
public:
    enum class Claim { Claimed, Full, Closed };
    enum class Front { Occupied, Empty, Drained };  // Drained: empty and closed

    /// A ring for `capacity` elements. `evicting`: claim_any() and evict_excess() will be used, which takes some more slots.
    /// Throws std::bad_alloc.
    MpmcRing(std::size_t capacity, bool evicting, RingStart start = {})
        : slots_(std::make_unique<Slot[]>(slot_count(capacity, evicting))),
          mask_(slot_count(capacity, evicting) - 1),
          capacity_(capacity) {
        const Index first = ticks(start.position);
        for (std::size_t i = 0; i <= mask_; ++i) {
            const Index position = advanced(first, i);
            slot_at(position).sequence.store(position, std::memory_order_relaxed);  // relaxed: no other thread knows the ring yet
        }
        tail_.store(first, std::memory_order_relaxed);
        head_.store(first, std::memory_order_relaxed);
        head_seen_.store(first, std::memory_order_relaxed);
    }
    MpmcRing(const MpmcRing&) = delete;
    MpmcRing& operator=(const MpmcRing&) = delete;
    ~MpmcRing() {
        while (try_pop()) {}
    }

    // --- producers

    /// Claims the next position if the capacity allows; then fill(ticket, …) must follow at once.
    [[nodiscard]] Claim claim_within(Index& ticket) noexcept { return claim<true>(ticket); }

    /// Claims the next position if its slot is free, whatever the capacity; fill(ticket, …) and evict_excess(ticket, …) must follow.
    /// Full: all slots are taken, or the thread that has this slot is between its two steps. Both pass when other threads run.
    /// `seen` is for evict_excess().
    [[nodiscard]] Claim claim_any(Index& ticket, Index& seen) noexcept {
        // acquire: pairs with the release in note_head(), see evict_excess(). It must come before the claim.
        seen = head_seen_.load(std::memory_order_acquire);
        return claim<false>(ticket);
    }

    /// The second step: moves the element in and lets consumers have it.
    void fill(Index ticket, T&& value) noexcept {
        Slot& slot = slot_at(ticket);
        ::new (static_cast<void*>(slot.bytes)) T(std::move(value));
        // release: pairs with the acquire in front_ready(); the consumer sees the element.
        slot.sequence.store(advanced(ticket, 1), std::memory_order_release);
    }

    /// After claim_any() and fill(): moves the oldest element into `evicted` (which is empty) if there are more
    /// than the capacity. At most one.
    ///
    /// Why it is enough that each producer takes at most one. A producer leaves either having evicted an element, or having read a
    /// head h and after it a tail t with t - h <= capacity. (The claim itself counts as the reading of t if h was read before.)
    /// Of those that left in the second way consider the one with the greatest t, and its h. Each position q >= t was claimed by a producer that left in the
    /// first way, and what it evicted was no position below h: had it been, its claim would happen before its exchange of the head
    /// (program order), that before the reading of h (release, acquire), and that before the reading of t, which would then be
    /// above q. So head has gone on from h by at least as many positions as tail from t, and tail - head <= t - h <= capacity.
    /// And none is evicted without need: the exchange succeeds only if head is still h, when tail - h > capacity, and tail only grows.
    void evict_excess(Index ticket, Index seen, std::optional<T>& evicted) noexcept {
        if (distance(seen, advanced(ticket, 1)) <= capacity_) return;
        Backoff backoff;
        for (;;) {
            Index head = head_.load(std::memory_order_acquire);  // acquire: pairs with the exchange in take_front(), proof above
            // relaxed: it comes after the acquire load, and what that saw to happen before is all that matters
            const Index tail = position_of(tail_.load(std::memory_order_relaxed));
            if (distance(head, tail) <= capacity_) {
                note_head(head);
                return;
            }
            if (front_ready(head)) {
                if (!move_head(head, 1)) continue;
                evicted.emplace(std::move(*slot_at(head).element()));
                release_slot(head);
                return;
            } else if (head_.load(std::memory_order_relaxed) == head) {  // relaxed: only to see whether it moved
                backoff.pause();  // the oldest element is not readable yet: its producer is between its two steps
            }
        }
    }

    /// No position is claimed after this. seq_cst: pairs with front(), as the claims do.
    void close() noexcept { tail_.fetch_or(kClosed, std::memory_order_seq_cst); }

    // --- consumers

    /// Takes the oldest element; nothing if there is none, or its producer is between its two steps.
    [[nodiscard]] std::optional<T> try_pop() noexcept {
        Index head = head_.load(std::memory_order_relaxed);  // relaxed: what matters is read from the slot, with acquire
        for (;;) {
            if (front_ready(head)) {
                if (move_head(head, 1)) return take(head);
                continue;
            }
            if (!reload_head(head)) return std::nullopt;
        }
    }

    /// Takes up to `max` elements that are next to each other, as many as fit in the batch, with one exchange.
    void try_pop_batch(ElementBatch<T>& batch, std::size_t max) noexcept {
        // More than the capacity can be there for a moment while a producer has yet to evict, and with a narrow index the
        // exchange could then mistake a later lap for this one.
        const std::size_t limit = std::min({max, ElementBatch<T>::kCapacity, capacity_});
        Index head = head_.load(std::memory_order_relaxed);  // relaxed: as in try_pop()
        while (limit != 0) {
            std::size_t count = 0;
            while (count < limit && front_ready(advanced(head, count))) ++count;
            if (count == 0) {
                if (!reload_head(head)) return;
            } else if (move_head(head, count)) {
                for (std::size_t i = 0; i < count; ++i) {
                    const Index position = advanced(head, i);
                    batch.push(std::move(*slot_at(position).element()));
                    release_slot(position);
                }
                return;
            }
        }
    }

    /// True when an element could be taken now. Stale at once.
    [[nodiscard]] bool ready() const noexcept {
        return front_ready(head_.load(std::memory_order_relaxed));  // relaxed: as in try_pop()
    }

    /// For a consumer that wants to sleep: whether some producer has claimed a position that is not taken yet.
    [[nodiscard]] Front front() const noexcept {
        // relaxed: a head that is behind makes the ring look occupied, and the caller looks again.
        const Index head = head_.load(std::memory_order_relaxed);
        // seq_cst: the last look of the Dekker pair of SleepSemaphore::has_sleepers(); pairs with the exchange in claim() and
        // with close(), which are the producers' writes in it.
        const Index tail = tail_.load(std::memory_order_seq_cst);
        if (position_of(tail) != head) return Front::Occupied;
        return closed(tail) ? Front::Drained : Front::Empty;
    }

    // --- observers

    /// acquire: pairs with close().
    [[nodiscard]] bool closed() const noexcept { return closed(tail_.load(std::memory_order_acquire)); }

    /// Positions claimed and not taken, clamped to the capacity; stale at once.
    [[nodiscard]] std::size_t size_approx() const noexcept {
        const Index head = head_.load(std::memory_order_acquire);  // acquire: so that the tail is not behind the head
        const Index tail = position_of(tail_.load(std::memory_order_relaxed));
        return std::min(distance(head, tail), capacity_);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

    static constexpr std::size_t slot_size() noexcept { return sizeof(Slot); }

private:
    static constexpr Index kClosed = 1;

    // Not padded to a cache line: a full line of elements then travels from producer to consumer at once.
    struct Slot {
        std::atomic<Index> sequence;
        alignas(T) std::byte bytes[sizeof(T)];

        T* element() noexcept { return std::launder(reinterpret_cast<T*>(bytes)); }
    };

    // Cursors and sequences are "ticks": twice the position, modulo the index type.
    static constexpr Index ticks(std::size_t positions) noexcept { return static_cast<Index>(positions << 1U); }
    static constexpr Index advanced(Index from, std::size_t positions) noexcept {
        return static_cast<Index>(from + ticks(positions));
    }
    static constexpr Index position_of(Index tail) noexcept { return static_cast<Index>(tail & ~kClosed); }
    static constexpr bool closed(Index tail) noexcept { return (tail & kClosed) != 0; }
    static constexpr std::size_t distance(Index from, Index to) noexcept {
        return static_cast<std::size_t>(static_cast<Index>(to - from)) >> 1U;
    }
    // At least two slots: with one, "taken" (p + 1) and "free for the next lap" (p + 1) would be the same number. With eviction a
    // few more than the capacity, for producers that are descheduled between claiming a position and evicting for it.
    static constexpr std::size_t slot_count(std::size_t capacity, bool evicting) noexcept {
        const std::size_t spare = evicting ? std::min<std::size_t>(capacity, 8) : 0;
        return std::bit_ceil(std::max<std::size_t>(capacity + spare, 2));
    }

    Slot& slot_at(Index position) const noexcept { return slots_[(static_cast<std::size_t>(position) >> 1U) & mask_]; }

    template <bool Within>
    Claim claim(Index& ticket) noexcept {
        // acquire, here and below: the head in has_room() must be read after the tail.
        Index tail = tail_.load(std::memory_order_acquire);
        for (;;) {
            if (closed(tail)) return Claim::Closed;
            const bool room = !Within || has_room(tail);
            // acquire: pairs with the release in release_slot(); the element of the lap before is gone.
            if (room && slot_at(tail).sequence.load(std::memory_order_acquire) == tail) {
                // seq_cst: the producers' write in the Dekker pair, see front(). Elements are published by fill(), not by this.
                if (tail_.compare_exchange_weak(tail, advanced(tail, 1), std::memory_order_seq_cst, std::memory_order_acquire)) {
                    ticket = tail;
                    return Claim::Claimed;
                }
                continue;
            }
            const Index now = tail_.load(std::memory_order_acquire);
            if (now == tail) return Claim::Full;
            tail = now;
        }
    }

    // Asks the consumers' cursor only when the head that was seen last does not answer the question.
    bool has_room(Index tail) noexcept {
        if (mask_ + 1 == capacity_) return true;  // then the slot's sequence says it all
        // acquire: pairs with note_head(), for the proof at evict_excess().
        if (distance(head_seen_.load(std::memory_order_acquire), tail) < capacity_) return true;
        const Index head = head_.load(std::memory_order_acquire);  // acquire: pairs with move_head(), the same proof
        note_head(head);
        return distance(head, tail) < capacity_;
    }

    // release: pairs with the acquires in has_room() and claim_any(). Two producers may write in either order: any head that was
    // true once will do, an old one only leads to another look.
    void note_head(Index head) noexcept { head_seen_.store(head, std::memory_order_release); }

    // acquire: pairs with the release in fill().
    bool front_ready(Index head) const noexcept {
        return slot_at(head).sequence.load(std::memory_order_acquire) == advanced(head, 1);
    }

    // Claims `count` positions at `head`; on failure `head` is what it is now. acq_rel: pairs with the acquire loads of the head in
    // has_room() and evict_excess() (for the proof there) and with other calls of itself.
    bool move_head(Index& head, std::size_t count) noexcept {
        return head_.compare_exchange_strong(head, advanced(head, count), std::memory_order_acq_rel, std::memory_order_relaxed);
    }

    // False when the head has not moved from `head`. relaxed: if the slot showed a later lap, its acquire made the head's move
    // visible, which came before.
    bool reload_head(Index& head) const noexcept { return std::exchange(head, head_.load(std::memory_order_relaxed)) != head; }

    std::optional<T> take(Index position) noexcept {
        std::optional<T> value(std::in_place, std::move(*slot_at(position).element()));
        release_slot(position);
        return value;
    }

    // The second step of a consumer: its element has been moved from. release: pairs with the acquire in claim().
    void release_slot(Index position) noexcept {
        Slot& slot = slot_at(position);
        slot.element()->~T();
        slot.sequence.store(advanced(position, mask_ + 1), std::memory_order_release);
    }

    // Never written after construction: a line that all cores keep.
    alignas(kCacheLine) const std::unique_ptr<Slot[]> slots_;
    const std::size_t mask_;
    const std::size_t capacity_;

    // The producers' line: the next position to claim and the closed bit; and a head that was true once.
    alignas(kCacheLine) std::atomic<Index> tail_{0};
    std::atomic<Index> head_seen_{0};

    // The consumers' line: the next position to take.
    alignas(kCacheLine) std::atomic<Index> head_{0};
};

}  // namespace muses::detail
