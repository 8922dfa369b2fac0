// What the event engine is told: who sends what to whom, after what, over which links.
#pragma once

#include "simulator/max_min.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

namespace hocket::simulator {

using Ints = std::span<const std::int64_t>;
using Floats = std::span<const double>;

/// Jobs are collectives that run at once; an actor is a rank of one job. A job is a sequence of repeats, and a repeat a
/// pattern of messages, repeated. Each chunk is moved in pieces, as many in all chunks of a job. Of each piece an actor
/// carries out its repeats in their order: what it sends in one starts when what it sent has left (an eager message: is
/// handed over), what it receives is there and its work is done, of the same piece and the repeat before.
struct Problem {
    // Messages of pattern i: pattern_begins[i] to pattern_begins[i + 1], by source.
    Ints pattern_begins, source, target;
    Ints channel;       // messages of one channel leave one after the other, see Travel
    Floats chunks;      // how many a message carries
    Floats eager_bytes; // a piece of a message that has no more does not hold up its sender
    Floats seconds;     // of latency, on the whole way
    Flows paths;
    // Work of pattern i, what is reduced or copied: work_begins[i] to work_begins[i + 1], by actor.
    Ints work_begins, work_actor;
    Floats work; // seconds for each byte of a chunk
    // Repeats, job after job.
    Ints repeat_pattern, repeat_times, repeat_job;
    // Jobs.
    Ints job_pieces;
    Floats job_start, piece_bytes, last_piece_bytes;
    Ints actor_job;
    Floats send_seconds, receive_seconds; // of each actor, for each of its messages
    Floats gap_seconds; // of each actor, between messages that it sends, and between those it receives
    // Links.
    Floats bytes_per_second, link_seconds;
    // Options.
    double packet_bytes = 0; // stored and forwarded by each node in packets of so many bytes; 0: flows
    double tick_seconds = 0; // of packets, times are cut to whole ticks; 0: they are not

    std::size_t num_actors() const { return actor_job.size(); }
    std::size_t num_links() const { return bytes_per_second.size(); }
    std::size_t job_of(std::int32_t message) const {
        return static_cast<std::size_t>(actor_job[static_cast<std::size_t>(source[static_cast<std::size_t>(message)])]);
    }
    /// Bytes of one piece of a chunk.
    double chunk_bytes(std::size_t job, std::int32_t piece) const {
        return piece + 1 == job_pieces[job] ? last_piece_bytes[job] : piece_bytes[job];
    }
};

/// One piece of a message on its way. Step: the number of the repetition, counted over all repeats of the job.
struct Travel {
    std::int32_t message = 0, step = 0, piece = 0;
    std::int32_t next = -1; // in a list
    double bytes = 0;
    double started = 0, sent = 0; // until it starts: when it came to wait for that

    /// Pieces that wait for one channel leave it in the order of the executor, in which a piece of one step goes beside
    /// the next piece of the step before.
    bool operator<(const Travel &other) const {
        const std::int64_t own = std::int64_t{step} + piece, its = std::int64_t{other.step} + other.piece;
        return std::tie(own, step, message) < std::tie(its, other.step, other.message);
    }
};

/// One line for each piece of each message that arrived.
struct Record {
    std::int64_t message = 0, step = 0, piece = 0;
    double started = 0, sent = 0, arrived = 0;
};

struct Outcome {
    std::vector<double> finished; // of each actor
    std::vector<Record> records;
};

Outcome run(const Problem &problem, bool record);

} // namespace hocket::simulator
