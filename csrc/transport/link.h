// A rank's link to the others where it is paced: how long it is busy with what is sent, and when that arrives.
#pragma once

#include "base/waiting.h"

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace hocket {

/// What one rank sends, to whomever and through whichever communicator, leaves it one message after another. What
/// arrives at a rank has taken its time elsewhere.
class Link {
  public:
    Link(double bytes_per_second, std::chrono::nanoseconds latency)
        : nanoseconds_per_byte_(1e9 / bytes_per_second), latency_(latency) {}
    Link(const Link &) = delete;
    Link &operator=(const Link &) = delete;

    /// The end of the queue, which nobody else adds to meanwhile.
    class Turn {
      public:
        explicit Turn(Link &link)
            : link_(link), lock_(link.mutex_), busy_until_(std::max(link.busy_until_, Clock::now())) {}

        /// Adds so many bytes, and says when all of them will have arrived.
        Clock::time_point add(std::size_t num_bytes) {
            const double time = static_cast<double>(num_bytes) * link_.nanoseconds_per_byte_;
            busy_until_ += std::chrono::nanoseconds(static_cast<std::int64_t>(time));
            return busy_until_ + link_.latency_;
        }
        /// What was added is sent. Without this it is forgotten.
        void keep() { link_.busy_until_ = busy_until_; }

      private:
        Link &link_;
        std::scoped_lock<std::mutex> lock_;
        Clock::time_point busy_until_;
    };

  private:
    double nanoseconds_per_byte_;
    std::chrono::nanoseconds latency_;
    std::mutex mutex_; // guards the time below
    Clock::time_point busy_until_{};
};

} // namespace hocket
