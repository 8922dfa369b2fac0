// A mark: a point in the order of what is done, and whether that has come there. What an event records, a stream waits
// for, and a work ends with.
#pragma once

#include "base/system.h"
#include "base/waiting.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

namespace hocket {

/// Passed once, by one thread; all else may be asked by any thread, and in a forked child is a Failure.
class Mark {
  public:
    Mark() = default;
    /// Of what runs on this thread, which cannot wait for it: `owner` is what `Runs` names there.
    explicit Mark(const void *owner) : owner_(owner) {}
    Mark(const Mark &) = delete;
    Mark &operator=(const Mark &) = delete;

    /// All before it is done; or has failed with `failure`, which is told to whoever depends on it.
    void pass(std::exception_ptr failure = nullptr, Clock::time_point time = {});

    bool is_passed() const;
    /// False when `limit` ran out first. Refused as below.
    bool wait(std::chrono::nanoseconds limit);
    /// std::runtime_error where this thread would wait for what it has to do itself.
    void check_awaitable() const;
    /// Once it is passed: null where all went well.
    const std::exception_ptr &failure() const { return failure_; }
    /// The same for the program, which has then heard of it.
    const std::exception_ptr &tell_failure() const {
        is_told_.store(true, std::memory_order_relaxed);
        return failure_;
    }
    bool is_told() const { return is_told_.load(std::memory_order_relaxed); }
    /// Once it is passed, of one that was to take the time.
    Clock::time_point time() const { return time_; }

    /// While it stands, this thread runs what belongs to the owner.
    class Runs {
      public:
        explicit Runs(const void *owner);
        Runs(const Runs &) = delete;
        Runs &operator=(const Runs &) = delete;
        ~Runs();

      private:
        const void *outer_;
    };

  private:
    static constexpr std::uint32_t pending = 0, awaited = 1, passed = 2;

    std::atomic<std::uint32_t> state_{pending}; // released where it is passed: so the two below are seen
    std::exception_ptr failure_;
    mutable std::atomic<bool> is_told_{false};
    Clock::time_point time_;
    const void *owner_ = nullptr;
    HomeProcess home_;
};

/// What an exception says, in one line.
std::string text_of(const std::exception_ptr &failure);

} // namespace hocket
