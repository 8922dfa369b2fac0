#include "transport/carrier.h"

#include "base/error.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace hocket {

Carrier::Carrier(std::vector<Transport *> transports, std::vector<int> via)
    : transports_(std::move(transports)), via_(std::move(via)) {
    for (const int number : via_) {
        if (number < 0 || static_cast<std::size_t>(number) >= transports_.size())
            throw Failure::internal("carrier: no transport has number " + std::to_string(number));
    }
}

/// What holds for all of them.
Reach Carrier::reach(std::span<const int> peers) const {
    std::optional<Reach> all;
    for (const int peer : peers) {
        Reach one = of(peer).reach(std::span(&peer, 1));
        one.via = via_[static_cast<std::size_t>(peer)];
        if (!all) all = one;
        all->is_stream = all->is_stream || one.is_stream;
        all->may_put = all->may_put && one.may_put;
        all->may_fetch = all->may_fetch && one.may_fetch;
        all->may_change = all->may_change || one.may_change;
        all->is_far = all->is_far || one.is_far;
        all->line_bytes = std::min(all->line_bytes, one.line_bytes);
        all->head_bytes = std::min(all->head_bytes, one.head_bytes);
        all->whole_pieces = all->whole_pieces && one.whole_pieces;
    }
    return all.value_or(Reach{});
}

MemoryKind Carrier::memory_of(Bytes bytes, std::span<const int> peers, bool asks_for_pages) {
    MemoryKind found = MemoryKind::small_pages;
    for (const int peer : peers) {
        found = of(peer).memory_of(bytes, std::span(&peer, 1), asks_for_pages);
        if (!is_reached(found)) break;
    }
    return found;
}

Taken Carrier::post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) {
    const auto goes_elsewhere = [&](int peer) { return &of(peer) != &of(peers[0]); };
    if (std::ranges::any_of(peers, goes_elsewhere))
        throw Failure::internal("carrier: one post to peers of several transports");
    return of(peers[0]).post(peers, bytes, tag, how);
}

void Carrier::flush() {
    for (Transport *transport : transports_) transport->flush();
}

std::chrono::nanoseconds Carrier::until_arrival(std::chrono::steady_clock::time_point since) const {
    auto soonest = std::chrono::nanoseconds::max();
    for (const Transport *transport : transports_) soonest = std::min(soonest, transport->until_arrival(since));
    return soonest;
}

void Carrier::grant(int peer, std::uint32_t tag, std::span<const Window> windows) {
    if (Windows *const theirs = of(peer).windows()) theirs->grant(peer, tag, windows);
}

std::span<const Window> Carrier::granted(int peer, std::uint32_t tag, std::uint64_t num_posted) {
    Windows *const theirs = of(peer).windows();
    return theirs == nullptr ? std::span<const Window>() : theirs->granted(peer, tag, num_posted);
}

/// Only where all of them have granted something.
bool Carrier::put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
                  bool past_caches, const Making &make) {
    return of(peers[0]).windows()->put(peers, places, bytes, tag, past_caches, make);
}

void Carrier::revoke() {
    for (Transport *transport : transports_) {
        if (Windows *const theirs = transport->windows()) theirs->revoke();
    }
}

void Carrier::withdraw() {
    for (Transport *transport : transports_) transport->withdraw();
}

bool Carrier::may_be_written_by(int peer) const {
    const Windows *const theirs = of(peer).windows();
    return theirs != nullptr && theirs->may_be_written_by(peer);
}

} // namespace hocket
