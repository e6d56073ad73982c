// A server of whole messages on several threads: bytes in, a handler, bytes out.
//
//   muses::TCPListener listener("127.0.0.1", 8080);
//   muses::ReactorPool pool(*listener.get_listener(), [](std::string_view message) -> muses::HandlerResult { ... }, 4, 2);
//   pool.start();
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "muses/detail/this_thread.hpp"
#include "muses/net/basic_reactor.hpp"
#include "muses/net/http_framing.hpp"
#include "muses/net/socket.hpp"

namespace muses {

/// What: N reactors, each on a thread of its own. On Linux each listens on its own SO_REUSEPORT socket of the same address, made
///       from the caller's; elsewhere, and where the caller's socket does not allow it, they share the caller's. A connection goes
///       to the reactor that has fewest and stays there for life.
/// Complexity: that of BasicReactor; nothing is shared on the path of a message but the limit on connections.
/// Threads: stats() on any thread, start() and stop() on any but the handler's.
/// Lifetime: the listening sockets belong to the caller and must outlive stop(). The destructor stops with the default deadline.
/// Limits: ReactorOptions; serves once: a stopped pool does not start again.
template <Transport T, MessageFramer F>
class BasicReactorPool {
    using Member = BasicReactor<T, F>;
    using Group = detail::ReactorGroup<T, F>;

public:
    static constexpr std::chrono::milliseconds kDefaultDeadline{10'000};

    /// Acquires nothing yet. `shards` = 0 means one for each processor that the process may use; `workers_per_shard` = 0 means that
    /// the handler runs on the reactors' threads. Throws std::invalid_argument for a socket or an option that cannot be meant.
    template <Handler H>
    BasicReactorPool(int listener, H handler, std::size_t shards = 0, std::size_t workers_per_shard = 0,
                     ReactorOptions options = {})
        : BasicReactorPool(std::vector<int>{listener}, std::move(handler), shards, workers_per_shard, std::move(options)) {}

    template <Handler H>
    BasicReactorPool(std::vector<int> listeners, H handler, std::size_t shards = 0, std::size_t workers_per_shard = 0,
                     ReactorOptions options = {})
        : listeners_(std::move(listeners)),
          shards_(shards != 0 ? shards : detail::usable_processors()),
          workers_(workers_per_shard),
          group_(std::make_shared<Group>(std::make_unique<detail::MessageHandlerFor<H>>(std::move(handler)), std::move(options),
                                         shards_)) {
        if (listeners_.empty()) throw std::invalid_argument("muses::ReactorPool: no listening socket was given");
        for (const int listener : listeners_) detail::require_listening(listener);
        if (shards_ > kMaxShards)
            throw std::invalid_argument("muses::ReactorPool: " + std::to_string(shards_) + " shards are more than 1024");
    }

    BasicReactorPool(const BasicReactorPool&) = delete;
    BasicReactorPool& operator=(const BasicReactorPool&) = delete;
    ~BasicReactorPool() { stop(); }

    /// Begins to serve and returns. Throws std::system_error when the system refuses a socket, a poller or a thread (nothing is left
    /// running then), std::logic_error when the pool was started or stopped before.
    void start() {
        const std::lock_guard lifecycle(lifecycle_mutex_);
        if (state_ != State::New) throw std::logic_error("muses::ReactorPool::start: a pool starts once");
        try {
            std::vector<std::unique_ptr<Member>> members;
            for (std::size_t i = 0; i < shards_; ++i)
                members.push_back(std::make_unique<Member>(group_, i, sockets_of(i), workers_));
            for (const auto& member : members) group_->members.push_back(member.get());
            {
                const std::lock_guard lock(members_mutex_);
                members_ = std::move(members);
            }
            for (std::size_t i = 0; i < shards_; ++i) threads_.emplace_back([this, i] { serve(i); });
        } catch (...) {
            stop_members(std::chrono::milliseconds(0));
            state_ = State::Stopped;
            throw;
        }
        state_ = State::Started;
    }

    /// Accepts no more, answers on each connection the message in flight or begun (not those pipelined behind it), closes what is idle; after `deadline` closes what is left; waits for it all,
    /// and for handlers that are still running. The listening sockets listen no more after it. Later calls return when it is done.
    /// Called by a handler it throws std::logic_error: it would wait for itself.
    void stop(std::chrono::milliseconds deadline = kDefaultDeadline) {
        if (detail::group_of_this_thread() == group_.get())
            throw std::logic_error("muses::ReactorPool::stop: called on one of the pool's own threads");
        const std::lock_guard lifecycle(lifecycle_mutex_);
        if (std::exchange(state_, State::Stopped) == State::Started) stop_members(deadline);
    }

    /// Sums over all shards; any thread, also the handler's, and also after stop().
    [[nodiscard]] ReactorStats stats() const {
        const std::lock_guard lock(members_mutex_);
        ReactorStats sums;
        for (const auto& member : members_) member->add_to(sums);
        return sums;
    }

    /// How many reactors there are.
    [[nodiscard]] std::size_t shards() const noexcept { return shards_; }

private:
    static constexpr std::size_t kMaxShards = 1024;
    enum class State { New, Started, Stopped };

    /// The sockets that shard `i` listens on: the caller's for the first one, its own siblings of them for the others.
    std::vector<int> sockets_of(std::size_t i) {
        std::vector<int> sockets;
        for (const int listener : listeners_) {
            int socket = listener;
#if defined(__linux__)
            if (i > 0) {
                if (auto sibling = sibling_listener(listener)) {
                    siblings_.push_back(std::move(*sibling));
                    socket = siblings_.back().get();
                }
            }
#endif
            sockets.push_back(socket);
        }
        return sockets;
    }

    void serve(std::size_t i) {
        detail::name_this_thread(group_->options.thread_name + "-" + std::to_string(i));
        try {
            members_[i]->run();
        } catch (...) {
            detail::report_exception(group_->options, std::current_exception());
        }
    }

    void stop_members(std::chrono::milliseconds deadline) {
        for (const auto& member : members_) member->stop(deadline);
        for (auto& thread : threads_) thread.join();
        threads_.clear();
        siblings_.clear();
    }

    std::vector<int> listeners_;
    std::size_t shards_;
    std::size_t workers_;
    std::shared_ptr<Group> group_;
    std::mutex lifecycle_mutex_;        // held by start() and stop() to their end
    mutable std::mutex members_mutex_;  // never held while waiting: a handler may ask for stats() while stop() waits for it
    State state_ = State::New;
    std::vector<UniqueFd> siblings_;
    std::vector<std::unique_ptr<Member>> members_;  // set once, destroyed with the pool
    std::vector<std::thread> threads_;
};

/// The reactors that are meant when nothing else is said: plain sockets, HTTP/1 framing.
using Reactor = BasicReactor<PlainTransport, HttpFramer>;
using ReactorPool = BasicReactorPool<PlainTransport, HttpFramer>;

}  // namespace muses
