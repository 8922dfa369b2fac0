// When a thread that does what is left to it has to be woken for that.
#pragma once

#include "base/waiting.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>

namespace hocket {

/// Of a thread that does what others begin and then leave to it. Most of them wait for it soon, and may as well do it
/// themselves; to wake a thread takes ten times as long as a short call. So as long as they do, it is not woken, but
/// looks by itself before long whether something was left to it. A mutex guards all of this.
class Doze {
  public:
    /// Whether the thread has to be told of what was begun: it does not look by itself.
    bool is_asleep() const { return !dozes_; }
    void note_begun() { ++num_begun_; }
    /// Others have done something of what there was to do, as they will with the rest if nothing new comes.
    void note_done() { ++num_done_; }
    /// Whether it is still to be seen if who begins something waits for it at once.
    bool is_watchful() const { return num_waits_ < enough_waits; }
    /// Somebody waits for what was begun then, and is not done.
    void note_wait(Clock::time_point begun) {
        if (is_watchful() && Clock::now() - begun < at_once) ++num_waits_;
    }

    /// The thread's: waits for `changed` until it has work to do, and nobody else has come to do that, or it is told
    /// to. False where neither has happened for long: then it may end. `spin`: whether this rank has a core.
    template <typename Lock, typename Variable, typename HasWork, typename Told>
    bool await(Lock &lock, Variable &changed, bool spin, const HasWork &has_work, const Told &told) {
        const std::chrono::microseconds time(spin ? 50 : 500);
        for (unsigned looks = 0;;) {
            if (told() || looks == max_looks || is_watchful()) {
                if (has_work()) return true;
                if (changed.wait_for(lock, long_time) == std::cv_status::timeout && !has_work() && !told())
                    return false;
                looks = 0;
                continue;
            }
            const bool had_work = has_work();
            const std::uint64_t begun = num_begun_, done = num_done_;
            dozes_ = true;
            changed.wait_for(lock, time, told);
            dozes_ = false;
            if (had_work && done == num_done_ && has_work()) {
                num_waits_ = 0;
                return true;
            }
            looks = begun == num_begun_ ? looks + 1 : 0;
        }
    }

  private:
    static constexpr unsigned max_looks = 20;    // in a row while nothing is begun
    static constexpr unsigned enough_waits = 16; // at once, since it has found something that was left to it
    static constexpr std::chrono::microseconds at_once{50};
    static constexpr std::chrono::seconds long_time{1}; // many times what it takes to start a thread

    std::uint64_t num_begun_ = 0, num_done_ = 0;
    unsigned num_waits_ = 0;
    bool dozes_ = false;
};

} // namespace hocket
