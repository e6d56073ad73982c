#include "muses/detail/move_only_function.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using muses::detail::MoveOnlyFunction;

// Counts the objects alive, and how many there ever were.
struct Counted {
    static inline int alive = 0;
    static inline int made = 0;
    static void reset() { alive = made = 0; }

    Counted() noexcept { born(); }
    Counted(const Counted&) noexcept { born(); }
    Counted(Counted&&) noexcept { born(); }
    Counted& operator=(const Counted&) = default;
    Counted& operator=(Counted&&) = default;
    ~Counted() { --alive; }

    static void born() {
        ++alive;
        ++made;
    }
};

int twice(int x) { return 2 * x; }

struct Holder {
    int value = 5;
    [[nodiscard]] int plus(int x) const { return value + x; }
};

// Everything that both the standard's and ours must do; Family::type<Signature> is the wrapper.
template <class Family>
void check_what_both_kinds_do() {
    SUBCASE("an empty one says so") {
        typename Family::template type<void()> f;
        CHECK_FALSE(f);
        CHECK(f == nullptr);
        typename Family::template type<void()> g = nullptr;
        CHECK_FALSE(g);
    }
    SUBCASE("null pointers make an empty one") {
        int (*none)(int) = nullptr;
        typename Family::template type<int(int)> f = none;
        CHECK_FALSE(f);
        int (Holder::*no_member)(int) const = nullptr;
        typename Family::template type<int(const Holder&, int)> g = no_member;
        CHECK_FALSE(g);
        typename Family::template type<int(int)> h = std::move(f);
        CHECK_FALSE(h);
    }
    SUBCASE("functions and members and lambdas are called with their arguments") {
        typename Family::template type<int(int)> f = &twice;
        CHECK(f(21) == 42);
        f = twice;
        CHECK(f(4) == 8);
        typename Family::template type<int(const Holder&, int)> g = &Holder::plus;
        CHECK(g(Holder{}, 2) == 7);
        f = [n = 0](int x) mutable { return n += x; };
        CHECK(f(1) == 1);
        CHECK(f(2) == 3);
    }
    SUBCASE("captures and arguments and results may be move-only") {
        typename Family::template type<std::unique_ptr<int>(std::unique_ptr<int>)> f =
            [add = std::make_unique<int>(3)](std::unique_ptr<int> x) { return std::make_unique<int>(*x + *add); };
        auto g = std::move(f);
        CHECK(*g(std::make_unique<int>(4)) == 7);
        CHECK_FALSE(f);  // NOLINT(bugprone-use-after-move): what is left is specified
    }
    SUBCASE("references travel as references") {
        int x = 1;
        typename Family::template type<int&(int&)> f = [](int& r) -> int& { return ++r; };
        int& y = f(x);
        CHECK(&x == &y);
        CHECK(x == 2);
    }
    SUBCASE("a result may be thrown away") {
        int calls = 0;
        typename Family::template type<void()> f = [&] { return ++calls; };
        f();
        CHECK(calls == 1);
    }
    SUBCASE("what the callable throws comes out") {
        typename Family::template type<void()> f = [] { throw std::runtime_error("seen"); };
        CHECK_THROWS_AS(f(), std::runtime_error);
        CHECK(f);
    }
    SUBCASE("every callable is destroyed once") {
        Counted::reset();
        {
            typename Family::template type<void()> f = [c = Counted()] { (void)c; };
            typename Family::template type<void()> g = std::move(f);
            CHECK(Counted::alive == 1);
            f = std::move(g);
            CHECK(Counted::alive == 1);
            g = [c = Counted(), bulk = std::array<char, 200>{}] { (void)c, (void)bulk; };
            CHECK(Counted::alive == 2);
            swap(f, g);
            CHECK(Counted::alive == 2);
            f = nullptr;
            CHECK(Counted::alive == 1);
            g = [] {};
            CHECK(Counted::alive == 0);
        }
        CHECK(Counted::alive == 0);
    }
    SUBCASE("a large callable keeps its bytes over moves") {
        std::array<int, 100> numbers{};
        for (int i = 0; i < 100; ++i) numbers[static_cast<std::size_t>(i)] = i;
        typename Family::template type<int()> f = [numbers] {
            int sum = 0;
            for (const int n : numbers) sum += n;
            return sum;
        };
        auto g = std::move(f);
        auto h = std::move(g);
        CHECK(h() == 4950);
    }
    SUBCASE("an over-aligned callable stays aligned") {
        struct alignas(128) Wide {
            int value = 9;
            std::uintptr_t operator()() const {
                return reinterpret_cast<std::uintptr_t>(this) % 128 + static_cast<unsigned>(value);
            }
        };
        typename Family::template type<std::uintptr_t()> f = Wide{};
        auto g = std::move(f);
        CHECK(g() == 9);
    }
    SUBCASE("a callable made in place") {
        struct Adder {
            Adder(int a, int b) : sum(a + b) {}
            Adder(Adder&&) = delete;
            int operator()(int x) const { return sum + x; }
            int sum;
        };
        typename Family::template type<int(int)> f(std::in_place_type<Adder>, 1, 2);
        CHECK(f(3) == 6);
        auto g = std::move(f);
        CHECK(g(4) == 7);
    }
    SUBCASE("a constructor that throws leaves nothing behind") {
        Counted::reset();
        struct Thrower {
            explicit Thrower(bool fail) {
                if (fail) throw std::runtime_error("no");
            }
            void operator()() const { (void)this; }
            Counted c;
        };
        using F = typename Family::template type<void()>;
        CHECK_THROWS_AS(F(std::in_place_type<Thrower>, true), std::runtime_error);
        CHECK(Counted::alive == 0);
        F ok(std::in_place_type<Thrower>, false);
        CHECK(Counted::alive == 1);
    }
}

struct Ours {
    template <class S>
    using type = MoveOnlyFunction<S>;
};
struct Chosen {
    template <class S>
    using type = muses::detail::move_only_function<S>;
};

}  // namespace

TEST_CASE("move_only_function: the fallback does what the standard says") { check_what_both_kinds_do<Ours>(); }
TEST_CASE("move_only_function: the chosen one does what the standard says") { check_what_both_kinds_do<Chosen>(); }

TEST_CASE("move_only_function: 48 bytes of captures stay inside") {
    // What is inside moves with the wrapper, what is on the heap keeps its address.
    const auto moves_inside = [](const auto& payload) {
        MoveOnlyFunction<const void*()> f = [payload]() mutable { return static_cast<const void*>(&payload); };
        const void* before = f();
        auto g = std::move(f);
        return before != g();
    };
    CHECK(moves_inside(std::array<char, 1>{}));
    CHECK(moves_inside(std::array<char, 48>{}));
    CHECK_FALSE(moves_inside(std::array<char, 49>{}));
    struct alignas(64) Wide {
        char c = 0;
    };
    CHECK_FALSE(moves_inside(Wide{}));
    struct ThrowingMove {
        ThrowingMove() = default;
        ThrowingMove(const ThrowingMove&) {}             // no noexcept
        ThrowingMove(ThrowingMove&&) noexcept(false) {}  // NOLINT: that is the point
    };
    CHECK_FALSE(moves_inside(ThrowingMove{}));
}

TEST_CASE("move_only_function: a capture is moved as rarely as can be") {
    Counted::reset();
    Counted c;
    MoveOnlyFunction<void()> f = [c] { (void)c; };  // one copy into the lambda, one move into the wrapper
    CHECK(Counted::made == 3);
    auto g = std::move(f);
    CHECK(Counted::made == 4);
}

TEST_CASE("move_only_function: assignment to itself changes nothing") {
    MoveOnlyFunction<int()> f = [p = std::make_unique<int>(3)] { return *p; };
    auto& same = f;
    f = std::move(same);
    REQUIRE(f);
    CHECK(f() == 3);
    f.swap(same);
    CHECK(f() == 3);
}

TEST_CASE("move_only_function: it moves without throwing and does not copy") {
    using F = MoveOnlyFunction<void()>;
    static_assert(std::is_nothrow_move_constructible_v<F> && std::is_nothrow_move_assignable_v<F>);
    static_assert(!std::is_copy_constructible_v<F> && !std::is_copy_assignable_v<F>);
    static_assert(!std::is_constructible_v<F, int>);
    static_assert(!std::is_constructible_v<MoveOnlyFunction<int()>, void (*)()>);
    static_assert(std::is_constructible_v<MoveOnlyFunction<long()>, int (*)()>);
    CHECK(sizeof(F) == 64);
}

TEST_CASE("move_only_function: a destructor that looks at the wrapper sees the new callable") {
    struct Spy {
        MoveOnlyFunction<void()>* wrapper;
        bool* saw_itself;
        Spy(MoveOnlyFunction<void()>* w, bool* s) : wrapper(w), saw_itself(s) {}
        Spy(Spy&& o) noexcept : wrapper(std::exchange(o.wrapper, nullptr)), saw_itself(o.saw_itself) {}
        Spy& operator=(Spy&&) = delete;
        ~Spy() {
            if (wrapper != nullptr) *saw_itself = static_cast<bool>(*wrapper);
        }
        void operator()() const { (void)this; }
    };
    bool saw_itself = true;
    MoveOnlyFunction<void()> f;
    f = Spy(&f, &saw_itself);
    f = nullptr;
    CHECK_FALSE(saw_itself);
}
