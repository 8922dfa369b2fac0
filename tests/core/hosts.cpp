#include "hosts.h"

#include "check.h"
#include "control/members.h"

#include <algorithm>
#include <array>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace hocket::test {
namespace {

using namespace std::chrono_literals;

constexpr int beat = 20;           // milliseconds between two looks that nobody has asked for
constexpr auto asked_time = 100ms; // for so long after a question, news are looked for all the time

std::uint64_t taken(int bell) {
    std::uint64_t number = 0;
    return ::read(bell, &number, sizeof number) == sizeof number ? number : 0;
}

void ring(int bell) {
    const std::uint64_t one = 1;
    static_cast<void>(::write(bell, &one, sizeof one));
}

} // namespace

Hosts::Hosts(const std::vector<int> &sizes, std::size_t capacity) {
    for (std::size_t host = 0; host < sizes.size(); ++host)
        hosts_.insert(hosts_.end(), static_cast<std::size_t>(sizes[host]), static_cast<int>(host));
    for (int host = 0; host < std::ssize(sizes); ++host) {
        std::vector<std::size_t> capacities;
        for (const int other : hosts_) capacities.push_back(other == host ? 0 : capacity);
        couriers_.push_back(std::make_unique<Courier>(capacities));
        couriers_.back()->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        CHECK(couriers_.back()->wake >= 0);
    }
}

Hosts::~Hosts() {
    for (const auto &courier : couriers_) end(*courier);
    for (const auto &courier : couriers_) close(courier->wake);
}

std::vector<int> Hosts::elsewhere(int rank) const {
    std::vector<int> found;
    for (int other = 0; other < std::ssize(hosts_); ++other) {
        if (host_of(other) != host_of(rank)) found.push_back(other);
    }
    return found;
}

std::vector<std::string> Hosts::names() const {
    std::vector<std::string> found;
    for (const int host : hosts_) found.push_back("host " + std::to_string(host));
    return found;
}

void Hosts::open(std::vector<std::shared_ptr<Context>> contexts) {
    contexts_ = std::move(contexts);
    for (int host = 0; host < std::ssize(couriers_); ++host) {
        Courier &courier = *couriers_[static_cast<std::size_t>(host)];
        const auto leader = std::ranges::find(hosts_, host) - hosts_.begin();
        courier.mirrors.join(contexts_[static_cast<std::size_t>(leader)]);
        courier.thread = std::thread([this, host] { run(host); });
    }
}

void Hosts::end(Courier &courier) {
    courier.has_ended.store(true);
    ring(courier.wake);
    if (courier.thread.joinable()) courier.thread.join();
}

Context &Hosts::leader_of(int host) const {
    return *contexts_[static_cast<std::size_t>(std::ranges::find(hosts_, host) - hosts_.begin())];
}

void Hosts::kill(int rank) {
    const int host = host_of(rank);
    const bool leads = &leader_of(host) == contexts_[static_cast<std::size_t>(rank)].get();
    if (leads) end(courier_of(rank));
    contexts_[static_cast<std::size_t>(rank)]->report_death(rank, false); // as the guard of another rank does
    if (leads) lose(host, false);
    else ring(bell(rank));
}

void Hosts::cut(int host) {
    couriers_[static_cast<std::size_t>(host)]->is_cut_off.store(true);
    lose(host, true);
    for (int rank = 0; rank < std::ssize(hosts_); ++rank) {
        if (host_of(rank) != host) leader_of(host).report_death(rank, true);
    }
}

/// The other hosts hear no more of this one.
void Hosts::lose(int host, bool is_cut_off) {
    const auto leader = std::ranges::find(hosts_, host) - hosts_.begin();
    for (int other = 0; other < std::ssize(couriers_); ++other) {
        for (int rank = 0; rank < std::ssize(hosts_); ++rank) {
            if (other != host && host_of(rank) == host)
                leader_of(other).report_death(rank, is_cut_off || rank != leader);
        }
    }
}

void Hosts::run(int host) {
    Courier &courier = *couriers_[static_cast<std::size_t>(host)];
    std::array both{pollfd{.fd = courier.mirrors.bell(), .events = POLLIN, .revents = 0},
                    pollfd{.fd = courier.wake, .events = POLLIN, .revents = 0}};
    while (!courier.has_ended.load()) {
        poll(both.data(), both.size(), Clock::now() < courier.asked_until ? 1 : beat);
        if (is_paused_.load()) {
            std::this_thread::sleep_for(1ms); // until a test goes on
            continue;
        }
        static_cast<void>(taken(courier.wake));
        if (taken(courier.mirrors.bell()) >= Spanning::asks)
            tell_others(host, {.kind = Letter::Kind::ask, .from = host});
        std::vector<Letter> letters;
        {
            const std::scoped_lock lock(courier.mutex);
            std::swap(letters, courier.letters);
        }
        for (const Letter &letter : letters) hear(host, letter);
        look(host);
    }
}

void Hosts::look(int host) {
    Courier &courier = *couriers_[static_cast<std::size_t>(host)];
    const bool is_asked = Clock::now() < courier.asked_until;
    for (const int rank : courier.mirrors.deaths())
        tell_others(host, {.kind = Letter::Kind::death, .from = host, .rank = rank});
    const auto news = courier.mirrors.collect(is_asked);
    if (!news.empty()) tell_others(host, {.kind = Letter::Kind::news, .from = host, .bytes = news, .wakes = is_asked});
    for (const auto &reason : courier.mirrors.proposals()) {
        if (host == 0) decide(reason);
        else send(host, 0, {.kind = Letter::Kind::proposal, .from = host, .bytes = reason});
    }
}

void Hosts::hear(int host, const Letter &letter) {
    Courier &courier = *couriers_[static_cast<std::size_t>(host)];
    using Kind = Letter::Kind;
    const bool is_passed_on = letter.kind != Kind::proposal && letter.kind != Kind::decision;
    if (host == 0 && is_passed_on) {
        Letter copy = letter;
        copy.from = 0;
        tell_others(0, copy, letter.from);
    }
    switch (letter.kind) {
    case Kind::news: return courier.mirrors.apply(letter.bytes, letter.wakes);
    case Kind::ask: courier.asked_until = Clock::now() + asked_time; return;
    case Kind::proposal: return decide(letter.bytes);
    case Kind::decision: return courier.mirrors.decide(letter.bytes);
    case Kind::death: return leader_of(host).report_death(letter.rank, false);
    }
}

/// By the courier of host 0.
void Hosts::decide(const std::vector<std::byte> &reason) {
    const auto communicator = communicator_of(reason);
    if (!communicator || !decided_.insert(*communicator).second) return;
    tell_others(0, {.kind = Letter::Kind::decision, .from = 0, .bytes = reason});
    couriers_.front()->mirrors.decide(reason);
}

void Hosts::send(int from, int to, Letter letter) const {
    Courier &courier = *couriers_[static_cast<std::size_t>(to)];
    if (courier.is_cut_off.load() || couriers_[static_cast<std::size_t>(from)]->is_cut_off.load()) return;
    {
        const std::scoped_lock lock(courier.mutex);
        courier.letters.push_back(std::move(letter));
    }
    ring(courier.wake);
}

/// Host 0 tells all others, and another host tells host 0, which passes it on.
void Hosts::tell_others(int host, const Letter &letter, int but) const {
    if (host != 0) return send(host, 0, letter);
    for (int other = 1; other < std::ssize(couriers_); ++other) {
        if (other != but) send(0, other, letter);
    }
}

} // namespace hocket::test
