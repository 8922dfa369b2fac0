#include "plan/plan.h"

#include "base/error.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace hocket {
namespace {

constexpr std::int32_t flag_completes = 1;
constexpr std::int32_t flag_staged = 2;

[[noreturn]] void refuse(std::size_t instruction, const std::string &complaint) {
    throw Failure::internal("plan: instruction " + std::to_string(instruction) + ": " + complaint);
}

constexpr std::size_t source_columns = 4, destination_columns = 3;

std::vector<Operand> read_operands(std::span<const std::int32_t> table, std::size_t columns) {
    if (table.size() % columns != 0) throw Failure::internal("plan: its operands do not fill their columns");
    std::vector<Operand> operands;
    for (std::size_t at = 0; at < table.size(); at += columns) {
        operands.push_back({table[at], static_cast<Space>(table[at + 1]), table[at + 2]});
    }
    return operands;
}

void check_operand(const PlanShape &shape, const Operand &operand, std::size_t instruction) {
    if (operand.space == Space::remote) {
        if (operand.peer < 0 || operand.peer >= shape.num_ranks || operand.peer == shape.rank) {
            refuse(instruction, "no channel to rank " + std::to_string(operand.peer));
        }
        return;
    }
    const auto k = static_cast<std::size_t>(shape.chunks_per_block);
    const auto limit = [&]() -> std::size_t {
        switch (operand.space) {
        case Space::input: return shape.input_blocks.size() * k;
        case Space::output: return shape.output_blocks.size() * k;
        case Space::scratch: return static_cast<std::size_t>(shape.num_scratch);
        case Space::remote: break;
        }
        return 0;
    }();
    if (operand.peer != -1 || operand.index < 0 || static_cast<std::size_t>(operand.index) >= limit) {
        refuse(instruction, "place " + std::to_string(operand.index) + " does not exist in its space");
    }
}

} // namespace

Plan::Plan(PlanShape shape, std::string label, std::span<const std::int32_t> instructions,
           std::span<const std::int32_t> sources, std::span<const std::int32_t> destinations,
           std::span<const std::int32_t> dependencies)
    : shape_(std::move(shape)), label_(std::move(label)), sources_(read_operands(sources, source_columns)),
      raw_(std::make_unique<bool[]>(sources_.size())), destinations_(read_operands(destinations, destination_columns)),
      dependencies_(dependencies.begin(), dependencies.end()) {
    constexpr std::size_t columns = 6;
    if (instructions.size() % columns != 0) throw Failure::internal("plan: instructions have six columns");
    if (shape_.chunks_per_block < 1) throw Failure::internal("plan: a block has at least one chunk");
    for (std::size_t i = 0; i < sources_.size(); ++i) raw_[i] = sources[i * source_columns + 3] != 0;
    std::size_t source = 0, destination = 0, dependency = 0;
    std::int32_t last_step = 0;
    const auto take = [&](auto &all, std::size_t &from, std::int32_t end, std::size_t row) {
        const auto to = static_cast<std::size_t>(end);
        if (end < 0 || to < from || to > all.size()) refuse(row, "the ends of its operands do not ascend");
        const std::span taken(all.data() + from, to - from);
        from = to;
        return taken;
    };
    for (std::size_t row = 0; row < instructions.size() / columns; ++row) {
        const auto line = instructions.subspan(row * columns, columns);
        Instruction next;
        next.row = static_cast<std::int32_t>(row);
        next.step = line[0];
        next.chunk = line[1];
        const std::size_t first_source = source;
        next.sources = take(sources_, source, line[2], row);
        next.raw = std::span(raw_.get() + first_source, next.sources.size());
        next.destinations = take(destinations_, destination, line[3], row);
        next.dependencies = take(dependencies_, dependency, line[4], row);
        next.completes = (line[5] & flag_completes) != 0;
        next.staged = (line[5] & flag_staged) != 0;
        if (next.step < last_step) refuse(row, "steps do not ascend");
        last_step = next.step;
        if (shape_.uneven) next.sized_as = find_size(next.chunk, row);
        else if (next.chunk < 0 || next.chunk >= shape_.chunks_per_block) refuse(row, "its chunk does not exist");
        if (next.sources.empty() || next.destinations.empty()) refuse(row, "it has no source or no destination");
        for (const Operand &operand : next.sources) check_operand(shape_, operand, row);
        for (const Operand &operand : next.destinations) check_operand(shape_, operand, row);
        if (next.sends()) {
            if (next.sources.size() != 1 || next.sources[0].space == Space::remote)
                refuse(row, "it sends more than one place");
            for (const Operand &operand : next.destinations) {
                if (operand.space != Space::remote) refuse(row, "it both sends and stores");
            }
        } else if (next.destinations.size() != 1) {
            refuse(row, "it stores into more than one place");
        }
        for (std::int32_t before : next.dependencies) {
            if (before < 0 || static_cast<std::size_t>(before) >= row) refuse(row, "it depends on a later instruction");
        }
        next.is_copy = !next.sends() && next.sources.size() == 1 && !next.raw[0] && !next.completes;
        instructions_.push_back(next);
    }
    find_uses();
}

/// What instructions before and after do with a destination.
void Plan::find_uses() {
    const auto name_of = [](const Operand &place) { return std::pair(place.space, place.index); };
    using Name = decltype(name_of(Operand{}));
    std::map<Name, std::vector<std::int32_t>> users;
    std::set<Name> folded;
    for (std::size_t row = 0; row < instructions_.size(); ++row) {
        Instruction &next = instructions_[row];
        const Operand &source = next.sources[0], &place = next.destinations[0];
        const std::vector<std::int32_t> &before = users[name_of(place)];
        const bool caller_sees = place.space == Space::input || place.space == Space::output;
        if (next.is_copy && source.space == Space::remote && caller_sees) {
            const auto goes_back = [&](std::int32_t user) {
                const Instruction &earlier = instructions_[static_cast<std::size_t>(user)];
                return earlier.destinations.size() == 1 && earlier.destinations[0].peer == source.peer;
            };
            next.is_grantable = before.empty() || (before.size() == 1 && goes_back(before[0]));
            if (next.is_grantable && !before.empty()) {
                next.after = before[0];
                instructions_[static_cast<std::size_t>(next.after)].comes_back = true;
            }
        }
        next.is_fresh = next.sends() && folded.contains(name_of(source));
        if (next.is_fresh && next.dependencies.size() == 1) {
            Instruction &fold = instructions_[static_cast<std::size_t>(next.dependencies[0])];
            const bool is_its = !fold.sends() && !fold.is_copy && name_of(fold.destinations[0]) == name_of(source);
            if (is_its && fold.chunk == next.chunk && fold.onward < 0) fold.onward = static_cast<std::int32_t>(row);
        }
        if (!next.sends() && !next.is_copy) folded.insert(name_of(place));
        const auto note = [&](const Operand &used) {
            if (used.space != Space::remote) users[name_of(used)].push_back(static_cast<std::int32_t>(row));
        };
        std::ranges::for_each(next.sources, note);
        std::ranges::for_each(next.destinations, note);
    }
    const auto sends_elsewhere = [this](const Operand &to) { return to.peer != destinations_[0].peer; };
    is_one_way_ =
        std::ranges::all_of(instructions_, &Instruction::sends) && std::ranges::none_of(destinations_, sends_elsewhere);
    for (Instruction &one : instructions_)
        one.is_alone = !one.sends() && users[name_of(one.destinations[0])].size() == 1;
}

/// The chunk of `data` in this rank's own memory: what it holds there it knows the length of.
Operand Plan::find_size(std::int32_t chunk, std::size_t row) const {
    const std::int32_t k = shape_.chunks_per_block;
    for (const auto &[space, blocks] :
         {std::pair(Space::input, &shape_.input_blocks), std::pair(Space::output, &shape_.output_blocks)}) {
        const auto found = std::ranges::find(*blocks, chunk / k);
        if (chunk < 0 || found == blocks->end()) continue;
        return {-1, space, static_cast<std::int32_t>(found - blocks->begin()) * k + chunk % k};
    }
    refuse(row, "this rank does not know the length of its chunk");
}

std::unique_ptr<const Plan> Plan::split(const std::function<int(int peer)> &via) const {
    const auto is_mixed = [&via](const Instruction &one) {
        const auto goes_elsewhere = [&](const Operand &to) { return via(to.peer) != via(one.destinations[0].peer); };
        return one.sends() && std::ranges::any_of(one.destinations, goes_elsewhere);
    };
    if (std::ranges::none_of(instructions_, is_mixed)) return nullptr;
    std::vector<std::int32_t> instructions, sources, destinations, dependencies;
    std::vector<std::vector<std::int32_t>> parts_of; // rows of the new plan, by row of this one
    std::vector<std::int32_t> rows;                  // the other way round
    const auto size = [](const std::vector<std::int32_t> &table, std::size_t columns) {
        return static_cast<std::int32_t>(table.size() / columns);
    };
    for (const Instruction &one : instructions_) {
        std::map<int, std::vector<Operand>> by_way;
        for (const Operand &to : one.destinations) by_way[one.sends() ? via(to.peer) : 0].push_back(to);
        auto &parts = parts_of.emplace_back();
        for (const auto &[way, operands] : by_way) {
            parts.push_back(static_cast<std::int32_t>(rows.size()));
            rows.push_back(one.row);
            for (std::size_t i = 0; i < one.sources.size(); ++i) {
                const Operand &from = one.sources[i];
                sources.insert(sources.end(),
                               {from.peer, static_cast<std::int32_t>(from.space), from.index, one.raw[i]});
            }
            for (const Operand &to : operands)
                destinations.insert(destinations.end(), {to.peer, static_cast<std::int32_t>(to.space), to.index});
            for (const std::int32_t before : one.dependencies) {
                const auto &all = parts_of[static_cast<std::size_t>(before)];
                dependencies.insert(dependencies.end(), all.begin(), all.end());
            }
            instructions.insert(instructions.end(),
                                {one.step, one.chunk, size(sources, source_columns),
                                 size(destinations, destination_columns), size(dependencies, 1),
                                 (one.completes ? flag_completes : 0) | (one.staged ? flag_staged : 0)});
        }
    }
    auto plan = std::make_unique<Plan>(shape_, label_, instructions, sources, destinations, dependencies);
    for (std::size_t row = 0; row < rows.size(); ++row) plan->instructions_[row].row = rows[row];
    return plan;
}

std::size_t Plan::offset_of(int index, std::size_t block) const {
    const auto k = static_cast<std::size_t>(shape_.chunks_per_block);
    const auto chunk = static_cast<std::size_t>(index);
    return chunk / k * block + chunk % k * block / k;
}

std::size_t Plan::elements_of(int chunk, std::size_t block) const {
    return offset_of(chunk + 1, block) - offset_of(chunk, block);
}

} // namespace hocket
