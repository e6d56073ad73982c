// A buffer of bytes on a memory pool, and slices of it that stay when the buffer goes on. Part of memory_pool.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "muses/detail/mem_classes.hpp"
#include "muses/detail/mem_heap.hpp"

namespace muses {

class MemoryPool;

/// What: some bytes of a PooledBuffer, and a hold on the block that they are in.
/// Complexity: O(1); nothing is copied.
/// Threads: one slice is for one thread at a time; copies of it are independent, and the bytes never change.
/// Lifetime: may outlive the buffer and the pool, and end on any thread.
/// Limits: the whole block stays, however few bytes of it the slice shows.
class PooledSlice {
public:
    PooledSlice() noexcept = default;
    PooledSlice(const PooledSlice& other) noexcept : block_(other.block_), bytes_(other.bytes_) {
        if (block_ != nullptr) detail::retain_handle(block_);
    }
    PooledSlice(PooledSlice&& other) noexcept
        : block_(std::exchange(other.block_, nullptr)), bytes_(std::exchange(other.bytes_, std::span<const std::byte>{})) {}
    PooledSlice& operator=(PooledSlice other) noexcept {
        std::swap(block_, other.block_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~PooledSlice() {
        if (block_ != nullptr) detail::release_handle(block_, [] {});
    }

    /// The bytes; valid as long as any slice of the block.
    [[nodiscard]] std::span<const std::byte> data() const noexcept { return bytes_; }
    /// The same as text.
    [[nodiscard]] std::string_view text() const noexcept { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
    [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
    [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }

    /// `count` bytes of this slice from `offset` on. Throws std::invalid_argument when they are not all there.
    [[nodiscard]] PooledSlice slice(std::size_t offset, std::size_t count) const {
        if (offset > bytes_.size() || count > bytes_.size() - offset)
            throw std::invalid_argument("muses::PooledSlice: a slice beyond the end");
        PooledSlice part(*this);
        part.bytes_ = bytes_.subspan(offset, count);
        return part;
    }

private:
    friend class PooledBuffer;
    PooledSlice(std::byte* block, std::span<const std::byte> bytes) noexcept : block_(block), bytes_(bytes) {
        if (block_ != nullptr) detail::retain_handle(block_);
    }

    std::byte* block_ = nullptr;
    std::span<const std::byte> bytes_;
};

/// What: bytes in one piece of memory of a MemoryPool: written at the end, read and consumed from the front.
/// Complexity: amortised O(1) per byte; clear O(1). One block at a time, which is kept for what comes next.
/// Threads: one at a time; slices are independent of it.
/// Lifetime: the pool must live when the buffer grows.
/// Limits: max_bytes of unread data. What slices show is never written to again: while there are slices, the buffer goes on behind
///     their bytes, or in a new block.
class PooledBuffer {
public:
    /// An empty buffer; it takes no block before it needs one. It will not hold more than `max_bytes`.
    explicit PooledBuffer(MemoryPool& pool, std::size_t max_bytes = PTRDIFF_MAX) noexcept;

    PooledBuffer(const PooledBuffer&) = delete;
    PooledBuffer& operator=(const PooledBuffer&) = delete;
    /// The other is empty then, and of the same pool.
    PooledBuffer(PooledBuffer&& other) noexcept
        : pool_(other.pool_),
          max_bytes_(other.max_bytes_),
          block_(std::exchange(other.block_, nullptr)),
          capacity_(std::exchange(other.capacity_, 0)),
          begin_(std::exchange(other.begin_, 0)),
          end_(std::exchange(other.end_, 0)),
          prepared_(std::exchange(other.prepared_, 0)) {}
    PooledBuffer& operator=(PooledBuffer&& other) noexcept {
        PooledBuffer moved(std::move(other));
        std::swap(pool_, moved.pool_);
        std::swap(max_bytes_, moved.max_bytes_);
        std::swap(block_, moved.block_);
        std::swap(capacity_, moved.capacity_);
        std::swap(begin_, moved.begin_);
        std::swap(end_, moved.end_);
        std::swap(prepared_, moved.prepared_);
        return *this;
    }
    ~PooledBuffer() { reset(); }

    // --- writing

    /// Room for exactly `count` bytes behind the data, to be written and then committed; what an earlier call returned is void. May
    /// move the data. Throws std::length_error when the data would be more than max_bytes, std::bad_alloc without memory; the data
    /// are as before then.
    [[nodiscard]] std::span<std::byte> prepare(std::size_t count) {
        prepared_ = 0;
        make_room(count, nullptr);
        prepared_ = count;
        return {block_ + end_, count};
    }

    /// Adds the first `count` prepared bytes to the data; more may be committed later. Throws std::invalid_argument, and does nothing,
    /// when fewer are prepared.
    void commit(std::size_t count) {
        if (count > prepared_) throw std::invalid_argument("muses::PooledBuffer: commit of more than was prepared");
        end_ += count;
        prepared_ -= count;
    }

    /// Adds a copy of `bytes`, which may be a part of this buffer's own data. Throws as prepare does.
    void append(std::span<const std::byte> bytes) {
        prepared_ = 0;
        if (bytes.empty()) return;
        std::byte* old = nullptr;
        make_room(bytes.size(), &old);
        std::memmove(block_ + end_, bytes.data(), bytes.size());  // the data may have been moved to the front of this very block
        end_ += bytes.size();
        if (old != nullptr) detail::release_handle(old, [] {});
    }
    void append(std::string_view text) { append(std::as_bytes(std::span(text))); }

    // --- reading

    /// What has been committed and not consumed; valid until the next prepare, append, clear or reset.
    [[nodiscard]] std::span<const std::byte> data() const noexcept { return {block_ + begin_, end_ - begin_}; }
    /// The same as text.
    [[nodiscard]] std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data().data()), data().size()}; }
    [[nodiscard]] std::size_t size() const noexcept { return end_ - begin_; }
    [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
    /// Size of the block; 0 when there is none.
    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

    /// Drops the first `count` bytes of the data. Throws std::invalid_argument, and does nothing, when there are fewer.
    void consume(std::size_t count) {
        if (count > size()) throw std::invalid_argument("muses::PooledBuffer: consume of more than there is");
        begin_ += count;
    }

    /// `count` bytes of the data from `offset` on, which stay when the buffer goes on. Throws std::invalid_argument when they are not
    /// all there.
    [[nodiscard]] PooledSlice slice(std::size_t offset, std::size_t count) const {
        if (offset > size() || count > size() - offset) throw std::invalid_argument("muses::PooledBuffer: a slice beyond the end");
        return {block_, data().subspan(offset, count)};
    }

    /// Drops the data and keeps the block for the next ones, if it has no slices; with slices it is left to them.
    void clear() noexcept {
        if (shared()) return reset();
        begin_ = end_ = prepared_ = 0;
    }

    /// Drops the data and the block.
    void reset() noexcept {
        if (block_ != nullptr) detail::release_handle(block_, [] {});
        block_ = nullptr;
        capacity_ = begin_ = end_ = prepared_ = 0;
    }

private:
    static constexpr std::size_t kSmallest = 512;

    std::byte* new_block(std::size_t bytes);

    /// Acquire inside: when this is the one holder, those who read from slices have finished.
    [[nodiscard]] bool shared() const noexcept { return block_ != nullptr && detail::holders_of(block_) > 1; }

    /// Makes `count` bytes fit behind end_. The bytes that were the data stay readable where they were: a block that is replaced is
    /// released, or, if `old` is given, handed to it.
    void make_room(std::size_t count, std::byte** old) {
        const std::size_t held = size();
        if (held > max_bytes_ || count > max_bytes_ - held) throw std::length_error("muses::PooledBuffer: more than max_bytes");
        if (count <= capacity_ - end_ && block_ != nullptr) return;
        // To the front only when at least as much is free there as has to be moved: so each byte is moved once on average.
        if (block_ != nullptr && begin_ >= held && held + count <= capacity_ && !shared()) {
            if (held != 0) std::memcpy(block_, block_ + begin_, held);
        } else {
            // The sum is at most max_bytes; doubling may go beyond it, to what the class of the block holds.
            std::size_t bytes = std::max({kSmallest, held + count, std::min(capacity_ * 2, max_bytes_)});
            if (bytes <= detail::kMemLargest) bytes = detail::mem_class_bytes(detail::mem_class_of(bytes));
            std::byte* const block = new_block(bytes);
            if (held != 0) std::memcpy(block, block_ + begin_, held);
            if (block_ != nullptr && old != nullptr)
                *old = block_;
            else if (block_ != nullptr)
                detail::release_handle(block_, [] {});
            block_ = block;
            capacity_ = bytes;
        }
        begin_ = 0;
        end_ = held;
    }

    MemoryPool* pool_;
    std::size_t max_bytes_;
    std::byte* block_ = nullptr;
    std::size_t capacity_ = 0;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
    std::size_t prepared_ = 0;
};

}  // namespace muses
