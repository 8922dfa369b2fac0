// The part of the executor that sends: which way a piece goes.

#include "executor/executor.h"
#include "kernels/copy.h"

#include <algorithm>

namespace hocket {

/// Whether a chunk, or what all ranks have of the call, is too long to be in a cache when it is next read.
/// `num_caches`: over which the ranks are spread.
bool Executor::outgrows_caches(const Task &task, std::size_t num_caches) const {
    const std::size_t least = num_caches * least_bytes_past_caches_;
    return task.num_bytes >= least || total_bytes_ >= least_chunks * least;
}

/// Whether all ranks have so much that two copies of it, through slots, are no quicker than the system's one for those
/// that share a core (`is_to_be_fetched`), in whatever pages. Then nothing goes in one order (`goes_in_order`).
bool Executor::is_large() const { return total_bytes_ >= least_bytes_past_caches_ / 2; }

/// Whether the readers had better copy from private memory where it lies: the cores that they share with others then
/// have one copy to make instead of two. While there is little enough for the caches, two are quicker. Of what several
/// read, each would make a copy of its own.
/// Where each has a core and both are busy either way, as they exchange, one copy is quicker for chunks that are worth
/// the look for their pages: in any case if the kernel's string moves are quick, else while all have no more than
/// `most_fetched` says and lines come quickly.
bool Executor::is_to_be_fetched(const Task &task) const {
    if (!plan_.shape().only_copies || task.peers.size() > 1 || !transport_.can_attach(task.peers[0])) return false;
    const Bytes chunk(task.sources[0], task.num_bytes);
    if (transport_.shares_cores()) {
        const auto of_all = [this](std::size_t least) { return total_bytes_ >= least ? 0 : SIZE_MAX; };
        const std::size_t in_huge_pages = of_all(least_bytes_past_caches_ / 4);
        return transport_.pays_to_attach(chunk, in_huge_pages, is_large() ? 0 : SIZE_MAX);
    }
    const bool is_exchange = !sends_[task.cursors[0]].is_shared;
    if (!is_exchange || !is_one_message(task)) return false;
    const bool is_quick = has_quick_string_moves();
    // Else nothing is won by shorter ones, and much lost where the other rank has small pages, and so stages its own.
    const std::size_t in_huge_pages = is_quick ? least_fetched_in_huge_pages : least_fetched_bytes;
    if (!transport_.pays_to_attach(chunk, in_huge_pages, least_fetched_bytes)) return false;
    return is_quick || (total_bytes_ <= most_fetched * least_bytes_past_caches_ && !transport_.shares_no_cache());
}

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
    if (published.num_bytes == 0) { published = find_places(task) ? send_to_places(task, rest) : publish(task, rest); }
    const std::size_t num_bytes = std::min(rest.size(), published.num_bytes);
    task.num_bytes_ahead = published.num_bytes - num_bytes;
    published.num_bytes = num_bytes;
    return published;
}

/// Whether a chunk for several had better go through slots, though its readers could take it, or have it put, where it
/// lies: their caches are others, and would each have every line from this one's, or every line fetched and written for
/// it. Not what was just made here, and what is put past the caches.
bool Executor::is_too_far(const Task &task) const {
    return task.peers.size() > 1 && transport_.shares_no_cache() && !task.instruction->is_fresh &&
           task.num_bytes < least_put_past_caches * least_bytes_past_caches_;
}

/// Whether a piece had better wait for a slot from its reader, which sends to this rank as well. Ranks that exchange
/// would else each be as far ahead of the other as slots allow, and go through more of them than stay in caches. It
/// waits no longer than until all before it is read: law 3 proves every plan even for channels of one message.
bool Executor::is_too_early(const Task &task, std::size_t num_bytes) const {
    if (task.peers.size() > 1 || !transport_.awaits_handed(task.peers[0], num_bytes)) return false;
    const auto is_expected = [&](const Cursor &cursor) { return cursor.peer == task.peers[0] && !cursor.done(); };
    return std::ranges::any_of(receives_, is_expected);
}

Published Executor::publish(const Task &task, Bytes rest) {
    const Instruction &instruction = *task.instruction;
    // What its reader writes back goes to its cache in any case.
    const bool is_hot = (!outgrows_caches(task) || is_too_far(task)) && !instruction.comes_back;
    const bool may_lend =
        !at_header(task) && !instruction.staged && !(is_hot && transport_.copies_faster(rest.size(), footprint_));
    const bool is_fetched = may_lend && is_to_be_fetched(task);
    // Its readers go on without this rank, which may have no core meanwhile, or as much to fetch itself.
    if ((is_fetched || (may_lend && transport_.shares_cores())) && is_one_message(task)) {
        rest = Bytes(rest.data(), std::min(most_lent_bytes, num_left(task)));
    }
    if (!is_fetched) {
        const bool is_staged = !may_lend || !transport_.could_lend(rest);
        if (is_staged && is_too_early(task, rest.size())) return {};
        return transport_.publish(task.peers, rest, launch_.tag, may_lend);
    }
    if (!transport_.lend(task.peers[0], rest, launch_.tag)) return {};
    return {.num_bytes = rest.size(), .lent = true, .way = transport_.could_lend(rest) ? Way::lend : Way::fetch};
}

/// The same to where its peers let this rank write, as found in places_. What was just folded is hot here, and put
/// there. The reader may as well fetch the rest: each of the two moves every second piece. (Where that is not worth it,
/// there are no places: a put would have to take lines away from the reader's cache, which is slower than its reading.)
Published Executor::send_to_places(Task &task, Bytes rest) {
    const bool is_fresh = task.instruction->is_fresh;
    if (is_fresh || task.done % 2 == 1) {
        const bool past_caches = !is_fresh && task.num_bytes >= least_put_past_caches * least_bytes_past_caches_;
        if (!transport_.put(task.peers, places_, rest, launch_.tag, past_caches)) return {};
        return {.num_bytes = rest.size(), .way = is_fresh ? Way::put : Way::halve};
    }
    // Its reader takes this piece while this rank copies the next, in whatever cache it lies.
    const bool fits_caches = task.num_bytes < least_bytes_past_caches_;
    Published published = fits_caches && !task.instruction->staged
                              ? transport_.publish(task.peers, rest, launch_.tag, true)
                              : publish(task, rest);
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
