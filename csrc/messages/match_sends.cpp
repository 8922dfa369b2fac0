// What the machine that matches messages sends to a peer: which frame is next, and how it goes.

#include "messages/match.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace hocket {

// To a peer -----------------------------------------------------------------------------------------------------------

/// A short message that nothing is before is its frame, and that goes as a whole, or not at all: so no list and no
/// state of the channel needs to know of it.
bool Matcher::send_at_once(Exchange &send) {
    Outgoing &out = to(send.peer);
    const Bytes bytes(send.data, send.num_bytes);
    send.route = route_to(send.peer, bytes);
    if (out.has_frames() || !out.takes_heads || bytes.empty() || bytes.size() > piece_bytes) return false;
    if (is_shown(send) || !has_credit(send.peer, bytes.size())) return false;
    const Header header = header_of(send, Kind::eager);
    const Bytes head = std::as_bytes(std::span(&header, 1));
    if (transport_.post(std::span(&send.peer, 1), bytes, tag_, {.head = head}).num_bytes == 0) return false;
    out.num_eager += units_of(bytes.size());
    send.ordinal = ++out.num_messages;
    finish(send);
    return true;
}

/// The facts that do not depend on memory. Both ends hold the message, and slots between them hold as much.
Transfer Matcher::transfer_of(std::size_t num_bytes) const {
    return {.num_bytes = num_bytes,
            .here = 4 * num_bytes,
            .of_all_ranks = 4 * num_bytes,
            .only_copied = true,
            .one_way = true};
}

Route Matcher::route_to(int peer, Bytes message) {
    if (message.size() <= short_bytes) return {}; // which is copied, wherever it lies, and waits for nobody
    return route_of(transfer_of(message.size()), message, std::span(&peer, 1), transport_, profile_);
}

Stores Matcher::stores_from(int peer, std::size_t num_bytes) const {
    if (num_bytes <= most_copied) return Stores::near;
    return stores_of(transfer_of(num_bytes), true, transport_.reach(std::span(&peer, 1)), profile_);
}

/// Whether the peer may keep a message that nobody has asked for. What that has asked for lies in its cache: it
/// is looked at when what was seen of it last is not enough.
bool Matcher::has_credit(int peer, std::size_t num_bytes) {
    Outgoing &out = to(peer);
    const auto has_room = [&] { return may_be_kept(num_bytes, out.num_eager - out.num_matched); };
    if (has_room()) return true;
    out.num_matched = transport_.told(peer) % (std::uint64_t{1} << bits_of_matched);
    if (out.num_matched > out.num_eager) refuse(peer, "a request for more than was sent");
    return has_room();
}

/// Whether its receiver copies a message from its place. Until then its sender waits in any case.
bool Matcher::is_shown(const Exchange &send) {
    return send.route.otherwise == Way::lend || send.route.otherwise == Way::fetch;
}

/// Whether a message goes before it is asked for. If it is shown to a receiver that does not wait for it, that has to
/// copy it twice.
bool Matcher::goes_unasked(const Exchange &send) {
    if (send.num_bytes > most_awaited_bytes) return false;
    if (send.num_bytes <= eager_bytes) {
        if (is_shown(send)) return false;
    } else {
        if (!profile_.shares_cores) return false;
        // Which of the two is ahead their difference tells, though both begin again at 0.
        const auto num_awaited = static_cast<std::uint16_t>(transport_.told(send.peer) >> bits_of_matched);
        if (static_cast<std::int16_t>(num_awaited - to(send.peer).num_long) < 0) return false;
    }
    return has_credit(send.peer, send.num_bytes);
}

void Matcher::send_to(int peer) {
    Outgoing &out = to(peer);
    std::erase_if(out.lent, [&](const std::shared_ptr<Exchange> &exchange) {
        if (transport_.released(peer) < exchange->ticket) return false;
        finish(*exchange);
        return true;
    });
    for (std::size_t frames = 0; frames < frames_per_advance; ++frames) {
        if (!out.is_in_frame() && !begin_frame(peer)) return;
        if (!push_frame(peer)) return;
        end_frame(peer);
    }
}

/// Clearances come first, as a peer waits for them; new messages and pieces of announced ones take turns.
bool Matcher::begin_frame(int peer) {
    Outgoing &out = to(peer);
    if (!out.clearances.empty()) {
        const Clearance next = std::move(out.clearances.front());
        out.clearances.pop_front();
        put_frame(peer, {.kind = Kind::clear, .number = next.number}, next.complete, {});
    } else if (!out.cleared.empty() && (out.turn_of_data || out.posted.empty())) {
        const std::shared_ptr<Exchange> exchange = std::move(out.cleared.front());
        out.cleared.pop_front();
        out.turn_of_data = false;
        const std::size_t most = exchange->route.whole ? bytes_at_once : piece_bytes;
        const std::size_t size = std::min(most, exchange->num_bytes - exchange->moved);
        put_frame(peer, {.kind = Kind::data, .number = exchange->number, .num_bytes = size}, exchange,
                  Bytes(exchange->data + exchange->moved, size));
    } else if (!out.posted.empty()) {
        out.turn_of_data = true;
        begin_message(peer, take(out.posted, out.posted.begin()));
    } else {
        return false;
    }
    return true;
}

void Matcher::begin_message(int peer, std::shared_ptr<Exchange> exchange) {
    Outgoing &out = to(peer);
    const Bytes bytes(exchange->data, exchange->num_bytes);
    if (bytes.size() > eager_bytes) ++out.num_long;
    if (goes_unasked(*exchange)) {
        out.num_eager += units_of(bytes.size());
        const Header header = header_of(*exchange, Kind::eager);
        put_frame(peer, header, std::move(exchange), bytes);
    } else {
        Header header = header_of(*exchange, Kind::announce);
        header.number = exchange->number = out.next_number++;
        out.announced.emplace(header.number, std::move(exchange));
        put_frame(peer, header, {}, {});
    }
}

void Matcher::put_frame(int peer, const Header &header, std::shared_ptr<Exchange> exchange, Bytes payload) {
    Outgoing &out = to(peer);
    out.exchange = std::move(exchange);
    out.header = header;
    out.head = std::as_bytes(std::span(&out.header, 1));
    out.payload = payload;
}

/// False while the channel is full.
bool Matcher::push_frame(int peer) {
    Outgoing &out = to(peer);
    const std::span<const int> peers(&peer, 1);
    const bool goes_ahead = out.payload.empty() || !out.takes_heads;
    while (goes_ahead && !out.head.empty()) {
        const Taken taken = transport_.post(peers, out.head, tag_);
        if (taken.num_bytes == 0) return false;
        out.head = out.head.subspan(taken.num_bytes);
        ++num_moves_;
    }
    while (!out.payload.empty()) {
        const Way way = out.exchange->route.otherwise;
        const bool may_wait = way == Way::stage && is_answered(peer);
        const Taken taken =
            transport_.post(peers, out.payload, tag_, {.way = way, .head = out.head, .may_wait = may_wait});
        if (taken.num_bytes == 0) return false;
        out.head = {};
        if (taken.lent) out.exchange->ticket = transport_.posted(peer);
        out.payload = out.payload.subspan(taken.num_bytes);
        ++num_moves_;
    }
    return true;
}

/// Whether the receiver of an announced message sends one to this rank as well: then a piece may wait for a slot that
/// comes back, as in collectives (PieceRun::is_answered). What nobody has asked for waits for nobody: ranks that share
/// cores, which send more of that, never await a slot.
bool Matcher::is_answered(int peer) {
    return to(peer).exchange->num_bytes > eager_bytes && !from(peer).expected.empty();
}

void Matcher::end_frame(int peer) {
    Outgoing &out = to(peer);
    const std::shared_ptr<Exchange> exchange = std::move(out.exchange);
    if (!exchange) return;
    exchange->moved += out.header.num_bytes;
    if (exchange->moved < exchange->num_bytes) out.cleared.push_back(exchange);
    else if (exchange->ticket != 0 && exchange->ticket > transport_.released(peer)) out.lent.push_back(exchange);
    else finish(*exchange);
}

} // namespace hocket
