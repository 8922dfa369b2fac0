// How travels get from their sender to their receiver: as flows, or as packets that nodes store and forward.
#pragma once

#include "simulator/problem.h"
#include "simulator/queue.h"
#include "simulator/snapshot.h"

#include <memory>
#include <vector>

namespace hocket::simulator {

/// Is told what happens to travels.
class Listener {
  public:
    virtual void has_left(std::int32_t travel, double seconds) = 0;
    virtual void has_arrived(std::int32_t travel, double seconds) = 0;

  protected:
    ~Listener() = default;
};

class Network {
  public:
    virtual ~Network() = default;
    virtual void send(std::int32_t travel, double seconds) = 0;
    virtual void handle(const Event &event) = 0;
    /// All that happens at this time has been told.
    virtual void settle(double) {}
    /// All that is known, but for events: of flows, as of nothing else repetitions are left out.
    virtual void list(Snapshot &) {}
};

/// Flows through all links of their way at once, at max-min fair rates; what is sent arrives a latency later. A channel
/// has one flow at a time; of travels that come to it at one time, the first by Travel's order goes first.
std::unique_ptr<Network> make_fluid(const Problem &problem, Pool<Travel> &travels, Queue &queue, Listener &listener);

/// Packets that are received whole before they are sent on, each link first in first out.
std::unique_ptr<Network> make_forwarding(const Problem &problem, Pool<Travel> &travels, Queue &queue,
                                         Listener &listener);

} // namespace hocket::simulator
