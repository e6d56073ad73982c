#if defined(__linux__)
// No kqueue here: an emulation stands in, whose comment says what that proves.
#include "support/kqueue_on_epoll/sys/event.h"
#endif

#include "muses/net/kqueue_poller.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#if defined(EV_SET)
#include "tests/support/poller_contract.hpp"

MUSES_POLLER_CONTRACT(muses::KqueuePoller, "kqueue_poller");
#endif
