// The shared state of one ThreadPool::parallel_for: which blocks are claimed, and who still works on one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
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

}  // namespace muses::detail
