// A run in pieces: sends and folds whatever piece may go on.
#pragma once

#include "executor/move_trace.h"
#include "executor/puts.h"
#include "executor/turns.h"

#include <vector>

namespace hocket {

/// How long a run has gone on.
struct Pace {
    std::uint64_t num_moves = 0; // grows whenever something was moved
    int budget = 0;              // pieces that are left until the caller looks around
};

class PieceRun {
  public:
    PieceRun(const BoundPlan &bound, Transport &transport, Pace &pace);

    void start();
    /// After start(), where tasks are short: this one has come so far already.
    void resume(const BoundPlan::Task &task, std::size_t within, bool is_done);
    bool advance();
    const Turns &turns() const { return turns_; }

    MoveTrace trace;

  private:
    bool run_ready();
    bool send_ready();
    bool try_send(Progress &task);
    Taken send_some(Progress &task, Bytes rest);
    Taken send_to_places(Progress &task, Bytes rest);
    Taken post(const Progress &task, Bytes rest, Way way);
    bool is_answered(const Progress &task) const;
    bool try_fold(Progress &task);
    bool fetch(Progress &task, std::size_t num_shown, std::size_t &num_bytes);
    bool fold_and_put(Progress &task, std::size_t num_bytes);

    const BoundPlan &bound_;
    Transport &transport_;
    Pace &pace_;
    Turns turns_;
    Puts puts_;
    std::vector<std::size_t> locals_;         // tasks without channels
    std::vector<const std::byte *> operands_; // of the fold at hand
};

} // namespace hocket
