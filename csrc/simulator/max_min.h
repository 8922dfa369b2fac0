// Max-min fair rates of flows that share links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hocket::simulator {

/// Which flow uses which link, and how much of it for each unit of its rate. Flow f has the entries offsets[f] to
/// offsets[f + 1]; no weights: all are 1. A flow of penalty 2 gets half of what one of penalty 1 gets beside it.
struct Flows {
    std::span<const std::int64_t> offsets;
    std::span<const std::int64_t> links;
    std::span<const double> weights;
    std::span<const double> penalties;

    std::size_t size() const { return offsets.size() - 1; }
    std::size_t begin(std::size_t flow) const { return static_cast<std::size_t>(offsets[flow]); }
    std::size_t end(std::size_t flow) const { return static_cast<std::size_t>(offsets[flow + 1]); }
    std::size_t link(std::size_t entry) const { return static_cast<std::size_t>(links[entry]); }
    double weight(std::size_t entry) const { return weights.empty() ? 1.0 : weights[entry]; }
    double penalty(std::size_t flow) const { return penalties.empty() ? 1.0 : penalties[flow]; }
    double demand(std::size_t entry, std::size_t flow) const {
        return penalties.empty() ? weight(entry) : weight(entry) / penalties[flow];
    }
};

/// Progressive filling: rates of all flows grow together, those through the link that is full first stop, and so on.
/// Keeps its memory between problems.
class MaxMin {
  public:
    /// Rates of all flows; of one that uses no link, infinity.
    void solve(std::span<const double> capacity, const Flows &flows, std::span<double> rates);

  private:
    using Filling = std::pair<double, std::size_t>; // share of each unit of demand, link

    void transpose(const Flows &flows, std::size_t num_links);
    void fix(std::size_t link, double share, const Flows &flows, std::span<double> rates);

    std::vector<std::size_t> user_begins_, users_; // the flows of each link
    std::vector<double> left_, demand_;            // of each link: capacity, and weights of flows that still grow
    std::vector<std::size_t> open_;                // of each link: entries of flows that still grow
    std::vector<char> fixed_;
    std::size_t growing_ = 0; // flows whose rate is not fixed yet
    std::vector<Filling> queue_;
};

} // namespace hocket::simulator
