#include "transport/tcp/sender.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <linux/sockios.h>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace hocket {
namespace {

/// As that of a host: runtime/network/agent.py.
constexpr std::chrono::seconds silence{4};

/// Sends parts in order, as much as the system takes now, and takes that away from them. False: the connection is
/// broken.
bool send_some(int descriptor, std::array<Bytes, 3> &parts) {
    std::array<iovec, 3> vectors{};
    for (std::size_t i = 0; i < parts.size(); ++i)
        vectors[i] = {.iov_base = const_cast<std::byte *>(parts[i].data()), .iov_len = parts[i].size()};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    ssize_t sent = -1;
    do sent = sendmsg(descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
    auto left = static_cast<std::size_t>(sent);
    for (Bytes &part : parts) {
        const std::size_t of_part = std::min(left, part.size());
        part = part.subspan(of_part);
        left -= of_part;
    }
    return true;
}

} // namespace

Sender::~Sender() { ::close(descriptor_); }

bool Sender::send(Bytes header, Bytes bytes, Bytes padding, bool may_lend) {
    const std::scoped_lock lock(mutex_);
    if (is_broken()) return false;
    std::array<Bytes, 3> parts{header, bytes, padding};
    if (!send_some(descriptor_, parts)) {
        is_broken_.store(true, std::memory_order_release);
        return false;
    }
    if (parts[2].empty() && parts[1].empty() && parts[0].empty()) return false;
    front_.assign(parts[0].begin(), parts[0].end());
    if (may_lend) lent_ = parts[1];
    else front_.insert(front_.end(), parts[1].begin(), parts[1].end());
    back_.assign(parts[2].begin(), parts[2].end());
    has_rest_.store(true, std::memory_order_release);
    return !lent_.empty();
}

void Sender::send_latest(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    const auto *const first = reinterpret_cast<const std::byte *>(&number);
    front_.resize(front_.size() % sizeof number); // the rest of a number that has begun to go
    front_.insert(front_.end(), first, first + sizeof number);
    has_rest_.store(true, std::memory_order_release);
    push_locked();
}

bool Sender::push() {
    if (!has_rest()) return true;
    const std::scoped_lock lock(mutex_);
    return push_locked();
}

bool Sender::push_locked() {
    std::array<Bytes, 3> parts{Bytes(front_), lent_, Bytes(back_)};
    if (!is_broken() && has_rest() && !send_some(descriptor_, parts)) is_broken_.store(true, std::memory_order_release);
    if (is_broken()) parts = {};
    front_.erase(front_.begin(), front_.end() - static_cast<std::ptrdiff_t>(parts[0].size()));
    lent_ = parts[1];
    back_.erase(back_.begin(), back_.end() - static_cast<std::ptrdiff_t>(parts[2].size()));
    const bool has_rest = !front_.empty() || !lent_.empty() || !back_.empty();
    has_rest_.store(has_rest, std::memory_order_release);
    if (!has_rest && is_ending_) ::shutdown(descriptor_, SHUT_WR);
    return !has_rest;
}

void Sender::end_loan() {
    const std::scoped_lock lock(mutex_);
    front_.insert(front_.end(), lent_.begin(), lent_.end());
    lent_ = {};
}

/// A peer that is stopped is not lost: its system answers, also that it takes no more for now.
bool Sender::is_lost() const {
    std::byte first{};
    if (const ssize_t come = recv(descriptor_, &first, 1, MSG_PEEK | MSG_DONTWAIT);
        come == 0 || (come < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        return true;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(descriptor_, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false; // a socket of another kind
    return info.tcpi_retransmits + info.tcpi_probes >= 2 &&
           std::chrono::milliseconds(info.tcpi_last_ack_recv) >= silence;
}

bool Sender::has_delivered() const {
    int num_bytes = 0; // that the peer's system has not acknowledged
    return !has_rest() && !is_broken() && (ioctl(descriptor_, SIOCOUTQ, &num_bytes) != 0 || num_bytes == 0);
}

void Sender::end() {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
    push_locked();
}

} // namespace hocket
