#include "simulator/network.h"

#include <algorithm>
#include <cmath>
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
        for (std::size_t link = 0; link < links_.size(); ++link) {
            links_[link].bytes_per_second = problem.bytes_per_second[link];
        }
    }

    void send(std::int32_t travel, double seconds) override {
        const std::int32_t index = channel_of(travel);
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        travels_[travel].started = seconds;
        channel.waiting.insert(travels_, travel);
        if (channel.travel < 0) open(index);
    }

    void handle(const Event &event) override {
        Channel &channel = channels_[static_cast<std::size_t>(event.subject)];
        if (channel.travel < 0 || channel.version != event.version) return;
        const std::int32_t travel = channel.travel;
        channel.travel = -1;
        channel.since = event.seconds;
        open(event.subject);
        listener_.has_left(travel, event.seconds);
        const double latency = problem_.seconds[message_of(travel)];
        if (latency > 0) {
            queue_.push(event.seconds + latency, Kind::arrive, travel);
        } else {
            listener_.has_arrived(travel, event.seconds);
        }
    }

    void settle(double seconds) override {
        for (const std::int32_t index : opening_) {
            if (!goes_on(index)) stop(index);
        }
        for (const std::int32_t index : opening_) begin_next(index);
        opening_.clear();
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
        offsets_.assign(1, 0);
        sharing_.clear();
        local_links_.clear();
        local_weights_.clear();
        capacity_.clear();
        shared_.clear();
        std::size_t gathered = 0;
        do {
            solve(gathered);
            gathered = members_.size();
        } while (grow());
        for (const std::int32_t index : members_) set_rate(index, seconds);
    }

    void list(Snapshot &snapshot) override {
        for (const Channel &channel : channels_) {
            if (!snapshot.same()) return;
            if (channel.travel >= 0) {
                snapshot.travel(travels_[channel.travel]);
                snapshot.amount(channel.rate);
                snapshot.time(channel.since + channel.left / channel.rate);
                channel.waiting.visit(travels_, [&snapshot](const Travel &travel) { snapshot.travel(travel); });
            }
            snapshot.whole(-1);
        }
    }

  private:
    struct Channel {
        std::int32_t travel = -1;  // whose flow this is now
        std::int32_t message = -1; // that has its place on the links: an ended one keeps it for the instant
        std::uint32_t version = 0, stamp = 0;
        bool opens = false;                   // whether another may begin at the end of the instant
        double left = 0, rate = 0, since = 0; // bytes left when the rate began, or the last flow ended
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
        double bytes_per_second = 0;
        double demand = 0;          // of all users at their bounds
        bool contested = false;     // whether they would be more than there is room for
        bool touched = false;       // users of it came or went
        std::uint32_t joined = 0;   // the stamp at which all users were made members
        std::uint32_t gathered = 0; // the stamp at which it became part of the problem, as `local`
        std::int32_t local = 0;
    };
    /// A link of the problem: what users take of it, the fastest of them, and the slowest that is no member and was
    /// held up here.
    struct Shared {
        std::int64_t link = -1; // or -1: of one flow alone, as wide as its bound
        double load = 0, fastest = 0, slowest_held = std::numeric_limits<double>::infinity();
    };

    std::size_t message_of(std::int32_t travel) { return static_cast<std::size_t>(travels_[travel].message); }
    std::int32_t channel_of(std::int32_t travel) {
        return static_cast<std::int32_t>(problem_.channel[message_of(travel)]);
    }
    static void weigh(Link &link) {
        link.contested = link.users.size() > 1 && link.demand > link.bytes_per_second * slack;
    }
    void touch(std::size_t number) {
        Link &link = links_[number];
        if (link.touched || !link.contested) return;
        link.touched = true;
        touched_.push_back(number);
    }

    /// Who begins next is known once all that comes at this time has come.
    void open(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        if (channel.opens) return;
        channel.opens = true;
        opening_.push_back(index);
    }

    /// Whether the next flow is of the same message: it goes the same way at the same rate, and nobody notices.
    bool goes_on(std::int32_t index) {
        const Channel &channel = channels_[static_cast<std::size_t>(index)];
        return !channel.waiting.empty() && travels_[channel.waiting.first].message == channel.message;
    }

    void begin_next(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        channel.opens = false;
        if (channel.waiting.empty()) return;
        const std::int32_t travel = channel.waiting.pop(travels_);
        const double seconds = std::max(channel.since, travels_[travel].started);
        channel.travel = travel;
        channel.left = travels_[travel].bytes;
        channel.since = travels_[travel].started = seconds;
        if (channel.message < 0) {
            start(index);
        } else {
            queue_.push(seconds + channel.left / channel.rate, Kind::flown, index, ++channel.version);
        }
    }

    void start(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        const Flows &paths = problem_.paths;
        const std::size_t message = message_of(channel.travel), begin = paths.begin(message), end = paths.end(message);
        channel.message = travels_[channel.travel].message;
        channel.begin = begin;
        channel.end = end;
        channel.rate = 0;
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
            weigh(link);
            touch(paths.link(entry));
        }
        started_.push_back(index);
    }

    void stop(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        if (channel.message < 0) return;
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
            weigh(link);
        }
        channel.message = -1;
        ++channel.version;
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
    bool is_full(const Shared &shared) const {
        return shared.load * slack >= problem_.bytes_per_second[static_cast<std::size_t>(shared.link)];
    }
    bool holds_up(const Shared &shared, double rate) const { return is_full(shared) && rate * slack >= shared.fastest; }

    /// Fair rates of the members among themselves, while all others keep theirs. So many of them are in the problem.
    void solve(std::size_t gathered) {
        for (std::size_t local = 0; local < shared_.size(); ++local) {
            if (shared_[local].link >= 0) add_others(local);
        }
        for (std::size_t i = gathered; i < members_.size(); ++i) gather(members_[i]);
        rates_.resize(sharing_.size());
        max_min_.solve(capacity_, Flows{offsets_, local_links_, local_weights_, {}}, rates_);
        for (std::size_t i = 0; i < sharing_.size(); ++i) {
            channels_[static_cast<std::size_t>(sharing_[i])].fresh = rates_[i];
            for (std::size_t entry = local_begin(i); entry < local_begin(i + 1); ++entry) {
                Shared &shared = shared_[static_cast<std::size_t>(local_links_[entry])];
                shared.load += rates_[i] * local_weights_[entry];
                shared.fastest = std::max(shared.fastest, rates_[i]);
            }
        }
    }
    std::size_t local_begin(std::size_t sharing) const { return static_cast<std::size_t>(offsets_[sharing]); }

    /// Puts a member into the problem: the contested links of its way, with what others leave of them.
    void gather(std::int32_t index) {
        Channel &channel = channels_[static_cast<std::size_t>(index)];
        const Flows &paths = problem_.paths;
        const std::size_t before = local_links_.size();
        double narrowest = std::numeric_limits<double>::infinity(); // of the contested ones, if it had them alone
        for (std::size_t entry = channel.begin; entry < channel.end; ++entry) {
            const std::size_t number = paths.link(entry);
            Link &link = links_[number];
            if (!link.contested) continue;
            if (link.gathered != stamp_) {
                link.gathered = stamp_;
                link.local = static_cast<std::int32_t>(shared_.size());
                shared_.push_back({.link = static_cast<std::int64_t>(number)});
                capacity_.push_back(0);
                add_others(shared_.size() - 1);
            }
            local_links_.push_back(link.local);
            local_weights_.push_back(paths.weight(entry));
            narrowest = std::min(narrowest, link.bytes_per_second / paths.weight(entry));
        }
        channel.fresh = channel.bound;
        channel.bottleneck = -1;
        if (local_links_.size() == before) return;
        if (channel.bound < narrowest) { // else no rate could be above the bound
            local_links_.push_back(static_cast<std::int64_t>(shared_.size()));
            local_weights_.push_back(1);
            shared_.push_back({});
            capacity_.push_back(channel.bound);
        }
        offsets_.push_back(static_cast<std::int64_t>(local_links_.size()));
        sharing_.push_back(index);
    }

    /// What users of a link that are no members take of it, and what they leave.
    void add_others(std::size_t local) {
        Shared &shared = shared_[local];
        const Link &link = links_[static_cast<std::size_t>(shared.link)];
        shared.load = shared.fastest = 0;
        shared.slowest_held = std::numeric_limits<double>::infinity();
        if (link.joined != stamp_) {
            for (const User &user : link.users) {
                const Channel &other = channels_[static_cast<std::size_t>(user.channel)];
                if (is_member(other)) continue;
                shared.load += other.rate * weight_of(other, user);
                shared.fastest = std::max(shared.fastest, other.rate);
                if (other.bottleneck == shared.link) shared.slowest_held = std::min(shared.slowest_held, other.rate);
            }
        }
        capacity_[local] = link.bytes_per_second - shared.load;
    }

    /// Rates are fair exactly if each flow is held up by a full link on which no other is faster, or by its bound.
    /// Makes members of those for which this no longer holds, or of those who are in the way; whether there were any.
    bool grow() {
        const std::size_t before = members_.size();
        for (std::size_t i = 0; i < sharing_.size(); ++i) find_bottleneck(i);
        for (const Shared &shared : shared_) {
            const bool all_are_held = std::isinf(shared.slowest_held) || holds_up(shared, shared.slowest_held);
            if (shared.link < 0 || all_are_held) continue;
            const Link &link = links_[static_cast<std::size_t>(shared.link)];
            if (link.joined == stamp_) continue;
            for (const User &user : link.users) {
                const Channel &other = channels_[static_cast<std::size_t>(user.channel)];
                const bool held_here = other.bottleneck == shared.link;
                if (!is_member(other) && held_here && !holds_up(shared, other.rate)) join(user.channel);
            }
        }
        return members_.size() > before;
    }

    /// What holds up one of those that share links; if nothing does, all users of the full ones become members.
    void find_bottleneck(std::size_t sharing) {
        Channel &channel = channels_[static_cast<std::size_t>(sharing_[sharing])];
        channel.bottleneck = -1;
        if (channel.fresh * slack >= channel.bound) return;
        const auto begin = local_links_.begin() + static_cast<std::ptrdiff_t>(local_begin(sharing));
        const auto end = local_links_.begin() + static_cast<std::ptrdiff_t>(local_begin(sharing + 1));
        for (auto local = begin; local != end; ++local) {
            const Shared &shared = shared_[static_cast<std::size_t>(*local)];
            if (shared.link < 0 || !holds_up(shared, channel.fresh)) continue;
            channel.bottleneck = shared.link;
            return;
        }
        for (auto local = begin; local != end; ++local) {
            const Shared &shared = shared_[static_cast<std::size_t>(*local)];
            if (shared.link >= 0 && is_full(shared)) join_users(static_cast<std::size_t>(shared.link));
        }
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
    std::vector<std::int32_t> opening_; // channels that are free, or were until something came, at this instant
    std::vector<std::size_t> touched_;  // contested links whose users changed
    std::vector<std::int32_t> started_; // channels whose flow has no rate yet
    std::uint32_t stamp_ = 0;
    std::vector<std::int32_t> members_, sharing_; // flows whose rates may change; those of them that share a link
    // The problem of those that share.
    std::vector<Shared> shared_;
    std::vector<std::int64_t> offsets_, local_links_;
    std::vector<double> local_weights_, capacity_, rates_;
    MaxMin max_min_;
};

} // namespace

std::unique_ptr<Network> make_fluid(const Problem &problem, Pool<Travel> &travels, Queue &queue, Listener &listener) {
    return std::make_unique<Fluid>(problem, travels, queue, listener);
}

} // namespace hocket::simulator
