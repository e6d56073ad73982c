// fork() with a logger: what has to rest at that moment, so that the child can go on with it.
//
// A child has one thread, the one that called fork(); whatever the others were in the middle of stays as it was for ever. So each
// logger is asked to pause before a fork, and told when it is over.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace muses::detail {

/// Somebody who wants to know of forks. Both functions are called on the thread that forks.
class ForkWatcher {
public:
    virtual void before_fork() noexcept = 0;
    virtual void after_fork(bool in_child) noexcept = 0;

protected:
    ForkWatcher() = default;
    ForkWatcher(const ForkWatcher&) = delete;
    ForkWatcher& operator=(const ForkWatcher&) = delete;
    ~ForkWatcher() = default;

private:
    friend class ForkWatch;
    ForkWatcher* previous_ = nullptr;
    ForkWatcher* next_ = nullptr;
};

/// What: the watchers of this process, and how many forks lie between the first process with a watcher and this one.
/// Complexity: O(1); a fork visits every watcher.
/// Threads: any.
/// Lifetime: a watcher removes itself before it dies. The list is never destroyed.
/// Limits: fork() alone is seen, not vfork() or clone().
class ForkWatch {
public:
    /// Throws std::system_error when the system refuses to tell of forks.
    static void add(ForkWatcher& watcher) {
        static const int error = ::pthread_atfork(before, in_parent, in_child);
        if (error != 0) throw std::system_error(error, std::generic_category(), "muses::Logger: pthread_atfork");
        List& all = list();
        const std::lock_guard lock(all.mutex);
        watcher.next_ = all.first;
        if (all.first != nullptr) all.first->previous_ = &watcher;
        all.first = &watcher;
    }

    static void remove(ForkWatcher& watcher) noexcept {
        List& all = list();
        const std::lock_guard lock(all.mutex);
        if (all.first != &watcher && watcher.previous_ == nullptr) return;  // was never added
        (watcher.previous_ != nullptr ? watcher.previous_->next_ : all.first) = watcher.next_;
        if (watcher.next_ != nullptr) watcher.next_->previous_ = watcher.previous_;
    }

    /// Differs between a process and its children. Cheap: no system call.
    [[nodiscard]] static std::uint64_t generation() noexcept {
        return generation_.load(std::memory_order_relaxed);  // relaxed: written where there is one thread
    }

private:
    struct List {
        std::mutex mutex;  // held throughout a fork
        ForkWatcher* first = nullptr;
    };
    static List& list() {
        static List& all = *new List;  // loggers may live until the process ends
        return all;
    }

    template <class F>
    static void for_each(F f) noexcept {
        for (ForkWatcher* at = list().first; at != nullptr; at = at->next_) f(*at);
    }

    static void before() noexcept {
        list().mutex.lock();
        for_each([](ForkWatcher& watcher) { watcher.before_fork(); });
    }
    static void in_parent() noexcept {
        for_each([](ForkWatcher& watcher) { watcher.after_fork(false); });
        list().mutex.unlock();
    }
    static void in_child() noexcept {
        generation_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the child has one thread
        for_each([](ForkWatcher& watcher) { watcher.after_fork(true); });
        list().mutex.unlock();
    }

    inline static constinit std::atomic<std::uint64_t> generation_{0};
};

/// What: the rest before a fork, and who takes over in the child.
/// Complexity: O(1); before_fork() waits up to 0.1 s.
/// Threads: any; before_fork() and after_fork() on the thread that forks.
/// Lifetime: owns the heir.
/// Limits: one heir for a process. There is none when the rest did not come: somebody was stuck at work, or forks from inside of it.
template <class Core>
class ForkHeir {
public:
    /// Held by the owner's thread while it has its hands on what a child would take over. Lets a fork go first.
    [[nodiscard]] std::unique_lock<std::mutex> work() {
        // relaxed: only a hint, without which a thread that is always at work would leave no moment for a fork
        while (wanted_.load(std::memory_order_relaxed)) std::this_thread::sleep_for(kGlance);
        return std::unique_lock(working_);
    }

    void before_fork(bool at_work_itself) noexcept {
        wanted_.store(!at_work_itself, std::memory_order_relaxed);  // relaxed: as in work()
        holds_working_ = !at_work_itself && lock_within_patience(working_);
        holds_mutex_ = lock_within_patience(mutex_);
    }

    /// `may_inherit`: in a child, an heir may be made.
    void after_fork(bool in_child, bool may_inherit) noexcept {
        if (in_child) {
            rested_ = may_inherit && holds_working_;
            reachable_.store(holds_mutex_, std::memory_order_relaxed);  // relaxed: the child has one thread
        }
        if (holds_mutex_) mutex_.unlock();
        if (holds_working_) working_.unlock();
        wanted_.store(false, std::memory_order_relaxed);  // relaxed: as in work()
    }

    /// In a child: the heir, or what `make()` returns if there is none yet; null when there can be none. What `make` throws leaves none.
    template <class Make>
    [[nodiscard]] Core* get(Make&& make) noexcept {
        if (!reachable_.load(std::memory_order_relaxed)) return nullptr;  // relaxed: written where there was one thread
        const std::lock_guard lock(mutex_);
        if (!heir_ && std::exchange(rested_, false)) {
            try {
                heir_ = make();
            } catch (...) {  // no memory or no thread: who asks is told that there is none
            }
        }
        return heir_.get();
    }

    /// The same, but makes none.
    [[nodiscard]] Core* get() const noexcept {
        if (!reachable_.load(std::memory_order_relaxed)) return nullptr;  // relaxed: as above
        const std::lock_guard lock(mutex_);
        return heir_.get();
    }

    /// In a child: nobody has asked for an heir yet, who would get one.
    [[nodiscard]] bool pending() const noexcept {
        if (!reachable_.load(std::memory_order_relaxed)) return false;  // relaxed: as above
        const std::lock_guard lock(mutex_);
        return rested_;
    }

    /// From now on none is made.
    void renounce() noexcept {
        if (!reachable_.load(std::memory_order_relaxed)) return;  // relaxed: as above
        const std::lock_guard lock(mutex_);
        rested_ = false;
    }

private:
    static constexpr std::chrono::microseconds kGlance{100};
    static constexpr int kGlances = 1000;

    static bool lock_within_patience(std::mutex& mutex) noexcept {
        for (int round = 0; round < kGlances; ++round) {
            if (mutex.try_lock()) return true;
            std::this_thread::sleep_for(kGlance);
        }
        return false;
    }

    std::mutex working_;
    std::atomic<bool> wanted_{false};  // somebody waits for working_, to fork
    mutable std::mutex mutex_;         // guards heir_ and rested_
    std::shared_ptr<Core> heir_;
    bool rested_ = false;                 // in a child: nobody was at work when it was made, and no heir was asked for yet
    std::atomic<bool> reachable_{false};  // in a child: nobody held mutex_ when it was made
    bool holds_working_ = false;          // between before_fork() and after_fork()
    bool holds_mutex_ = false;
};

}  // namespace muses::detail
