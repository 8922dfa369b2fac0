#include "simulator/shortest.h"

#include "simulator/hashing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace hocket::simulator {

namespace {

constexpr std::size_t UNKNOWN = std::numeric_limits<std::size_t>::max();

/// Where the entries of each node begin among entries that are ordered by node.
template <typename NodeOf> std::vector<std::size_t> begins_of(std::size_t num_nodes, std::size_t size, NodeOf node_of) {
    std::vector<std::size_t> begins(num_nodes + 1, 0);
    for (std::size_t entry = 0; entry < size; ++entry) ++begins[node_of(entry) + 1];
    for (std::size_t node = 0; node < num_nodes; ++node) begins[node + 1] += begins[node];
    return begins;
}

} // namespace

void shortest_seconds(Numbers source, Numbers target, std::span<const double> weights, std::size_t start,
                      std::span<double> best) {
    const auto node_of = [source](std::size_t link) { return static_cast<std::size_t>(source[link]); };
    const std::vector<std::size_t> begins = begins_of(best.size(), source.size(), node_of);
    std::vector<std::size_t> links(source.size()), places(begins.begin(), begins.end() - 1);
    for (std::size_t link = 0; link < source.size(); ++link) links[places[node_of(link)]++] = link;
    std::ranges::fill(best, std::numeric_limits<double>::infinity());
    best[start] = 0;
    using Reached = std::pair<double, std::size_t>;
    std::priority_queue<Reached, std::vector<Reached>, std::greater<>> queue;
    queue.emplace(0.0, start);
    while (!queue.empty()) {
        const auto [seconds, node] = queue.top();
        queue.pop();
        if (seconds > best[node]) continue;
        for (std::size_t place = begins[node]; place < begins[node + 1]; ++place) {
            const auto end = static_cast<std::size_t>(target[links[place]]);
            const double reached = seconds + weights[links[place]];
            if (reached >= best[end]) continue;
            best[end] = reached;
            queue.emplace(reached, end);
        }
    }
}

Router::Router(Numbers source, Numbers target, Numbers hops, std::span<const bool> forwards)
    : forwards_(forwards.begin(), forwards.end()), goal_(UNKNOWN) {
    for (std::size_t link = 0; link < source.size(); ++link) {
        leaving_.push_back(
            {static_cast<std::size_t>(source[link]), static_cast<std::size_t>(target[link]), hops[link]});
    }
    entering_ = leaving_;
    std::ranges::sort(leaving_, {}, [](const Arc &arc) { return std::pair(arc.from, arc.to); });
    std::ranges::sort(entering_, {}, [](const Arc &arc) { return std::pair(arc.to, arc.from); });
    leaving_begins_ = begins_of(num_nodes(), leaving_.size(), [this](std::size_t arc) { return leaving_[arc].from; });
    entering_begins_ = begins_of(num_nodes(), entering_.size(), [this](std::size_t arc) { return entering_[arc].to; });
}

void Router::route(Numbers from, Numbers to, Numbers keys, std::vector<std::int64_t> &nodes,
                   std::span<std::int64_t> ends) {
    for (std::size_t flow = 0; flow < from.size(); ++flow) {
        if (goal_ != static_cast<std::size_t>(to[flow])) aim_at(static_cast<std::size_t>(to[flow]));
        measure(static_cast<std::size_t>(from[flow]));
        const std::size_t begin = nodes.size();
        auto node = static_cast<std::size_t>(from[flow]);
        nodes.push_back(from[flow]);
        while (node != goal_) {
            const auto ahead = choices(node);
            if (ahead.empty()) {
                nodes.resize(begin);
                break;
            }
            node = ahead[mix(static_cast<std::uint64_t>(keys[flow]), node) % ahead.size()];
            nodes.push_back(static_cast<std::int64_t>(node));
        }
        ends[flow] = static_cast<std::int64_t>(nodes.size());
    }
}

void Router::aim_at(std::size_t goal) {
    goal_ = goal;
    next_.clear();
    next_begins_.assign(num_nodes(), UNKNOWN);
    next_counts_.assign(num_nodes(), 0);
    hops_to_goal_.assign(num_nodes(), -1);
    hops_to_goal_[goal] = 0;
    rounds_.assign(1, {goal});
    round_ = 0;
}

/// Finds how far a node is from the goal, in rounds of the nodes that are equally far (Dial 1969). All that are nearer
/// are known then; what is farther costs nothing.
void Router::measure(std::size_t from) {
    const auto known = [&] {
        return hops_to_goal_[from] >= 0 && hops_to_goal_[from] <= static_cast<std::int64_t>(round_);
    };
    for (; round_ < rounds_.size() && !known(); ++round_) {
        for (std::size_t place = 0; place < rounds_[round_].size(); ++place) {
            const std::size_t node = rounds_[round_][place];
            const bool is_final = hops_to_goal_[node] == static_cast<std::int64_t>(round_);
            if (!is_final || (node != goal_ && !forwards_[node])) continue;
            for (std::size_t arc = entering_begins_[node]; arc < entering_begins_[node + 1]; ++arc) {
                const std::size_t before = entering_[arc].from;
                const std::int64_t reached = hops_to_goal_[node] + entering_[arc].hops;
                if (hops_to_goal_[before] >= 0 && hops_to_goal_[before] <= reached) continue;
                hops_to_goal_[before] = reached;
                if (rounds_.size() <= static_cast<std::size_t>(reached)) {
                    rounds_.resize(static_cast<std::size_t>(reached) + 1);
                }
                rounds_[static_cast<std::size_t>(reached)].push_back(before);
            }
        }
    }
}

bool Router::leads_on(const Arc &arc) const {
    return hops_to_goal_[arc.to] >= 0 && (arc.to == goal_ || forwards_[arc.to]) &&
           hops_to_goal_[arc.from] == hops_to_goal_[arc.to] + arc.hops;
}

/// The nodes that a way to the goal may go on to, in the order of their numbers.
std::span<const std::size_t> Router::choices(std::size_t node) {
    if (next_begins_[node] == UNKNOWN) {
        next_begins_[node] = next_.size();
        for (std::size_t place = leaving_begins_[node]; place < leaving_begins_[node + 1]; ++place) {
            const Arc &arc = leaving_[place];
            const bool again = next_.size() > next_begins_[node] && next_.back() == arc.to;
            if (!again && leads_on(arc)) next_.push_back(arc.to);
        }
        next_counts_[node] = next_.size() - next_begins_[node];
    }
    return {next_.data() + next_begins_[node], next_counts_[node]};
}

} // namespace hocket::simulator
