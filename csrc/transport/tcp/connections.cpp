#include "transport/tcp/connections.h"

#include "base/error.h"

#include <algorithm>
#include <iterator>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hocket {

Connections::Connections(int rank, bool carry_all, int num_rails)
    : rank_(rank), carry_all_(carry_all), num_rails_(num_rails), wanted_bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wanted_bell_ < 0) throw Failure::resource("eventfd");
}

Connections::~Connections() {
    for (const auto &[name, early] : early_) ::close(early.descriptor);
    ::close(wanted_bell_);
}

std::vector<ConnectionName> Connections::take_wanted() {
    const std::scoped_lock lock(mutex_);
    std::uint64_t number = 0;
    static_cast<void>(::read(wanted_bell_, &number, sizeof number));
    return std::exchange(wanted_, {});
}

void Connections::ring() const {
    const std::uint64_t one = 1;
    static_cast<void>(::write(wanted_bell_, &one, sizeof one));
}

void Connections::want(std::uint64_t communicator, int to) {
    const std::scoped_lock lock(mutex_);
    for (int number = 0; number < num_rails_; ++number) {
        wanted_.push_back({.communicator = communicator, .from = rank_, .to = to, .rail = {number, num_rails_}});
    }
    ring();
}

bool Connections::has(std::uint64_t communicator) {
    const std::scoped_lock lock(mutex_);
    return entries_.contains(communicator);
}

void Connections::give(const ConnectionName &name, int descriptor, Bytes greeting) {
    const std::scoped_lock lock(mutex_);
    if (const auto entry = entries_.find(name.communicator); entry != entries_.end())
        return hand_over(entry->second, name, descriptor, greeting);
    // Of a communicator that has left in the meantime, the other end gives up.
    std::erase_if(early_, [](const auto &early) {
        std::byte first{};
        if (recv(early.second.descriptor, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 0) return false;
        ::close(early.second.descriptor);
        return true;
    });
    const bool is_kept = name.from != rank_ && early_.try_emplace(name, descriptor, greeting).second;
    if (!is_kept) ::close(descriptor);
}

void Connections::enter(std::uint64_t communicator, TcpTransport &transport, std::span<const int> ranks) {
    const std::scoped_lock lock(mutex_);
    const Entry &entry = entries_[communicator] = {&transport, {ranks.begin(), ranks.end()}};
    try {
        for (auto early = early_.begin(); early != early_.end();) {
            const auto next = std::next(early);
            if (early->first.communicator == communicator) {
                const auto [name, kept] = std::move(*early);
                early_.erase(early);
                hand_over(entry, name, kept.descriptor, kept.greeting);
            }
            early = next;
        }
    } catch (...) {
        entries_.erase(communicator);
        throw;
    }
}

void Connections::leave(std::uint64_t communicator) {
    const std::scoped_lock lock(mutex_);
    entries_.erase(communicator);
    std::erase_if(wanted_, [=](const ConnectionName &name) { return name.communicator == communicator; });
    ring();
}

void Connections::hand_over(const Entry &entry, const ConnectionName &name, int descriptor, Bytes greeting) const {
    const bool is_own = name.from == rank_;
    const auto peer = std::ranges::find(entry.ranks, is_own ? name.to : name.from);
    if (peer == entry.ranks.end() || (is_own ? name.from : name.to) != rank_) {
        ::close(descriptor);
        return;
    }
    const auto number = static_cast<int>(peer - entry.ranks.begin());
    if (is_own) entry.transport->connect_to(number, descriptor, name.rail);
    else entry.transport->connect_from(number, descriptor, greeting, name.rail);
}

} // namespace hocket
