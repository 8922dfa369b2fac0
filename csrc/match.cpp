#include "match.h"

#include "copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace hocket {
namespace {

constexpr std::uint32_t tag_of_lane = 1; // frames tell all that matters themselves
constexpr std::uint64_t max_user_tag = 0x7fffffff;
constexpr std::size_t frames_per_advance = 4; // for each peer and direction
/// Longer than others, as each takes a system call, and no slot.
constexpr std::size_t attached_piece_bytes = std::size_t{512} << 10;

} // namespace

Matcher::Matcher(Transport &transport, int rank, int num_ranks)
    : transport_(transport), rank_(rank), outgoing_(static_cast<std::size_t>(num_ranks)),
      incoming_(static_cast<std::size_t>(num_ranks)) {}

void Matcher::post(std::shared_ptr<Exchange> exchange) {
    if (exchange->sends) {
        Outgoing &out = to(exchange->peer);
        exchange->ordinal = ++out.num_messages;
        append(out.posted, std::move(exchange));
        return;
    }
    const auto found = std::ranges::find_if(arrivals_, [&](const std::shared_ptr<Arrival> &arrival) {
        return accepts(*exchange, arrival->source, arrival->header);
    });
    if (found == arrivals_.end()) {
        append(receives_, std::move(exchange));
        return;
    }
    const std::shared_ptr<Arrival> arrival = *found;
    arrivals_.erase(found);
    match(exchange, arrival->source, arrival->header, arrival->ordinal, arrival->place);
    if (arrival->header.kind == Kind::announce) return;
    arrival->receive = std::move(exchange);
    if (!arrival->complete) return; // end_payload() goes on
    copy_bytes(arrival->receive->data, arrival->kept);
    finish(*arrival->receive);
}

bool Matcher::advance() {
    const std::uint64_t before = num_moves_;
    const int num_ranks = static_cast<int>(incoming_.size());
    for (int peer = 0; peer < num_ranks; ++peer) {
        if (transport_.may_show(peer)) receive_from(peer);
        fetch_from(peer);
    }
    for (int peer = 0; peer < num_ranks; ++peer) {
        if (has_to_send(peer)) send_to(peer);
    }
    transport_.ring();
    return num_moves_ != before;
}

void Matcher::finish(Exchange &exchange) {
    exchange.done = true;
    ++num_done_;
    ++num_moves_;
}

void Matcher::append(Exchanges &list, std::shared_ptr<Exchange> exchange) {
    if (spare_.empty()) return list.push_back(std::move(exchange));
    spare_.front() = std::move(exchange);
    list.splice(list.end(), spare_, spare_.begin());
}

std::shared_ptr<Exchange> Matcher::take(Exchanges &list, Exchanges::iterator at) {
    std::shared_ptr<Exchange> exchange = std::move(*at);
    spare_.splice(spare_.begin(), list, at);
    return exchange;
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

void Matcher::match(const std::shared_ptr<Exchange> &receive, int source, const Header &header, std::uint64_t ordinal,
                    std::uint64_t place) {
    check_alike(*receive, source, header);
    receive->ordinal = ordinal;
    receive->source = source;
    receive->found_tag = header.tag;
    receive->number = header.number;
    ++num_moves_;
    if (header.kind == Kind::eager) {
        from(source).num_owed += units_of(header.num_bytes);
        return;
    }
    if (place != 0) {
        receive->target = transport_.offered(source, place, header.num_bytes);
        if (!receive->target) refuse(source, "an offer outside of its memory");
        from(source).fetched.push_back(receive);
        return;
    }
    std::uint64_t offer = 0;
    if (header.num_bytes >= least_offered_bytes) offer = transport_.offer(source, {receive->data, receive->num_bytes});
    receive->offered = offer != 0;
    to(source).clearances.emplace_back(header.number, offer);
    if (header.num_bytes == 0) finish(*receive);
    else from(source).expected.emplace(header.number, receive);
}

// From a peer ---------------------------------------------------------------------------------------------------------

void Matcher::receive_from(int peer) {
    Incoming &in = from(peer);
    for (std::size_t frames = 0; frames < frames_per_advance;) {
        const View view = transport_.view(peer);
        if (view.bytes.empty()) return;
        std::size_t size = 0;
        if (in.payload_left == 0) {
            if (view.attached) refuse(peer, "a header that is not here");
            size = take_header(peer, view.bytes);
        }
        const std::size_t of_payload = std::min(in.payload_left, view.bytes.size() - size);
        if (of_payload > 0) {
            if (!write_payload(peer, view, view.bytes.subspan(size, of_payload))) return;
            in.target += of_payload;
            if ((in.payload_left -= of_payload) == 0) end_payload(peer);
        }
        transport_.release(peer, size + of_payload);
        ++num_moves_;
        if (in.payload_left == 0 && in.header_bytes == 0) ++frames;
    }
}

/// How many of the bytes belong to it; once all have come it is looked at.
std::size_t Matcher::take_header(int peer, Bytes bytes) {
    Incoming &in = from(peer);
    const std::size_t size = std::min(sizeof(Header) - in.header_bytes, bytes.size());
    std::memcpy(in.header.data() + in.header_bytes, bytes.data(), size);
    if ((in.header_bytes += size) < sizeof(Header)) return size;
    in.header_bytes = 0;
    Header header;
    std::memcpy(&header, in.header.data(), sizeof header);
    take_frame(peer, header);
    return size;
}

/// False while the view's bytes, which begin with these where they are not here, cannot be had.
bool Matcher::write_payload(int peer, const View &view, Bytes bytes) {
    const Incoming &in = from(peer);
    if (view.attached) return transport_.copy(peer, in.target, bytes.size());
    if (bytes.data() == in.target) return true; // the sender has put it there
    if (in.receive && in.receive->num_bytes >= least_offered_bytes) copy_past_caches(in.target, bytes);
    else copy_bytes(in.target, bytes);
    return true;
}

void Matcher::take_frame(int peer, const Header &header) {
    Outgoing &out = to(peer);
    Incoming &in = from(peer);
    if (header.credits > out.num_unmatched) refuse(peer, "more credits than it was owed");
    out.num_unmatched -= header.credits;
    switch (header.kind) {
    case Kind::eager:
        if (header.num_bytes > eager_bytes) refuse(peer, "one too long to come unasked");
        if (in.num_held + units_of(header.num_bytes) > max_unmatched) refuse(peer, "more than it had credit for");
        in.num_held += units_of(header.num_bytes);
        return take_envelope(peer, header);
    case Kind::announce: return take_envelope(peer, header);
    case Kind::clear: {
        const auto found = out.announced.find(header.number);
        if (found == out.announced.end()) refuse(peer, "it asked for what was not announced to it");
        Exchange &send = *found->second;
        if (header.tag != 0) {
            send.target = transport_.offered(peer, header.tag, send.num_bytes);
            if (!send.target) refuse(peer, "an offer outside of its memory");
            const bool is_cached = send.num_bytes <= most_cached_bytes && transport_.stores_are_slow();
            if (send.target->attached && is_cached) send.target.reset();
        }
        if (send.offered) transport_.take_back(peer, send.data);
        if (send.offered || send.num_bytes == 0) finish(send);
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
    case Kind::offer: in.place = header.tag; return;
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
    const std::uint64_t ordinal = ++in.num_messages;
    const std::uint64_t place = header.kind == Kind::announce ? std::exchange(in.place, 0) : 0;
    const auto found = std::ranges::find_if(
        receives_, [&](const std::shared_ptr<Exchange> &receive) { return accepts(*receive, peer, header); });
    if (found == receives_.end()) {
        const auto arrival = std::make_shared<Arrival>(
            Arrival{.source = peer, .header = header, .ordinal = ordinal, .place = place, .kept = {}, .receive = {}});
        arrivals_.push_back(arrival);
        if (header.kind == Kind::announce) return;
        arrival->kept.resize(header.num_bytes);
        in.target = arrival->kept.data();
        in.arrival = arrival;
    } else {
        const std::shared_ptr<Exchange> receive = take(receives_, found);
        match(receive, peer, header, ordinal, place);
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
            copy_bytes(arrival.receive->data, arrival.kept);
            finish(*arrival.receive);
        }
        in.arrival.reset();
    } else {
        if (in.receive->moved == in.receive->num_bytes) {
            if (in.receive->offered) transport_.take_back(peer, in.receive->data);
            finish(*in.receive);
        }
        in.receive.reset();
    }
}

/// Copies a part of what the peer lets this rank read; when that is all, the peer is told.
void Matcher::fetch_from(int peer) {
    Incoming &in = from(peer);
    if (in.fetched.empty()) return;
    Exchange &receive = *in.fetched.front();
    const std::size_t size = std::min(attached_piece_bytes, receive.num_bytes - receive.moved);
    const Target source{receive.target->place + receive.moved, receive.target->attached};
    if (!transport_.fetch(peer, source, {receive.data + receive.moved, size})) return;
    ++num_moves_;
    if ((receive.moved += size) < receive.num_bytes) return;
    to(peer).clearances.emplace_back(receive.number, 0);
    finish(receive);
    in.fetched.pop_front();
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

/// Where the receiver had better copy a message alone, from where it lies, tells it of that place before it announces
/// the message: then each end waits for the other once only, and the cores that they share with other ranks have one
/// copy to make instead of two.
bool Matcher::offer(int peer, Exchange &send) {
    const bool may_be_fetched =
        send.num_bytes >= least_fetched_bytes && send.num_bytes < least_offered_bytes && transport_.shares_cores();
    if (!may_be_fetched || send.offered || transport_.copies_faster(send.num_bytes, SIZE_MAX)) return false;
    const std::uint64_t word = transport_.offer(peer, {send.data, send.num_bytes});
    send.offered = word != 0;
    if (send.offered) put_frame(peer, {.kind = Kind::offer, .tag = word}, {}, {});
    return send.offered;
}

/// Clearances come first, as a peer waits for them; new messages and pieces of announced ones take turns.
bool Matcher::begin_frame(int peer) {
    Outgoing &out = to(peer);
    if (!out.clearances.empty()) {
        const auto [number, offer] = out.clearances.front();
        put_frame(peer, {.kind = Kind::clear, .number = number, .tag = offer}, {}, {});
        out.clearances.pop_front();
    } else if (!out.cleared.empty() && (out.turn_of_data || out.posted.empty())) {
        const std::shared_ptr<Exchange> exchange = std::move(out.cleared.front());
        out.cleared.pop_front();
        out.turn_of_data = false;
        const std::size_t piece = exchange->target && exchange->target->attached ? attached_piece_bytes : piece_bytes;
        const std::size_t size = std::min(piece, exchange->num_bytes - exchange->moved);
        put_frame(peer, {.kind = Kind::data, .number = exchange->number, .num_bytes = size}, exchange,
                  Bytes(exchange->data + exchange->moved, size));
        out.target = exchange->target;
        if (out.target) out.target->place += exchange->moved;
        out.puts = exchange->moved / piece % 2 == 1; // each side moves every second piece
    } else if (!out.posted.empty() && offer(peer, *out.posted.front())) {
        return true;
    } else if (!out.posted.empty()) {
        const std::shared_ptr<Exchange> exchange = take(out.posted, out.posted.begin());
        out.turn_of_data = true;
        Header header{.scope = exchange->scope,
                      .dtype = exchange->dtype,
                      .tag = *exchange->tag,
                      .num_bytes = exchange->num_bytes};
        if (exchange->num_bytes <= eager_bytes && out.num_unmatched + units_of(exchange->num_bytes) <= max_unmatched) {
            out.num_unmatched += units_of(exchange->num_bytes);
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
    header.credits = static_cast<std::uint8_t>(in.num_owed);
    in.num_held -= in.num_owed;
    in.num_owed = 0;
    out.active = true;
    out.kind = header.kind;
    out.exchange = std::move(exchange);
    const auto *const first = reinterpret_cast<const std::byte *>(&header);
    auto end = std::copy_n(first, sizeof header, out.frame.begin());
    out.payload = payload;
    out.target.reset();
    out.payload_bytes = payload.size();
    if (payload.size() <= joined_bytes) {
        end = std::ranges::copy(payload, end).out;
        out.payload = {};
    }
    out.head = Bytes(out.frame.begin(), end);
}

/// False while the channel is full.
bool Matcher::push_frame(int peer) {
    Outgoing &out = to(peer);
    const std::span<const int> peers(&peer, 1);
    const bool goes_ahead = out.payload.empty() || out.target || out.head.size() > transport_.max_head_bytes();
    while (goes_ahead && !out.head.empty()) {
        const Published published = transport_.publish(peers, out.head, tag_of_lane, false);
        if (published.num_bytes == 0) return false;
        out.head = out.head.subspan(published.num_bytes);
        ++num_moves_;
    }
    while (!out.payload.empty()) {
        if (!push_payload(peer)) return false;
        ++num_moves_;
    }
    return true;
}

bool Matcher::push_payload(int peer) {
    Outgoing &out = to(peer);
    const std::span<const int> peers(&peer, 1);
    if (out.target && out.puts) {
        if (!transport_.put(peers, {&*out.target, 1}, out.payload, tag_of_lane, true)) return false;
        out.payload = {};
    } else if (out.target && out.target->attached) {
        if (!transport_.lend(peer, out.payload, tag_of_lane)) return false;
        out.exchange->ticket = transport_.posted(peer);
        out.payload = {};
    } else {
        const std::size_t of_all = out.exchange->num_bytes;
        const bool may_lend = of_all > unit_bytes && (of_all >= least_offered_bytes ||
                                                      !transport_.copies_faster(out.payload.size(), 4 * of_all));
        const Published published = out.head.empty()
                                        ? transport_.publish(peers, out.payload, tag_of_lane, may_lend)
                                        : transport_.publish_behind(out.head, peer, out.payload, tag_of_lane, may_lend);
        if (published.num_bytes == 0) return false;
        out.head = {};
        if (published.lent) out.exchange->ticket = transport_.posted(peer);
        out.payload = out.payload.subspan(published.num_bytes);
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
            !in.fetched.empty() || (in.arrival && in.arrival->receive)) {
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
