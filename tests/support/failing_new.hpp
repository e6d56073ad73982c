#pragma once

/// Allocation that fails on demand: replaces the global operator new of the test program that includes it.
///
/// `FailNew fail(n)` makes the n-th allocation (from 0) of this thread throw std::bad_alloc, once, while it lives.
/// ThreadSanitizer does not let operator new be replaced: there MUSES_TEST_CAN_FAIL_NEW is not defined, and the cases that
/// need it are left out. To be included in one translation unit of a program.

#include <cstddef>
#include <cstdlib>
#include <new>

#include "sanitizers.hpp"

#if !defined(MUSES_TEST_TSAN)
#define MUSES_TEST_CAN_FAIL_NEW 1

namespace muses::test {

class FailNew {
public:
    explicit FailNew(int nth) noexcept {
        left() = nth;
        failed_count() = 0;
    }
    FailNew(const FailNew&) = delete;
    FailNew& operator=(const FailNew&) = delete;
    ~FailNew() { left() = -1; }

    /// Whether the allocation that was to fail has been asked for.
    [[nodiscard]] bool failed() const noexcept { return failed_count() != 0; }

    /// For operator new: throws when it is this allocation's turn.
    static void check() {
        if (left() < 0 || left()-- != 0) return;
        ++failed_count();
        throw std::bad_alloc();
    }

private:
    static int& left() noexcept {
        static thread_local int value = -1;
        return value;
    }
    static int& failed_count() noexcept {
        static thread_local int value = 0;
        return value;
    }
};

inline void* checked_allocate(std::size_t size, std::size_t alignment) {
    FailNew::check();
    // aligned_alloc wants a multiple of the alignment.
    void* const memory = alignment <= alignof(std::max_align_t)
                             ? std::malloc(size == 0 ? 1 : size)
                             : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

}  // namespace muses::test

// The array forms too: AddressSanitizer brings its own. Not inline: gcc would see malloc meet delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) { return muses::test::checked_allocate(size, 1); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
    return muses::test::checked_allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

[[gnu::noinline]] void* operator new[](std::size_t size) { return muses::test::checked_allocate(size, 1); }
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t alignment) {
    return muses::test::checked_allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
