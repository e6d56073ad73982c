// What a ThreadPool can be told, and what it throws.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

#include "muses/detail/overflow_policy.hpp"

namespace muses {

/// Settings of a ThreadPool. Hooks are called without any lock held, from several workers at once, and must not throw: what they
/// throw is swallowed and counted (ThreadPool::hook_errors).
struct ThreadPoolOptions {
    std::string name = "muses-pool";  ///< of every worker thread; cut to 15 bytes; empty: threads keep their creator's
    std::function<void(std::size_t)> on_start = {};             ///< on worker i, before its first job
    std::function<void(std::size_t)> on_exit = {};              ///< on worker i, after its last job; it cannot submit any more
    std::size_t max_queued = 0;                                 ///< jobs that may wait, those running not counted; 0 = no bound
    OverflowPolicy overflow = OverflowPolicy::DropNew;          ///< what becomes of a job beyond max_queued
    std::function<void(std::exception_ptr)> on_exception = {};  ///< for what a posted job throws; default: print it to stderr
};

/// Thrown by a submission that comes after stop().
class PoolStopped : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Thrown by a submission beyond max_queued under OverflowPolicy::DropNew.
class PoolQueueFull : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// What the future of a job ends with that was evicted or discarded instead of run.
class JobDiscarded : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

namespace detail {

/// The one JobDiscarded of the process. The first call allocates it and may throw std::bad_alloc; a pool's construction makes that
/// call, so that dropping a job later needs no memory. Never destroyed: pools with static storage drop jobs too.
inline const std::exception_ptr& job_discarded_error() {
    static const std::exception_ptr& error =
        *new std::exception_ptr(std::make_exception_ptr(JobDiscarded("muses::ThreadPool: the job was dropped from the queue")));
    return error;
}

}  // namespace detail
}  // namespace muses
