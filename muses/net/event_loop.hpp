// One thread's loop over readiness events, timers and functions posted by other threads.
//
// A turn: wait, read the clock once, I/O events, timers due, posts, tasks (muses/task.hpp), turn hooks, then the changes of interest in one batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "muses/detail/cache_line.hpp"
#include "muses/detail/event_mask.hpp"
#include "muses/detail/move_only_function.hpp"
#include "muses/detail/task_io.hpp"
#include "muses/detail/task_scheduler.hpp"
#include "muses/net/io_waits.hpp"
#include "muses/net/io_watches.hpp"
#include "muses/net/poller.hpp"
#include "muses/net/timer_wheel.hpp"

namespace muses {

struct EventLoopOptions {
    /// Gets what a handler, timer, post, hook or detached task threw, on the loop's thread; the loop goes on. Empty: one line on stderr.
    /// Must not throw: what it throws is swallowed and counted.
    detail::move_only_function<void(std::exception_ptr)> on_exception = {};
    std::size_t events_per_turn = 512;  ///< I/O events handled before timers and posts get their turn; 0 is refused
};

/// Counted since construction; to be read on the loop's thread, or when no run() is under way.
struct EventLoopStats {
    std::uint64_t turns = 0;
    std::uint64_t io_events = 0;        ///< on_io calls
    std::uint64_t stale_events = 0;     ///< events dropped because their watch had ended
    std::uint64_t timers = 0;           ///< timer callbacks called
    std::uint64_t posts = 0;            ///< posted functions run
    std::uint64_t exceptions = 0;       ///< handed to on_exception
    std::uint64_t hook_exceptions = 0;  ///< thrown by on_exception itself
};

/// What: readiness events, timers, posted functions and tasks (it is an IoScheduler), all run by the one thread that calls run().
/// Complexity: watch, unwatch, arm, cancel, post O(1) (amortised where a table grows); a turn is one wait, plus one system call
///     for each changed interest. Allocates nothing in a steady state beyond what posted functions need.
/// Threads: post, wakeup, stop and in_loop_thread from any thread; all else on the loop's thread, or before run().
/// Lifetime: owns neither handlers, timers, hooks nor descriptors. They must be unwatched, cancelled, unhooked (timers and hooks do
///     it themselves) before they die. May be destroyed when no run() is under way and no other thread uses it any more.
/// Limits: one watch for each descriptor; 2^32 - 1 watches; timers tick in milliseconds.
class EventLoop {
public:
    using Clock = std::chrono::steady_clock;
    using Timer = TimerWheel::Timer;
    using IoHandler = muses::IoHandler;  ///< who is told of a descriptor's events: derive from it
    using IoHandle = muses::IoHandle;    ///< names one watch

    /// Called at the end of every turn once registered by at_turn_end. Unhooks itself when destroyed.
    class TurnHook {
    public:
        TurnHook(const TurnHook&) = delete;
        TurnHook& operator=(const TurnHook&) = delete;

        /// On the loop's thread, after events, timers and posts, before changes of interest go out and the loop sleeps.
        virtual void on_turn_end() = 0;

        /// Ends the registration; harmless without one. Loop thread.
        void unhook() noexcept {
            if (loop_ == nullptr) return;
            if (loop_->next_hook_ == this) loop_->next_hook_ = next_;
            (prev_ != nullptr ? prev_->next_ : loop_->first_hook_) = next_;
            (next_ != nullptr ? next_->prev_ : loop_->last_hook_) = prev_;
            loop_ = nullptr;
            prev_ = next_ = nullptr;
        }

    protected:
        TurnHook() noexcept = default;
        ~TurnHook() { unhook(); }

    private:
        friend class EventLoop;
        EventLoop* loop_ = nullptr;
        TurnHook* prev_ = nullptr;
        TurnHook* next_ = nullptr;
        std::uint64_t called_in_ = 0;  // the turn of the last call
    };

    /// Throws std::invalid_argument for options that make no sense, std::system_error when the system refuses a poller.
    explicit EventLoop(EventLoopOptions options = {})
        : on_exception_(std::move(options.on_exception)), events_(checked_events(options.events_per_turn)) {}
    EventLoop(const EventLoop&) = delete;
    EventLoop& operator=(const EventLoop&) = delete;

    /// Tasks that have not ended are freed where they are suspended, posts that have not run are destroyed unrun, on this thread.
    ~EventLoop() {
        while (first_hook_ != nullptr) first_hook_->unhook();
        tasks_.end();
        std::vector<Post> unrun;
        {
            const std::lock_guard lock(posts_mutex_);
            posts_closed_ = true;  // the destructor of a post may post again
            unrun.swap(posts_);
        }
        unrun.clear();
        tasks_.end();  // it may also have started tasks
    }

    /// Runs turns until stop(); returns at once when stopped before. The calling thread is the loop's thread meanwhile. Throws
    /// std::logic_error when a run() is under way already. A poller that fails for good is reported to on_exception and stops the loop.
    void run() {
        std::thread::id nobody{};
        // Acquire pairs with the release in ~Running: a run by another thread that came before happened before this one.
        if (!runner_.compare_exchange_strong(nobody, std::this_thread::get_id(), std::memory_order_acquire,
                                             std::memory_order_relaxed))
            throw std::logic_error("muses::EventLoop::run: the loop is running already");
        const Running running(*this);
        const TaskScheduler::Entered entered(tasks_);
        watches_.apply(poller_);  // of watches that were made before the run
        // Acquire pairs with the release in stop().
        while (!stopped_.load(std::memory_order_acquire)) turn();
    }

    /// Makes run() return after the current turn; a run() that comes later returns at once. For ever. Any thread, signal handlers too.
    void stop() noexcept {
        stopped_.store(true, std::memory_order_release);  // pairs with the acquire in run()
        wakeup();
    }

    /// True once stop() was called. Any thread.
    [[nodiscard]] bool stopped() const noexcept {
        return stopped_.load(std::memory_order_acquire);
    }  // pairs with the release in stop()

    /// Has `fn` run by the loop's thread, in order of arrival; from inside the loop, not before the next turn. A function that never
    /// runs is destroyed by ~EventLoop. Any thread. Throws std::invalid_argument for an empty function, std::bad_alloc.
    void post(detail::move_only_function<void()> fn) {
        if (!fn) throw std::invalid_argument("muses::EventLoop::post: the function is empty");
        {
            const std::lock_guard lock(posts_mutex_);
            if (posts_closed_) return;
            posts_.push_back(std::move(fn));
        }
        if (in_loop_thread())
            maybe_posts_ = true;  // no system call: the loop looks before it sleeps
        else
            wakeup();
    }

    /// Ends the wait under way, or else keeps the next one from sleeping. Any thread, signal handlers too. Many calls between two
    /// turns cost one system call; none when the loop is not asleep.
    void wakeup() noexcept {
        // All operations on signal_ that matter are read-modify-writes of one object, so they have one order, and each waker is
        // before or after the loop's transition:
        //  - it found Awake: the loop's Awake -> Sleeping in turn() comes later, fails, and the loop does not sleep;
        //  - it found Sleeping: it is the first one since, and writes to the poller; the wait ends or does not begin;
        //  - it found Signalled: another waker, of the two kinds above, has seen to it.
        // Release pairs with the acquire exchange in take_signal(), directly or through the read-modify-writes of later wakers:
        // what this thread wrote before (a post, an element of a queue) is seen by the loop after it.
        if (signal_.exchange(Signal::Signalled, std::memory_order_release) == Signal::Sleeping) poller_.wakeup();
    }

    /// True on the thread that is inside run(). Any thread.
    [[nodiscard]] bool in_loop_thread() const noexcept {
        // Relaxed: only the thread itself ever stores its own id here, so it cannot read it wrongly, and no other thread can read its own.
        return runner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
    }

    /// The time at which this turn's wait ended; outside of run(), the time. Loop thread.
    [[nodiscard]] Clock::time_point now() const noexcept { return running_ ? now_ : Clock::now(); }

    /// Watches `fd` for Readable and/or Writable, edge-triggered, from the end of this turn on; what is ready already is an edge. When
    /// the system refuses, `handler` gets Error in the next turn, and registration_error() says why. Throws std::bad_alloc.
    IoHandle watch(int fd, EventMask interest, IoHandler& handler) {
        waits_.disown(fd);
        return watches_.watch(fd, interest, handler);
    }

    /// Changes what is watched, from the end of this turn on; what is ready then is reported (again), even when `interest` is as
    /// before. Nothing happens when the watch has ended. Failure as with watch(). Throws std::bad_alloc.
    void rewatch(IoHandle handle, EventMask interest) { watches_.rewatch(handle, interest); }

    /// Ends the watch of a descriptor that stays open. No event is delivered after it, not even one already fetched in this turn.
    /// One system call, at once (later, the number might belong to another file), unless the registration has not gone out yet.
    void unwatch(IoHandle handle) noexcept { (void)watches_.unwatch(handle, poller_); }

    /// Ends the watch of a descriptor that the caller closes now, before this turn ends: like unwatch(), without a system call, since
    /// the kernel forgets what is closed. With epoll it forgets when the last duplicate (dup, fork, a descriptor passed on) is closed:
    /// where there may be one, use unwatch(), or the duplicate goes on to wake the loop for nothing.
    void forget(IoHandle handle) noexcept { watches_.forget(handle); }

    /// Why the registration of a watch was refused; no error while it stands, is still to go out, or has ended.
    [[nodiscard]] std::error_code registration_error(IoHandle handle) const noexcept { return watches_.registration_error(handle); }

    /// Has `timer` called in the first turn that begins `after` or more after now(); zero or less: in the next turn. Moves a timer that is
    /// armed. Counted from now(), the beginning of this turn; who must not be early by the length of a turn uses arm_at().
    void arm(Timer& timer, Clock::duration after) noexcept {
        if (after <= Clock::duration::zero()) return wheel_.arm_at(timer, Clock::time_point::min());
        const Clock::time_point from = now();
        const bool beyond = after > Clock::time_point::max() - from;
        wheel_.arm_at(timer, beyond ? Clock::time_point::max() : from + after);
    }

    /// Has `timer` called in the first turn that begins at `deadline` or later; at the earliest the next one.
    void arm_at(Timer& timer, Clock::time_point deadline) noexcept {
        wheel_.arm_at(timer, deadline <= now() ? Clock::time_point::min() : deadline);
    }

    /// Disarms `timer`; harmless when it is not armed.
    void cancel(Timer& timer) noexcept { wheel_.cancel(timer); }

    /// Has `hook` called at the end of each turn, this one included, after those registered before; once a turn however often it is
    /// registered.
    void at_turn_end(TurnHook& hook) noexcept {
        hook.unhook();
        hook.loop_ = this;
        hook.prev_ = last_hook_;
        (last_hook_ != nullptr ? last_hook_->next_ : first_hook_) = &hook;
        last_hook_ = &hook;
        if (in_hooks_ && next_hook_ == nullptr) next_hook_ = &hook;
    }

    /// For tasks: what they run on (see IoScheduler).
    [[nodiscard]] TaskScheduler& tasks() noexcept { return tasks_; }

    /// Has `wait` told when its descriptor is ready. Returns an error when it cannot be watched (also not_enough_memory), and
    /// device_or_resource_busy when another wait for the same direction is under way. Loop thread.
    [[nodiscard]] std::error_code begin_io(IoWait& wait) noexcept { return waits_.begin(wait); }

    /// Forgets a wait that begin_io() has accepted. Loop thread.
    void end_io(IoWait& wait) noexcept { waits_.end(wait); }

    /// How many watches there are. Loop thread.
    [[nodiscard]] std::size_t watched() const noexcept { return watches_.size(); }

    /// What has happened so far. Loop thread, or when no run() is under way.
    [[nodiscard]] const EventLoopStats& stats() const noexcept { return stats_; }

private:
    using Post = detail::move_only_function<void()>;

    enum class Signal : std::uint8_t { Awake, Sleeping, Signalled };

    static constexpr std::size_t kPostsKept = 4096;  // room for posts that is kept between turns

    // The tasks, as something that runs on this loop.
    class Tasks final : public TaskScheduler {
    public:
        explicit Tasks(EventLoop& loop) noexcept : loop_(loop) {}
        ~Tasks() = default;

        [[nodiscard]] bool on_own_thread() const noexcept override { return loop_.in_loop_thread(); }
        [[nodiscard]] bool touchable() const noexcept override {
            // Acquire pairs with the release in ~Running: what the run did before it ended happened before.
            const std::thread::id runner = loop_.runner_.load(std::memory_order_acquire);
            return runner == std::thread::id{} || runner == std::this_thread::get_id();
        }
        void wake() noexcept override {
            if (!loop_.in_loop_thread()) loop_.wakeup();  // its own thread looks before it sleeps
        }
        void arm(TaskTimer& timer, Clock::time_point when) noexcept override {
            static_assert(sizeof(Timer) <= TaskTimer::kRoom);
            loop_.arm_at(*::new (timer.room()) Timer(&Tasks::fire, &timer), when);
        }
        void disarm(TaskTimer& timer) noexcept override { std::launder(static_cast<Timer*>(timer.room()))->~Timer(); }
        void on_task_exception(std::exception_ptr error) noexcept override { loop_.report(std::move(error)); }

        [[nodiscard]] bool ready() const noexcept { return has_ready(); }
        void run() noexcept { (void)drain(); }
        void end() noexcept { abandon_all(); }

    private:
        static void fire(void* context) {
            auto& timer = *static_cast<TaskTimer*>(context);
            std::launder(static_cast<Timer*>(timer.room()))->~Timer();
            timer.fire();
        }
        EventLoop& loop_;
    };

    struct Running {
        explicit Running(EventLoop& loop) noexcept : loop_(loop) {
            loop_.now_ = Clock::now();
            loop_.running_ = true;
        }
        Running(const Running&) = delete;
        Running& operator=(const Running&) = delete;
        ~Running() {
            loop_.running_ = false;
            loop_.runner_.store(std::thread::id{}, std::memory_order_release);  // pairs with the acquire in run()
        }
        EventLoop& loop_;
    };

    static std::size_t checked_events(std::size_t n) {
        if (n == 0) throw std::invalid_argument("muses::EventLoop: events_per_turn is 0");
        return std::min(n, std::size_t{1} << 16U);
    }

    void turn() {
        ++stats_.turns;
        const auto got = poller_.wait(events_, time_to_sleep());
        now_ = Clock::now();
        take_signal();
        if (!got) {
            report(std::make_exception_ptr(std::system_error(got.error(), "muses::EventLoop: the poller failed")));
            stop();
        }
        watches_.take_failures([this](IoHandle handle) { deliver(handle, EventMask::Error); });
        for (std::size_t i = 0; i < got.value_or(0); ++i) deliver(IoHandle(events_[i].userdata), events_[i].mask);
        fire_timers();
        take_signal();
        run_posts();
        if (tasks_.ready()) tasks_.run();
        run_hooks();
        watches_.apply(poller_);
    }

    // How long the wait may last; none: for ever.
    std::optional<std::chrono::nanoseconds> time_to_sleep() noexcept {
        constexpr std::chrono::nanoseconds kNotAtAll{0};
        if (maybe_posts_ || watches_.has_failures() || tasks_.ready()) return kNotAtAll;
        Signal awake = Signal::Awake;
        // Relaxed: nothing is handed over here. That a waker is not missed follows from the single order of the read-modify-writes of
        // signal_, see wakeup(); what it wrote is acquired in take_signal().
        if (!signal_.compare_exchange_strong(awake, Signal::Sleeping, std::memory_order_relaxed, std::memory_order_relaxed))
            return kNotAtAll;
        const auto deadline = wheel_.next_deadline();
        if (!deadline) return std::nullopt;
        return std::max<std::chrono::nanoseconds>(kNotAtAll, *deadline - now_);
    }

    void take_signal() noexcept {
        // Relaxed: a Sleeping that this thread stored it cannot overlook, and a Signalled overlooked now is met by the exchange of the
        // next turn (it also keeps that turn's wait from sleeping).
        if (signal_.load(std::memory_order_relaxed) == Signal::Awake) return;
        // Acquire pairs with the release in wakeup(): posts and other data written before it are visible from here on.
        if (signal_.exchange(Signal::Awake, std::memory_order_acquire) == Signal::Signalled) maybe_posts_ = true;
    }

    void deliver(IoHandle handle, EventMask mask) {
        IoHandler* handler = watches_.find(handle);
        if (handler == nullptr) {
            ++stats_.stale_events;
            return;
        }
        ++stats_.io_events;
        guarded([&] { handler->on_io(mask); });
    }

    // After a callback that threw, the timers still due have their turn in the next turn, which comes at once: to go on here would
    // never end for one that arms itself anew and throws.
    void fire_timers() {
        guarded([&] { wheel_.advance(now_, stats_.timers); });
    }

    void run_posts() {
        if (!maybe_posts_) return;
        maybe_posts_ = false;
        {
            const std::lock_guard lock(posts_mutex_);
            posts_.swap(batch_);
        }
        for (Post& waiting : batch_) {
            ++stats_.posts;
            guarded([&] {
                Post post = std::move(waiting);  // what it captured dies before the next one runs
                post();
            });
        }
        const bool oversized = batch_.capacity() > kPostsKept && batch_.size() < batch_.capacity() / 8;
        batch_.clear();
        if (oversized) std::vector<Post>().swap(batch_);
    }

    void run_hooks() {
        in_hooks_ = true;
        for (next_hook_ = first_hook_; next_hook_ != nullptr;) {
            TurnHook& hook = *next_hook_;
            next_hook_ = hook.next_;  // kept right by unhook() and at_turn_end()
            if (std::exchange(hook.called_in_, stats_.turns) != stats_.turns) guarded([&] { hook.on_turn_end(); });
        }
        in_hooks_ = false;
    }

    template <class F>
    void guarded(F&& call) {
        try {
            std::forward<F>(call)();
        } catch (...) {
            report(std::current_exception());
        }
    }

    void report(std::exception_ptr error) noexcept {
        ++stats_.exceptions;
        try {
            if (on_exception_)
                on_exception_(std::move(error));
            else
                print(error);
        } catch (...) {
            ++stats_.hook_exceptions;
        }
    }

    static void print(const std::exception_ptr& error) {
        try {
            std::rethrow_exception(error);
        } catch (const std::exception& e) {
            std::fprintf(stderr, "muses::EventLoop: a handler threw: %s\n", e.what());
        } catch (...) {
            std::fputs("muses::EventLoop: a handler threw something that is no std::exception\n", stderr);
        }
    }

    // The loop thread's own.
    detail::move_only_function<void(std::exception_ptr)> on_exception_;
    NativePoller poller_;
    TimerWheel wheel_;
    Clock::time_point now_{};
    bool running_ = false;
    bool maybe_posts_ = false;  // posts_ may have something for the next run_posts()
    std::vector<PollEvent> events_;
    IoWatches watches_;
    detail::IoWaits waits_{watches_, poller_};
    TurnHook* first_hook_ = nullptr;
    TurnHook* last_hook_ = nullptr;
    TurnHook* next_hook_ = nullptr;  // run_hooks() goes on here
    bool in_hooks_ = false;
    std::vector<Post> batch_;  // posts being run
    EventLoopStats stats_;
    Tasks tasks_{*this};

    // Touched by other threads: on lines of their own.
    alignas(detail::kCacheLine) std::atomic<Signal> signal_{Signal::Awake};
    std::atomic<bool> stopped_{false};
    std::atomic<std::thread::id> runner_{};
    alignas(detail::kCacheLine) std::mutex posts_mutex_;
    std::vector<Post> posts_;  // guarded by posts_mutex_, as is:
    bool posts_closed_ = false;
};

static_assert(IoScheduler<EventLoop>);

}  // namespace muses
