#include "executor/executor.h"

#include <algorithm>

namespace hocket {

void Executor::start(const Launch &launch, std::uint32_t tag) {
    bound_.bind(launch, tag);
    if (bound_.is_short) {
        for (const auto &channel : bound_.sends) transport_.prepare(channel.peer, bound_.longest_bytes);
    }
    short_.start(bound_.is_short && pieces_.trace.recorder == nullptr); // a trace has each move, in the common way
    if (!short_.is_on()) pieces_.start();
}

bool Executor::advance() {
    const bool done = move();
    transport_.flush();
    return done;
}

bool Executor::move() {
    pace_.budget = pieces_per_advance;
    if (short_.is_on()) {
        if (short_.advance()) return true;
        if (short_.is_on()) return false;
    }
    return pieces_.advance();
}

std::vector<int> Executor::waiting_for() {
    short_.hand_over();
    return pieces_.turns().waiting_for();
}

bool Executor::waits_for(std::span<const int> peers) const {
    return short_.is_on() ? short_.waits_for(peers) : pieces_.turns().waits_for(peers);
}

bool Executor::exchanges_with(std::span<const int> peers) const {
    const auto has = [](const std::vector<BoundPlan::Channel> &channels, int peer) {
        return std::ranges::find(channels, peer, &BoundPlan::Channel::peer) != channels.end();
    };
    return std::ranges::all_of(peers, [&](int peer) { return has(bound_.sends, peer) && has(bound_.receives, peer); });
}

} // namespace hocket
