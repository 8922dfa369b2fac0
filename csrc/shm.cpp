#include "shm.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hocket {

// Endpoint ------------------------------------------------------------------------------------------------------------

namespace {
constexpr std::size_t channel_bytes = Endpoint::ring_size * sizeof(Endpoint::Line) + sizeof(Endpoint::Counter);
}

std::size_t Endpoint::committed_bytes(int num_members) {
    return round_up(page + static_cast<std::size_t>(num_members) * (num_lanes * channel_bytes + sizeof(Fingerprint)),
                    page);
}

std::size_t Endpoint::reserved_bytes(int num_members) {
    return committed_bytes(num_members) + num_lanes * static_cast<std::size_t>(num_members) * piece_bytes;
}

Endpoint::Endpoint(std::byte *base, int num_members) : base_(base), num_members_(num_members) {}

std::size_t Endpoint::place(Lane lane, int peer) const {
    return static_cast<std::size_t>(lane) * static_cast<std::size_t>(num_members_) + static_cast<std::size_t>(peer);
}

Endpoint::Line *Endpoint::ring(Lane lane, int peer) const {
    return reinterpret_cast<Line *>(base_ + page + place(lane, peer) * channel_bytes);
}

Endpoint::Counter &Endpoint::released(Lane lane, int peer) const {
    return *reinterpret_cast<Counter *>(base_ + page + place(lane, peer) * channel_bytes + ring_size * sizeof(Line));
}

std::span<Fingerprint> Endpoint::aborted_calls() const {
    const auto size = static_cast<std::size_t>(num_members_);
    return {reinterpret_cast<Fingerprint *>(base_ + page + num_lanes * size * channel_bytes), size};
}

std::size_t Endpoint::reserved_slot(Lane lane, int peer) const {
    return committed_bytes(num_members_) + place(lane, peer) * piece_bytes;
}

// Transport -----------------------------------------------------------------------------------------------------------

ShmTransport::ShmTransport(Context &context, std::vector<int> members, int rank, std::span<const std::size_t> offsets,
                           Lane lane)
    : context_(context), members_(std::move(members)), rank_(rank), lane_(lane),
      offset_(offsets[static_cast<std::size_t>(rank)]), peers_(members_.size()), reserved_in_use_(members_.size()),
      reserved_committed_(members_.size()) {
    const int size = static_cast<int>(members_.size());
    for (int i = 0; i < size; ++i) {
        const Mapping &mapping = context.mapping(members_[static_cast<std::size_t>(i)]);
        const std::size_t offset = offsets[static_cast<std::size_t>(i)];
        if (offset > mapping.num_bytes() || Endpoint::reserved_bytes(size) > mapping.num_bytes() - offset) {
            throw Failure::internal("rank " + std::to_string(i) + " shows an endpoint outside of its arena");
        }
        endpoints_.emplace_back(mapping.base() + offset, size);
        peer_at(i).mapping = &mapping;
        peer_at(i).shares_process = context.shares_process(members_[static_cast<std::size_t>(i)]);
    }
    for (int i = 0; i < size; ++i) {
        const Endpoint &mine = endpoints_[static_cast<std::size_t>(rank_)],
                       &theirs = endpoints_[static_cast<std::size_t>(i)];
        peer_at(i).outgoing = mine.ring(lane_, i);
        peer_at(i).outgoing_released = &theirs.released(lane_, rank_);
        peer_at(i).incoming = theirs.ring(lane_, rank_);
        peer_at(i).incoming_released = &mine.released(lane_, i);
    }
}

ShmTransport::~ShmTransport() {
    if (generation_ == fork_generation()) leave();
}

std::vector<std::size_t> ShmTransport::leave() {
    std::vector<std::size_t> unread;
    if (std::exchange(has_left_, true)) return unread;
    collect();
    for (const Staged &slot : staged_) {
        if (slot.reserved_for < 0) unread.push_back(slot.offset);
    }
    const Endpoint &mine = endpoints_[static_cast<std::size_t>(rank_)];
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
        if (!reserved_committed_[peer] || reserved_in_use_[peer]) continue;
        context_.arena().decommit(offset_ + mine.reserved_slot(lane_, static_cast<int>(peer)), piece_bytes);
    }
    return unread;
}

std::uint64_t ShmTransport::released(int peer) const {
    return peer_at(peer).outgoing_released->value.load(std::memory_order_seq_cst);
}

/// Slots whose readers have all gone on return to the pool.
void ShmTransport::collect() {
    std::erase_if(staged_, [this](const Staged &slot) {
        for (const auto &[peer, message] : slot.readers) {
            if (released(peer) < message) return false;
        }
        if (slot.reserved_for < 0) context_.return_slot(slot.offset);
        else reserved_in_use_[static_cast<std::size_t>(slot.reserved_for)] = false;
        return true;
    });
}

std::optional<ShmTransport::Staged> ShmTransport::take_slot(std::span<const int> peers) {
    collect();
    const auto num_pooled = std::ranges::count_if(staged_, [](const Staged &slot) { return slot.reserved_for < 0; });
    if (lane_ == Lane::collectives || num_pooled < max_slots_of_messages) {
        if (const auto offset = context_.take_slot()) return Staged{.offset = *offset, .readers = {}};
    }
    // The lowest peer's own slot is free at the latest when all readers of what was sent to it before have gone on: law
    // 3 proves every schedule under just that condition.
    const int owner = std::ranges::min(peers);
    const auto at = static_cast<std::size_t>(owner);
    if (reserved_in_use_[at]) return std::nullopt;
    const std::size_t offset = offset_ + endpoints_[static_cast<std::size_t>(rank_)].reserved_slot(lane_, owner);
    if (!reserved_committed_[at]) context_.arena().commit(offset, piece_bytes);
    reserved_committed_[at] = reserved_in_use_[at] = true;
    return Staged{.offset = offset, .reserved_for = owner, .readers = {}};
}

void ShmTransport::post(int peer, const Endpoint::Line &message) {
    Peer &to = peer_at(peer);
    Endpoint::Line &line = to.outgoing[to.posted % Endpoint::ring_size];
    line.tag = message.tag;
    line.num_bytes = message.num_bytes;
    line.tier = message.tier;
    if (message.tier == Endpoint::Tier::in_line)
        std::memcpy(line.bytes.data(), message.bytes.data(), message.num_bytes);
    else line.offset = message.offset;
    ++to.posted;
    // Sequentially consistent against `sleeping`: either the reader sees the message, or ring() sees the sleeper.
    line.number.store(static_cast<std::uint32_t>(to.posted), std::memory_order_seq_cst);
    control(peer).ring();
}

Published ShmTransport::publish(std::span<const int> peers, Bytes bytes, std::uint32_t tag, bool may_lend) {
    const auto full = [&](int peer) {
        // The counter lies in the peer's cache: what it said last is often enough.
        Peer &to = peer_at(peer);
        if (to.posted - to.seen_released >= Endpoint::ring_size) to.seen_released = released(peer);
        return to.posted - to.seen_released >= Endpoint::ring_size;
    };
    if (std::ranges::any_of(peers, full)) return {};
    Endpoint::Line message{};
    message.tag = tag;
    Published published{.num_bytes = std::min(bytes.size(), piece_bytes)};
    message.num_bytes = static_cast<std::uint32_t>(published.num_bytes);
    const Mapping &arena = *context_.arena().mapping();
    const auto shares_process = [&](int peer) { return peer_at(peer).shares_process; };
    may_lend = may_lend && bytes.size() >= least_lent_bytes;
    if (bytes.size() <= Endpoint::inline_bytes) {
        message.tier = Endpoint::Tier::in_line;
        std::memcpy(message.bytes.data(), bytes.data(), bytes.size());
    } else if (may_lend && arena.contains(bytes.data(), bytes.size())) {
        message.tier = Endpoint::Tier::arena;
        message.offset = static_cast<std::uint64_t>(bytes.data() - arena.base());
        published.lent = true;
    } else if (may_lend && std::ranges::all_of(peers, shares_process)) {
        message.tier = Endpoint::Tier::address;
        message.address = bytes.data();
        published.lent = true;
    } else {
        auto slot = take_slot(peers);
        if (!slot) return {};
        std::memcpy(arena.base() + slot->offset, bytes.data(), published.num_bytes);
        message.tier = Endpoint::Tier::arena;
        message.offset = slot->offset;
        for (int peer : peers) slot->readers.emplace_back(peer, peer_at(peer).posted + 1);
        staged_.push_back(std::move(*slot));
    }
    for (int peer : peers) post(peer, message);
    return published;
}

View ShmTransport::view(int peer) {
    const Peer &from = peer_at(peer);
    const Endpoint::Line &line = from.incoming[from.received % Endpoint::ring_size];
    if (line.number.load(std::memory_order_seq_cst) != static_cast<std::uint32_t>(from.received + 1)) return {};
    // A peer's word is never trusted beyond what this rank knows by itself.
    const auto refuse = [peer] {
        throw Failure::internal("rank " + std::to_string(peer) + " sent a malformed message");
    };
    const std::byte *start = nullptr;
    const std::size_t num_bytes = line.num_bytes;
    switch (line.tier) {
    case Endpoint::Tier::in_line:
        if (num_bytes > Endpoint::inline_bytes) refuse();
        start = line.bytes.data();
        break;
    case Endpoint::Tier::address:
        if (!from.shares_process) refuse();
        start = line.address;
        break;
    case Endpoint::Tier::arena: {
        const std::size_t limit = from.mapping->num_bytes();
        if (line.offset > limit || num_bytes > limit - line.offset) refuse();
        start = from.mapping->base() + line.offset;
        break;
    }
    }
    return {.bytes = Bytes(start + from.consumed, num_bytes - from.consumed), .tag = line.tag};
}

void ShmTransport::release(int peer, std::size_t num_bytes) {
    Peer &from = peer_at(peer);
    const Endpoint::Line &line = from.incoming[from.received % Endpoint::ring_size];
    from.consumed += num_bytes;
    if (from.consumed < line.num_bytes) return;
    from.consumed = 0;
    ++from.received;
    from.incoming_released->value.store(from.received, std::memory_order_seq_cst);
    control(peer).ring();
}

} // namespace hocket
