#include "plan.h"

#include "error.h"

#include <utility>

namespace hocket {
namespace {

constexpr std::int32_t flag_completes = 1;
constexpr std::int32_t flag_staged = 2;

[[noreturn]] void refuse(std::size_t instruction, const std::string &complaint) {
    throw Failure::internal("plan: instruction " + std::to_string(instruction) + ": " + complaint);
}

std::vector<Operand> read_operands(std::span<const std::int32_t> table) {
    if (table.size() % 3 != 0) throw Failure::internal("plan: operands have three columns");
    std::vector<Operand> operands;
    for (std::size_t at = 0; at < table.size(); at += 3) {
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
    const auto limit = [&] {
        switch (operand.space) {
        case Space::input: return shape.num_input_chunks;
        case Space::output: return shape.num_output_chunks;
        case Space::scratch: return shape.num_scratch;
        case Space::remote: break;
        }
        return 0;
    }();
    if (operand.peer != -1 || operand.index < 0 || operand.index >= limit) {
        refuse(instruction, "place " + std::to_string(operand.index) + " does not exist in its space");
    }
}

} // namespace

Plan::Plan(PlanShape shape, std::string label, std::span<const std::int32_t> instructions,
           std::span<const std::int32_t> sources, std::span<const std::int32_t> destinations,
           std::span<const std::int32_t> dependencies)
    : shape_(shape), label_(std::move(label)), sources_(read_operands(sources)),
      destinations_(read_operands(destinations)), dependencies_(dependencies.begin(), dependencies.end()) {
    constexpr std::size_t columns = 6;
    if (instructions.size() % columns != 0) throw Failure::internal("plan: instructions have six columns");
    if (shape_.chunks_per_block < 1) throw Failure::internal("plan: a block has at least one chunk");
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
        next.step = line[0];
        next.chunk = line[1];
        next.sources = take(sources_, source, line[2], row);
        next.destinations = take(destinations_, destination, line[3], row);
        next.dependencies = take(dependencies_, dependency, line[4], row);
        next.completes = (line[5] & flag_completes) != 0;
        next.staged = (line[5] & flag_staged) != 0;
        if (next.step < last_step) refuse(row, "steps do not ascend");
        last_step = next.step;
        if (next.chunk < 0 || next.chunk >= shape_.chunks_per_block) refuse(row, "its chunk does not exist");
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
        instructions_.push_back(next);
    }
}

std::size_t Plan::offset_of(int index, std::size_t block) const {
    const auto k = static_cast<std::size_t>(shape_.chunks_per_block);
    const auto chunk = static_cast<std::size_t>(index);
    return chunk / k * block + chunk % k * block / k;
}

std::size_t Plan::elements_of(int chunk, std::size_t block) const {
    const auto k = static_cast<std::size_t>(shape_.chunks_per_block);
    const auto c = static_cast<std::size_t>(chunk);
    return (c + 1) * block / k - c * block / k;
}

} // namespace hocket
