// What a memory pool tells AddressSanitizer and LeakSanitizer: which bytes nobody may touch, and where pointers can live.
// Without AddressSanitizer all of it is nothing.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define MUSES_DETAIL_MEM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MUSES_DETAIL_MEM_ASAN 1
#endif
#endif

#if defined(MUSES_DETAIL_MEM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
/// For the function that looks at memory which may be poisoned, in order to tell what it is.
#define MUSES_DETAIL_NO_ASAN __attribute__((no_sanitize("address"), noinline))
#else
#define MUSES_DETAIL_NO_ASAN
#endif

namespace muses::detail {

/// From now on a touch of these bytes is reported.
inline void poison(const void* begin, std::size_t bytes) noexcept {
#if defined(MUSES_DETAIL_MEM_ASAN)
    __asan_poison_memory_region(begin, bytes);
#else
    (void)begin, (void)bytes;
#endif
}

inline void unpoison(const void* begin, std::size_t bytes) noexcept {
#if defined(MUSES_DETAIL_MEM_ASAN)
    __asan_unpoison_memory_region(begin, bytes);
#else
    (void)begin, (void)bytes;
#endif
}

/// Mapped memory is no place where the leak checker looks for pointers by itself.
inline void may_hold_pointers(const void* begin, std::size_t bytes) noexcept {
#if defined(MUSES_DETAIL_MEM_ASAN)
    __lsan_register_root_region(begin, bytes);
#else
    (void)begin, (void)bytes;
#endif
}

inline void holds_no_pointers(const void* begin, std::size_t bytes) noexcept {
#if defined(MUSES_DETAIL_MEM_ASAN)
    __lsan_unregister_root_region(begin, bytes);
#else
    (void)begin, (void)bytes;
#endif
}

}  // namespace muses::detail
