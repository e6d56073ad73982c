// From a duration that a caller chose to a point in time that can be waited for, without overflow.
//
// Every timed wait of the library takes any std::chrono::duration. Adding one to "now" overflows for hours::max(), and comparing
// it with another unit can overflow too (both sides are converted to the finer one). This header does it once, saturating.
#pragma once

#include <chrono>
#include <cstdint>
#include <ratio>

namespace muses::detail {

using SteadyTime = std::chrono::steady_clock::time_point;

/// A deadline that never comes. Not to be handed to a timed wait of the standard library, some of which overflow on it.
inline constexpr SteadyTime kNever = SteadyTime::max();

/// What is longer than this counts as "for ever": one year of 365 days, in seconds.
inline constexpr double kForeverSeconds = 365.0 * 24.0 * 3600.0;

/// The point in time `duration` after `now`.
/// Returns `now` for a negative, zero or NaN duration, kNever for more than a year; never overflows. A fraction of the clock's
/// tick is cut off. Threads: any.
template <class Rep, class Period>
[[nodiscard]] constexpr SteadyTime deadline_after(std::chrono::duration<Rep, Period> duration, SteadyTime now) noexcept {
    using Tick = SteadyTime::duration;
    // In double no unit overflows; its error (below 10 ns at a year) matters for the two comparisons with limits only.
    const double seconds = std::chrono::duration<double>(duration).count();
    if (!(seconds > 0.0)) return now;  // NaN too: it compares false with everything
    if (seconds > kForeverSeconds) return kNever;

    Tick ticks{};
    using Factor = std::ratio_divide<Period, Tick::period>;
    if constexpr (std::chrono::treat_as_floating_point_v<Rep> || (Factor::num != 1 && Factor::den != 1)) {
        // A unit that is neither a multiple nor a fraction of the clock's: the integer conversion could overflow in between.
        ticks = Tick(static_cast<Tick::rep>(seconds * Tick::period::den / Tick::period::num));
    } else {
        ticks = std::chrono::duration_cast<Tick>(duration);
    }
    return now > kNever - ticks ? kNever : now + ticks;
}

/// The same, counted from this moment.
template <class Rep, class Period>
[[nodiscard]] SteadyTime deadline_after(std::chrono::duration<Rep, Period> duration) noexcept {
    return deadline_after(duration, std::chrono::steady_clock::now());
}

}  // namespace muses::detail
