// How a run of a plan begins: sizes and memory are bound to its instructions.

#include "base/error.h"
#include "executor/executor.h"

#include <algorithm>
#include <numeric>

namespace hocket {

/// Elements of the chunk that an instruction is about.
std::size_t Executor::elements_of(const Instruction &instruction) const {
    if (!plan_.shape().uneven) return plan_.elements_of(instruction.chunk, launch_.block);
    const Operand &like = instruction.sized_as;
    const int k = plan_.shape().chunks_per_block;
    const auto &counts = like.space == Space::input ? launch_.input_counts : launch_.output_counts;
    return plan_.elements_of(like.index % k, counts[static_cast<std::size_t>(like.index / k)]);
}

std::byte *Executor::place(const Operand &operand) const {
    const auto offset = [&](std::span<const std::uint64_t> counts, const std::vector<std::size_t> &starts) {
        const int k = plan_.shape().chunks_per_block;
        if (!plan_.shape().uneven) return plan_.offset_of(operand.index, launch_.block) * size_of(launch_.dtype);
        const auto block = static_cast<std::size_t>(operand.index / k);
        return (starts[block] + plan_.offset_of(operand.index % k, counts[block])) * size_of(launch_.dtype);
    };
    switch (operand.space) {
    // An input is only ever a source, or the plan is one for aliased memory (law 3 holds this).
    case Space::input: return const_cast<std::byte *>(launch_.input) + offset(launch_.input_counts, input_starts_);
    case Space::output: return launch_.output + offset(launch_.output_counts, output_starts_);
    case Space::scratch:
        return const_cast<std::byte *>(scratch_.data()) + static_cast<std::size_t>(operand.index) * scratch_slot_bytes_;
    case Space::remote: break;
    }
    return nullptr;
}

void Executor::start(const Launch &launch, std::uint32_t tag) {
    // Programs repeat their calls, often with the same memory.
    const bool as_long =
        bound_ && !plan_.shape().uneven && launch.block == launch_.block && launch.dtype == launch_.dtype;
    const bool as_before = as_long && launch.input == launch_.input && launch.output == launch_.output && !may_change_;
    launch_ = launch;
    launch_.tag = tag;
    bound_ = false; // until nothing can throw any more
    if (!as_long) bind_sizes();
    if (!as_before) bind_places();
    bound_ = true;
    if (is_short_) {
        for (const Cursor &cursor : sends_) transport_.prepare(cursor.peer, longest_bytes_);
    }
    has_granted_ = false;
    if (next_ < order_.size()) { // the run before was given up, or ended in parts
        for (Task &task : tasks_) task.within = 0;
    }
    next_ = 0;
    ahead_.clear();
    in_order_ = is_short_ && recorder_ == nullptr; // a trace has each move, in the common way
    if (!in_order_) rewind();
}

/// To the beginning of a run.
void Executor::rewind() {
    num_unfinished_ = num_tasks_;
    first_unsettled_ = 0;
    for (Task &task : tasks_) {
        task.done = task.settled = task.within = task.num_bytes_ahead = 0;
        task.tickets.clear();
        task.places.clear();
        for (Remote &remote : task.remotes) {
            remote.carry.clear();
            remote.used = 0;
        }
    }
    for (Cursor &cursor : sends_) {
        cursor.num_posted = transport_.posted(cursor.peer);
        cursor.rewind();
    }
    for (Cursor &cursor : receives_) cursor.rewind();
    grant();
}

void Executor::bind_sizes() {
    const PlanShape &shape = plan_.shape();
    const std::size_t num_headers = shape.uneven ? 1 : 0;
    if (shape.uneven) {
        const auto starts_of = [](std::span<const std::uint64_t> counts, std::size_t num_blocks) {
            if (counts.size() != num_blocks) throw Failure::internal("a call does not give the lengths of its blocks");
            std::vector<std::size_t> starts(num_blocks);
            std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), std::size_t{0});
            return starts;
        };
        input_starts_ = starts_of(launch_.input_counts, shape.input_blocks.size());
        output_starts_ = starts_of(launch_.output_counts, shape.output_blocks.size());
    }
    std::size_t longest = 0;
    num_tasks_ = 0;
    for (Task &task : tasks_) {
        task.num_elements = elements_of(*task.instruction);
        task.num_bytes = task.num_elements * size_of(launch_.dtype);
        task.pieces = num_headers + (task.num_bytes + piece_bytes - 1) / piece_bytes;
        if (task.pieces > 0) ++num_tasks_;
        longest = std::max<std::size_t>(longest, task.num_elements);
    }
    longest_bytes_ = longest * size_of(launch_.dtype);
    scratch_slot_bytes_ = round_up(longest_bytes_, cache_line);
    scratch_.resize(static_cast<std::size_t>(shape.num_scratch) * scratch_slot_bytes_);
    for (auto *cursors : {&sends_, &receives_}) {
        for (Cursor &cursor : *cursors) cursor.bind(*this);
    }
}

/// Whether each task has one piece, which is sure to be copied by the transport as a whole: then tasks may go one after
/// the other.
bool Executor::goes_in_order() const {
    if (!transport_.keeps_pieces_whole() || plan_.shape().uneven || longest_bytes_ > piece_bytes) return false;
    if (order_.size() != tasks_.size() || num_tasks_ != tasks_.size()) return false;
    const auto is_copied = [](const Task &task) {
        return !task.may_be_written && (task.route.way == Way::line || task.route.way == Way::stage);
    };
    return std::ranges::all_of(tasks_, is_copied);
}

Transfer Executor::transfer_of(const Task &task) const {
    const Instruction &instruction = *task.instruction;
    return {.num_bytes = task.num_bytes,
            .here = footprint_,
            .of_all_ranks = total_bytes_,
            .num_readers = static_cast<int>(task.peers.size()),
            .is_fresh = instruction.is_fresh,
            .comes_back = instruction.comes_back,
            .only_copied = plan_.shape().only_copies,
            .one_way = plan_.is_one_way(),
            .overwritten = instruction.staged};
}

void Executor::bind_routes(std::size_t num_output_bytes) {
    const bool is_short = longest_bytes_ <= most_copied; // as most are: nobody need be asked where they lie
    const Reach anybody = transport_.reach({});
    const Bytes output(launch_.output, num_output_bytes);
    may_change_ = false;
    for (Task &task : tasks_) {
        task.route = route_of_short(task.num_bytes, anybody);
        task.stores = Stores::near;
        task.may_be_written = false;
        if (is_short || task.num_bytes == 0) continue;
        const Instruction &instruction = *task.instruction;
        Transfer transfer = transfer_of(task);
        if (instruction.sends()) {
            // The readers' memory is taken to be like this rank's output, or its source where it has no output.
            const Bytes source(task.sources[0], task.num_bytes);
            transfer.may_be_given =
                is_reached(transport_.memory_of(output.empty() ? source : output, task.peers, false));
            task.route = route_of(transfer, source, task.peers, transport_, profile_);
            may_change_ = may_change_ || task.route.may_change;
            continue;
        }
        peers_.clear();
        for (const Remote &remote : task.remotes) peers_.push_back(receives_[remote.cursor].peer);
        transfer.only_copied = instruction.is_copy && !peers_.empty();
        task.stores = stores_of(transfer, instruction.is_alone, transport_.reach(peers_), profile_);
        // A plan that only copies has nothing that is hot where it is sent from: only halves are written.
        const bool is_written = !plan_.shape().only_copies || task.num_bytes >= profile_.halve;
        task.may_be_written = instruction.is_grantable && task.num_bytes > most_copied && is_written &&
                              is_reached(transport_.memory_of(Bytes(task.destination, task.num_bytes), peers_, false));
    }
}

void Executor::bind_places() {
    const PlanShape &shape = plan_.shape();
    const auto bytes_of = [&](std::size_t num_blocks, std::span<const std::uint64_t> counts) {
        const auto elements = shape.uneven ? std::reduce(counts.begin(), counts.end()) : num_blocks * launch_.block;
        return static_cast<std::size_t>(elements) * size_of(launch_.dtype);
    };
    const std::size_t of_input = bytes_of(shape.input_blocks.size(), launch_.input_counts),
                      of_output = bytes_of(shape.output_blocks.size(), launch_.output_counts);
    footprint_ = launch_.input == launch_.output ? std::max(of_input, of_output) : of_input + of_output;
    total_bytes_ = static_cast<std::size_t>(shape.num_ranks) * std::max(of_input, of_output);
    for (Task &task : tasks_) {
        const Instruction &instruction = *task.instruction;
        for (std::size_t i = 0; i < task.sources.size(); ++i) task.sources[i] = place(instruction.sources[i]);
        task.destination = place(instruction.destinations[0]);
    }
    bind_routes(of_output);
    is_short_ = goes_in_order();
}

} // namespace hocket
