#include "executor/executor.h"

#include "base/error.h"
#include "kernels/copy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

namespace hocket {

// Channels ------------------------------------------------------------------------------------------------------------

void Executor::Cursor::bind(const Executor &executor) {
    now_ = {.wave = entries.empty() ? 0 : entries.front().step};
    settle(executor);
    begin_ = now_;
}

void Executor::Cursor::next(const Executor &executor) {
    ++now_.at;
    if (executor.is_short_) now_.first = now_.at; // an entry has one piece, in a wave of its own step
    else settle(executor);
}

/// Moves on to the next entry that has a piece in the current wave, or in the first later wave that has any.
void Executor::Cursor::settle(const Executor &executor) {
    const auto end_wave = [&](const Entry &entry) {
        return entry.step + static_cast<std::int64_t>(executor.tasks_[entry.task].pieces);
    };
    for (;;) {
        for (; now_.at < entries.size() && entries[now_.at].step <= now_.wave; ++now_.at) {
            if (now_.wave < end_wave(entries[now_.at])) return;
        }
        while (now_.first < entries.size() && end_wave(entries[now_.first]) <= now_.wave + 1) ++now_.first;
        if (done()) return;
        // Entries ascend by step, so the first unfinished one is active in the next wave or opens a later one.
        now_.wave = std::max(now_.wave + 1, static_cast<std::int64_t>(entries[now_.first].step));
        now_.at = now_.first;
    }
}

// Binding -------------------------------------------------------------------------------------------------------------

Executor::Executor(const Plan &plan, Transport &transport, const Profile &profile)
    : plan_(plan), transport_(transport), profile_(profile) {
    const auto cursor_of = [](std::vector<Cursor> &cursors, int peer) {
        const auto found = std::ranges::find(cursors, peer, &Cursor::peer);
        if (found != cursors.end()) return static_cast<std::size_t>(found - cursors.begin());
        cursors.emplace_back().peer = peer;
        return cursors.size() - 1;
    };
    for (const Instruction &instruction : plan.instructions()) {
        const std::size_t index = tasks_.size();
        Task &task = tasks_.emplace_back();
        task.instruction = &instruction;
        auto &cursors = instruction.sends() ? sends_ : receives_;
        for (const Operand &operand : instruction.sends() ? instruction.destinations : instruction.sources) {
            if (operand.space != Space::remote) continue;
            const std::size_t cursor = cursor_of(cursors, operand.peer);
            cursors[cursor].entries.push_back({instruction.step, operand.index, index});
            task.cursors.push_back(cursor);
            if (instruction.is_grantable) cursors[cursor].grantable.push_back(index);
            if (instruction.sends()) task.peers.push_back(operand.peer);
            else task.remotes.push_back({.cursor = cursor, .carry = {}});
        }
        for (std::int32_t before : instruction.dependencies) tasks_[static_cast<std::size_t>(before)].is_awaited = true;
        if (task.cursors.empty()) locals_.push_back(index);
        task.sources.resize(instruction.sources.size());
    }
    for (auto *cursors : {&sends_, &receives_}) {
        for (Cursor &cursor : *cursors) {
            std::ranges::stable_sort(cursor.entries, {},
                                     [](const Cursor::Entry &entry) { return std::tuple(entry.step, entry.order); });
        }
    }
    find_order();
}

// Running -------------------------------------------------------------------------------------------------------------

/// Bytes of the chunk before the piece at hand, which is no header.
std::size_t Executor::piece_start(const Task &task) const {
    return (plan_.shape().uneven ? task.done - 1 : task.done) * piece_bytes;
}

std::size_t Executor::piece_size(const Task &task) const {
    if (at_header(task)) return sizeof task.num_elements;
    return std::min(piece_bytes, task.num_bytes - piece_start(task));
}

bool Executor::is_settled(Task &task, std::size_t piece) {
    if (task.settled > piece) return true;
    const std::size_t num_peers = task.peers.size();
    const auto all_released = [&](std::size_t at) {
        for (std::size_t i = 0; i < num_peers; ++i) {
            if (transport_.released(task.peers[i]) < task.tickets[at * num_peers + i]) return false;
        }
        return true;
    };
    if (!task.tickets.empty()) { // sent on loan: settled as the readers release
        while (task.settled <= piece && task.settled < task.done && all_released(task.settled)) ++task.settled;
    }
    // A shorter chunk may have lain between two longer ones in a slot of scratch. It has no such piece, and hands on
    // what it waits for itself, or the last one would not wait for the first.
    const auto is_reached = [&](std::int32_t before) {
        return is_settled(tasks_[static_cast<std::size_t>(before)], task.settled);
    };
    while (task.settled <= piece && task.settled >= task.pieces &&
           std::ranges::all_of(task.instruction->dependencies, is_reached)) {
        ++task.settled;
    }
    return task.settled > piece;
}

bool Executor::ready(Task &task) {
    return std::ranges::all_of(task.instruction->dependencies, [&](std::int32_t index) {
        Task &before = tasks_[static_cast<std::size_t>(index)];
        return before.settled > task.done || is_settled(before, task.done);
    });
}

bool Executor::at_turn(const Task &task, std::size_t index) const {
    const auto &cursors = task.peers.empty() ? receives_ : sends_;
    return std::ranges::all_of(
        task.cursors, [&](std::size_t cursor) { return !cursors[cursor].done() && cursors[cursor].task() == index; });
}

void Executor::finish_piece(Task &task) {
    ++task.done;
    --budget_;
    task.within = 0;
    if (task.done == task.pieces) --num_unfinished_;
    auto &cursors = task.peers.empty() ? receives_ : sends_;
    for (std::size_t cursor : task.cursors) cursors[cursor].next(*this);
}

/// The bytes of a source that lie ready in one place, in whole elements, whose size is a power of two; an element that
/// comes in parts is put together.
View Executor::gather(Remote &remote, std::size_t element, bool may_be_attached, bool &progress) {
    const int peer = receives_[remote.cursor].peer;
    const auto whole = [element](std::size_t num_bytes) { return num_bytes & ~(element - 1); };
    for (;;) {
        const std::size_t held = remote.carry.size() - remote.used;
        if (held >= element) return {.bytes = Bytes(remote.carry).subspan(remote.used, whole(held))};
        View view = transport_.view(peer);
        if (view.bytes.empty()) return {};
        if (view.tag != launch_.tag) throw ForeignMessage{peer};
        if (view.attached && !may_be_attached) {
            throw Failure::internal("member " + std::to_string(peer) +
                                    " lends to a fold memory that only a copy can read");
        }
        if (held == 0 && view.bytes.size() >= element) {
            view.bytes = view.bytes.first(whole(view.bytes.size()));
            return view;
        }
        if (!carry_over(remote, std::min(element - held, view.bytes.size()))) return {};
        progress = true;
    }
}

bool Executor::carry_over(Remote &remote, std::size_t num_bytes) {
    const int peer = receives_[remote.cursor].peer;
    const std::size_t held = remote.carry.size();
    remote.carry.resize(held + num_bytes);
    if (!transport_.copy(peer, remote.carry.data() + held, num_bytes)) {
        remote.carry.resize(held);
        return false;
    }
    transport_.release(peer, num_bytes);
    return true;
}

/// Takes what a channel shows of a piece that cannot be folded yet, unless it shows all of it, or soon will. So a
/// channel holds at least one piece, however little its transport holds, and law 3 has proved the plan for just that.
bool Executor::make_room(Task &task, std::size_t cursor) {
    Remote &remote = *std::ranges::find(task.remotes, cursor, &Remote::cursor);
    const View view = transport_.view(receives_[cursor].peer);
    const std::size_t held = remote.carry.size() - remote.used, missing = piece_size(task) - task.within - held;
    if (view.bytes.empty() || missing == 0) return false; // with nothing missing, the peer may show its next call
    if (view.tag != launch_.tag) throw ForeignMessage{receives_[cursor].peer};
    if (held == 0 && view.bytes.size() + view.num_coming >= missing) return false;
    return carry_over(remote, std::min(missing, view.bytes.size()));
}

/// At a header: what the peers send has to be as long as what this rank expects of them.
void Executor::check_sizes(const Task &task) const {
    for (std::size_t i = 0; i < task.remotes.size(); ++i) {
        std::uint64_t found = 0;
        std::memcpy(&found, operands_[i], sizeof found);
        if (found == task.num_elements) continue;
        throw ForeignSize{receives_[task.remotes[i].cursor].peer, task.num_elements, found};
    }
}

/// What a fold computes.
Fold Executor::fold_of(const Task &task) const {
    const Instruction &instruction = *task.instruction;
    return {.dtype = launch_.dtype,
            .op = launch_.op,
            .divisor = instruction.completes && launch_.op == Op::avg ? plan_.shape().num_ranks : 1,
            .factor = launch_.factor,
            .custom = launch_.custom,
            .past_caches = task.stores == Stores::past_caches};
}

/// Folds what operands_ point to into `num_bytes` of a destination, unless that is a token.
void Executor::store(const Task &task, const Fold &what, std::byte *destination, std::size_t num_bytes) {
    const Instruction &instruction = *task.instruction;
    if (plan_.shape().only_token) return;
    if (!instruction.is_copy) {
        fold(what, destination, operands_, instruction.raw, num_bytes >> std::countr_zero(size_of(launch_.dtype)));
    } else if (operands_[0] == destination) { // the sender has put it there
        return;
    } else {
        copy_bytes(task.stores, destination, Bytes(operands_[0], num_bytes));
    }
}

/// Copies `num_bytes` that a peer shows in its private memory, or fewer. As each copy is a system call, it takes as
/// much as that shows of the next pieces with it, where nothing has to come before them.
bool Executor::fetch(Task &task, std::size_t num_shown, std::size_t &num_bytes) {
    if (task.num_bytes_ahead == 0) {
        const bool is_free = task.instruction->dependencies.empty();
        const std::size_t all = is_free ? std::min({num_shown, num_left(task), attached_bytes}) : num_bytes;
        if (!transport_.copy(receives_[task.cursors.front()].peer, next_destination(task), all)) return false;
        task.num_bytes_ahead = all;
    }
    num_bytes = std::min(num_bytes, task.num_bytes_ahead);
    task.num_bytes_ahead -= num_bytes;
    return true;
}

bool Executor::try_fold(Task &task, std::size_t index) {
    if (!at_turn(task, index) || !ready(task)) return false;
    const bool header = at_header(task);
    const std::size_t size = piece_size(task), element = header ? size : size_of(launch_.dtype);
    const Fold what = fold_of(task);
    bool progress = false;
    while (task.within < size) {
        std::size_t available = size - task.within;
        std::size_t num_shown = 0; // of the last one; only a copy is attached, and has no other
        bool attached = false;
        operands_.clear();
        auto remote = task.remotes.begin();
        for (std::size_t i = 0; i < task.sources.size(); ++i) {
            if (task.instruction->sources[i].space != Space::remote) {
                if (!header) operands_.push_back(task.sources[i] + piece_start(task) + task.within);
                continue;
            }
            const View view = gather(*remote++, element, task.instruction->is_copy && !header, progress);
            if (view.bytes.empty()) return progress;
            attached = view.attached;
            num_shown = view.bytes.size();
            available = std::min(available, num_shown);
            operands_.push_back(view.bytes.data());
        }
        if (header) {
            check_sizes(task);
        } else if (attached) {
            if (!fetch(task, num_shown, available)) return progress;
        } else if (is_short_ || !store_and_send(task, what, available)) {
            store(task, what, next_destination(task), available);
        }
        for (Remote &used : task.remotes) {
            if (used.carry.empty()) {
                transport_.release(receives_[used.cursor].peer, available);
            } else if ((used.used += available) == used.carry.size()) {
                used.carry.clear();
                used.used = 0;
            }
        }
        task.within += available;
        progress = true;
    }
    ++task.settled;
    finish_piece(task);
    return true;
}

/// Tries to send or to fold, and writes down what has moved.
template <auto Try> bool Executor::tried(Task &task, std::size_t index) {
    if (recorder_ == nullptr) [[likely]]
        return (this->*Try)(task, index);
    const std::size_t piece = task.done, before = task.within, size = piece_size(task);
    const std::uint64_t begin = ticks();
    const bool progress = (this->*Try)(task, index);
    const bool is_complete = task.done > piece; // else a part of the piece has moved, or nothing
    const std::size_t after = is_complete ? size : task.within;
    if (after > before) record_move(task, index, begin, piece, after - before, is_complete);
    return progress;
}

/// Writes down that bytes of a piece have moved since `begin`, once for each peer.
void Executor::record_move(const Task &task, std::size_t index, std::uint64_t begin, std::size_t piece,
                           std::size_t num_bytes, bool is_complete) {
    const Instruction &instruction = *task.instruction;
    Record record{.what = Record::What::move,
                  .dtype = launch_.dtype,
                  .op = launch_.op,
                  .flags = instruction.sends()   ? Record::sends
                           : instruction.is_copy ? std::uint8_t{0}
                                                 : Record::folds,
                  .lane = lane_,
                  .launcher = static_cast<std::uint32_t>(task.way),
                  .begin = begin,
                  .end = ticks(),
                  .sequence = sequence_,
                  .input = num_bytes,
                  .output = piece,
                  .step = instruction.step,
                  .instruction = static_cast<std::int32_t>(index)};
    if (is_complete) record.flags |= Record::completes;
    bool is_local = true;
    for (const Operand &operand : instruction.sends() ? instruction.destinations : instruction.sources) {
        if (operand.space != Space::remote) continue;
        record.peer = operand.peer;
        record.order = operand.index;
        recorder_->add(record);
        record.flags |= Record::continues;
        is_local = false;
    }
    if (is_local) recorder_->add(record);
}

/// Sends what is ready: each channel tries the instruction whose turn it is; one with several channels is driven by its
/// first.
bool Executor::send_ready() {
    bool progress = false;
    for (std::size_t i = 0; i < sends_.size(); ++i) {
        while (!sends_[i].done() && budget_ > 0) {
            Task &task = tasks_[sends_[i].task()];
            if (task.cursors.front() != i || !tried<&Executor::try_send>(task, sends_[i].task())) break;
            progress = true;
        }
    }
    return progress;
}

bool Executor::run_ready() {
    bool progress = send_ready();
    // What is folded goes on while it is still in the cache, before the next piece is.
    const auto fold_some = [&](Task &task, std::size_t index) {
        const bool folded = tried<&Executor::try_fold>(task, index);
        if (folded) {
            progress = true;
            send_ready();
        }
        return folded;
    };
    for (std::size_t i = 0; i < receives_.size(); ++i) {
        while (!receives_[i].done() && budget_ > 0) {
            Task &task = tasks_[receives_[i].task()];
            const bool is_first = task.cursors.front() == i;
            const bool has_some = is_first && !task.remotes.front().carry.empty();
            if (!has_some && !transport_.may_show(receives_[i].peer)) break;
            if (!is_first || !fold_some(task, receives_[i].task())) {
                progress = make_room(task, i) || progress;
                break;
            }
        }
    }
    for (std::size_t index : locals_) {
        Task &task = tasks_[index];
        while (task.done < task.pieces && budget_ > 0 && fold_some(task, index)) continue;
    }
    return progress;
}

bool Executor::advance() {
    const bool done = move();
    transport_.ring();
    return done;
}

bool Executor::move() {
    budget_ = pieces_per_advance;
    if (in_order_) {
        if (run_in_order()) return true;
        if (in_order_) return false;
    }
    while (num_unfinished_ > 0) {
        if (!run_ready()) return false;
        ++num_moves_;
        if (--budget_ <= 0) return false;
    }
    for (; first_unsettled_ < tasks_.size(); ++first_unsettled_) {
        Task &task = tasks_[first_unsettled_];
        if (task.pieces > 0 && !is_settled(task, task.pieces - 1)) return false;
    }
    if (has_granted_) transport_.revoke();
    has_granted_ = false;
    return true;
}

/// Whether a channel holds this rank up: a fold misses the bytes of some of its sources; a send that is not held back
/// by a fold misses room.
bool Executor::is_missing(const Cursor &cursor, bool sends) const {
    if (!sends) return !cursor.done() && transport_.view(cursor.peer).bytes.empty();
    const bool misses_room = transport_.released(cursor.peer) < transport_.posted(cursor.peer);
    return misses_room && (!cursor.done() || num_unfinished_ == 0);
}

std::vector<int> Executor::waiting_for() {
    leave_order();
    std::vector<int> peers;
    for (const auto *cursors : {&receives_, &sends_}) {
        for (const Cursor &cursor : *cursors) {
            if (is_missing(cursor, cursors == &sends_)) peers.push_back(cursor.peer);
        }
    }
    std::ranges::sort(peers);
    peers.erase(std::ranges::unique(peers).begin(), peers.end());
    return peers;
}

bool Executor::waits_for(std::span<const int> peers) const {
    const auto is_one = [peers](int peer) { return std::ranges::find(peers, peer) != peers.end(); };
    if (in_order_) { // whose cursors are yet to be brought here
        const auto misses = [&](const Operand &source) {
            return source.space == Space::remote && is_one(source.peer) && transport_.view(source.peer).bytes.empty();
        };
        const auto has_no_room = [&](int peer) {
            return is_one(peer) && transport_.released(peer) < transport_.posted(peer);
        };
        for (std::size_t at = next_; at < order_.size(); ++at) {
            const Task &task = *order_[at];
            if (is_done(at)) continue;
            if (std::ranges::any_of(task.instruction->sources, misses)) return true;
            if (std::ranges::any_of(task.peers, has_no_room) && may_go(task)) return true;
        }
        return false;
    }
    const auto is_awaited = [&](const std::vector<Cursor> &cursors) {
        return std::ranges::any_of(cursors, [&](const Cursor &cursor) {
            return is_one(cursor.peer) && is_missing(cursor, &cursors == &sends_);
        });
    };
    return is_awaited(receives_) || is_awaited(sends_);
}

bool Executor::exchanges_with(std::span<const int> peers) const {
    const auto has = [](const std::vector<Cursor> &cursors, int peer) {
        return std::ranges::find(cursors, peer, &Cursor::peer) != cursors.end();
    };
    return std::ranges::all_of(peers, [&](int peer) { return has(sends_, peer) && has(receives_, peer); });
}

} // namespace hocket
