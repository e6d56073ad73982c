// What Muses needs of a compiler and its standard library. Compiled and linked by cmake/, never shipped.
#include <coroutine>
#include <expected>
#include <format>
#include <semaphore>
#include <span>
#include <string>

#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ < 19
#error "clang 19 or newer is needed"
#elif !defined(__clang__) && defined(__GNUC__) && __GNUC__ < 14
#error "gcc 14 or newer is needed"
#endif

struct Nothing {
    struct promise_type {
        Nothing get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
};

static Nothing run(std::counting_semaphore<>& done) {
    co_await std::suspend_never{};
    done.release();
}

static std::expected<std::string, int> text(std::span<const int> numbers) {
    if (numbers.empty()) {
        return std::unexpected(1);
    }
    return std::format("{}", numbers.front());
}

int main() {
    std::counting_semaphore<> done(0);
    run(done);
    done.acquire();
    const int numbers[] = {7};
    return text(numbers).transform([](const std::string& s) { return s == "7" ? 0 : 1; }).value_or(2);
}
