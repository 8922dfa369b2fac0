#include "executor/piece_run.h"

#include "kernels/copy.h"

#include <algorithm>
#include <cstring>

namespace hocket {

PieceRun::PieceRun(const BoundPlan &bound, Transport &transport, Pace &pace)
    : bound_(bound), transport_(transport), pace_(pace), turns_(bound, transport), puts_(bound, transport, turns_) {
    for (const BoundPlan::Task &task : bound.tasks) {
        if (task.channels.empty()) locals_.push_back(task.index);
    }
}

void PieceRun::start() {
    turns_.start();
    puts_.grant();
}

void PieceRun::resume(const BoundPlan::Task &task, std::size_t within, bool is_done) {
    Progress &resumed = turns_.tasks[task.index];
    resumed.within = within;
    if (!is_done) return;
    ++resumed.settled;
    turns_.finish_piece(resumed);
}

bool PieceRun::advance() {
    while (!turns_.are_all_done()) {
        if (!run_ready()) return false;
        ++pace_.num_moves;
        if (--pace_.budget <= 0) return false;
    }
    if (!turns_.are_all_settled()) return false;
    puts_.revoke();
    return true;
}

bool PieceRun::run_ready() {
    bool progress = send_ready();
    // What is folded goes on while it is still in the cache, before the next piece is.
    const auto fold_some = [&](Progress &task) {
        const bool folded = trace.tried(bound_.launch, task, [this](Progress &one) { return try_fold(one); });
        if (folded) {
            progress = true;
            send_ready();
        }
        return folded;
    };
    for (std::size_t i = 0; i < turns_.receives.size(); ++i) {
        const Cursor &cursor = turns_.receives[i];
        const int peer = cursor.channel.peer;
        while (!cursor.done() && pace_.budget > 0) {
            Progress &task = turns_.tasks[cursor.task()];
            const bool is_first = task.bound.channels.front() == i;
            const bool has_some = is_first && task.remotes.front().has_carry();
            if (!has_some && transport_.view(peer).bytes.empty()) break;
            if (!is_first || !fold_some(task)) {
                Remote &remote = *std::ranges::find(task.remotes, peer, &Remote::peer);
                const std::size_t num_left = task.piece_size() - task.within;
                progress = remote.make_room(transport_, bound_.launch.tag, num_left) || progress;
                break;
            }
        }
    }
    for (std::size_t index : locals_) {
        Progress &task = turns_.tasks[index];
        while (task.done < task.bound.pieces && pace_.budget > 0 && fold_some(task)) continue;
    }
    return progress;
}

namespace {

/// At a header: what the peers send has to be as long as what this rank expects of them.
void check_sizes(const BoundPlan::Task &task, std::span<const std::byte *const> headers) {
    for (std::size_t i = 0; i < headers.size(); ++i) {
        std::uint64_t found = 0;
        std::memcpy(&found, headers[i], sizeof found);
        if (found != task.num_elements) throw ForeignSize{task.peers[i], task.num_elements, found};
    }
}

} // namespace

bool PieceRun::try_fold(Progress &task) {
    if (!turns_.may_go(task)) return false;
    const Instruction &instruction = *task.bound.instruction;
    const bool header = task.at_header();
    const std::size_t size = task.piece_size(), element = header ? size : size_of(bound_.launch.dtype);
    bool progress = false;
    while (task.within < size) {
        std::size_t available = size - task.within;
        std::size_t num_shown = 0; // of the last one; only a copy is attached, and has no other
        bool attached = false;
        operands_.clear();
        auto remote = task.remotes.begin();
        for (std::size_t i = 0; i < instruction.sources.size(); ++i) {
            if (instruction.sources[i].space != Space::remote) {
                if (!header) operands_.push_back(task.bound.sources[i] + task.piece_start() + task.within);
                continue;
            }
            const bool may_be_attached = instruction.is_copy && !header;
            const View view = remote++->gather(transport_, bound_.launch.tag, element, may_be_attached, progress);
            if (view.bytes.empty()) return progress;
            attached = view.attached;
            num_shown = view.bytes.size();
            available = std::min(available, num_shown);
            operands_.push_back(view.bytes.data());
        }
        if (header) {
            check_sizes(task.bound, operands_);
        } else if (attached) {
            if (!fetch(task, num_shown, available)) return progress;
        } else if (!fold_and_put(task, available)) {
            bound_.store(task.bound, operands_, task.destination(), available);
        }
        for (Remote &used : task.remotes) used.release(transport_, available);
        task.within += available;
        progress = true;
    }
    ++task.settled;
    --pace_.budget;
    turns_.finish_piece(task);
    return true;
}

/// Copies `num_bytes` that a peer shows in its private memory, or fewer. As each copy is a system call, it takes as
/// much as that shows of the next pieces with it, where nothing has to come before them.
bool PieceRun::fetch(Progress &task, std::size_t num_shown, std::size_t &num_bytes) {
    if (task.num_bytes_ahead == 0) {
        const bool is_free = task.bound.instruction->dependencies.empty();
        const std::size_t all = is_free ? std::min({num_shown, task.num_left(), bytes_at_once}) : num_bytes;
        if (!transport_.copy(task.bound.peers[0], task.destination(), all)) return false;
        task.num_bytes_ahead = all;
    }
    num_bytes = std::min(num_bytes, task.num_bytes_ahead);
    task.num_bytes_ahead -= num_bytes;
    return true;
}

/// Folds what operands_ point to, and in the same pass puts the result where the peers that it is sent to next let this
/// rank write. False: not now, and nothing was done.
bool PieceRun::fold_and_put(Progress &task, std::size_t num_bytes) {
    const Instruction &instruction = *task.bound.instruction;
    const Launch &launch = bound_.launch;
    if (instruction.onward < 0 || launch.op == Op::custom) return false; // which is not called for every part
    Progress &next = turns_.tasks[static_cast<std::size_t>(instruction.onward)];
    if (next.done != task.done || next.within != task.within || !turns_.at_turn(next)) return false;
    if (!puts_.find_places(next, &task)) return false;
    std::byte *destination = task.destination();
    // A store fetches what it is to replace, which was just read if all is in place; string moves do not.
    const bool in_one_pass = launch.input == launch.output || !next.bound.route.past_caches;
    Fold both = bound_.fold_of(task.bound);
    const auto make = [&](std::size_t begin, std::size_t part_bytes, std::byte *also) {
        both.also = in_one_pass ? also : nullptr;
        fold(both, destination + begin, operands_, instruction.raw, part_bytes / size_of(launch.dtype));
        if (also != both.also) copy_bytes(also, Bytes(destination + begin, part_bytes));
        for (const std::byte *&operand : operands_) operand += part_bytes;
    };
    const std::uint64_t begin = trace.recorder == nullptr ? 0 : ticks();
    const Bytes made(destination, num_bytes);
    if (!transport_.windows()->put(next.bound.peers, puts_.places(), made, launch.tag, false, make)) return false;
    next.way = Way::put;
    next.within += num_bytes;
    const bool is_complete = next.within == next.piece_size();
    if (trace.recorder != nullptr) trace.add(launch, next, begin, next.done, num_bytes, is_complete);
    return true;
}

} // namespace hocket
