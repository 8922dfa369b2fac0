#include "transport/shm/paced.h"

#include <algorithm>

namespace hocket {

std::unique_ptr<PacedTransport> PacedTransport::over(ShmTransport &inner, const Context &context) {
    if (context.link() == nullptr) return nullptr;
    inner.commit_arrivals();
    return std::unique_ptr<PacedTransport>(new PacedTransport(inner, *context.link()));
}

/// Readers find the time of arrival before they see a message.
Taken PacedTransport::post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) {
    // Where a channel is full, that time would be written over the one of a message on its way.
    const auto is_full = [this](int peer) { return posted(peer) - released(peer) >= inner_.ring_size(); };
    if (std::ranges::any_of(peers, is_full)) return {};
    bytes = bytes.first(std::min(bytes.size(), piece_bytes));
    Link::Turn turn(link_);
    for (int peer : peers) {
        const auto arrival = turn.add(how.head.size() + bytes.size()).time_since_epoch().count();
        inner_.arrival_of_next(peer).store(arrival, std::memory_order_relaxed); // posted after it
    }
    const Taken taken = inner_.post(peers, bytes, tag, how);
    if (taken.num_bytes > 0) turn.keep();
    return taken;
}

Clock::time_point PacedTransport::arrival_from(int peer) const {
    return Clock::time_point(Clock::duration(inner_.arrival_of_first(peer).load(std::memory_order_relaxed)));
}

View PacedTransport::view(int peer) const {
    const View view = inner_.view(peer);
    if (view.bytes.empty() || arrival_from(peer) > Clock::now()) return {};
    return view;
}

std::chrono::nanoseconds PacedTransport::until_arrival(Clock::time_point since) const {
    auto soonest = Clock::time_point::max();
    for (int peer = 0; peer < inner_.size(); ++peer) {
        if (inner_.view(peer).bytes.empty()) continue;
        const auto arrival = arrival_from(peer);
        if (arrival > since) soonest = std::min(soonest, arrival);
    }
    if (soonest == Clock::time_point::max()) return std::chrono::nanoseconds::max();
    return std::max(soonest - Clock::now(), Clock::duration(0));
}

bool PacedTransport::is_coming(int peer) const {
    return !inner_.view(peer).bytes.empty() && arrival_from(peer) > Clock::now();
}

} // namespace hocket
