// One job of a thread pool, and a queue of them: the parts of thread_pool.hpp that know nothing of threads.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace muses::detail {

/// What a job can be made of. `run()` does the work and may throw; `discard()` is called instead when the job is dropped, and
/// completes whoever waits for it. Exactly one of them is called, once.
template <class T>
concept PoolTask = std::destructible<T> && requires(T task) {
    task.run();
    { task.discard() } noexcept;
};

/// What: owns one task of any type; move-only.
/// Complexity: O(1); a task of up to 56 bytes with a noexcept move allocates nothing, and with them the job fills 64 bytes.
/// Threads: one object belongs to one thread at a time.
/// Lifetime: owns the task; `reset()` or the destructor destroys it.
/// Limits: `run` and `discard` of an empty job are misuse.
class Job {
public:
    static constexpr std::size_t kInlineBytes = 56;

    Job() noexcept = default;

    template <PoolTask T, class... Args>
    explicit Job(std::in_place_type_t<T>, Args&&... args) {
        if constexpr (kFitsInline<T>)
            ::new (static_cast<void*>(storage_)) T(std::forward<Args>(args)...);
        else
            ::new (static_cast<void*>(storage_)) T*(new T(std::forward<Args>(args)...));
        kind_ = &kKindOf<T>;
    }

    Job(Job&& other) noexcept { take(other); }
    Job& operator=(Job&& other) noexcept {
        if (this != &other) {
            reset();
            take(other);
        }
        return *this;
    }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    ~Job() { reset(); }

    [[nodiscard]] explicit operator bool() const noexcept { return kind_ != nullptr; }

    void run() { kind_->run(storage_); }
    void discard() noexcept { kind_->discard(storage_); }

    /// Destroys the task. The job is already empty while the task's destructor runs.
    void reset() noexcept {
        if (const Kind* kind = std::exchange(kind_, nullptr); kind != nullptr && kind->destroy != nullptr) kind->destroy(storage_);
    }

private:
    struct Kind {
        void (*run)(std::byte*);
        void (*discard)(std::byte*) noexcept;
        void (*relocate)(std::byte* to, std::byte* from) noexcept;  // null: the bytes move by memcpy
        void (*destroy)(std::byte*) noexcept;                       // null: nothing to do
    };

    template <class T>
    static constexpr bool kFitsInline =
        sizeof(T) <= kInlineBytes && alignof(T) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<T>;

    template <class T>
    static T& task(std::byte* storage) noexcept {
        if constexpr (kFitsInline<T>)
            return *std::launder(reinterpret_cast<T*>(storage));
        else
            return **std::launder(reinterpret_cast<T**>(storage));
    }
    template <class T>
    static void run_task(std::byte* storage) {
        task<T>(storage).run();
    }
    template <class T>
    static void discard_task(std::byte* storage) noexcept {
        task<T>(storage).discard();
    }
    template <class T>
    static void relocate_task(std::byte* to, std::byte* from) noexcept {
        T& old = task<T>(from);
        ::new (static_cast<void*>(to)) T(std::move(old));
        std::destroy_at(&old);
    }
    template <class T>
    static void destroy_task(std::byte* storage) noexcept {
        if constexpr (kFitsInline<T>)
            std::destroy_at(&task<T>(storage));
        else
            delete &task<T>(storage);
    }

    template <class T>
    static constexpr bool kMovesAsBytes =
        !kFitsInline<T> || (std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

    template <class T>
    static consteval Kind make_kind() {
        Kind kind{.run = &run_task<T>, .discard = &discard_task<T>, .relocate = nullptr, .destroy = nullptr};
        if constexpr (!kMovesAsBytes<T>) kind.relocate = &relocate_task<T>;
        if constexpr (!(kFitsInline<T> && std::is_trivially_destructible_v<T>)) kind.destroy = &destroy_task<T>;
        return kind;
    }
    template <class T>
    static constexpr Kind kKindOf = make_kind<T>();

    // Precondition: *this is empty. Leaves `other` empty.
    void take(Job& other) noexcept {
        const Kind* kind = std::exchange(other.kind_, nullptr);
        if (kind == nullptr) return;
        if (kind->relocate != nullptr)
            kind->relocate(storage_, other.storage_);
        else
            std::memcpy(storage_, other.storage_, kInlineBytes);
        kind_ = kind;
    }

    alignas(std::max_align_t) std::byte storage_[kInlineBytes];
    const Kind* kind_ = nullptr;  // null: empty
};

static_assert(sizeof(Job) == 64, "a job is meant to fill one cache line");

/// What: first-in-first-out queue of jobs in linked blocks; not synchronised.
/// Complexity: push and pop O(1), never moving a queued job; swap and splice O(1) and noexcept.
/// Threads: one at a time; the owner brings the lock.
/// Lifetime: owns its jobs; what is still queued is destroyed, not run.
/// Limits: memory. A few empty blocks are kept for the next push, the rest goes back at once.
class JobQueue {
public:
    JobQueue() noexcept = default;
    JobQueue(JobQueue&& other) noexcept { swap(other); }
    JobQueue& operator=(JobQueue&&) = delete;
    ~JobQueue() {
        while (size_ != 0) pop();
        free_all(head_);
        free_all(spare_);
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

    /// Appends. When it throws std::bad_alloc, the queue and `job` are as before.
    void push(Job&& job) {
        if (tail_ == nullptr || tail_->end == kBlockJobs) add_block();
        ::new (static_cast<void*>(tail_->slot(tail_->end))) Job(std::move(job));
        ++tail_->end;
        ++size_;
    }

    /// The oldest job. Precondition: not empty.
    [[nodiscard]] Job& front() noexcept { return *head_->job(head_->begin); }

    /// Removes the oldest job and returns it. Precondition: not empty.
    Job pop() noexcept {
        Job job;
        pop_into(job);
        return job;
    }

    /// Removes the oldest job and moves it into `job`, which must be empty. Precondition: not empty.
    void pop_into(Job& job) noexcept {
        Job* slot = head_->job(head_->begin);
        job = std::move(*slot);
        std::destroy_at(slot);
        ++head_->begin;
        --size_;
        if (head_->begin == head_->end) {
            if (head_ == tail_)
                head_->begin = head_->end = 0;  // the only block is used again from its start
            else
                retire(std::exchange(head_, head_->next));
        }
    }

    /// Moves everything in `other` to the end of this queue.
    void splice(JobQueue& other) noexcept {
        if (other.empty()) return;
        if (empty()) {
            if (head_ != nullptr) retire(head_);
            head_ = other.head_;
        } else {
            tail_->next = other.head_;
        }
        tail_ = other.tail_;
        size_ += other.size_;
        other.head_ = other.tail_ = nullptr;
        other.size_ = 0;
    }

    void swap(JobQueue& other) noexcept {
        std::swap(head_, other.head_);
        std::swap(tail_, other.tail_);
        std::swap(spare_, other.spare_);
        std::swap(spares_, other.spares_);
        std::swap(size_, other.size_);
    }

private:
    static constexpr std::uint32_t kBlockJobs = 62;  // a block stays below 4096 bytes with the allocator's own header
    static constexpr std::uint32_t kKeptBlocks = 4;

    struct Block {
        Block* next = nullptr;
        std::uint32_t begin = 0;  // jobs live in [begin, end)
        std::uint32_t end = 0;
        alignas(Job) std::byte slots[kBlockJobs * sizeof(Job)];

        Block() noexcept {}  // NOLINT(modernize-use-equals-default): `= default` would let `new Block()` zero 4 KB
        std::byte* slot(std::uint32_t i) noexcept { return slots + i * sizeof(Job); }
        Job* job(std::uint32_t i) noexcept { return std::launder(reinterpret_cast<Job*>(slot(i))); }
    };

    void add_block() {
        Block* block = spare_;
        if (block != nullptr) {
            spare_ = std::exchange(block->next, nullptr);
            --spares_;
        } else {
            block = new Block;
        }
        if (tail_ != nullptr)
            tail_->next = block;
        else
            head_ = block;
        tail_ = block;
    }

    void retire(Block* block) noexcept {
        if (spares_ == kKeptBlocks) {
            delete block;
            return;
        }
        block->begin = block->end = 0;
        block->next = std::exchange(spare_, block);
        ++spares_;
    }

    static void free_all(Block* block) noexcept {
        while (block != nullptr) delete std::exchange(block, block->next);
    }

    Block* head_ = nullptr;
    Block* tail_ = nullptr;  // null together with head_
    Block* spare_ = nullptr;
    std::uint32_t spares_ = 0;
    std::size_t size_ = 0;
};

}  // namespace muses::detail
