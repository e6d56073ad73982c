// The shared state of one ThreadPool::parallel_for: which blocks are claimed, and who still works on one. And the board on which such
// loops ask for helpers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace muses::detail {

/// What: hands the blocks 0 .. blocks-1 to any number of threads, each once, and lets the caller join them.
/// Complexity: one short critical section for each block.
/// Threads: `work` from any; `join` from the one that made it.
/// Lifetime: shared by the caller and its helpers. The body is the caller's and is not touched after `join` has returned: a helper
///           that comes later finds no block to claim.
/// Limits: 2^64 - 1 blocks.
///
/// The caller waits only for blocks that another thread is running at that time, never for one that is queued. Each such thread in
/// turn waits only for blocks of loops that began later (inside its block), so no circle of waiting can close.
class BlockLoop {
public:
    using Body = void (*)(void* context, std::uint64_t block);

    BlockLoop(std::uint64_t blocks, Body body, void* context) noexcept : body_(body), context_(context), blocks_(blocks) {}

    /// Runs blocks until none is left to claim. The first exception of a block ends the claiming.
    void work() noexcept {
        std::exception_ptr error;
        std::unique_lock lock(mutex_);
        while (next_ < blocks_) {
            const std::uint64_t block = next_++;
            ++running_;
            lock.unlock();
            try {
                body_(context_, block);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            --running_;
            if (error) {
                next_ = blocks_;
                if (!error_) std::swap(error_, error);
                break;
            }
        }
        const bool last = running_ == 0 && next_ >= blocks_;
        lock.unlock();  // before `error`, if it was not the first one, is destroyed
        if (last) done_.notify_all();
    }

    /// Waits for the blocks that others still run; rethrows the first exception.
    void join() {
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return running_ == 0; });
        const std::exception_ptr error = std::exchange(error_, nullptr);
        lock.unlock();
        if (error) std::rethrow_exception(error);
    }

private:
    const Body body_;
    void* const context_;
    const std::uint64_t blocks_;
    std::mutex mutex_;
    std::condition_variable done_;
    std::uint64_t next_ = 0;     // first block that nobody has claimed
    std::uint64_t running_ = 0;  // blocks claimed and not ended
    std::exception_ptr error_;   // of the first block that threw
};

/// What: a loop's wish for helpers, as a node of the board's list. It is made, put up and taken down by the loop's caller.
struct LoopOffer {
    std::shared_ptr<BlockLoop> loop;
    std::uint64_t places = 0;  // helpers that may still come
    LoopOffer* previous = nullptr;
    LoopOffer* next = nullptr;
    bool listed = false;  // as the rest, guarded by the board's mutex
};

/// What: the loops of one pool that want helpers, oldest first. Helpers are no jobs: they have no place in a queue, need no memory, and
///       a loop that has ended leaves none behind.
/// Complexity: O(1).
/// Threads: any.
/// Lifetime: outlives its offers, which outlive their stay on it.
/// Limits: 2^64 - 1 places.
class LoopBoard {
public:
    void put_up(LoopOffer& offer) noexcept {
        const std::lock_guard lock(mutex_);
        offer.previous = last_;
        (last_ != nullptr ? last_->next : first_) = &offer;
        last_ = &offer;
        offer.listed = true;
        change_open(open_.load(std::memory_order_relaxed) + offer.places);  // relaxed: written under the mutex, which is held
    }

    /// After it nobody comes to help any more. What those do who have come is the loop's business.
    void take_down(LoopOffer& offer) noexcept {
        const std::lock_guard lock(mutex_);
        if (!offer.listed) return;
        change_open(open_.load(std::memory_order_relaxed) - offer.places);  // relaxed: as in put_up()
        unlink(offer);
    }

    /// The loop to help with, or null. Counts in taken().
    [[nodiscard]] std::shared_ptr<BlockLoop> take() noexcept {
        if (open() == 0) return nullptr;
        const std::lock_guard lock(mutex_);
        if (first_ == nullptr) return nullptr;
        LoopOffer& offer = *first_;
        std::shared_ptr<BlockLoop> loop = offer.loop;
        if (--offer.places == 0) unlink(offer);
        change_open(open_.load(std::memory_order_relaxed) - 1);                               // relaxed: as in put_up()
        taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // relaxed: see taken()
        return loop;
    }

    /// Places that wait for a helper.
    [[nodiscard]] std::uint64_t open() const noexcept {
        return open_.load(std::memory_order_seq_cst);  // pairs with change_open(); part of Parking's total order
    }

    /// Helpers that ever came. Relaxed: read like Lane::submitted.
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_.load(std::memory_order_relaxed); }

private:
    void change_open(std::uint64_t value) noexcept { open_.store(value, std::memory_order_seq_cst); }  // pairs with open()

    void unlink(LoopOffer& offer) noexcept {
        (offer.previous != nullptr ? offer.previous->next : first_) = offer.next;
        (offer.next != nullptr ? offer.next->previous : last_) = offer.previous;
        offer.listed = false;
    }

    std::mutex mutex_;
    LoopOffer* first_ = nullptr;
    LoopOffer* last_ = nullptr;
    std::atomic<std::uint64_t> open_{0};
    std::atomic<std::uint64_t> taken_{0};
};

}  // namespace muses::detail
