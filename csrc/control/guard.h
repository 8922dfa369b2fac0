// The guard: a thread of each rank that learns when another rank dies, and tells everybody.
#pragma once

#include "base/system.h"
#include "base/types.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

namespace hocket {

/// What a rank shows of itself as long as it lives. The kernel marks `word` when the guard thread that holds it dies.
struct Presence {
    // cut_off: it may live, but the leader of its host does not, so nobody tells other hosts of it.
    static constexpr std::uint32_t present = 0, left = 1, dead = 2, cut_off = 3;
    static constexpr std::size_t max_endpoints = 1024;

    /// A robust futex: the guard's thread id while it lives. `next` is the link that the kernel follows to find it, in
    /// the owner's addresses.
    alignas(cache_line) void *next;
    std::atomic<std::uint32_t> word;
    alignas(cache_line) std::atomic<std::uint32_t> state;
    std::atomic<std::uint64_t> process; // a token that no other process has
    // Its id, and where its memory holds that token, by which others find out whether they can attach to it; 0: they
    // shall not. Then whether it can attach to all of them.
    std::atomic<std::int32_t> process_id;
    std::atomic<std::uint64_t> token_address;
    std::atomic<std::uint32_t> attaches;     // 0: it is yet to find out
    std::atomic<std::uint32_t> num_departed; // of the others, those that will never look into this arena again
    /// Offsets of this rank's control pages, so that whoever learns of a death can tell everybody.
    std::array<std::atomic<std::uint64_t>, max_endpoints> endpoints;

    bool is_dead() const { return state.load(std::memory_order_acquire) >= dead; }
    bool is_cut_off() const { return state.load(std::memory_order_acquire) == cut_off; }
};

/// Each rank's guard holds its own robust word and sleeps on that of the next rank. When a process dies, however it
/// dies, the kernel marks the words that its threads hold and wakes the sleeper, which tells everybody and goes on to
/// the rank after the dead one. Linux documents the protocol in "robust futexes"; the list has one entry here.
class Guard {
  public:
    /// What the guard of one rank sees of another: what that shows, and the memory that its control pages lie in.
    struct Rank {
        std::reference_wrapper<Presence> presence;
        std::span<std::byte> memory;
    };

    /// Returns once the robust word is held. Throws a resource failure where the system has no thread for it, or no
    /// robust futexes, as in some sandboxes and emulators. Call stop() before this is destroyed, unless in a forked
    /// child.
    explicit Guard(Presence &own);
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

    /// Watches the others from now on. `ranks`: all of this host, in order, among which this one is at `place`; their
    /// memory must outlive stop(). `tell`: comes after each death that this guard has seen first.
    void watch(std::size_t place, std::vector<Rank> ranks, std::function<void()> tell);
    void stop();

    /// All that wait for one of these ranks, or for others with them, look again.
    static void alarm(std::span<const Rank> ranks);

  private:
    void run();
    void watch_others();
    void report_death(std::size_t rank);

    Presence &own_;
    std::size_t rank_ = 0;
    std::vector<Rank> ranks_; // written by watch() before `phase_` tells the thread, with the next one
    std::function<void()> tell_;
    std::atomic<std::uint32_t> phase_{0}; // between this object and its thread: see guard.cpp
    int refusal_ = 0;                     // errno; written before `phase_` tells of it
    std::thread thread_;
};

} // namespace hocket
