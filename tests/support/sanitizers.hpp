// MUSES_TEST_TSAN is defined under ThreadSanitizer: where clang does not let operator new be replaced, and everything is slow.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define MUSES_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MUSES_TEST_TSAN 1
#endif
#endif
