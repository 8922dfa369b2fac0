// What peers may write into this rank's memory, and this one into theirs.
#include "kernels/copy.h"
#include "transport/shm/shm.h"

#include <algorithm>

namespace hocket {

void ShmTransport::grant(int peer, std::uint32_t tag, std::span<const Window> windows) {
    Peer &to = peer_at(peer);
    const Mapping &arena = *context_.arena().mapping();
    std::uint32_t num_windows = 0;
    for (const Window &window : windows) {
        if (num_windows == Endpoint::Board::max_windows) break;
        Endpoint::Board::Entry entry{.step = window.step,
                                     .order = window.order,
                                     .after_step = window.after_step,
                                     .after_order = window.after_order,
                                     .place = reinterpret_cast<std::uintptr_t>(window.place),
                                     .num_bytes = window.num_bytes,
                                     .tier = Endpoint::Tier::address};
        if (!to.rank.shares_process) {
            if (!arena.contains(window.place, window.num_bytes)) continue;
            entry.tier = Endpoint::Tier::arena;
            entry.place = static_cast<std::uint64_t>(window.place - arena.base());
        }
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

void ShmTransport::withdraw() {
    for (const Peer &peer : peers_) {
        if (peer.may_write) peer.board->call.store(0, std::memory_order_seq_cst);
    }
}

std::span<const Window> ShmTransport::granted(int peer, std::uint32_t tag, std::uint64_t num_posted) {
    Peer &from = peer_at(peer);
    const Endpoint::Board &board = *from.its_board;
    if (from.windows_of == num_posted + 1) return from.windows;
    if (board.call.load(std::memory_order_acquire) != num_posted + 1 || board.tag != tag) return {};
    from.windows.clear();
    from.windows_of = num_posted + 1;
    const Mapping &arena = *from.rank.mapping;
    for (const auto entry : // copies, as the peer may change its words behind a check
         std::span(board.entries).first(std::min<std::size_t>(board.num_windows, Endpoint::Board::max_windows))) {
        // A peer's word is never trusted beyond what this rank knows by itself.
        const std::uint64_t limit = arena.num_bytes();
        auto *place = reinterpret_cast<std::byte *>(entry.place);
        if (entry.tier == Endpoint::Tier::arena && entry.place <= limit && entry.num_bytes <= limit - entry.place) {
            place = arena.base() + entry.place;
        } else if (entry.tier != Endpoint::Tier::address || !from.rank.shares_process) {
            continue;
        }
        from.windows.push_back({entry.step, entry.order, entry.after_step, entry.after_order, place, entry.num_bytes});
    }
    return from.windows;
}

bool ShmTransport::put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
                       bool past_caches, const Making &make) {
    const auto stands = [this](int peer) {
        return peer_at(peer).its_board->call.load(std::memory_order_seq_cst) == peer_at(peer).windows_of;
    };
    if (!has_room(peers) || !std::ranges::all_of(peers, stands)) return false;
    const std::size_t part_bytes = make ? cell_bytes : bytes.size();
    // To several, memory would have to take the same bytes several times; and with string moves at hand, which fetch
    // no line, the stores of a fold bring lines as soon.
    const bool other_cache =
        places.size() == 1 && bytes.size() > most_copied && is_far_ && !(make && has_quick_string_moves());
    const bool in_one_pass = make && !past_caches && !other_cache;
    for (std::size_t begin = 0; begin < bytes.size(); begin += part_bytes) {
        const Bytes part = bytes.subspan(begin, std::min(part_bytes, bytes.size() - begin));
        if (make) make(begin, part.size(), in_one_pass ? places[0] + begin : nullptr);
        for (std::size_t i = in_one_pass ? 1 : 0; i < peers.size(); ++i) {
            std::byte *const place = places[i] + begin;
            if (past_caches) copy_past_caches(place, part);
            else if (other_cache) copy_to_other_cache(place, part);
            else copy_bytes(place, part);
        }
    }
    Endpoint::Line message{};
    message.tag = tag;
    message.num_bytes = static_cast<std::uint32_t>(bytes.size());
    for (std::size_t i = 0; i < peers.size(); ++i) {
        const Peer &to = peer_at(peers[i]);
        message.elsewhere.address = places[i];
        message.tier = Endpoint::Tier::address;
        if (!to.rank.shares_process) {
            message.tier = Endpoint::Tier::put;
            message.elsewhere.offset = static_cast<std::uint64_t>(places[i] - to.rank.mapping->base());
        }
        post_line(peers[i], message);
    }
    return true;
}

} // namespace hocket
