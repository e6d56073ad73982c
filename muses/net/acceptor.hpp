// Takes new connections from one listening socket.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <system_error>
#include <utility>

#include "muses/net/event_loop.hpp"
#include "muses/net/socket.hpp"
#include "muses/net/unique_fd.hpp"

namespace muses::detail {

/// What an acceptor does with what it finds. Called on the loop's thread.
class AcceptSink {
public:
    virtual void accepted(UniqueFd fd) = 0;

    /// The process or the system is out of descriptors or memory: accepting rests for a moment.
    virtual void accept_paused(std::error_code why) = 0;

    /// The listening socket itself is unusable: nothing more will be accepted from it.
    virtual void accept_failed(std::error_code why) = 0;

protected:
    ~AcceptSink() = default;
};

/// What: accepts until the kernel has no more, a batch at a time so that established connections have their turn.
/// Complexity: one system call a connection and one more an edge.
/// Threads: the loop's thread only.
/// Lifetime: does not own the listening socket.
/// Limits: kBatch connections a turn; after EMFILE and its kind, one attempt every kPause instead of a busy loop.
class Acceptor final : private EventLoop::IoHandler {
public:
    Acceptor(EventLoop& loop, int listener, AcceptSink& sink) : loop_(loop), sink_(sink), listener_(listener) {}
    Acceptor(const Acceptor&) = delete;
    Acceptor& operator=(const Acceptor&) = delete;
    ~Acceptor() { stop(); }

    void start() {
        if (listener_ >= 0) handle_ = loop_.watch(listener_, EventMask::Readable, *this);
    }

    /// Accepts what is already waiting in the kernel, up to `most`, and nothing after that.
    void finish(int most) {
        if (listener_ < 0) return;
        accept_up_to(most);
        stop();
    }

    [[nodiscard]] int listener() const noexcept { return listener_; }

private:
    static constexpr int kBatch = 64;
    static constexpr std::chrono::milliseconds kPause{50};

    void stop() noexcept {
        if (std::exchange(listener_, -1) < 0) return;
        loop_.cancel(again_);
        loop_.unwatch(handle_);
    }

    void on_io(EventMask) override { go_on(); }

    void go_on() {
        if (accept_up_to(kBatch)) loop_.arm(again_, std::chrono::milliseconds(0));
    }

    /// True when `most` were accepted and there may be more.
    bool accept_up_to(int most) {
        for (int i = 0; i < most; ++i) {
            auto fd = accept_nonblocking(listener_);
            if (fd) {
                sink_.accepted(std::move(*fd));
                if (listener_ < 0) return false;
                continue;
            }
            switch (fd.error().value()) {
                case EAGAIN:
#if EWOULDBLOCK != EAGAIN
                case EWOULDBLOCK:
#endif
                    return false;
                case EMFILE:
                case ENFILE:
                case ENOBUFS:
                case ENOMEM:
                    sink_.accept_paused(fd.error());
                    loop_.arm(again_, kPause);
                    return false;
                case EBADF:
                case EINVAL:
                case ENOTSOCK:
                case EOPNOTSUPP: {
                    const std::error_code why = fd.error();
                    stop();
                    sink_.accept_failed(why);
                    return false;
                }
                default:
                    break;  // the connection died in the queue (accept(2) lists the errors of the network): the next one, please
            }
        }
        return true;
    }

    EventLoop& loop_;
    AcceptSink& sink_;
    int listener_;
    EventLoop::IoHandle handle_;
    EventLoop::Timer again_ = EventLoop::Timer::calling<&Acceptor::go_on>(*this);
};

}  // namespace muses::detail
