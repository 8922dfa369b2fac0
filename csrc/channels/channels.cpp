#include "channels/channels.h"

#include <algorithm>
#include <utility>

namespace hocket {

Channels::Channels(Context &context, const std::vector<int> &members, int rank, std::span<const std::size_t> offsets,
                   std::uint32_t generation, Lane lane, Connections *connections)
    : memory_(context, members, rank, offsets, lane), connections_(connections) {
    std::vector<int> via;
    for (const int member : members) {
        const bool is_carried = connections != nullptr && member != members[static_cast<std::size_t>(rank)] &&
                                (connections->carry_all() || context.at(member).is_elsewhere);
        via.push_back(is_carried ? 1 : 0);
    }
    if (std::ranges::find(via, 1) == via.end()) {
        paced_ = PacedTransport::over(memory_, context);
        return;
    }
    name_ = name_of(members[0], offsets[0], generation, lane);
    const auto want = [this, members](int peer) { connections_->want(name_, members[static_cast<std::size_t>(peer)]); };
    ControlPage &own = memory_.control(rank);
    *tcp_ = std::make_unique<TcpTransport>(connections_->thread(), members.size(), want, [&own] { own.ring(); });
    both_.emplace(std::vector<Transport *>{&memory_, tcp_->get()}, std::move(via));
    connections_->enter(name_, **tcp_, members);
}

/// All members know the page of the first one. No two communicators that use it have the same generation.
std::uint64_t Channels::name_of(int first_rank, std::size_t first_offset, std::uint32_t generation, Lane lane) {
    std::uint64_t name = 0;
    for (const std::uint64_t word : {static_cast<std::uint64_t>(first_rank), std::uint64_t{first_offset},
                                     std::uint64_t{generation}, static_cast<std::uint64_t>(lane)})
        name = mix(name, word + 1);
    return name;
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
