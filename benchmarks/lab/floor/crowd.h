// The ways of more than two ranks, each a process with private memory. Several share a core, so every wait is a turn of
// the others. If possible, a piece costs one turn: in a step, a rank does its work for the newest piece, and the work
// that others have left for it of an older piece.
#pragma once

#include "crowd_memory.h"
#include "moving.h"

#include <sys/uio.h>

namespace hand_written {

class Crowd {
  public:
    // desks: one for each rank, in shared memory.
    Crowd(Shared &shared, const Task &task, const std::vector<Buffers> &buffers, Desk *desks, std::size_t rank,
          std::size_t num_cores)
        : shared_(shared), operation_(task.operation), buffers_(buffers), desks_(desks), rank_(rank),
          num_ranks_(task.num_ranks), waiting_(rank, task.num_ranks, num_cores),
          blocked_(operation_ == "reduce_scatter" || operation_ == "all_to_all"),
          summing_(operation_ == "all_reduce" || operation_.starts_with("reduce")),
          to_all_(operation_.starts_with("all_") || operation_ == "reduce_scatter") {}

    void barrier() {
        tell(shared_.arrived[rank_], ++barriers_);
        for (const std::size_t other : waiting_.others()) {
            waiting_.for_rank(other, shared_.arrived[other].number, barriers_);
        }
        room_ = number_; // no rank needs a slot any more
    }

    void call(const Variant &variant) {
        variant_ = variant;
        waiting_.set(variant);
        if (variant.way == Way::turns) { return barrier(); }
        const Bytes given = buffers_[0].given;
        length_ = blocked_ ? given.size() / num_ranks_ : given.size();
        const std::size_t num_blocks = blocked_ ? num_ranks_ : 1;
        const std::size_t longest =
            std::min(variant.piece_bytes, most_piece_bytes) / num_blocks / line_bytes * line_bytes;
        piece_ = std::clamp(longest, line_bytes, round_up(length_, line_bytes));
        stride_ = round_up(std::min(piece_, length_), length_ <= line_bytes ? sizeof(float) : line_bytes);
        slot_bytes_ = num_blocks * stride_;
        if (slot_bytes_ > sizeof(Line::payload)) { slot_bytes_ = round_up(slot_bytes_, line_bytes); }
        num_pieces_ = (length_ + piece_ - 1) / piece_;
        switch (variant.way) {
        case Way::posted: return posted();
        case Way::posted_shares: return posted_shares();
        case Way::chained: return chained();
        case Way::fetched: return fetched();
        default: return fetched_shares();
        }
    }

  private:
    // ---- pieces and places

    bool gives() const { return buffers_[rank_].gives; }
    bool gets() const { return buffers_[rank_].gets; }
    Bytes piece_at(Bytes whole, std::size_t piece) const { return piece_of(whole, piece, piece_); }
    Bytes own_block(Bytes whole) const { return block_of(whole, rank_, num_ranks_); }

    // If all wait for all, no rank is ahead by more than one piece: two slots suffice, and two more for each unread
    // piece. Otherwise giving ranks may be ahead by all slots.
    std::size_t num_slots() const {
        const bool is_short = slot_bytes_ <= sizeof(Line::payload);
        const std::size_t most = is_short ? most_posts : std::min(most_posts, most_slot_bytes / slot_bytes_);
        const std::size_t least = to_all_ ? 2 + 2 * variant_.lag : 2;
        const std::size_t wanted = std::max(least, variant_.ring_bytes / round_up(slot_bytes_, line_bytes));
        return std::min(wanted, most);
    }

    // The number of unread pieces.
    std::size_t lag() const { return to_all_ && num_slots() >= 2 + 2 * variant_.lag ? variant_.lag : 0; }

    Line &post(std::size_t rank, std::uint64_t number) const { return desks_[rank].posts[number % num_slots()]; }

    std::byte *slot(std::size_t rank, std::uint64_t number) const {
        if (slot_bytes_ <= sizeof(Line::payload)) { return post(rank, number).payload; }
        return desks_[rank].slots + rank * apart + number % num_slots() * slot_bytes_;
    }

    std::byte *sum_slot(std::size_t rank, std::size_t piece) const {
        return desks_[rank].sums + rank * apart + piece % 2 * round_up(piece_, line_bytes);
    }

    void await_post(std::size_t rank, std::uint64_t number) const {
        waiting_.for_rank(rank, post(rank, number).number, number);
    }

    void await_step(std::size_t rank, std::uint64_t step) const {
        waiting_.for_rank(rank, desks_[rank].step.number, step);
    }

    void await_steps(std::uint64_t step) const {
        for (const std::size_t other : waiting_.others()) { await_step(other, step); }
    }

    void end_step() { tell(desks_[rank_].step, ++step_); }

    void keep(std::byte *to, const std::byte *from, std::size_t bytes, bool past_caches) const {
        constexpr std::size_t least = 2048; // below this, the C library copies by vectors, too
        if (past_caches || bytes < least || variant_.by_memcpy) { return copy(to, from, bytes, past_caches); }
        copy_by_lines(to, from, bytes);
    }

    // Calls use(part of this rank's input, its place in a slot) for each part of the piece.
    template <class Use> void each_part(std::size_t piece, bool with_own, Use use) const {
        const Bytes given = buffers_[rank_].given;
        if (!blocked_) { return use(piece_at(given, piece), std::size_t{0}); }
        for (std::size_t block = 0; block < num_ranks_; ++block) {
            if (with_own || block != rank_) {
                use(piece_at(block_of(given, block, num_ranks_), piece), block * stride_);
            }
        }
    }

    // ---- one step

    void posted() {
        if (operation_ == "send_recv") {
            if (rank_ % 2 == 0) { write_all(); }
            read_all();
            if (rank_ % 2 == 1) { write_all(); }
            return;
        }
        if (!to_all_) { return gets() ? read_all() : write_all(); }
        for (std::size_t piece = 0; piece < num_pieces_ + lag(); ++piece) {
            if (piece < num_pieces_) { write(piece, number_ + piece + 1); }
            if (piece >= lag()) { read(piece - lag(), number_ + piece - lag() + 1); }
        }
        number_ += num_pieces_;
    }

    void write_all() {
        for (std::size_t piece = 0; piece < num_pieces_; ++piece) {
            await_room(++number_);
            write(piece, number_);
        }
    }

    void read_all() {
        std::uint64_t &number = operation_ == "send_recv" ? taken_ : number_;
        for (std::size_t piece = 0; piece < num_pieces_; ++piece) {
            read(piece, ++number);
            tell(desks_[rank_].taken, number);
        }
    }

    // If there is none, waits until half of the slots are free, because each wait is a turn.
    void await_room(std::uint64_t number) {
        const std::size_t slots = num_slots();
        if (number <= room_ + slots) { return; }
        const std::uint64_t wanted = number - (slots + 1) / 2;
        for (const std::size_t other : waiting_.others()) {
            const bool is_peer = operation_ == "send_recv" ? other == (rank_ ^ 1) : buffers_[other].gets;
            if (is_peer) { waiting_.for_rank(other, desks_[other].taken.number, wanted); }
        }
        room_ = wanted;
    }

    void write(std::size_t piece, std::uint64_t number) {
        lay_down(piece, slot(rank_, number));
        post(rank_, number).number.store(number, std::memory_order_release);
    }

    void lay_down(std::size_t piece, std::byte *to) {
        each_part(piece, false, [&](Bytes part, std::size_t place) {
            keep(to + place, part.data(), part.size(), variant_.slots_past_caches);
        });
    }

    void read(std::size_t piece, std::uint64_t number) {
        const auto &[given, got, gives, gets] = buffers_[rank_];
        if (operation_ == "send_recv" || operation_ == "broadcast") {
            const std::size_t source = operation_ == "broadcast" ? 0 : rank_ ^ 1;
            await_post(source, number);
            const Bytes to = piece_at(got, piece);
            return keep(to.data(), slot(source, number), to.size(), variant_.results_past_caches);
        }
        if (!summing_) {
            const Bytes own = operation_ == "all_gather" ? given : own_block(given);
            take(piece, rank_, piece_at(own, piece).data());
        }
        for (const std::size_t other : waiting_.others()) {
            await_post(other, number);
            if (!summing_) { take(piece, other, slot(other, number) + (blocked_ ? rank_ * stride_ : 0)); }
        }
        if (summing_) {
            sum(piece, [&](std::size_t other) { return slot(other, number) + (blocked_ ? rank_ * stride_ : 0); });
        }
    }

    // The piece that comes from `source`.
    void take(std::size_t piece, std::size_t source, const std::byte *from) const {
        const Bytes to = piece_at(block_of(buffers_[rank_].got, source, num_ranks_), piece);
        keep(to.data(), from, to.size(), variant_.results_past_caches);
    }

    // The sum of this rank's own part and the others' parts at part_of(other).
    template <class PartOf> void sum(std::size_t piece, PartOf part_of) {
        const auto &[given, got, gives, gets] = buffers_[rank_];
        const Bytes to = piece_at(got, piece);
        parts_.assign(1, piece_at(blocked_ ? own_block(given) : given, piece).data());
        for (const std::size_t other : waiting_.others()) { parts_.push_back(part_of(other)); }
        fold_all(to.data(), nullptr, parts_, to.size(), variant_.results_past_caches);
    }

    // ---- all_reduce and reduce by shares

    // Piece s is written in step s, its shares are summed in step s + 1 and copied from there in step s + 2.
    void posted_shares() {
        for (std::size_t step = 0; step < num_pieces_ + 2; ++step) {
            if (step > 0) { await_steps(step_); }
            if (step < num_pieces_) { lay_down(step, slot(rank_, step)); }
            if (step >= 1 && step <= num_pieces_) {
                sum_share(step - 1,
                          [&](std::size_t other, Bytes, std::size_t begin) { return slot(other, step - 1) + begin; });
            }
            if (step >= 2) { take_shares(step - 2); }
            end_step();
        }
    }

    template <class PartOf> void sum_share(std::size_t piece, PartOf part_of) {
        const Bytes whole = piece_at(buffers_[rank_].given, piece);
        const Bytes share = share_of(whole, rank_, num_ranks_);
        const auto begin = static_cast<std::size_t>(share.data() - whole.data());
        parts_.assign(1, share.data());
        for (const std::size_t other : waiting_.others()) { parts_.push_back(part_of(other, share, begin)); }
        std::byte *const place = sum_slot(rank_, piece) + begin;
        if (gets()) {
            fold_all(share.data(), place, parts_, share.size(), false);
        } else {
            fold_all(place, nullptr, parts_, share.size(), false);
        }
    }

    void take_shares(std::size_t piece) {
        if (!gets()) { return; }
        const Bytes whole = piece_at(buffers_[rank_].got, piece);
        for (const std::size_t other : waiting_.others()) {
            const Bytes share = share_of(whole, other, num_ranks_);
            const auto begin = static_cast<std::size_t>(share.data() - whole.data());
            keep(share.data(), sum_slot(other, piece) + begin, share.size(), variant_.results_past_caches);
        }
    }

    // ---- the ranks of one core first

    // Takes one turn per piece, if ranks run in the order of their numbers. A root is in no chain.
    void chained() {
        std::size_t first = rank_;
        while (!begins_chain(first)) { --first; }
        const std::uint64_t begin = step_ + 1;
        for (std::size_t piece = 0; piece < num_pieces_ + lag(); ++piece) {
            if (piece < num_pieces_) {
                if (is_in_chain()) { chain(piece, slot(first, begin + piece), first); }
                end_step();
            }
            if (gets() && piece >= lag()) {
                await_steps(begin + piece - lag());
                sum_chains(piece - lag(), begin + piece - lag());
            } else if (!gets() && step_ % (num_slots() / 2) == 0) {
                await_steps(step_);
            }
        }
    }

    bool is_in_chain() const { return to_all_ || rank_ != 0; }

    bool begins_chain(std::size_t rank) const {
        return rank == 0 || waiting_.core_of(rank) != waiting_.core_of(rank - 1) || (rank == 1 && !to_all_);
    }

    void chain(std::size_t piece, std::byte *to, std::size_t first) {
        if (rank_ > first) { await_step(rank_ - 1, step_ + 1); }
        each_part(piece, true, [&](Bytes part, std::size_t place) {
            if (rank_ == first) {
                keep(to + place, part.data(), part.size(), variant_.slots_past_caches);
            } else {
                fold(to + place, to + place, part.data(), part.size(), false);
            }
        });
    }

    void sum_chains(std::size_t piece, std::uint64_t step) {
        const Bytes to = piece_at(buffers_[rank_].got, piece);
        parts_.clear();
        if (!to_all_) { parts_.push_back(to.data()); }
        for (std::size_t other = to_all_ ? 0 : 1; other < num_ranks_; ++other) {
            if (begins_chain(other)) { parts_.push_back(slot(other, step) + (blocked_ ? rank_ * stride_ : 0)); }
        }
        if (parts_.size() == 1) { return keep(to.data(), parts_[0], to.size(), variant_.results_past_caches); }
        fold_all(to.data(), nullptr, parts_, to.size(), variant_.results_past_caches);
    }

    // ---- by the kernel

    // No rank returns before all others have read its memory.
    void fetched() {
        if (operation_ == "send_recv") { return fetched_there_and_back(); }
        const auto &[given, got, gives, gets] = buffers_[rank_];
        end_step();
        if (!summing_ && to_all_) {
            const Bytes own = operation_ == "all_gather" ? given : own_block(given);
            const Bytes to = own_block(got);
            keep(to.data(), own.data(), to.size(), variant_.results_past_caches);
        }
        if (gets) {
            for (const std::size_t other : waiting_.others()) {
                if (buffers_[other].gives) { await_step(other, step_); }
            }
            if (summing_) {
                fetch_sums();
            } else {
                for (const std::size_t other : waiting_.others()) { fetch_from(other); }
            }
        }
        end_step();
        for (const std::size_t other : waiting_.others()) {
            if (gives && buffers_[other].gets) { await_step(other, step_); }
        }
    }

    void fetch_from(std::size_t other) const {
        const auto &[given, got, gives, gets] = buffers_[other];
        if (!gives) { return; }
        if (operation_ == "broadcast") { return fetch(other, buffers_[rank_].got.data(), given); }
        fetch(other, block_of(buffers_[rank_].got, other, num_ranks_).data(), blocked_ ? own_block(given) : given);
    }

    void fetch_sums() {
        for (std::size_t piece = 0; piece < num_pieces_; ++piece) {
            sum(piece, [&](std::size_t other) {
                const Bytes given = buffers_[other].given;
                return fetched_part(other, piece_at(blocked_ ? own_block(given) : given, piece));
            });
        }
    }

    void fetched_there_and_back() {
        const std::size_t peer = rank_ ^ 1;
        const auto give = [&] { end_step(); };
        const auto take = [&] {
            await_step(peer, ++seen_);
            fetch(peer, buffers_[rank_].got.data(), buffers_[peer].given);
            end_step();
        };
        const auto is_taken = [&] { await_step(peer, ++seen_); };
        if (rank_ % 2 == 0) {
            give();
            is_taken();
            take();
        } else {
            take();
            give();
            is_taken();
        }
    }

    // In step s, shares of piece s are summed, and those of piece s - 1 are copied, so that inputs do not change before
    // the last rank has read them.
    void fetched_shares() {
        end_step();
        for (std::size_t step = 0; step <= num_pieces_; ++step) {
            await_steps(step_);
            if (step < num_pieces_) {
                sum_share(step, [&](std::size_t other, Bytes share, std::size_t) {
                    const Bytes theirs = buffers_[other].given;
                    return fetched_part(
                        other, theirs.subspan(static_cast<std::size_t>(share.data() - buffers_[rank_].given.data()),
                                              share.size()));
                });
            }
            if (step > 0) { take_shares(step - 1); }
            end_step();
        }
    }

    const std::byte *fetched_part(std::size_t other, Bytes from) {
        const std::size_t each = round_up(from.size(), line_bytes) + apart;
        if (scratch_.size() < each * num_ranks_) { scratch_.resize(each * num_ranks_); }
        std::byte *const to = scratch_.data() + other * each;
        fetch(other, to, from);
        return to;
    }

    // Buffers have the same addresses in all processes. If the kernel refuses, the check finds a wrong result.
    void fetch(std::size_t other, std::byte *to, Bytes from) const {
        for (std::size_t done = 0; done < from.size();) {
            const iovec near{to + done, from.size() - done}, far{from.data() + done, from.size() - done};
            const ssize_t moved = process_vm_readv(shared_.processes[other], &near, 1, &far, 1, 0);
            if (moved <= 0) { return; }
            done += static_cast<std::size_t>(moved);
        }
    }

    Shared &shared_;
    const std::string operation_;
    const std::vector<Buffers> &buffers_;
    Desk *desks_;
    std::size_t rank_;
    std::size_t num_ranks_;
    Waiting waiting_;
    bool blocked_; // an input has a block for each rank
    bool summing_;
    bool to_all_; // every rank gives and gets
    Variant variant_{};
    std::size_t length_ = 0; // of the data that is cut into pieces
    std::size_t piece_ = 0;
    std::size_t stride_ = 0; // of blocks in a slot
    std::size_t slot_bytes_ = 0;
    std::size_t num_pieces_ = 0;
    std::uint64_t number_ = 0; // of given pieces, in all calls
    std::uint64_t taken_ = 0;  // of messages, in pieces
    std::uint64_t room_ = 0;   // pieces of this rank that no rank needs any more
    std::uint64_t step_ = 0;
    std::uint64_t seen_ = 0; // steps of the peer
    std::uint64_t barriers_ = 0;
    std::vector<const std::byte *> parts_;
    std::vector<std::byte> scratch_;
};

} // namespace hand_written
