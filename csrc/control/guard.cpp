#include "control/guard.h"

#include "base/error.h"
#include "control/control.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hocket {
namespace {

// What the guard has to do next, in this order.
constexpr std::uint32_t starting = 0, holding = 1, watching = 2, stopping = 3;
constexpr std::uint32_t refused = 4; // by the system: it has ended

} // namespace

Guard::Guard(Presence &own) : own_(own), thread_(start_thread("the guard thread", [this] { run(); })) {
    phase_.wait(starting, std::memory_order_acquire);
    if (phase_.load(std::memory_order_acquire) != refused) return;
    thread_.join();
    errno = refusal_;
    throw Failure::resource("set_robust_list (without it, no rank hears when another one dies)");
}

void Guard::watch(std::size_t place, std::vector<Rank> ranks, std::function<void()> tell) {
    rank_ = place;
    ranks_ = std::move(ranks);
    tell_ = std::move(tell);
    phase_.store(watching, std::memory_order_seq_cst);
    phase_.notify_all();
}

void Guard::run() {
    robust_list_head head{};
    head.futex_offset = static_cast<long>(offsetof(Presence, word)) - static_cast<long>(offsetof(Presence, next));
    head.list.next = reinterpret_cast<robust_list *>(&own_.next);
    own_.next = &head.list;
    // This thread takes no other robust mutex, so replacing the C library's list is harmless.
    if (syscall(SYS_set_robust_list, &head, sizeof head) != 0) {
        refusal_ = errno;
        phase_.store(refused, std::memory_order_seq_cst);
        phase_.notify_all();
        return;
    }
    own_.word.store(static_cast<std::uint32_t>(syscall(SYS_gettid)), std::memory_order_seq_cst);
    phase_.store(holding, std::memory_order_seq_cst);
    phase_.notify_all();
    phase_.wait(holding, std::memory_order_seq_cst);
    watch_others();
    phase_.wait(watching, std::memory_order_seq_cst);
    head.list.next = &head.list;
    syscall(SYS_set_robust_list, nullptr, sizeof head); // the kernel must not follow it once this frame is gone
    if ((own_.word.exchange(0) & FUTEX_WAITERS) != 0) futex_wake(own_.word);
}

void Guard::watch_others() {
    for (std::size_t distance = 1; distance < ranks_.size(); ++distance) {
        const std::size_t target = (rank_ + distance) % ranks_.size();
        std::atomic<std::uint32_t> &word = ranks_[target].presence.get().word;
        for (;;) {
            std::uint32_t value = word.load(std::memory_order_seq_cst);
            if ((value & FUTEX_OWNER_DIED) != 0) {
                report_death(target);
                break;
            }
            if ((value & FUTEX_TID_MASK) == 0) break; // it left in good order
            if ((value & FUTEX_WAITERS) == 0) {
                if (!word.compare_exchange_strong(value, value | FUTEX_WAITERS)) continue;
                value |= FUTEX_WAITERS;
            }
            // stop() sets the phase before it clears the bit, so either this sees the phase or the wait returns.
            if (phase_.load(std::memory_order_seq_cst) == stopping) return;
            // The limit is for a neighbour that dies while another one's stop() has just cleared the bit.
            futex_wait(word, value, std::chrono::seconds(1));
        }
    }
}

void Guard::stop() {
    phase_.store(stopping, std::memory_order_seq_cst);
    phase_.notify_all();
    for (std::size_t peer = 0; peer < ranks_.size(); ++peer) {
        if (peer == rank_) continue;
        std::atomic<std::uint32_t> &word = ranks_[peer].presence.get().word;
        word.fetch_and(~static_cast<std::uint32_t>(FUTEX_WAITERS), std::memory_order_seq_cst);
        futex_wake(word);
    }
    thread_.join();
}

void Guard::report_death(std::size_t rank) {
    ranks_[rank].presence.get().state.store(Presence::dead, std::memory_order_seq_cst);
    alarm(ranks_);
    tell_();
}

void Guard::alarm(std::span<const Rank> ranks) {
    for (const Rank &peer : ranks) {
        for (const auto &entry : peer.presence.get().endpoints) {
            const std::uint64_t offset = entry.load(std::memory_order_acquire);
            if (offset == 0 || offset > peer.memory.size() - sizeof(ControlPage)) break;
            reinterpret_cast<ControlPage *>(peer.memory.data() + offset)->raise_alarm();
        }
    }
}

} // namespace hocket
