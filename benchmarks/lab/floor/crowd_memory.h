// Shared memory of ranks that share cores, and how they wait for each other.
#pragma once

#include "plan.h"
#include "variant.h"

#include <chrono>

namespace hand_written {

constexpr std::size_t most_posts = 64;
constexpr std::size_t most_slot_bytes = 2 * huge_page;
constexpr std::size_t most_piece_bytes = 1 << 20;
constexpr std::size_t apart = 9 * line_bytes; // between two ranks' slots: at the same place in a page, they would evict
                                              // each other from a core's first cache
constexpr std::chrono::nanoseconds short_look{500}, long_look{4000};

// What a rank shows to the others. Each line has one writer.
struct Desk {
    Signal step;            // the last step that this rank has ended
    Signal taken;           // pieces that it no longer needs
    Line posts[most_posts]; // by piece: its number, and the piece itself if it is short
    alignas(huge_page) std::byte slots[most_slot_bytes + most_ranks * apart];
    alignas(huge_page) std::byte sums[most_ring_bytes + most_ranks * apart];
};

// How one rank waits, which runs on core `core_of(rank)`.
class Waiting {
  public:
    Waiting(std::size_t rank, std::size_t num_ranks, std::size_t num_cores)
        : rank_(rank), num_ranks_(num_ranks), num_cores_(num_cores) {
        for (std::size_t other = 0; other < num_ranks; ++other) {
            if (other != rank && core_of(other) == core_of(rank)) { others_.push_back(other); }
        }
        for (std::size_t other = 0; other < num_ranks; ++other) {
            if (core_of(other) != core_of(rank)) { others_.push_back(other); }
        }
    }

    void set(const Variant &variant) {
        look_ = variant.lingers ? long_look : variant.pauses ? short_look : std::chrono::nanoseconds{0};
    }

    // Those on this core first: while one of them is missing, looking at the rest does not help.
    const std::vector<std::size_t> &others() const { return others_; }

    std::size_t core_of(std::size_t rank) const { return rank * num_cores_ / num_ranks_; }

    // Waits for a number that the other rank writes.
    void for_rank(std::size_t other, const std::atomic<std::uint64_t> &found, std::uint64_t number) const {
        const auto is_there = [&] { return found.load(std::memory_order_acquire) >= number; };
        if (is_there()) { return; }
        if (core_of(other) != core_of(rank_) && look_.count() > 0) {
            const auto end = std::chrono::steady_clock::now() + look_;
            do {
                for (int look = 0; look < 8; ++look) {
                    if (is_there()) { return; }
                    __builtin_ia32_pause();
                }
            } while (std::chrono::steady_clock::now() < end);
        }
        while (!is_there()) { sched_yield(); }
    }

  private:
    std::size_t rank_;
    std::size_t num_ranks_;
    std::size_t num_cores_;
    std::vector<std::size_t> others_;
    std::chrono::nanoseconds look_{0};
};

} // namespace hand_written
