#include "shm.h"

#include "copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hocket {

// Endpoint ------------------------------------------------------------------------------------------------------------

namespace {
constexpr std::size_t channel_bytes = Endpoint::ring_size * sizeof(Endpoint::Line) + sizeof(Endpoint::Counter);
}

std::size_t Endpoint::committed_bytes(int num_members) {
    const std::size_t by_member = num_lanes * channel_bytes + sizeof(Board) + sizeof(Fingerprint);
    return round_up(page + static_cast<std::size_t>(num_members) * by_member, page);
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

std::size_t Endpoint::boards() const {
    return page + num_lanes * static_cast<std::size_t>(num_members_) * channel_bytes;
}

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
        peer_at(i).board = &mine.board(i);
        peer_at(i).its_board = &theirs.board(rank_);
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

/// Writes into a slot, which a reader may have had in its cache a moment ago. Where the cores share a cache, plain
/// stores are the quickest; where they do not, taking the lines back takes many times longer than going past the
/// caches. Which it is may change while a program runs, as ranks are moved from core to core: so it is found out again
/// and again.
void ShmTransport::stage(std::byte *slot, Bytes bytes) {
    if (bytes.size() < least_watched_bytes) {
        std::memcpy(slot, bytes.data(), bytes.size());
        return;
    }
    if (num_staged_++ % watch_interval == 0) {
        const auto start = Clock::now();
        std::memcpy(slot, bytes.data(), watched_bytes);
        past_caches_ = Clock::now() - start > slow_stores;
        slot += watched_bytes;
        bytes = bytes.subspan(watched_bytes);
    }
    if (past_caches_) copy_past_caches(slot, bytes);
    else std::memcpy(slot, bytes.data(), bytes.size());
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

bool ShmTransport::has_room(std::span<const int> peers) {
    return std::ranges::all_of(peers, [this](int peer) {
        // The counter lies in the peer's cache: what it said last is often enough.
        Peer &to = peer_at(peer);
        if (to.posted - to.seen_released >= Endpoint::ring_size) to.seen_released = released(peer);
        return to.posted - to.seen_released < Endpoint::ring_size;
    });
}

Published ShmTransport::publish(std::span<const int> peers, Bytes bytes, std::uint32_t tag, bool may_lend) {
    if (!has_room(peers)) return {};
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
        stage(arena.base() + slot->offset, bytes.first(published.num_bytes));
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
    case Endpoint::Tier::arena:
    case Endpoint::Tier::put: {
        const Mapping &memory = line.tier == Endpoint::Tier::put ? *context_.arena().mapping() : *from.mapping;
        const std::size_t limit = memory.num_bytes();
        if (line.offset > limit || num_bytes > limit - line.offset) refuse();
        start = memory.base() + line.offset;
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

// Puts ----------------------------------------------------------------------------------------------------------------

void ShmTransport::grant(int peer, std::uint32_t tag, std::span<const Window> windows) {
    Peer &to = peer_at(peer);
    const Mapping &arena = *context_.arena().mapping();
    std::uint32_t num_windows = 0;
    for (const Window &window : windows) {
        if (num_windows == Endpoint::Board::max_windows) break;
        Endpoint::Board::Entry entry{window.step, window.order,    window.after_step, window.after_order,
                                     0,           window.num_bytes};
        if (to.shares_process) entry.place = reinterpret_cast<std::uintptr_t>(window.place);
        else if (arena.contains(window.place, window.num_bytes))
            entry.place = static_cast<std::uint64_t>(window.place - arena.base());
        else continue;
        to.board->entries[num_windows++] = entry;
    }
    if (num_windows == 0) return;
    to.board->tag = tag;
    to.board->num_windows = num_windows;
    to.may_write = true;
    to.board->call.store(to.received + 1, std::memory_order_release);
}

void ShmTransport::revoke() {
    for (Peer &peer : peers_) peer.may_write = false;
}

void ShmTransport::withdraw() const {
    for (const Peer &peer : peers_) {
        if (peer.may_write) peer.board->call.store(0, std::memory_order_seq_cst);
    }
}

bool ShmTransport::may_be_used_by(int peer) const {
    return peer_at(peer).may_write || released(peer) < peer_at(peer).posted;
}

std::span<const Window> ShmTransport::granted(int peer, std::uint32_t tag, std::uint64_t num_posted) {
    Peer &from = peer_at(peer);
    const Endpoint::Board &board = *from.its_board;
    if (from.windows_of == num_posted + 1) return from.windows;
    if (board.call.load(std::memory_order_acquire) != num_posted + 1 || board.tag != tag) return {};
    from.windows.clear();
    from.windows_of = num_posted + 1;
    const Mapping &arena = *from.mapping;
    for (const auto &entry :
         std::span(board.entries).first(std::min<std::size_t>(board.num_windows, Endpoint::Board::max_windows))) {
        // A peer's word is never trusted beyond what this rank knows by itself.
        const std::uint64_t limit = arena.num_bytes();
        const bool fits = entry.place <= limit && entry.num_bytes <= limit - entry.place;
        if (!from.shares_process && !fits) continue;
        std::byte *place =
            from.shares_process ? reinterpret_cast<std::byte *>(entry.place) : arena.base() + entry.place;
        from.windows.push_back({entry.step, entry.order, entry.after_step, entry.after_order, place, entry.num_bytes});
    }
    return from.windows;
}

bool ShmTransport::put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
                       bool past_caches) {
    const auto stands = [this](int peer) {
        return peer_at(peer).its_board->call.load(std::memory_order_seq_cst) == peer_at(peer).windows_of;
    };
    if (!has_room(peers) || !std::ranges::all_of(peers, stands)) return false;
    Endpoint::Line message{};
    message.tag = tag;
    message.num_bytes = static_cast<std::uint32_t>(bytes.size());
    for (std::size_t i = 0; i < peers.size(); ++i) {
        const Peer &to = peer_at(peers[i]);
        if (past_caches) copy_past_caches(places[i], bytes);
        else std::memcpy(places[i], bytes.data(), bytes.size());
        message.tier = to.shares_process ? Endpoint::Tier::address : Endpoint::Tier::put;
        if (to.shares_process) message.address = places[i];
        else message.offset = static_cast<std::uint64_t>(places[i] - to.mapping->base());
        post(peers[i], message);
    }
    return true;
}

} // namespace hocket
