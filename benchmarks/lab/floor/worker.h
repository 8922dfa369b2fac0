// The ways to move data, each in about ten lines.
#pragma once

#include "moving.h"
#include "plan.h"
#include "variant.h"

#include <sys/uio.h>

namespace hand_written {

// One rank's end of the two lanes. Both ends count the same pieces.
class Ring {
  public:
    Ring(Lane &out, Lane &in) : out_(out), in_(in) {}

    void set(const Variant &variant, std::size_t longest) {
        slot_bytes_ = round_up(std::clamp<std::size_t>(longest, 1, variant.piece_bytes), line_bytes);
        num_slots_ = std::clamp<std::size_t>(variant.ring_bytes / slot_bytes_, 2, most_ring_bytes / slot_bytes_);
        pauses_ = variant.pauses;
        swaps_ = variant.swaps;
    }

    // The writer is at most so many pieces ahead. In a full ring it would write lines that were just read, which is
    // slow, because they are in the reader's cache.
    std::size_t lead() const { return std::max<std::size_t>(2, num_slots_ / 4); }

    // fill(slot) writes the next piece.
    template <class Fill> void give(Fill fill) {
        await_room(lead());
        fill(slot_of(given_, out_, in_));
        tell(out_.written, given_);
    }

    // use(slot) reads the next piece.
    template <class Use> void take(Use use) {
        await(in_.written.number, ++taken_, pauses_);
        use(slot_of(taken_, in_, out_));
        tell(in_.taken, taken_);
    }

    void give_lines(Bytes message, std::size_t ring_bytes) {
        const std::size_t count = lines_of(message), depth = depth_of(count, ring_bytes);
        await_room(depth);
        Line *const lines = out_.lines + given_ % depth * count;
        for (std::size_t line = 0; line < count; ++line) {
            const Bytes part = piece_of(message, line, sizeof(Line::payload));
            std::memcpy(lines[line].payload, part.data(), part.size());
            lines[line].number.store(given_, std::memory_order_release);
        }
    }

    // Calls use(part, payload) for each line of the message that belongs in `place`.
    template <class Use> void take_lines(Bytes place, std::size_t ring_bytes, Use use) {
        const std::size_t count = lines_of(place), depth = depth_of(count, ring_bytes);
        const Line *const lines = in_.lines + ++taken_ % depth * count;
        for (std::size_t line = 0; line < count; ++line) {
            await(lines[line].number, taken_, pauses_);
            use(piece_of(place, line, sizeof(Line::payload)), lines[line].payload);
        }
        tell(in_.taken, taken_);
    }

  private:
    // In the writer's lane; or, if both give as much as they take, in each lane in turn, where it has just read.
    std::byte *slot_of(std::uint64_t number, Lane &lane, Lane &back) const {
        Lane &turn = swaps_ && number / num_slots_ % 2 == 1 ? back : lane;
        return turn.ring + number % num_slots_ * slot_bytes_;
    }

    static std::size_t lines_of(Bytes message) { return (message.size() - 1) / sizeof(Line::payload) + 1; }

    static std::size_t depth_of(std::size_t count, std::size_t ring_bytes) {
        return std::clamp<std::size_t>(ring_bytes / (count * line_bytes), 2, most_lines / count);
    }

    // Waits for room for the next of `depth`; loads the reader's count only if the last known one is too low.
    void await_room(std::size_t depth) {
        if (++given_ <= seen_taken_ + depth) { return; }
        await(out_.taken.number, given_ - depth, pauses_);
        seen_taken_ = out_.taken.number.load(std::memory_order_acquire);
    }

    Lane &out_;
    Lane &in_;
    std::size_t slot_bytes_ = 0;
    std::size_t num_slots_ = 0;
    bool pauses_ = true;
    bool swaps_ = false;
    std::uint64_t given_ = 0;
    std::uint64_t taken_ = 0;
    std::uint64_t seen_taken_ = 0;
};

// One process of `num_workers`. It does the work of its ranks: of only one rank unless the way is `together`.
class Worker {
  public:
    Worker(Shared &shared, const Task &task, const std::vector<Buffers> &buffers, std::size_t index,
           std::size_t num_workers)
        : shared_(shared), index_(index), num_workers_(num_workers),
          given_(shared.given[index % 2], shared.given[peer() % 2]),
          sums_(shared.sums[index % 2], shared.sums[peer() % 2]) {
        if (task.operation != "barrier") { jobs_ = jobs_of(task.operation, buffers); }
        if (task.num_ranks == 2) {
            for (std::size_t rank : {index, peer()}) { moves_.push_back(moves_of(task.operation, buffers, rank)); }
        }
        num_ranks_ = task.num_ranks;
    }

    void barrier(bool pauses = true) {
        tell(shared_.arrived[index_], ++barriers_);
        for (std::size_t other = 0; other < num_workers_; ++other) {
            await(shared_.arrived[other].number, barriers_, pauses);
        }
    }

    void call(const Variant &variant) {
        if (variant.way == Way::turns) { return barrier(variant.pauses); }
        if (variant.way == Way::together) { return together(variant); }
        for (std::size_t step = 0; step < moves_[0].size(); ++step) {
            const Move &mine = moves_[0][step], &theirs = moves_[1][step];
            switch (variant.way) {
            case Way::lined: lined(mine, variant); break;
            case Way::staged: staged(mine, variant); break;
            case Way::two_steps: two_steps(mine, variant); break;
            case Way::attached: attached(mine, theirs, variant); break;
            default: attached_steps(mine, theirs, variant);
            }
        }
    }

  private:
    std::size_t peer() const { return 1 - index_ % 2; }
    std::size_t worker_of(std::size_t rank) const { return rank * num_workers_ / num_ranks_; }

    void lined(const Move &mine, const Variant &variant) {
        given_.set(variant, 0);
        if (!mine.give.empty()) { given_.give_lines(mine.give, variant.ring_bytes); }
        keep(mine.keep, mine.kept, variant);
        if (mine.take.empty()) { return; }
        given_.take_lines(mine.take, variant.ring_bytes, [&](Bytes part, const std::byte *payload) {
            if (mine.with.empty()) {
                std::memcpy(part.data(), payload, part.size());
            } else {
                const std::byte *const with = mine.with.data() + (part.data() - mine.take.data());
                fold(part.data(), with, payload, part.size(), false);
            }
        });
    }

    void staged(const Move &mine, const Variant &variant) {
        const auto pieces = [&](Bytes whole) { return (whole.size() + variant.piece_bytes - 1) / variant.piece_bytes; };
        given_.set(variant, std::max(mine.give.size(), mine.take.size()));
        const std::size_t lag = mine.give.empty() ? 0 : std::min(variant.lag, given_.lead() - 1);
        const std::size_t gives = pieces(mine.give), takes = pieces(mine.take);
        for (std::size_t piece = 0; piece < std::max(gives, takes + lag); ++piece) {
            if (piece < gives) { give(given_, piece_of(mine.give, piece, variant.piece_bytes), variant); }
            keep(piece_of(mine.keep, piece, variant.piece_bytes), piece_of(mine.kept, piece, variant.piece_bytes),
                 variant);
            if (piece >= lag && piece - lag < takes) {
                given_.take([&](const std::byte *slot) {
                    accept(mine, piece_of(mine.take, piece - lag, variant.piece_bytes), slot, variant);
                });
            }
        }
    }

    static void keep(Bytes own, Bytes place, const Variant &variant) {
        if (!own.empty()) { copy(place.data(), own.data(), own.size(), variant.results_past_caches); }
    }

    static void give(Ring &ring, Bytes part, const Variant &variant) {
        ring.give([&](std::byte *slot) { copy(slot, part.data(), part.size(), variant.slots_past_caches); });
    }

    // Writes `given`, plus `with` if there is one, to `part` of mine.take.
    static void accept(const Move &mine, Bytes part, const std::byte *given, const Variant &variant) {
        if (mine.with.empty()) {
            copy(part.data(), given, part.size(), variant.results_past_caches);
        } else {
            const std::byte *const with = mine.with.data() + (part.data() - mine.take.data());
            fold(part.data(), with, given, part.size(), variant.results_past_caches);
        }
    }

    void two_steps(const Move &mine, const Variant &variant) {
        const Bytes half = share_of(mine.take, index_, 2), other = share_of(mine.take, peer(), 2);
        const std::size_t longest = std::max(half.size(), other.size());
        const std::size_t count = (longest + variant.piece_bytes - 1) / variant.piece_bytes;
        given_.set(variant, longest);
        sums_.set(variant, longest);
        const std::size_t lag = std::min(variant.lag, (given_.lead() - 1) / 2);
        for (std::size_t piece = 0; piece < count + 2 * lag; ++piece) {
            if (piece < count) { give(given_, piece_of(other, piece, variant.piece_bytes), variant); }
            if (piece >= lag && piece < count + lag) {
                const Bytes part = piece_of(half, piece - lag, variant.piece_bytes);
                given_.take([&](const std::byte *staged) {
                    sums_.give([&](std::byte *slot) {
                        fold_twice(part.data(), slot, part.data(), staged, part.size(), variant.slots_past_caches);
                    });
                });
            }
            if (piece >= 2 * lag) {
                const Bytes part = piece_of(other, piece - 2 * lag, variant.piece_bytes);
                sums_.take(
                    [&](const std::byte *slot) { copy(part.data(), slot, part.size(), variant.results_past_caches); });
            }
        }
    }

    // Inputs do not change between two barriers. The taker reads the first part, and adds its own. The giver writes the
    // rest, or fetches the taker's part and writes the sum.
    void attached(const Move &mine, const Move &theirs, const Variant &variant) {
        barrier(variant.pauses);
        pull(mine, theirs, cut(mine.take.size(), variant.side), variant);
        push(mine, theirs, cut(theirs.take.size(), variant.side), variant);
        keep(mine.keep, mine.kept, variant);
        barrier(variant.pauses);
    }

    // The bytes that the taker moves.
    static std::size_t cut(std::size_t bytes, Side side) {
        return side == Side::taker ? bytes : side == Side::giver ? 0 : bytes / 2 / line_bytes * line_bytes;
    }

    void pull(const Move &mine, const Move &theirs, std::size_t end, const Variant &variant) {
        for (std::size_t place = 0; place < end; place += variant.piece_bytes) {
            const Bytes part = mine.take.first(end).subspan(place, std::min(variant.piece_bytes, end - place));
            const Bytes from = theirs.give.subspan(place, part.size());
            if (mine.with.empty()) {
                fetch(part.data(), from);
            } else {
                accept(mine, part, fetched(from), variant);
            }
        }
    }

    void push(const Move &mine, const Move &theirs, std::size_t begin, const Variant &variant) {
        for (std::size_t place = begin; place < theirs.take.size(); place += variant.piece_bytes) {
            const std::size_t bytes = std::min(variant.piece_bytes, theirs.take.size() - place);
            std::byte *from = mine.give.data() + place;
            if (!theirs.with.empty()) {
                std::byte *const sum = fetched(theirs.with.subspan(place, bytes));
                fold(sum, sum, from, bytes, false);
                from = sum;
            }
            send(theirs.take.subspan(place, bytes), from);
        }
    }

    void attached_steps(const Move &mine, const Move &theirs, const Variant &variant) {
        barrier(variant.pauses);
        const Bytes half = share_of(mine.take, index_, 2), same = share_of(theirs.take, index_, 2);
        for (std::size_t place = 0; place < half.size(); place += variant.piece_bytes) {
            const Bytes part = half.subspan(place, std::min(variant.piece_bytes, half.size() - place));
            const Bytes target = same.subspan(place, part.size());
            fold(part.data(), part.data(), fetched(target), part.size(), false);
            send(target, part.data());
        }
        barrier(variant.pauses);
    }

    std::byte *fetched(Bytes from) {
        scratch_.resize(std::max(scratch_.size(), from.size()));
        fetch(scratch_.data(), from);
        return scratch_.data();
    }

    void fetch(std::byte *to, Bytes from) { transfer(process_vm_readv, to, from); }
    void send(Bytes to, std::byte *from) { transfer(process_vm_writev, from, to); }

    // Buffers have the same addresses in both processes. If the kernel refuses, the check finds a wrong result.
    template <class Call> void transfer(Call call, std::byte *here, Bytes there) {
        for (std::size_t done = 0; done < there.size();) {
            const iovec near{here + done, there.size() - done}, far{there.data() + done, there.size() - done};
            const ssize_t moved = call(shared_.processes[peer()], &near, 1, &far, 1, 0);
            if (moved <= 0) { return; }
            done += static_cast<std::size_t>(moved);
        }
    }

    void together(const Variant &variant) {
        barrier(variant.pauses);
        for (const std::vector<Job> &step : jobs_) {
            for (const Job &job : step) { work_on(job, variant); }
            barrier(variant.pauses);
        }
    }

    // This process's part of the job: as its owner, as all others, or its share.
    void work_on(const Job &job, const Variant &variant) {
        const bool owner = worker_of(job.owner) == index_;
        const Side side = job.own ? Side::taker : variant.side;
        if (side != Side::both && owner != (side == Side::taker)) { return; }
        const Bytes whole = job.to[0];
        const Bytes mine = side == Side::both ? share_of(whole, index_, num_workers_) : whole;
        const auto begin = static_cast<std::size_t>(mine.data() - whole.data());
        for (std::size_t place = begin; place < begin + mine.size(); place += variant.piece_bytes) {
            work_on(job, place, std::min(variant.piece_bytes, begin + mine.size() - place), variant);
        }
    }

    // One part, which is passed on while it is in cache.
    static void work_on(const Job &job, std::size_t place, std::size_t bytes, const Variant &variant) {
        const auto &[to, from, owner, own] = job;
        std::byte *const sum = to[0].data() + place;
        if (from.size() == 1) { return copy(sum, from[0].data() + place, bytes, variant.results_past_caches); }
        const std::byte *one = from[0].data() + place;
        for (std::size_t source = 1; source < from.size(); ++source) {
            const std::byte *const other = from[source].data() + place;
            const bool last = source + 1 == from.size();
            if (last && to.size() > 1) {
                fold_twice(sum, to[1].data() + place, one, other, bytes, variant.results_past_caches);
            } else {
                fold(sum, one, other, bytes, variant.results_past_caches && last);
            }
            one = sum;
        }
        for (std::size_t target = 2; target < to.size(); ++target) {
            copy(to[target].data() + place, sum, bytes, variant.results_past_caches);
        }
    }

    Shared &shared_;
    std::size_t index_;
    std::size_t num_workers_;
    std::size_t num_ranks_ = 0;
    Ring given_;
    Ring sums_;
    std::vector<std::vector<Move>> moves_; // own ones, then the peer's, by step
    std::vector<std::vector<Job>> jobs_;   // by step
    std::vector<std::byte> scratch_;
    std::uint64_t barriers_ = 0;
};

} // namespace hand_written
