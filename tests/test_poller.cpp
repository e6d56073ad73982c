#include "muses/net/poller.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "tests/support/poller_contract.hpp"

MUSES_POLLER_CONTRACT(muses::NativePoller, "poller");

#if defined(__linux__)
TEST_CASE("poller: epoll refuses regular files by name") {
    muses::EpollPoller poller;
    const muses::UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    REQUIRE(file);
    CHECK(muses::test::contract::apply_error(poller, muses::PollChange::Kind::Add, file.get(), muses::EventMask::Readable) ==
          std::errc::operation_not_permitted);
}
#endif
