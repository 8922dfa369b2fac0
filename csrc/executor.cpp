#include "executor.h"

#include "copy.h"
#include "error.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

namespace hocket {

// Channels ------------------------------------------------------------------------------------------------------------

void Executor::Cursor::rewind(const Executor &executor) {
    first_ = at_ = 0;
    wave_ = entries.empty() ? 0 : entries.front().step;
    settle(executor);
}

void Executor::Cursor::next(const Executor &executor) {
    ++at_;
    settle(executor);
}

/// Moves on to the next entry that has a piece in the current wave, or in the first later wave that has any.
void Executor::Cursor::settle(const Executor &executor) {
    const auto end_wave = [&](const Entry &entry) {
        return entry.step + static_cast<std::int64_t>(executor.tasks_[entry.task].pieces);
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

// Binding -------------------------------------------------------------------------------------------------------------

Executor::Executor(const Plan &plan, Transport &transport, std::size_t least_bytes_past_caches)
    : plan_(plan), transport_(transport), least_bytes_past_caches_(least_bytes_past_caches) {
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
        if (task.cursors.empty()) locals_.push_back(index);
        task.sources.resize(instruction.sources.size());
    }
    for (auto *cursors : {&sends_, &receives_}) {
        for (Cursor &cursor : *cursors) {
            std::ranges::stable_sort(cursor.entries, {},
                                     [](const Cursor::Entry &entry) { return std::tuple(entry.step, entry.order); });
        }
    }
}

/// Elements of the chunk that an instruction is about.
std::size_t Executor::elements_of(const Instruction &instruction) const {
    if (!plan_.shape().uneven) return plan_.elements_of(instruction.chunk, launch_.block);
    const Operand &like = instruction.sized_as;
    const int k = plan_.shape().chunks_per_block;
    const auto &counts = like.space == Space::input ? launch_.input_counts : launch_.output_counts;
    return plan_.elements_of(like.index % k, counts[static_cast<std::size_t>(like.index / k)]);
}

std::byte *Executor::place(const Operand &operand) const {
    const auto offset = [&](std::span<const std::uint64_t> counts, const std::vector<std::size_t> &starts) {
        const int k = plan_.shape().chunks_per_block;
        if (!plan_.shape().uneven) return plan_.offset_of(operand.index, launch_.block) * size_of(launch_.dtype);
        const auto block = static_cast<std::size_t>(operand.index / k);
        return (starts[block] + plan_.offset_of(operand.index % k, counts[block])) * size_of(launch_.dtype);
    };
    switch (operand.space) {
    // An input is only ever a source, or the plan is one for aliased memory (law 3 holds this).
    case Space::input: return const_cast<std::byte *>(launch_.input) + offset(launch_.input_counts, input_starts_);
    case Space::output: return launch_.output + offset(launch_.output_counts, output_starts_);
    case Space::scratch:
        return const_cast<std::byte *>(scratch_.data()) + static_cast<std::size_t>(operand.index) * scratch_slot_bytes_;
    case Space::remote: break;
    }
    return nullptr;
}

void Executor::start(const Launch &launch) {
    launch_ = launch;
    const PlanShape &shape = plan_.shape();
    const std::size_t num_headers = shape.uneven ? 1 : 0;
    if (shape.uneven) {
        const auto starts_of = [](std::span<const std::uint64_t> counts, std::size_t num_blocks) {
            if (counts.size() != num_blocks) throw Failure::internal("a call does not tell the lengths of its blocks");
            std::vector<std::size_t> starts(num_blocks);
            std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), std::size_t{0});
            return starts;
        };
        input_starts_ = starts_of(launch.input_counts, shape.input_blocks.size());
        output_starts_ = starts_of(launch.output_counts, shape.output_blocks.size());
    }
    std::size_t longest = 0;
    for (Task &task : tasks_) {
        task.num_elements = elements_of(*task.instruction);
        longest = std::max<std::size_t>(longest, task.num_elements);
    }
    scratch_slot_bytes_ = round_up(longest * size_of(launch.dtype), cache_line);
    scratch_.resize(static_cast<std::size_t>(shape.num_scratch) * scratch_slot_bytes_);
    num_unfinished_ = 0;
    first_unsettled_ = 0;
    for (Task &task : tasks_) {
        const Instruction &instruction = *task.instruction;
        task.num_bytes = task.num_elements * size_of(launch.dtype);
        task.pieces = num_headers + (task.num_bytes + piece_bytes - 1) / piece_bytes;
        task.done = task.settled = task.within = 0;
        task.tickets.clear();
        task.places.clear();
        for (Remote &remote : task.remotes) {
            remote.carry.clear();
            remote.used = 0;
        }
        for (std::size_t i = 0; i < task.sources.size(); ++i) task.sources[i] = place(instruction.sources[i]);
        task.destination = place(instruction.destinations[0]);
        if (task.pieces > 0) ++num_unfinished_;
    }
    for (Cursor &cursor : sends_) {
        cursor.num_posted = transport_.posted(cursor.peer);
        cursor.rewind(*this);
    }
    for (Cursor &cursor : receives_) cursor.rewind(*this);
    grant();
}

// Puts ----------------------------------------------------------------------------------------------------------------
//
// A copy of a message may be done by its sender, which writes the piece while it is hot in its cache. Law 3 orders the
// copy behind what conflicts with it on the rank that receives, by dependencies alone; granted is only what has none,
// or one: its own send of what lies there, to the very peer that shall write. That peer writes piece k when it has
// folded piece k of that message, so the only access that had to come before the copy has come. Whatever has to come
// after it waits for the copy as ever, which the receiver counts as done when the message is there.

void Executor::grant() {
    has_granted_ = false;
    for (const Cursor &cursor : receives_) {
        windows_.clear();
        for (std::size_t index : cursor.grantable) {
            const Task &task = tasks_[index];
            if (task.num_bytes < least_put_bytes) continue;
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

/// Whether the piece at hand may be written where it goes, and then where, in places_.
bool Executor::may_put(Task &task) {
    if (task.num_bytes < least_put_bytes || at_header(task)) return false;
    // What was just folded is hot here. Else the reader may as well fetch it: of much, each of the two moves one half;
    // of less, a write would have to take lines away from the cache of the reader, which is slower than its reading.
    const bool is_large = task.num_bytes >= least_bytes_past_caches_;
    if (!task.instruction->is_fresh && (!is_large || task.done % 2 == 0)) return false;
    for (std::size_t i = task.places.size(); i < task.peers.size(); ++i) {
        const auto place = find_place(task, i);
        if (!place) return false;
        task.places.push_back(*place);
    }
    places_.clear();
    for (const Place &place : task.places) {
        if (place.after != nullptr && place.after->done <= task.done) return false;
        places_.push_back(place.begin + piece_start(task));
    }
    return true;
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
    return std::ranges::all_of(task.instruction->dependencies, [&](std::int32_t before) {
        return is_settled(tasks_[static_cast<std::size_t>(before)], task.done);
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

bool Executor::try_send(Task &task, std::size_t index) {
    if (!at_turn(task, index) || !ready(task)) return false;
    const bool header = at_header(task);
    const std::size_t size = piece_size(task);
    const std::byte *piece =
        header ? reinterpret_cast<const std::byte *>(&task.num_elements) : task.sources[0] + piece_start(task);
    bool progress = false;
    while (task.within < size) {
        if (task.within == 0 && may_put(task)) {
            const bool past_caches = !task.instruction->is_fresh;
            if (!transport_.put(task.peers, places_, Bytes(piece, size), launch_.tag, past_caches)) return progress;
            task.within = size;
            break;
        }
        const Published published = transport_.publish(task.peers, Bytes(piece + task.within, size - task.within),
                                                       launch_.tag, !header && !task.instruction->staged);
        if (published.num_bytes == 0) return progress;
        progress = true;
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

/// The bytes of a source that lie ready in one place, in whole elements; an element that comes in parts is put
/// together.
Bytes Executor::gather(Remote &remote, std::size_t element, bool &progress) {
    const int peer = receives_[remote.cursor].peer;
    for (;;) {
        const std::size_t held = remote.carry.size() - remote.used;
        if (held >= element) return Bytes(remote.carry).subspan(remote.used, held / element * element);
        const View view = transport_.view(peer);
        if (view.bytes.empty()) return {};
        if (view.tag != launch_.tag) throw ForeignMessage{peer};
        if (held == 0 && view.bytes.size() >= element) return view.bytes.first(view.bytes.size() / element * element);
        carry_over(remote, view.bytes.first(std::min(element - held, view.bytes.size())));
        progress = true;
    }
}

void Executor::carry_over(Remote &remote, Bytes bytes) {
    remote.carry.insert(remote.carry.end(), bytes.begin(), bytes.end());
    transport_.release(receives_[remote.cursor].peer, bytes.size());
}

/// Takes what a channel shows of a piece that cannot be folded yet, unless it shows all of it. So a channel holds at
/// least one piece, however little its transport holds, and law 3 has proved the plan for just that.
bool Executor::make_room(Task &task, std::size_t cursor) {
    Remote &remote = *std::ranges::find(task.remotes, cursor, &Remote::cursor);
    const View view = transport_.view(receives_[cursor].peer);
    const std::size_t held = remote.carry.size() - remote.used, missing = piece_size(task) - task.within - held;
    if (view.bytes.empty() || missing == 0) return false; // with nothing missing, the peer may show its next call
    if (view.tag != launch_.tag) throw ForeignMessage{receives_[cursor].peer};
    if (held == 0 && view.bytes.size() >= missing) return false;
    carry_over(remote, view.bytes.first(std::min(missing, view.bytes.size())));
    return true;
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

/// Folds what operands_ point to into the next `num_bytes` of the piece at hand.
void Executor::store(const Task &task, const Fold &what, std::size_t num_bytes) {
    std::byte *destination = task.destination + piece_start(task) + task.within;
    const Instruction &instruction = *task.instruction;
    if (instruction.is_copy && operands_[0] == destination) return; // the sender has put it there
    if (instruction.is_copy && instruction.is_alone && task.num_bytes >= least_bytes_past_caches_) {
        copy_past_caches(destination, Bytes(operands_[0], num_bytes));
    } else {
        fold(what, destination, operands_, instruction.raw, num_bytes / size_of(launch_.dtype));
    }
}

bool Executor::try_fold(Task &task, std::size_t index) {
    if (!at_turn(task, index) || !ready(task)) return false;
    const bool header = at_header(task);
    const std::size_t size = piece_size(task), element = header ? size : size_of(launch_.dtype);
    const Fold what{.dtype = launch_.dtype,
                    .op = launch_.op,
                    .divisor = task.instruction->completes && launch_.op == Op::avg ? plan_.shape().num_ranks : 1,
                    .factor = launch_.factor,
                    .custom = launch_.custom};
    bool progress = false;
    while (task.within < size) {
        std::size_t available = size - task.within;
        operands_.clear();
        auto remote = task.remotes.begin();
        for (std::size_t i = 0; i < task.sources.size(); ++i) {
            if (task.instruction->sources[i].space != Space::remote) {
                if (!header) operands_.push_back(task.sources[i] + piece_start(task) + task.within);
                continue;
            }
            const Bytes bytes = gather(*remote++, element, progress);
            if (bytes.empty()) return progress;
            available = std::min(available, bytes.size());
            operands_.push_back(bytes.data());
        }
        if (header) {
            check_sizes(task);
        } else {
            store(task, what, available);
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

/// Sends what is ready: each channel tries the instruction whose turn it is; one with several channels is driven by its
/// first.
bool Executor::send_ready() {
    bool progress = false;
    for (std::size_t i = 0; i < sends_.size(); ++i) {
        while (!sends_[i].done() && budget_ > 0) {
            Task &task = tasks_[sends_[i].task()];
            if (task.cursors.front() != i || !try_send(task, sends_[i].task())) break;
            progress = true;
        }
    }
    return progress;
}

bool Executor::run_ready() {
    bool progress = send_ready();
    // What is folded goes on while it is still in the cache, before the next piece is.
    const auto fold_some = [&](Task &task, std::size_t index) {
        const bool folded = try_fold(task, index);
        if (folded) {
            progress = true;
            send_ready();
        }
        return folded;
    };
    for (std::size_t i = 0; i < receives_.size(); ++i) {
        while (!receives_[i].done() && budget_ > 0) {
            Task &task = tasks_[receives_[i].task()];
            if (task.cursors.front() != i || !fold_some(task, receives_[i].task())) {
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
    budget_ = pieces_per_advance;
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

std::vector<int> Executor::waiting_for() const {
    std::vector<int> peers;
    const auto need = [&](int peer) {
        if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
    };
    // A fold misses the bytes of some of its sources; a send that is not held back by a fold misses room.
    for (const Cursor &cursor : receives_) {
        if (!cursor.done() && transport_.view(cursor.peer).bytes.empty()) need(cursor.peer);
    }
    for (const Cursor &cursor : sends_) {
        if (transport_.released(cursor.peer) < transport_.posted(cursor.peer)) {
            if (!cursor.done() || num_unfinished_ == 0) need(cursor.peer);
        }
    }
    std::ranges::sort(peers);
    return peers;
}

} // namespace hocket
