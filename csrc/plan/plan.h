// One rank's lowered program: the flat arrays that schedule/lowering/lower.py emits and law 3 has proved.
#pragma once

#include "base/types.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hocket {

/// One operand: a place in this rank's memory, or (space `remote`) a message from or to `peer`, where `index` orders
/// the messages that one step sends over one channel.
struct Operand {
    std::int32_t peer = -1;
    Space space = Space::input;
    std::int32_t index = 0;
};

/// Folds `sources` in order into `destinations`, piece by piece, once `dependencies` are settled.
struct Instruction {
    std::int32_t row = 0; // in the tables that the plan was made of
    std::int32_t step = 0;
    std::int32_t chunk = 0; // its size class: place inside its block, or, where blocks are uneven, chunk of `data`
    Operand sized_as;       // uneven: the chunk of input or output that is as long
    bool completes = false; // the fold completes a sum over all ranks: an average divides here
    bool staged = false;    // the source is overwritten in the same step: copy it, never lend it
    std::span<const Operand> sources;
    std::span<const bool> raw; // by source: a rank's untouched contribution, which premul multiplies
    std::span<const Operand> destinations;
    std::span<const std::int32_t> dependencies;

    // What follows from the tables.
    bool is_copy = false;    // stores one source as it is
    bool is_alone = false;   // no other instruction reads or writes its destination
    bool is_fresh = false;   // sends what an earlier instruction has folded
    bool comes_back = false; // sends what a later copy, `after` it, replaces by what the reader makes of it
    /// Of a fold: the send that passes on what it makes, and waits for nothing else. -1: there is none.
    std::int32_t onward = -1;
    /// A copy of a message, to a place that no earlier instruction touches, or only the one numbered `after`, which
    /// sends it to that message's sender alone. So the sender itself could write the place, once it has done with that.
    bool is_grantable = false;
    std::int32_t after = -1;

    bool sends() const { return !destinations.empty() && destinations[0].space == Space::remote; }
};

struct PlanShape {
    int num_ranks = 1;
    int rank = 0;
    int chunks_per_block = 1;
    bool uneven = false;                                       // blocks differ in length, which each call tells
    std::vector<std::int32_t> input_blocks{}, output_blocks{}; // blocks of `data` that the memories hold, in order
    int num_scratch = 0;
    bool only_copies = false; // no rank folds anything: whoever receives stores what comes
    bool only_token = false;  // what comes says only that it has come, as in a barrier: its value is nobody's
    bool hears_all = false;   // this rank is done only once all have begun, where blocks are not empty
};

/// Immutable, and checked on construction: the executor indexes without further tests.
class Plan : public std::enable_shared_from_this<Plan> {
  public:
    /// instructions (n, 6), sources (n, 4), destinations (n, 3), dependencies (n): row-major, as in
    /// schedule/lowering/plan.py. `label` says in words what the plan does, for people who wait for it.
    Plan(PlanShape shape, std::string label, std::span<const std::int32_t> instructions,
         std::span<const std::int32_t> sources, std::span<const std::int32_t> destinations,
         std::span<const std::int32_t> dependencies);
    Plan(const Plan &) = delete; // instructions point into the members below
    Plan &operator=(const Plan &) = delete;

    const PlanShape &shape() const { return shape_; }
    const std::string &label() const { return label_; }
    std::span<const Instruction> instructions() const { return instructions_; }
    /// Whether this rank does nothing but send over one channel.
    bool is_one_way() const { return is_one_way_; }

    /// The same plan for channels that cannot share what is posted: peers of one send have equal numbers `via`, so one
    /// with others is done as several. Each channel carries what it did, so law 3 holds. Null: all are equal.
    std::unique_ptr<const Plan> split(const std::function<int(int peer)> &via) const;

    /// Elements before chunk `index` of a buffer whose blocks have `block` elements each.
    std::size_t offset_of(int index, std::size_t block) const;
    /// Elements of chunk `chunk` of a block of `block` elements.
    std::size_t elements_of(int chunk, std::size_t block) const;

  private:
    Operand find_size(std::int32_t chunk, std::size_t row) const;
    void find_uses();

    PlanShape shape_;
    std::string label_;
    std::vector<Operand> sources_;
    std::unique_ptr<bool[]> raw_; // by source
    std::vector<Operand> destinations_;
    std::vector<std::int32_t> dependencies_;
    std::vector<Instruction> instructions_;
    bool is_one_way_ = true;
};

} // namespace hocket
