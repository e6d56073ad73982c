// One connection of a reactor, from accept to close: reads messages, has them answered in order, and sends the answers.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/net/event_loop.hpp"
#include "muses/net/framing.hpp"
#include "muses/net/handler.hpp"
#include "muses/net/reactor_options.hpp"
#include "muses/net/send_queue.hpp"
#include "muses/net/transport.hpp"
#include "muses/net/unique_fd.hpp"

namespace muses::detail {

/// Names a connection for as long as it lives; an id of a connection that died names nobody, also when its place was reused.
struct ConnectionId {
    std::uint32_t place = 0;
    std::uint32_t generation = 0;
};

/// What a connection needs of the reactor that owns it. But for `stats`, all of it belongs to the reactor's thread.
class ConnectionHost {
public:
    const ReactorOptions& options;
    MessageHandler& handler;
    EventLoop loop;
    StatCounters stats;
    std::array<char, std::size_t{64} * 1024> read_buffer;  ///< shared by all connections: an idle one holds no buffer
    bool draining = false;  ///< the reactor is stopping: answer what is in flight or has begun to arrive, then close

    /// True when there are workers to give work to.
    [[nodiscard]] virtual bool has_workers() const noexcept = 0;

    /// Has `work` run by a worker; what it returns comes back through Connection::answer.
    virtual void run_on_worker(ConnectionId id, Blocking work) = 0;

    /// Calls Connection::resume in the next turn of the loop.
    virtual void resume_later(ConnectionId id) = 0;

    /// The connection has closed its descriptor. It is destroyed at the end of this turn, not inside the call.
    virtual void closed(ConnectionId id) noexcept = 0;

    virtual void report(std::exception_ptr error) noexcept = 0;

protected:
    ConnectionHost(const ReactorOptions& o, MessageHandler& h) : options(o), handler(h) {}
    ~ConnectionHost() = default;
};

/// What: the state of one connection, driven by readiness, answers from workers, and one deadline.
/// Complexity: amortised O(bytes); a request that arrives whole and is answered inline costs one read and one write.
/// Threads: the reactor's thread only.
/// Lifetime: owned by its reactor; closes its descriptor once.
/// Limits: ReactorOptions.
///
/// Interest never changes after registration: the descriptor is watched for both directions, edge-triggered, and the flags
/// read_ready_ and write_ready_ remember an edge until the system call that says EAGAIN.
template <Transport T, MessageFramer F>
class Connection final : public EventLoop::IoHandler {
public:
    Connection(ConnectionHost& host, ConnectionId id, UniqueFd fd) : host_(host), id_(id), fd_(std::move(fd)) {}

    /// Begins to serve.
    void open() {
        handle_ = host_.loop.watch(fd_.get(), EventMask::Readable | EventMask::Writable, *this);
        wait_for(Wait::Head, host_.options.head_timeout);
    }

    /// Begins with a refusal instead, and closes after it.
    void open_refused(Refusal why) {
        handle_ = host_.loop.watch(fd_.get(), EventMask::Readable | EventMask::Writable, *this);
        refuse(why);
        go_on();
    }

    void on_io(EventMask ready) override {
        if (has(ready, EventMask::Error)) return close();
        if (has(ready, EventMask::PeerClosed)) peer_closing_ = true;
        if (has(ready, EventMask::Readable | EventMask::PeerClosed)) read_ready_ = true;
        if (has(ready, EventMask::Writable)) write_ready_ = true;
        go_on();
    }

    /// The answer to the message in flight; without one, the handler has thrown.
    void answer(std::optional<HandlerResult> result) {
        in_flight_ = false;
        go_on([&] { take(std::move(result)); });
    }

    /// Goes on after a turn's budget was spent.
    void resume() {
        resuming_ = false;
        go_on();
    }

    /// The reactor has begun to stop: what is in flight or has begun to arrive is still answered, an idle connection closes.
    void drain() {
        read_ready_ = true;  // a request may lie unread in the kernel
        go_on();
    }

    /// Closes at once, whatever is unsent.
    void close() noexcept {
        if (!fd_) return;
        host_.loop.cancel(deadline_);
        host_.loop.forget(handle_);
        fd_.reset();
        host_.closed(id_);
    }

    /// True while a message is being answered or an answer is being sent.
    [[nodiscard]] bool busy() const noexcept { return in_flight_ || !unsent_.empty(); }

private:
    /// What the deadline stands for.
    enum class Wait : std::uint8_t { Nothing, Head, Body, Idle, Write, Linger };

    static constexpr int kReadsPerTurn = 16;                                 // then the other connections have their turn
    static constexpr std::uint64_t kBytesPerTurn = std::uint64_t{4} << 20U;  // likewise for writing
    static constexpr std::size_t kKeptInput = 512;                           // capacity that an empty input buffer may keep

    [[nodiscard]] bool may_serve() const noexcept {
        return !in_flight_ && !closing_ && unsent_.unsent() <= host_.options.high_water_bytes;
    }

    /// Every way into the connection passes here. What fails within, which is memory, costs this connection and no other.
    void go_on() {
        go_on([] {});
    }

    template <class First>
    void go_on(First&& first) {
        try {
            first();
            pump();
        } catch (...) {
            host_.report(std::current_exception());
            close();
        }
    }

    void resume_later() {
        if (!std::exchange(resuming_, true)) host_.resume_later(id_);
    }

    /// Does everything that can be done now: serve what is buffered, send, read on; until each of them waits for something.
    void pump() {
        if (lingering_) return discard();
        int reads = kReadsPerTurn;
        std::uint64_t writable = kBytesPerTurn;
        for (;;) {
            if (!input_.empty() && !examined_ && may_serve()) {
                const std::size_t used = serve(input_);
                input_.erase(0, used);
            }
            if (!send(writable)) return;
            if (!input_.empty() && !examined_ && may_serve()) continue;
            if (!read_ready_ || peer_eof_ || !may_serve()) break;
            if (reads-- == 0 || writable == 0) {
                resume_later();
                break;
            }
            if (!read()) return;
        }
        settle();
    }

    /// Reads once and serves what came. False when the connection is closed.
    bool read() {
        const IoResult got = transport_.read(fd_.get(), host_.read_buffer);
        if (got.would_block()) {
            read_ready_ = false;
            return true;
        }
        if (!got.ok()) {
            close();
            return false;
        }
        if (got.bytes == 0) {
            peer_eof_ = true;
            read_ready_ = false;
            return true;
        }
        // A short read has emptied the socket, and the next byte makes a new edge; unless the end is near, which makes none.
        if (T::kShortReadDrains && got.bytes < host_.read_buffer.size() && !peer_closing_) read_ready_ = false;
        host_.stats.add_owned(Stat::BytesRead, got.bytes);
        if (wait_ == Wait::Body) wait_ = Wait::Nothing;  // progress: the deadline starts anew

        const std::string_view bytes(host_.read_buffer.data(), got.bytes);
        if (!input_.empty()) {
            input_.append(bytes);
            examined_ = false;
            return true;
        }
        const std::size_t used = serve(bytes);
        input_.assign(bytes.substr(used));
        return true;
    }

    /// Serves the messages at the front of `bytes`; returns how many bytes they took. Sets examined_ when the rest waits for more.
    std::size_t serve(std::string_view bytes) {
        std::size_t used = 0;
        examined_ = false;
        while (used < bytes.size() && may_serve()) {
            const FrameStep step = framer_.next(bytes.substr(used), host_.options.message);
            switch (step.kind) {
                case FrameStep::Kind::NeedMore:
                    if (!step.interim.empty()) unsent_.push(std::string(step.interim));
                    in_body_ = step.head_complete;
                    examined_ = true;
                    return used;
                case FrameStep::Kind::Refused:
                    host_.stats.add_owned(Stat::RefusedMessages);
                    refuse(step.why);
                    return bytes.size();
                case FrameStep::Kind::Complete:
                    framer_.reset();
                    in_body_ = false;
                    wait_ = Wait::Nothing;  // the next message has a deadline of its own
                    host_.stats.add_owned(Stat::Messages);
                    dispatch(bytes.substr(used, step.size));
                    used += step.size;
                    break;
            }
        }
        return closing_ ? bytes.size() : used;
    }

    void dispatch(std::string_view message) {
        if (host_.has_workers() && !host_.handler.is_inline()) {
            in_flight_ = true;
            return host_.run_on_worker(
                id_, [&handler = host_.handler, copy = std::string(message)] { return complete(handler.call(copy)); });
        }
        std::optional<HandlerResult> result;
        try {
            InlineResult answered = host_.handler.call(message);
            auto* const work = std::get_if<Blocking>(&answered);
            if (work != nullptr && !*work) throw std::logic_error("a handler returned an empty Blocking");
            if (work != nullptr && host_.has_workers()) {
                in_flight_ = true;
                return host_.run_on_worker(id_, std::move(*work));
            }
            result = complete(std::move(answered));
        } catch (...) {
            if (in_flight_) throw;  // not the handler's: the work could not be given away
            host_.report(std::current_exception());
        }
        take(std::move(result));
    }

    /// The answer itself: work that was handed back to be run elsewhere is run here, where there is no elsewhere.
    static HandlerResult complete(InlineResult answered) {
        if (auto* work = std::get_if<Blocking>(&answered)) return (*work)();
        return std::get<HandlerResult>(std::move(answered));
    }

    void take(std::optional<HandlerResult> result) {
        if (!result) {
            host_.stats.add(Stat::HandlerFailures);
            return refuse(Refusal::HandlerFailed);
        }
        unsent_.push(std::move(result->response));
        if (!result->keep_alive || host_.draining) closing_ = true;
    }

    void refuse(Refusal why) {
        unsent_.push(F::refusal(why));
        closing_ = true;
    }

    /// Sends what the socket takes. False when the connection is closed.
    bool send(std::uint64_t& budget) {
        if (unsent_.empty() || !write_ready_) return true;
        std::uint64_t written = 0;
        const FlushResult result = unsent_.flush(transport_, fd_.get(), budget, written);
        budget -= std::min(budget, written);
        host_.stats.add_owned(Stat::BytesWritten, written);
        if (written > 0 && wait_ == Wait::Write) wait_ = Wait::Nothing;  // progress: the deadline starts anew
        if (result == FlushResult::Failed) {
            close();
            return false;
        }
        if (result == FlushResult::Blocked) write_ready_ = false;
        if (result == FlushResult::Yielded) resume_later();
        return true;
    }

    /// Nothing more can be done now: decide what the connection waits for, and until when.
    void settle() {
        if (input_.empty() && input_.capacity() > kKeptInput) std::string().swap(input_);
        if (!unsent_.empty()) return wait_for(Wait::Write, host_.options.write_timeout);
        if (closing_) return linger();
        if (in_flight_) return wait_for(Wait::Nothing, {});
        if (peer_eof_) return close();  // what is left of a message will never be whole
        if (!input_.empty())
            return in_body_ ? wait_for(Wait::Body, host_.options.body_timeout) : wait_for(Wait::Head, host_.options.head_timeout);
        if (host_.draining) return close();
        if (wait_ == Wait::Head) return;  // new, and silent so far
        wait_for(Wait::Idle, host_.options.idle_timeout);
    }

    void wait_for(Wait what, std::chrono::milliseconds how_long) {
        if (wait_ == what && what != Wait::Nothing) return;
        wait_ = what;
        if (what == Wait::Nothing)
            host_.loop.cancel(deadline_);
        else
            host_.loop.arm_at(deadline_, deadline_after(how_long, host_.loop.now()));
    }

    void on_deadline() {
        switch (std::exchange(wait_, Wait::Nothing)) {
            case Wait::Nothing: return;
            case Wait::Head:
                host_.stats.add_owned(Stat::HeadTimeouts);
                if (input_.empty()) return close();
                return go_on([this] { refuse(Refusal::HeadTimeout); });
            case Wait::Body: host_.stats.add_owned(Stat::BodyTimeouts); return go_on([this] { refuse(Refusal::BodyTimeout); });
            case Wait::Idle: host_.stats.add_owned(Stat::IdleTimeouts); return close();
            case Wait::Write: host_.stats.add_owned(Stat::WriteTimeouts); return close();
            case Wait::Linger: return close();
        }
    }

    /// The last answer is out. Closing with unread bytes in the kernel would send a reset, which may destroy the answer before the
    /// peer has read it (RFC 9112 section 9.6): shut the writing side, and read until the peer closes, within limits.
    void linger() {
        input_.clear();
        if (peer_eof_) return close();
        transport_.shutdown_write(fd_.get());
        lingering_ = true;
        wait_for(Wait::Linger, host_.options.linger_timeout);
        read_ready_ = true;
        discard();
    }

    void discard() {
        while (read_ready_) {
            const IoResult got = transport_.read(fd_.get(), host_.read_buffer);
            if (got.would_block()) {
                read_ready_ = false;
                return;
            }
            discarded_ += got.bytes;
            if (!got.ok() || got.bytes == 0 || discarded_ > host_.options.linger_bytes) return close();
        }
    }

    ConnectionHost& host_;
    ConnectionId id_;
    UniqueFd fd_;
    EventLoop::IoHandle handle_;
    EventLoop::Timer deadline_ = EventLoop::Timer::calling<&Connection::on_deadline>(*this);
    SendQueue unsent_;
    std::string input_;  // bytes of messages not yet served
    std::size_t discarded_ = 0;
    [[no_unique_address]] T transport_;
    F framer_;
    Wait wait_ = Wait::Nothing;
    bool read_ready_ = false;    // an edge came and no read has said EAGAIN since
    bool write_ready_ = true;    // likewise for writing; a new socket has room
    bool peer_closing_ = false;  // the peer has shut its side; there may be bytes before the end
    bool peer_eof_ = false;      // and the end was read
    bool in_flight_ = false;     // a worker makes the answer to the last message
    bool closing_ = false;       // no further message is served; close when all is sent
    bool lingering_ = false;     // all is sent; waiting for the peer to close
    bool resuming_ = false;      // resume() will be called
    bool examined_ = false;      // the framer has seen all of input_ and wants more
    bool in_body_ = false;       // of the message that has begun in input_, the head is whole
};

}  // namespace muses::detail
