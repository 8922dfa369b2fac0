#include "network.h"

#include <algorithm>
#include <limits>

namespace hocket::simulator {

namespace {

constexpr double slack = 1 + 1e-9; // below which a link has room for all that may come

/// A flow can be no faster than the narrowest link of its way alone. A link that has room for all its flows at that
/// speed holds up none of them; the others are contested. When flows come and go, those that share contested links with
/// them get new rates, and of the rest only whoever would not be treated fairly otherwise.
class Fluid final : public Network {
  public:
    Fluid(const Problem &problem, Pool<Travel> &travels, Queue &queue, Listener &listener)
        : problem_(problem), travels_(travels), queue_(queue), listener_(listener), links_(problem.num_links()) {
        std::int64_t num_channels = 0;
        for (const std::int64_t channel : problem.channel) num_channels = std::max(num_channels, channel + 1);
        channels_.resize(static_cast<std::size_t>(num_channels));
        std::vector<std::size_t> longest(channels_.size() + 1);
        for (std::size_t message = 0; message < problem.channel.size(); ++message) {
            std::size_t &length = longest[static_cast<std::size_t>(problem.channel[message]) + 1];
            length = std::max(length, problem.paths.end(message) - problem.paths.begin(message));
        }
        for (std::size_t i = 1; i < longest.size(); ++i) longest[i] += longest[i - 1];
        for (std::size_t i = 0; i < channels_.size(); ++i) channels_[i].places = longest[i];
        places_.resize(longest.back());
    }

    void send(std::int32_t travel, double seconds) override {
        const std::int32_t index = channel_of(travel);
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        if (channel.travel >= 0) {
            channel.waiting.push(travels_, travel);
        } else {
            start(index, travel, seconds);
        }
    }

    void handle(const Event &event) override {
        Channel &channel = channels_[static_cast<std::size_t>(event.subject)];
        if (channel.travel < 0 || channel.version != event.version) return;
        const std::int32_t travel = channel.travel;
        if (channel.waiting.empty()) {
            stop(event.subject);
        } else {
            replace(event.subject, channel.waiting.pop(travels_), event.seconds);
        }
        listener_.has_left(travel, event.seconds);
        const double latency = problem_.seconds[message_of(travel)];
        if (latency > 0) {
            queue_.push(event.seconds + latency, Kind::arrive, travel);
        } else {
            listener_.has_arrived(travel, event.seconds);
        }
    }

    void settle(double seconds) override {
        if (touched_.empty() && started_.empty()) return;
        ++stamp_;
        members_.clear();
        for (const std::int32_t index : started_) join(index);
        for (const std::size_t link : touched_) {
            links_[link].touched = false;
            join_users(link);
        }
        started_.clear();
        touched_.clear();
        do { solve(); } while (grow());
        for (const std::int32_t index : members_) set_rate(index, seconds);
    }

  private:
    struct Channel {
        std::int32_t travel = -1; // whose flow this is now
        std::uint32_t version = 0, stamp = 0;
        double left = 0, rate = 0, since = 0; // bytes left when the rate began
        double bound = 0;                     // the rate it has alone
        double fresh = 0;                     // of a member: the rate that it is to have
        std::int64_t bottleneck = -1;         // the link that holds it up, or -1: its bound
        std::size_t begin = 0, end = 0;       // its way: entries of the problem's paths
        std::size_t places = 0;               // where each link of the way knows it: places_[places ...]
        Line waiting;
    };
    struct User {
        std::int32_t channel;
        std::int32_t entry; // which link of its way this is
    };
    struct Link {
        std::vector<User> users;
        double demand = 0;            // of all users at their bounds
        double load = 0, fastest = 0; // of all users as they are, and would be: where a member is among them
        std::uint32_t round = 0;
        std::uint32_t joined = 0; // the stamp at which all users were made members
        std::int64_t local = 0;
        bool touched = false;
    };

    std::size_t message_of(std::int32_t travel) { return static_cast<std::size_t>(travels_[travel].message); }
    std::int32_t channel_of(std::int32_t travel) {
        return static_cast<std::int32_t>(problem_.channel[message_of(travel)]);
    }
    bool contested(std::size_t link) const {
        return links_[link].users.size() > 1 && links_[link].demand > problem_.bytes_per_second[link] * slack;
    }
    void touch(std::size_t link) {
        if (links_[link].touched || !contested(link)) return;
        links_[link].touched = true;
        touched_.push_back(link);
    }

    void start(std::int32_t index, std::int32_t travel, double seconds) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        const Flows &paths = problem_.paths;
        const std::size_t message = message_of(travel), begin = paths.begin(message), end = paths.end(message);
        channel.begin = begin;
        channel.end = end;
        channel.travel = travel;
        channel.left = travels_[travel].bytes;
        channel.rate = 0;
        channel.since = travels_[travel].started = seconds;
        channel.bound = std::numeric_limits<double>::infinity();
        for (std::size_t entry = begin; entry < end; ++entry) {
            const double alone = problem_.bytes_per_second[paths.link(entry)] / paths.weight(entry);
            channel.bound = std::min(channel.bound, alone);
        }
        for (std::size_t entry = begin; entry < end; ++entry) {
            Link &link = links_[paths.link(entry)];
            places_[channel.places + entry - begin] = static_cast<std::int32_t>(link.users.size());
            link.users.push_back({index, static_cast<std::int32_t>(entry - begin)});
            link.demand += channel.bound * paths.weight(entry);
            touch(paths.link(entry));
        }
        started_.push_back(index);
    }

    void stop(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        const Flows &paths = problem_.paths;
        const std::size_t begin = channel.begin;
        for (std::size_t entry = begin; entry < channel.end; ++entry) {
            touch(paths.link(entry));
            Link &link = links_[paths.link(entry)];
            const std::int32_t place = places_[channel.places + entry - begin];
            const User moved = link.users.back();
            link.users[static_cast<std::size_t>(place)] = moved;
            places_[channels_[static_cast<std::size_t>(moved.channel)].places + static_cast<std::size_t>(moved.entry)] =
                place;
            link.users.pop_back();
            link.demand = link.users.empty() ? 0 : link.demand - channel.bound * paths.weight(entry);
        }
        channel.travel = -1;
        ++channel.version;
    }

    /// A flow ends, and the next one begins. One of the same message goes the same way at the same rate: nobody
    /// notices.
    void replace(std::int32_t index, std::int32_t travel, double seconds) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        if (travels_[travel].message != travels_[channel.travel].message || channel.rate <= 0) {
            stop(index);
            start(index, travel, seconds);
            return;
        }
        channel.travel = travel;
        channel.left = travels_[travel].bytes;
        channel.since = travels_[travel].started = seconds;
        queue_.push(seconds + channel.left / channel.rate, Kind::flown, index, ++channel.version);
    }

    void join(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        if (channel.travel < 0 || channel.stamp == stamp_) return;
        channel.stamp = stamp_;
        members_.push_back(index);
    }

    void join_users(std::size_t number) {
        Link &link = links_[number];
        if (link.joined == stamp_) return;
        link.joined = stamp_;
        for (const User &user : link.users) join(user.channel);
    }
    bool is_member(const Channel &channel) const { return channel.stamp == stamp_; }
    double weight_of(const Channel &channel, const User &user) const {
        return problem_.paths.weight(channel.begin + static_cast<std::size_t>(user.entry));
    }
    bool is_full(std::size_t link) const { return links_[link].load * slack >= problem_.bytes_per_second[link]; }
    bool holds_up(std::size_t link, double rate) const { return is_full(link) && rate * slack >= links_[link].fastest; }

    /// Fair rates of the members among themselves, while all others keep theirs.
    void solve() {
        ++round_;
        offsets_.assign(1, 0);
        used_.clear();
        sharing_.clear();
        local_links_.clear();
        local_weights_.clear();
        capacity_.clear();
        for (const std::int32_t index : members_) gather(index);
        rates_.resize(sharing_.size());
        max_min_.solve(capacity_, Flows{offsets_, local_links_, local_weights_, {}}, rates_);
        for (std::size_t i = 0; i < sharing_.size(); ++i) {
            Channel &channel = channels_[static_cast<std::size_t>(sharing_[i])];
            channel.fresh = rates_[i];
            for (std::size_t entry = channel.begin; entry < channel.end; ++entry) {
                Link &link = links_[problem_.paths.link(entry)];
                if (link.round != round_) continue;
                link.load += channel.fresh * problem_.paths.weight(entry);
                link.fastest = std::max(link.fastest, channel.fresh);
            }
        }
    }

    /// Puts a member into the problem: the contested links of its way, with what others leave of them.
    void gather(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        const Flows &paths = problem_.paths;
        const std::size_t before = local_links_.size();
        double narrowest = std::numeric_limits<double>::infinity(); // of the contested ones, if it had them alone
        for (std::size_t entry = channel.begin; entry < channel.end; ++entry) {
            const std::size_t number = paths.link(entry);
            if (!contested(number)) continue;
            Link &link = links_[number];
            if (link.round != round_) {
                link.round = round_;
                link.local = static_cast<std::int64_t>(capacity_.size());
                add_others(link);
                capacity_.push_back(problem_.bytes_per_second[number] - link.load);
                used_.push_back(number);
            }
            local_links_.push_back(link.local);
            local_weights_.push_back(paths.weight(entry));
            narrowest = std::min(narrowest, problem_.bytes_per_second[number] / paths.weight(entry));
        }
        channel.fresh = channel.bound;
        if (local_links_.size() == before) return;
        if (channel.bound < narrowest) { // else no rate could be above the bound
            local_links_.push_back(static_cast<std::int64_t>(capacity_.size())); // its own link, as wide as its bound
            local_weights_.push_back(1);
            capacity_.push_back(channel.bound);
        }
        offsets_.push_back(static_cast<std::int64_t>(local_links_.size()));
        sharing_.push_back(index);
    }

    /// What users of the link that are no members take of it.
    void add_others(Link &link) const {
        link.load = link.fastest = 0;
        if (link.joined == stamp_) return;
        for (const User &user : link.users) {
            const Channel &other = channels_[static_cast<std::size_t>(user.channel)];
            if (is_member(other)) continue;
            link.load += other.rate * weight_of(other, user);
            link.fastest = std::max(link.fastest, other.rate);
        }
    }

    /// Rates are fair exactly if each flow is held up by a full link on which no other is faster, or by its bound.
    /// Makes members of those for which this no longer holds, or of those who are in the way; whether there were any.
    bool grow() {
        const std::size_t before = members_.size();
        const Flows &paths = problem_.paths;
        for (std::size_t i = 0; i < before; ++i) {
            Channel &channel = channels_[static_cast<std::size_t>(members_[i])];
            channel.bottleneck = -1;
            if (channel.fresh * slack >= channel.bound) continue;
            const std::size_t end = channel.end;
            std::size_t entry = channel.begin;
            while (entry < end && !(contested(paths.link(entry)) && holds_up(paths.link(entry), channel.fresh)))
                ++entry;
            if (entry < end) {
                channel.bottleneck = paths.links[entry];
                continue;
            }
            for (entry = channel.begin; entry < end; ++entry) {
                const std::size_t link = paths.link(entry);
                if (contested(link) && is_full(link)) join_users(link);
            }
        }
        for (const std::size_t link : used_) {
            if (links_[link].joined == stamp_) continue;
            for (const User &user : links_[link].users) {
                const Channel &other = channels_[static_cast<std::size_t>(user.channel)];
                const bool held_here = other.bottleneck == static_cast<std::int64_t>(link);
                if (!is_member(other) && held_here && !holds_up(link, other.rate)) join(user.channel);
            }
        }
        return members_.size() > before;
    }

    void set_rate(std::int32_t index, double seconds) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        if (channel.fresh == channel.rate) return;
        if (channel.rate > 0) {
            channel.left = std::max(0.0, channel.left - channel.rate * (seconds - channel.since));
            channel.since = seconds;
        }
        channel.rate = channel.fresh;
        queue_.push(channel.since + channel.left / channel.rate, Kind::flown, index, ++channel.version);
    }

    const Problem &problem_;
    Pool<Travel> &travels_;
    Queue &queue_;
    Listener &listener_;
    std::vector<Link> links_;
    std::vector<Channel> channels_;
    std::vector<std::int32_t> places_;
    std::vector<std::size_t> touched_;  // contested links whose users changed
    std::vector<std::int32_t> started_; // channels whose flow has no rate yet
    std::uint32_t stamp_ = 0, round_ = 0;
    std::vector<std::int32_t> members_, sharing_; // flows whose rates may change; those of them that share a link
    std::vector<std::size_t> used_;               // the links that these share
    // The problem of those that share.
    std::vector<std::int64_t> offsets_, local_links_;
    std::vector<double> local_weights_, capacity_, rates_;
    MaxMin max_min_;
};

} // namespace

std::unique_ptr<Network> make_fluid(const Problem &problem, Pool<Travel> &travels, Queue &queue, Listener &listener) {
    return std::make_unique<Fluid>(problem, travels, queue, listener);
}

} // namespace hocket::simulator
