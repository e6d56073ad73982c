// The event loop's tests once more, over the kqueue backend; see kqueue_on_epoll for what that proves on Linux.
#if defined(__linux__)
#define MUSES_USE_KQUEUE 1
#include "support/kqueue_on_epoll/sys/event.h"
#endif

#include "test_event_loop.cpp"
