// One entry of the LRU cache, and the circular lists that it is in.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// One entry. It never moves, so its key and value may be of any type that can be constructed.
template <class Key, class Value>
struct LruNode : LruLink<LruByUse>, LruLink<LruByAge> {
    using Use = LruLink<LruByUse>;
    using Age = LruLink<LruByAge>;

    template <class K, class... Args>
    LruNode(std::uint64_t h, K&& k, Args&&... args) : value(std::forward<Args>(args)...), key(std::forward<K>(k)), hash(h) {}

    Value value;
    Key key;
    std::uint64_t hash;
    std::size_t weight = 1;
    std::int64_t born = 0;  // the clock's nanoseconds at the put; unused without a ttl
    EvictCause cause = EvictCause::Erased;
};

}  // namespace muses::detail
