// What messages write down of themselves in a trace.

#include "messages/point_to_point.h"

namespace hocket {

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
