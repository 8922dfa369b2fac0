// Runs one rank's plan as a resumable state machine. It never blocks and knows no algorithm, collective or topology.
#pragma once

#include "base/waiting.h"
#include "kernels/reduce.h"
#include "plan/plan.h"
#include "route/route.h"
#include "trace/trace.h"
#include "transport/transport.h"

#include <memory>
#include <optional>
#include <vector>

namespace hocket {

/// What is bound at call time: sizes, types, and the memory of this rank.
struct Launch {
    Dtype dtype = Dtype::float32;
    Op op = Op::sum;
    std::size_t block = 0; // elements of one block of the collective's vector, where all are as long
    const std::byte *input = nullptr;
    std::byte *output = nullptr;
    std::uint32_t tag = 0;
    Factor factor{};                                                // of premul_sum
    const CustomFold *custom = nullptr;                             // of a user's own reduction
    std::span<const std::uint64_t> input_counts{}, output_counts{}; // uneven: elements of each block of the memories
};

/// A message of another call than the one that runs: `peer` and this rank called different things.
struct ForeignMessage {
    int peer;
};

/// What `peer` sends, or expects, is not as long as what this rank expects.
struct ForeignSize {
    int peer;
    std::uint64_t expected, found; // elements
};

/// Moves the pieces of a plan. Piece j of an instruction of step s belongs to wave j + s, and a channel carries its
/// pieces in the order (wave, step, order in the step), so that chains are pipelined and both ends agree. Where blocks
/// are uneven each rank knows the lengths of its own only: piece 0 then says how many elements follow.
class Executor {
  public:
    /// Plan and transport must outlive the executor.
    Executor(const Plan &plan, Transport &transport, const Profile &profile = {});

    /// From now on writes down, in this lane, each move of a call of this number; nothing without a recorder.
    void record(Recorder *recorder, std::uint32_t lane = 0, std::uint64_t sequence = 0) {
        recorder_ = recorder;
        lane_ = lane;
        sequence_ = sequence;
    }

    /// Begins a run. The memory of `launch` must stay until advance() has returned true.
    void start(const Launch &launch) { start(launch, launch.tag); }
    void start(const Launch &launch, std::uint32_t tag);

    /// Runs what is ready, but only so much that the caller can look around now and then. True when everything is done
    /// and no memory of this rank is being read any more. Throws ForeignMessage or ForeignSize, after which only
    /// start() makes sense.
    bool advance();

    /// Whether the last advance() returned though it might have gone on.
    bool was_interrupted() const { return budget_ <= 0; }

    /// Since start(): the bytes of an instruction's chunk, and their route if the instruction sends them.
    std::size_t num_bytes_of(std::size_t instruction) const { return tasks_[instruction].num_bytes; }
    const Route &route(std::size_t instruction) const { return tasks_[instruction].route; }

    /// Grows whenever something was moved.
    std::uint64_t num_moves() const { return num_moves_; }

    /// After advance() has returned false: the peers whose bytes, room or release are missing, ascending.
    std::vector<int> waiting_for();
    /// Whether one of these is among them.
    bool waits_for(std::span<const int> peers) const;
    /// Whether this rank gives something to each of these, and takes something from each: then they wait for the others
    /// as it does. It will not be for long where chunks are short.
    bool exchanges_with(std::span<const int> peers) const;
    bool has_short_chunks() const { return longest_bytes_ <= short_bytes; }

  private:
    /// A position in the messages of one channel: the unfinished instruction whose turn it is.
    class Cursor {
      public:
        struct Entry {
            std::int32_t step, order;
            std::size_t task;
        };
        int peer = -1;
        std::vector<Entry> entries;         // by (step, order)
        std::vector<std::size_t> grantable; // of what is received: tasks that the peer may do by writing
        std::uint64_t num_posted = 0;       // of what is sent: messages before this run

        void bind(const Executor &executor); // to other sizes
        void rewind() { now_ = begin_; }
        void next(const Executor &executor);
        bool done() const { return now_.first == entries.size(); }
        std::size_t task() const { return entries[now_.at].task; }

      private:
        struct Turn {
            std::size_t first = 0, at = 0; // entries before `first` are finished
            std::int64_t wave = 0;
        };
        void settle(const Executor &executor);
        Turn begin_, now_;
    };

    struct Remote { // a source that comes over a channel
        std::size_t cursor = 0;
        std::vector<std::byte> carry; // bytes that had to leave the channel before they could be folded
        std::size_t used = 0;         // of them folded
    };

    struct Task;
    struct Place {
        std::byte *begin = nullptr;
        const Task *after = nullptr; // has to have folded what was lent from there
    };

    struct Task {
        const Instruction *instruction = nullptr;
        std::uint64_t num_elements = 0; // of the whole chunk
        std::size_t num_bytes = 0;
        std::size_t pieces = 0;
        std::size_t done = 0;                   // pieces sent or folded
        std::size_t settled = 0;                // pieces whose dependants may run
        std::size_t within = 0;                 // bytes of the current piece that are done
        std::size_t num_bytes_ahead = 0;        // lent or fetched already, behind them
        Route route;                            // of what it sends
        Stores stores = Stores::near;           // how it stores
        bool may_be_written = false;            // by its peer, where it stores
        Way way = Way::stage;                   // of what was sent last
        bool is_awaited = false;                // by other tasks
        bool holds_up_rest = false;             // in one order, all behind it wait for it, or for one that does
        std::vector<std::size_t> comes_after;   // places in that order
        std::vector<const std::byte *> sources; // local ones; where remote, nothing
        std::byte *destination = nullptr;
        std::vector<std::size_t> cursors;   // of its channels
        std::vector<Remote> remotes;        // in the order of its remote sources
        std::vector<int> peers;             // it sends to
        std::vector<std::uint64_t> tickets; // per piece and peer, where pieces were lent
        std::vector<Place> places;          // where its peers, as far as they have said so, let this rank write
    };

    std::size_t elements_of(const Instruction &instruction) const;
    bool at_header(const Task &task) const { return plan_.shape().uneven && task.done == 0; }
    std::size_t piece_start(const Task &task) const;
    std::size_t piece_size(const Task &task) const;
    std::size_t num_left(const Task &task) const { return task.num_bytes - piece_start(task) - task.within; }
    bool ready(Task &task);
    bool is_one_message(const Task &task) const;
    bool is_settled(Task &task, std::size_t piece);
    bool at_turn(const Task &task, std::size_t index) const;
    void finish_piece(Task &task);
    Fold fold_of(const Task &task) const;
    View gather(Remote &remote, std::size_t element, bool may_be_attached, bool &progress);
    bool carry_over(Remote &remote, std::size_t num_bytes);
    bool make_room(Task &task, std::size_t cursor);
    template <auto Try> bool tried(Task &task, std::size_t index);
    void record_move(const Task &task, std::size_t index, std::uint64_t begin, std::size_t piece, std::size_t num_bytes,
                     bool is_complete);
    bool try_send(Task &task, std::size_t index);
    bool fetch(Task &task, std::size_t num_shown, std::size_t &num_bytes);
    bool try_fold(Task &task, std::size_t index);
    void check_sizes(const Task &task) const;
    void store(const Task &task, const Fold &what, std::byte *destination, std::size_t num_bytes);
    bool store_and_send(Task &task, const Fold &what, std::size_t num_bytes);
    std::byte *next_destination(const Task &task) const { return task.destination + piece_start(task) + task.within; }
    bool send_ready();
    bool run_ready();
    bool do_short(Task &task);
    bool is_done(std::size_t at) const { return at < next_ || (!ahead_.empty() && ahead_[at]); }
    bool may_go(const Task &task) const;
    bool run_in_order();
    bool run_around();
    void leave_order();
    bool move();
    bool is_missing(const Cursor &cursor, bool sends) const;
    std::byte *place(const Operand &operand) const;
    void find_order();
    void bind_sizes();
    bool goes_in_order() const;
    void bind_places();
    Transfer transfer_of(const Task &task) const;
    void bind_routes(std::size_t num_output_bytes);
    void rewind();
    void grant();
    std::optional<Place> find_place(const Task &task, std::size_t index) const;
    bool find_places(Task &task, const Task *folding = nullptr);
    Published send_some(Task &task, Bytes rest);
    bool is_too_early(const Task &task, std::size_t num_bytes) const;
    Published publish(const Task &task, Bytes rest, Way way);
    Published send_to_places(Task &task, Bytes rest);

    const Plan &plan_;
    Transport &transport_;
    Profile profile_;
    Launch launch_;
    std::vector<Task> tasks_;
    std::vector<Cursor> sends_;
    std::vector<Cursor> receives_;
    std::vector<std::size_t> locals_;
    static constexpr int pieces_per_advance = 16;

    std::uint64_t num_moves_ = 0;
    int budget_ = 0;            // of this advance(), in pieces
    bool bound_ = false;        // sizes and places are those of launch_
    bool may_change_ = false;   // a route, when it is asked for again
    bool is_short_ = false;     // each task has one piece, which is sure to be copied by the transport
    std::vector<Task *> order_; // in which short ones are done
    bool in_order_ = false;     // those before next_ are done, and those in ahead_; others perhaps in part
    std::size_t next_ = 0;
    std::vector<bool> ahead_;                        // by place in the order; empty while there are none
    std::size_t num_tasks_ = 0, num_unfinished_ = 0; // that have pieces
    std::size_t first_unsettled_ = 0;
    std::size_t longest_bytes_ = 0, scratch_slot_bytes_ = 0;
    std::size_t footprint_ = 0, total_bytes_ = 0; // of input and output; of the longer of the two of all ranks
    std::vector<std::byte> scratch_;
    std::vector<std::size_t> input_starts_, output_starts_; // uneven: elements before each block
    std::vector<const std::byte *> operands_;               // of the fold at hand
    std::vector<std::byte *> places_;                       // of the put at hand
    std::vector<int> peers_;                                // of the task at hand
    std::vector<Window> windows_;                           // to be granted
    bool has_granted_ = false;
    Recorder *recorder_ = nullptr; // of moves,
    std::uint32_t lane_ = 0;       // and where they belong
    std::uint64_t sequence_ = 0;
};

} // namespace hocket
