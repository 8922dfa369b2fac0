// How far each task of a plan has come that runs in pieces, and which of them may go on.
#pragma once

#include "executor/bound_plan.h"
#include "executor/remote.h"

#include <vector>

namespace hocket {

/// How far a task has come.
struct Progress {
    struct Place {
        std::byte *begin = nullptr;
        const Progress *after = nullptr; // has to have folded what was lent from there
    };

    explicit Progress(const BoundPlan::Task &task)
        : bound(task), remotes(task.sends ? task.peers.end() : task.peers.begin(), task.peers.end()) {}

    const BoundPlan::Task &bound;
    std::size_t done = 0;               // pieces sent or folded
    std::size_t settled = 0;            // pieces whose dependants may run
    std::size_t within = 0;             // bytes of the current piece that are done
    std::size_t num_bytes_ahead = 0;    // lent or fetched already, behind them
    Way way = Way::stage;               // of what was sent last
    std::vector<Remote> remotes;        // in the order of its remote sources
    std::vector<std::uint64_t> tickets; // per piece and peer, where pieces were lent
    std::vector<Place> places;          // where its peers, as far as they have said so, let this rank write

    bool at_header() const { return done < bound.num_headers; }
    /// Bytes of the chunk before the piece at hand, which is no header.
    std::size_t piece_start() const { return (done - bound.num_headers) * piece_bytes; }
    std::size_t piece_size() const {
        return at_header() ? sizeof bound.num_elements : std::min(piece_bytes, bound.num_bytes - piece_start());
    }
    std::size_t num_left() const { return bound.num_bytes - piece_start() - within; }
    std::byte *destination() const { return bound.destination + piece_start() + within; }
};

/// A position in the messages of one channel: the unfinished task whose turn it is.
class Cursor {
  public:
    explicit Cursor(const BoundPlan::Channel &of) : channel(of) {}

    const BoundPlan::Channel &channel;
    std::uint64_t num_posted = 0; // of what is sent: messages before this run

    void rewind(const BoundPlan &bound);
    void next(const BoundPlan &bound) {
        ++at_;
        settle(bound);
    }
    bool done() const { return first_ == channel.entries.size(); }
    std::size_t task() const { return channel.entries[at_].task; }

  private:
    void settle(const BoundPlan &bound);

    std::size_t first_ = 0, at_ = 0; // entries before the first are finished
    std::int64_t wave_ = 0;
};

/// Piece j of an instruction of step s belongs to wave j + s, and a channel carries its pieces in the order (wave,
/// step, order in the step), so that chains are pipelined and both ends agree.
class Turns {
  public:
    Turns(const BoundPlan &bound, Transport &transport);

    void start();
    bool at_turn(const Progress &task) const;
    /// Whether it is its turn on all its channels, and what it depends on has settled.
    bool may_go(Progress &task);
    void finish_piece(Progress &task);
    bool are_all_done() const { return num_unfinished_ == 0; }
    /// Whether no memory of this rank is being read any more, once all are done.
    bool are_all_settled();

    /// Whether one of these holds this rank up: a fold misses the bytes of some of its sources; a send that is not held
    /// back by a fold misses room.
    bool waits_for(std::span<const int> peers) const;
    std::vector<int> waiting_for() const; // ascending

    std::vector<Progress> tasks;
    std::vector<Cursor> sends, receives;

  private:
    bool is_settled(Progress &task, std::size_t piece);

    const BoundPlan &bound_;
    Transport &transport_;
    std::size_t num_unfinished_ = 0, first_unsettled_ = 0;
};

} // namespace hocket
