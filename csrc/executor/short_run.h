// A run of short tasks, one after the other in one order, and around those that have to wait.
#pragma once

#include "executor/piece_run.h"

#include <algorithm>
#include <span>
#include <vector>

namespace hocket {

class ShortRun {
  public:
    ShortRun(const BoundPlan &bound, Transport &transport, Pace &pace, PieceRun &pieces);

    /// Begins one, or none if not `is_on`.
    void start(bool is_on) {
        is_on_ = is_on;
        if (!is_on) return;
        if (next_ < within_.size()) std::ranges::fill(within_, 0); // the run before was given up, or ended in parts
        next_ = 0;
        ahead_.clear();
    }
    /// Whether it has begun and goes on in one order.
    bool is_on() const { return is_on_; }
    /// True when all are done; false where one has to wait, or comes in parts and so ends the run in one order.
    bool advance();
    /// From now on tasks go in parts.
    void hand_over();

    bool waits_for(std::span<const int> peers) const;

  private:
    bool run_around();
    bool do_task(std::size_t at);
    bool is_done(std::size_t at) const { return at < next_ || (!ahead_.empty() && ahead_[at]); }
    bool may_go(const BoundPlan::Task &task) const;

    const BoundPlan &bound_;
    Transport &transport_;
    Pace &pace_;
    PieceRun &pieces_;
    bool is_on_ = false;              // those before next_ are done, and those in ahead_; others perhaps in part
    std::size_t next_ = 0;            // like what follows, by place in the order
    std::vector<bool> ahead_;         // empty while there are none
    std::vector<std::size_t> within_; // bytes that are done
    std::vector<const std::byte *> operands_; // of the fold at hand, with room for those of any
};

} // namespace hocket
