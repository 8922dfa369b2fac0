// The part of a run in pieces that sends: which way a piece goes.

#include "executor/piece_run.h"

#include <algorithm>

namespace hocket {

/// Sends what is ready: each channel tries the task whose turn it is; one with several channels is driven by its first.
bool PieceRun::send_ready() {
    bool progress = false;
    const auto try_it = [this](Progress &task) { return try_send(task); };
    for (std::size_t i = 0; i < turns_.sends.size(); ++i) {
        const Cursor &cursor = turns_.sends[i];
        while (!cursor.done() && pace_.budget > 0) {
            Progress &task = turns_.tasks[cursor.task()];
            if (task.bound.channels.front() != i || !trace.tried(bound_.launch, task, try_it)) break;
            progress = true;
        }
    }
    return progress;
}

bool PieceRun::try_send(Progress &task) {
    if (!turns_.may_go(task)) return false;
    const std::size_t size = task.piece_size(), num_peers = task.bound.peers.size();
    const std::byte *piece = task.at_header() ? reinterpret_cast<const std::byte *>(&task.bound.num_elements)
                                              : task.bound.sources[0] + task.piece_start();
    bool progress = false;
    while (task.within < size) {
        const Taken taken = send_some(task, Bytes(piece + task.within, size - task.within));
        if (taken.num_bytes == 0) return progress;
        progress = true;
        task.way = taken.way;
        task.within += taken.num_bytes;
        // Once one piece is lent, all pieces of this task settle through tickets, in order.
        if (taken.lent && task.tickets.empty()) task.tickets.resize(task.bound.pieces * num_peers, 0);
    }
    if (task.tickets.empty()) {
        ++task.settled;
    } else {
        for (std::size_t i = 0; i < num_peers; ++i)
            task.tickets[task.done * num_peers + i] = transport_.posted(task.bound.peers[i]);
    }
    --pace_.budget;
    turns_.finish_piece(task);
    return true;
}

/// Sends some of what is left of the piece at hand; what goes with it of the next ones is ahead.
Taken PieceRun::send_some(Progress &task, Bytes rest) {
    if (bound_.is_short) return transport_.post(task.bound.peers, rest, bound_.launch.tag);
    Taken taken{.num_bytes = task.num_bytes_ahead, .lent = true, .way = task.way};
    if (taken.num_bytes == 0) {
        taken = puts_.find_places(task) ? send_to_places(task, rest)
                                        : post(task, rest, task.at_header() ? Way::stage : task.bound.route.otherwise);
    }
    const std::size_t num_bytes = std::min(rest.size(), taken.num_bytes);
    task.num_bytes_ahead = taken.num_bytes - num_bytes;
    taken.num_bytes = num_bytes;
    return taken;
}

/// To where its peers let this rank write, as was just found. What was just folded is put there; of other chunks the
/// reader may as well read the rest, so each of the two moves every second piece.
Taken PieceRun::send_to_places(Progress &task, Bytes rest) {
    const Route &route = task.bound.route;
    const bool halves = route.way == Way::halve;
    if (!halves || task.done % 2 == 1) {
        const bool past_caches = halves && route.past_caches;
        if (!transport_.windows()->put(task.bound.peers, puts_.places(), rest, bound_.launch.tag, past_caches))
            return {};
        return {.num_bytes = rest.size(), .way = route.way};
    }
    Taken taken = post(task, rest, task.bound.instruction->staged ? Way::stage : Way::lend);
    if (taken.lent) taken.way = Way::halve;
    return taken;
}

Taken PieceRun::post(const Progress &task, Bytes rest, Way way) {
    // All pieces go as one message, if nothing comes before or between them: its readers go on without this rank, which
    // may have no core meanwhile, or as much to fetch itself. A trace has them one by one, each sent before received.
    if (!task.at_header() && task.bound.route.whole && task.bound.is_independent && trace.recorder == nullptr)
        rest = Bytes(rest.data(), std::min(most_lent_bytes, task.num_left()));
    const bool may_wait = way == Way::stage && is_answered(task);
    return transport_.post(task.bound.peers, rest, bound_.launch.tag, {.way = way, .may_wait = may_wait});
}

/// Whether the one reader still sends to this rank. Ranks that exchange would each be as far ahead of the other as
/// slots allow, and go through more of them than stay in caches. A piece that waits for a slot of its reader waits no
/// longer than until all before it is read: law 3 proves every plan even for channels of one message.
bool PieceRun::is_answered(const Progress &task) const {
    const std::vector<int> &peers = task.bound.peers;
    const auto is_expected = [&](const Cursor &cursor) { return cursor.channel.peer == peers[0] && !cursor.done(); };
    return peers.size() == 1 && std::ranges::any_of(turns_.receives, is_expected);
}

} // namespace hocket
