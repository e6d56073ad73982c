// muses::stop_source, muses::stop_token and muses::stop_callback: the standard library's where it has them, else the same here.
//
// Also StopTokenLike, what the library's waits accept as a token, and StopCallbackFor, how such a wait is woken by one.
#pragma once

#include <version>

#if defined(__cpp_lib_jthread) && __cpp_lib_jthread >= 201911L
#include <stop_token>
#define MUSES_DETAIL_STD_STOP_TOKEN 1
#else
#define MUSES_DETAIL_STD_STOP_TOKEN 0
#endif

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

namespace muses {

#if MUSES_DETAIL_STD_STOP_TOKEN

using std::nostopstate;
using std::nostopstate_t;
using std::stop_callback;
using std::stop_source;
using std::stop_token;

#else

struct nostopstate_t {
    explicit nostopstate_t() = default;
};
inline constexpr nostopstate_t nostopstate{};

namespace detail {

/// A registered callback: a node of the state's list. The node belongs to the stop_callback object.
struct StopNode {
    void (*run)(StopNode*) noexcept = nullptr;
    StopNode* next = nullptr;
    StopNode** link = nullptr;  // what points at this node; null when not in the list
    bool* destroyed = nullptr;  // set while running: tells the runner that the callback destroyed its own node
};

/// What: the state that sources, tokens and callbacks share. Complexity: O(1) per operation, request_stop is linear in callbacks.
/// Threads: any; callbacks run on the thread of request_stop, never under the lock.
/// Lifetime: counted by references; the last one deletes it.
/// Limits: 2^32 references.
class StopState {
public:
    void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: the caller already holds one
    void release() noexcept {
        // acq_rel: pairs with itself; whoever deletes has seen everything that the other holders did before letting go.
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }
    void add_source() noexcept { sources_.fetch_add(1, std::memory_order_relaxed); }   // relaxed: only counted, guards nothing
    void drop_source() noexcept { sources_.fetch_sub(1, std::memory_order_release); }  // pairs with the load in stop_possible()

    // acquire: pairs with the release store in request_stop(), so that what its caller wrote before is seen.
    [[nodiscard]] bool requested() const noexcept { return requested_.load(std::memory_order_acquire); }
    // acquire: pairs with the release in drop_source(); a request made by the last source before it died is then seen as well.
    [[nodiscard]] bool possible() const noexcept { return sources_.load(std::memory_order_acquire) != 0 || requested(); }

    /// True for the one caller that made the request; by its return all callbacks registered before have run.
    bool request_stop() noexcept {
        std::unique_lock lock(mutex_);
        // relaxed: written under the mutex only, which is held.
        if (requested_.load(std::memory_order_relaxed)) return false;
        requested_.store(true, std::memory_order_release);  // pairs with the acquire in requested()
        runner_ = std::this_thread::get_id();
        while (StopNode* node = first_) {
            unlink(node);
            bool destroyed = false;
            node->destroyed = &destroyed;
            running_ = node;
            lock.unlock();
            node->run(node);
            lock.lock();
            if (!destroyed) node->destroyed = nullptr;
            running_ = nullptr;
            finished_.notify_all();  // under the lock: a waiter may let go of the state as soon as it can return
        }
        return true;
    }

    /// False when a stop was requested already: then the node is not in the list and the caller runs it itself.
    bool add(StopNode* node) noexcept {
        const std::lock_guard lock(mutex_);
        if (requested_.load(std::memory_order_relaxed)) return false;  // relaxed: under the mutex
        node->next = first_;
        node->link = &first_;
        if (first_ != nullptr) first_->link = &node->next;
        first_ = node;
        return true;
    }

    /// After it returns the callback does not run and will not run, except on this very thread further up the stack.
    void remove(StopNode* node) noexcept {
        std::unique_lock lock(mutex_);
        if (node->link != nullptr) {
            unlink(node);
            return;
        }
        if (running_ != node) return;
        if (runner_ == std::this_thread::get_id()) {
            *node->destroyed = true;
            running_ = nullptr;  // the address may be used again for another callback before this run ends
            return;
        }
        finished_.wait(lock, [&] { return running_ != node; });
    }

private:
    static void unlink(StopNode* node) noexcept {
        *node->link = node->next;
        if (node->next != nullptr) node->next->link = node->link;
        node->link = nullptr;
    }

    std::atomic<std::uint32_t> references_{1};
    std::atomic<std::uint32_t> sources_{1};
    std::atomic<bool> requested_{false};
    std::mutex mutex_;
    std::condition_variable finished_;
    StopNode* first_ = nullptr;
    StopNode* running_ = nullptr;
    std::thread::id runner_;
};

/// Counted pointer to a StopState.
class StopRef {
public:
    StopRef() noexcept = default;
    explicit StopRef(StopState* owned) noexcept : state_(owned) {}
    StopRef(const StopRef& other) noexcept : state_(other.state_) {
        if (state_ != nullptr) state_->retain();
    }
    StopRef(StopRef&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    StopRef& operator=(StopRef other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~StopRef() {
        if (state_ != nullptr) state_->release();
    }
    [[nodiscard]] StopState* operator->() const noexcept { return state_; }
    [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }
    friend bool operator==(const StopRef&, const StopRef&) noexcept = default;

private:
    StopState* state_ = nullptr;
};

}  // namespace detail

class stop_source;
template <class Callback>
class stop_callback;

/// What: the side that asks whether a stop was requested; as std::stop_token. Complexity: O(1).
/// Threads: distinct objects are independent; stop_requested() from any thread.
/// Lifetime: keeps the shared state alive.
/// Limits: none.
class stop_token {
public:
    template <class Callback>
    using callback_type = stop_callback<Callback>;

    stop_token() noexcept = default;

    [[nodiscard]] bool stop_requested() const noexcept { return state_ && state_->requested(); }
    /// False when no request was made and none can come any more.
    [[nodiscard]] bool stop_possible() const noexcept { return state_ && state_->possible(); }
    void swap(stop_token& other) noexcept { std::swap(state_, other.state_); }
    friend void swap(stop_token& a, stop_token& b) noexcept { a.swap(b); }
    friend bool operator==(const stop_token&, const stop_token&) noexcept = default;

private:
    friend class stop_source;
    template <class Callback>
    friend class stop_callback;
    explicit stop_token(detail::StopRef state) noexcept : state_(std::move(state)) {}

    detail::StopRef state_;
};

/// What: the side that requests a stop; as std::stop_source. Complexity: O(1), request_stop linear in callbacks.
/// Threads: distinct objects are independent; request_stop() from any thread.
/// Lifetime: keeps the shared state alive.
/// Limits: none.
class stop_source {
public:
    stop_source() : state_(new detail::StopState) {}
    explicit stop_source(nostopstate_t) noexcept {}
    stop_source(const stop_source& other) noexcept : state_(other.state_) {
        if (state_) state_->add_source();
    }
    stop_source(stop_source&& other) noexcept : state_(std::exchange(other.state_, detail::StopRef())) {}
    stop_source& operator=(stop_source other) noexcept {
        swap(other);
        return *this;
    }
    ~stop_source() {
        if (state_) state_->drop_source();
    }

    [[nodiscard]] stop_token get_token() const noexcept { return stop_token(state_); }
    [[nodiscard]] bool stop_requested() const noexcept { return state_ && state_->requested(); }
    [[nodiscard]] bool stop_possible() const noexcept { return static_cast<bool>(state_); }
    /// Makes the request and runs the registered callbacks on this thread. True for the first request only.
    bool request_stop() noexcept {
        const detail::StopRef state = state_;  // a callback may destroy this source and every other owner of the state
        return state && state->request_stop();
    }
    void swap(stop_source& other) noexcept { std::swap(state_, other.state_); }
    friend void swap(stop_source& a, stop_source& b) noexcept { a.swap(b); }
    friend bool operator==(const stop_source& a, const stop_source& b) noexcept { return a.state_ == b.state_; }

private:
    detail::StopRef state_;
};

/// What: runs a function once when a stop is requested, at once when it was already; as std::stop_callback. Complexity: O(1).
/// Threads: the function runs on the thread that requests the stop, or in this constructor.
/// Lifetime: after the destructor the function neither runs nor will run (the destructor waits for a run on another thread).
/// Limits: an exception from the function ends the program.
template <class Callback>
class stop_callback : private detail::StopNode {
    static_assert(std::is_invocable_v<Callback> && std::is_destructible_v<Callback>,
                  "stop_callback: the function must be callable without arguments");

public:
    using callback_type = Callback;

    template <class Function>
        requires std::constructible_from<Callback, Function>
    explicit stop_callback(const stop_token& token,
                           Function&& function) noexcept(std::is_nothrow_constructible_v<Callback, Function>)
        : stop_callback(stop_token(token), std::forward<Function>(function)) {}
    template <class Function>
        requires std::constructible_from<Callback, Function>
    explicit stop_callback(stop_token&& token, Function&& function) noexcept(std::is_nothrow_constructible_v<Callback, Function>)
        : state_(std::move(token.state_)), function_(std::forward<Function>(function)) {
        run = [](detail::StopNode* node) noexcept { std::forward<Callback>(static_cast<stop_callback*>(node)->function_)(); };
        if (!state_ || !state_->possible()) return;
        if (!state_->add(this)) run(this);
    }
    stop_callback(const stop_callback&) = delete;
    stop_callback& operator=(const stop_callback&) = delete;
    ~stop_callback() {
        if (state_) state_->remove(this);
    }

private:
    detail::StopRef state_;
    Callback function_;
};

template <class Callback>
stop_callback(stop_token, Callback) -> stop_callback<Callback>;

#endif

/// What a wait accepts as a token: a type that can be asked whether a stop was requested.
template <class Token>
concept StopTokenLike = requires(const Token& token) {
    { token.stop_requested() } -> std::convertible_to<bool>;
};

namespace detail {

template <class Token, class Callback>
struct StopCallbackForImpl {
    using Type = void;
};
template <class Token, class Callback>
    requires requires { typename Token::template callback_type<Callback>; }
struct StopCallbackForImpl<Token, Callback> {
    using Type = typename Token::template callback_type<Callback>;
};
template <class Callback>
struct StopCallbackForImpl<stop_token, Callback> {
    using Type = stop_callback<Callback>;
};

/// The callback type that goes with a token (muses::stop_token, or any token with a nested callback_type); void when it has none.
template <class Token, class Callback>
using StopCallbackFor = typename StopCallbackForImpl<Token, Callback>::Type;

}  // namespace detail

}  // namespace muses
