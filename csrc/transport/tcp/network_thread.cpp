#include "transport/tcp/network_thread.h"

#include "base/error.h"

#include <array>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace hocket {
namespace {

/// Whether the poll tells once when that happens.
bool watch(int poll, int operation, int descriptor, std::uint32_t what) {
    epoll_event event{};
    event.events = what | EPOLLONESHOT;
    event.data.fd = descriptor;
    return epoll_ctl(poll, operation, descriptor, &event) == 0;
}

} // namespace

NetworkThread::State::~State() {
    for (const int descriptor : {poll, bell}) {
        if (descriptor >= 0) ::close(descriptor);
    }
}

NetworkThread::NetworkThread() {
    state_->poll = epoll_create1(EPOLL_CLOEXEC);
    if (state_->poll < 0) throw Failure::resource("epoll_create1");
    state_->bell = eventfd(0, EFD_CLOEXEC);
    if (state_->bell < 0) throw Failure::resource("eventfd");
    if (!watch(state_->poll, EPOLL_CTL_ADD, state_->bell, EPOLLIN)) throw Failure::resource("epoll_ctl");
}

NetworkThread::~NetworkThread() {
    if (!state_.is_here()) return; // a forked child: the thread is the parent's
    {
        const std::scoped_lock lock(state_->mutex);
        state_->is_stopping = true;
    }
    if (!state_->thread.joinable()) return;
    const std::uint64_t one = 1;
    static_cast<void>(::write(state_->bell, &one, sizeof one));
    state_->thread.join();
}

/// With the mutex held.
void NetworkThread::begin() {
    if (!state_->thread.joinable()) state_->thread = start_thread("the network thread", [this] { run(); });
}

void NetworkThread::push_later(const std::shared_ptr<Sender> &sender) {
    const std::scoped_lock lock(state_->mutex);
    if (state_->is_stopping || state_->senders.contains(sender->descriptor())) return;
    begin();
    if (!watch(state_->poll, EPOLL_CTL_ADD, sender->descriptor(), EPOLLOUT)) throw Failure::resource("epoll_ctl");
    state_->senders.emplace(sender->descriptor(), sender);
}

void NetworkThread::ring_at(int descriptor, const std::function<void()> &ring) {
    const std::scoped_lock lock(state_->mutex);
    if (state_->is_stopping) return;
    begin();
    const bool is_new = state_->rings.emplace(descriptor, ring).second;
    if (watch(state_->poll, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, EPOLLIN)) return;
    const Failure failure = Failure::resource("epoll_ctl");
    if (is_new) state_->rings.erase(descriptor);
    throw failure;
}

void NetworkThread::forget(int descriptor) {
    const std::scoped_lock lock(state_->mutex);
    if (state_->rings.erase(descriptor) > 0) epoll_ctl(state_->poll, EPOLL_CTL_DEL, descriptor, nullptr);
}

void NetworkThread::run() {
    std::array<epoll_event, 64> events{};
    for (;;) {
        const int num_events = epoll_wait(state_->poll, events.data(), static_cast<int>(events.size()), -1);
        const std::scoped_lock lock(state_->mutex);
        if (state_->is_stopping) return;
        for (int i = 0; i < num_events; ++i) handle(events[static_cast<std::size_t>(i)].data.fd);
    }
}

/// With the mutex held.
void NetworkThread::handle(int descriptor) {
    if (const auto ring = state_->rings.find(descriptor); ring != state_->rings.end()) return ring->second();
    const auto sender = state_->senders.find(descriptor);
    if (sender == state_->senders.end()) return;
    if (!sender->second->push() && watch(state_->poll, EPOLL_CTL_MOD, descriptor, EPOLLOUT)) return;
    epoll_ctl(state_->poll, EPOLL_CTL_DEL, descriptor, nullptr);
    state_->senders.erase(sender);
}

} // namespace hocket
