#include "simulator/max_flow.h"

#include <algorithm>
#include <limits>

namespace hocket::simulator {

MaxFlow::MaxFlow(std::size_t num_nodes, std::span<const std::int64_t> source, std::span<const std::int64_t> target)
    : heads_(2 * source.size()), begins_(num_nodes + 1, 0), arcs_(heads_.size()), left_(heads_.size()) {
    for (std::size_t link = 0; link < source.size(); ++link) {
        heads_[2 * link] = static_cast<std::size_t>(target[link]);
        heads_[2 * link + 1] = static_cast<std::size_t>(source[link]);
    }
    for (std::size_t arc = 0; arc < heads_.size(); ++arc) ++begins_[tail(arc) + 1];
    for (std::size_t node = 0; node < num_nodes; ++node) begins_[node + 1] += begins_[node];
    next_.assign(begins_.begin(), begins_.end() - 1);
    for (std::size_t arc = 0; arc < heads_.size(); ++arc) arcs_[next_[tail(arc)]++] = arc;
    levels_.resize(num_nodes);
}

std::int64_t MaxFlow::run(std::span<const std::int64_t> capacity, std::size_t from, std::size_t to) {
    for (std::size_t link = 0; link < capacity.size(); ++link) {
        left_[2 * link] = capacity[link];
        left_[2 * link + 1] = 0;
    }
    std::int64_t flow = 0;
    while (find_levels(from, to)) flow += fill_levels(from, to);
    return flow;
}

std::pair<std::int64_t, std::int64_t> MaxFlow::find_short(std::span<const std::int64_t> capacity, std::size_t from,
                                                          std::span<const std::int64_t> targets, std::int64_t enough) {
    for (std::size_t place = 0; place < targets.size(); ++place) {
        const std::int64_t flow = run(capacity, from, static_cast<std::size_t>(targets[place]));
        if (flow < enough) return {static_cast<std::int64_t>(place), flow};
    }
    return {-1, enough};
}

/// Levels of all nodes that `from` still reaches; false where `to` is not among them.
bool MaxFlow::find_levels(std::size_t from, std::size_t to) {
    std::ranges::fill(levels_, -1);
    levels_[from] = 0;
    queue_.assign(1, from);
    for (std::size_t first = 0; first < queue_.size(); ++first) {
        const std::size_t node = queue_[first];
        for (std::size_t place = begins_[node]; place < begins_[node + 1]; ++place) {
            const std::size_t head = heads_[arcs_[place]];
            if (left_[arcs_[place]] == 0 || levels_[head] >= 0) continue;
            levels_[head] = levels_[node] + 1;
            queue_.push_back(head);
        }
    }
    return levels_[to] >= 0;
}

/// Pushes along paths that go up one level with each arc, until there is none.
std::int64_t MaxFlow::fill_levels(std::size_t from, std::size_t to) {
    next_.assign(begins_.begin(), begins_.end() - 1);
    path_.clear();
    std::int64_t flow = 0;
    std::size_t node = from;
    for (;;) {
        if (node == to) {
            flow += push_along_path();
            node = path_.empty() ? from : heads_[path_.back()];
        }
        while (next_[node] < begins_[node + 1]) {
            const std::size_t arc = arcs_[next_[node]];
            if (left_[arc] > 0 && levels_[heads_[arc]] == levels_[node] + 1) break;
            ++next_[node];
        }
        if (next_[node] < begins_[node + 1]) {
            path_.push_back(arcs_[next_[node]]);
            node = heads_[path_.back()];
        } else if (path_.empty()) {
            return flow;
        } else {
            node = tail(path_.back());
            path_.pop_back();
            ++next_[node];
        }
    }
}

/// As much as fits; the path is cut where it is now full.
std::int64_t MaxFlow::push_along_path() {
    std::int64_t pushed = std::numeric_limits<std::int64_t>::max();
    for (const std::size_t arc : path_) pushed = std::min(pushed, left_[arc]);
    std::size_t open = path_.size();
    for (std::size_t place = path_.size(); place-- > 0;) {
        left_[path_[place]] -= pushed;
        left_[path_[place] ^ 1] += pushed;
        if (left_[path_[place]] == 0) open = place;
    }
    path_.resize(open);
    return pushed;
}

} // namespace hocket::simulator
