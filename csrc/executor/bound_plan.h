// A plan, and what is bound to it when a call begins: the same until the call ends.
#pragma once

#include "kernels/reduce.h"
#include "plan/plan.h"
#include "route/route.h"
#include "transport/transport.h"

#include <span>
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

/// Tasks, channels and order are made once; sizes, places and routes by bind(). A run reads all of it and changes none.
class BoundPlan {
  public:
    /// An instruction, and what is bound to it.
    struct Task {
        const Instruction *instruction = nullptr;
        std::size_t index = 0; // in the plan
        bool sends = false;
        bool is_independent = false;            // alone on its channels; waits for no task, and none for it
        bool holds_up_rest = false;             // in the order, all behind it wait for it, or for one that does
        bool may_be_written = false;            // by its peer, where it stores
        Stores stores = Stores::near;           // how it stores
        Route route;                            // of what it sends
        std::uint64_t num_elements = 0;         // of the whole chunk
        std::size_t num_bytes = 0;              // of it
        std::size_t num_headers = 0;            // pieces in front of it, which say how long it is
        std::size_t pieces = 0;                 // with headers
        std::vector<std::size_t> channels;      // in `sends` or `receives`
        std::vector<int> peers;                 // at their other ends
        std::vector<std::size_t> comes_after;   // places in the order
        std::vector<const std::byte *> sources; // local ones; where remote, nothing
        std::byte *destination = nullptr;
    };

    /// The messages from this rank to a peer, or back.
    struct Channel {
        struct Entry {
            std::int32_t step, order;
            std::size_t task;
        };
        int peer = -1;
        std::vector<Entry> entries;         // by (step, order)
        std::vector<std::size_t> grantable; // of what is received: tasks that the peer may do by writing
    };

    /// Plan and transport must outlive it.
    BoundPlan(const Plan &plan, Transport &transport, const Profile &profile);
    BoundPlan(const BoundPlan &) = delete; // `order` points into `tasks`
    BoundPlan &operator=(const BoundPlan &) = delete;

    void bind(const Launch &next, std::uint32_t tag);

    /// What a fold computes.
    Fold fold_of(const Task &task) const;
    /// Folds the operands into `num_bytes` of a destination, unless that is a token.
    void store(const Task &task, std::span<const std::byte *const> operands, std::byte *destination,
               std::size_t num_bytes) const;

    const Plan &plan;
    Launch launch;
    std::vector<Task> tasks;
    std::vector<Channel> sends, receives;
    std::vector<const Task *> order; // in which short ones are done
    std::size_t longest_bytes = 0;   // of the chunks
    bool is_short = false;           // each task has one piece, which is sure to be copied by the transport

  private:
    void find_order();
    void bind_sizes();
    void bind_places();
    void bind_routes();
    bool goes_in_order() const;
    std::size_t elements_of(const Instruction &instruction) const;
    std::byte *place(const Operand &operand) const;

    Transport &transport_;
    Profile profile_;
    bool is_bound_ = false;   // sizes and places are those of `launch`
    bool may_change_ = false; // a route, when it is asked for again
    std::size_t scratch_slot_bytes_ = 0;
    std::vector<std::byte> scratch_;
    std::vector<std::size_t> input_starts_, output_starts_; // uneven: elements before each block
};

} // namespace hocket
