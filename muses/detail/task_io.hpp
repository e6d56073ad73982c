// IoAwaiter: a task waits until a file descriptor is ready; and what a scheduler must offer for that.
#pragma once

#include <chrono>
#include <concepts>
#include <coroutine>
#include <expected>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "muses/detail/duration.hpp"
#include "muses/detail/event_mask.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_wait.hpp"

namespace muses {

/// What: a task's wait for a descriptor, as its scheduler sees it.
/// Complexity: O(1).
/// Threads: that of the scheduler.
/// Lifetime: on the frame of the task. The scheduler knows its address between begin_io and end_io.
/// Limits: none.
class IoWait : public detail::TaskWaiter, private TaskTimer {
public:
    [[nodiscard]] int fd() const noexcept { return fd_; }
    /// Readable, Writable, or both: then either will do.
    [[nodiscard]] EventMask interest() const noexcept { return interest_; }
    /// False once it is over, also when the task has not gone on yet.
    [[nodiscard]] bool waiting() const noexcept { return pending(); }

    /// The descriptor is ready. Nothing happens when the wait is over.
    void ready() noexcept {
        if (pending()) end(detail::WaitOutcome::Done);
    }

    /// The wait ends with an error, also when it was over already and the task has not gone on yet.
    void fail(std::error_code why) noexcept {
        error_ = why;
        if (!leaving_) ready();
    }

protected:
    IoWait(int fd, EventMask interest, detail::SteadyTime duration) noexcept
        : TaskWaiter([](detail::Cancellable& wait) noexcept {
              static_cast<IoWait&>(static_cast<TaskWaiter&>(wait)).end(detail::WaitOutcome::Cancelled);
          }),
          TaskTimer([](TaskTimer& timer) noexcept { static_cast<IoWait&>(timer).end(detail::WaitOutcome::TimedOut); }),
          fd_(fd),
          interest_(interest),
          duration_(duration) {}
    IoWait(IoWait&&) noexcept = default;
    ~IoWait() = default;

    /// The task goes on, or is destroyed: nothing shall resume it any more.
    void start_leaving() noexcept {
        leaving_ = true;
        disarm();
    }

    void arm_deadline() noexcept { arm(scheduler(), detail::deadline_from_now(duration_)); }

    void end(detail::WaitOutcome outcome) noexcept {
        disarm();
        if (ReadyNode::scheduled())
            set_outcome(outcome);  // it is on its way to its scheduler's thread, and will see there that it need not begin
        else
            complete(outcome);
    }

    [[nodiscard]] std::expected<void, std::error_code> result() const {
        throw_if_cancelled();
        if (error_) return std::unexpected(error_);
        if (outcome() == detail::WaitOutcome::TimedOut) return std::unexpected(std::make_error_code(std::errc::timed_out));
        return {};
    }

    void set_error(std::error_code why) noexcept { error_ = why; }

private:
    int fd_;
    EventMask interest_;
    detail::SteadyTime duration_;  // counted from the clock's zero
    std::error_code error_;
    bool leaving_ = false;
};

/// What runs tasks and tells them of descriptors that are ready: an event loop.
/// tasks:    the scheduler, on whose thread everything below is called.
/// begin_io: has wait.ready() called once the descriptor is ready for what interests the wait (now, or from now on). Returns an error,
///           and then forgets it, when the descriptor cannot be watched, and device_or_resource_busy when another wait
///           for the same descriptor and direction is under way.
/// end_io:   forgets the wait: no call comes after it. It may call wait.fail(), when the descriptor is not the same file any more.
template <class S>
concept IoScheduler = requires(S& scheduler, IoWait& wait) {
    { scheduler.tasks() } noexcept -> std::convertible_to<TaskScheduler&>;
    { scheduler.begin_io(wait) } noexcept -> std::same_as<std::error_code>;
    { scheduler.end_io(wait) } noexcept -> std::same_as<void>;
};

/// What: `co_await IoAwaiter(loop, fd, EventMask::Readable)`: waits until `fd` is ready. Gives a std::expected<void, std::error_code>.
/// Complexity: a registration at its begin and a removal at its end: one system call each. A connection type keeps its registration.
/// Threads: awaited on the loop's thread, by a task that runs there; one that sync_wait runs moves there. It goes on there.
/// Lifetime: owns nothing; `fd` must stay open while it waits. A wait whose descriptor was closed ends with bad_file_descriptor when
///     its event had been seen before, or as soon as the number is waited for or watched again as another file; else only with its
///     deadline. It gets no event of the new file, nor the new wait one of the old.
/// Limits: one waiting reader and one waiting writer for each descriptor: a second one gets device_or_resource_busy.
template <IoScheduler S>
class [[nodiscard]] IoAwaiter final : public IoWait {
public:
    /// Waits for as long as it takes.
    IoAwaiter(S& scheduler, int fd, EventMask interest) noexcept : IoWait(fd, interest, detail::kNever), io_(&scheduler) {}

    /// Ends with std::errc::timed_out when `deadline` (from the await on) is over first. 0 or less: only what is ready now counts.
    template <class Rep, class Period>
    IoAwaiter(S& scheduler, int fd, EventMask interest, std::chrono::duration<Rep, Period> deadline) noexcept
        : IoWait(fd, interest, detail::deadline_after(deadline, detail::SteadyTime())), io_(&scheduler) {}

    IoAwaiter(IoAwaiter&&) noexcept = default;
    ~IoAwaiter() { leave(); }

    [[nodiscard]] static bool await_ready() noexcept { return false; }

    /// Throws std::logic_error when the task runs on another loop than this one.
    [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) {
        if (!enter_scope()) return false;
        if (TaskScheduler& target = io_->tasks(); &scheduler().host() != &target) {
            if (!scheduler().move_to(target)) {
                set_outcome(detail::WaitOutcome::Done);
                throw std::logic_error("muses::IoAwaiter: the task runs on another loop than the one that it waits on");
            }
            resume_ = std::exchange(ReadyNode::run, [](detail::ReadyNode& node) noexcept {
                static_cast<IoAwaiter&>(static_cast<TaskWaiter&>(node)).arrive();
            });
            scheduler().schedule_here(*this);
            return true;
        }
        return begin();
    }

    /// What became of it. Throws muses::cancelled.
    std::expected<void, std::error_code> await_resume() {
        leave();
        return result();
    }

private:
    bool begin() noexcept {
        if (const std::error_code error = io_->begin_io(*this)) {
            set_error(error);
            set_outcome(detail::WaitOutcome::Done);
            return false;
        }
        begun_ = true;
        arm_deadline();
        return true;
    }

    void arrive() noexcept {
        ReadyNode::run = resume_;
        if (waiting() && begin()) return;
        scheduler().resume(task().self);
    }

    void leave() noexcept {
        if (!std::exchange(begun_, false)) return;
        start_leaving();
        io_->end_io(*this);
    }

    S* io_;
    Run resume_ = nullptr;
    bool begun_ = false;
};

template <class S>
IoAwaiter(S&, int, EventMask) -> IoAwaiter<S>;
template <class S, class Rep, class Period>
IoAwaiter(S&, int, EventMask, std::chrono::duration<Rep, Period>) -> IoAwaiter<S>;

/// What: `co_await move_to(loop)`: the task goes on on the thread of that scheduler, with everything that it awaits, for good.
/// Complexity: O(1).
/// Threads: awaited on any.
/// Lifetime: on the frame of the task.
/// Limits: for a task that sync_wait runs; one that runs on another scheduler gets std::logic_error. No wait where it is there already.
class [[nodiscard]] MoveTo final : public detail::TaskWaiter {
public:
    explicit MoveTo(TaskScheduler& target) noexcept : TaskWaiter([](detail::Cancellable& /*wait*/) noexcept {}), target_(&target) {}

    [[nodiscard]] static bool await_ready() noexcept { return false; }
    [[nodiscard]] bool await_suspend(std::coroutine_handle<> /*task*/) {
        if (&scheduler().host() == target_) return false;
        if (!scheduler().move_to(*target_)) throw std::logic_error("muses::move_to: the task runs on another scheduler");
        complete(detail::WaitOutcome::Done);  // it is ready at once, over there
        return true;
    }
    static void await_resume() noexcept {}

private:
    TaskScheduler* target_;
};

/// See MoveTo.
template <IoScheduler S>
MoveTo move_to(S& scheduler) noexcept {
    return MoveTo(scheduler.tasks());
}

}  // namespace muses
