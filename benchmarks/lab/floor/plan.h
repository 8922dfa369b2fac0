// Which data each operation moves between which buffers. comparison/values.py defines their shapes.
#pragma once

#include "memory.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hand_written {

using Bytes = std::span<std::byte>;

struct Task {
    std::string operation;
    std::string memory;
    std::size_t num_ranks;
    std::size_t bytes; // of the larger buffer
    double seconds;    // of a batch
    std::size_t batches;
};

// Between two calls a rank reads its output and writes its input, if it has any.
struct Buffers {
    Bytes given;
    Bytes got; // the same memory if the operation is in place
    bool gives;
    bool gets;
};

// One step of one of two ranks: it gives, it takes and adds `with`, if given, and it copies its own block from `keep`
// to `kept`. Each may be empty.
struct Move {
    Bytes give{};
    Bytes take{};
    Bytes with{};
    Bytes keep{};
    Bytes kept{};
};

// Writes the sum of all `from` to all `to`. `owner`: the rank that the job is for.
struct Job {
    std::vector<Bytes> to;
    std::vector<Bytes> from;
    std::size_t owner;
    bool own = false; // uses no other rank's memory
};

// The expected result: the table of that rank, or the sum of all tables if `table` is num_ranks.
struct Block {
    Bytes place;
    std::size_t table;
    std::size_t offset;
};

inline Bytes block_of(Bytes whole, std::size_t which, std::size_t num_blocks) {
    const std::size_t bytes = whole.size() / num_blocks;
    return whole.subspan(which * bytes, bytes);
}

// Shares begin with a line.
inline Bytes share_of(Bytes whole, std::size_t which, std::size_t num_shares) {
    const std::size_t share = round_up((whole.size() + num_shares - 1) / num_shares, line_bytes);
    const std::size_t begin = std::min(whole.size(), which * share);
    return whole.subspan(begin, std::min(share, whole.size() - begin));
}

inline Bytes piece_of(Bytes whole, std::size_t piece, std::size_t piece_bytes) {
    const std::size_t begin = std::min(whole.size(), piece * piece_bytes);
    return whole.subspan(begin, std::min(piece_bytes, whole.size() - begin));
}

inline bool is_in_place(const std::string &operation) {
    return operation == "all_reduce" || operation == "broadcast" || operation == "reduce";
}

// The buffers of every rank.
inline std::vector<Buffers> buffers_of(const Task &task) {
    const auto memory = task.memory == "registered" ? shared_memory : private_memory;
    const std::string &operation = task.operation;
    const std::size_t part = (task.bytes / sizeof(float) + task.num_ranks - 1) / task.num_ranks * sizeof(float);
    const bool whole = is_in_place(operation) || operation == "send_recv";
    const std::size_t longest = whole ? task.bytes : part * task.num_ranks;
    std::vector<Buffers> made;
    for (std::size_t rank = 0; rank < task.num_ranks && operation != "barrier"; ++rank) {
        const std::size_t given = operation == "all_gather" ? part : longest;
        const std::size_t got = operation == "reduce_scatter" ? part : longest;
        const Bytes one(memory(given), given);
        made.push_back({one, is_in_place(operation) ? one : Bytes(memory(got), got),
                        operation != "broadcast" || rank == 0,
                        operation == "broadcast" ? rank != 0 : operation != "reduce" || rank == 0});
    }
    return made;
}

// The steps of one of two ranks.
inline std::vector<Move> moves_of(const std::string &operation, const std::vector<Buffers> &buffers, std::size_t rank) {
    if (operation == "barrier") { return {}; }
    const auto &[given, got, gives, gets] = buffers[rank];
    const std::size_t peer = 1 - rank;
    if (operation == "all_reduce") { return {{.give = given, .take = got, .with = given}}; }
    if (operation == "reduce") { return {gets ? Move{.take = got, .with = given} : Move{.give = given}}; }
    if (operation == "broadcast") { return {gets ? Move{.take = got} : Move{.give = given}}; }
    if (operation == "reduce_scatter") {
        return {{.give = block_of(given, peer, 2), .take = got, .with = block_of(given, rank, 2)}};
    }
    if (operation == "all_gather") {
        return {{.give = given, .take = block_of(got, peer, 2), .keep = given, .kept = block_of(got, rank, 2)}};
    }
    if (operation == "all_to_all") {
        return {{.give = block_of(given, peer, 2),
                 .take = block_of(got, peer, 2),
                 .keep = block_of(given, rank, 2),
                 .kept = block_of(got, rank, 2)}};
    }
    const Move there{.give = given}, back{.take = got}; // send_recv
    return rank == 0 ? std::vector{there, back} : std::vector{back, there};
}

// The same for any number of ranks that share all memory.
inline std::vector<std::vector<Job>> jobs_of(const std::string &operation, const std::vector<Buffers> &buffers) {
    const std::size_t num_ranks = buffers.size();
    std::vector<Job> jobs, back;
    std::vector<Bytes> all;
    for (const Buffers &each : buffers) { all.push_back(each.given); }
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        const Bytes got = buffers[rank].got;
        std::vector<Bytes> parts;
        for (const Bytes each : all) { parts.push_back(block_of(each, rank, num_ranks)); }
        if (operation == "all_reduce" || operation == "reduce") {
            if (rank == 0) { jobs.push_back({operation == "reduce" ? std::vector{got} : all, all, rank}); }
        } else if (operation == "broadcast") {
            if (rank != 0) { jobs.push_back({{got}, {all[0]}, rank}); }
        } else if (operation == "reduce_scatter") {
            jobs.push_back({{got}, parts, rank});
        } else if (operation == "send_recv") {
            (rank % 2 == 1 ? jobs : back).push_back({{got}, {all[rank ^ 1]}, rank});
        } else {
            for (std::size_t source = 0; source < num_ranks; ++source) {
                const Bytes from = operation == "all_gather" ? all[source] : parts[source];
                jobs.push_back({{block_of(got, source, num_ranks)}, {from}, rank, source == rank});
            }
        }
    }
    if (back.empty()) { return {jobs}; }
    return {jobs, back};
}

inline std::vector<Block> expected(const std::string &operation, const std::vector<Buffers> &buffers,
                                   std::size_t rank) {
    const std::size_t num_ranks = buffers.size();
    const auto &[given, got, gives, gets] = buffers[rank];
    if (!gets) { return {}; }
    if (operation == "all_reduce" || operation == "reduce") { return {{got, num_ranks, 0}}; }
    if (operation == "reduce_scatter") { return {{got, num_ranks, rank * got.size()}}; }
    if (operation == "broadcast") { return {{got, 0, 0}}; }
    if (operation == "send_recv") { return {{got, rank ^ 1, 0}}; }
    std::vector<Block> blocks;
    for (std::size_t source = 0; source < num_ranks; ++source) {
        const Bytes place = block_of(got, source, num_ranks);
        blocks.push_back({place, source, operation == "all_gather" ? 0 : rank * place.size()});
    }
    return blocks;
}

} // namespace hand_written
