// All memory pools of the process: who is asked whether a pool is still there, and what frees a pool that ended before its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "muses/detail/mem_block.hpp"
#include "muses/detail/mem_cache.hpp"
#include "muses/detail/mem_core.hpp"
#include "muses/detail/mem_options.hpp"
#include "muses/detail/mem_sanitizer.hpp"

namespace muses::detail {

/// What: the cores of all pools of the process, by a number that is never used again.
/// Complexity: O(1) expected.
/// Threads: any.
/// Lifetime: never destroyed.
/// Limits: a core is destroyed with neither its own lock nor the registry's held, as the user's hook goes with it.
class MemRegistry {
public:
    using Graveyard = std::unique_ptr<MemCore>;  // a list

    [[nodiscard]] static MemRegistry& instance() {
        static auto& registry = *new MemRegistry;
        return registry;
    }

    [[nodiscard]] MemCore& create(MemoryPoolOptions options) {
        Graveyard dead;
        const std::lock_guard lock(mutex_);
        sweep(dead);
        auto core = std::make_unique<MemCore>(std::move(options), ++last_id_);
        MemCore& created = *core;
        cores_.emplace(created.id(), std::move(core));
        return created;
    }

    /// The pool object is gone.
    void close(MemCore& core) {
        Graveyard dead;
        const std::lock_guard lock(mutex_);
        core.close();
        sweep(dead);
    }

    /// A block without holders, of a closed core, comes home.
    void release_closed(MemCore& core, BlockHeader* block) {
        Graveyard dead;
        const std::lock_guard lock(mutex_);
        block->become(BlockHeader::State::Live, BlockHeader::State::Free);
        poison(block->payload(), mem_class_bytes(block->size_class()));
        if (core.count_closed_release()) bury(cores_.find(core.id()), dead);
    }

    /// Calls use(core) for each of the pools of `ids` that still lives and is not closed.
    template <class Leases, class Use>
    void for_each_open(const Leases& leases, Use use) {
        Graveyard dead;
        const std::lock_guard lock(mutex_);
        sweep(dead);
        for (auto& lease : leases) {
            const auto found = cores_.find(lease.pool);
            if (found != cores_.end() && !found->second->closed()) use(*found->second, lease);
        }
    }

    /// Pools that have not been freed, with those whose blocks outlive them.
    [[nodiscard]] std::size_t size() {
        const std::lock_guard lock(mutex_);
        return cores_.size();
    }

private:
    using Cores = std::unordered_map<std::uint64_t, std::unique_ptr<MemCore>>;

    // The dead are destroyed by the caller, after the lock.
    Cores::iterator bury(Cores::iterator core, Graveyard& dead) {
        core->second->next_dead = std::exchange(dead, nullptr);
        dead = std::move(core->second);
        return cores_.erase(core);
    }

    void sweep(Graveyard& dead) {
        for (auto core = cores_.begin(); core != cores_.end();) {
            if (core->second->closed() && core->second->all_home())
                core = bury(core, dead);
            else
                ++core;
        }
    }

    std::mutex mutex_;
    Cores cores_;
    std::uint64_t last_id_ = 0;
};

}  // namespace muses::detail
