// Coroutines: a task that is started by being awaited, and what a program made of tasks needs.
//
//     muses::Task<int> answer() { co_return 42; }
//     muses::Task<> ask() { std::printf("%d\n", co_await answer()); }
//     muses::sync_wait(ask());
//
// Task<T>                       a coroutine that returns T                               task_core.hpp
// sync_wait                     from a plain function into a task                        task_sync_wait.hpp
// when_all, when_any            several at a time                                        task_when.hpp
// TaskScope, spawn, invoke      tasks that nobody awaits one by one                      task_scope.hpp
// sleep_for, with_timeout, with_stop_token, cancelled                                    task_time.hpp, task_wait.hpp
// AsyncEvent, AsyncMutex, AsyncSemaphore                                                 task_sync.hpp
// Channel<T>                    values from task to task                                 task_channel.hpp
// IoAwaiter, IoScheduler        waiting for descriptors, and what an event loop offers   task_io.hpp
#pragma once

#include "muses/detail/task_channel.hpp"
#include "muses/detail/task_core.hpp"
#include "muses/detail/task_foreign.hpp"
#include "muses/detail/task_io.hpp"
#include "muses/detail/task_scheduler.hpp"
#include "muses/detail/task_scope.hpp"
#include "muses/detail/task_sync.hpp"
#include "muses/detail/task_sync_wait.hpp"
#include "muses/detail/task_time.hpp"
#include "muses/detail/task_wait.hpp"
#include "muses/detail/task_when.hpp"
