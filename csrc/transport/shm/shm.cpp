#include "transport/shm/shm.h"

#include "kernels/copy.h"
#include "transport/shm/attach.h"

#include <algorithm>
#include <utility>

namespace hocket {

ShmTransport::ShmTransport(Context &context, std::vector<int> members, int rank, std::span<const std::size_t> offsets,
                           Lane lane)
    : context_(context), members_(std::move(members)), rank_(rank), lane_(lane),
      ring_size_(ring_size_of(lane, members_.size())), offset_(offsets[static_cast<std::size_t>(rank)]),
      peers_(members_.size()), reserved_committed_(members_.size()),
      part_bytes_(piece_bytes / std::max<std::size_t>(members_.size() - 1, 1) / cache_line * cache_line) {
    const int size = static_cast<int>(members_.size());
    const Endpoint mine(context.arena().mapping()->base() + offset_, size);
    for (int i = 0; i < size; ++i) {
        const int member = members_[static_cast<std::size_t>(i)];
        const std::size_t offset = offsets[static_cast<std::size_t>(i)];
        Peer &peer = peer_at(i);
        peer.rank = context.at(member);
        const Mapping &mapping = *peer.rank.mapping;
        if (!mapping.has<ControlPage>(offset, Endpoint::reserved_bytes(size)))
            throw Failure::internal("rank " + std::to_string(member) + " shows an endpoint outside of its arena");
        const Endpoint theirs(mapping.base() + offset, size);
        peer.endpoint = theirs;
        peer.outgoing = mine.ring(lane_, i);
        peer.outgoing_released = &theirs.released(lane_, rank_);
        peer.incoming = theirs.ring(lane_, rank_);
        peer.incoming_released = &mine.released(lane_, i);
        peer.board = &mine.board(i);
        peer.its_board = &theirs.board(rank_);
        is_far_ = is_far_ || peer.rank.is_far;
    }
}

std::vector<std::size_t> ShmTransport::leave() {
    collect(true);
    for (Peer &peer : peers_) peer.handed.clear();
    end_sharing_out();
    std::vector<std::size_t> unread = std::move(shared_out_); // peers may still read them, or write
    for (const Lease &lease : leases_) {
        if (lease.reserved_for < 0) unread.push_back(lease.slot.offset);
    }
    for (int peer = 0; peer < size(); ++peer) {
        if (!reserved_committed_[static_cast<std::size_t>(peer)] || has_lease_of(peer)) continue;
        context_.arena().decommit(offset_ + endpoint(rank_).reserved_slot(lane_, peer), piece_bytes);
    }
    return unread;
}

/// Takes the lines of a message in line away from their last reader while the call begins, instead of waiting for them
/// with what is written there. Longer messages, and ranks that let others run first, are no quicker by that.
void ShmTransport::prepare(int peer, std::size_t num_bytes) {
    if (num_bytes > most_bytes_in_lines || context_.shares_cores()) return;
    const Peer &to = peer_at(peer);
    for (std::uint64_t i = 0; i < num_lines_of(num_bytes); ++i) {
        const Endpoint::Line &line = to.outgoing[at(to.posted + i)];
#if defined(__x86_64__)
        asm volatile("prefetchw %0" : : "m"(line)); // which gcc's own means without -mprfchw does not ask for
#else
        __builtin_prefetch(&line, 1);
#endif
    }
}

void ShmTransport::post_line(int peer, const Endpoint::Line &message, std::uint16_t num_cells) {
    Peer &to = peer_at(peer);
    Endpoint::Line &line = to.outgoing[at(to.posted)];
    line.tag = message.tag;
    line.num_bytes = message.num_bytes;
    line.tier = message.tier;
    line.num_cells.store(num_cells, std::memory_order_relaxed);
    line.num_head_bytes = message.num_head_bytes;
    line.elsewhere = message.elsewhere;
    line.elsewhere.released = to.received;
    complete(line, to);
}

void ShmTransport::post_in_line(int peer, Bytes head, Bytes bytes, std::uint32_t tag) {
    Peer &to = peer_at(peer);
    Endpoint::Line &line = to.outgoing[at(to.posted)];
    line.tag = tag;
    line.tier = Endpoint::Tier::in_line;
    line.num_head_bytes = static_cast<std::uint8_t>(head.size() + bytes.size());
    line.set_released_in_line(to.received);
    copy_bytes(line.bytes.data(), head);
    copy_bytes(line.bytes.data() + head.size(), bytes);
    complete(line, to);
}

/// The last store of a message: its line is written.
void ShmTransport::complete(Endpoint::Line &line, Peer &to) {
    ++to.posted;
    line.number.store(static_cast<std::uint32_t>(to.posted), std::memory_order_release);
    to.may_await = may_await_ = true;
}

void ShmTransport::commit_arrivals() {
    const std::size_t begin = endpoint(rank_).arrivals_begin();
    context_.arena().commit(offset_ + begin, Endpoint::reserved_bytes(size()) - begin);
    // The second line of a message has no time of its own, and is not to have one of an endpoint that lay here before.
    for (int peer = 0; peer < size(); ++peer) {
        for (auto &arrival : endpoint(rank_).arrivals(lane_, peer)) arrival.store(0, std::memory_order_relaxed);
    }
}

std::atomic<Clock::rep> &ShmTransport::arrival_of_next(int peer) const {
    return endpoint(rank_).arrivals(lane_, peer)[at(posted(peer))];
}

const std::atomic<Clock::rep> &ShmTransport::arrival_of_first(int peer) const {
    return endpoint(peer).arrivals(lane_, rank_)[at(peer_at(peer).received)];
}

/// Whether this rank and a peer in another process can reach each other's private memory.
bool ShmTransport::can_attach(int peer) const {
    const auto attaches = [this](int member) { return peer_at(member).rank.attaches() == Attaches::yes; };
    return !peer_at(peer).rank.shares_process && attaches(peer) && attaches(rank_);
}

Reach ShmTransport::reach(std::span<const int> peers) const {
    Reach found{.may_put = true,
                .may_fetch = true,
                .line_bytes = most_bytes_in_lines,
                .head_bytes = Endpoint::head_bytes,
                .whole_pieces = true};
    for (const int peer : peers) {
        found.may_fetch = found.may_fetch && can_attach(peer);
        found.may_change = found.may_change || peer_at(peer).rank.attaches() == Attaches::unknown;
        found.is_far = found.is_far || peer_at(peer).rank.is_far;
    }
    return found;
}

MemoryKind ShmTransport::memory_of(Bytes bytes, std::span<const int> peers, bool asks_for_pages) {
    if (context_.arena().mapping()->contains(bytes.data(), bytes.size())) return MemoryKind::registered;
    const auto shares_process = [this](int peer) { return peer_at(peer).rank.shares_process; };
    if (std::ranges::all_of(peers, shares_process)) return MemoryKind::same_process;
    const Pages pages = asks_for_pages ? context_.page_map().of(bytes) : Pages::small;
    if (pages == Pages::unknown) return MemoryKind::unknown_pages;
    return pages == Pages::huge ? MemoryKind::huge_pages : MemoryKind::small_pages;
}

/// Whether a peer has read so many messages. Its counter lies in its cache: what it said last is often enough.
bool ShmTransport::has_read(Peer &to, std::uint64_t number) {
    if (to.seen_released < number) to.seen_released = released(to);
    return to.seen_released >= number;
}

bool ShmTransport::has_room(std::span<const int> peers, std::uint64_t num_lines) {
    return std::ranges::all_of(peers, [this, num_lines](int peer) {
        Peer &to = peer_at(peer);
        return to.posted + num_lines <= ring_size_ || has_read(to, to.posted + num_lines - ring_size_);
    });
}

Taken ShmTransport::post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) {
    const std::size_t num_bytes = how.head.size() + bytes.size();
    if (num_bytes > most_bytes_in_lines) return has_room(peers) ? post_elsewhere(peers, bytes, tag, how) : Taken{};
    if (!has_room(peers, num_lines_of(num_bytes))) return {};
    const std::size_t in_first = std::min(bytes.size(), Endpoint::inline_bytes - how.head.size());
    for (int peer : peers) {
        post_in_line(peer, how.head, bytes.first(in_first), tag);
        if (in_first < bytes.size()) post_in_line(peer, {}, bytes.subspan(in_first), tag);
    }
    return {.num_bytes = bytes.size(), .way = Way::line};
}

/// What does not fit into lines, where there is one.
Taken ShmTransport::post_elsewhere(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) {
    Endpoint::Line message{};
    message.tag = tag;
    message.num_head_bytes = static_cast<std::uint8_t>(how.head.size());
    std::ranges::copy(how.head, message.elsewhere.head.begin());
    if (bytes.size() > most_copied && shows_source(peers, message, bytes, how.way)) {
        const std::size_t num_bytes = std::min(bytes.size(), most_lent_bytes);
        message.num_bytes = static_cast<std::uint32_t>(num_bytes);
        for (int peer : peers) post_line(peer, message);
        return {.num_bytes = num_bytes, .lent = true, .way = how.way};
    }
    const std::size_t num_bytes = std::min(bytes.size(), piece_bytes);
    if (how.may_wait && awaits_handed(peers[0], num_bytes)) return {};
    return stage(peers, message, bytes.first(num_bytes)) ? Taken{.num_bytes = num_bytes} : Taken{};
}

/// Lets the readers find the bytes where they lie, if these are lent or fetched and all of them can.
bool ShmTransport::shows_source(std::span<const int> peers, Endpoint::Line &message, Bytes bytes, Way way) const {
    if (way != Way::lend && way != Way::fetch) return false;
    const Mapping &arena = *context_.arena().mapping();
    if (arena.contains(bytes.data(), bytes.size())) {
        message.tier = Endpoint::Tier::arena;
        message.elsewhere.offset = static_cast<std::uint64_t>(bytes.data() - arena.base());
        return true;
    }
    const auto shares_process = [this](int peer) { return peer_at(peer).rank.shares_process; };
    const auto reads_here = [this](int peer) { return can_attach(peer); };
    if (std::ranges::all_of(peers, shares_process)) {
        message.tier = Endpoint::Tier::address;
    } else if (way == Way::fetch && std::ranges::all_of(peers, reads_here) && may_be_attached()) {
        message.tier = Endpoint::Tier::attach;
    } else {
        return false;
    }
    message.elsewhere.address = bytes.data();
    return true;
}

void ShmTransport::refuse(int peer) const {
    throw Failure::internal("rank " + std::to_string(members_[static_cast<std::size_t>(peer)]) +
                            " sent a malformed message");
}

View ShmTransport::view(int peer) const {
    const Peer &from = peer_at(peer);
    if (!has_come(from)) return {};
    const Endpoint::Line &line = first_of(from);
    if (line.tier != Endpoint::Tier::in_line) return view_elsewhere(peer, line);
    const std::size_t num_bytes = line.num_head_bytes; // read once, as the peer may change it behind a check
    if (num_bytes > Endpoint::inline_bytes || num_bytes < from.consumed) refuse(peer);
    from.shown = {.num_bytes = num_bytes, .tier = Endpoint::Tier::in_line, .released = line.released_in_line()};
    return {.bytes = Bytes(line.bytes).first(num_bytes).subspan(from.consumed), .tag = line.tag};
}

View ShmTransport::view_elsewhere(int peer, const Endpoint::Line &line) const {
    const Peer &from = peer_at(peer);
    const std::byte *start = nullptr;
    // Read once, as the peer may change them behind a check.
    const std::size_t num_bytes = line.num_bytes;
    const Endpoint::Tier tier = line.tier;
    const std::uint64_t offset = line.elsewhere.offset;
    const std::byte *const address = line.elsewhere.address;
    const std::size_t num_head_bytes = line.num_head_bytes;
    if (num_head_bytes > Endpoint::head_bytes) refuse(peer);
    from.shown = {.num_bytes = num_head_bytes + num_bytes, .tier = tier, .released = line.elsewhere.released};
    const std::size_t of_head = num_head_bytes - std::min(from.consumed, num_head_bytes);
    const std::size_t consumed = from.consumed - (num_head_bytes - of_head);
    bool attached = false;
    switch (tier) {
    case Endpoint::Tier::in_line: break; // no longer, since view() has looked
    case Endpoint::Tier::address:
        if (!from.rank.shares_process) refuse(peer);
        start = address;
        break;
    case Endpoint::Tier::arena:
    case Endpoint::Tier::kept:
    case Endpoint::Tier::put: {
        const Mapping &memory = tier == Endpoint::Tier::put ? *context_.arena().mapping() : *from.rank.mapping;
        const std::size_t limit = memory.num_bytes();
        if (offset > limit || num_bytes > limit - offset) refuse(peer);
        start = memory.base() + offset;
        break;
    }
    case Endpoint::Tier::handed:
    case Endpoint::Tier::handed_back:
        if (num_bytes > part_bytes_) refuse(peer);
        start = show_handed(from, {.offset = offset, .is_own = tier == Endpoint::Tier::handed_back});
        break;
    case Endpoint::Tier::attach:
        if (!can_attach(peer)) refuse(peer);
        start = address;
        attached = true;
        break;
    }
    if (start == nullptr) refuse(peer);
    const std::size_t there = std::min(num_bytes, line.num_cells.load(std::memory_order_seq_cst) * cell_bytes);
    if (of_head > 0) {
        const Bytes head(line.elsewhere.head);
        // A slot that is kept is shown by itself: see release().
        const bool is_handed = tier == Endpoint::Tier::handed || tier == Endpoint::Tier::handed_back;
        const Bytes behind = is_handed ? Bytes(start, there) : Bytes();
        // It comes from the other core while its reader looks at the head.
        for (std::size_t at = 0; at < std::min(behind.size(), most_asked_behind_head); at += cache_line) {
            __builtin_prefetch(start + at);
        }
        return {.bytes = head.subspan(from.consumed, of_head), .tag = line.tag, .behind = behind};
    }
    if (there <= consumed) return {};
    return {.bytes = Bytes(start + consumed, there - consumed),
            .tag = line.tag,
            .num_coming = num_bytes - there,
            .attached = attached};
}

bool ShmTransport::copy(int peer, std::byte *destination, std::size_t num_bytes) {
    const View from = view(peer);
    if (from.bytes.size() < num_bytes) return false; // the peer takes back what it has shown
    if (from.attached) return read_attached(peer_at(peer).rank.process_id, from.bytes.data(), {destination, num_bytes});
    copy_bytes(destination, from.bytes.first(num_bytes));
    return true;
}

void ShmTransport::release(int peer, std::size_t num_bytes) {
    Peer &from = peer_at(peer);
    const std::size_t all = from.shown.num_bytes;
    const std::uint64_t more = from.shown.released - from.seen_released; // of a line that is behind, too many
    if (more <= from.posted - from.seen_released) from.seen_released += more;
    from.consumed += num_bytes;
    if (from.consumed < all) return;
    from.consumed = 0;
    ++from.received;
    if (from.shown.tier == Endpoint::Tier::kept || from.shown.tier == Endpoint::Tier::arena) {
        from.answers = from.answers || from.shown.tier == Endpoint::Tier::kept;
        if (++from.num_unanswered % max_unanswered == 0) give_back(from);
    }
    if (from.shown.slot) take_over(peer);
    from.incoming_released->value.store(from.received, std::memory_order_release);
    from.may_await = may_await_ = true;
}

/// One barrier for all that was stored, when it is on its way already: behind each store it would wait for the line to
/// come from the other core before this rank could look for what has come from there.
void ShmTransport::flush() {
    if (!std::exchange(may_await_, false)) return;
    // Either the peer sees what was stored, or this rank that it sleeps.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (Peer &peer : peers_) {
        if (std::exchange(peer.may_await, false)) peer.endpoint.control().ring();
    }
}

} // namespace hocket
