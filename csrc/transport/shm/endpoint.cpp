// Where in a rank's arena the parts of an endpoint lie.
#include "transport/shm/shm.h"

#include <cstddef>

namespace hocket {

namespace {
static_assert(most_lent_bytes <= Endpoint::Line::all_cells * cell_bytes, "all of a message can be shown");
constexpr std::size_t channel_bytes(Lane lane, std::size_t num_members) {
    return ring_size_of(lane, num_members) * sizeof(Endpoint::Line) + sizeof(Endpoint::Counter);
}
} // namespace

std::uint64_t Endpoint::layout() {
    std::uint64_t hash = 0;
    for (const std::size_t fact : {std::size_t{2}, // grows when what a field means changes, but not its place
                                   piece_bytes,
                                   most_lent_bytes,
                                   static_cast<std::size_t>(largest_ring),
                                   static_cast<std::size_t>(least_ring),
                                   num_lanes,
                                   head_bytes,
                                   cell_bytes,
                                   max_handed,
                                   sizeof(ControlPage),
                                   offsetof(ControlPage, bell),
                                   offsetof(ControlPage, state),
                                   offsetof(ControlPage, in_messages),
                                   offsetof(ControlPage, last_call),
                                   offsetof(ControlPage, gave_up),
                                   offsetof(ControlPage, calls),
                                   offsetof(ControlPage, digests),
                                   offsetof(ControlPage, progress),
                                   offsetof(ControlPage, sites),
                                   offsetof(ControlPage, abort),
                                   sizeof(CallRecord),
                                   sizeof(SiteRecord),
                                   sizeof(ProgressRecord),
                                   offsetof(AbortRecord, missing),
                                   offsetof(AbortRecord, text),
                                   sizeof(Presence),
                                   offsetof(Presence, word),
                                   offsetof(Presence, state),
                                   offsetof(Presence, process_id),
                                   offsetof(Presence, token_address),
                                   offsetof(Presence, attaches),
                                   offsetof(Presence, endpoints),
                                   sizeof(Line),
                                   offsetof(Line, tag),
                                   offsetof(Line, tier),
                                   offsetof(Line, num_cells),
                                   offsetof(Line, bytes),
                                   sizeof(Counter),
                                   offsetof(Counter, told),
                                   offsetof(Counter, given_back),
                                   sizeof(Board),
                                   offsetof(Board, entries),
                                   sizeof(Board::Entry),
                                   offsetof(Board::Entry, tier),
                                   sizeof(Arrivals)}) {
        hash = mix(hash, fact);
        hash ^= hash >> 32;
    }
    return hash;
}

std::size_t Endpoint::committed_bytes(int num_members) {
    const Endpoint endpoint(nullptr, num_members);
    return round_up(endpoint.boards() + static_cast<std::size_t>(num_members) * (sizeof(Board) + sizeof(Fingerprint)),
                    page_bytes());
}

std::size_t Endpoint::reserved_bytes(int num_members) {
    const std::size_t num_channels = num_lanes * static_cast<std::size_t>(num_members);
    return committed_bytes(num_members) + num_channels * piece_bytes +
           round_up(num_channels * sizeof(Arrivals), page_bytes());
}

std::size_t Endpoint::place(Lane lane, int peer) const {
    return static_cast<std::size_t>(lane) * static_cast<std::size_t>(num_members_) + static_cast<std::size_t>(peer);
}

/// Offset from the endpoint.
std::size_t Endpoint::channel(Lane lane, int peer) const {
    const auto size = static_cast<std::size_t>(num_members_);
    const std::size_t begin = lane == Lane::collectives ? 0 : size * channel_bytes(Lane::collectives, size);
    return sizeof(ControlPage) + begin + static_cast<std::size_t>(peer) * channel_bytes(lane, size);
}

Endpoint::Line *Endpoint::ring(Lane lane, int peer) const {
    return reinterpret_cast<Line *>(base_ + channel(lane, peer));
}

Endpoint::Counter &Endpoint::released(Lane lane, int peer) const {
    const std::size_t behind_ring = channel(lane, peer + 1) - sizeof(Counter);
    return *reinterpret_cast<Counter *>(base_ + behind_ring);
}

std::size_t Endpoint::boards() const { return channel(Lane::messages, num_members_); }

Endpoint::Board &Endpoint::board(int peer) const {
    return *reinterpret_cast<Board *>(base_ + boards() + static_cast<std::size_t>(peer) * sizeof(Board));
}

std::span<Fingerprint> Endpoint::aborted_calls() const {
    const auto size = static_cast<std::size_t>(num_members_);
    return {reinterpret_cast<Fingerprint *>(base_ + boards() + size * sizeof(Board)), size};
}

std::size_t Endpoint::reserved_slot(Lane lane, int peer) const {
    return committed_bytes(num_members_) + place(lane, peer) * piece_bytes;
}

std::size_t Endpoint::arrivals_begin() const { return reserved_slot(Lane{num_lanes}, 0); }

Endpoint::Arrivals &Endpoint::arrivals(Lane lane, int peer) const {
    return reinterpret_cast<Arrivals *>(base_ + arrivals_begin())[place(lane, peer)];
}

} // namespace hocket
