// What the operations of connections, listeners and connecting sockets have in common.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/detail/event_mask.hpp"
#include "muses/net/event_loop.hpp"
#include "muses/net/unique_fd.hpp"
#include "muses/task.hpp"

namespace muses::detail {

class SocketOperation;

/// A socket that is registered with a loop once, for both directions, and the two operations that may be under way on it.
class AsyncSocket final : private EventLoop::IoHandler {
public:
    /// `borrowed`: the descriptor stays somebody else's and is not closed.
    AsyncSocket(EventLoop& l, UniqueFd s, bool borrowed = false) noexcept : loop(l), fd(std::move(s)), borrowed_(borrowed) {}
    AsyncSocket(const AsyncSocket&) = delete;
    AsyncSocket& operator=(const AsyncSocket&) = delete;
    ~AsyncSocket() { close(); }

    /// Ends what is under way with operation_canceled.
    inline void close() noexcept;

    /// From the first suspension on. Throws std::bad_alloc.
    void watch() {
        if (!handle_) handle_ = loop.watch(fd.get(), EventMask::Readable | EventMask::Writable, *this);
    }

    EventLoop& loop;
    UniqueFd fd;
    SocketOperation* reader = nullptr;
    SocketOperation* writer = nullptr;
    // What is known: nothing has been read (written) since the system last said that there is something to (room).
    bool readable = true;
    bool writable = true;
    bool peer_closed = false;  // what is left can be read without an event
    std::uint8_t at_once = 0;  // operations in a row that needed no wait

private:
    inline void on_io(EventMask ready) override;

    bool borrowed_;
    EventLoop::IoHandle handle_;
};

/// What: one read, write, accept or connect: tried at once, and then whenever the socket is ready, until it is done.
/// Complexity: no system call beyond those that move bytes; no allocation.
/// Threads: the loop's.
/// Lifetime: on the frame of the task that awaits it.
/// Limits: after kAtOnce operations that needed no wait, one lets the rest of the loop run first.
class SocketOperation : public TaskWaiter, private TaskTimer {
public:
    /// Called when the socket may be ready; true when the operation is over.
    using Attempt = bool (*)(SocketOperation&) noexcept;

    [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) {
        if (socket_ == nullptr || !socket_->fd) {
            error_ = std::make_error_code(std::errc::bad_file_descriptor);
            return false;
        }
        if (&scheduler().host() != &socket_->loop.tasks())
            throw std::logic_error("muses: the task does not run on the loop of the socket that it uses");
        SocketOperation*& place = reads_ ? socket_->reader : socket_->writer;
        if (place != nullptr) {
            error_ = std::make_error_code(std::errc::device_or_resource_busy);
            return false;
        }
        if (!enter_scope()) return false;
        const bool fair = socket_->at_once < kAtOnce;
        if (fair && possible() && attempt_(*this)) {
            ++socket_->at_once;
            set_outcome(WaitOutcome::Done);
            return false;
        }
        socket_->at_once = 0;
        socket_->watch();
        place = this;
        in_place_ = true;
        deadline_ = deadline_from_now(deadline_);
        again_ = !fair && possible();  // when the others have had their turn, as if an event had come
        arm(scheduler(), again_ ? SteadyTime::min() : deadline_);
        return true;
    }

    /// The socket may be ready.
    void go_on() noexcept {
        if (pending() && attempt_(*this)) end(WaitOutcome::Done);
    }

    /// The socket is being closed.
    void abort() noexcept {
        error_ = std::make_error_code(std::errc::operation_canceled);
        if (pending()) end(WaitOutcome::Done);
    }

protected:
    SocketOperation(AsyncSocket* socket, bool reads, Attempt attempt, SteadyTime duration) noexcept
        : TaskWaiter([](Cancellable& wait) noexcept {
              static_cast<SocketOperation&>(static_cast<TaskWaiter&>(wait)).end(WaitOutcome::Cancelled);
          }),
          TaskTimer([](TaskTimer& timer) noexcept { static_cast<SocketOperation&>(timer).on_timer(); }),
          socket_(socket),
          attempt_(attempt),
          deadline_(duration),
          reads_(reads) {}
    SocketOperation(SocketOperation&&) noexcept = default;
    ~SocketOperation() { leave(); }

    [[nodiscard]] AsyncSocket& socket() const noexcept { return *socket_; }

    /// A system call said that it would block: false, for the attempt is not over.
    bool not_now() noexcept {
        (reads_ ? socket_->readable : socket_->writable) = false;
        return false;
    }
    /// The attempt is over, by an error.
    bool fail_with(int error) noexcept {
        error_ = {error, std::system_category()};
        return true;
    }

    /// The end of every await_resume: the error, if there is one. Throws muses::cancelled.
    [[nodiscard]] std::error_code finish() {
        leave();
        throw_if_cancelled();
        if (outcome() == WaitOutcome::TimedOut) return std::make_error_code(std::errc::timed_out);
        return error_;
    }

private:
    static constexpr std::uint8_t kAtOnce = 32;

    [[nodiscard]] bool possible() const noexcept { return reads_ ? socket_->readable || socket_->peer_closed : socket_->writable; }

    void on_timer() noexcept {
        if (!std::exchange(again_, false)) return end(WaitOutcome::TimedOut);
        go_on();
        if (pending()) arm(scheduler(), deadline_);
    }

    void end(WaitOutcome outcome) noexcept {
        disarm();
        leave();
        complete(outcome);
    }

    // Touches the socket only while the socket knows this: it may be gone before the task goes on, before an operation that was never
    // awaited dies, and before one that was moved from does.
    void leave() noexcept {
        if (!std::exchange(in_place_, false)) return;
        (reads_ ? socket_->reader : socket_->writer) = nullptr;
    }

    AsyncSocket* socket_;
    Attempt attempt_;
    SteadyTime deadline_;  // before the suspension: how long it may last, counted from the clock's zero
    std::error_code error_;
    bool reads_;
    bool again_ = false;
    bool in_place_ = false;  // the socket's reader or writer
};

inline void AsyncSocket::close() noexcept {
    if (!fd) return;
    if (reader != nullptr) std::exchange(reader, nullptr)->abort();
    if (writer != nullptr) std::exchange(writer, nullptr)->abort();
    if (borrowed_) {
        loop.unwatch(handle_);
        (void)fd.release();
    } else {
        loop.forget(handle_);
        fd.reset();
    }
}

inline void AsyncSocket::on_io(EventMask ready) {
    at_once = 0;
    if (has(ready, EventMask::PeerClosed | EventMask::Error)) peer_closed = true;
    if (has(ready, EventMask::Readable | EventMask::PeerClosed | EventMask::Error)) {
        readable = true;
        if (reader != nullptr) reader->go_on();
    }
    if (has(ready, EventMask::Writable | EventMask::Error)) {
        writable = true;
        if (writer != nullptr) writer->go_on();
    }
}

}  // namespace muses::detail
