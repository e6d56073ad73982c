// Memory in blocks of a few sizes, kept by each thread for itself, with a count of holders in front of every block.
//
//     muses::MemoryPool pool;
//     muses::PoolPtr<Order> order = pool.make<Order>(id, price);   // as std::make_shared, from the pool
//     std::pmr::vector<int> numbers(&resource);                    // PoolResource resource(pool)
//     muses::PooledBuffer in(pool);                                // bytes of a connection, and slices of them
//
// How it works is told where it is done: detail/mem_cache.hpp (free-lists, and blocks freed by other threads), detail/mem_chunk.hpp
// (from a pointer to its owner), detail/mem_core.hpp (the arena, and how a pool ends before its blocks do).
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

#include "muses/detail/mem_buffer.hpp"  // PooledBuffer, PooledSlice
#include "muses/detail/mem_heap.hpp"
#include "muses/detail/mem_options.hpp"  // MemoryPoolOptions, MemoryPoolStats, PoolMisuse

namespace muses {

/// What: a pointer that holds an object of a MemoryPool; the last one destroys it and gives its block back. One word; the count is in
///     front of the object. T may be incomplete where a member is declared.
/// Complexity: O(1). A copy is one locked instruction, and so is its end.
/// Threads: one PoolPtr is for one thread at a time; copies of it are independent. What was done to the object by one holder before
///     it let go is seen by the one who destroys it.
/// Lifetime: may outlive the pool object, and end on any thread.
/// Limits: the pointer is to the very object, not to a base of it, except that PoolPtr<T> becomes PoolPtr<const T>.
template <class T>
class PoolPtr {
    static_assert(std::is_object_v<T> && !std::is_array_v<T>,
                  "PoolPtr: an object type that is no array; wrap an array in a struct");

public:
    using element_type = T;

    constexpr PoolPtr() noexcept = default;
    constexpr PoolPtr(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor): as for other pointers

    /// Takes over one holder of an object in a pool's block: what detach() returned, or what was constructed there. A pointer that is
    /// no block is reported as misuse, and this is null then.
    explicit PoolPtr(T* adopted) noexcept : object_(adopted) {
        if (adopted != nullptr && !detail::is_block(address(), nullptr)) object_ = nullptr;
    }

    PoolPtr(const PoolPtr& other) noexcept : object_(other.object_) { retain(); }
    PoolPtr(PoolPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}

    /// To a pointer to const.
    template <class U>
        requires(std::same_as<const U, T> && !std::same_as<U, T>)
    PoolPtr(PoolPtr<U> other) noexcept : object_(other.detach()) {}  // NOLINT(google-explicit-constructor)

    /// The old object, if this held the last, is destroyed when this pointer has its new value already.
    PoolPtr& operator=(const PoolPtr& other) noexcept {
        PoolPtr(other).swap(*this);
        return *this;
    }
    PoolPtr& operator=(PoolPtr&& other) noexcept {
        if (this != &other) PoolPtr(std::move(other)).swap(*this);
        return *this;
    }
    ~PoolPtr() {
        // Here, so that a type may hold pointers to itself.
        static_assert(std::is_nothrow_destructible_v<T>, "PoolPtr: the destructor of the object must not throw");
        if (object_ != nullptr) detail::release_handle(address(), [this] { std::destroy_at(object_); });
    }

    /// Lets go, and takes over one holder of `adopted`. Nothing happens when that is the object already.
    void reset(T* adopted = nullptr) noexcept {
        if (adopted == nullptr || adopted != object_) PoolPtr(adopted).swap(*this);
    }

    /// Lets go without giving up the holder: who gets the pointer has it now, for PoolPtr(T*), reset(T*) or MemoryPool::release (which
    /// destroys no object). Null when this is null.
    [[nodiscard]] T* detach() noexcept { return std::exchange(object_, nullptr); }

    [[nodiscard]] T* get() const noexcept { return object_; }
    [[nodiscard]] T& operator*() const noexcept { return *object_; }
    [[nodiscard]] T* operator->() const noexcept { return object_; }
    [[nodiscard]] explicit operator bool() const noexcept { return object_ != nullptr; }

    /// How many hold the object; 0 when this is null. May be out of date when it returns, unless it is 1.
    [[nodiscard]] std::size_t use_count() const noexcept {
        return object_ == nullptr ? 0 : static_cast<std::size_t>(detail::holders_of(address()));
    }

    void swap(PoolPtr& other) noexcept { std::swap(object_, other.object_); }
    friend void swap(PoolPtr& a, PoolPtr& b) noexcept { a.swap(b); }

    friend bool operator==(const PoolPtr& a, const PoolPtr& b) noexcept { return a.object_ == b.object_; }
    friend std::strong_ordering operator<=>(const PoolPtr& a, const PoolPtr& b) noexcept {
        return std::compare_three_way{}(a.object_, b.object_);
    }
    friend bool operator==(const PoolPtr& a, std::nullptr_t) noexcept { return a.object_ == nullptr; }

private:
    friend class MemoryPool;
    struct Made {};
    PoolPtr(T* made, Made /*tag*/) noexcept : object_(made) {}

    [[nodiscard]] void* address() const noexcept { return const_cast<std::remove_cv_t<T>*>(object_); }
    void retain() noexcept {
        if (object_ != nullptr) detail::retain_handle(address());
    }

    T* object_ = nullptr;
};

/// What: memory in 40 sizes of block, from an arena that grows up to a limit; each block has a count of holders.
/// Complexity: O(1) for allocate, retain, release, use_count: no lock and no word that another thread writes, as long as the thread's
///     own free-list has a block of the size, or the block is released where it came from. Released on another thread: one
///     compare-and-exchange. Fresh memory: a lock, once for a run of blocks. trim, stats, owns: a lock and a walk.
/// Threads: every member from any thread at any time, constructor and destructor excepted. Releases may run beside the destructor.
/// Lifetime: blocks, and what holds them, may outlive the pool object; the last one home frees what is left of it. A thread's cache
///     goes to the next thread when it ends. Containers with a PoolAllocator or PoolResource need the pool to allocate, and a
///     PooledBuffer to grow; none needs it to end.
/// Limits: MemoryPoolOptions. Blocks hold up to 32768 bytes and are aligned up to 2048; what is more, or beyond max_bytes, or asked
///     for by destructors of thread_locals that run after the pool's own, is ESCAPED: it comes from ::operator new, with a lock, and
///     with the same counter. A request above 64 bytes wastes at most a fifth of its block, not counting the header of 16 bytes; one
///     that is aligned to A > 16 needs A - 16 more. Free blocks stay in their size, and with their thread, until trim().
///     A double release by two threads at the very same time may go unseen. After fork() in a program with several threads, the child
///     may use a pool only as it may use any mutex: not before exec.
class MemoryPool {
public:
    static constexpr std::size_t kDefaultAlignment = detail::kMemGrain;

    /// Throws std::bad_alloc when the memory is not there.
    MemoryPool() : MemoryPool(MemoryPoolOptions{}) {}

    /// Throws std::invalid_argument when initial_bytes is more than max_bytes; std::bad_alloc when the memory is not there.
    explicit MemoryPool(MemoryPoolOptions options)
        : core_(detail::MemRegistry::instance().create(std::move(options))), id_(core_.id()) {}

    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;

    /// What is still out stays valid; the rest of the memory goes back to the system, or will when the last block is home.
    ~MemoryPool() { detail::close_pool(core_, id_); }

    // --- blocks

    /// A block of at least `bytes` with one holder: the caller. Two blocks are never the same, also of 0 bytes. The contents are
    /// undefined. `alignment`: any power of two, else std::invalid_argument. Throws std::bad_alloc when the system has no memory, and
    /// when `bytes` is so large that the header does not fit in front.
    [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = kDefaultAlignment) {
        return detail::allocate_block(core_, id_, bytes, alignment);
    }

    /// One more holder of a block that the caller holds, whichever pool it is of. Null: nothing. Misuse is reported, see
    /// MemoryPoolOptions::on_misuse; a block without holders gets none.
    void retain(void* block) noexcept {
        if (block != nullptr) detail::retain_block(block, &core_);
    }

    /// One holder less; the last one frees the block, which goes home whichever pool it is of. True when it was the last. Null:
    /// nothing, false. Misuse is reported before anything is touched, and false.
    bool release(void* block) noexcept { return block != nullptr && detail::release_block(block, &core_); }

    /// Holders of a block; 0 for null and for what is no block that is out. May be out of date when it returns, unless it is 1 and
    /// the caller is the one.
    [[nodiscard]] std::size_t use_count(const void* block) const noexcept {
        return block == nullptr ? 0 : static_cast<std::size_t>(detail::holders_of(const_cast<void*>(block)));
    }

    /// Whether it is a block of this pool's arena that is out: false for ESCAPED ones, and for any other pointer.
    [[nodiscard]] bool owns(const void* block) const { return core_.owns(block); }

    /// T(args...) in a block of its own. What the constructor throws passes, and the block is given back. Throws std::bad_alloc.
    template <class T, class... Args>
        requires std::constructible_from<T, Args...>
    [[nodiscard]] PoolPtr<T> make(Args&&... args) {
        void* const block = allocate(sizeof(T), std::max(alignof(T), kDefaultAlignment));
        if constexpr (std::is_nothrow_constructible_v<T, Args...>) {
            return {::new (block) T(std::forward<Args>(args)...), typename PoolPtr<T>::Made{}};
        } else {
            struct GiveBack {
                void* block;
                ~GiveBack() {
                    if (block != nullptr) (void)detail::release_block(block, nullptr);
                }
            } on_throw{block};
            T* const object = ::new (block) T(std::forward<Args>(args)...);
            on_throw.block = nullptr;
            return {object, typename PoolPtr<T>::Made{}};
        }
    }

    // --- the arena

    /// Makes sure that at least `bytes` of arena are there that no size has taken yet. False, and nothing or a part is done, when
    /// max_bytes or the system forbids it. May throw std::bad_alloc.
    bool reserve(std::size_t bytes) { return core_.reserve(bytes); }

    /// Gives chunks (of up to 1 MiB) without a block in use back to the system. Returns how many bytes. Free blocks in the caches of
    /// other threads that live cannot be reached, and keep their chunks; those that such a thread allocated and others have released
    /// are among them.
    std::size_t trim() noexcept { return core_.trim(detail::held_cache(id_)); }

    /// The counters. Exact when no other thread is inside a call.
    [[nodiscard]] MemoryPoolStats stats() const { return core_.stats(); }

private:
    detail::MemCore& core_;
    const std::uint64_t id_;
};

/// What: a standard allocator whose memory comes from a MemoryPool.
/// Complexity: that of the pool.
/// Threads: any.
/// Lifetime: the pool must live when allocate is called; deallocate does without it.
/// Limits: allocators are equal when their pool is the same. On move assignment and swap the allocator goes along, on copy assignment
///     it does not.
template <class T>
class PoolAllocator {
public:
    using value_type = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    PoolAllocator(MemoryPool& pool) noexcept
        : pool_(&pool) {}  // NOLINT(google-explicit-constructor): containers take the pool itself
    template <class U>
    PoolAllocator(const PoolAllocator<U>& other) noexcept : pool_(&other.pool()) {}  // NOLINT(google-explicit-constructor)

    /// Memory for `count` T. Throws std::bad_array_new_length when that is more than can be addressed, and std::bad_alloc.
    [[nodiscard]] T* allocate(std::size_t count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        return static_cast<T*>(pool_->allocate(count * sizeof(T), std::max(alignof(T), MemoryPool::kDefaultAlignment)));
    }
    void deallocate(T* memory, std::size_t /*count*/) noexcept { (void)detail::release_block(memory, nullptr); }

    [[nodiscard]] MemoryPool& pool() const noexcept { return *pool_; }

    template <class U>
    friend bool operator==(const PoolAllocator& a, const PoolAllocator<U>& b) noexcept {
        return &a.pool() == &b.pool();
    }

private:
    MemoryPool* pool_;
};

/// What: a std::pmr::memory_resource whose memory comes from a MemoryPool.
/// Complexity: that of the pool.
/// Threads: any.
/// Lifetime: the pool must live when memory is allocated; deallocation does without it.
/// Limits: equal to another PoolResource of the same pool.
class PoolResource final : public std::pmr::memory_resource {
public:
    explicit PoolResource(MemoryPool& pool) noexcept : pool_(&pool) {}

    [[nodiscard]] MemoryPool& pool() const noexcept { return *pool_; }

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        const bool ordinary = std::has_single_bit(alignment) && alignment <= MemoryPool::kDefaultAlignment;
        return pool_->allocate(bytes, ordinary ? MemoryPool::kDefaultAlignment : alignment);
    }
    void do_deallocate(void* memory, std::size_t /*bytes*/, std::size_t /*alignment*/) override {
        (void)detail::release_block(memory, nullptr);
    }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        const auto* const resource = dynamic_cast<const PoolResource*>(&other);
        return resource != nullptr && resource->pool_ == pool_;
    }

    MemoryPool* pool_;
};

inline PooledBuffer::PooledBuffer(MemoryPool& pool, std::size_t max_bytes) noexcept : pool_(&pool), max_bytes_(max_bytes) {}
inline std::byte* PooledBuffer::new_block(std::size_t bytes) { return static_cast<std::byte*>(pool_->allocate(bytes)); }

}  // namespace muses
