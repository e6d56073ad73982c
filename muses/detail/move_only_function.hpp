// A callable wrapper that moves but does not copy: std::move_only_function where the library has it, ours where it does not.
//
// `detail::move_only_function<R(Args...)>` is the name to use. `detail::MoveOnlyFunction` is the fallback; it exists everywhere so
// that it can be tested everywhere. Only plain signatures `R(Args...)` are supported: no const, reference or noexcept qualifiers.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace muses::detail {

template <class Signature>
class MoveOnlyFunction;

template <class>
inline constexpr bool kIsMoveOnlyFunction = false;
template <class Signature>
inline constexpr bool kIsMoveOnlyFunction<MoveOnlyFunction<Signature>> = true;
template <class>
inline constexpr bool kIsInPlaceType = false;
template <class T>
inline constexpr bool kIsInPlaceType<std::in_place_type_t<T>> = true;

/// What: owns one callable of any type, also a move-only one, and calls it as R(Args...).
/// Complexity: moves and calls are O(1); a callable of up to 48 bytes with a noexcept move is kept inside and allocates nothing,
///             a larger, over-aligned or throwing-move one is kept on the heap and moves as a pointer.
/// Threads: distinct objects are independent; one object belongs to one thread at a time.
/// Lifetime: owns its callable and destroys it when destroyed, assigned to or moved from.
/// Limits: calling an empty one is misuse with undefined behaviour, as with std::move_only_function; test it with `operator bool`.
template <class R, class... Args>
class MoveOnlyFunction<R(Args...)> {
public:
    /// Bytes of captures that are kept without an allocation.
    static constexpr std::size_t kInlineBytes = 48;

    using result_type = R;

    MoveOnlyFunction() noexcept = default;
    MoveOnlyFunction(std::nullptr_t) noexcept {}

    /// Takes a callable. A null function pointer, a null member pointer or an empty MoveOnlyFunction gives an empty one.
    // Whether F can be called comes before whether it can be constructed: a class with a constructor that takes a MoveOnlyFunction would
    // else be asked for that while it is being answered.
    template <class F>
        requires(!std::same_as<std::remove_cvref_t<F>, MoveOnlyFunction> && !kIsInPlaceType<std::remove_cvref_t<F>> &&
                 std::is_invocable_r_v<R, std::decay_t<F>, Args...> && std::is_invocable_r_v<R, std::decay_t<F>&, Args...> &&
                 std::is_constructible_v<std::decay_t<F>, F>)
    MoveOnlyFunction(F&& callable) {
        using Callable = std::decay_t<F>;
        constexpr bool kMayBeNull =
            std::is_pointer_v<Callable> || std::is_member_pointer_v<Callable> || kIsMoveOnlyFunction<Callable>;
        if constexpr (kMayBeNull && !std::is_function_v<std::remove_reference_t<F>>) {
            if (callable == nullptr) return;
        }
        emplace<Callable>(std::forward<F>(callable));
    }

    /// Makes the callable in place.
    template <class T, class... CtorArgs>
        requires(std::is_constructible_v<std::decay_t<T>, CtorArgs...> && std::is_invocable_r_v<R, std::decay_t<T>&, Args...>)
    explicit MoveOnlyFunction(std::in_place_type_t<T>, CtorArgs&&... args) {
        static_assert(std::same_as<T, std::decay_t<T>>, "name the type of the callable without const, volatile or reference");
        emplace<T>(std::forward<CtorArgs>(args)...);
    }

    MoveOnlyFunction(MoveOnlyFunction&& other) noexcept { take(other); }
    MoveOnlyFunction& operator=(MoveOnlyFunction&& other) noexcept {
        MoveOnlyFunction old(std::move(other));  // the old callable's destructor may look at *this: it dies after the exchange
        swap(old);
        return *this;
    }
    MoveOnlyFunction& operator=(std::nullptr_t) noexcept {
        MoveOnlyFunction old(std::move(*this));
        return *this;
    }
    template <class F>
        requires(!std::same_as<std::remove_cvref_t<F>, MoveOnlyFunction> && std::is_constructible_v<MoveOnlyFunction, F>)
    MoveOnlyFunction& operator=(F&& callable) {
        MoveOnlyFunction(std::forward<F>(callable)).swap(*this);
        return *this;
    }
    MoveOnlyFunction(const MoveOnlyFunction&) = delete;
    MoveOnlyFunction& operator=(const MoveOnlyFunction&) = delete;
    ~MoveOnlyFunction() {
        if (manage_ != nullptr) manage_(Action::Destroy, storage_, nullptr);
    }

    void swap(MoveOnlyFunction& other) noexcept {
        MoveOnlyFunction held;
        held.take(other);
        other.take(*this);
        take(held);
    }
    friend void swap(MoveOnlyFunction& a, MoveOnlyFunction& b) noexcept { a.swap(b); }

    /// True when there is a callable.
    [[nodiscard]] explicit operator bool() const noexcept { return invoke_ != nullptr; }
    [[nodiscard]] friend bool operator==(const MoveOnlyFunction& f, std::nullptr_t) noexcept { return !f; }

    /// Calls the callable. Throws what it throws and nothing of its own.
    R operator()(Args... args) { return invoke_(storage_, std::forward<Args>(args)...); }

private:
    enum class Action { Move, Destroy };

    // Scalars travel in registers, everything else by reference.
    template <class T>
    using Parameter = std::conditional_t<std::is_scalar_v<T>, T, T&&>;

    template <class T>
    static constexpr bool kFitsInline =
        sizeof(T) <= kInlineBytes && alignof(T) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<T>;

    template <class T>
    static R call(T& callable, Parameter<Args>... args) {
        return std::invoke_r<R>(callable, std::forward<Args>(args)...);
    }
    template <class T>
    static R invoke_inline(std::byte* storage, Parameter<Args>... args) {
        return call(*std::launder(reinterpret_cast<T*>(storage)), std::forward<Args>(args)...);
    }
    template <class T>
    static R invoke_heap(std::byte* storage, Parameter<Args>... args) {
        return call(**std::launder(reinterpret_cast<T**>(storage)), std::forward<Args>(args)...);
    }

    template <class T>
    static void manage_inline(Action action, std::byte* storage, std::byte* to) noexcept {
        T* callable = std::launder(reinterpret_cast<T*>(storage));
        if (action == Action::Move) std::construct_at(reinterpret_cast<T*>(to), std::move(*callable));
        std::destroy_at(callable);
    }
    template <class T>
    static void manage_heap(Action action, std::byte* storage, std::byte* to) noexcept {
        T** pointer = std::launder(reinterpret_cast<T**>(storage));
        if (action == Action::Move)
            std::construct_at(reinterpret_cast<T**>(to), *pointer);
        else
            delete *pointer;
    }

    template <class T, class... CtorArgs>
    void emplace(CtorArgs&&... args) {
        if constexpr (kFitsInline<T>) {
            ::new (static_cast<void*>(storage_)) T(std::forward<CtorArgs>(args)...);
            invoke_ = &invoke_inline<T>;
            if constexpr (!(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>)) manage_ = &manage_inline<T>;
        } else {
            ::new (static_cast<void*>(storage_)) T*(new T(std::forward<CtorArgs>(args)...));
            invoke_ = &invoke_heap<T>;
            manage_ = &manage_heap<T>;
        }
    }

    // Precondition: *this is empty. Leaves `other` empty.
    void take(MoveOnlyFunction& other) noexcept {
        if (other.manage_ != nullptr)
            other.manage_(Action::Move, other.storage_, storage_);
        else if (other.invoke_ != nullptr)
            std::memcpy(storage_, other.storage_, kInlineBytes);
        invoke_ = std::exchange(other.invoke_, nullptr);
        manage_ = std::exchange(other.manage_, nullptr);
    }

    alignas(std::max_align_t) std::byte storage_[kInlineBytes];
    R (*invoke_)(std::byte*, Parameter<Args>...) = nullptr;              // null: empty
    void (*manage_)(Action, std::byte*, std::byte*) noexcept = nullptr;  // null: empty, or bytes that move by memcpy
};

#if defined(__cpp_lib_move_only_function) && __cpp_lib_move_only_function >= 202110L
template <class Signature>
using move_only_function = std::move_only_function<Signature>;
#else
template <class Signature>
using move_only_function = MoveOnlyFunction<Signature>;
#endif

}  // namespace muses::detail
