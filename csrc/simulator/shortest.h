// Shortest ways through a network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hocket::simulator {

using Numbers = std::span<const std::int64_t>;

/// The least sum of weights from a node to all others (Dijkstra 1959); infinity where no way leads.
void shortest_seconds(Numbers source, Numbers target, std::span<const double> weights, std::size_t start,
                      std::span<double> best);

/// Ways of the fewest hops; of several, a hash of the flow's key and the node takes one at each node.
class Router {
  public:
    /// Link i leads from source[i] to target[i] and counts as hops[i] > 0; only nodes that forward are passed.
    Router(Numbers source, Numbers target, Numbers hops, std::span<const bool> forwards);

    std::size_t num_nodes() const { return forwards_.size(); }

    /// The nodes of each way, from its source to its target, one way after the other; ends[f] is where way f ends in
    /// `nodes`. A way on which nothing leads on is empty. Faster where flows with the same target stand together.
    void route(Numbers from, Numbers to, Numbers keys, std::vector<std::int64_t> &nodes, std::span<std::int64_t> ends);

  private:
    struct Arc {
        std::size_t from, to;
        std::int64_t hops;
    };

    void aim_at(std::size_t goal);
    void measure(std::size_t from);
    bool leads_on(const Arc &arc) const;
    std::span<const std::size_t> choices(std::size_t node);

    std::vector<Arc> leaving_, entering_; // by the node they leave, and by the node they enter
    std::vector<std::size_t> leaving_begins_, entering_begins_;
    std::vector<bool> forwards_;
    std::size_t goal_;
    std::vector<std::int64_t> hops_to_goal_; // -1: no way leads there, or it is farther than the rounds have come
    std::vector<std::vector<std::size_t>> rounds_;
    std::size_t round_ = 0;                                     // the next one
    std::vector<std::size_t> next_, next_begins_, next_counts_; // the choices found for this goal so far
};

} // namespace hocket::simulator
