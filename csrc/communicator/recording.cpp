// What communicators and messages write down of themselves in a trace.

#include "communicator/communicator.h"

#include <numeric>

namespace hocket {

// Collectives ---------------------------------------------------------------------------------------------------------

/// Equal on all members, and on no other communicator that is open; from the endpoint of the first of them.
std::uint64_t Communicator::identity(int first_rank, std::size_t first_offset) const {
    const std::uint64_t generation = members_.control(0).generation.load(std::memory_order_acquire);
    return (static_cast<std::uint64_t>(first_rank) << 52) ^ (generation << 40) ^ (first_offset / cache_line);
}

/// By the calling thread.
void Work::begin_launch(CommunicatorLane &lane) {
    recorder_ = lane.recorder();
    lane_ = lane.number();
    name_ = recorder_->name(call_.plan->label());
    launching_ = lane.launch();
}

void Work::record_launch() const {
    if (launching_.at == 0) return;
    recorder_->add({.what = Record::What::launch,
                    .lane = launching_.lane,
                    .name = name_,
                    .launcher = lane_,
                    .begin = launching_.at,
                    .end = ticks()});
}

void Work::record_wait(std::uint64_t begin) const {
    if (!recorder_ || !recorder_->is_on()) return;
    recorder_->add({.what = Record::What::wait,
                    .lane = recorder_->lane_of_this_thread(),
                    .name = name_,
                    .launcher = lane_,
                    .begin = begin,
                    .end = ticks(),
                    .sequence = sequence()});
}

/// Writes a call down that has ended.
void Communicator::record(const Call &call, const Launching &launching, std::uint64_t begin, std::uint64_t end,
                          bool failed) {
    Recorder &recorder = *lane_.recorder();
    if (named_ != call.plan.get()) {
        named_ = call.plan.get();
        name_ = recorder.name(named_->label());
    }
    const PlanShape &shape = call.plan->shape();
    const auto elements = [&](std::size_t num_blocks, std::span<const std::uint64_t> counts) {
        return shape.uneven ? std::reduce(counts.begin(), counts.end()) : num_blocks * call.launch.block;
    };
    recorder.add({.what = Record::What::collective,
                  .dtype = call.launch.dtype,
                  .op = call.launch.op,
                  .flags = failed ? Record::failed : std::uint8_t{0},
                  .lane = lane_.number(),
                  .name = name_,
                  .launcher = launching.at != 0 ? launching.lane : recorder.lane_of_this_thread(),
                  .begin = begin,
                  .end = end,
                  .launched = launching.at,
                  .sequence = sequence_,
                  .input = elements(shape.input_blocks.size(), call.launch.input_counts),
                  .output = elements(shape.output_blocks.size(), call.launch.output_counts),
                  .peer = call.fingerprint.root});
}

// Messages ------------------------------------------------------------------------------------------------------------

/// Writes down a message that has ended.
void PointToPoint::record(const Operation &operation) {
    if (!lane_.is_on() || operation.scope != Scope::user) return;
    Record record{.what = Record::What::message,
                  .dtype = operation.dtype,
                  .flags = operation.sends ? Record::sends : std::uint8_t{0},
                  .lane = lane_.number(),
                  .launcher = operation.launching.lane,
                  .begin = operation.begun != 0 ? operation.begun : operation.launching.at,
                  .end = ticks(),
                  .launched = operation.launching.at,
                  .sequence = operation.ordinal,
                  .input = operation.num_bytes,
                  .output = operation.sends ? operation.tag.value_or(0) : operation.found_tag,
                  .peer = operation.sends ? operation.peer : operation.source};
    if (operation.failure) record.flags |= Record::failed;
    lane_.recorder()->add(record);
}

/// Writes down the call that launched these messages, as its thread sees it.
void PointToPoint::record_call(Record::What what, const Operation &first, const Operation &last,
                               std::size_t num_operations) {
    if (!lane_.is_on() || first.scope != Scope::user) return;
    const bool waits = what == Record::What::blocking;
    const char *name = "batch";
    if (num_operations == 1 && waits) name = first.sends ? "send" : "recv";
    if (num_operations == 1 && !waits) name = first.sends ? "isend" : "irecv";
    if (num_operations == 2 && waits && first.sends && !last.sends) name = "sendrecv";
    lane_.recorder()->add({.what = what,
                           .lane = first.launching.lane,
                           .name = lane_.recorder()->name(name),
                           .launcher = lane_.number(),
                           .begin = first.launching.at,
                           .end = ticks()});
}

/// Writes down that the calling thread has waited for a message.
void PointToPoint::record_wait(const Operation &operation, const Launching &waiting) {
    lane_.recorder()->add({.what = Record::What::wait,
                           .lane = waiting.lane,
                           .name = lane_.recorder()->name(operation.sends ? "isend" : "irecv"),
                           .launcher = lane_.number(),
                           .begin = waiting.at,
                           .end = ticks(),
                           .sequence = operation.ordinal});
}

} // namespace hocket
