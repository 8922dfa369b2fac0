#include "executor/bound_plan.h"

#include "base/error.h"
#include "kernels/copy.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace hocket {

// Once ----------------------------------------------------------------------------------------------------------------

BoundPlan::BoundPlan(const Plan &of, Transport &transport, const Profile &profile)
    : plan(of), transport_(transport), profile_(profile) {
    const auto channel_of = [](std::vector<Channel> &channels, int peer) {
        const auto found = std::ranges::find(channels, peer, &Channel::peer);
        if (found != channels.end()) return static_cast<std::size_t>(found - channels.begin());
        channels.emplace_back().peer = peer;
        return channels.size() - 1;
    };
    for (const Instruction &instruction : plan.instructions()) {
        const std::size_t index = tasks.size();
        Task &task = tasks.emplace_back();
        task.instruction = &instruction;
        task.index = index;
        task.sends = instruction.sends();
        task.num_headers = plan.shape().uneven ? 1 : 0;
        auto &channels = task.sends ? sends : receives;
        for (const Operand &operand : task.sends ? instruction.destinations : instruction.sources) {
            if (operand.space != Space::remote) continue;
            const std::size_t channel = channel_of(channels, operand.peer);
            channels[channel].entries.push_back({instruction.step, operand.index, index});
            if (instruction.is_grantable) channels[channel].grantable.push_back(index);
            task.channels.push_back(channel);
            task.peers.push_back(operand.peer);
        }
        task.is_independent = instruction.dependencies.empty();
        for (std::int32_t before : instruction.dependencies)
            tasks[static_cast<std::size_t>(before)].is_independent = false;
        task.sources.resize(instruction.sources.size());
    }
    for (auto *channels : {&sends, &receives}) {
        for (Channel &channel : *channels) {
            std::ranges::stable_sort(channel.entries, {},
                                     [](const Channel::Entry &entry) { return std::tuple(entry.step, entry.order); });
            if (channel.entries.size() == 1) continue;
            for (const Channel::Entry &entry : channel.entries) tasks[entry.task].is_independent = false;
        }
    }
    find_order();
}

/// One order for all tasks: that of the plan, but what waits for no message goes ahead of what does.
void BoundPlan::find_order() {
    std::vector<std::vector<std::size_t>> followers(tasks.size());
    std::vector<std::size_t> num_before(tasks.size());
    std::vector<std::vector<std::size_t>> before_each(tasks.size());
    const auto follows = [&](std::size_t after, std::size_t before) {
        followers[before].push_back(after);
        before_each[after].push_back(before);
        ++num_before[after];
    };
    for (const Task &task : tasks) {
        for (std::int32_t before : task.instruction->dependencies)
            follows(task.index, static_cast<std::size_t>(before));
    }
    for (const auto *channels : {&sends, &receives}) {
        for (const Channel &channel : *channels) {
            for (std::size_t i = 1; i < channel.entries.size(); ++i)
                follows(channel.entries[i].task, channel.entries[i - 1].task);
        }
    }
    std::set<std::pair<bool, std::size_t>> next;
    const auto add = [&](std::size_t index) {
        next.emplace(!tasks[index].sends && !tasks[index].peers.empty(), index);
    };
    for (std::size_t index = 0; index < tasks.size(); ++index) {
        if (num_before[index] == 0) add(index);
    }
    std::vector<std::size_t> awaited; // in that order: of what a task waits for the last, counted from 1
    std::vector<std::size_t> last_before(tasks.size());
    std::vector<std::size_t> place_of(tasks.size());
    while (!next.empty()) {
        const std::size_t index = next.extract(next.begin()).value().second;
        place_of[index] = order.size();
        order.push_back(&tasks[index]);
        awaited.push_back(last_before[index]);
        for (std::size_t after : followers[index]) {
            last_before[after] = order.size();
            if (--num_before[after] == 0) add(after);
        }
    }
    for (std::size_t index = 0; index < tasks.size(); ++index) {
        for (std::size_t before : before_each[index]) tasks[index].comes_after.push_back(place_of[before]);
    }
    std::size_t least = tasks.size(); // of all behind
    for (std::size_t at = order.size(); at-- > 0;) {
        tasks[order[at]->index].holds_up_rest = least > at;
        least = std::min(least, awaited[at]);
    }
}

// For each call -------------------------------------------------------------------------------------------------------

void BoundPlan::bind(const Launch &next, std::uint32_t tag) {
    // Programs repeat their calls, often with the same memory.
    const bool as_long = is_bound_ && !plan.shape().uneven && next.block == launch.block && next.dtype == launch.dtype;
    const bool as_before = as_long && next.input == launch.input && next.output == launch.output && !may_change_;
    launch = next;
    launch.tag = tag;
    is_bound_ = false; // until nothing can throw any more
    if (!as_long) bind_sizes();
    if (!as_before) bind_places();
    is_bound_ = true;
}

/// Elements of the chunk that an instruction is about.
std::size_t BoundPlan::elements_of(const Instruction &instruction) const {
    if (!plan.shape().uneven) return plan.elements_of(instruction.chunk, launch.block);
    const Operand &like = instruction.sized_as;
    const int k = plan.shape().chunks_per_block;
    const auto &counts = like.space == Space::input ? launch.input_counts : launch.output_counts;
    return plan.elements_of(like.index % k, counts[static_cast<std::size_t>(like.index / k)]);
}

void BoundPlan::bind_sizes() {
    const PlanShape &shape = plan.shape();
    if (shape.uneven) {
        const auto starts_of = [](std::span<const std::uint64_t> counts, std::size_t num_blocks) {
            if (counts.size() != num_blocks) throw Failure::internal("a call does not give the lengths of its blocks");
            std::vector<std::size_t> starts(num_blocks);
            std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), std::size_t{0});
            return starts;
        };
        input_starts_ = starts_of(launch.input_counts, shape.input_blocks.size());
        output_starts_ = starts_of(launch.output_counts, shape.output_blocks.size());
    }
    longest_bytes = 0;
    for (Task &task : tasks) {
        task.num_elements = elements_of(*task.instruction);
        task.num_bytes = task.num_elements * size_of(launch.dtype);
        task.pieces = task.num_headers + (task.num_bytes + piece_bytes - 1) / piece_bytes;
        longest_bytes = std::max(longest_bytes, task.num_bytes);
    }
    scratch_slot_bytes_ = round_up(longest_bytes, cache_line);
    scratch_.resize(static_cast<std::size_t>(shape.num_scratch) * scratch_slot_bytes_);
}

std::byte *BoundPlan::place(const Operand &operand) const {
    const auto offset = [&](std::span<const std::uint64_t> counts, const std::vector<std::size_t> &starts) {
        const int k = plan.shape().chunks_per_block;
        if (!plan.shape().uneven) return plan.offset_of(operand.index, launch.block) * size_of(launch.dtype);
        const auto block = static_cast<std::size_t>(operand.index / k);
        return (starts[block] + plan.offset_of(operand.index % k, counts[block])) * size_of(launch.dtype);
    };
    switch (operand.space) {
    // An input is only ever a source, or the plan is one for aliased memory (law 3 holds this).
    case Space::input: return const_cast<std::byte *>(launch.input) + offset(launch.input_counts, input_starts_);
    case Space::output: return launch.output + offset(launch.output_counts, output_starts_);
    case Space::scratch:
        return const_cast<std::byte *>(scratch_.data()) + static_cast<std::size_t>(operand.index) * scratch_slot_bytes_;
    case Space::remote: break;
    }
    return nullptr;
}

void BoundPlan::bind_places() {
    for (Task &task : tasks) {
        const Instruction &instruction = *task.instruction;
        for (std::size_t i = 0; i < task.sources.size(); ++i) task.sources[i] = place(instruction.sources[i]);
        task.destination = place(instruction.destinations[0]);
    }
    bind_routes();
    is_short = goes_in_order();
}

void BoundPlan::bind_routes() {
    const PlanShape &shape = plan.shape();
    const auto bytes_of = [&](std::size_t num_blocks, std::span<const std::uint64_t> counts) {
        const auto elements = shape.uneven ? std::reduce(counts.begin(), counts.end()) : num_blocks * launch.block;
        return static_cast<std::size_t>(elements) * size_of(launch.dtype);
    };
    const std::size_t of_input = bytes_of(shape.input_blocks.size(), launch.input_counts),
                      of_output = bytes_of(shape.output_blocks.size(), launch.output_counts);
    const Bytes output(launch.output, of_output);
    may_change_ = false;
    for (Task &task : tasks) {
        task.route = task.sends ? route_of_short(task.num_bytes, transport_.reach(task.peers)) : Route{};
        task.stores = Stores::near;
        task.may_be_written = false;
        // Most chunks are short: nobody need be asked where they lie.
        if (longest_bytes <= most_copied || task.num_bytes == 0) continue;
        const Instruction &instruction = *task.instruction;
        Transfer transfer{.num_bytes = task.num_bytes,
                          .here = launch.input == launch.output ? std::max(of_input, of_output) : of_input + of_output,
                          .of_all_ranks = static_cast<std::size_t>(shape.num_ranks) * std::max(of_input, of_output),
                          .num_readers = static_cast<int>(task.peers.size()),
                          .is_fresh = instruction.is_fresh,
                          .comes_back = instruction.comes_back,
                          .only_copied = shape.only_copies,
                          .one_way = plan.is_one_way(),
                          .overwritten = instruction.staged};
        if (task.sends) {
            // The readers' memory is taken to be like this rank's output, or its source where it has no output.
            const Bytes source(task.sources[0], task.num_bytes);
            transfer.may_be_given =
                is_reached(transport_.memory_of(output.empty() ? source : output, task.peers, false));
            task.route = route_of(transfer, source, task.peers, transport_, profile_);
            may_change_ = may_change_ || task.route.may_change;
            continue;
        }
        transfer.only_copied = instruction.is_copy && !task.peers.empty();
        task.stores = stores_of(transfer, instruction.is_alone, transport_.reach(task.peers), profile_);
        // A plan that only copies has nothing that is hot where it is sent from: only halves are written.
        const bool is_written = !shape.only_copies || task.num_bytes >= profile_.halve;
        task.may_be_written =
            instruction.is_grantable && task.num_bytes > most_copied && is_written &&
            is_reached(transport_.memory_of(Bytes(task.destination, task.num_bytes), task.peers, false));
    }
}

/// Whether each task has one piece, which is sure to be copied by the transport as a whole: then tasks may go one after
/// the other.
bool BoundPlan::goes_in_order() const {
    if (plan.shape().uneven || longest_bytes > piece_bytes) return false;
    const auto keeps_whole = [this](const Channel &channel) {
        return transport_.reach(std::span(&channel.peer, 1)).whole_pieces;
    };
    if (!std::ranges::all_of(sends, keeps_whole) || !std::ranges::all_of(receives, keeps_whole)) return false;
    const auto may_be_copied = [](const Task &task) {
        const bool is_copied = task.route.way == Way::line || task.route.way == Way::stage;
        return task.pieces > 0 && !task.may_be_written && (is_copied || task.route.way == Way::stream);
    };
    return order.size() == tasks.size() && std::ranges::all_of(tasks, may_be_copied);
}

// While it runs -------------------------------------------------------------------------------------------------------

Fold BoundPlan::fold_of(const Task &task) const {
    return {.dtype = launch.dtype,
            .op = launch.op,
            .divisor = task.instruction->completes && launch.op == Op::avg ? plan.shape().num_ranks : 1,
            .factor = launch.factor,
            .custom = launch.custom,
            .past_caches = task.stores == Stores::past_caches};
}

void BoundPlan::store(const Task &task, std::span<const std::byte *const> operands, std::byte *destination,
                      std::size_t num_bytes) const {
    const Instruction &instruction = *task.instruction;
    if (plan.shape().only_token) return;
    if (!instruction.is_copy) {
        fold(fold_of(task), destination, operands, instruction.raw,
             num_bytes >> std::countr_zero(size_of(launch.dtype)));
    } else if (operands[0] != destination) { // else the sender has put it there
        copy_bytes(task.stores, destination, Bytes(operands[0], num_bytes));
    }
}

} // namespace hocket
