#include "executor/turns.h"

#include <algorithm>
#include <set>

namespace hocket {

void Cursor::rewind(const BoundPlan &bound) {
    first_ = at_ = 0;
    wave_ = channel.entries.front().step;
    settle(bound);
}

/// Moves on to the next entry that has a piece in the current wave, or in the first later wave that has any.
void Cursor::settle(const BoundPlan &bound) {
    const auto &entries = channel.entries;
    const auto end_wave = [&](const BoundPlan::Channel::Entry &entry) {
        return entry.step + static_cast<std::int64_t>(bound.tasks[entry.task].pieces);
    };
    for (;;) {
        for (; at_ < entries.size() && entries[at_].step <= wave_; ++at_) {
            if (wave_ < end_wave(entries[at_])) return;
        }
        while (first_ < entries.size() && end_wave(entries[first_]) <= wave_ + 1) ++first_;
        if (done()) return;
        // Entries ascend by step, so the first unfinished one is active in the next wave or opens a later one.
        wave_ = std::max(wave_ + 1, static_cast<std::int64_t>(entries[first_].step));
        at_ = first_;
    }
}

Turns::Turns(const BoundPlan &bound, Transport &transport)
    : tasks(bound.tasks.begin(), bound.tasks.end()), sends(bound.sends.begin(), bound.sends.end()),
      receives(bound.receives.begin(), bound.receives.end()), bound_(bound), transport_(transport) {}

void Turns::start() {
    num_unfinished_ = first_unsettled_ = 0;
    for (Progress &task : tasks) {
        if (task.bound.pieces > 0) ++num_unfinished_;
        task.done = task.settled = task.within = task.num_bytes_ahead = 0;
        task.tickets.clear();
        task.places.clear();
        for (Remote &remote : task.remotes) remote.clear();
    }
    for (Cursor &cursor : sends) {
        cursor.num_posted = transport_.posted(cursor.channel.peer);
        cursor.rewind(bound_);
    }
    for (Cursor &cursor : receives) cursor.rewind(bound_);
}

bool Turns::at_turn(const Progress &task) const {
    const auto &cursors = task.bound.sends ? sends : receives;
    return std::ranges::all_of(task.bound.channels, [&](std::size_t channel) {
        return !cursors[channel].done() && cursors[channel].task() == task.bound.index;
    });
}

bool Turns::may_go(Progress &task) {
    return at_turn(task) && std::ranges::all_of(task.bound.instruction->dependencies, [&](std::int32_t index) {
               Progress &before = tasks[static_cast<std::size_t>(index)];
               return before.settled > task.done || is_settled(before, task.done);
           });
}

bool Turns::is_settled(Progress &task, std::size_t piece) {
    if (task.settled > piece) return true;
    const std::size_t num_peers = task.bound.peers.size();
    const auto all_released = [&](std::size_t at) {
        for (std::size_t i = 0; i < num_peers; ++i) {
            if (transport_.released(task.bound.peers[i]) < task.tickets[at * num_peers + i]) return false;
        }
        return true;
    };
    if (!task.tickets.empty()) { // sent on loan: settled as the readers release
        while (task.settled <= piece && task.settled < task.done && all_released(task.settled)) ++task.settled;
    }
    // A shorter chunk may have lain between two longer ones in a slot of scratch. It has no such piece, and hands on
    // what it waits for itself, or the last one would not wait for the first.
    const auto is_reached = [&](std::int32_t before) {
        return is_settled(tasks[static_cast<std::size_t>(before)], task.settled);
    };
    while (task.settled <= piece && task.settled >= task.bound.pieces &&
           std::ranges::all_of(task.bound.instruction->dependencies, is_reached)) {
        ++task.settled;
    }
    return task.settled > piece;
}

void Turns::finish_piece(Progress &task) {
    ++task.done;
    task.within = 0;
    if (task.done == task.bound.pieces) --num_unfinished_;
    auto &cursors = task.bound.sends ? sends : receives;
    for (std::size_t channel : task.bound.channels) cursors[channel].next(bound_);
}

bool Turns::are_all_settled() {
    for (; first_unsettled_ < tasks.size(); ++first_unsettled_) {
        Progress &task = tasks[first_unsettled_];
        if (task.bound.pieces > 0 && !is_settled(task, task.bound.pieces - 1)) return false;
    }
    return true;
}

bool Turns::waits_for(std::span<const int> peers) const {
    const auto is_one = [peers](int peer) { return std::ranges::find(peers, peer) != peers.end(); };
    const auto misses_bytes = [&](const Cursor &cursor) {
        const int peer = cursor.channel.peer;
        return is_one(peer) && !cursor.done() && transport_.view(peer).bytes.empty();
    };
    const auto misses_room = [&](const Cursor &cursor) {
        const int peer = cursor.channel.peer;
        return is_one(peer) && transport_.awaits_room(peer) && (!cursor.done() || are_all_done());
    };
    return std::ranges::any_of(receives, misses_bytes) || std::ranges::any_of(sends, misses_room);
}

std::vector<int> Turns::waiting_for() const {
    std::set<int> found;
    for (const auto *cursors : {&receives, &sends}) {
        for (const Cursor &cursor : *cursors) {
            if (waits_for({&cursor.channel.peer, 1})) found.insert(cursor.channel.peer);
        }
    }
    return {found.begin(), found.end()};
}

} // namespace hocket
