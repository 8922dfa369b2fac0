#include "channels/channels.h"

#include <utility>

namespace hocket {

Channels::Channels(Context &context, const std::vector<int> &members, int rank, std::span<const std::size_t> offsets,
                   Lane lane, Connections *connections)
    : memory_(context, members, rank, offsets, lane), connections_(connections) {
    if (connections_ == nullptr) {
        paced_ = PacedTransport::over(memory_, context);
        return;
    }
    // All members know the page of the first one. No two communicators that use it have the same generation.
    const std::uint64_t generation = memory_.control(0).generation.load(std::memory_order_relaxed);
    for (const std::uint64_t word : {static_cast<std::uint64_t>(members[0]), std::uint64_t{offsets[0]}, generation,
                                     static_cast<std::uint64_t>(lane)})
        name_ = mix(name_, word + 1);
    const auto want = [this, members](int peer) {
        connections_->want(
            {.communicator = name_, .from = connections_->rank(), .to = members[static_cast<std::size_t>(peer)]});
    };
    ControlPage &own = memory_.control(rank);
    *tcp_ = std::make_unique<TcpTransport>(connections_->thread(), members.size(), want, [&own] { own.ring(); });
    std::vector<int> via(members.size(), 1);
    via[static_cast<std::size_t>(rank)] = 0;
    both_.emplace(std::vector<Transport *>{&memory_, tcp_->get()}, std::move(via));
    connections_->enter(name_, **tcp_, members);
}

Channels::~Channels() {
    if (both_ && connections_->is_here()) connections_->leave(name_);
}

Transport &Channels::carrier() {
    if (both_) return *both_;
    if (paced_) return *paced_;
    return memory_;
}

void Channels::end() {
    if (both_) (*tcp_)->end();
}

bool Channels::has_delivered(int member) const { return !both_ || (*tcp_)->has_delivered(member); }

} // namespace hocket
