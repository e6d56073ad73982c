// One entry of the LRU cache, and the circular lists that it is in.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "muses/detail/lru_options.hpp"

namespace muses::detail {

/// A place in a circular list; the list itself is a place without an entry. Tag tells apart the lists that an entry is in.
template <class Tag>
struct LruLink {
    LruLink* prev = this;
    LruLink* next = this;
    LruLink() = default;
    LruLink(const LruLink&) = delete;
    LruLink& operator=(const LruLink&) = delete;

    [[nodiscard]] bool alone() const noexcept { return next == this; }
    void unlink() noexcept {
        prev->next = next;
        next->prev = prev;
        prev = next = this;
    }
    /// Puts this place, which is in no list, right after `at`.
    void link_after(LruLink& at) noexcept {
        prev = &at;
        next = at.next;
        next->prev = this;
        at.next = this;
    }
};

struct LruByUse {};
struct LruByAge {};

/// Undoes the move of an argument, where it was one: A is a non-const rvalue of the type that was made from it.
template <class A, class T>
void give_back([[maybe_unused]] A& argument, [[maybe_unused]] T& moved_to) noexcept {
    if constexpr (std::same_as<A, T> && std::is_nothrow_move_assignable_v<T>) argument = std::move(moved_to);
}

/// One entry. It never moves, so its key and value may be of any type that can be constructed.
template <class Key, class Value>
struct LruNode : LruLink<LruByUse>, LruLink<LruByAge> {
    using Use = LruLink<LruByUse>;
    using Age = LruLink<LruByAge>;

    template <class K, class... Args>
    LruNode(std::uint64_t h, K&& k, Args&&... args) : hash(h) {
        // Whichever of the two throws, the other's arguments must not have been moved from: what cannot throw comes last.
        if constexpr (std::is_nothrow_constructible_v<Key, K>) {
            build(value, std::forward<Args>(args)...);
            build(key, std::forward<K>(k));
        } else {
            build(key, std::forward<K>(k));
            try {
                build(value, std::forward<Args>(args)...);
            } catch (...) {
                give_back<K>(k, key);
                std::destroy_at(std::addressof(key));
                throw;
            }
        }
    }
    ~LruNode() {
        std::destroy_at(std::addressof(key));
        std::destroy_at(std::addressof(value));
    }

    union {  // so that the constructor chooses the order
        Value value;
    };
    union {
        Key key;
    };
    std::uint64_t hash;
    std::size_t weight = 1;
    std::int64_t born = 0;  // the clock's nanoseconds at the put; unused without a ttl
    EvictCause cause = EvictCause::Erased;

private:
    template <class T, class... Args>
    static void build(T& place, Args&&... args) {
        ::new (const_cast<void*>(static_cast<const void*>(std::addressof(place)))) T(std::forward<Args>(args)...);
    }
};

}  // namespace muses::detail
