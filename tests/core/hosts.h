// The ranks of a World on several "hosts": they share no memory, and the courier of each host does what its agent does
// (src/hocket/runtime/network/agent.py). What couriers tell each other never leaves this process.
#pragma once

#include "mirrors/mirrors.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace hocket::test {

class Hosts {
  public:
    /// `sizes`: the number of ranks on each host, which are in order. `capacity`: of each rank's arena.
    Hosts(const std::vector<int> &sizes, std::size_t capacity);
    Hosts(const Hosts &) = delete;
    Hosts &operator=(const Hosts &) = delete;
    /// Ends the couriers.
    ~Hosts();

    /// What Context::join takes.
    std::vector<int> elsewhere(int rank) const;
    int mirror(int of, int rank) const { return courier_of(rank).mirrors.descriptor(of); }
    int bell(int rank) const { return courier_of(rank).mirrors.bell(); }
    std::vector<std::string> names() const;
    /// `contexts`: by rank; all have joined.
    void open(std::vector<std::shared_ptr<Context>> contexts);

    /// Nobody carries anything until this is called with false.
    void pause(bool begins) { is_paused_.store(begins); }
    /// The other ranks see what they see when the process of this rank ends. If it is a leader, its courier ends.
    void kill(int rank);
    /// This host and all others cannot reach each other any more.
    void cut(int host);

  private:
    struct Letter {
        enum class Kind { news, ask, proposal, decision, death } kind;
        int from; // the host that has sent it, or has passed it on
        std::vector<std::byte> bytes{};
        bool wakes = false;
        int rank = -1;
    };
    struct Courier {
        Courier(std::vector<std::size_t> capacities) : mirrors(capacities) {}
        Mirrors mirrors;
        std::mutex mutex; // guards the next one
        std::vector<Letter> letters;
        int wake = -1; // an eventfd
        std::atomic<bool> has_ended{false}, is_cut_off{false};
        Clock::time_point asked_until{};
        std::thread thread;
    };

    Courier &courier_of(int rank) const { return *couriers_[static_cast<std::size_t>(host_of(rank))]; }
    int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
    Context &leader_of(int host) const;
    void run(int host);
    void hear(int host, const Letter &letter);
    void look(int host);
    void decide(const std::vector<std::byte> &reason);
    void send(int from, int to, Letter letter) const;
    void tell_others(int host, const Letter &letter, int but = -1) const;
    void lose(int host, bool is_cut_off);
    void end(Courier &courier);

    std::vector<int> hosts_; // by rank
    std::vector<std::unique_ptr<Courier>> couriers_;
    std::vector<std::shared_ptr<Context>> contexts_;
    std::atomic<bool> is_paused_{false};
    std::set<std::uint64_t> decided_; // by the courier of host 0
};

} // namespace hocket::test
