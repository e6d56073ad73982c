// One shard of a server of whole messages: an event loop, the connections on it, and the workers that answer for it.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/duration.hpp"
#include "muses/net/acceptor.hpp"
#include "muses/net/connection.hpp"
#include "muses/net/connection_counts.hpp"
#include "muses/net/event_loop.hpp"
#include "muses/net/framing.hpp"
#include "muses/net/handler.hpp"
#include "muses/net/outbox.hpp"
#include "muses/net/reactor_options.hpp"
#include "muses/net/socket.hpp"
#include "muses/net/transport.hpp"
#include "muses/net/unique_fd.hpp"
#include "muses/thread_pool.hpp"

namespace muses {

template <Transport T, MessageFramer F>
class BasicReactor;

namespace detail {

/// What the reactors of one pool have in common.
template <Transport T, MessageFramer F>
struct ReactorGroup {
    ReactorGroup(std::unique_ptr<MessageHandler> h, ReactorOptions o, std::size_t size)
        : handler(std::move(h)), options(std::move(o)), counts(std::make_shared<ConnectionCounts>(size)) {
        validate(options);
    }

    std::unique_ptr<MessageHandler> handler;
    ReactorOptions options;
    std::shared_ptr<ConnectionCounts> counts;
    std::vector<BasicReactor<T, F>*> members;  // complete before the first of them runs; empty when there is but one
};

/// The group that the calling thread runs handlers for, as a reactor's thread or as a worker; none: null.
inline const void*& group_of_this_thread() noexcept {
    thread_local const void* group = nullptr;
    return group;
}

/// Throws std::invalid_argument when `fd` is not a socket that listens.
inline void require_listening(int fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
        throw std::invalid_argument("muses::Reactor: descriptor " + std::to_string(fd) + " is not a listening socket");
}

/// Passes what was thrown to the hook, or to standard error where there is none. What the hook throws ends up there too.
inline void report_exception(const ReactorOptions& options, std::exception_ptr error) noexcept {
    try {
        if (options.on_exception) return options.on_exception(std::move(error));
        std::rethrow_exception(std::move(error));
    } catch (const std::exception& e) {
        std::fprintf(stderr, "muses::Reactor: %s\n", e.what());
    } catch (...) {
        std::fprintf(stderr, "muses::Reactor: an exception of unknown type\n");
    }
}

}  // namespace detail

/// What: serves the connections of its listening sockets on one event loop: framing, handler, answers in order, deadlines, limits.
/// Complexity: O(1) amortised work of its own a message; an inline answer allocates nothing here beyond what the payload holds.
/// Threads: run() on one thread; stop(), stats() and live() on any. The handler runs on the reactor's thread or on its workers.
/// Lifetime: the listening sockets belong to the caller and must outlive run(); the reactor must outlive run() and serves once.
/// Limits: ReactorOptions. A handler that never returns keeps run() from returning.
template <Transport T, MessageFramer F>
class BasicReactor final : private detail::ConnectionHost, private detail::AcceptSink, private EventLoop::TurnHook {
    using Connection = detail::Connection<T, F>;
    using ConnectionId = detail::ConnectionId;
    using Group = detail::ReactorGroup<T, F>;
    using Stat = detail::Stat;

public:
    /// Throws std::invalid_argument for an option that cannot be meant, std::system_error when the system refuses a thread or a poller.
    template <Handler H>
    BasicReactor(int listener, H on_message, std::size_t workers = 0, ReactorOptions limits = {})
        : BasicReactor(
              std::make_shared<Group>(std::make_unique<detail::MessageHandlerFor<H>>(std::move(on_message)), std::move(limits), 1),
              0, {listener}, workers) {}

    /// The `index`th member of a group; the group's `members` are filled in by its owner.
    BasicReactor(std::shared_ptr<Group> group, std::size_t index, const std::vector<int>& listeners, std::size_t workers)
        : detail::ConnectionHost(group->options, *group->handler),
          group_(std::move(group)),
          index_(index),
          outbox_(options.outbox_capacity) {
        detail::AcceptSink& sink = *this;  // a private base: the conversion is ours to make
        for (const int listener : listeners) {
            prepare(listener);
            acceptors_.push_back(std::make_unique<detail::Acceptor>(loop, listener, sink));
        }
        if (workers > 0) {
            ThreadPoolOptions pool;
            pool.name = options.thread_name + "-" + std::to_string(index) + "w";
            pool.on_start = [id = group_.get()](std::size_t) { detail::group_of_this_thread() = id; };
            workers_.emplace(workers, std::move(pool));
        }
    }

    BasicReactor(const BasicReactor&) = delete;
    BasicReactor& operator=(const BasicReactor&) = delete;
    ~BasicReactor() = default;

    /// Serves until stop() has been called and obeyed. Returns at once when it has been before.
    void run() {
        const void* const outer = std::exchange(detail::group_of_this_thread(), group_.get());
        for (auto& acceptor : acceptors_) acceptor->start();
        loop.at_turn_end(*this);
        loop.run();
        detail::group_of_this_thread() = outer;
        if (workers_) {
            workers_->stop_discarding();
            workers_.reset();  // waits for the handlers that are running; their answers go nowhere
        }
        close_all();
        closed_.clear();
    }

    /// Any thread, returns at once: accepts no more, answers on each connection the message in flight or begun, closes what is idle; after `deadline` closes
    /// what is left, and run() returns. A second call can shorten the deadline. The listening sockets listen no more after it.
    void stop(std::chrono::milliseconds deadline = std::chrono::seconds(10)) {
        loop.post([this, deadline] { drain(deadline); });
    }

    /// Any thread.
    [[nodiscard]] ReactorStats stats() const {
        ReactorStats sums;
        add_to(sums);
        return sums;
    }

    /// Any thread: adds this reactor's counts to `sums`.
    void add_to(ReactorStats& sums) const {
        detail::ConnectionHost::stats.add_to(sums);
        sums.connections.push_back(live());
    }

    /// Any thread: connections that this reactor serves, and those on their way to it.
    [[nodiscard]] std::size_t live() const noexcept { return group_->counts->of[index_].load(std::memory_order_relaxed); }

private:
    static constexpr int kLastAccepts = 4096;  // taken from each listening socket when it is about to close

    struct Place {
        std::unique_ptr<Connection> connection;
        std::uint32_t generation = 0;
        detail::Seat seat;  // none: over the limit, being told so
    };

    struct Completion {
        ConnectionId id;
        std::optional<HandlerResult> result;  // none: the handler threw
    };

    static void prepare(int listener) {
        detail::require_listening(listener);
        ::fcntl(listener, F_SETFL, ::fcntl(listener, F_GETFL) | O_NONBLOCK);
        set_nodelay(listener);  // where accepted sockets inherit it, this saves a call for each; no harm to other kinds of socket
    }

    // --- accepting -------------------------------------------------------------------------------------------------------------

    void accepted(UniqueFd fd) override {
        count(Stat::Accepted);
        detail::Seat seat = detail::Seat::take(group_->counts, index_, options.max_connections);
        if (!seat) {
            count(Stat::OverLimit);
            if (refusing_ < max_refusing()) return adopt(std::move(fd), {});
            // Too many are being told so already. These words may be lost in a reset, when the client has sent something.
            const std::string words = F::refusal(Refusal::Overloaded);
            const iovec piece{const_cast<char*>(words.data()), words.size()};
            static_cast<void>(T().write(fd.get(), {&piece, 1}, false));
            return count(Stat::Closed);
        }
        if (!draining && group_->members.size() > 1) {
            if (const std::size_t better = seat.better_member(); better != index_) {
                seat.move_to(better);
                if (group_->members[better]->give(fd, seat)) return count(Stat::HandedOver);
                seat.move_to(index_);
            }
        }
        adopt(std::move(fd), std::move(seat));
    }

    /// Another reactor's thread: leaves a connection here. False, with nothing taken, when this reactor is stopping: then whoever
    /// accepted it keeps it, so that no connection is left between two reactors.
    bool give(UniqueFd& fd, detail::Seat& seat) {
        {
            const std::lock_guard lock(arrivals_mutex_);
            if (arrivals_closed_) return false;
            arrivals_.emplace_back(std::move(fd), std::move(seat));
            if (arrivals_.size() > 1) return true;  // who left the first one has seen to it
        }
        loop.post([this] { take_arrivals(false); });
        return true;
    }

    void take_arrivals(bool last) {
        std::vector<std::pair<UniqueFd, detail::Seat>> arrivals;
        {
            const std::lock_guard lock(arrivals_mutex_);
            arrivals.swap(arrivals_);
            if (last) arrivals_closed_ = true;
        }
        for (auto& [fd, seat] : arrivals) adopt(std::move(fd), std::move(seat));
    }

    void adopt(UniqueFd fd, detail::Seat seat) {
        detail::ConnectionHost& host = *this;
        Connection* connection = nullptr;
        try {
            const std::uint32_t index = unused_place();
            Place& place = places_[index];
            place.connection = std::make_unique<Connection>(host, ConnectionId{index, place.generation}, std::move(fd));
            free_.pop_back();
            ++open_;
            if (!seat) ++refusing_;
            place.seat = std::move(seat);
            connection = place.connection.get();
            if (place.seat)
                connection->open();
            else
                connection->open_refused(Refusal::Overloaded);
            if (draining && place.connection) place.connection->drain();
        } catch (...) {
            report(std::current_exception());
            if (connection != nullptr)
                connection->close();
            else
                count(Stat::Closed);
        }
    }

    /// How many connections over the limit may be open meanwhile, to be told so in good order: a small part of the limit, but never
    /// so few that a client which closes and comes back finds its own last connection in the way.
    [[nodiscard]] std::size_t max_refusing() const noexcept {
        const std::size_t in_all = std::min<std::size_t>(256, 16 + options.max_connections / 8);
        return std::max<std::size_t>(4, in_all / group_->counts->of.size());
    }

    /// The index of an unused place, which stays the last of free_.
    std::uint32_t unused_place() {
        if (free_.empty()) {
            free_.reserve(places_.size() + 1);  // so that closed() never allocates
            closed_.reserve(places_.size() + 1);
            places_.emplace_back();
            free_.push_back(static_cast<std::uint32_t>(places_.size() - 1));
        }
        return free_.back();
    }

    void accept_paused(std::error_code) override { count(Stat::AcceptPauses); }

    void accept_failed(std::error_code why) override {
        report(std::make_exception_ptr(std::system_error(why, "a listening socket has failed, nothing more is accepted from it")));
    }

    // --- connections -----------------------------------------------------------------------------------------------------------

    Connection* find(ConnectionId id) noexcept {
        Place& place = places_[id.place];
        return place.generation == id.generation ? place.connection.get() : nullptr;
    }

    [[nodiscard]] bool has_workers() const noexcept override { return workers_.has_value(); }

    void run_on_worker(ConnectionId id, Blocking work) override {
        workers_->post([this, id, job = std::move(work)]() mutable {
            Completion done{id, std::nullopt};
            try {
                done.result = std::exchange(job, {})();
            } catch (...) {
                report(std::current_exception());
            }
            const auto put = outbox_.put(std::move(done));
            if (put.overflowed) detail::ConnectionHost::stats.add(Stat::OutboxOverflows);
            if (put.wake) loop.wakeup();
        });
    }

    void on_turn_end() override {
        outbox_.drain([this](Completion done) {
            if (Connection* connection = find(done.id))
                connection->answer(std::move(done.result));
            else
                count(Stat::OrphanedAnswers);
        });
        closed_.clear();
    }

    void resume_later(ConnectionId id) override {
        resumed_.push_back(id);
        if (resumed_.size() > 1) return;
        loop.post([this] {
            for (const ConnectionId next : std::exchange(resumed_, {}))
                if (Connection* connection = find(next)) connection->resume();
        });
    }

    void closed(ConnectionId id) noexcept override {
        Place& place = places_[id.place];
        closed_.push_back(std::move(place.connection));  // destroyed later: its member functions are still on the stack
        ++place.generation;
        free_.push_back(id.place);
        if (!place.seat) --refusing_;
        place.seat = {};
        --open_;
        count(Stat::Closed);
        if (draining && open_ == 0) loop.stop();
    }

    void report(std::exception_ptr error) noexcept override { detail::report_exception(options, std::move(error)); }

    void count(Stat stat) noexcept { detail::ConnectionHost::stats.add_owned(stat); }

    // --- stopping --------------------------------------------------------------------------------------------------------------

    void drain(std::chrono::milliseconds deadline) {
        const auto until = detail::deadline_after(deadline);
        if (std::exchange(draining, true)) {
            if (until < force_at_) arm_force(until);
            return;
        }
        for (auto& acceptor : acceptors_) {
            const int listener = acceptor->listener();
            acceptor->finish(kLastAccepts);
            // The socket is the caller's, who may keep it open until stop() returns: whoever connects now must be refused, not left to hang.
            if (listener >= 0) ::shutdown(listener, SHUT_RDWR);
        }
        take_arrivals(true);
        for (Place& place : places_)
            if (place.connection) place.connection->drain();
        if (open_ == 0) return loop.stop();
        arm_force(until);
    }

    void arm_force(EventLoop::Clock::time_point until) {
        force_at_ = until;
        loop.arm(force_, until == EventLoop::Clock::time_point::max() ? EventLoop::Clock::duration::max()
                                                                      : until - EventLoop::Clock::now());
    }

    void force() {
        for (Place& place : places_)
            if (place.connection && place.connection->busy()) count(Stat::ForcedCloses);
        close_all();
        loop.stop();
    }

    void close_all() noexcept {
        for (Place& place : places_)
            if (place.connection) place.connection->close();
    }

    std::shared_ptr<Group> group_;
    std::size_t index_;
    detail::Outbox<Completion> outbox_;
    std::vector<Place> places_;
    std::vector<std::uint32_t> free_;                  // unused places
    std::vector<std::unique_ptr<Connection>> closed_;  // destroyed at the end of the turn
    std::vector<ConnectionId> resumed_;                // go on in the next turn
    std::size_t open_ = 0;                             // places in use
    std::size_t refusing_ = 0;                         // of these, without a seat
    std::vector<std::unique_ptr<detail::Acceptor>> acceptors_;
    std::mutex arrivals_mutex_;  // guards the two below; taken once for a connection that is handed over
    std::vector<std::pair<UniqueFd, detail::Seat>> arrivals_;
    bool arrivals_closed_ = false;
    EventLoop::Timer force_ = EventLoop::Timer::calling<&BasicReactor::force>(*this);
    EventLoop::Clock::time_point force_at_ = EventLoop::Clock::time_point::max();
    std::optional<ThreadPool> workers_;  // last: joined before anything that its jobs touch is gone
};

}  // namespace muses
