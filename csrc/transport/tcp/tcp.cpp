#include "transport/tcp/tcp.h"

#include "base/error.h"
#include "base/waiting.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/epoll.h>
#include <unistd.h>
#include <utility>

namespace hocket {

TcpTransport::TcpTransport(NetworkThread &thread, std::size_t num_peers, std::function<void(int)> want,
                           std::function<void()> ring)
    : thread_(thread), want_(std::move(want)), ring_(std::move(ring)), poll_(epoll_create1(EPOLL_CLOEXEC)),
      peers_(num_peers) {
    if (poll_ < 0) throw Failure::resource("epoll_create1");
}

TcpTransport::~TcpTransport() {
    thread_.forget(poll_);
    ::close(poll_);
    for (const Peer &peer : peers_) {
        if (Forward *const to = peer.to.load()) {
            to->end_loans();
            to->numbers.latest(); // the system drops what it has still to send if it closes over something unread
            delete to;
        }
        delete peer.from.load();
    }
}

// Connections ---------------------------------------------------------------------------------------------------------

void TcpTransport::connect_to(int number, int descriptor, Rail rail) {
    Peer &peer = at(number);
    auto made = std::make_shared<Sender>(descriptor);
    const std::scoped_lock lock(peer.mutex);
    look_at(descriptor);
    if (peer.to.load() == nullptr && add(peer.rails_to, std::move(made), rail) && are_complete(peer.rails_to)) {
        auto *const to = new Forward(std::exchange(peer.rails_to, {}));
        peer.to.store(to);
        if (has_ended_.load()) to->end();
    }
    ring_();
}

void TcpTransport::connect_from(int number, int descriptor, Bytes greeting, Rail rail) {
    Peer &peer = at(number);
    auto made = std::make_shared<Sender>(descriptor);
    const std::scoped_lock lock(peer.mutex);
    look_at(descriptor);
    if (peer.from.load() == nullptr && add(peer.rails_from, made, rail)) {
        made->send(greeting, {}, {}, false);
        if (are_complete(peer.rails_from)) {
            auto *const back = new Back(std::exchange(peer.rails_from, {}));
            peer.from.store(back);
            if (peer.number != 0) send_number(*back, peer.number);
        }
    }
    ring_();
}

/// A later connection of a rail takes the place of an earlier one, which the peer had to give up. False: others of the
/// channel came with another number of rails.
bool TcpTransport::add(Rails &rails, std::shared_ptr<Sender> made, Rail rail) {
    if (rails.empty()) rails.resize(static_cast<std::size_t>(rail.num_rails));
    if (rails.size() != static_cast<std::size_t>(rail.num_rails)) return false;
    rails.at(static_cast<std::size_t>(rail.number)) = std::move(made);
    return true;
}

bool TcpTransport::are_complete(const Rails &rails) {
    return std::ranges::all_of(rails, [](const auto &rail) { return rail != nullptr; });
}

TcpTransport::Back::Back(Rails all) : rails(std::move(all)) {
    for (const auto &rail : rails) frames.emplace_back(rail->descriptor());
}

bool TcpTransport::Forward::is_broken() const {
    return numbers.has_ended() || std::ranges::any_of(rails, [](const auto &rail) { return rail->is_broken(); });
}

void TcpTransport::Forward::end_loans() const {
    for (const auto &rail : rails) rail->end_loan();
}

void TcpTransport::Forward::end() const {
    for (const auto &rail : rails) rail->end();
}

void TcpTransport::look_at(int descriptor) const {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET; // what comes, and that the system takes more after it has refused
    if (epoll_ctl(poll_, EPOLL_CTL_ADD, descriptor, &event) != 0) throw Failure::resource("epoll_ctl");
    take_events(); // that it takes something now is no news; who connects rings, as this may have been other news, too
}

/// Whether anything has happened since the last time.
bool TcpTransport::take_events() const {
    std::array<epoll_event, 64> events{};
    return epoll_wait(poll_, events.data(), static_cast<int>(events.size()), 0) > 0;
}

/// Whoever sleeps next looks once more at what has come since it was last asked, and else is woken when more comes.
std::chrono::nanoseconds TcpTransport::until_arrival(std::chrono::steady_clock::time_point) const {
    if (take_events()) return std::chrono::nanoseconds(0);
    try {
        thread_.ring_at(poll_, ring_);
    } catch (const Failure &) { return short_attention; } // the system has nothing left for whoever would ring
    return std::chrono::nanoseconds::max();
}

void TcpTransport::end() {
    has_ended_.store(true);
    for (const Peer &peer : peers_) {
        if (const Forward *const to = peer.to.load()) to->end();
    }
}

bool TcpTransport::has_delivered(int peer) const {
    const Forward *const to = at(peer).to.load();
    return to == nullptr || std::ranges::all_of(to->rails, [](const auto &rail) { return rail->has_delivered(); });
}

// What this rank sends ------------------------------------------------------------------------------------------------

bool TcpTransport::has_room(int number) {
    Peer &peer = at(number);
    const Forward *const to = peer.to.load();
    if (to == nullptr && !std::exchange(peer.is_wanted, true)) want_(number);
    // Two ranks that send each other all that the system takes, and read only then, find in no cache what they read:
    // they take twice the time.
    return to != nullptr && peer.num_ahead <= most_bytes_ahead && to->of_frame(peer.num_posted)->push() &&
           !to->is_broken();
}

Taken TcpTransport::post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) {
    bool has_all = true;
    for (const int peer : peers) has_all = has_room(peer) && has_all; // all are asked for at once
    if (!has_all) return {};
    bytes = bytes.first(std::min(bytes.size(), piece_bytes));
    const bool may_lend = how.way == Way::stream || how.way == Way::lend || how.way == Way::fetch;
    const FrameHeader header{.tag = tag, .num_bytes = static_cast<std::uint32_t>(how.head.size() + bytes.size())};
    std::array<std::byte, sizeof header + cache_line> front{};
    std::memcpy(front.data(), &header, sizeof header);
    std::ranges::copy(how.head, front.begin() + sizeof header);
    constexpr std::array<std::byte, sizeof header> zeros{};
    Taken taken{.num_bytes = bytes.size(), .way = Way::stream};
    for (const int number : peers) {
        Peer &peer = at(number);
        const std::shared_ptr<Sender> &sender = peer.to.load()->of_frame(peer.num_posted);
        const bool lent = sender->send(Bytes(front).first(sizeof header + how.head.size()), bytes,
                                       Bytes(zeros).first(header.num_padding()), may_lend);
        taken.lent = taken.lent || lent;
        ++peer.num_posted;
        peer.num_ahead += bytes.size();
        if (sender->has_rest()) thread_.push_later(sender);
    }
    return taken;
}

bool TcpTransport::awaits_room(int peer) const {
    const Peer &one = at(peer);
    if (released(peer) < one.num_posted) return true;
    const Forward *const to = one.to.load();
    return to == nullptr ? one.is_wanted : to->is_broken();
}

std::uint64_t TcpTransport::released(int peer) const {
    const Forward *const to = at(peer).to.load();
    const std::uint64_t end = at(peer).num_posted;
    if (to == nullptr) return end;
    // What is left of a rail is of its last frame. To push waits for another thread that does just that: the peer may
    // have read what it has sent.
    std::uint64_t frame = end - std::min<std::uint64_t>(end, to->rails.size());
    while (frame < end && to->of_frame(frame)->push()) ++frame;
    return frame;
}

void TcpTransport::flush() {
    for (Peer &peer : peers_) peer.num_ahead = 0;
}

void TcpTransport::withdraw() {
    for (const Peer &peer : peers_) {
        if (const Forward *const to = peer.to.load()) to->end_loans();
    }
}

void TcpTransport::tell(int peer, std::uint64_t number) {
    const std::scoped_lock lock(at(peer).mutex);
    at(peer).number = number;
    if (const Back *const from = at(peer).from.load()) send_number(*from, number);
}

void TcpTransport::send_number(const Back &back, std::uint64_t number) {
    back.numbers()->send_latest(number);
    if (back.numbers()->has_rest()) thread_.push_later(back.numbers());
}

// What comes ----------------------------------------------------------------------------------------------------------

View TcpTransport::view(int peer) const {
    View found;
    Back *const from = at(peer).from.load();
    if (from != nullptr && !from->first().look(found))
        throw Failure::internal("member " + std::to_string(peer) + " sent a malformed frame");
    return found;
}

void TcpTransport::release(int peer, std::size_t num_bytes) {
    Back *const from = at(peer).from.load();
    if (num_bytes > 0 && from->first().release(num_bytes)) ++from->num_read;
}

std::uint64_t TcpTransport::told(int peer) const {
    Forward *const to = at(peer).to.load();
    return to == nullptr ? 0 : to->numbers.latest();
}

bool TcpTransport::is_coming(int peer) const {
    Back *const from = at(peer).from.load();
    return from != nullptr && view(peer).bytes.empty() && !from->first().has_ended();
}

bool TcpTransport::is_broken(int peer) const {
    told(peer); // which looks whether the connection has ended, also where nothing is posted
    const Forward *const to = at(peer).to.load();
    Back *const from = at(peer).from.load();
    const auto is_lost = [](const auto &rail) { return rail->is_lost(); };
    return (to != nullptr && (to->is_broken() || std::ranges::any_of(to->rails, is_lost))) ||
           (from != nullptr && view(peer).bytes.empty() && from->first().has_ended());
}

} // namespace hocket
