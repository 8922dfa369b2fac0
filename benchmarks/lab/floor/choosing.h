// Chooses the variants to try for a task: some of each way, then changes of the best one.
#pragma once

#include "choosing_of_crowd.h"
#include "worker.h"

namespace hand_written {

constexpr std::size_t least_piece = 1 << 10;
constexpr std::size_t most_piece = 256 << 10;
constexpr std::size_t most_lined = 16 << 10;
constexpr std::size_t least_attached = 8 << 10;
constexpr std::size_t very_large = 4 << 20;
constexpr std::size_t large = 512 << 10; // outgrows a core's own cache together with what else is touched

// Piece sizes: all that goes in one direction, a half, a quarter and an eighth; or fixed ones if that is too long.
inline std::vector<std::size_t> pieces_of(std::size_t bytes) {
    if (bytes > very_large) { return {64 << 10, most_piece}; }
    if (bytes > most_piece) { return {16 << 10, 64 << 10, most_piece, std::min(bytes, 2 * most_piece)}; }
    std::vector<std::size_t> pieces{bytes};
    for (std::size_t piece = bytes / 2; piece >= std::max(least_piece, bytes / 8); piece /= 2) {
        pieces.push_back(round_up(piece, line_bytes));
    }
    return pieces;
}

// Directly from and to the memory that all share.
inline std::vector<Variant> variants_of_shared_memory(const Task &task, std::size_t bytes) {
    std::vector<Variant> found;
    for (const std::size_t piece : {std::size_t{8} << 10, std::size_t{32} << 10, most_piece}) {
        if (!found.empty() && (piece > bytes || task.num_ranks > 2)) { break; } // calls of many ranks take long
        for (const Side side : {Side::taker, Side::both, Side::giver}) {
            if (side == Side::both || task.operation != "all_reduce") { found.push_back({Way::together, piece, side}); }
        }
    }
    return found;
}

// Through the kernel.
inline std::vector<Variant> variants_of_attaching(const Task &task, std::size_t bytes) {
    if (task.operation == "all_reduce") { return {{Way::attached_steps, std::min(bytes, most_piece / 2)}}; }
    std::vector<Variant> found;
    for (const Side side : {Side::taker, Side::both}) {
        found.push_back({Way::attached, task.operation.starts_with("reduce") ? most_piece / 2 : bytes, side});
        if (bytes > large) {
            found.push_back(found.back());
            found.back().results_past_caches = true;
        }
    }
    return found;
}

// Whether each rank is a process with its own memory.
inline bool is_crowd(const Task &task) {
    return task.operation == "turns" || (task.memory != "registered" && task.num_ranks > 2);
}

// bytes: in one direction.
inline std::vector<Variant> first_variants(const Task &task, std::size_t bytes) {
    if (is_crowd(task)) { return variants_of_crowd(task, bytes); }
    if (task.operation == "barrier") { return {{.way = Way::turns}, {.way = Way::turns, .pauses = false}}; }
    if (task.memory == "registered") { return variants_of_shared_memory(task, bytes); }
    std::vector<Variant> found;
    if (bytes <= most_lined) { found.push_back({.way = Way::lined, .pauses = bytes > line_bytes}); }
    if (bytes <= line_bytes) { return found; }
    const auto add = [&](const Variant &like) {
        for (const std::size_t piece : pieces_of(bytes)) {
            found.push_back(like);
            found.back().piece_bytes = piece;
        }
        for (const std::size_t piece : pieces_of(bytes / 2)) {
            if (task.operation != "all_reduce") { break; }
            found.push_back(like);
            found.back().way = Way::two_steps;
            found.back().piece_bytes = piece;
        }
    };
    add({.way = Way::staged});
    add({.way = Way::staged, .slots_past_caches = true});
    const bool is_one_way = task.operation == "reduce" || task.operation == "broadcast";
    if (!is_one_way) { add({.way = Way::staged, .ring_bytes = most_ring_bytes / 4, .swaps = true}); }
    if (bytes >= least_attached && task.memory != "staged") {
        for (const Variant &each : variants_of_attaching(task, bytes)) { found.push_back(each); }
    }
    return found;
}

// Changes of one parameter that may make the best variant faster.
inline std::vector<void (*)(Variant &)> changes(const Task &task, const Variant &best, std::size_t bytes) {
    if (is_crowd(task)) { return changes_of_crowd(task, best, bytes); }
    std::vector<void (*)(Variant &)> found;
    if (bytes <= large) {
        found.push_back([](Variant &each) { each.pauses = !each.pauses; });
    }
    if (best.way != Way::lined && bytes > large) {
        found.push_back([](Variant &each) { each.results_past_caches = true; });
    }
    if (best.way == Way::lined || best.way == Way::staged || best.way == Way::two_steps) {
        found.push_back([](Variant &each) { each.ring_bytes = most_ring_bytes / 4; });
        found.push_back([](Variant &each) { each.ring_bytes = std::max<std::size_t>(8 << 10, 4 * each.piece_bytes); });
    }
    if ((best.way == Way::staged || best.way == Way::two_steps) && bytes <= very_large) {
        found.push_back([](Variant &each) { each.lag = 0; });
        found.push_back([](Variant &each) { each.lag = 2; });
        found.push_back([](Variant &each) { each.lag = 8; });
    }
    return found;
}

} // namespace hand_written
