// What one thread records for the profiler: its scopes' times, and the last of them one by one.
//
// Only the thread itself writes. Who makes a report reads at the same time, so everything that is shared is atomic; but with a single
// writer an addition is a load and a store, which cost what they cost without atomics. Readers, and the writer where it changes the
// structure (a scope's first time, a new epoch), hold the thread's mutex.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "muses/detail/log_linear.hpp"

namespace muses {
class ProfileScope;
}

namespace muses::detail {

/// A place in the code with a profiled scope. Its number, which all places of one name share, is given at the first pass.
struct ProfileSite {
    const char* name;
    std::atomic<std::uint32_t> number{0};
};

using ProfileClock = std::function<std::uint64_t()>;

/// What every pass through a scope reads.
struct ProfileSwitches {
    std::atomic<bool> enabled{true};
    std::atomic<std::uint32_t> epoch{1};              // goes up at each reset
    std::atomic<const ProfileClock*> clock{nullptr};  // null: the steady clock. Never freed, since a scope may be about to call it
    std::atomic<std::uint64_t> lost{0};
};
inline constinit ProfileSwitches profile_switches;

// relaxed: a count, it guards nothing
inline void count_lost_pass() noexcept { profile_switches.lost.fetch_add(1, std::memory_order_relaxed); }

/// Nanoseconds. A clock of the user's that throws sets `failed`.
[[nodiscard]] inline std::uint64_t read_profile_clock(const ProfileClock* clock, bool& failed) noexcept {
    if (clock == nullptr) [[likely]] {
        using std::chrono::nanoseconds;
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<nanoseconds>(now).count());
    }
    try {
        return (*clock)();
    } catch (...) {
        failed = true;
        return 0;
    }
}

/// One pass through a scope.
struct ProfileEvent {
    std::uint32_t number;
    std::uint64_t start;
    std::uint64_t duration;
};

/// The sums of one scope, of one thread or of several.
struct ProfileTotals {
    std::uint64_t count = 0;
    std::uint64_t total = 0;
    std::uint64_t self = 0;
    LogLinearHistogram durations;

    void merge(const ProfileTotals& other) noexcept {
        count += other.count;
        total += other.total;
        self += other.self;
        durations.merge(other.durations);
    }
};

/// A number with one writer.
class SingleWriterCount {
public:
    explicit SingleWriterCount(std::uint64_t n = 0) noexcept : value_(n) {}

    // relaxed, all: readers want a recent value of each number, not one moment for all of them; after the writer's thread was joined,
    // or its mutex taken at its end, they see the last.
    void add(std::uint64_t n) noexcept { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

/// What: the sums of one scope in one thread.
/// Complexity: O(1) per pass; about 5 KB.
/// Threads: one records, any read.
/// Lifetime: that of its ProfileThread.
/// Limits: durations above five hours are one bucket of the histogram.
class ProfileStats {
public:
    // For the recording thread only: how many passes of this epoch are open.
    std::uint32_t open = 0;
    std::uint32_t open_epoch = 0;

    void record(std::uint64_t duration, std::uint64_t self, bool outermost) noexcept {
        count_.add(1);
        if (outermost) total_.add(duration);
        self_.add(self);
        buckets_[LogLinear::bucket_of(duration)].add(1);
        if (duration < smallest_.get()) smallest_.set(duration);
        if (duration > largest_.get()) largest_.set(duration);
    }

    void clear() noexcept {
        for (SingleWriterCount* const each : {&count_, &total_, &self_, &largest_}) each->set(0);
        smallest_.set(kNone);
        for (SingleWriterCount& each : buckets_) each.set(0);
    }

    void add_to(ProfileTotals& totals) const noexcept {
        totals.count += count_.get();
        totals.total += total_.get();
        totals.self += self_.get();
        for (std::size_t i = 0; i < buckets_.size(); ++i) totals.durations.buckets[i] += buckets_[i].get();
        totals.durations.smallest = std::min(totals.durations.smallest, smallest_.get());
        totals.durations.largest = std::max(totals.durations.largest, largest_.get());
    }

private:
    static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

    SingleWriterCount count_;
    SingleWriterCount total_;
    SingleWriterCount self_;
    SingleWriterCount largest_;
    SingleWriterCount smallest_{kNone};
    std::array<SingleWriterCount, LogLinear::kBuckets> buckets_;
};

/// What: the last passes of one thread, one by one: a ring that forgets the oldest.
/// Complexity: O(1) to add; 24 bytes for each event that it can hold, allocated at the first.
/// Threads: one adds, and clears while no other reads; any read.
/// Lifetime: that of its ProfileThread.
/// Limits: the capacity; 0 records nothing.
class ProfileTrace {
public:
    explicit ProfileTrace(std::size_t capacity) noexcept : capacity_(capacity) {}

    void add(const ProfileEvent& event) noexcept {
        if (!words_ && !allocate()) return;
        const std::uint64_t position = finished_.load(std::memory_order_relaxed);  // relaxed: this thread wrote it
        begun_.store(position + 1, std::memory_order_relaxed);  // relaxed: the release stores that follow carry it along
        Word* const words = &words_[(position % capacity_) * kWords];
        // release, three times: each pairs with the acquire in copy_to(). Who sees a new word also sees that it was begun.
        words[0].store(event.number, std::memory_order_release);
        words[1].store(event.start, std::memory_order_release);
        words[2].store(event.duration, std::memory_order_release);
        finished_.store(position + 1, std::memory_order_release);  // release: pairs with the acquire in copy_to()
    }

    /// Appends the events that are there to `events`, oldest first; those that are overwritten meanwhile are left out. Returns how many
    /// were forgotten.
    template <class Events>
    std::uint64_t copy_to(Events& events) const {
        const std::uint64_t end = finished_.load(std::memory_order_acquire);
        const std::uint64_t oldest = end - std::min<std::uint64_t>(end, capacity_);
        std::vector<ProfileEvent> copies;
        copies.reserve(static_cast<std::size_t>(end - oldest));
        for (std::uint64_t at = oldest; at < end; ++at) {
            const Word* const words = &words_[(at % capacity_) * kWords];
            copies.push_back({static_cast<std::uint32_t>(words[0].load(std::memory_order_acquire)),
                              words[1].load(std::memory_order_acquire), words[2].load(std::memory_order_acquire)});
        }
        // relaxed: the acquires above come before it
        const std::uint64_t begun = begun_.load(std::memory_order_relaxed);
        const std::uint64_t whole = std::clamp(begun - std::min<std::uint64_t>(begun, capacity_), oldest, end);
        events.insert(events.end(), copies.begin() + static_cast<std::ptrdiff_t>(whole - oldest), copies.end());
        return whole;
    }

    void clear() noexcept {
        finished_.store(0, std::memory_order_relaxed);  // relaxed, both: readers are kept out by the thread's mutex
        begun_.store(0, std::memory_order_relaxed);
    }

private:
    using Word = std::atomic<std::uint64_t>;
    static constexpr std::size_t kWords = 3;

    bool allocate() noexcept {
        if (capacity_ == 0) return false;
        try {
            words_ = std::make_unique<Word[]>(capacity_ * kWords);
        } catch (const std::bad_alloc&) {  // then not this time
        }
        return words_ != nullptr;
    }

    std::size_t capacity_;
    std::unique_ptr<Word[]> words_;
    std::atomic<std::uint64_t> begun_{0};
    std::atomic<std::uint64_t> finished_{0};
};

/// What: all that one thread has recorded.
/// Complexity: O(1) per pass.
/// Threads: the recording thread calls stats_for() and record(); any thread reads under `mutex`.
/// Lifetime: from the thread's first scope to its end; then the profiler takes over what is in it.
/// Limits: memory for each scope that the thread passes.
class ProfileThread {
public:
    ProfileThread(std::uint32_t id, std::size_t trace_capacity) noexcept : id_(id), trace_(trace_capacity) {}

    ProfileScope* innermost = nullptr;  // for the recording thread only

    /// The sums for a scope; null when there is no memory for them.
    [[nodiscard]] ProfileStats* stats_for(std::uint32_t number) noexcept {
        if (number < stats_.size() && stats_[number]) [[likely]]
            return stats_[number].get();
        return make_stats(number);
    }

    void record(ProfileStats& stats, std::uint32_t epoch, const ProfileEvent& event, std::uint64_t self, bool outermost) noexcept {
        if (epoch_ != epoch) [[unlikely]]
            begin_epoch(epoch);
        stats.record(event.duration, self, outermost);
        trace_.add(event);
    }

    /// For readers: calls sums(number, stats) for each scope if what was recorded is of this epoch.
    template <class Sums>
    void read(std::uint32_t epoch, Sums sums) {
        const std::scoped_lock lock(mutex_);
        if (epoch_ != epoch) return;
        for (std::uint32_t number = 0; number < stats_.size(); ++number) {
            if (stats_[number]) sums(number, *stats_[number]);
        }
    }
    template <class Events>
    std::uint64_t read_trace(std::uint32_t epoch, Events& events) {
        const std::scoped_lock lock(mutex_);
        return epoch_ == epoch ? trace_.copy_to(events) : 0;
    }

    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }

private:
    ProfileStats* make_stats(std::uint32_t number) noexcept {
        try {
            auto stats = std::make_unique<ProfileStats>();
            const std::scoped_lock lock(mutex_);
            if (number >= stats_.size()) stats_.resize(std::size_t{number} + 1);
            stats_[number] = std::move(stats);
            return stats_[number].get();
        } catch (...) {  // no memory
            return nullptr;
        }
    }

    void begin_epoch(std::uint32_t epoch) noexcept {
        const std::scoped_lock lock(mutex_);
        for (const auto& stats : stats_) {
            if (stats) stats->clear();
        }
        trace_.clear();
        epoch_ = epoch;
    }

    std::mutex mutex_;                                  // for changes of the structure; the recording thread reads it without
    std::vector<std::unique_ptr<ProfileStats>> stats_;  // by the scope's number
    std::uint32_t epoch_ = 0;
    std::uint32_t id_;
    ProfileTrace trace_;
};

}  // namespace muses::detail
