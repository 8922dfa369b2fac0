// How much can flow from one node to another, and the least cut that limits it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace hocket::simulator {

/// The algorithm of Dinic (1970) on directed links with whole capacities. Keeps its memory between runs.
class MaxFlow {
  public:
    /// Link i leads from source[i] to target[i], both below num_nodes.
    MaxFlow(std::size_t num_nodes, std::span<const std::int64_t> source, std::span<const std::int64_t> target);

    std::size_t num_nodes() const { return begins_.size() - 1; }
    std::size_t num_links() const { return heads_.size() / 2; }

    /// The largest flow. Capacities out of `from` must add up to what fits.
    std::int64_t run(std::span<const std::int64_t> capacity, std::size_t from, std::size_t to);

    /// The first target, by its place in the list, that gets less than `enough`, with what it gets. {-1, enough}: none.
    std::pair<std::int64_t, std::int64_t> find_short(std::span<const std::int64_t> capacity, std::size_t from,
                                                     std::span<const std::int64_t> targets, std::int64_t enough);

    /// After a run: what flows along a link.
    std::int64_t flow_of(std::size_t link) const { return left_[2 * link + 1]; }

    /// After a run: whether the node lies on the side of `from` of the least cut that is nearest to it.
    bool before_cut(std::size_t node) const { return levels_[node] >= 0; }

  private:
    // Arc 2i is link i, arc 2i + 1 its way back.
    std::size_t tail(std::size_t arc) const { return heads_[arc ^ 1]; }
    bool find_levels(std::size_t from, std::size_t to);
    std::int64_t fill_levels(std::size_t from, std::size_t to);
    std::int64_t push_along_path();

    std::vector<std::size_t> heads_, begins_, arcs_; // arcs by the node they leave
    std::vector<std::int64_t> left_;                 // of each arc
    std::vector<std::int64_t> levels_;               // of each node: arcs from `from`, -1 where it is not reached
    std::vector<std::size_t> next_;                  // of each node: the first arc not yet given up
    std::vector<std::size_t> queue_, path_;
};

} // namespace hocket::simulator
