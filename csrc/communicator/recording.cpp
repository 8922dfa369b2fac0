// What communicators write down of themselves in a trace.

#include "communicator/communicator.h"

#include <numeric>

namespace hocket {

/// Equal on all members, and on no other communicator that is open; from the endpoint of the first of them.
std::uint64_t Communicator::identity(int first_rank, std::size_t first_offset) const {
    const std::uint64_t generation = members_.generation();
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

} // namespace hocket
