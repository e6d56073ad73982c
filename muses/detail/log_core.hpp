// The thread behind a logger: takes records from the ring in batches, and has them written.
//
// How a flush cannot be lost: it is not an element of the ring. flush() takes a ticket; the thread, once it has seen the ticket,
// takes as many records as the ring can hold, or finds the ring empty, whichever comes first. Either way every record that was in the
// ring when the ticket was drawn has been written or was evicted (and counted), whatever has been logged since.
//
// How the thread sleeps: after work it naps, for longer and longer, without anybody having to wake it, so that a burst of lines
// pays for no wake-up. Only after some idle milliseconds does it wait in the ring's wait_pop(), and the next line wakes it.
//
// How a child of fork() logs: the thread did not come along, and the ring may be in the middle of something. So the core stays as it
// is, for ever, and its first line in the child makes an heir: a new core that takes the sinks over. That they are whole, and hold no
// line of the parent, is what before_fork() waits for.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/cache_line.hpp"
#include "muses/detail/duration.hpp"
#include "muses/detail/log_fork.hpp"
#include "muses/detail/log_ring.hpp"
#include "muses/detail/log_sinks.hpp"
#include "muses/detail/log_writer.hpp"
#include "muses/detail/overflow_policy.hpp"
#include "muses/detail/stop_token.hpp"

namespace muses {

/// What became of the lines of a logger. Each number is exact by itself; after stop() lines logged = written + dropped.
struct LogStats {
    std::uint64_t written = 0;  ///< lines handed to the sinks
    std::uint64_t dropped =
        0;  ///< lines that no sink has seen: evicted, refused by a full ring, out of memory, or logged after stop()
    std::uint64_t sink_errors = 0;  ///< calls into a sink that threw, a full disk among them
};

namespace detail {

/// What: ring, thread and sinks of one logger.
/// Complexity: submit() is a push into the ring and a load.
/// Threads: any, except where said.
/// Lifetime: shared by the Logger and the thread, so that a sink may let go of the Logger it is called by.
/// Limits: the ring's capacity; kBatch records are taken out of it at a time.
class LogCore final : private ForkWatcher {
public:
    LogCore(std::size_t capacity, OverflowPolicy overflow) : capacity_(capacity), overflow_(overflow), ring_(capacity, overflow) {
        batch_.reserve(kBatch);
    }
    LogCore(const LogCore&) = delete;
    LogCore& operator=(const LogCore&) = delete;
    ~LogCore() { ForkWatch::remove(*this); }

    /// Starts the thread, once. It takes no signals of the process (a broken pipe is an error of a sink, not the end of the program).
    /// Throws std::system_error when the system refuses a thread.
    static void start(const std::shared_ptr<LogCore>& core) {
        ForkWatch::add(*core);
        sigset_t signals;
        sigset_t before;
        ::sigfillset(&signals);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF}) ::sigdelset(&signals, fault);
        ::pthread_sigmask(SIG_SETMASK, &signals, &before);
        // Not a std::thread: in a forked child its start-up data would be a leak that nobody can reach.
        core->self_ = core;
        const auto body = [](void* started) -> void* {
            const std::shared_ptr<LogCore> self = std::move(static_cast<LogCore*>(started)->self_);
            self->run();
            return nullptr;
        };
        const int error = ::pthread_create(&core->thread_, nullptr, body, core.get());
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (error != 0) {
            core->self_.reset();
            throw std::system_error(error, std::generic_category(), "muses::Logger: pthread_create");
        }
    }

    /// Takes a record; what is lost for it is counted.
    void submit(LogRecord&& record) noexcept {
        if (inherited()) [[unlikely]] {
            LogCore* const to = heir();
            return to != nullptr ? to->submit(std::move(record)) : count_lost(1);
        }
        const std::uint64_t lost = ring_.push(std::move(record), [this] { return can_wait(); });
        if (lost != 0) [[unlikely]]
            count_lost(lost);
        if (synchronous_.load(std::memory_order_relaxed)) [[unlikely]]
            flush_now();  // relaxed: no data goes with it
    }

    void count_lost(std::uint64_t lines) noexcept {
        dropped_.fetch_add(lines, std::memory_order_relaxed);
    }  // relaxed: guards nothing

    void add_sink(std::unique_ptr<LogSink> sink) {
        if (inherited()) {
            if (LogCore* const to = heir()) to->add_sink(std::move(sink));
            return;
        }
        const std::lock_guard lock(mutex_);
        new_sinks_.push_back(std::move(sink));
    }

    void reopen() {
        if (inherited()) {
            if (LogCore* const to = heir()) to->reopen();
            return;
        }
        const std::lock_guard lock(mutex_);
        reopen_ = true;
        call_thread();
    }

    /// False when the deadline came first, or on the logger's own thread, which cannot wait for itself.
    bool flush(SteadyTime deadline) {
        if (inherited()) {
            LogCore* const to = heir_.get();
            return to != nullptr ? to->flush(deadline) : heir_.pending();  // pending: nothing was logged in this process
        }
        if (on_own_thread()) return false;
        std::unique_lock lock(mutex_);
        const std::uint64_t ticket = ++flush_wanted_;
        call_thread();
        const auto done = [&] { return flushed_ >= ticket || ended_; };
        if (deadline != kNever) return changed_.wait_until(lock, deadline, done);
        changed_.wait(lock, done);
        return true;
    }

    /// Returns when everything that was logged before is written and the thread has ended; on the logger's own thread at once.
    void stop() {
        if (inherited()) {
            heir_.renounce();
            if (LogCore* const to = heir_.get()) to->stop();
            return;
        }
        bool join = false;
        {
            std::unique_lock lock(mutex_);
            stop_ = true;
            ring_.stop();
            call_thread();
            if (on_own_thread()) return;
            changed_.wait(lock, [&] { return ended_; });
            join = std::exchange(joinable_, false);
        }
        if (join) ::pthread_join(thread_, nullptr);
    }

    /// Lets the thread go its own way.
    void detach() {
        const std::lock_guard lock(mutex_);
        if (std::exchange(joinable_, false)) ::pthread_detach(thread_);
    }

    /// From now on each line is written before submit() returns, if that takes no longer than a second: for the last moments of the
    /// process, in which no later flush may come.
    void set_synchronous() noexcept {
        synchronous_.store(true, std::memory_order_relaxed);  // relaxed: no data goes with it
        if (!inherited()) return;
        if (LogCore* const to = heir_.get()) to->set_synchronous();
    }

    [[nodiscard]] LogStats stats() const noexcept {
        // Relaxed: counters, each exact by itself.
        LogStats sums{written_.load(std::memory_order_relaxed), dropped(), writer_.errors()};
        if (!inherited()) return sums;
        if (const LogCore* const to = heir_.get()) {
            const LogStats more = to->stats();
            sums.written += more.written;
            sums.dropped += more.dropped;
            sums.sink_errors += more.sink_errors;
        }
        return sums;
    }

    [[nodiscard]] bool on_own_thread() const noexcept { return current_ == this; }

    /// True in a child that fork() has made after the start.
    [[nodiscard]] bool inherited() const noexcept { return generation_ != ForkWatch::generation(); }

    /// For the owner of an inherited core: leaves it alone for good, since what it consists of is in use, by nobody. It stays
    /// reachable, so that no leak is reported.
    static void abandon(std::shared_ptr<LogCore> core) {
        static constinit std::atomic<Abandoned*> all{nullptr};
        auto* const node = new Abandoned{std::move(core), nullptr};
        node->next = all.load(std::memory_order_relaxed);  // relaxed: only a first guess for the exchange
        // Nobody follows the list; release and relaxed as for any push.
        while (!all.compare_exchange_weak(node->next, node, std::memory_order_release, std::memory_order_relaxed)) {}
    }

private:
    static constexpr std::size_t kBatch = 256;
    static constexpr std::chrono::microseconds kShortestNap{50};
    static constexpr std::chrono::microseconds kLongestNap{800};

    struct Abandoned {
        std::shared_ptr<LogCore> core;
        Abandoned* next;
    };

    // ---- around a fork ----

    void before_fork() noexcept override {
        heir_.before_fork(on_own_thread());
        mutex_.lock();
    }
    void after_fork(bool in_child) noexcept override {
        const bool may_inherit = !stop_;
        mutex_.unlock();
        heir_.after_fork(in_child, may_inherit);
    }

    /// In a child: the core that works in this process, made when there is none; null when there can be none.
    LogCore* heir() noexcept {
        return heir_.get([this] {
            auto made = std::make_shared<LogCore>(capacity_, overflow_);
            made->new_sinks_ = writer_.take();
            std::ranges::move(new_sinks_, std::back_inserter(made->new_sinks_));
            new_sinks_.clear();
            start(made);
            if (!joinable_) made->detach();
            if (synchronous_.load(std::memory_order_relaxed)) made->set_synchronous();  // relaxed: no data goes with it
            return made;
        });
    }

    // ---- on other threads ----

    /// Asked by the ring before it waits for room: whether somebody else will make it. If so, hurries the thread.
    bool can_wait() noexcept {
        if (on_own_thread() || inherited()) return false;
        const std::lock_guard lock(mutex_);
        call_thread();
        return true;
    }

    /// With mutex_ held: makes the thread look at its orders and at the ring, whether it naps or sleeps.
    void call_thread() noexcept {
        called_ = true;
        nap_over_.notify_one();
        sleep_.request_stop();
    }

    void flush_now() noexcept {
        try {
            flush(deadline_after(std::chrono::seconds(1)));
        } catch (...) {  // a mutex that failed: the line stays queued
        }
    }

    // ---- on the logger's own thread ----

    void run() noexcept {
        current_ = this;
        name_thread();
        // Ends when everything is refused and the ring is empty: then nothing can come any more. What settle() has taken is in the batch.
        for (bool stopping = false; !stopping || !ring_.empty() || !batch_.empty();) {
            std::size_t taken = 0;
            {
                const auto working = heir_.work();
                taken = batch_.size() + ring_.pop(batch_, kBatch - batch_.size());
                // After the pop, so that a line never misses a sink or a reopen that came before it.
                stopping = take_orders();
                deliver();
                complete_flush(taken);
            }
            settle(taken, stopping);
        }
        {
            const std::lock_guard lock(mutex_);
            ended_ = true;
        }
        changed_.notify_all();
        current_ = nullptr;
    }

    bool take_orders() noexcept {
        bool reopen = false;
        bool stopping = false;
        try {
            const std::lock_guard lock(mutex_);
            if (!new_sinks_.empty()) writer_.add(new_sinks_);
            reopen = std::exchange(reopen_, false);
            stopping = stop_;
            newest_ticket_ = flush_wanted_;
            if (sleep_.stop_requested()) sleep_ = stop_source();
        } catch (...) {  // no memory: tried again next time
        }
        if (reopen) writer_.reopen();
        return stopping;
    }

    /// Writes the batch, tells of losses, and flushes the sinks.
    void deliver() noexcept {
        for (const LogRecord& record : batch_) {
            if (writer_.write(record))
                written_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter guards nothing
            else
                count_lost(1);
        }
        const std::uint64_t lost = dropped();
        const bool told = lost != losses_told_ && writer_.write_loss(lost - losses_told_);
        if (told) losses_told_ = lost;  // else, without memory, with the next ones
        if (told || !batch_.empty()) writer_.flush();
        batch_.clear();
    }

    /// See the top of the file. `taken` records have left the ring since the last call, all of them delivered by now.
    void complete_flush(std::size_t taken) noexcept {
        if (ticket_in_work_ == ticket_done_) {
            if (newest_ticket_ == ticket_done_) return;
            ticket_in_work_ = newest_ticket_;  // seen just now: what counts is taken from here on
            still_to_take_ = capacity_;
        } else {
            still_to_take_ -= std::min(still_to_take_, taken);
        }
        if (still_to_take_ != 0 && !ring_.empty()) return;
        ticket_done_ = ticket_in_work_;
        {
            const std::lock_guard lock(mutex_);
            flushed_ = ticket_done_;
        }
        changed_.notify_all();
    }

    /// Naps or sleeps when there was nothing to do.
    void settle(std::size_t taken, bool stopping) noexcept {
        if (taken != 0) {
            nap_ = kShortestNap;
        } else if (!ring_.empty() || (!stopping && nap_ <= kLongestNap)) {
            // A ring that is not empty but gives nothing: a thread was interrupted in the middle of its push.
            nap(std::min(nap_, kLongestNap));
            nap_ = std::min(2 * nap_, 2 * kLongestNap);
        } else if (!stopping) {
            try {
                ring_.wait_pop(batch_, sleep_token());
            } catch (...) {  // no memory for the token's callback: naps go on
                nap(kLongestNap);
            }
            nap_ = kShortestNap;
        }
    }

    void nap(std::chrono::microseconds longest) {
        std::unique_lock lock(mutex_);
        nap_over_.wait_for(lock, longest, [&] { return called_; });
        called_ = false;
    }

    stop_token sleep_token() {
        const std::lock_guard lock(mutex_);
        return sleep_.get_token();
    }

    static void name_thread() noexcept {
#if defined(__linux__)
        ::pthread_setname_np(::pthread_self(), "muses-log");
#elif defined(__APPLE__)
        ::pthread_setname_np("muses-log");
#endif
    }

    [[nodiscard]] std::uint64_t dropped() const noexcept {
        return dropped_.load(std::memory_order_relaxed);  // relaxed: a counter guards nothing
    }

    inline static thread_local const LogCore* current_ = nullptr;  // the core whose thread this is

    const std::uint64_t generation_ = ForkWatch::generation();
    const std::size_t capacity_;
    const OverflowPolicy overflow_;
    LogRing ring_;

    // Read by every line, written once.
    std::atomic<bool> synchronous_{false};

    // Written by the threads that log, when they lose something.
    alignas(kCacheLine) std::atomic<std::uint64_t> dropped_{0};

    // Written by the logger's thread, for each line.
    alignas(kCacheLine) std::atomic<std::uint64_t> written_{0};

    std::mutex mutex_;                  // guards what follows, up to the next blank line; never held while a sink runs
    std::condition_variable changed_;   // flushed_ or ended_
    std::condition_variable nap_over_;  // called_
    std::vector<std::unique_ptr<LogSink>> new_sinks_;
    bool joinable_ = true;            // thread_ is neither joined nor detached
    stop_source sleep_;               // a stop ends the thread's sleep; renewed after each
    std::uint64_t flush_wanted_ = 0;  // the last ticket drawn
    std::uint64_t flushed_ = 0;       // the last ticket completed
    bool called_ = false;             // the next nap is to be skipped
    bool reopen_ = false;
    bool stop_ = false;
    bool ended_ = false;

    // Set by start().
    pthread_t thread_{};
    std::shared_ptr<LogCore> self_;  // on its way to the thread

    ForkHeir<LogCore> heir_;

    // The logger's thread only.
    LogWriter writer_;
    std::vector<LogRecord> batch_;
    std::uint64_t losses_told_ = 0;
    std::uint64_t newest_ticket_ = 0;
    std::uint64_t ticket_in_work_ = 0;
    std::uint64_t ticket_done_ = 0;
    std::size_t still_to_take_ = 0;
    std::chrono::microseconds nap_ = kShortestNap;
};

}  // namespace detail
}  // namespace muses
