#include "messages/match.h"

#include "kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace hocket {
Matcher::Matcher(Transport &transport, const Profile &profile, int rank, int num_ranks, std::uint8_t epoch)
    : transport_(transport), profile_(profile), rank_(rank), tag_(Fingerprint::tag(1, epoch)),
      outgoing_(static_cast<std::size_t>(num_ranks)), incoming_(static_cast<std::size_t>(num_ranks)) {
    for (int peer = 0; peer < num_ranks; ++peer) {
        const Reach reach = transport_.reach(std::span(&peer, 1));
        to(peer).takes_heads = reach.whole_pieces && reach.head_bytes >= sizeof(Header);
    }
}

void Matcher::post(std::shared_ptr<Exchange> exchange) {
    if (exchange->sends) {
        if (send_at_once(*exchange)) return;
        Outgoing &out = to(exchange->peer);
        exchange->ordinal = ++out.num_messages;
        return append(out.posted, std::move(exchange));
    }
    const auto found = std::ranges::find_if(arrivals_, [&](const std::shared_ptr<Arrival> &arrival) {
        return accepts(*exchange, arrival->source, arrival->header);
    });
    if (found == arrivals_.end()) {
        if (exchange->peer != any_source) count_awaited(exchange->peer, *exchange);
        append(receives_, std::move(exchange));
        return;
    }
    const std::shared_ptr<Arrival> arrival = *found;
    arrivals_.erase(found);
    match(exchange, arrival->source, arrival->header, arrival->ordinal);
    if (arrival->header.kind == Kind::announce) return;
    arrival->receive = std::move(exchange);
    if (from(arrival->source).arrival == arrival) return; // its bytes still come: end_payload() goes on
    copy_bytes(arrival->receive->data, arrival->kept);
    finish(*arrival->receive);
}

bool Matcher::advance(bool keeps) {
    const std::uint64_t before = num_moves_;
    const int num_ranks = static_cast<int>(incoming_.size());
    for (int peer = 0; peer < num_ranks; ++peer) receive_from(peer, frames_per_advance, keeps);
    for (int peer = 0; peer < num_ranks; ++peer) {
        if (to(peer).has_frames() || !to(peer).lent.empty()) send_to(peer);
    }
    transport_.flush();
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
    throw Failure::internal("member " + std::to_string(peer) + " sent a malformed message: " + what);
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
    Failure failure(Cause::mismatch, -1, "the message with tag " + std::to_string(header.tag));
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

void Matcher::match(const std::shared_ptr<Exchange> &receive, int source, const Header &header, std::uint64_t ordinal) {
    check_alike(*receive, source, header);
    receive->ordinal = ordinal;
    receive->source = source;
    receive->found_tag = header.tag;
    receive->number = header.number;
    receive->stores = stores_from(source, header.num_bytes);
    count_awaited(source, *receive);
    ++num_moves_;
    if (header.kind == Kind::eager) return count_matched(source, header.num_bytes);
    const bool is_empty = header.num_bytes == 0;
    to(source).clearances.push_back({header.number, is_empty ? receive : nullptr});
    if (!is_empty) from(source).expected.emplace(header.number, receive);
}

bool Matcher::withdraw(Exchange &receive) {
    const auto is_it = [&receive](const std::shared_ptr<Exchange> &posted) { return posted.get() == &receive; };
    const auto found = std::ranges::find_if(receives_, is_it);
    if (found == receives_.end()) return false;
    take(receives_, found);
    finish(receive);
    return true;
}

// From a peer ---------------------------------------------------------------------------------------------------------

/// Whether these begin with a message that would have to be kept.
bool Matcher::is_unasked(int peer, Bytes bytes) const {
    Header header;
    if (incoming_[static_cast<std::size_t>(peer)].header_bytes > 0 || bytes.size() < sizeof header) return false;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto asks = [&](const std::shared_ptr<Exchange> &receive) { return accepts(*receive, peer, header); };
    return header.kind == Kind::eager && std::ranges::none_of(receives_, asks);
}

void Matcher::receive_from(int peer, std::size_t max_frames, bool keeps) {
    Incoming &in = from(peer);
    std::size_t num_bytes = 0;
    for (std::size_t frames = 0; frames < max_frames && num_bytes < bytes_at_once;) {
        const View view = transport_.view(peer);
        if (view.bytes.empty()) return;
        if (view.tag != tag_) refuse(peer, "one that is left over from an earlier communicator");
        std::size_t size = 0;
        if (in.payload_left == 0) {
            if (view.attached) refuse(peer, "a header that it did not send in place");
            if (!keeps && is_unasked(peer, view.bytes)) return;
            size = take_header(peer, view.bytes);
        }
        const std::size_t of_payload = std::min(in.payload_left, view.bytes.size() - size);
        if (of_payload > 0) {
            if (!write_payload(peer, view, view.bytes.subspan(size, of_payload))) return;
            in.target += of_payload;
            num_bytes += of_payload;
            if ((in.payload_left -= of_payload) == 0) end_payload(peer);
        }
        transport_.release(peer, size + of_payload);
        ++num_moves_;
        if (in.payload_left == 0 && in.header_bytes == 0) ++frames;
    }
}

bool Matcher::may_receive_at_once(const Exchange &receive) const {
    if (receive.peer == any_source || !receives_.empty()) return false;
    const Incoming &in = incoming_[static_cast<std::size_t>(receive.peer)];
    return in.payload_left == 0 && in.header_bytes == 0 &&
           std::ranges::none_of(arrivals_, [&](const std::shared_ptr<Arrival> &arrival) {
               return accepts(receive, arrival->source, arrival->header);
           });
}

bool Matcher::receive_at_once(Exchange &receive) {
    const int peer = receive.peer;
    Incoming &in = from(peer);
    const View view = transport_.view(peer);
    Header header;
    if (view.attached || view.tag != tag_ || view.bytes.size() < sizeof header) return false;
    std::memcpy(&header, view.bytes.data(), sizeof header);
    // All else is for take_frame() to say.
    if (header.kind != Kind::eager || header.num_bytes == 0 || header.num_bytes > eager_bytes ||
        header.num_bytes != receive.num_bytes || header.dtype != receive.dtype || !accepts(receive, peer, header) ||
        (header.scope == Scope::user && header.tag > max_user_tag) ||
        !may_be_kept(header.num_bytes, in.num_eager - in.num_matched)) {
        return false;
    }
    in.num_eager += units_of(header.num_bytes);
    count_matched(peer, header.num_bytes);
    receive.ordinal = ++in.num_messages;
    receive.source = peer;
    receive.found_tag = header.tag;
    receive.stores = stores_from(peer, receive.num_bytes);
    receive.moved = in.payload_left = receive.num_bytes;
    in.target = receive.data;
    std::size_t num_before = sizeof header;
    Bytes shown = view.bytes.subspan(sizeof header); // in this line, and then in the next one or elsewhere
    if (shown.empty()) shown = view.behind;
    for (;;) {
        const Bytes payload = shown.first(std::min(shown.size(), in.payload_left));
        copy_bytes(receive.stores, in.target, payload);
        in.target += payload.size();
        in.payload_left -= payload.size();
        transport_.release(peer, std::exchange(num_before, 0) + payload.size());
        if (in.payload_left == 0) {
            finish(receive);
            return true;
        }
        const View rest = transport_.view(peer);
        if (rest.bytes.empty() || rest.attached || rest.tag != tag_) break;
        shown = rest.bytes;
    }
    in.receive = std::shared_ptr<Exchange>(std::shared_ptr<void>(), &receive);
    receive_on(receive);
    return true;
}

void Matcher::count_matched(int peer, std::size_t num_bytes) {
    from(peer).num_matched += units_of(num_bytes);
    tell(peer);
}

/// Once for each receive of a long message: as soon as it is clear whom it takes from.
void Matcher::count_awaited(int peer, Exchange &receive) {
    if (receive.num_bytes <= eager_bytes || std::exchange(receive.is_counted, true)) return;
    ++from(peer).num_awaited;
    tell(peer);
}

/// Tells the peer, which else would announce what it may send at once.
void Matcher::tell(int peer) {
    const Incoming &in = from(peer);
    transport_.tell(peer, std::uint64_t{in.num_awaited} << bits_of_matched | in.num_matched);
}

/// How many of the bytes belong to it; once all have come it is looked at.
std::size_t Matcher::take_header(int peer, Bytes bytes) {
    Incoming &in = from(peer);
    Header header;
    if (in.header_bytes == 0 && bytes.size() >= sizeof header) { // as most come
        std::memcpy(&header, bytes.data(), sizeof header);
        take_frame(peer, header);
        return sizeof header;
    }
    const std::size_t size = std::min(sizeof header - in.header_bytes, bytes.size());
    std::memcpy(in.header.data() + in.header_bytes, bytes.data(), size);
    if ((in.header_bytes += size) < sizeof header) return size;
    in.header_bytes = 0;
    std::memcpy(&header, in.header.data(), sizeof header);
    take_frame(peer, header);
    return size;
}

/// False while the view's bytes, which begin with these where they are not here, cannot be had.
bool Matcher::write_payload(int peer, const View &view, Bytes bytes) {
    const Incoming &in = from(peer);
    if (view.attached) return transport_.copy(peer, in.target, bytes.size());
    copy_bytes(in.receive ? in.receive->stores : Stores::near, in.target, bytes);
    return true;
}

void Matcher::take_frame(int peer, const Header &header) {
    Outgoing &out = to(peer);
    Incoming &in = from(peer);
    switch (header.kind) {
    case Kind::eager:
        if (header.num_bytes > most_awaited_bytes) refuse(peer, "one that is too long to come without a request");
        if (!may_be_kept(header.num_bytes, in.num_eager - in.num_matched)) refuse(peer, "more than its credit allows");
        in.num_eager += units_of(header.num_bytes);
        return take_envelope(peer, header);
    case Kind::announce: return take_envelope(peer, header);
    case Kind::clear: {
        const auto found = out.announced.find(header.number);
        if (found == out.announced.end()) refuse(peer, "a request for a message that was not announced");
        if (found->second->num_bytes == 0) finish(*found->second);
        else out.cleared.push_back(std::move(found->second));
        out.announced.erase(found);
        return;
    }
    case Kind::data: {
        const auto found = in.expected.find(header.number);
        if (found == in.expected.end()) refuse(peer, "bytes that were not requested");
        Exchange &receive = *found->second;
        if (header.num_bytes == 0 || header.num_bytes > receive.num_bytes - receive.moved) {
            refuse(peer, "more bytes than were requested");
        }
        in.payload_left = header.num_bytes;
        in.target = receive.data + receive.moved;
        receive.moved += header.num_bytes;
        in.receive = found->second;
        if (receive.moved == receive.num_bytes) in.expected.erase(found);
        return;
    }
    }
    refuse(peer, "a frame of an unknown kind");
}

/// A message of the peer, or what announces it: for the first receive that accepts it, or kept until there is one.
void Matcher::take_envelope(int peer, const Header &header) {
    Incoming &in = from(peer);
    if (header.scope > Scope::objects || (header.scope == Scope::user && header.tag > max_user_tag)) {
        refuse(peer, "a tag outside of the allowed range");
    }
    if (static_cast<std::size_t>(header.dtype) >= num_dtypes) refuse(peer, "elements of an unknown type");
    if (header.kind == Kind::announce && header.number != in.next_number++) {
        refuse(peer, "announcements that are not numbered in order");
    }
    const std::uint64_t ordinal = ++in.num_messages;
    const auto found = std::ranges::find_if(
        receives_, [&](const std::shared_ptr<Exchange> &receive) { return accepts(*receive, peer, header); });
    if (found == receives_.end()) {
        const auto arrival = std::make_shared<Arrival>(
            Arrival{.source = peer, .header = header, .ordinal = ordinal, .memory = {}, .receive = {}});
        arrivals_.push_back(arrival);
        if (header.kind == Kind::announce) return;
        arrival->memory = std::make_unique_for_overwrite<std::byte[]>(header.num_bytes);
        arrival->kept = {arrival->memory.get(), header.num_bytes};
        in.target = arrival->kept.data();
        in.arrival = arrival;
    } else {
        const std::shared_ptr<Exchange> receive = take(receives_, found);
        match(receive, peer, header, ordinal);
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
        if (const auto &receive = in.arrival->receive) {
            copy_bytes(receive->data, in.arrival->kept);
            finish(*receive);
        }
        in.arrival.reset();
    } else {
        if (in.receive->moved == in.receive->num_bytes) finish(*in.receive);
        in.receive.reset();
    }
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
        if (needed[static_cast<std::size_t>(peer)] || out.has_frames() || !out.announced.empty() || !out.lent.empty() ||
            in.receive || !in.expected.empty() || (in.arrival && in.arrival->receive)) {
            peers.push_back(peer);
        }
    }
    return peers;
}

std::vector<Unmatched> Matcher::unmatched() const {
    std::vector<Unmatched> messages;
    for (const auto &arrival : arrivals_) {
        const Header &header = arrival->header;
        const bool is_of_program = header.scope != Scope::internal && header.tag <= max_user_tag;
        if (is_of_program) messages.push_back({arrival->source, header.scope, header.tag});
    }
    return messages;
}

std::size_t Matcher::num_kept_bytes() const {
    std::size_t sum = 0;
    for (const auto &arrival : arrivals_) sum += arrival->kept.size();
    return sum;
}

} // namespace hocket
