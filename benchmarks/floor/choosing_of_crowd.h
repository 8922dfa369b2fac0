// Which variants are tried where each of more ranks is a process: some of each way, then changes of the best of them.
#pragma once

#include "plan.h"
#include "variant.h"

#include <string>
#include <vector>

namespace hand_written {

constexpr std::size_t least_shared = 8 << 10;  // less is not worth a second turn
constexpr std::size_t least_fetched = 8 << 10; // the kernel takes longer for less
constexpr std::size_t outgrows_caches = 512 << 10;

// bytes: that go one way.
inline std::vector<Variant> variants_of_crowd(const Task &task, std::size_t bytes) {
    if (task.operation == "turns" || task.operation == "barrier") {
        return {{.way = Way::turns}, {.way = Way::turns, .pauses = false}};
    }
    const bool reduces = task.operation == "all_reduce" || task.operation == "reduce";
    const bool to_all = task.operation.starts_with("all_") || task.operation == "reduce_scatter";
    const bool adds = reduces || task.operation == "reduce_scatter";
    const std::size_t given = task.operation == "all_gather" ? bytes : task.bytes; // by each rank that gives
    std::vector<std::size_t> pieces{given};
    if (given > 32 << 10) { pieces = {16 << 10, 64 << 10, 256 << 10, 1 << 20}; }
    if (given > 1 << 20) { pieces = {64 << 10, 256 << 10, 1 << 20}; }
    std::vector<Variant> found;
    for (std::size_t piece : pieces) {
        piece = std::min(piece, given);
        if (piece == given && !found.empty() && found.back().piece_bytes == given) { break; }
        const std::size_t slot = round_up(piece, line_bytes);
        const Variant one{.way = Way::posted, .piece_bytes = piece, .ring_bytes = 8 * slot, .lag = 0, .pauses = false};
        found.push_back(one);
        const auto also = [&](Way way) {
            found.push_back(one);
            found.back().way = way;
        };
        if (!to_all && slot <= 4096) {
            for (const std::size_t num_slots : {2, 32, 64}) {
                also(Way::posted);
                found.back().ring_bytes = num_slots * slot;
            }
        }
        if (adds) { also(Way::chained); }
        if (reduces && given >= least_shared) { also(Way::posted_shares); }
        if (reduces && given >= least_fetched && piece == std::min(given, pieces.back())) { also(Way::fetched_shares); }
    }
    if (given >= least_fetched && task.operation != "all_reduce") {
        found.push_back({.way = Way::fetched, .piece_bytes = std::min<std::size_t>(given, 128 << 10), .pauses = false});
    }
    return found;
}

inline std::vector<void (*)(Variant &)> changes_of_crowd(const Variant &best, std::size_t bytes) {
    std::vector<void (*)(Variant &)> found;
    if (bytes <= outgrows_caches) {
        found.push_back([](Variant &each) { each.pauses = true; });
        found.push_back([](Variant &each) { each.lingers = true; });
    }
    if (best.way == Way::turns) { return found; }
    if (best.way == Way::posted && best.piece_bytes < bytes) {
        found.push_back([](Variant &each) { each.lag = 1; });
    }
    if (best.piece_bytes >= 32 << 10) {
        found.push_back([](Variant &each) { each.piece_bytes /= 2; });
    }
    if (bytes > outgrows_caches) {
        found.push_back([](Variant &each) { each.results_past_caches = true; });
        found.push_back([](Variant &each) { each.by_memcpy = true; });
    }
    return found;
}

} // namespace hand_written
