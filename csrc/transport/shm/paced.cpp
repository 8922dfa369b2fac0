#include "transport/shm/paced.h"

#include <algorithm>

namespace hocket {

std::unique_ptr<PacedTransport> PacedTransport::over(ShmTransport &inner, const Context &context) {
    if (context.link() == nullptr) return nullptr;
    inner.commit_arrivals();
    return std::unique_ptr<PacedTransport>(new PacedTransport(inner, *context.link()));
}

Published PacedTransport::publish(std::span<const int> peers, Bytes bytes, std::uint32_t tag, bool may_lend) {
    return send(peers, std::min(bytes.size(), piece_bytes),
                [&] { return inner_.publish(peers, bytes.first(std::min(bytes.size(), piece_bytes)), tag, may_lend); });
}

Published PacedTransport::publish_behind(Bytes head, int peer, Bytes bytes, std::uint32_t tag, bool may_lend) {
    return send(std::span(&peer, 1), head.size() + std::min(bytes.size(), piece_bytes), [&] {
        return inner_.publish_behind(head, peer, bytes.first(std::min(bytes.size(), piece_bytes)), tag, may_lend);
    });
}

/// Sends by `post`, which takes `num_bytes` for each peer. Readers find the time of arrival before they see a message.
template <typename Post>
Published PacedTransport::send(std::span<const int> peers, std::size_t num_bytes, const Post &post) {
    // Where a channel is full, that time would be written over the one of a message on its way.
    const auto is_full = [this](int peer) { return posted(peer) - released(peer) >= inner_.ring_size(); };
    if (std::ranges::any_of(peers, is_full)) return {};
    Link::Turn turn(link_);
    for (int peer : peers) {
        const auto arrival = turn.add(num_bytes).time_since_epoch().count();
        inner_.arrival_of_next(peer).store(arrival, std::memory_order_relaxed); // posted after it
    }
    const Published published = post();
    if (published.num_bytes > 0) turn.keep();
    return published;
}

Clock::time_point PacedTransport::arrival_from(int peer) const {
    return Clock::time_point(Clock::duration(inner_.arrival_of_first(peer).load(std::memory_order_relaxed)));
}

View PacedTransport::view(int peer) {
    const View view = inner_.view(peer);
    if (view.bytes.empty() || arrival_from(peer) > Clock::now()) return {};
    return view;
}

std::chrono::nanoseconds PacedTransport::until_arrival(Clock::time_point since) {
    auto soonest = Clock::time_point::max();
    for (int peer = 0; peer < inner_.size(); ++peer) {
        if (inner_.view(peer).bytes.empty()) continue;
        const auto arrival = arrival_from(peer);
        if (arrival > since) soonest = std::min(soonest, arrival);
    }
    if (soonest == Clock::time_point::max()) return std::chrono::nanoseconds::max();
    return std::max(soonest - Clock::now(), Clock::duration(0));
}

bool PacedTransport::is_coming(int peer) {
    return !inner_.view(peer).bytes.empty() && arrival_from(peer) > Clock::now();
}

} // namespace hocket
