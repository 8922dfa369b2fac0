// Slots that messages are staged in. A message takes the next bytes of the slot at hand if it fits there, else it
// begins another one; a slot returns to the pool when all readers of all its messages have gone on. Or two ranks hand a
// slot to and fro.
#include "kernels/copy.h"
#include "transport/shm/shm.h"

#include <algorithm>
#include <utility>

namespace hocket {

/// Whether all its readers have gone on, as far as they have told, or, if this `looks`, by their counters.
bool ShmTransport::is_read(const Lease &lease, bool looks) {
    return std::ranges::all_of(lease.readers, [this, looks](const auto &reader) {
        const auto [peer, message] = reader;
        return looks ? has_read(peer_at(peer), message) : peer_at(peer).seen_released >= message;
    });
}

/// Slots that have been read return to the pool. The counters lie in the peers' caches, and so are looked at only when
/// a slot is full.
void ShmTransport::collect(bool looks) {
    const auto end = std::stable_partition(leases_.begin(), leases_.end(),
                                           [this, looks](const Lease &lease) { return !is_read(lease, looks); });
    for (auto lease = end; lease != leases_.end(); ++lease) {
        lease->slot.used = lease->used_up;
        if (lease->reserved_for < 0) context_.return_slot(lease->slot);
    }
    leases_.erase(end, leases_.end());
}

bool ShmTransport::has_lease_of(int peer) const {
    return std::ranges::find(leases_, peer, &Lease::reserved_for) != leases_.end();
}

/// The slot for the next message, behind whose used bytes it goes. Null: there is none.
ShmTransport::Lease *ShmTransport::slot_for(std::span<const int> peers, std::size_t num_bytes) {
    const std::uint64_t num_ahead = context_.shares_cores() ? most_bytes_ahead / num_bytes : 0;
    const auto is_behind = [this, most = std::max(max_unread, num_ahead)](int peer) {
        Peer &to = peer_at(peer);
        return to.num_staged >= most && !has_read(to, to.staged[(to.num_staged - most) % to.staged.size()]);
    };
    if (num_bytes > most_copied && std::ranges::any_of(peers, is_behind)) return nullptr;
    const auto has_room_left = [&](const Lease &lease) {
        return lease.reserved_for < 0 && context_.has_room_left(lease.slot, num_bytes, !is_far_);
    };
    if (!leases_.empty()) {
        Lease &at_hand = leases_.back();
        if (is_read(at_hand, false)) at_hand.slot.used = at_hand.used_up;
        if (has_room_left(at_hand)) return &at_hand;
    }
    collect(true);
    for (const int peer : peers) have_back(peer);
    const auto num_pooled = std::ranges::count(leases_, -1, &Lease::reserved_for);
    if (lane_ == Lane::collectives || num_pooled < max_slots_of_messages) {
        if (const auto slot = context_.take_slot(num_bytes, !is_far_))
            return &leases_.emplace_back(Lease{*slot, slot->used});
    }
    // The lowest peer's own slot is free at the latest when all readers of what was sent to it before have gone on: law
    // 3 proves every schedule under just that condition.
    const int owner = std::ranges::min(peers);
    if (has_lease_of(owner)) return nullptr;
    const std::size_t offset = offset_ + endpoint(rank_).reserved_slot(lane_, owner);
    if (!reserved_committed_[static_cast<std::size_t>(owner)]) context_.arena().commit(offset, piece_bytes);
    reserved_committed_[static_cast<std::size_t>(owner)] = true;
    return &leases_.emplace_back(Lease{.slot = {.offset = offset}, .reserved_for = owner});
}

/// Copies a piece into a slot, and posts it. False: there is none.
bool ShmTransport::stage(std::span<const int> peers, Endpoint::Line &message, Bytes bytes) {
    const bool may_hand = peers.size() == 1 && peers.front() != rank_ && bytes.size() <= part_bytes_;
    if (may_hand && hand(peers.front(), message, bytes)) return true;
    const auto is_beside = [this](int peer) { return peer_at(peer).rank.is_beside; };
    const bool is_near = std::ranges::all_of(peers, is_beside), whole = lane_ == Lane::messages && is_near;
    Lease *const lease = slot_for(peers, bytes.size());
    if (lease == nullptr) return false;
    Context::Slot &slot = lease->slot;
    message.tier = may_hand ? Endpoint::Tier::kept : Endpoint::Tier::arena;
    message.elsewhere.offset = slot.offset + slot.used;
    slot.is_far = slot.is_far || !is_near;
    const bool other_cache = !whole && is_far_ && (slot.is_far || slot.was_far);
    slot.used += round_up(bytes.size(), cache_line);
    if (bytes.size() > most_copied && !is_near) lease->used_up = slot.used;
    for (const int peer : peers) {
        Peer &to = peer_at(peer);
        if (bytes.size() > most_copied) to.staged[to.num_staged++ % to.staged.size()] = to.posted + 1;
        const auto reader = std::ranges::find(lease->readers, peer, &std::pair<int, std::uint64_t>::first);
        if (reader == lease->readers.end()) lease->readers.emplace_back(peer, to.posted + 1);
        else reader->second = to.posted + 1;
    }
    std::byte *const place = context_.arena().mapping()->base() + message.elsewhere.offset;
    fill(peers, message, place, bytes, whole ? Filling::whole : other_cache ? Filling::past_caches : Filling::near);
    return true;
}

/// Fills a place in a slot, whose readers are told with the first part, and so work on what is there while the rest
/// comes.
void ShmTransport::fill(std::span<const int> peers, Endpoint::Line &message, std::byte *place, Bytes bytes,
                        Filling how) {
    message.num_bytes = static_cast<std::uint32_t>(bytes.size());
    const std::size_t quarter = round_up((bytes.size() + 3) / 4, cell_bytes);
    std::size_t part_bytes = bytes.size();
    if (bytes.size() <= most_copied) how = Filling::whole;
    else if (how == Filling::near) part_bytes = std::min(quarter, most_near_part);
    else if (how == Filling::past_caches) part_bytes = std::max(quarter, least_far_part);
    for (std::size_t begin = 0; begin < bytes.size(); begin += part_bytes) {
        const Bytes part = bytes.subspan(begin, std::min(part_bytes, bytes.size() - begin));
        if (how == Filling::past_caches) copy_to_other_cache(place + begin, part);
        else copy_bytes(place + begin, part);
        const bool is_last = begin + part.size() == bytes.size();
        const auto num_cells = static_cast<std::uint16_t>((begin + part.size()) / cell_bytes);
        for (int peer : peers) {
            const std::uint16_t there = is_last ? Endpoint::Line::all_cells : num_cells;
            if (begin == 0) {
                post_line(peer, message, there);
                continue;
            }
            Peer &to = peer_at(peer);
            to.outgoing[at(to.posted - 1)].num_cells.store(there, std::memory_order_release);
            to.may_await = may_await_ = true;
        }
    }
}

// Slots that two ranks hand to each other -----------------------------------------------------------------------------
//
// Lines that a rank has read last it writes more quickly than those that it has written last, which their reader holds:
// two ranks that exchange pieces need 0.65 to 0.95 of the time if each writes where it has just read, least where they
// share no cache, and nobody has to look whether a slot is free. So a slot goes along with a message to one rank: that
// writes its next message to this one there, and so gives it back. Who gets no answers gives none.

/// One that is here, the warmest; or a new one, if the peer has sent something in a slot that it kept since
/// it was given the last.
std::optional<ShmTransport::Handed> ShmTransport::take_handed(int peer) {
    Peer &to = peer_at(peer);
    to.num_unanswered = 0;
    if (!to.handed.empty()) {
        const Handed slot = to.handed.back();
        to.handed.pop_back();
        return slot;
    }
    if (!std::exchange(to.answers, false)) return std::nullopt;
    have_back(peer);
    const std::size_t place = static_cast<std::size_t>(peer < rank_ ? peer : peer - 1) * part_bytes_;
    const auto is_there = [&](std::size_t slot) { return std::ranges::find(to.given, slot + place) != to.given.end(); };
    auto slot = std::ranges::find_if_not(shared_out_, is_there); // what is not there is here, unused
    if (slot == shared_out_.end()) {
        const std::size_t most = context_.shares_cores() ? max_shared_out_by_turns : max_shared_out;
        const auto another = shared_out_.size() < most ? context_.take_slot_to_share_out() : std::nullopt;
        if (!another) return std::nullopt;
        slot = shared_out_.insert(shared_out_.end(), *another);
    }
    return Handed{.offset = *slot + place, .is_own = true};
}

bool ShmTransport::awaits_handed(int peer, std::size_t num_bytes) const {
    const Peer &to = peer_at(peer);
    if (!to.handed.empty() || to.given.size() < max_shared_out) return false;
    if (num_bytes <= most_bytes_in_lines || num_bytes > part_bytes_) return false;
    // A peer that answers with none gives them back, which is seen once this rank has gone through others.
    const bool has_none = to.outgoing_released->num_given_back.load(std::memory_order_relaxed) != to.num_had_back;
    return !has_none && released(peer) != to.posted;
}

/// stage() in such a slot. False: there is none here.
bool ShmTransport::hand(int peer, Endpoint::Line &message, Bytes bytes) {
    const auto slot = take_handed(peer);
    if (!slot) return false;
    collect(false); // which slot_for() would do
    Peer &to = peer_at(peer);
    if (slot->is_own) to.given.push_back(slot->offset);
    message.tier = slot->is_own ? Endpoint::Tier::handed : Endpoint::Tier::handed_back;
    message.elsewhere.offset = slot->offset;
    const Mapping &memory = slot->is_own ? *context_.arena().mapping() : *to.rank.mapping;
    fill({&peer, 1}, message, memory.base() + slot->offset, bytes,
         lane_ == Lane::messages && to.rank.is_beside ? Filling::whole : Filling::near);
    return true;
}

/// Where a message lies that came with such a slot. Null: the peer's word cannot be, as a slot of this rank has to be
/// one that it was given, and one of its own a part that is not here, of as many as it may have.
const std::byte *ShmTransport::show_handed(const Peer &from, Handed slot) const {
    const Mapping &memory = slot.is_own ? *context_.arena().mapping() : *from.rank.mapping;
    if (slot.is_own) {
        if (std::ranges::find(from.given, slot.offset) == from.given.end()) return nullptr;
    } else {
        const std::size_t limit = memory.num_bytes();
        if (slot.offset > limit || part_bytes_ > limit - slot.offset || slot.offset % cache_line != 0) return nullptr;
        const auto is_it = [&slot](const Handed &other) { return !other.is_own && other.offset == slot.offset; };
        if (std::ranges::any_of(from.handed, is_it)) return nullptr;
        if (std::ranges::count(from.handed, false, &Handed::is_own) >= std::ptrdiff_t{max_shared_out}) return nullptr;
    }
    from.shown.slot = slot;
    return memory.base() + slot.offset;
}

/// Of a message that was read to its end: the slot that came with it is this rank's to write now.
void ShmTransport::take_over(int peer) {
    Peer &from = peer_at(peer);
    const Handed slot = *std::exchange(from.shown.slot, std::nullopt);
    if (slot.is_own && std::erase(from.given, slot.offset) == 0) refuse(peer); // as it has given that back meanwhile
    from.handed.push_back(slot);
}

/// The peer sends on and on and gets no answers. The more slots of its pool it can fill one after the other, the less
/// it writes to where this rank has just read, so its own go home; and those of this rank to the pool here.
void ShmTransport::give_back(Peer &from) {
    if (from.handed.empty()) return;
    Endpoint::Counter &counter = *from.incoming_released;
    for (const Handed &slot : from.handed) {
        if (slot.is_own) continue;
        counter.given_back[from.num_given_back++ % Endpoint::max_handed].store(slot.offset, std::memory_order_relaxed);
    }
    counter.num_given_back.store(from.num_given_back, std::memory_order_release);
    from.handed.clear();
    end_sharing_out();
}

/// What the peer has given back.
void ShmTransport::have_back(int peer) {
    Peer &from = peer_at(peer);
    if (from.given.empty()) return;
    const Endpoint::Counter &counter = *from.outgoing_released;
    const std::uint64_t number = counter.num_given_back.load(std::memory_order_acquire);
    if (number == from.num_had_back) return;
    for (; from.num_had_back != number; ++from.num_had_back) {
        const auto &slot = counter.given_back[from.num_had_back % Endpoint::max_handed];
        if (std::erase(from.given, slot.load(std::memory_order_relaxed)) == 0) refuse(peer);
    }
    end_sharing_out();
}

/// Slots of which no peer has a part, nor can this rank hand one to it, return to the pool.
void ShmTransport::end_sharing_out() {
    const auto is_in_use = [this](std::size_t slot) {
        const auto is_part = [slot](std::size_t part) { return part - slot < piece_bytes; };
        return std::ranges::any_of(peers_, [&is_part](const Peer &peer) {
            const auto is_own_part = [&is_part](const Handed &part) { return part.is_own && is_part(part.offset); };
            return std::ranges::any_of(peer.given, is_part) || std::ranges::any_of(peer.handed, is_own_part);
        });
    };
    const auto free = std::ranges::partition(shared_out_, is_in_use);
    if (free.empty()) return;
    context_.end_sharing_out({free.begin(), free.end()});
    shared_out_.erase(free.begin(), free.end());
}

} // namespace hocket
