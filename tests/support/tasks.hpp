// For tests of coroutines: objects that are counted, frames that are counted, and a thread with a small stack.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <system_error>
#include <utility>

#include "muses/detail/task_frame_pool.hpp"

namespace muses::test {

/// Frames of this thread that are alive.
[[nodiscard]] inline std::int64_t live_frames() noexcept { return detail::FramePool::of_this_thread().live(); }

/// Counts its instances.
class Counted {
public:
    Counted() noexcept { ++alive(); }
    Counted(const Counted& /*other*/) noexcept { ++alive(); }
    Counted(Counted&& /*other*/) noexcept { ++alive(); }
    Counted& operator=(const Counted&) noexcept = default;
    Counted& operator=(Counted&&) noexcept = default;
    ~Counted() { --alive(); }

    static int& alive() noexcept {
        static thread_local int count = 0;
        return count;
    }
};

/// Runs `body` on a thread with a stack of `bytes`, and waits for it.
inline void on_stack_of(std::size_t bytes, std::function<void()> body) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    pthread_t thread{};
    const int error = pthread_create(
        &thread, &attributes,
        [](void* function) -> void* {
            (*static_cast<std::function<void()>*>(function))();
            return nullptr;
        },
        &body);
    pthread_attr_destroy(&attributes);
    if (error != 0) throw std::system_error(error, std::system_category(), "pthread_create");
    pthread_join(thread, nullptr);
}

}  // namespace muses::test
