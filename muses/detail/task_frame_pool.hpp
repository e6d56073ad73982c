// Where the frames of coroutines live: free lists of the thread, so that a short coroutine costs no malloc.
//
// Frames come and go like a stack, and a handful of sizes is in use at a time: a list for each multiple of 64 bytes, last in, first
// out, finds a block that is still in the cache. A frame may be freed on another thread than the one that made it: its block then
// joins the lists of that thread. What is kept is bounded, and given back when the thread ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define MUSES_DETAIL_TASK_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MUSES_DETAIL_TASK_ASAN 1
#endif
#endif
#if defined(MUSES_DETAIL_TASK_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace muses::detail {

/// What: one thread's free frames.
/// Complexity: O(1); touches no other thread's memory.
/// Threads: each has its own; a block may be given to another one than it came from.
/// Lifetime: trivial, so that frames may be freed in destructors of static and thread_local objects: the lists are emptied when the
///     thread ends, and what comes later goes straight back to the system.
/// Limits: frames of up to kLargest bytes; keeps kKept bytes of each size at most.
class FramePool {
public:
    static constexpr std::size_t kGrain = 64;
    static constexpr std::size_t kLargest = 2048;
    static constexpr std::size_t kKept = std::size_t{64} * 1024;

    [[nodiscard]] static FramePool& of_this_thread() noexcept { return this_thread_; }

    /// Throws std::bad_alloc.
    [[nodiscard]] void* allocate(std::size_t bytes) {
        const std::size_t place = place_of(bytes);
        if (place < kPlaces) [[likely]] {
            if (Block* block = free_[place]) [[likely]] {
                free_[place] = block->next;
                poison(block, size_of(place), false);
                return block;
            }
            bytes = size_of(place);
        }
        return fresh(bytes);
    }

    /// `bytes` as it was asked for.
    void release(void* memory, std::size_t bytes) noexcept {
        const std::size_t place = place_of(bytes);
        if (place >= kPlaces) [[unlikely]]
            return give_back(memory);
        Block* const next = free_[place];
        std::size_t depth = 1;
        if (next == nullptr) {
            if (!open_) [[unlikely]] {
                if (!open()) return give_back(memory);
            }
        } else {
            depth = next->depth + 1;
            if (depth > kKept / size_of(place)) [[unlikely]]
                return give_back(memory);
        }
        auto* block = ::new (memory) Block{next, depth};
        free_[place] = block;
        poison(block, size_of(place), true);
    }

    /// Frames that this thread has made minus those that it has freed. Counts lists: for tests.
    [[nodiscard]] std::int64_t live() const noexcept {
        std::int64_t count = made_;
        for (const Block* block : free_) count -= block != nullptr ? static_cast<std::int64_t>(block->depth) : 0;
        return count;
    }

    /// Bytes that wait for the next frame.
    [[nodiscard]] std::size_t kept() const noexcept {
        std::size_t bytes = 0;
        for (std::size_t place = 0; place < kPlaces; ++place)
            if (free_[place] != nullptr) bytes += free_[place]->depth * size_of(place);
        return bytes;
    }

private:
    struct Block {
        Block* next;
        std::size_t depth;  // how many blocks its list has with it
    };

    static constexpr std::size_t kPlaces = kLargest / kGrain + 1;

    // Empties the lists when the thread ends.
    struct Cleaner {
        Cleaner() = default;
        Cleaner(const Cleaner&) = delete;
        Cleaner& operator=(const Cleaner&) = delete;
        ~Cleaner() { this_thread_.close(); }
    };

    static constexpr std::size_t place_of(std::size_t bytes) noexcept { return (bytes + kGrain - 1) / kGrain; }
    static constexpr std::size_t size_of(std::size_t place) noexcept { return place * kGrain; }

    [[gnu::noinline]] void* fresh(std::size_t bytes) {
        void* const memory = ::operator new(bytes);
        ++made_;
        return memory;
    }

    [[gnu::noinline]] void give_back(void* memory) noexcept {
        --made_;
        ::operator delete(memory);
    }

    // The first block that this thread keeps: from now on there is something to clean up. False: nothing is kept any more.
    [[gnu::noinline]] bool open() noexcept {
        if (closed_) return false;
        open_ = true;
        static thread_local const Cleaner cleaner;
        (void)cleaner;
        return true;
    }

    void close() noexcept {
        open_ = false;
        closed_ = true;
        for (std::size_t place = 0; place < kPlaces; ++place) {
            while (Block* block = free_[place]) {
                free_[place] = block->next;
                poison(block, size_of(place), false);
                give_back(block);
            }
        }
    }

    // AddressSanitizer shall see a use of a frame that is gone. The link stays readable.
    static void poison([[maybe_unused]] Block* block, [[maybe_unused]] std::size_t bytes, [[maybe_unused]] bool on) noexcept {
#if defined(MUSES_DETAIL_TASK_ASAN)
        char* const from = reinterpret_cast<char*>(block) + sizeof(Block);
        if (on)
            __asan_poison_memory_region(from, bytes - sizeof(Block));
        else
            __asan_unpoison_memory_region(from, bytes - sizeof(Block));
#endif
    }

    static thread_local FramePool this_thread_;

    std::array<Block*, kPlaces> free_{};
    std::int64_t made_ = 0;  // blocks got from the system minus blocks given back
    bool open_ = false;      // between the first block that is kept and the end of the thread
    bool closed_ = false;
};

inline constinit thread_local FramePool FramePool::this_thread_{};

}  // namespace muses::detail
