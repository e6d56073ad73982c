// Readiness of file descriptors: the vocabulary (poll_event.hpp) and the backend of this system under one name.
//
// MUSES_USE_KQUEUE, defined alike in all of a program, takes the kqueue backend on Linux too, where one is provided (libkqueue,
// the tests' emulation).
#pragma once

#include "muses/net/poll_event.hpp"

#if defined(__linux__) && !defined(MUSES_USE_KQUEUE)
#include "muses/net/epoll_poller.hpp"
#else
#include "muses/net/kqueue_poller.hpp"
#endif

namespace muses {

#if defined(__linux__) && !defined(MUSES_USE_KQUEUE)
using NativePoller = EpollPoller;
#else
using NativePoller = KqueuePoller;
#endif

}  // namespace muses
