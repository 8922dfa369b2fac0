#include "executor/short_run.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace hocket {

ShortRun::ShortRun(const BoundPlan &bound, Transport &transport, Pace &pace, PieceRun &pieces)
    : bound_(bound), transport_(transport), pace_(pace), pieces_(pieces), within_(bound.order.size()) {
    for (const BoundPlan::Task &task : bound.tasks) operands_.resize(std::max(operands_.size(), task.sources.size()));
}

/// Goes through short tasks one after the other. So each finds that it is its turn on its channels, and that what it
/// depends on is done: none has to be looked for.
bool ShortRun::advance() {
    const std::size_t end = bound_.order.size();
    if (ahead_.empty()) {
        for (; next_ < end; ++next_) {
            if (pace_.budget <= 0 || !do_task(next_)) break;
            --pace_.budget;
        }
        if (next_ == end) return true;
        if (pace_.budget <= 0 || !is_on_ || bound_.order[next_]->holds_up_rest) return false;
    }
    return run_around();
}

/// The same where one waits: those behind it go ahead that do not wait for it.
bool ShortRun::run_around() {
    const std::size_t end = bound_.order.size();
    ahead_.resize(end);
    for (std::size_t at = next_; at < end && pace_.budget > 0; ++at) {
        if (is_done(at) || !may_go(*bound_.order[at])) continue;
        if (do_task(at)) {
            --pace_.budget;
            ahead_[at] = true;
        } else if (!is_on_ || bound_.order[at]->holds_up_rest) {
            break;
        }
    }
    while (next_ < end && is_done(next_)) ++next_;
    return next_ == end;
}

/// Does what can be done now of a task. True when that was the rest of it.
bool ShortRun::do_task(std::size_t at) {
    const BoundPlan::Task &task = *bound_.order[at];
    const std::uint32_t tag = bound_.launch.tag;
    if (task.sends) {
        const Bytes bytes(task.sources[0], task.num_bytes);
        const std::size_t num_posted = transport_.post(task.peers, bytes, tag).num_bytes;
        if (num_posted == 0) return false;
        if (num_posted < bytes.size()) throw Failure::internal("a transport has accepted only a part of a piece");
        ++pace_.num_moves;
        return true;
    }
    const std::size_t element = size_of(bound_.launch.dtype);
    std::size_t &within = within_[at];
    do {
        std::size_t available = task.num_bytes - within;
        for (std::size_t i = 0; i < task.sources.size(); ++i) {
            const Operand &source = task.instruction->sources[i];
            if (source.space != Space::remote) {
                operands_[i] = task.sources[i] + within;
                continue;
            }
            const View view = transport_.view(source.peer);
            if (view.bytes.empty()) return false;
            if (view.tag != tag) throw ForeignMessage{source.peer, view.tag};
            if (view.bytes.size() < available) available = view.bytes.size() & ~(element - 1);
            if (available == 0 || view.attached) {
                hand_over();
                return false;
            }
            operands_[i] = view.bytes.data();
        }
        bound_.store(task, {operands_.data(), task.sources.size()}, task.destination + within, available);
        for (int peer : task.peers) transport_.release(peer, available);
        within += available;
        ++pace_.num_moves;
    } while (within < task.num_bytes);
    within = 0;
    return true;
}

/// Whether all that a task comes after in the order is done.
bool ShortRun::may_go(const BoundPlan::Task &task) const {
    return std::ranges::all_of(task.comes_after, [this](std::size_t at) { return is_done(at); });
}

void ShortRun::hand_over() {
    if (!std::exchange(is_on_, false)) return;
    pieces_.start();
    for (std::size_t at = 0; at < within_.size(); ++at) pieces_.resume(*bound_.order[at], within_[at], is_done(at));
}

bool ShortRun::waits_for(std::span<const int> peers) const {
    const auto is_one = [peers](int peer) { return std::ranges::find(peers, peer) != peers.end(); };
    const auto misses_bytes = [&](int peer) { return is_one(peer) && transport_.view(peer).bytes.empty(); };
    const auto misses_room = [&](int peer) { return is_one(peer) && transport_.awaits_room(peer); };
    for (std::size_t at = next_; at < bound_.order.size(); ++at) {
        const BoundPlan::Task &task = *bound_.order[at];
        if (is_done(at)) continue;
        if (task.sends ? std::ranges::any_of(task.peers, misses_room) && may_go(task)
                       : std::ranges::any_of(task.peers, misses_bytes))
            return true;
    }
    return false;
}

} // namespace hocket
