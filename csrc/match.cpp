#include "match.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace hocket {
namespace {

constexpr std::uint32_t tag_of_lane = 1; // frames tell all that matters themselves
constexpr std::uint64_t max_user_tag = 0x7fffffff;
constexpr std::size_t frames_per_advance = 4; // for each peer and direction

} // namespace

Matcher::Matcher(Transport &transport, int rank, int num_ranks)
    : transport_(transport), rank_(rank), outgoing_(static_cast<std::size_t>(num_ranks)),
      incoming_(static_cast<std::size_t>(num_ranks)) {}

void Matcher::post(std::shared_ptr<Exchange> exchange) {
    if (exchange->sends) {
        to(exchange->peer).posted.push_back(std::move(exchange));
        return;
    }
    const auto found = std::ranges::find_if(arrivals_, [&](const std::shared_ptr<Arrival> &arrival) {
        return accepts(*exchange, arrival->source, arrival->header);
    });
    if (found == arrivals_.end()) {
        receives_.push_back(std::move(exchange));
        return;
    }
    const std::shared_ptr<Arrival> arrival = *found;
    arrivals_.erase(found);
    match(exchange, arrival->source, arrival->header);
    if (arrival->header.kind == Kind::announce) return;
    arrival->receive = std::move(exchange);
    if (!arrival->complete) return; // end_payload() goes on
    std::ranges::copy(arrival->kept, arrival->receive->data);
    finish(*arrival->receive);
}

bool Matcher::advance() {
    const std::uint64_t before = num_moves_;
    const int num_ranks = static_cast<int>(incoming_.size());
    for (int peer = 0; peer < num_ranks; ++peer) receive_from(peer);
    for (int peer = 0; peer < num_ranks; ++peer) {
        if (has_to_send(peer)) send_to(peer);
    }
    return num_moves_ != before;
}

void Matcher::finish(Exchange &exchange) {
    exchange.done = true;
    ++num_done_;
    ++num_moves_;
}

void Matcher::refuse(int peer, const char *what) const {
    throw Failure::internal("rank " + std::to_string(peer) + " sent a malformed message: " + what);
}

// Matching ------------------------------------------------------------------------------------------------------------

bool Matcher::accepts(const Exchange &receive, int source, const Header &header) const {
    return receive.scope == header.scope && (receive.peer == any_source || receive.peer == source) &&
           (!receive.tag || *receive.tag == header.tag);
}

/// Both ends have to mean the same. The receiver's record holds both sides, as a rank may send to itself:
/// hocket.runtime.failures tells them apart.
void Matcher::check_alike(const Exchange &receive, int source, const Header &header) const {
    if (receive.dtype == header.dtype && receive.num_bytes == header.num_bytes) return;
    const bool same_type = receive.dtype == header.dtype; // else the sender's sizes say nothing here
    const std::size_t element = size_of(receive.dtype);
    Failure failure;
    failure.cause = Cause::mismatch;
    failure.text = "the message with tag " + std::to_string(header.tag);
    Fingerprint &call = failure.calls[rank_];
    call.sequence = 1; // any but 0, which would say that it is not known
    call.kind = -1;
    call.root = source;
    call.dtype = static_cast<std::int32_t>(receive.dtype);
    call.op = static_cast<std::int32_t>(header.dtype);
    call.count = receive.num_bytes / element;
    call.schedule = same_type ? header.num_bytes / element : call.count;
    throw failure;
}

void Matcher::match(const std::shared_ptr<Exchange> &receive, int source, const Header &header) {
    check_alike(*receive, source, header);
    receive->source = source;
    receive->found_tag = header.tag;
    ++num_moves_;
    if (header.kind == Kind::eager) {
        ++from(source).num_owed;
        return;
    }
    to(source).clearances.push_back(header.number);
    if (header.num_bytes == 0) finish(*receive);
    else from(source).expected.emplace(header.number, receive);
}

// From a peer ---------------------------------------------------------------------------------------------------------

void Matcher::receive_from(int peer) {
    Incoming &in = from(peer);
    for (std::size_t frames = 0; frames < frames_per_advance;) {
        const View view = transport_.view(peer);
        if (view.bytes.empty()) return;
        ++num_moves_;
        if (in.payload_left == 0) {
            const std::size_t size = std::min(sizeof(Header) - in.header_bytes, view.bytes.size());
            std::memcpy(in.header.data() + in.header_bytes, view.bytes.data(), size);
            transport_.release(peer, size);
            if ((in.header_bytes += size) < sizeof(Header)) continue;
            in.header_bytes = 0;
            Header header;
            std::memcpy(&header, in.header.data(), sizeof header);
            take_frame(peer, header);
        } else {
            const std::size_t size = std::min(in.payload_left, view.bytes.size());
            std::memcpy(in.target, view.bytes.data(), size);
            transport_.release(peer, size);
            in.target += size;
            if ((in.payload_left -= size) == 0) end_payload(peer);
        }
        if (in.payload_left == 0) ++frames;
    }
}

void Matcher::take_frame(int peer, const Header &header) {
    Outgoing &out = to(peer);
    Incoming &in = from(peer);
    if (header.credits > out.num_unmatched) refuse(peer, "more credits than it was owed");
    out.num_unmatched = static_cast<std::uint8_t>(out.num_unmatched - header.credits);
    switch (header.kind) {
    case Kind::eager:
        if (header.num_bytes > eager_bytes) refuse(peer, "one too long to come unasked");
        if (in.num_held == max_unmatched) refuse(peer, "more than it had credit for");
        ++in.num_held;
        return take_envelope(peer, header);
    case Kind::announce: return take_envelope(peer, header);
    case Kind::clear: {
        const auto found = out.announced.find(header.number);
        if (found == out.announced.end()) refuse(peer, "it asked for what was not announced to it");
        if (found->second->num_bytes == 0) finish(*found->second);
        else out.cleared.push_back(std::move(found->second));
        out.announced.erase(found);
        return;
    }
    case Kind::data: {
        const auto found = in.expected.find(header.number);
        if (found == in.expected.end()) refuse(peer, "bytes that nobody asked for");
        Exchange &receive = *found->second;
        if (header.num_bytes == 0 || header.num_bytes > receive.num_bytes - receive.moved) {
            refuse(peer, "more bytes than were asked for");
        }
        in.payload_left = header.num_bytes;
        in.target = receive.data + receive.moved;
        receive.moved += header.num_bytes;
        in.receive = found->second;
        if (receive.moved == receive.num_bytes) in.expected.erase(found);
        return;
    }
    case Kind::credit: return;
    }
    refuse(peer, "a frame of no known kind");
}

/// A message of the peer, or what announces it: for the first receive that accepts it, or kept until there is one.
void Matcher::take_envelope(int peer, const Header &header) {
    Incoming &in = from(peer);
    if (header.scope != Scope::internal && (header.scope != Scope::user || header.tag > max_user_tag)) {
        refuse(peer, "a tag that no program can give");
    }
    if (header.kind == Kind::announce && header.number != in.next_number++) {
        refuse(peer, "its announcements are not numbered in order");
    }
    const auto found = std::ranges::find_if(
        receives_, [&](const std::shared_ptr<Exchange> &receive) { return accepts(*receive, peer, header); });
    if (found == receives_.end()) {
        const auto arrival =
            std::make_shared<Arrival>(Arrival{.source = peer, .header = header, .kept = {}, .receive = {}});
        arrivals_.push_back(arrival);
        if (header.kind == Kind::announce) return;
        arrival->kept.resize(header.num_bytes);
        in.target = arrival->kept.data();
        in.arrival = arrival;
    } else {
        const std::shared_ptr<Exchange> receive = std::move(*found);
        receives_.erase(found);
        match(receive, peer, header);
        if (header.kind == Kind::announce) return;
        receive->moved = receive->num_bytes;
        in.target = receive->data;
        in.receive = receive;
    }
    in.payload_left = header.num_bytes;
    if (in.payload_left == 0) end_payload(peer);
}

void Matcher::end_payload(int peer) {
    Incoming &in = from(peer);
    if (in.arrival) {
        Arrival &arrival = *in.arrival;
        arrival.complete = true;
        if (arrival.receive) {
            std::ranges::copy(arrival.kept, arrival.receive->data);
            finish(*arrival.receive);
        }
        in.arrival.reset();
    } else {
        if (in.receive->moved == in.receive->num_bytes) finish(*in.receive);
        in.receive.reset();
    }
}

// To a peer -----------------------------------------------------------------------------------------------------------

bool Matcher::has_to_send(int peer) const {
    const auto at = static_cast<std::size_t>(peer);
    const Outgoing &out = outgoing_[at];
    return out.active || !out.posted.empty() || !out.clearances.empty() || !out.cleared.empty() || !out.lent.empty() ||
           incoming_[at].num_owed >= max_unmatched / 2;
}

void Matcher::send_to(int peer) {
    Outgoing &out = to(peer);
    std::erase_if(out.lent, [&](const std::shared_ptr<Exchange> &exchange) {
        if (transport_.released(peer) < exchange->ticket) return false;
        finish(*exchange);
        return true;
    });
    for (std::size_t frames = 0; frames < frames_per_advance; ++frames) {
        if (!out.active && !begin_frame(peer)) return;
        if (!push_frame(peer)) return;
        end_frame(peer);
    }
}

/// Clearances come first, as a peer waits for them; new messages and pieces of announced ones take turns.
bool Matcher::begin_frame(int peer) {
    Outgoing &out = to(peer);
    if (!out.clearances.empty()) {
        put_frame(peer, {.kind = Kind::clear, .number = out.clearances.front()}, {}, {});
        out.clearances.pop_front();
    } else if (!out.cleared.empty() && (out.turn_of_data || out.posted.empty())) {
        const std::shared_ptr<Exchange> exchange = std::move(out.cleared.front());
        out.cleared.pop_front();
        out.turn_of_data = false;
        const std::size_t size = std::min(piece_bytes, exchange->num_bytes - exchange->moved);
        put_frame(peer, {.kind = Kind::data, .number = exchange->number, .num_bytes = size}, exchange,
                  Bytes(exchange->data + exchange->moved, size));
    } else if (!out.posted.empty()) {
        const std::shared_ptr<Exchange> exchange = std::move(out.posted.front());
        out.posted.pop_front();
        out.turn_of_data = true;
        Header header{.scope = exchange->scope,
                      .dtype = exchange->dtype,
                      .tag = *exchange->tag,
                      .num_bytes = exchange->num_bytes};
        if (exchange->num_bytes <= eager_bytes && out.num_unmatched < max_unmatched) {
            ++out.num_unmatched;
            header.kind = Kind::eager;
            put_frame(peer, header, exchange, Bytes(exchange->data, exchange->num_bytes));
        } else {
            header.kind = Kind::announce;
            header.number = exchange->number = out.next_number++;
            out.announced.emplace(header.number, exchange);
            put_frame(peer, header, {}, {});
        }
    } else if (from(peer).num_owed >= max_unmatched / 2) {
        put_frame(peer, {.kind = Kind::credit}, {}, {});
    } else {
        return false;
    }
    return true;
}

void Matcher::put_frame(int peer, Header header, std::shared_ptr<Exchange> exchange, Bytes payload) {
    Outgoing &out = to(peer);
    Incoming &in = from(peer);
    header.credits = in.num_owed;
    in.num_held = static_cast<std::uint8_t>(in.num_held - in.num_owed);
    in.num_owed = 0;
    out.active = true;
    out.kind = header.kind;
    out.exchange = std::move(exchange);
    std::memcpy(out.head.data(), &header, sizeof header);
    out.head_bytes = sizeof header;
    out.head_sent = 0;
    out.payload = payload;
    out.payload_bytes = payload.size();
    if (!payload.empty() && payload.size() <= out.head.size() - sizeof header) {
        std::memcpy(out.head.data() + sizeof header, payload.data(), payload.size());
        out.head_bytes += payload.size();
        out.payload = {};
    }
}

/// False while the channel is full.
bool Matcher::push_frame(int peer) {
    Outgoing &out = to(peer);
    const std::span<const int> peers(&peer, 1);
    while (out.head_sent < out.head_bytes) {
        const Bytes rest(out.head.data() + out.head_sent, out.head_bytes - out.head_sent);
        const Published published = transport_.publish(peers, rest, tag_of_lane, false);
        if (published.num_bytes == 0) return false;
        out.head_sent += published.num_bytes;
        ++num_moves_;
    }
    while (!out.payload.empty()) {
        const Published published = transport_.publish(peers, out.payload, tag_of_lane, out.kind == Kind::data);
        if (published.num_bytes == 0) return false;
        if (published.lent) out.exchange->ticket = transport_.posted(peer);
        out.payload = out.payload.subspan(published.num_bytes);
        ++num_moves_;
    }
    return true;
}

void Matcher::end_frame(int peer) {
    Outgoing &out = to(peer);
    out.active = false;
    const std::shared_ptr<Exchange> exchange = std::move(out.exchange);
    if (!exchange) return;
    exchange->moved += out.payload_bytes;
    if (exchange->moved < exchange->num_bytes) out.cleared.push_back(exchange);
    else if (exchange->ticket != 0 && exchange->ticket > transport_.released(peer)) out.lent.push_back(exchange);
    else finish(*exchange);
}

// What is left --------------------------------------------------------------------------------------------------------

std::vector<int> Matcher::waiting_for() const {
    std::vector<bool> needed(incoming_.size());
    const int num_ranks = static_cast<int>(incoming_.size());
    for (const auto &receive : receives_) {
        if (receive->peer != any_source) needed[static_cast<std::size_t>(receive->peer)] = true;
        for (int peer = 0; receive->peer == any_source && peer < num_ranks; ++peer) {
            if (peer != rank_) needed[static_cast<std::size_t>(peer)] = true;
        }
    }
    std::vector<int> peers;
    for (int peer = 0; peer < num_ranks; ++peer) {
        const Outgoing &out = outgoing_[static_cast<std::size_t>(peer)];
        const Incoming &in = incoming_[static_cast<std::size_t>(peer)];
        if (needed[static_cast<std::size_t>(peer)] || !out.posted.empty() || !out.announced.empty() ||
            !out.cleared.empty() || !out.lent.empty() || out.exchange || in.receive || !in.expected.empty() ||
            (in.arrival && in.arrival->receive)) {
            peers.push_back(peer);
        }
    }
    return peers;
}

bool Matcher::owes_word(int peer) const {
    const Outgoing &out = outgoing_[static_cast<std::size_t>(peer)];
    return !out.clearances.empty() || (out.active && out.kind == Kind::clear);
}

std::vector<std::pair<int, std::uint64_t>> Matcher::unmatched() const {
    std::vector<std::pair<int, std::uint64_t>> messages;
    for (const auto &arrival : arrivals_) {
        if (arrival->header.scope == Scope::user) messages.emplace_back(arrival->source, arrival->header.tag);
    }
    return messages;
}

std::size_t Matcher::num_kept_bytes() const {
    std::size_t sum = 0;
    for (const auto &arrival : arrivals_) sum += arrival->kept.size();
    return sum;
}

} // namespace hocket
