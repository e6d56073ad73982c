// How many connections the reactors of one pool have, and who has how many.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace muses::detail {

/// Relaxed throughout: the counts limit and steer, and publish nothing else; a read-modify-write never misses another one.
struct ConnectionCounts {
    explicit ConnectionCounts(std::size_t members) : of(members) {}

    std::atomic<std::size_t> all{0};
    std::vector<std::atomic<std::size_t>> of;  // by member
};

/// What: a connection's place in the counts, from accept to close, also while it is handed from one reactor to another.
/// Complexity: O(1).
/// Threads: distinct objects are independent.
/// Lifetime: gives the place back when destroyed; keeps the counts alive.
/// Limits: that of take().
class Seat {
public:
    Seat() = default;  // none

    /// A seat at `member`, or none when `limit` seats are taken.
    static Seat take(const std::shared_ptr<ConnectionCounts>& counts, std::size_t member, std::size_t limit) {
        if (counts->all.fetch_add(1, std::memory_order_relaxed) >= limit) {
            counts->all.fetch_sub(1, std::memory_order_relaxed);
            return {};
        }
        counts->of[member].fetch_add(1, std::memory_order_relaxed);
        Seat seat;
        seat.counts_ = counts;
        seat.member_ = member;
        return seat;
    }

    Seat(Seat&&) noexcept = default;
    Seat& operator=(Seat&& other) noexcept {
        Seat old(std::move(*this));
        counts_ = std::move(other.counts_);
        member_ = other.member_;
        return *this;
    }
    ~Seat() {
        if (!counts_) return;
        counts_->of[member_].fetch_sub(1, std::memory_order_relaxed);
        counts_->all.fetch_sub(1, std::memory_order_relaxed);
    }

    [[nodiscard]] explicit operator bool() const noexcept { return counts_ != nullptr; }

    /// Which member the seat counts for.
    [[nodiscard]] std::size_t member() const noexcept { return member_; }

    /// The member with the fewest connections, unless it has hardly fewer than this seat's: the kernel spreads connections over
    /// listening sockets by hash, which is uneven when they are few.
    [[nodiscard]] std::size_t better_member() const noexcept {
        const std::size_t mine = counts_->of[member_].load(std::memory_order_relaxed);
        std::size_t best = member_;
        std::size_t least = mine;
        for (std::size_t i = 0; i < counts_->of.size(); ++i) {
            const std::size_t n = counts_->of[i].load(std::memory_order_relaxed);
            if (n < least) {
                least = n;
                best = i;
            }
        }
        return mine > least + least / 8 + 1 ? best : member_;
    }

    /// Counts for another member from now on.
    void move_to(std::size_t member) noexcept {
        counts_->of[std::exchange(member_, member)].fetch_sub(1, std::memory_order_relaxed);
        counts_->of[member_].fetch_add(1, std::memory_order_relaxed);
    }

private:
    std::shared_ptr<ConnectionCounts> counts_;
    std::size_t member_ = 0;
};

}  // namespace muses::detail
