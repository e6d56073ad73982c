// What stands in the lists of a task scheduler: coroutines that are ready to go on, and waits that a cancellation would end.
#pragma once

#include <utility>

namespace muses::detail {

/// What: a link of a circular list. A linked one unlinks itself without knowing whose list it is in.
/// Complexity: O(1). Threads: that of its list. Lifetime: must be unlinked when it dies. Limits: one list at a time.
struct ListLink {
    ListLink() noexcept = default;
    /// Only one that is in no list may be moved.
    ListLink(ListLink&& /*other*/) noexcept {}
    ListLink& operator=(ListLink&&) = delete;

    [[nodiscard]] bool linked() const noexcept { return next != nullptr; }

    void unlink() noexcept {
        if (next == nullptr) return;
        prev->next = next;
        next->prev = prev;
        prev = next = nullptr;
    }

    ListLink* prev = nullptr;
    ListLink* next = nullptr;
};

/// A circular list of nodes that derive from ListLink; `Node` may derive from it more than once, through `Link`.
template <class Node, class Link = ListLink>
class LinkedList {
public:
    LinkedList() noexcept { head_.prev = head_.next = &head_; }
    LinkedList(const LinkedList&) = delete;
    LinkedList& operator=(const LinkedList&) = delete;
    ~LinkedList() {
        while (pop_front() != nullptr) {}
    }

    [[nodiscard]] bool empty() const noexcept { return head_.next == &head_; }

    /// The first node, or null.
    [[nodiscard]] Node* front() noexcept { return empty() ? nullptr : node(head_.next); }

    void push_back(Node& added) noexcept {
        ListLink& link = static_cast<Link&>(added);
        link.prev = head_.prev;
        link.next = &head_;
        head_.prev->next = &link;
        head_.prev = &link;
    }

    /// Unlinks and returns the first node; null when there is none.
    Node* pop_front() noexcept {
        if (empty()) return nullptr;
        ListLink* const first = head_.next;
        first->unlink();
        return node(first);
    }

    /// Moves all of `other` to the end of this list.
    void splice_back(LinkedList& other) noexcept {
        if (other.empty()) return;
        other.head_.next->prev = head_.prev;
        other.head_.prev->next = &head_;
        head_.prev->next = other.head_.next;
        head_.prev = other.head_.prev;
        other.head_.prev = other.head_.next = &other.head_;
    }

private:
    static Node* node(ListLink* link) noexcept { return static_cast<Node*>(static_cast<Link*>(link)); }

    ListLink head_;
};

/// Something to be run by a scheduler: in most cases, to resume a coroutine.
struct ReadyNode : ListLink {
    using Run = void (*)(ReadyNode&) noexcept;
    explicit ReadyNode(Run what) noexcept : run(what) {}

    /// Does not look at the links of one in the inbox: other threads change those when they put its neighbours there.
    [[nodiscard]] bool scheduled() const noexcept { return in_inbox || linked(); }

    Run run;
    bool in_inbox = false;  // it came from another thread, and stands in a list that others touch
};

/// What a cancellation ends: a wait, or a scope with waits of its own.
struct Cancellable : ListLink {
    using Cancel = void (*)(Cancellable&) noexcept;
    explicit Cancellable(Cancel how) noexcept : cancel(how) {}

    Cancel cancel;  // null: this is a CancelScope
};

/// What: the waits below one point of a tree of tasks, to be ended together.
/// Complexity: O(1) to enter and leave; request O(waits below).
/// Threads: that of the tree's scheduler.
/// Lifetime: on the frame of what it encloses; unlinks itself.
/// Limits: a request is for ever.
class CancelScope : private Cancellable {
public:
    /// `outside` is the enclosing scope, or null: a request there is one here.
    explicit CancelScope(CancelScope* outside) noexcept
        : Cancellable(nullptr), outside_(outside), requested_(outside != nullptr && outside->requested()) {
        if (outside_ != nullptr && !requested_) outside_->inside_.push_back(*this);
    }
    ~CancelScope() { unlink(); }

    [[nodiscard]] bool requested() const noexcept {
        for (const CancelScope* scope = this; scope != nullptr; scope = scope->outside_)
            if (scope->requested_ || (scope->stopped_ != nullptr && scope->stopped_(scope->asked_))) return true;
        return false;
    }

    /// Lets requested() ask `stopped(asked)` too, which answers for a token that another thread may stop.
    void ask_too(bool (*stopped)(const void*) noexcept, const void* asked) noexcept {
        stopped_ = stopped;
        asked_ = asked;
    }

    void enter(Cancellable& wait) noexcept { inside_.push_back(wait); }

    /// Ends all waits inside. Scopes inside are not entered by recursion: their waits join the list of this one.
    void request() noexcept {
        requested_ = true;
        LinkedList<Cancellable> ending;
        ending.splice_back(inside_);
        while (Cancellable* one = ending.pop_front()) {
            if (one->cancel != nullptr) {
                one->cancel(*one);
            } else {
                auto& scope = static_cast<CancelScope&>(*one);
                scope.requested_ = true;
                ending.splice_back(scope.inside_);
            }
        }
    }

private:
    CancelScope* outside_;
    bool requested_;
    bool (*stopped_)(const void*) noexcept = nullptr;
    const void* asked_ = nullptr;
    LinkedList<Cancellable> inside_;
};

}  // namespace muses::detail
