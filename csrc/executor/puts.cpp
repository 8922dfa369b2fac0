#include "executor/puts.h"

#include <algorithm>

namespace hocket {

void Puts::grant() {
    has_granted_ = false;
    Windows *const windows = transport_.windows();
    if (windows == nullptr) return;
    for (const BoundPlan::Channel &channel : bound_.receives) {
        granting_.clear();
        for (std::size_t index : channel.grantable) {
            const BoundPlan::Task &task = bound_.tasks[index];
            if (!task.may_be_written) continue;
            const Instruction &instruction = *task.instruction;
            Window &window = granting_.emplace_back();
            window.step = instruction.step;
            window.order = instruction.sources[0].index;
            window.place = task.destination;
            window.num_bytes = task.num_bytes;
            if (instruction.after < 0) continue;
            const Instruction &after = bound_.plan.instructions()[static_cast<std::size_t>(instruction.after)];
            window.after_step = after.step;
            window.after_order = after.destinations[0].index;
        }
        if (granting_.empty()) continue;
        windows->grant(channel.peer, bound_.launch.tag, granting_);
        has_granted_ = true;
    }
}

void Puts::revoke() {
    if (has_granted_) transport_.windows()->revoke();
    has_granted_ = false;
}

/// Where peer `index` of a send lets this rank write it, if it does, or has said so yet.
std::optional<Progress::Place> Puts::find_place(const Progress &task, std::size_t index) const {
    const Cursor &cursor = turns_.sends[task.bound.channels[index]];
    const int peer = cursor.channel.peer;
    const auto is_meant = [&](const Window &window) {
        return window.step == task.bound.instruction->step && window.num_bytes == task.bound.num_bytes &&
               window.order == task.bound.instruction->destinations[index].index;
    };
    if (transport_.windows() == nullptr) return std::nullopt;
    const auto windows = transport_.windows()->granted(peer, bound_.launch.tag, cursor.num_posted);
    const auto window = std::ranges::find_if(windows, is_meant);
    if (window == windows.end()) return std::nullopt;
    if (window->after_step < 0) return Progress::Place{window->place, nullptr};
    const auto receive = std::ranges::find(bound_.receives, peer, &BoundPlan::Channel::peer);
    if (receive == bound_.receives.end()) return std::nullopt;
    const auto is_after = [&](const BoundPlan::Channel::Entry &entry) {
        return entry.step == window->after_step && entry.order == window->after_order &&
               bound_.tasks[entry.task].num_bytes == task.bound.num_bytes;
    };
    const auto entry = std::ranges::find_if(receive->entries, is_after);
    if (entry == receive->entries.end()) return std::nullopt;
    return Progress::Place{window->place, &turns_.tasks[entry->task]};
}

bool Puts::find_places(Progress &task, const Progress *folding) {
    const Way way = task.bound.route.way;
    if (task.at_header() || (way != Way::put && way != Way::halve)) return false;
    for (std::size_t i = task.places.size(); i < task.bound.peers.size(); ++i) {
        const auto place = find_place(task, i);
        if (!place) return false;
        task.places.push_back(*place);
    }
    places_.clear();
    for (const Progress::Place &place : task.places) {
        if (place.after != nullptr && place.after != folding && place.after->done <= task.done) return false;
        places_.push_back(place.begin + task.piece_start() + task.within);
    }
    return true;
}

} // namespace hocket
