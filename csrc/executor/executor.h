// Runs one rank's plan as a resumable state machine. It never blocks and knows no algorithm, collective or topology.
#pragma once

#include "executor/bound_plan.h"
#include "executor/piece_run.h"
#include "executor/short_run.h"

#include <memory>
#include <span>
#include <vector>

namespace hocket {

/// Moves the pieces of a plan: those of short chunks in one order, all others when their turn comes. Where blocks are
/// uneven each rank knows the lengths of its own only: piece 0 then says how many elements follow.
class Executor {
  public:
    /// Plan and transport must outlive the executor.
    Executor(const Plan &plan, Transport &transport, const Profile &profile = {})
        : split_(plan.split([&transport](int peer) { return transport.reach(std::span(&peer, 1)).via; })),
          transport_(transport), bound_(split_ ? *split_ : plan, transport, profile) {}

    /// From now on writes down, in this lane, each move of a call of this number; nothing without a recorder.
    void record(Recorder *recorder, std::uint32_t lane = 0, std::uint64_t sequence = 0) {
        pieces_.trace = {recorder, lane, sequence};
    }

    /// Begins a run. The memory of `launch` must stay until advance() has returned true.
    void start(const Launch &launch) { start(launch, launch.tag); }
    void start(const Launch &launch, std::uint32_t tag);

    /// Runs what is ready, but only so much that the caller can look around now and then. True when everything is done
    /// and no memory of this rank is being read any more. Throws ForeignMessage or ForeignSize, after which only
    /// start() makes sense.
    bool advance();

    /// Whether the last advance() returned though it might have gone on.
    bool was_interrupted() const { return pace_.budget <= 0; }

    /// Since start(), of a plan that is not split: the bytes of an instruction's chunk, and their route if it sends
    /// them.
    std::size_t num_bytes_of(std::size_t instruction) const { return bound_.tasks[instruction].num_bytes; }
    const Route &route(std::size_t instruction) const { return bound_.tasks[instruction].route; }

    /// Grows whenever something was moved.
    std::uint64_t num_moves() const { return pace_.num_moves; }

    /// After advance() has returned false: the peers whose bytes, room or release are missing, ascending.
    std::vector<int> waiting_for();
    /// Whether one of these is among them.
    bool waits_for(std::span<const int> peers) const;
    /// Whether this rank gives something to each of these, and takes something from each: then they wait for the others
    /// as it does. It will not be for long where chunks are short.
    bool exchanges_with(std::span<const int> peers) const;
    bool has_short_chunks() const { return bound_.longest_bytes <= short_bytes; }

  private:
    static constexpr int pieces_per_advance = 16;

    bool move();

    std::unique_ptr<const Plan> split_; // if not one transport reaches all peers
    Transport &transport_;
    BoundPlan bound_;
    Pace pace_;
    PieceRun pieces_{bound_, transport_, pace_};
    ShortRun short_{bound_, transport_, pace_, pieces_};
};

} // namespace hocket
