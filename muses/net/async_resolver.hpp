// Host names for tasks: the system's look-up blocks, so a worker does it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/lru_cache.hpp"
#include "muses/net/endpoint.hpp"
#include "muses/task.hpp"
#include "muses/thread_pool.hpp"

namespace muses {

struct AsyncResolverOptions {
    using Lookup = std::function<std::expected<std::vector<Endpoint>, std::error_code>(std::string_view host, std::uint16_t port)>;

    LruTtl ttl = std::chrono::seconds(60);  ///< for so long a name that was found is not looked up again
    std::size_t max_entries = 1024;         ///< names kept; 0: none
    std::size_t threads = 1;                ///< look-ups at a time; 0: as many as there are processors
    std::size_t max_waiting = 1024;  ///< look-ups that may wait for a thread; further ones end with resource_unavailable_try_again
    Lookup lookup = {};              ///< called by the workers; empty: muses::resolve. What it throws is out of memory
};

/// What: looks host names up without blocking the thread of the task that asks.
/// Complexity: a name in the cache, or a numeric address: no thread is crossed. Else one job; one for a name, however many ask.
/// Threads: any; a task goes on with its own scheduler.
/// Lifetime: the destructor waits for the look-ups that are under way; those that have not begun end with operation_canceled.
/// Limits: what AsyncResolverOptions says. Failures are not kept. A look-up cannot be interrupted; who waits for it can.
class AsyncResolver {
public:
    using Result = std::expected<std::vector<Endpoint>, std::error_code>;

    /// Throws std::system_error when there is no thread.
    explicit AsyncResolver(AsyncResolverOptions options = {})
        : lookup_(std::move(options.lookup)),
          found_({.max_entries = options.max_entries, .ttl = options.ttl}),
          pool_(options.threads, {.name = "resolver", .max_queued = options.max_waiting}) {}
    AsyncResolver(const AsyncResolver&) = delete;
    AsyncResolver& operator=(const AsyncResolver&) = delete;
    ~AsyncResolver() {
        closing_.store(true, std::memory_order_relaxed);  // relaxed: a hint; a look-up that overlooks it is merely carried out
        pool_.stop();
    }

    /// `co_await resolver.resolve("example.com", 80)`: the addresses, IPv4 ones first, or an error (of resolve_category(), for example).
    /// Throws muses::cancelled, std::bad_alloc.
    Task<Result> resolve(std::string host, std::uint16_t port) {
        if (const auto numeric = Endpoint::ip(host, port)) co_return std::vector{*numeric};
        const std::string key = host + ' ' + std::to_string(port);
        if (auto known = found_.get(key)) co_return std::move(*known);
        const std::shared_ptr<Asked> asked = ask(key, std::move(host), port);
        co_await asked->answered.wait();
        co_return asked->result;
    }

    /// Forgets what has been found.
    void clear() { found_.clear(); }

private:
    // One look-up and those who wait for it.
    struct Asked {
        AsyncEvent answered;
        Result result = std::unexpected(std::make_error_code(std::errc::operation_canceled));  // final once `answered` is set
    };

    std::shared_ptr<Asked> ask(const std::string& key, std::string host, std::uint16_t port) {
        std::shared_ptr<Asked> asked;
        {
            const std::lock_guard lock(mutex_);
            std::shared_ptr<Asked>& place = under_way_[key];
            if (place != nullptr) return place;
            try {
                place = asked = std::make_shared<Asked>();
            } catch (...) {
                under_way_.erase(key);
                throw;
            }
        }
        try {
            pool_.post([this, asked, key, name = std::move(host), port] { answer(*asked, key, name, port); });
        } catch (const PoolQueueFull&) {
            finish(*asked, key, std::unexpected(std::make_error_code(std::errc::resource_unavailable_try_again)));
        } catch (...) {
            finish(*asked, key, std::unexpected(std::make_error_code(std::errc::not_enough_memory)));
        }
        return asked;
    }

    void answer(Asked& asked, const std::string& key, const std::string& host, std::uint16_t port) noexcept {
        Result result = std::unexpected(std::make_error_code(std::errc::operation_canceled));
        try {
            if (!closing_.load(std::memory_order_relaxed)) result = lookup_ ? lookup_(host, port) : muses::resolve(host, port);
            if (result) found_.put(key, *result);
        } catch (...) {
            result = std::unexpected(std::make_error_code(std::errc::not_enough_memory));
        }
        finish(asked, key, std::move(result));
    }

    void finish(Asked& asked, const std::string& key, Result result) noexcept {
        {
            const std::lock_guard lock(mutex_);
            under_way_.erase(key);
        }
        asked.result = std::move(result);
        asked.answered.set();
    }

    AsyncResolverOptions::Lookup lookup_;
    LruCache<std::string, std::vector<Endpoint>> found_;
    std::atomic<bool> closing_{false};
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<Asked>> under_way_;  // guarded by mutex_
    ThreadPool pool_;                                          // last: its workers use all of the above
};

}  // namespace muses
