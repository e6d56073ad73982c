// Which tasks wait for which descriptors of an event loop.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "muses/detail/event_mask.hpp"
#include "muses/detail/task_io.hpp"
#include "muses/net/io_watches.hpp"
#include "muses/net/poller.hpp"

namespace muses::detail {

/// What: the waits of tasks by descriptor: a reader and a writer share one watch, which is there as long as one of them is.
/// Complexity: O(1); one system call when a wait begins, one when the last one of a descriptor ends.
/// Threads: the loop's.
/// Lifetime: owns neither waits nor descriptors.
/// Limits: one reader and one writer for each descriptor. 8 bytes for each number up to the highest, which stay.
class IoWaits {
public:
    explicit IoWaits(IoWatches& watches, NativePoller& poller) noexcept : watches_(watches), poller_(poller) {}
    IoWaits(const IoWaits&) = delete;
    IoWaits& operator=(const IoWaits&) = delete;

    /// As IoScheduler says.
    [[nodiscard]] std::error_code begin(IoWait& wait) noexcept {
        constexpr EventMask kEither = EventMask::Readable | EventMask::Writable;
        if (wait.fd() < 0) return std::make_error_code(std::errc::bad_file_descriptor);
        if ((wait.interest() & kEither) == EventMask::None) return std::make_error_code(std::errc::invalid_argument);
        try {
            return begin(wait, entry(wait.fd()));
        } catch (const std::bad_alloc&) {
            return std::make_error_code(std::errc::not_enough_memory);
        }
    }

    /// As IoScheduler says.
    void end(IoWait& wait) noexcept {
        Entry& entry = *entries_[static_cast<std::size_t>(wait.fd())];
        if (entry.reader != &wait && entry.writer != &wait) return;  // it has been told already that its file is gone
        if (entry.reader == &wait) entry.reader = nullptr;
        if (entry.writer == &wait) entry.writer = nullptr;
        if (entry.reader != nullptr || entry.writer != nullptr) return;
        // Closed between the event and now: who goes on must not take the number for the file that it has waited for.
        if (!watches_.unwatch(std::exchange(entry.handle, {}), poller_))
            wait.fail(std::make_error_code(std::errc::bad_file_descriptor));
    }

    /// The number is watched by somebody else now, so it belongs to another file: waits for the earlier one end.
    void disown(int fd) noexcept {
        const auto number = static_cast<std::size_t>(fd);
        if (fd < 0 || number >= entries_.size() || entries_[number] == nullptr) return;
        Entry& entry = *entries_[number];
        if (entry.handle) lose(entry);
    }

private:
    struct Entry final : IoHandler {
        void on_io(EventMask ready) override {
            if (reader != nullptr && has(ready, EventMask::Readable | EventMask::PeerClosed | EventMask::Error)) reader->ready();
            if (writer != nullptr && has(ready, EventMask::Writable | EventMask::Error)) writer->ready();
        }

        IoHandle handle;
        IoWait* reader = nullptr;  // until its task goes on, also when its wait is over
        IoWait* writer = nullptr;  // the same as reader for a wait for either
    };

    Entry& entry(int fd) {
        const auto number = static_cast<std::size_t>(fd);
        if (number >= entries_.size()) entries_.resize(number + 1);
        if (entries_[number] == nullptr) entries_[number] = std::make_unique<Entry>();
        return *entries_[number];
    }

    std::error_code begin(IoWait& wait, Entry& entry) {
        EventMask interest = wait.interest();
        const bool reads = has(interest, EventMask::Readable);
        const bool writes = has(interest, EventMask::Writable);
        if (entry.reader != nullptr) interest |= EventMask::Readable;
        if (entry.writer != nullptr) interest |= EventMask::Writable;

        // The system is asked at once, not at the end of the turn: its answer tells whether the number is still that of the file which
        // the waits that are there are for. A change also has it report anew what is ready.
        if (entry.handle) {
            const std::error_code error = watches_.rewatch_now(entry.handle, interest, poller_);
            if (error == std::errc::no_such_file_or_directory || error == std::errc::bad_file_descriptor) {
                lose(entry);
                interest = wait.interest();
            } else if (error) {
                return error;
            } else if ((reads && entry.reader != nullptr && entry.reader->waiting()) ||
                       (writes && entry.writer != nullptr && entry.writer->waiting())) {
                return std::make_error_code(std::errc::device_or_resource_busy);
            }
        }
        if (!entry.handle) {
            const auto handle = watches_.watch_now(wait.fd(), interest, entry, poller_);
            if (!handle) return handle.error();
            entry.handle = *handle;
        }
        if (reads) entry.reader = &wait;
        if (writes) entry.writer = &wait;
        return {};
    }

    void lose(Entry& entry) noexcept {
        watches_.forget(std::exchange(entry.handle, {}));
        IoWait* const reader = std::exchange(entry.reader, nullptr);
        IoWait* const writer = std::exchange(entry.writer, nullptr);
        const auto error = std::make_error_code(std::errc::bad_file_descriptor);
        if (reader != nullptr) reader->fail(error);
        if (writer != nullptr && writer != reader) writer->fail(error);
    }

    IoWatches& watches_;
    NativePoller& poller_;
    std::vector<std::unique_ptr<Entry>> entries_;  // by descriptor number
};

}  // namespace muses::detail
