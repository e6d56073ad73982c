// Where the time goes, measured by scopes that are marked in the code.
//
//     void render() {
//         MUSES_PROFILE_SCOPE("render");                                  // until the end of the block
//         …
//     }
//     std::fputs(muses::Profiler::instance().table().c_str(), stderr);    // count, total, self, mean, p50, p99, max of each scope
//
// With MUSES_PROFILE_DISABLED defined, the macro is nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <format>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muses/detail/profile_format.hpp"  // ProfileRow, ProfileReport
#include "muses/detail/profile_thread.hpp"

#if defined(MUSES_PROFILE_DISABLED)
#define MUSES_PROFILE_SCOPE(name) static_cast<void>(0)
#else
/// Measures from here to the end of the block. `name` is a string literal; places of one name are one scope.
#define MUSES_PROFILE_SCOPE(name)                                                                            \
    [[maybe_unused]] const ::muses::ProfileScope MUSES_DETAIL_PROFILE_NAME(muses_profile_scope_, __LINE__) { \
        []() noexcept -> ::muses::detail::ProfileSite& {                                                     \
            static constinit ::muses::detail::ProfileSite site{"" name};                                     \
            return site;                                                                                     \
        }()                                                                                                  \
    }
#define MUSES_DETAIL_PROFILE_NAME(a, b) MUSES_DETAIL_PROFILE_PASTE(a, b)
#define MUSES_DETAIL_PROFILE_PASTE(a, b) a##b
#endif

namespace muses {

namespace detail {
/// What the calling thread records into; null before its first scope and after its end.
inline constinit thread_local ProfileThread* profile_thread = nullptr;
inline constinit thread_local bool profile_thread_ended = false;

[[nodiscard]] ProfileThread* begin_profile_thread() noexcept;
[[nodiscard]] std::uint32_t number_profile_site(ProfileSite& site) noexcept;
}  // namespace detail

/// What: one pass through a scope: measures from its construction to its destruction.
/// Complexity: O(1), two readings of the clock and some ten nanoseconds; while the profiler is off, one load. The first pass of a thread
///     through a scope allocates about 5 KB.
/// Threads: constructed and destroyed by one thread (not across a co_await that may resume elsewhere), in the order of a stack.
/// Lifetime: a local variable; MUSES_PROFILE_SCOPE makes one.
/// Limits: a pass that cannot be recorded for lack of memory, or because its thread's own records are gone already (in destructors of
///     thread_local and static objects), is counted as lost.
class ProfileScope {
public:
    explicit ProfileScope(detail::ProfileSite& site) noexcept {
        // relaxed: who turns the profiler on or off does not expect a moment that all threads agree on
        if (!detail::profile_switches.enabled.load(std::memory_order_relaxed)) return;
        // acquire: pairs with the release in Profiler::set_clock()
        begin(site, detail::profile_switches.clock.load(std::memory_order_acquire));
    }
    ProfileScope(const ProfileScope&) = delete;
    ProfileScope& operator=(const ProfileScope&) = delete;
    ~ProfileScope() {
        if (thread_ != nullptr) end();
    }

private:
    friend class Profiler;

    // For the profiler's measurement of itself.
    ProfileScope(detail::ProfileSite& site, const detail::ProfileClock* clock) noexcept { begin(site, clock); }

    void begin(detail::ProfileSite& site, const detail::ProfileClock* clock) noexcept {
        detail::ProfileThread* thread = detail::profile_thread;
        if (thread == nullptr) [[unlikely]]
            thread = detail::begin_profile_thread();
        // relaxed: the number says all; what is behind it is read under a lock
        number_ = site.number.load(std::memory_order_relaxed);
        if (number_ == 0) [[unlikely]]
            number_ = detail::number_profile_site(site);
        stats_ = thread != nullptr && number_ != 0 ? thread->stats_for(number_) : nullptr;
        if (stats_ == nullptr) [[unlikely]]
            return detail::count_lost_pass();
        thread_ = thread;
        clock_ = clock;
        outer_ = std::exchange(thread->innermost, this);
        epoch_ = current_epoch();
        if (std::exchange(stats_->open_epoch, epoch_) != epoch_) stats_->open = 0;
        ++stats_->open;
        start_ = detail::read_profile_clock(clock, lost_);
    }

    void end() noexcept {
        const std::uint64_t now = detail::read_profile_clock(clock_, lost_);
        const std::uint64_t duration = now > start_ && !lost_ ? now - start_ : 0;  // a clock may step back
        thread_->innermost = outer_;
        if (outer_ != nullptr) outer_->inner_ += duration;
        if (epoch_ != current_epoch()) return;  // begun before a reset
        const bool outermost = --stats_->open == 0;
        if (lost_) [[unlikely]]
            return detail::count_lost_pass();
        thread_->record(*stats_, epoch_, {number_, start_, duration}, duration > inner_ ? duration - inner_ : 0, outermost);
    }

    // relaxed: a pass at the time of a reset is of the one epoch or of the other
    [[nodiscard]] static std::uint32_t current_epoch() noexcept {
        return detail::profile_switches.epoch.load(std::memory_order_relaxed);
    }

    detail::ProfileThread* thread_ = nullptr;
    detail::ProfileStats* stats_ = nullptr;
    const detail::ProfileClock* clock_ = nullptr;
    ProfileScope* outer_ = nullptr;
    std::uint64_t inner_ = 0;  // time in scopes inside of this one
    std::uint64_t start_ = 0;
    std::uint32_t number_ = 0;
    std::uint32_t epoch_ = 0;
    bool lost_ = false;  // the clock has thrown
};

/// What: collects what the scopes of all threads have measured, also of threads that have ended.
/// Complexity: a report is linear in threads times scopes; it does not hold up the threads that record.
/// Threads: every function from any thread. A report made while scopes run has of each number a recent value, not all of one moment.
/// Lifetime: one for the process; never destroyed, so that a destructor of a static object may still ask for a report.
/// Limits: a trace has the last 4096 passes of each running thread (set_trace_capacity), and the last 65,536 of ended ones.
class Profiler {
public:
    [[nodiscard]] static Profiler& instance() {
        static Profiler* const profiler = new Profiler;
        return *profiler;
    }
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    /// One row for each name that was passed since the last reset, the greatest total first, then by name. The first call measures the profiler
    /// itself, which takes less than a millisecond.
    [[nodiscard]] ProfileReport report() {
        ProfileReport report;
        report.overhead = overhead();
        const std::scoped_lock lock(mutex_);
        Sums sums;
        for (std::size_t number = 0; number < ended_.size(); ++number) {
            if (ended_[number]) sum_of(sums, number).merge(*ended_[number]);
        }
        for (const auto& thread : threads_) add_thread(*thread, sums);
        for (std::size_t number = 0; number < sums.size(); ++number) {
            if (sums[number] && sums[number]->count != 0) report.rows.push_back(row_of(names_[number], *sums[number]));
        }
        std::ranges::sort(report.rows, [](const ProfileRow& a, const ProfileRow& b) {
            return a.total_ns != b.total_ns ? a.total_ns > b.total_ns : a.name < b.name;
        });
        report.lost = detail::profile_switches.lost.load(std::memory_order_relaxed);  // relaxed: a count
        return report;
    }

    /// The report as text: see ProfileReport.
    [[nodiscard]] std::string table() { return report().table(); }
    [[nodiscard]] std::string json() { return report().json(); }
    [[nodiscard]] std::string csv() { return report().csv(); }

    /// The last passes one by one, in the JSON that chrome://tracing and Perfetto (ui.perfetto.dev) open: a row for each thread.
    [[nodiscard]] std::string chrome_trace() {
        const std::scoped_lock lock(mutex_);
        std::uint64_t forgotten = forgotten_;
        std::map<std::uint32_t, std::vector<detail::ProfileEvent>> threads;
        for (const auto& [thread, event] : ended_events_) threads[thread].push_back(event);
        for (const auto& thread : threads_) {
            std::vector<detail::ProfileEvent> events;
            forgotten += thread->read_trace(epoch(), events);
            if (!events.empty()) threads[thread->id()] = std::move(events);
        }
        std::string out =
            std::format("{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"forgotten\":{}}},\"traceEvents\":[", forgotten);
        std::string_view separator = "\n";
        for (const auto& [thread, events] : threads) {
            std::format_to(std::back_inserter(out),
                           R"({}{{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":"thread {}"}}}})", separator,
                           thread, thread);
            separator = ",\n";
            for (const detail::ProfileEvent& event : events) {
                out += ",\n{\"name\":";
                detail::append_json_string(out, names_[event.number]);
                // microseconds with three digits: every nanosecond, and no floating point
                std::format_to(std::back_inserter(out), R"(,"ph":"X","pid":1,"tid":{},"ts":{}.{:03},"dur":{}.{:03}}})", thread,
                               event.start / 1000, event.start % 1000, event.duration / 1000, event.duration % 1000);
            }
        }
        out += "\n]}\n";
        return out;
    }

    /// Forgets all that was measured. Scopes that are open now will not be counted.
    void reset() {
        const std::scoped_lock lock(mutex_);
        detail::profile_switches.epoch.fetch_add(1, std::memory_order_relaxed);  // relaxed: see ProfileScope::current_epoch()
        detail::profile_switches.lost.store(0, std::memory_order_relaxed);       // relaxed: a count
        ended_.clear();
        ended_events_.clear();
        forgotten_ = 0;
    }

    /// On at first. Scopes that begin while the profiler is off are not measured, and cost a load and a branch.
    void set_enabled(bool on) noexcept {
        detail::profile_switches.enabled.store(on, std::memory_order_relaxed);  // relaxed: see ProfileScope
    }
    [[nodiscard]] bool enabled() const noexcept {
        return detail::profile_switches.enabled.load(std::memory_order_relaxed);  // relaxed: as above
    }

    /// Scopes that begin from now on are measured with this clock: a callable without arguments that returns nanoseconds as an integer,
    /// a duration or a time_point; below 0 counts as 0. It is called by all threads at once, and kept for the life of the process. It
    /// should not throw (the pass is then counted as lost, and its time as none) nor pass profiled scopes itself.
    template <class Clock>
        requires std::invocable<Clock&> && std::copy_constructible<Clock>
    void set_clock(Clock clock) {
        auto kept =
            std::make_unique<const detail::ProfileClock>([clock = std::move(clock)]() mutable { return nanoseconds_of(clock()); });
        const std::scoped_lock lock(mutex_);
        clocks_.push_back(std::move(kept));
        // release: pairs with the acquire in ProfileScope's constructor.
        detail::profile_switches.clock.store(clocks_.back().get(), std::memory_order_release);
    }
    /// Back to std::chrono::steady_clock.
    void set_clock(std::nullptr_t) noexcept {
        detail::profile_switches.clock.store(nullptr,
                                             std::memory_order_release);  // release: as above, though null has nothing behind it
    }

    /// How many passes are kept one by one for chrome_trace(), for each thread whose first scope comes after this; 24 bytes each. 0 for
    /// none. Throws std::invalid_argument above kMaxTraceCapacity.
    static constexpr std::size_t kMaxTraceCapacity = std::size_t{1} << 24U;
    void set_trace_capacity(std::size_t passes) {
        if (passes > kMaxTraceCapacity)
            throw std::invalid_argument("muses::Profiler: a trace of more than kMaxTraceCapacity passes");
        const std::scoped_lock lock(mutex_);
        trace_capacity_ = passes;
    }

private:
    friend detail::ProfileThread* detail::begin_profile_thread() noexcept;
    friend std::uint32_t detail::number_profile_site(detail::ProfileSite& site) noexcept;

    using Sums = std::vector<std::unique_ptr<detail::ProfileTotals>>;  // by the scope's number
    static constexpr std::size_t kTraceCapacity = 4096;
    static constexpr std::size_t kEndedEvents = 65'536;

    Profiler() = default;
    ~Profiler() = default;

    template <class Time>
    [[nodiscard]] static std::uint64_t nanoseconds_of(const Time& time) {
        if constexpr (std::integral<Time>) {
            return std::cmp_less(time, 0) ? 0 : static_cast<std::uint64_t>(time);
        } else if constexpr (requires { time.time_since_epoch(); }) {
            return nanoseconds_of(time.time_since_epoch());
        } else {
            return nanoseconds_of(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
        }
    }

    [[nodiscard]] static std::uint32_t epoch() noexcept { return ProfileScope::current_epoch(); }

    [[nodiscard]] static ProfileRow row_of(const std::string& name, const detail::ProfileTotals& sum) {
        return {.name = name,
                .count = sum.count,
                .total_ns = sum.total,
                .self_ns = sum.self,
                .mean_ns = static_cast<double>(sum.total) / static_cast<double>(sum.count),
                .p50_ns = sum.durations.quantile(0.50),
                .p99_ns = sum.durations.quantile(0.99),
                .max_ns = sum.durations.largest};
    }

    [[nodiscard]] static detail::ProfileTotals& sum_of(Sums& sums, std::size_t number) {
        if (number >= sums.size()) sums.resize(number + 1);
        if (!sums[number]) sums[number] = std::make_unique<detail::ProfileTotals>();
        return *sums[number];
    }

    static void add_thread(detail::ProfileThread& thread, Sums& sums) {
        thread.read(epoch(), [&](std::uint32_t number, const detail::ProfileStats& stats) { stats.add_to(sum_of(sums, number)); });
    }

    // The shortest of some runs, each of them many passes, on records that no report sees.
    [[nodiscard]] static ProfileOverhead measure_overhead() {
        constexpr int kRuns = 8;
        constexpr int kPasses = 500;
        constexpr double kUnknown = 1e9;
        detail::ProfileThread scratch(0, kTraceCapacity);
        detail::ProfileSite site{.name = "", .number = 1};
        detail::ProfileThread* const own = std::exchange(detail::profile_thread, &scratch);
        ProfileOverhead best{.clock_ns = kUnknown, .scope_ns = kUnknown};
        const auto now = [] {
            bool failed = false;
            return detail::read_profile_clock(nullptr, failed);
        };
        for (int run = 0; run < kRuns; ++run) {
            const std::uint64_t start = now();
            for (int i = 0; i < kPasses; ++i) const ProfileScope pass(site, nullptr);
            const std::uint64_t middle = now();
            for (int i = 0; i < kPasses; ++i) (void)now();
            const std::uint64_t end = now();
            best.scope_ns = std::min(best.scope_ns, static_cast<double>(middle - start) / kPasses);
            best.clock_ns = std::min(best.clock_ns, static_cast<double>(end - middle) / kPasses);
        }
        detail::profile_thread = own;
        return best;
    }
    [[nodiscard]] static const ProfileOverhead& overhead() {
        static const ProfileOverhead measured = measure_overhead();
        return measured;
    }

    [[nodiscard]] detail::ProfileThread* add_new_thread() {
        const std::scoped_lock lock(mutex_);
        threads_.push_back(std::make_unique<detail::ProfileThread>(++last_thread_, trace_capacity_));
        return threads_.back().get();
    }

    // What an ending thread has recorded stays. Without memory for that it is lost, and counted.
    void end_thread(detail::ProfileThread* thread) noexcept {
        const std::scoped_lock lock(mutex_);
        try {
            add_thread(*thread, ended_);
            std::vector<detail::ProfileEvent> events;
            forgotten_ += thread->read_trace(epoch(), events);
            for (const detail::ProfileEvent& event : events) ended_events_.emplace_back(thread->id(), event);
            for (; ended_events_.size() > kEndedEvents; ++forgotten_) ended_events_.pop_front();
        } catch (...) {  // no memory
            detail::count_lost_pass();
        }
        std::erase_if(threads_, [&](const auto& each) { return each.get() == thread; });
    }

    [[nodiscard]] std::uint32_t number_of(std::string_view name) {
        const std::scoped_lock lock(mutex_);
        const auto at = std::ranges::find(names_.begin() + 1, names_.end(), name);  // number 0 is none
        if (at != names_.end()) return static_cast<std::uint32_t>(at - names_.begin());
        names_.emplace_back(name);
        return static_cast<std::uint32_t>(names_.size() - 1);
    }

    std::mutex mutex_;
    std::vector<std::unique_ptr<detail::ProfileThread>> threads_;
    Sums ended_;
    std::deque<std::pair<std::uint32_t, detail::ProfileEvent>> ended_events_;  // with the thread
    std::uint64_t forgotten_ = 0;
    std::vector<std::string> names_{std::string()};  // by number; 0 is none
    std::vector<std::unique_ptr<const detail::ProfileClock>> clocks_;
    std::size_t trace_capacity_ = kTraceCapacity;
    std::uint32_t last_thread_ = 0;
};

namespace detail {

inline ProfileThread* begin_profile_thread() noexcept {
    struct Ending {
        ~Ending() {
            profile_thread_ended = true;
            if (ProfileThread* const thread = std::exchange(profile_thread, nullptr)) Profiler::instance().end_thread(thread);
        }
    };
    if (profile_thread_ended) return nullptr;
    static thread_local const Ending ending;
    try {
        profile_thread = Profiler::instance().add_new_thread();
    } catch (...) {  // no memory
    }
    return profile_thread;
}

inline std::uint32_t number_profile_site(ProfileSite& site) noexcept {
    try {
        const std::uint32_t number = Profiler::instance().number_of(site.name);
        site.number.store(number,
                          std::memory_order_relaxed);  // relaxed: see ProfileScope::begin(); all who number it write the same
        return number;
    } catch (...) {  // no memory
        return 0;
    }
}

}  // namespace detail

}  // namespace muses
