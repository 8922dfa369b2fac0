// Slots that messages are staged in: taken from the pool, shared, and had back when all their readers have gone on.
#include "shm.h"

#include <algorithm>
#include <utility>

namespace hocket {

/// Whether all its readers have gone on, as far as they have told, or, if this `looks`, by their counters.
bool ShmTransport::is_read(const Staged &slot, bool looks) {
    return std::ranges::all_of(slot.readers, [this, looks](const auto &reader) {
        const auto [peer, message] = reader;
        Peer &to = peer_at(peer);
        if (looks && to.seen_released < message) to.seen_released = look_at_released(to);
        return to.seen_released >= message;
    });
}

/// Slots that have been read return to the pool.
void ShmTransport::collect(bool looks) {
    std::size_t num_unread = 0;
    for (Staged &slot : staged_) {
        if (!is_read(slot, looks)) {
            std::swap(staged_[num_unread++], slot);
            continue;
        }
        if (slot.reserved_for < 0) context_.return_slot(slot.slot);
        else reserved_in_use_[static_cast<std::size_t>(slot.reserved_for)] = false;
        slot.readers.clear();
        done_.push_back(std::move(slot));
    }
    staged_.resize(num_unread);
}

ShmTransport::Staged ShmTransport::make_staged(Context::Slot slot, int reserved_for) {
    Staged staged;
    if (!done_.empty()) {
        staged = std::move(done_.back());
        done_.pop_back();
    }
    staged.slot = slot;
    staged.reserved_for = reserved_for;
    staged.packed = 0;
    return staged;
}

/// For a short message, the slot of the pool that was used first, where that one alone turns out to be read: as if it
/// had been returned and taken again, for which the pool would be locked twice.
std::optional<ShmTransport::Staged> ShmTransport::take_again(std::size_t num_bytes) {
    const auto is_free = [this](std::size_t at) { return at < staged_.size() && is_read(staged_[at], false); };
    if (num_bytes > most_hot_bytes || !is_free(0) || is_free(1)) return std::nullopt;
    if (staged_[0].reserved_for >= 0 || num_bytes > piece_bytes - staged_[0].slot.used) return std::nullopt;
    std::optional<Staged> staged = std::move(staged_.front());
    staged_.erase(staged_.begin());
    staged->readers.clear();
    staged->packed = 0;
    return staged;
}

/// For a short message, what is left of the slot that was taken last for one to other peers: so what each of many gets
/// of its own takes one slot, not many.
std::optional<ShmTransport::Staged> ShmTransport::take_rest(std::span<const int> peers, std::size_t num_bytes) {
    if (staged_.empty() || num_bytes > most_hot_bytes) return std::nullopt;
    Staged &last = staged_.back();
    if (last.packed == 0 || num_bytes > piece_bytes - last.slot.used - last.packed) return std::nullopt;
    const auto reads_it = [&last](int peer) {
        return std::ranges::find(last.readers, peer, &std::pair<int, std::uint64_t>::first) != last.readers.end();
    };
    if (std::ranges::any_of(peers, reads_it)) return std::nullopt;
    std::optional<Staged> staged = std::move(last);
    staged_.pop_back();
    return staged;
}

std::optional<ShmTransport::Staged> ShmTransport::take_slot(std::span<const int> peers, std::size_t num_bytes) {
    if (auto staged = take_rest(peers, num_bytes)) return staged;
    if (auto staged = take_again(num_bytes)) return staged;
    // The counters lie in the peers' caches: they are looked at when slots run short.
    const bool looks = static_cast<std::ptrdiff_t>(staged_.size()) >= max_unread;
    collect(looks);
    const int owner = std::ranges::min(peers);
    Peer &to = peer_at(owner);
    if (looks) to.seen_released = look_at_released(to);
    // Of a slot that holds messages to several, what others have yet to read does not count: no proof knows of that.
    const auto num_unread = std::ranges::count_if(staged_, [&to, owner](const Staged &slot) {
        const auto reader = std::ranges::find(slot.readers, owner, &std::pair<int, std::uint64_t>::first);
        return reader != slot.readers.end() && (slot.packed == 0 || reader->second > to.seen_released);
    });
    const auto num_ahead = static_cast<std::ptrdiff_t>(context_.shares_cores() ? most_bytes_ahead / num_bytes : 0);
    if (num_bytes > most_hot_bytes && num_unread >= std::max(max_unread, num_ahead)) return std::nullopt;
    const auto num_pooled = std::ranges::count_if(staged_, [](const Staged &slot) { return slot.reserved_for < 0; });
    if (lane_ == Lane::collectives || num_pooled < max_slots_of_messages) {
        auto slot = context_.take_slot(num_bytes, !stores_are_slow());
        if (!slot && !looks) {
            collect(true);
            slot = context_.take_slot(num_bytes, !stores_are_slow());
        }
        if (slot) return make_staged(*slot, -1);
    }
    // The lowest peer's own slot is free at the latest when all readers of what was sent to it before have gone on: law
    // 3 proves every schedule under just that condition.
    const auto at = static_cast<std::size_t>(owner);
    if (reserved_in_use_[at]) return std::nullopt;
    const std::size_t offset = offset_ + endpoints_[static_cast<std::size_t>(rank_)].reserved_slot(lane_, owner);
    if (!reserved_committed_[at]) context_.arena().commit(offset, piece_bytes);
    reserved_committed_[at] = reserved_in_use_[at] = true;
    return make_staged({.offset = offset}, owner);
}

} // namespace hocket
