// The part of the executor that sends: which way a piece goes.

#include "executor/executor.h"

#include <algorithm>

namespace hocket {

/// Whether all pieces of a send may go as one message. Nothing may come before or between them on their channels, and
/// nothing of this rank wait for one of them. A trace of steps has them one by one, each sent before it is received.
bool Executor::is_one_message(const Task &task) const {
    const auto is_alone = [this](std::size_t cursor) { return sends_[cursor].entries.size() == 1; };
    return recorder_ == nullptr && task.instruction->dependencies.empty() && !task.is_awaited &&
           std::ranges::all_of(task.cursors, is_alone);
}

/// Sends some of what is left of the piece at hand; what goes with it of the next ones is ahead.
Published Executor::send_some(Task &task, Bytes rest) {
    if (is_short_) return transport_.publish(task.peers, rest, launch_.tag, false);
    Published published{.num_bytes = task.num_bytes_ahead, .lent = true, .way = task.way};
    if (published.num_bytes == 0) {
        published = find_places(task) ? send_to_places(task, rest)
                                      : publish(task, rest, at_header(task) ? Way::stage : task.route.otherwise);
    }
    const std::size_t num_bytes = std::min(rest.size(), published.num_bytes);
    task.num_bytes_ahead = published.num_bytes - num_bytes;
    published.num_bytes = num_bytes;
    return published;
}

/// Whether a piece had better wait for a slot from its reader, which sends to this rank as well. Ranks that exchange
/// would else each be as far ahead of the other as slots allow, and go through more of them than stay in caches. It
/// waits no longer than until all before it is read: law 3 proves every plan even for channels of one message.
bool Executor::is_too_early(const Task &task, std::size_t num_bytes) const {
    if (task.peers.size() > 1 || !transport_.awaits_handed(task.peers[0], num_bytes)) return false;
    const auto is_expected = [&](const Cursor &cursor) { return cursor.peer == task.peers[0] && !cursor.done(); };
    return std::ranges::any_of(receives_, is_expected);
}

Published Executor::publish(const Task &task, Bytes rest, Way way) {
    // Its readers go on without this rank, which may have no core meanwhile, or as much to fetch itself.
    if (!at_header(task) && task.route.whole && is_one_message(task))
        rest = Bytes(rest.data(), std::min(most_lent_bytes, num_left(task)));
    if (way == Way::fetch) {
        if (!transport_.lend(task.peers[0], rest, launch_.tag)) return {};
        return {.num_bytes = rest.size(), .lent = true, .way = Way::fetch};
    }
    if (way != Way::lend && is_too_early(task, rest.size())) return {};
    return transport_.publish(task.peers, rest, launch_.tag, way == Way::lend);
}

/// The same to where its peers let this rank write, as found in places_. What was just folded is put there; of other
/// chunks the reader may as well read the rest, so each of the two moves every second piece.
Published Executor::send_to_places(Task &task, Bytes rest) {
    const bool halves = task.route.way == Way::halve;
    if (!halves || task.done % 2 == 1) {
        if (!transport_.put(task.peers, places_, rest, launch_.tag, halves && task.route.past_caches)) return {};
        return {.num_bytes = rest.size(), .way = task.route.way};
    }
    Published published = publish(task, rest, task.instruction->staged ? Way::stage : Way::lend);
    if (published.lent) published.way = Way::halve;
    return published;
}

bool Executor::try_send(Task &task, std::size_t index) {
    if (!at_turn(task, index) || !ready(task)) return false;
    const bool header = at_header(task);
    const std::size_t size = piece_size(task);
    const std::byte *piece =
        header ? reinterpret_cast<const std::byte *>(&task.num_elements) : task.sources[0] + piece_start(task);
    bool progress = false;
    while (task.within < size) {
        const Published published = send_some(task, Bytes(piece + task.within, size - task.within));
        if (published.num_bytes == 0) return progress;
        progress = true;
        task.way = published.way;
        task.within += published.num_bytes;
        // Once one piece is lent, all pieces of this task settle through tickets, in order.
        if (published.lent && task.tickets.empty()) task.tickets.resize(task.pieces * task.peers.size(), 0);
    }
    if (task.tickets.empty()) {
        ++task.settled;
    } else {
        for (std::size_t i = 0; i < task.peers.size(); ++i) {
            task.tickets[task.done * task.peers.size() + i] = transport_.posted(task.peers[i]);
        }
    }
    finish_piece(task);
    return true;
}

} // namespace hocket
