#include "simulator/max_min.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace hocket::simulator {

void MaxMin::transpose(const Flows &flows, std::size_t num_links) {
    user_begins_.assign(num_links + 2, 0);
    for (const std::int64_t link : flows.links) ++user_begins_[static_cast<std::size_t>(link) + 2];
    for (std::size_t link = 2; link < user_begins_.size(); ++link) user_begins_[link] += user_begins_[link - 1];
    users_.resize(flows.links.size());
    for (std::size_t flow = 0; flow < flows.size(); ++flow) {
        for (std::size_t entry = flows.begin(flow); entry < flows.end(flow); ++entry) {
            users_[user_begins_[flows.link(entry) + 1]++] = flow;
        }
    }
}

void MaxMin::solve(std::span<const double> capacity, const Flows &flows, std::span<double> rates) {
    const std::size_t num_links = capacity.size();
    transpose(flows, num_links);
    left_.assign(capacity.begin(), capacity.end());
    demand_.assign(num_links, 0.0);
    open_.assign(num_links, 0);
    fixed_.assign(flows.size(), 0);
    growing_ = 0;
    for (std::size_t flow = 0; flow < flows.size(); ++flow) {
        for (std::size_t entry = flows.begin(flow); entry < flows.end(flow); ++entry) {
            demand_[flows.link(entry)] += flows.demand(entry, flow);
            ++open_[flows.link(entry)];
        }
        rates[flow] = std::numeric_limits<double>::infinity();
        growing_ += flows.begin(flow) < flows.end(flow) ? 1 : 0;
    }
    queue_.clear();
    for (std::size_t link = 0; link < num_links; ++link) {
        if (open_[link] > 0) queue_.emplace_back(left_[link] / demand_[link], link);
    }
    std::ranges::make_heap(queue_, std::greater<>(), &Filling::first);
    while (growing_ > 0) {
        std::ranges::pop_heap(queue_, std::greater<>(), &Filling::first);
        const std::size_t link = queue_.back().second;
        queue_.pop_back();
        if (open_[link] == 0) continue;
        const double share = std::max(left_[link], 0.0) / demand_[link];
        // A share only grows while other links fill: what the queue says of it may be out of date, but never too much.
        if (!queue_.empty() && share > queue_.front().first) {
            queue_.emplace_back(share, link);
            std::ranges::push_heap(queue_, std::greater<>(), &Filling::first);
        } else {
            fix(link, share, flows, rates);
        }
    }
}

/// The link is full: its flows grow no more.
void MaxMin::fix(std::size_t link, double share, const Flows &flows, std::span<double> rates) {
    for (std::size_t user = user_begins_[link]; user < user_begins_[link + 1]; ++user) {
        const std::size_t flow = users_[user];
        if (fixed_[flow]) continue;
        fixed_[flow] = 1;
        --growing_;
        rates[flow] = share / flows.penalty(flow);
        for (std::size_t entry = flows.begin(flow); entry < flows.end(flow); ++entry) {
            const std::size_t other = flows.link(entry);
            left_[other] -= flows.weight(entry) * rates[flow];
            demand_[other] -= flows.demand(entry, flow);
            --open_[other];
        }
    }
}

} // namespace hocket::simulator
