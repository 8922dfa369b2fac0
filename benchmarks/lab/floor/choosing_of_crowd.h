// Chooses the variants to try if each of more than two ranks is a process: some of each way, then changes of the best.
#pragma once

#include "crowd_memory.h"

#include <string>
#include <vector>

namespace hand_written {

constexpr std::size_t least_shared = 8 << 10;  // less does not pay for a second turn
constexpr std::size_t least_fetched = 8 << 10; // for less, the kernel is slower
constexpr std::size_t outgrows_caches = 512 << 10;

// Bytes that each giving rank gives. bytes: in one direction.
inline std::size_t given_by_each(const Task &task, std::size_t bytes) {
    return task.operation == "all_gather" ? bytes : task.bytes;
}

inline bool is_to_all(const Task &task) {
    return task.operation.starts_with("all_") || task.operation == "reduce_scatter";
}

inline std::vector<Variant> variants_of_crowd(const Task &task, std::size_t bytes) {
    if (task.operation == "turns" || task.operation == "barrier") {
        return {{.way = Way::turns}, {.way = Way::turns, .pauses = false}};
    }
    const bool reduces = task.operation == "all_reduce" || task.operation == "reduce";
    const bool adds = reduces || task.operation == "reduce_scatter";
    const std::size_t given = given_by_each(task, bytes);
    const bool may_fetch = given >= least_fetched && task.memory != "staged";
    std::vector<std::size_t> pieces{given};
    if (given > 32 << 10) { pieces = {16 << 10, 64 << 10, 256 << 10, 1 << 20}; }
    if (given > 1 << 20) { pieces = {256 << 10, 1 << 20}; } // such calls take long
    std::vector<Variant> found;
    for (std::size_t piece : pieces) {
        piece = std::min(piece, given);
        if (piece == given && !found.empty() && found.back().piece_bytes == given) { break; }
        const std::size_t slot = round_up(piece, line_bytes);
        const std::size_t num_slots = is_to_all(task) && given > outgrows_caches ? 2 : 8;
        const Variant one{
            .way = Way::posted, .piece_bytes = piece, .ring_bytes = num_slots * slot, .lag = 0, .pauses = false};
        found.push_back(one);
        const auto also = [&](Way way) {
            found.push_back(one);
            found.back().way = way;
        };
        if (!is_to_all(task) && slot <= 4096) {
            for (const std::size_t others : {2, 32, 64}) {
                also(Way::posted);
                found.back().ring_bytes = others * slot;
            }
        }
        if (adds) { also(Way::chained); }
        if (reduces && given >= least_shared) { also(Way::posted_shares); }
        if (reduces && may_fetch && piece == std::min(given, pieces.back())) { also(Way::fetched_shares); }
    }
    if (may_fetch && task.operation != "all_reduce") {
        found.push_back({.way = Way::fetched, .piece_bytes = std::min<std::size_t>(given, 128 << 10), .pauses = false});
    }
    return found;
}

inline std::vector<void (*)(Variant &)> changes_of_crowd(const Task &task, const Variant &best, std::size_t bytes) {
    const std::size_t given = given_by_each(task, bytes);
    std::vector<void (*)(Variant &)> found;
    if (given <= outgrows_caches) {
        found.push_back([](Variant &each) { each.pauses = true; });
        found.push_back([](Variant &each) {
            each.pauses = false;
            each.lingers = true;
        });
    }
    if (best.way == Way::turns || given <= line_bytes) { return found; }
    if ((best.way == Way::posted || best.way == Way::chained) && is_to_all(task)) {
        found.push_back([](Variant &each) { each.lag = 1; });
    }
    if (best.way != Way::fetched && best.way != Way::fetched_shares && given <= 1 << 20) {
        found.push_back([](Variant &each) { each.ring_bytes = most_slot_bytes; });
        found.push_back([](Variant &each) { each.ring_bytes = 2 * each.piece_bytes; });
        if (given > 32 << 10 && !is_to_all(task)) {
            found.push_back([](Variant &each) { each.slots_past_caches = true; });
        }
    }
    if (best.piece_bytes >= 32 << 10) {
        found.push_back([](Variant &each) { each.piece_bytes /= 2; });
    }
    if (given > outgrows_caches) {
        found.push_back([](Variant &each) { each.results_past_caches = true; });
        found.push_back([](Variant &each) { each.by_memcpy = true; });
    }
    return found;
}

} // namespace hand_written
