#include "executor/move_trace.h"

namespace hocket {

void MoveTrace::add(const Launch &launch, const Progress &task, std::uint64_t begin, std::size_t piece,
                    std::size_t num_bytes, bool is_complete) const {
    const Instruction &instruction = *task.bound.instruction;
    Record record{.what = Record::What::move,
                  .dtype = launch.dtype,
                  .op = launch.op,
                  .flags = task.bound.sends      ? Record::sends
                           : instruction.is_copy ? std::uint8_t{0}
                                                 : Record::folds,
                  .lane = lane,
                  .launcher = static_cast<std::uint32_t>(task.way),
                  .begin = begin,
                  .end = ticks(),
                  .sequence = sequence,
                  .input = num_bytes,
                  .output = piece,
                  .step = instruction.step,
                  .instruction = instruction.row};
    if (is_complete) record.flags |= Record::completes;
    for (const Operand &operand : task.bound.sends ? instruction.destinations : instruction.sources) {
        if (operand.space != Space::remote) continue;
        record.peer = operand.peer;
        record.order = operand.index;
        recorder->add(record);
        record.flags |= Record::continues;
    }
    if (task.bound.peers.empty()) recorder->add(record);
}

} // namespace hocket
