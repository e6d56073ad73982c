// Timers that are cheap to arm and to cancel: most timers of a server are deadlines that are never reached.
//
// Eight levels of 64 slots. A tick is 1 ms; a slot of level L spans 64^L ticks, so eight levels reach 2^48 ms, which is more
// than any steady_clock duration. A timer stands in the level of the highest 6-bit digit in which its tick differs from the
// current one, in the slot of that digit. Hence, within a level, occupied slots always lie ahead of the current digit, and
// every timer of a level is due before every timer of a higher one: the first occupied slot of the lowest occupied level is
// the next thing to happen. One bit a slot and one a level find it in a few instructions. When time reaches a slot of a
// higher level, its timers are distributed over the levels below ("cascade"), each at most seven times in its life.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ratio>
#include <type_traits>

namespace muses {

/// What: a set of intrusive one-shot timers on the steady clock.
/// Complexity: arm, cancel and next_deadline O(1); advance O(timers due + timers cascaded). Never allocates; 8 KB.
/// Threads: one thread at a time, the timers included.
/// Lifetime: owns no timer. A timer unlinks itself when destroyed; a wheel unlinks its timers when destroyed.
/// Limits: resolution 1 ms, rounded up: a timer is never early, and late by less than 1 ms plus the caller's own delay.
class TimerWheel {
    struct Node {
        Node* prev = nullptr;
        Node* next = nullptr;
    };

public:
    using Clock = std::chrono::steady_clock;
    static_assert(std::is_same_v<Clock::period, std::nano>, "muses::TimerWheel counts in nanoseconds of the steady clock");

    /// What: one deadline and what to do then; a member of whoever waits.
    /// Complexity: O(1) for all; 56 bytes.
    /// Threads: that of its wheel.
    /// Lifetime: may be destroyed at any time, armed or not, also in its own callback.
    /// Limits: neither copied nor moved.
    class Timer : private Node {
    public:
        using Callback = void (*)(void* context);

        /// `callback(context)` is called once each time that the armed timer comes due; the timer is disarmed before the call.
        Timer(Callback callback, void* context) noexcept : callback_(callback), context_(context) {}

        /// A timer that calls a member function: `Timer idle_ = Timer::calling<&Connection::on_idle>(*this);`
        template <auto Method, class Owner>
        [[nodiscard]] static Timer calling(Owner& owner) noexcept {
            return Timer([](void* context) { (static_cast<Owner*>(context)->*Method)(); }, &owner);
        }

        Timer(const Timer&) = delete;
        Timer& operator=(const Timer&) = delete;
        ~Timer() {
            if (wheel_ != nullptr) wheel_->cancel(*this);
        }

        /// True between arm and the callback or cancel.
        [[nodiscard]] bool armed() const noexcept { return wheel_ != nullptr; }

    private:
        friend class TimerWheel;

        TimerWheel* wheel_ = nullptr;  // null: not armed
        std::uint64_t tick_ = 0;       // when it is due; bits above 48 are never set
        std::uint32_t place_ = 0;      // index of its list
        Callback callback_;
        void* context_;
    };

    /// Ticks are counted from `start`, which must not lie after any later time given to the wheel.
    explicit TimerWheel(Clock::time_point start = Clock::now()) noexcept : start_(start) {
        for (Node& list : lists_) list.prev = list.next = &list;
    }
    TimerWheel(const TimerWheel&) = delete;
    TimerWheel& operator=(const TimerWheel&) = delete;
    ~TimerWheel() {
        for (Node& list : lists_)
            while (list.next != &list) cancel(first_of(list));
    }

    /// Arms `timer` for `deadline`, or moves it there when it is armed (in this wheel or another). A deadline that has passed
    /// is due at the next advance(); not in the one under way, so a callback that arms its own timer cannot hold the thread.
    void arm_at(Timer& timer, Clock::time_point deadline) noexcept {
        if (timer.wheel_ != nullptr) timer.wheel_->cancel(timer);
        timer.wheel_ = this;
        timer.tick_ = tick_not_before(deadline);
        ++armed_;
        place(timer);
    }

    /// Disarms `timer`; its callback will not be called. Nothing happens when it is not armed in this wheel.
    void cancel(Timer& timer) noexcept {
        if (timer.wheel_ != this) return;
        unlink(timer);
        timer.wheel_ = nullptr;
        --armed_;
    }

    /// Calls the callbacks of all timers due at `now`, earlier ticks first (within a tick, in no promised order), and adds one to
    /// `called` before each. Callbacks may arm, cancel and destroy any timer of this wheel. What a callback throws comes out of
    /// here; the timers that are then still due are called by the next advance(). A `now` before an earlier one counts as that one.
    void advance(Clock::time_point now, std::uint64_t& called) {
        collect(tick_reached(now));
        Node& firing = lists_[kFiring];
        while (firing.next != &firing) {
            Timer& timer = first_of(firing);
            cancel(timer);
            ++called;
            timer.callback_(timer.context_);  // `timer` may be gone after this
        }
    }

    /// As above; returns how many callbacks were called.
    std::size_t advance(Clock::time_point now) {
        std::uint64_t called = 0;
        advance(now, called);
        return static_cast<std::size_t>(called);
    }

    /// A time until which nothing is due, to sleep on: the deadline (in whole ticks) of a timer less than 64 ms away, and for
    /// farther ones possibly earlier: a cascade, at most seven for a timer. None when no timer is armed. A time that has passed
    /// means that there is something due.
    [[nodiscard]] std::optional<Clock::time_point> next_deadline() const noexcept {
        if (armed_ == 0) return std::nullopt;
        if (lists_[kDue].next != &lists_[kDue] || lists_[kFiring].next != &lists_[kFiring]) return time_of(current_);
        return time_of(next_step().tick);
    }

    /// How many timers are armed.
    [[nodiscard]] std::size_t size() const noexcept { return armed_; }

private:
    static constexpr unsigned kBits = 6;
    static constexpr unsigned kSlots = 1U << kBits;
    static constexpr unsigned kLevels = 8;
    static constexpr std::uint32_t kDue = kLevels * kSlots;  // deadline has passed already when armed: for the next advance
    static constexpr std::uint32_t kFiring = kDue + 1;       // collected by the advance under way
    static constexpr std::uint64_t kNanosPerTick = 1'000'000;

    struct Step {
        std::uint64_t tick;  // when
        std::uint32_t list;  // which list is due or cascades then
    };

    static Timer& first_of(Node& list) noexcept { return static_cast<Timer&>(*list.next); }

    // Nanoseconds from start_ to `t`, 0 when before. The subtraction is unsigned: it cannot overflow, and fits for all t >= start_.
    [[nodiscard]] std::uint64_t nanos_since_start(Clock::time_point t) const noexcept {
        if (t <= start_) return 0;
        return static_cast<std::uint64_t>(t.time_since_epoch().count()) -
               static_cast<std::uint64_t>(start_.time_since_epoch().count());
    }
    [[nodiscard]] std::uint64_t tick_not_before(Clock::time_point t) const noexcept {
        const std::uint64_t nanos = nanos_since_start(t);
        return nanos / kNanosPerTick + (nanos % kNanosPerTick != 0 ? 1 : 0);
    }
    [[nodiscard]] std::uint64_t tick_reached(Clock::time_point t) const noexcept { return nanos_since_start(t) / kNanosPerTick; }
    [[nodiscard]] Clock::time_point time_of(std::uint64_t tick) const noexcept {
        const auto room = static_cast<std::uint64_t>(Clock::time_point::max().time_since_epoch().count()) -
                          static_cast<std::uint64_t>(start_.time_since_epoch().count());
        if (tick > room / kNanosPerTick) return Clock::time_point::max();
        return Clock::time_point(Clock::duration(
            static_cast<Clock::rep>(static_cast<std::uint64_t>(start_.time_since_epoch().count()) + tick * kNanosPerTick)));
    }

    // Puts an armed, unlinked timer where its tick belongs, seen from current_.
    void place(Timer& timer) noexcept {
        if (timer.tick_ <= current_) return link(timer, kDue);
        const std::uint64_t differing = timer.tick_ ^ current_;
        const unsigned level = (63U - static_cast<unsigned>(std::countl_zero(differing))) / kBits;
        const auto slot = static_cast<unsigned>(timer.tick_ >> (level * kBits)) & (kSlots - 1);
        link(timer, level * kSlots + slot);
        occupied_[level] |= std::uint64_t{1} << slot;
        levels_ |= 1U << level;
    }

    void link(Timer& timer, std::uint32_t list) noexcept {
        Node& head = lists_[list];
        timer.place_ = list;
        timer.prev = head.prev;
        timer.next = &head;
        head.prev->next = &timer;
        head.prev = &timer;
    }

    void unlink(Timer& timer) noexcept {
        timer.prev->next = timer.next;
        timer.next->prev = timer.prev;
        const std::uint32_t list = timer.place_;
        if (list < kDue && lists_[list].next == &lists_[list]) mark_empty(list);
    }

    void mark_empty(std::uint32_t list) noexcept {
        const unsigned level = list / kSlots;
        occupied_[level] &= ~(std::uint64_t{1} << (list % kSlots));
        if (occupied_[level] == 0) levels_ &= ~(1U << level);
    }

    // The next slot that time reaches; call only when levels_ is not 0.
    [[nodiscard]] Step next_step() const noexcept {
        const unsigned level = static_cast<unsigned>(std::countr_zero(levels_)) % kLevels;  // no change, but gcc sees the bound
        const auto slot = static_cast<unsigned>(std::countr_zero(occupied_[level]));
        const unsigned shift = level * kBits;
        const std::uint64_t above = current_ >> (shift + kBits) << (shift + kBits);
        return Step{above | (static_cast<std::uint64_t>(slot) << shift), level * kSlots + slot};
    }

    // Moves current_ to `target` and all timers due by then to the firing list, in the order of their ticks.
    void collect(std::uint64_t target) noexcept {
        move_all(kDue, kFiring);
        while (levels_ != 0) {
            const Step step = next_step();
            if (step.tick > target) break;
            current_ = step.tick;
            mark_empty(step.list);
            if (step.list < kSlots) {
                move_all(step.list, kFiring);
            } else {
                redistribute(step.list);
                move_all(kDue, kFiring);  // those due exactly now
            }
        }
        if (target > current_) current_ = target;
    }

    void redistribute(std::uint32_t list) noexcept {
        Node& head = lists_[list];
        while (head.next != &head) {
            Timer& timer = first_of(head);
            timer.prev->next = timer.next;
            timer.next->prev = timer.prev;
            place(timer);
        }
    }

    void move_all(std::uint32_t from, std::uint32_t to) noexcept {
        Node& source = lists_[from];
        while (source.next != &source) {
            Timer& timer = first_of(source);
            timer.prev->next = timer.next;
            timer.next->prev = timer.prev;
            link(timer, to);
        }
    }

    Clock::time_point start_;
    std::uint64_t current_ = 0;  // the last tick that advance() has dealt with
    std::size_t armed_ = 0;
    std::uint32_t levels_ = 0;                       // bit L: level L has an occupied slot
    std::array<std::uint64_t, kLevels> occupied_{};  // bit s of [L]: that slot is not empty
    std::array<Node, kLevels * kSlots + 2> lists_;   // circular, with the heads inside
};

}  // namespace muses
