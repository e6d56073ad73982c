// What every Poller promises, as tests: MUSES_POLLER_CONTRACT(Type, "prefix") makes one case of each function below.
#pragma once

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "muses/net/poll_event.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/sockets.hpp"

namespace muses::test::contract {

using namespace std::chrono_literals;
using Kind = PollChange::Kind;
using std::chrono::steady_clock;

inline constexpr EventMask kBoth = EventMask::Readable | EventMask::Writable;

/// Events of one wait.
template <Poller P>
std::vector<PollEvent> events(P& poller, std::optional<std::chrono::nanoseconds> timeout = 0ns, std::size_t room = 64) {
    std::vector<PollEvent> out(room);
    const auto got = poller.wait(out, timeout);
    REQUIRE(got.has_value());
    out.resize(*got);
    return out;
}

/// What has become of `fd`: the bits of all its events until `wanted` are among them, or for five seconds.
template <Poller P>
EventMask await(P& poller, int fd, EventMask wanted) {
    EventMask seen = EventMask::None;
    const auto deadline = steady_clock::now() + 5s;
    while ((seen & wanted) != wanted && steady_clock::now() < deadline)
        for (const PollEvent& event : events(poller, 100ms))
            if (event.fd == fd) seen |= event.mask;
    return seen;
}

template <Poller P>
void apply_ok(P& poller, Kind kind, int fd, EventMask interest = EventMask::None, std::uint64_t userdata = 0) {
    const PollChange change{kind, fd, interest, userdata};
    const auto result = poller.apply({&change, 1});
    REQUIRE_MESSAGE(result.has_value(), result.error().code.message());
}

template <Poller P>
std::error_code apply_error(P& poller, Kind kind, int fd, EventMask interest = EventMask::None) {
    const PollChange change{kind, fd, interest, 0};
    const auto result = poller.apply({&change, 1});
    return result ? std::error_code{} : result.error().code;
}

template <Poller P>
void one_event_for_each_edge() {
    P poller;
    const FdPair pair = socket_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Readable, 77);
    CHECK(events(poller).empty());
    write_all(pair.b.get(), "x");
    const auto first = events(poller, 5s);
    REQUIRE(first.size() == 1);
    CHECK(first[0].fd == pair.a.get());
    CHECK(first[0].userdata == 77);
    CHECK(first[0].mask == EventMask::Readable);
    CHECK(events(poller).empty());  // not read, and yet not reported again
    write_all(pair.b.get(), "y");
    CHECK(events(poller, 5s).size() == 1);  // new bytes are a new edge
    CHECK(events(poller).empty());
    CHECK(drain(pair.a.get()) == "xy");
    CHECK(events(poller).empty());
}

template <Poller P>
void what_is_ready_before_the_registration_is_reported() {
    P poller;
    const FdPair pair = socket_pair();
    write_all(pair.b.get(), "x");
    apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Readable);
    CHECK(await(poller, pair.a.get(), EventMask::Readable) == EventMask::Readable);
}

template <Poller P>
void a_drained_peer_makes_a_writable_edge() {
    P poller;
    const FdPair pair = socket_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Writable);
    CHECK(await(poller, pair.a.get(), EventMask::Writable) == EventMask::Writable);
    CHECK(events(poller).empty());
    fill(pair.a.get());
    CHECK(events(poller).empty());
    drain(pair.b.get());
    CHECK(await(poller, pair.a.get(), EventMask::Writable) == EventMask::Writable);
}

template <Poller P>
void both_directions_of_one_descriptor_come_in_one_event() {
    P poller;
    const FdPair pair = socket_pair();
    write_all(pair.b.get(), "x");
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth, 5);
    const auto first = events(poller, 5s);
    REQUIRE(first.size() == 1);
    CHECK(first[0].mask == kBoth);
    CHECK(first[0].userdata == 5);
    CHECK(events(poller).empty());
    drain(pair.a.get());
    write_all(pair.b.get(), "y");
    const auto second = events(poller, 5s);
    REQUIRE(second.size() == 1);
    CHECK(has(second[0].mask, EventMask::Readable));
}

template <Poller P>
void a_half_closed_peer_is_told_and_can_still_be_written_to() {
    P poller;
    const FdPair pair = socket_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth);
    await(poller, pair.a.get(), EventMask::Writable);
    write_all(pair.b.get(), "last");
    REQUIRE(::shutdown(pair.b.get(), SHUT_WR) == 0);
    const EventMask seen = await(poller, pair.a.get(), EventMask::Readable | EventMask::PeerClosed);
    CHECK(has(seen, EventMask::Readable));
    CHECK(has(seen, EventMask::PeerClosed));
    CHECK_FALSE(has(seen, EventMask::Error));
    CHECK(drain(pair.a.get()) == "last");
    write_all(pair.a.get(), "answer");
    CHECK(drain(pair.b.get()) == "answer");
}

template <Poller P>
void an_own_half_close_is_no_peer_closed() {
    P poller;
    const FdPair pair = tcp_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth);
    await(poller, pair.a.get(), EventMask::Writable);
    REQUIRE(::shutdown(pair.a.get(), SHUT_WR) == 0);
    write_all(pair.b.get(), "x");
    const EventMask seen = await(poller, pair.a.get(), EventMask::Readable);
    CHECK(has(seen, EventMask::Readable));
    CHECK_FALSE(has(seen, EventMask::PeerClosed));
}

template <Poller P>
void a_reset_is_told() {
    P poller;
    FdPair pair = tcp_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth);
    await(poller, pair.a.get(), EventMask::Writable);
    const linger at_once{1, 0};
    REQUIRE(::setsockopt(pair.b.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    pair.b.reset();
    const EventMask seen = await(poller, pair.a.get(), EventMask::Readable | EventMask::PeerClosed | EventMask::Error);
    CHECK(has(seen, EventMask::Readable));
    CHECK(has(seen, EventMask::PeerClosed));
    CHECK(has(seen, EventMask::Error));
    char byte = 0;
    CHECK(::read(pair.a.get(), &byte, 1) == -1);
    CHECK(errno == ECONNRESET);
}

template <Poller P>
void the_reader_of_a_pipe_learns_that_the_writer_is_gone() {
    P poller;
    FdPair pipe = pipe_pair();
    apply_ok(poller, Kind::Add, pipe.a.get(), EventMask::Readable);
    CHECK(events(poller).empty());
    pipe.b.reset();
    const EventMask wanted = EventMask::Readable | EventMask::PeerClosed;
    CHECK((await(poller, pipe.a.get(), wanted) & wanted) == wanted);
}

template <Poller P>
void a_writer_learns_that_the_reader_is_gone() {
    P poller;
    FdPair pipe = pipe_pair();
    fill(pipe.b.get());
    apply_ok(poller, Kind::Add, pipe.b.get(), EventMask::Writable);
    CHECK(events(poller).empty());
    pipe.a.reset();
    const auto seen = events(poller, 5s);
    REQUIRE(seen.size() == 1);
    CHECK(has(seen[0].mask, EventMask::Writable | EventMask::Error));
}

template <Poller P>
void connections_are_readiness_too() {
    P poller;
    const TCPListener listener("127.0.0.1", 0);
    const int lfd = listener.get_listener().value();
    apply_ok(poller, Kind::Add, lfd, EventMask::Readable);
    const UniqueFd client = connect_nonblocking(listener.local_endpoint().value()).value();
    apply_ok(poller, Kind::Add, client.get(), EventMask::Writable);
    EventMask seen_listener = EventMask::None;
    EventMask seen_client = EventMask::None;
    const auto deadline = steady_clock::now() + 5s;
    while ((!has(seen_listener, EventMask::Readable) || !has(seen_client, EventMask::Writable)) && steady_clock::now() < deadline)
        for (const PollEvent& event : events(poller, 100ms)) (event.fd == lfd ? seen_listener : seen_client) |= event.mask;
    CHECK(seen_listener == EventMask::Readable);
    CHECK(seen_client == EventMask::Writable);
    CHECK(accept_nonblocking(lfd).has_value());
    CHECK_FALSE(take_socket_error(client.get()));
}

template <Poller P>
void a_bad_descriptor_amid_a_batch_is_named_and_the_others_applied() {
    P poller;
    FdPair closed = socket_pair();
    const FdPair one = socket_pair();
    FdPair two = socket_pair();
    const int bad = closed.a.get();  // below the others, so within whatever table of numbers the backend has
    closed.a.reset();
    const std::array changes{PollChange{Kind::Add, one.a.get(), EventMask::Readable, 1}, PollChange{Kind::Add, bad, kBoth, 2},
                             PollChange{Kind::Add, two.a.get(), kBoth, 3}, PollChange{Kind::Modify, two.b.get(), kBoth, 4},
                             PollChange{Kind::Add, bad, EventMask::Readable, 5}};
    std::array<std::error_code, 5> errors{};
    errors[0] = std::make_error_code(std::errc::io_error);  // what was there before is overwritten
    const auto result = poller.apply(changes, errors);
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().index == 1);
    CHECK(result.error().code == std::errc::bad_file_descriptor);
    CHECK_FALSE(errors[0]);
    CHECK(errors[1] == std::errc::bad_file_descriptor);
    CHECK_FALSE(errors[2]);
    CHECK(errors[3] == std::errc::no_such_file_or_directory);
    CHECK(errors[4] == std::errc::bad_file_descriptor);
    write_all(one.b.get(), "x");
    write_all(two.b.get(), "y");
    std::map<std::uint64_t, EventMask> seen;
    for (const PollEvent& event : events(poller, 5s)) seen[event.userdata] |= event.mask;
    CHECK(seen.size() == 2);
    CHECK(seen[1] == EventMask::Readable);
    CHECK(seen[3] == kBoth);
    // Nothing of the failed one has stayed, for whoever gets its number.
    REQUIRE(move_to(two.b, bad));
    CHECK(apply_error(poller, Kind::Modify, bad, kBoth) == std::errc::no_such_file_or_directory);
    CHECK(apply_error(poller, Kind::Remove, bad) == std::errc::no_such_file_or_directory);
}

template <Poller P>
void long_batches_keep_their_order_and_name_the_right_one() {
    P poller;
    constexpr std::size_t kPairs = 150;
    std::vector<FdPair> pairs;
    std::vector<PollChange> changes;
    for (std::size_t i = 0; i < kPairs; ++i) {
        pairs.push_back(socket_pair());
        const int fd = pairs.back().a.get();
        changes.push_back({Kind::Add, fd, kBoth, 1000 + i});
        changes.push_back({Kind::Modify, fd, EventMask::Readable, i});
        if (i == 120) changes.push_back({Kind::Remove, pairs.back().b.get(), EventMask::None, 0});
    }
    std::vector<std::error_code> errors(changes.size());
    const auto result = poller.apply(changes, errors);
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().index == 242);
    CHECK(std::count_if(errors.begin(), errors.end(), [](std::error_code e) { return static_cast<bool>(e); }) == 1);
    CHECK(events(poller, 0ns, 512).empty());
    for (const FdPair& pair : pairs) write_all(pair.b.get(), "x");
    std::vector<int> seen(kPairs);
    for (const PollEvent& event : events(poller, 5s, 512)) {
        CHECK(event.mask == EventMask::Readable);
        REQUIRE(event.userdata < kPairs);
        ++seen[event.userdata];
        CHECK(event.fd == pairs[event.userdata].a.get());
    }
    CHECK(std::count(seen.begin(), seen.end(), 1) == kPairs);
}

template <Poller P>
void impossible_changes_fail() {
    P poller;
    const FdPair pair = socket_pair();
    CHECK(apply_error(poller, Kind::Add, -1, kBoth) == std::errc::bad_file_descriptor);
    CHECK(apply_error(poller, Kind::Add, 0x7ffffff0, kBoth) == std::errc::bad_file_descriptor);
    CHECK(apply_error(poller, Kind::Modify, pair.a.get(), kBoth) == std::errc::no_such_file_or_directory);
    CHECK(apply_error(poller, Kind::Remove, pair.a.get()) == std::errc::no_such_file_or_directory);
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth);
    apply_ok(poller, Kind::Remove, pair.a.get());
    CHECK(apply_error(poller, Kind::Remove, pair.a.get()) == std::errc::no_such_file_or_directory);
    CHECK(apply_error(poller, Kind::Modify, pair.a.get(), kBoth) == std::errc::no_such_file_or_directory);
    CHECK(events(poller).empty());
    CHECK_FALSE(poller.wait({}, 0ns).has_value());
    CHECK(poller.apply({}).has_value());
}

template <Poller P>
void a_change_of_interest_arms_again() {
    P poller;
    const FdPair pair = socket_pair();
    const int fd = pair.a.get();
    apply_ok(poller, Kind::Add, fd, EventMask::Readable, 1);
    write_all(pair.b.get(), "x");
    CHECK(events(poller, 5s).size() == 1);
    CHECK(events(poller).empty());
    apply_ok(poller, Kind::Modify, fd, EventMask::Readable, 2);  // the same interest
    const auto again = events(poller, 5s);
    REQUIRE(again.size() == 1);
    CHECK(again[0].userdata == 2);
    CHECK(again[0].mask == EventMask::Readable);
    apply_ok(poller, Kind::Modify, fd, EventMask::Writable, 3);
    const auto writable = events(poller, 5s);
    REQUIRE(writable.size() == 1);
    CHECK(writable[0].mask == EventMask::Writable);
    CHECK(writable[0].userdata == 3);
    write_all(pair.b.get(), "y");
    for (const PollEvent& event : events(poller)) CHECK_FALSE(has(event.mask, EventMask::Readable));
    apply_ok(poller, Kind::Modify, fd, EventMask::None, 4);
    write_all(pair.b.get(), "z");
    CHECK(events(poller).empty());
    apply_ok(poller, Kind::Modify, fd, kBoth, 5);
    const auto both = events(poller, 5s);
    REQUIRE(both.size() == 1);
    CHECK(both[0].mask == kBoth);
    CHECK(both[0].userdata == 5);
    CHECK(drain(fd) == "xyz");
}

template <Poller P>
void adding_again_replaces() {
    P poller;
    const FdPair pair = socket_pair();
    write_all(pair.b.get(), "x");
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth, 1);
    apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Readable, 2);
    const auto seen = events(poller, 5s);
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].userdata == 2);
    CHECK(seen[0].mask == EventMask::Readable);
}

template <Poller P>
void all_bits_of_the_userdata_come_back() {
    P poller;
    for (const std::uint64_t userdata :
         {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63U, std::uint64_t{0x123456789abcdef0}}) {
        const FdPair pair = socket_pair();
        apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Writable, userdata);
        const auto seen = events(poller, 5s);
        REQUIRE(seen.size() == 1);
        CHECK(seen[0].userdata == userdata);
    }
}

template <Poller P>
void what_is_removed_is_silent() {
    P poller;
    const FdPair pair = socket_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), kBoth, 1);
    write_all(pair.b.get(), "x");
    apply_ok(poller, Kind::Remove, pair.a.get());
    CHECK(events(poller).empty());
    write_all(pair.b.get(), "y");
    CHECK(events(poller).empty());
    apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Readable, 2);
    const auto seen = events(poller, 5s);
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].userdata == 2);
}

template <Poller P>
void a_reused_number_gets_only_its_own_events() {
    for (const bool removed : {true, false}) {
        CAPTURE(removed);
        P poller;
        FdPair old = socket_pair();
        FdPair fresh = socket_pair();
        const int number = old.a.get();
        apply_ok(poller, Kind::Add, number, kBoth, 1);
        write_all(old.b.get(), "x");
        if (removed) apply_ok(poller, Kind::Remove, number);
        old.a.reset();
        REQUIRE(move_to(fresh.a, number));
        apply_ok(poller, Kind::Add, number, EventMask::Readable, 2);
        CHECK(events(poller).empty());
        write_all(fresh.b.get(), "y");
        const auto seen = events(poller, 5s);
        REQUIRE(seen.size() == 1);
        CHECK(seen[0].userdata == 2);
        CHECK(seen[0].fd == number);
        CHECK(seen[0].mask == EventMask::Readable);
    }
}

template <Poller P>
void a_duplicate_that_lives_on_does_not_speak_for_a_reused_number() {
    P poller;
    FdPair old = socket_pair();
    FdPair fresh = socket_pair();
    const int number = old.a.get();
    const UniqueFd duplicate(::dup(number));
    apply_ok(poller, Kind::Add, number, EventMask::Readable, 1);
    old.a.reset();  // without Remove: with epoll, the duplicate keeps the registration alive
    REQUIRE(move_to(fresh.a, number));
    apply_ok(poller, Kind::Add, number, EventMask::Readable, 2);
    write_all(old.b.get(), "x");
    CHECK(events(poller).empty());
    write_all(fresh.b.get(), "y");
    const auto seen = events(poller, 5s);
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].userdata == 2);
}

template <Poller P>
void closing_watched_descriptors_disturbs_nobody() {
    P poller;
    const FdPair stays = socket_pair();
    apply_ok(poller, Kind::Add, stays.a.get(), EventMask::Readable, 1);
    for (int i = 0; i < 100; ++i) {
        FdPair goes = socket_pair();
        apply_ok(poller, Kind::Add, goes.a.get(), kBoth, 2);
        write_all(goes.b.get(), "x");
        goes.a.reset();
        for (const PollEvent& event : events(poller)) CHECK(event.userdata == 1);
        write_all(stays.b.get(), "x");
        const auto seen = events(poller, 5s);
        REQUIRE(seen.size() == 1);
        CHECK(seen[0].userdata == 1);
    }
}

template <Poller P>
void more_ready_descriptors_than_room_all_get_their_turn() {
    P poller;
    constexpr std::size_t kPairs = 60;
    constexpr std::size_t kRoom = 4;
    std::vector<FdPair> pairs;
    for (std::size_t i = 0; i < kPairs; ++i) {
        pairs.push_back(socket_pair());
        apply_ok(poller, Kind::Add, pairs.back().a.get(), EventMask::Readable, i);
    }
    for (const FdPair& pair : pairs) write_all(pair.b.get(), "x");
    std::vector<int> seen(kPairs);
    for (int wait = 0; wait < 60; ++wait) {  // 4 times as many as the quiet ones need
        const auto some = events(poller, 0ns, kRoom);
        CHECK(some.size() <= kRoom);
        for (const PollEvent& event : some) {
            ++seen[event.userdata];
            write_all(pairs[event.userdata].b.get(), "x");  // those who were served come back at once
        }
    }
    CHECK(*std::min_element(seen.begin(), seen.end()) >= 1);
}

template <Poller P>
void both_directions_get_their_turn_with_little_room() {
    P poller;
    std::vector<FdPair> pairs;
    for (std::size_t i = 0; i < 20; ++i) {
        pairs.push_back(socket_pair());
        write_all(pairs.back().b.get(), "x");
        apply_ok(poller, Kind::Add, pairs.back().a.get(), kBoth, i);
    }
    std::vector<EventMask> seen(pairs.size());
    for (int wait = 0; wait < 40; ++wait)
        for (const PollEvent& event : events(poller, 0ns, 3)) seen[event.userdata] |= event.mask;
    for (const EventMask mask : seen) CHECK(mask == kBoth);
    CHECK(events(poller).empty());
}

template <Poller P>
void timeouts_are_never_early() {
    P poller;
    for (const std::chrono::nanoseconds timeout : {std::chrono::nanoseconds(1), std::chrono::nanoseconds(300us),
                                                   std::chrono::nanoseconds(1ms), std::chrono::nanoseconds(20ms + 1ns)}) {
        const auto begin = steady_clock::now();
        CHECK(events(poller, timeout).empty());
        CHECK(steady_clock::now() - begin >= timeout);
    }
    // Not at all, which a signal or a slow machine cannot tell from a short while: that these return is what is tested.
    CHECK(events(poller, 0ns).empty());
    CHECK(events(poller, -1ns).empty());
    CHECK(events(poller, std::chrono::nanoseconds::min()).empty());
}

template <Poller P>
void endless_and_huge_timeouts_end_with_a_wakeup() {
    P poller;
    const std::optional<std::chrono::nanoseconds> timeouts[] = {std::nullopt, std::chrono::nanoseconds::max(),
                                                                std::chrono::hours(24 * 400)};
    for (const auto& timeout : timeouts) {
        std::thread waker([&] {
            std::this_thread::sleep_for(5ms);  // most likely during the wait; either way it must end
            poller.wakeup();
        });
        CHECK(events(poller, timeout).empty());
        waker.join();
    }
}

template <Poller P>
void a_wakeup_before_the_wait_counts_and_does_not_stay() {
    P poller;
    errno = 1234;
    for (int i = 0; i < 1000; ++i) poller.wakeup();
    CHECK(errno == 1234);
    CHECK(events(poller).empty());  // takes all of them
    const auto begin = steady_clock::now();
    CHECK(events(poller, 30ms).empty());
    CHECK(steady_clock::now() - begin >= 30ms);
    poller.wakeup();
    CHECK(events(poller, std::nullopt).empty());  // returns
}

template <Poller P>
void a_wakeup_does_not_hide_events() {
    P poller;
    const FdPair pair = socket_pair();
    apply_ok(poller, Kind::Add, pair.a.get(), EventMask::Readable, 9);
    poller.wakeup();
    write_all(pair.b.get(), "x");
    std::vector<PollEvent> all;
    for (int wait = 0; wait < 3; ++wait)
        for (const PollEvent& event : events(poller, 0ns, 1)) all.push_back(event);  // room for one of the two
    REQUIRE(all.size() == 1);
    CHECK(all[0].userdata == 9);
}

template <Poller P>
void no_wakeup_is_lost() {
    P poller;
    constexpr int kThreads = 2;
    const int rounds = stress_rounds(10'000);
    std::array<std::atomic<int>, kThreads> asked{};
    std::array<std::atomic<int>, kThreads> answered{};
    std::atomic<bool> given_up{false};
    std::vector<std::thread> wakers;
    for (std::size_t t = 0; t < kThreads; ++t)
        wakers.emplace_back([&, t] {
            for (int i = 1; i <= rounds / kThreads && !given_up; ++i) {
                asked[t] = i;
                poller.wakeup();
                while (answered[t] != i && !given_up) std::this_thread::yield();
            }
        });
    int done = 0;
    while (done < kThreads) {
        const auto begin = steady_clock::now();
        std::array<PollEvent, 4> out;
        if (!poller.wait(out, 20s).has_value()) break;
        if (steady_clock::now() - begin >= 20s) break;  // nobody woke us, though somebody always has asked
        done = 0;
        for (std::size_t t = 0; t < kThreads; ++t) {
            answered[t] = asked[t].load();
            done += answered[t] == rounds / kThreads ? 1 : 0;
        }
    }
    given_up = done < kThreads;
    for (std::thread& waker : wakers) waker.join();
    CHECK_FALSE(given_up);
}

template <Poller P>
void a_signal_ends_the_wait_without_an_error() {
    struct sigaction action{};
    struct sigaction before{};
    action.sa_handler = [](int) {};
    REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
    P poller;
    std::atomic<bool> returned{false};
    const pthread_t waiting = ::pthread_self();
    std::thread sender([&] {
        while (!returned) {
            ::pthread_kill(waiting, SIGUSR1);
            std::this_thread::sleep_for(1ms);
        }
    });
    std::array<PollEvent, 4> out;
    const auto got = poller.wait(out, 20s);
    returned = true;
    sender.join();
    ::sigaction(SIGUSR1, &before, nullptr);
    REQUIRE(got.has_value());
    CHECK(*got == 0);
}

}  // namespace muses::test::contract

#define MUSES_POLLER_CASE(Type, name, function) \
    TEST_CASE(name) { muses::test::contract::function<Type>(); }

#define MUSES_POLLER_CONTRACT(Type, prefix)                                                                                      \
    MUSES_POLLER_CASE(Type, prefix ": one event for each edge", one_event_for_each_edge)                                         \
    MUSES_POLLER_CASE(Type, prefix ": what is ready before the registration is reported",                                        \
                      what_is_ready_before_the_registration_is_reported)                                                         \
    MUSES_POLLER_CASE(Type, prefix ": a drained peer makes a writable edge", a_drained_peer_makes_a_writable_edge)               \
    MUSES_POLLER_CASE(Type, prefix ": both directions of one descriptor come in one event",                                      \
                      both_directions_of_one_descriptor_come_in_one_event)                                                       \
    MUSES_POLLER_CASE(Type, prefix ": a half-closed peer is told and can still be written to",                                   \
                      a_half_closed_peer_is_told_and_can_still_be_written_to)                                                    \
    MUSES_POLLER_CASE(Type, prefix ": an own half close is no PeerClosed", an_own_half_close_is_no_peer_closed)                  \
    MUSES_POLLER_CASE(Type, prefix ": a reset is told", a_reset_is_told)                                                         \
    MUSES_POLLER_CASE(Type, prefix ": the reader of a pipe learns that the writer is gone",                                      \
                      the_reader_of_a_pipe_learns_that_the_writer_is_gone)                                                       \
    MUSES_POLLER_CASE(Type, prefix ": a writer learns that the reader is gone", a_writer_learns_that_the_reader_is_gone)         \
    MUSES_POLLER_CASE(Type, prefix ": connections are readiness too", connections_are_readiness_too)                             \
    MUSES_POLLER_CASE(Type, prefix ": a bad descriptor amid a batch is named and the others are applied",                        \
                      a_bad_descriptor_amid_a_batch_is_named_and_the_others_applied)                                             \
    MUSES_POLLER_CASE(Type, prefix ": long batches keep their order and name the right one",                                     \
                      long_batches_keep_their_order_and_name_the_right_one)                                                      \
    MUSES_POLLER_CASE(Type, prefix ": impossible changes fail", impossible_changes_fail)                                         \
    MUSES_POLLER_CASE(Type, prefix ": a change of interest arms again", a_change_of_interest_arms_again)                         \
    MUSES_POLLER_CASE(Type, prefix ": adding again replaces", adding_again_replaces)                                             \
    MUSES_POLLER_CASE(Type, prefix ": all bits of the userdata come back", all_bits_of_the_userdata_come_back)                   \
    MUSES_POLLER_CASE(Type, prefix ": what is removed is silent", what_is_removed_is_silent)                                     \
    MUSES_POLLER_CASE(Type, prefix ": a reused number gets only its own events", a_reused_number_gets_only_its_own_events)       \
    MUSES_POLLER_CASE(Type, prefix ": a duplicate that lives on does not speak for a reused number",                             \
                      a_duplicate_that_lives_on_does_not_speak_for_a_reused_number)                                              \
    MUSES_POLLER_CASE(Type, prefix ": closing watched descriptors disturbs nobody", closing_watched_descriptors_disturbs_nobody) \
    MUSES_POLLER_CASE(Type, prefix ": more ready descriptors than room all get their turn",                                      \
                      more_ready_descriptors_than_room_all_get_their_turn)                                                       \
    MUSES_POLLER_CASE(Type, prefix ": both directions get their turn with little room",                                          \
                      both_directions_get_their_turn_with_little_room)                                                           \
    MUSES_POLLER_CASE(Type, prefix ": timeouts are never early", timeouts_are_never_early)                                       \
    MUSES_POLLER_CASE(Type, prefix ": endless and huge timeouts end with a wakeup", endless_and_huge_timeouts_end_with_a_wakeup) \
    MUSES_POLLER_CASE(Type, prefix ": a wakeup before the wait counts and does not stay",                                        \
                      a_wakeup_before_the_wait_counts_and_does_not_stay)                                                         \
    MUSES_POLLER_CASE(Type, prefix ": a wakeup does not hide events", a_wakeup_does_not_hide_events)                             \
    MUSES_POLLER_CASE(Type, prefix ": no wakeup is lost", no_wakeup_is_lost)                                                     \
    MUSES_POLLER_CASE(Type, prefix ": a signal ends the wait without an error", a_signal_ends_the_wait_without_an_error)         \
    static_assert(muses::Poller<Type>, "every backend meets the concept")
