// The part of the executor that is about puts.
//
// A copy of a message may be done by its sender, which writes the piece while it is hot in its cache. Law 3 orders the
// copy behind what conflicts with it on the rank that receives, by dependencies alone; granted is only what has none,
// or one: its own send of what lies there, to the very peer that shall write. That peer writes piece k when it has
// folded piece k of that message, so the only access that had to come before the copy has come. Whatever has to come
// after it waits for the copy as ever, which the receiver counts as done when the message is there.

#include "executor/executor.h"
#include "kernels/copy.h"

#include <algorithm>

namespace hocket {

void Executor::grant() {
    if (is_short_) return;
    for (const Cursor &cursor : receives_) {
        windows_.clear();
        for (std::size_t index : cursor.grantable) {
            const Task &task = tasks_[index];
            if (!task.may_be_written) continue;
            const Instruction &instruction = *task.instruction;
            Window &window = windows_.emplace_back();
            window.step = instruction.step;
            window.order = instruction.sources[0].index;
            window.place = task.destination;
            window.num_bytes = task.num_bytes;
            if (instruction.after < 0) continue;
            const Instruction &after = plan_.instructions()[static_cast<std::size_t>(instruction.after)];
            window.after_step = after.step;
            window.after_order = after.destinations[0].index;
        }
        if (windows_.empty()) continue;
        transport_.grant(cursor.peer, launch_.tag, windows_);
        has_granted_ = true;
    }
}

/// Where peer `index` of a send lets this rank write it, if it does, or has said so yet.
std::optional<Executor::Place> Executor::find_place(const Task &task, std::size_t index) const {
    const Cursor &cursor = sends_[task.cursors[index]];
    const auto is_meant = [&](const Window &window) {
        return window.step == task.instruction->step && window.num_bytes == task.num_bytes &&
               window.order == task.instruction->destinations[index].index;
    };
    const auto windows = transport_.granted(cursor.peer, launch_.tag, cursor.num_posted);
    const auto window = std::ranges::find_if(windows, is_meant);
    if (window == windows.end()) return std::nullopt;
    if (window->after_step < 0) return Place{window->place, nullptr};
    const auto receive = std::ranges::find(receives_, cursor.peer, &Cursor::peer);
    if (receive == receives_.end()) return std::nullopt;
    const auto is_after = [&](const Cursor::Entry &entry) {
        return entry.step == window->after_step && entry.order == window->after_order &&
               tasks_[entry.task].num_bytes == task.num_bytes;
    };
    const auto entry = std::ranges::find_if(receive->entries, is_after);
    if (entry == receive->entries.end()) return std::nullopt;
    return Place{window->place, &tasks_[entry->task]};
}

/// Whether all peers let this rank write what is left of the piece at hand, and then where, in places_. `folding`: may
/// be folding this piece just now, element by element before it is written.
bool Executor::find_places(Task &task, const Task *folding) {
    if (at_header(task) || (task.route.way != Way::put && task.route.way != Way::halve)) return false;
    for (std::size_t i = task.places.size(); i < task.peers.size(); ++i) {
        const auto place = find_place(task, i);
        if (!place) return false;
        task.places.push_back(*place);
    }
    places_.clear();
    for (const Place &place : task.places) {
        if (place.after != nullptr && place.after != folding && place.after->done <= task.done) return false;
        places_.push_back(place.begin + piece_start(task) + task.within);
    }
    return true;
}

/// Folds what operands_ point to, and in the same pass puts the result where the peers that it is sent to next let this
/// rank write. False: not now, and nothing was done.
bool Executor::store_and_send(Task &task, const Fold &what, std::size_t num_bytes) {
    if (task.instruction->onward < 0 || what.op == Op::custom) return false; // which is not called for every part
    const auto index = static_cast<std::size_t>(task.instruction->onward);
    Task &next = tasks_[index];
    if (next.done != task.done || next.within != task.within || !at_turn(next, index)) return false;
    if (!find_places(next, &task)) return false;
    std::byte *destination = next_destination(task);
    const std::size_t element = size_of(what.dtype);
    // A store fetches what it is to replace, which was just read if all is in place; string moves do not.
    const bool in_one_pass = launch_.input == launch_.output || !next.route.past_caches;
    Fold both = what;
    const auto make = [&](std::size_t begin, std::size_t part_bytes, std::byte *also) {
        both.also = in_one_pass ? also : nullptr;
        fold(both, destination + begin, operands_, task.instruction->raw, part_bytes / element);
        if (also != both.also) copy_bytes(also, Bytes(destination + begin, part_bytes));
        for (const std::byte *&operand : operands_) operand += part_bytes;
    };
    const std::uint64_t begin = recorder_ == nullptr ? 0 : ticks();
    const Bytes made(destination, num_bytes);
    if (!transport_.put(next.peers, places_, made, launch_.tag, false, make)) return false;
    next.way = Way::put;
    next.within += num_bytes;
    if (recorder_ != nullptr) record_move(next, index, begin, next.done, num_bytes, next.within == piece_size(next));
    return true;
}

} // namespace hocket
