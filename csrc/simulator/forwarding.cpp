#include "simulator/network.h"

#include <algorithm>
#include <cmath>

namespace hocket::simulator {

namespace {

class Forwarding final : public Network {
  public:
    Forwarding(const Problem &problem, Pool<Travel> &travels, Queue &queue, Listener &listener)
        : problem_(problem), travels_(travels), queue_(queue), listener_(listener), links_(problem.num_links()) {}

    void send(std::int32_t travel, double seconds) override {
        travels_[travel].started = seconds;
        const std::size_t message = static_cast<std::size_t>(travels_[travel].message);
        const std::size_t first = problem_.paths.begin(message);
        if (first == problem_.paths.end(message)) {
            listener_.has_left(travel, seconds);
            listener_.has_arrived(travel, seconds);
            return;
        }
        double left = travels_[travel].bytes;
        do {
            const double bytes = std::min(left, problem_.packet_bytes);
            left -= bytes;
            enter(packets_.add({travel, -1, first, bytes, left <= 0}), seconds);
        } while (left > 0);
    }

    void handle(const Event &event) override {
        if (event.kind == Kind::served) {
            Link &link = links_[static_cast<std::size_t>(event.subject)];
            const Packet packet = packets_[link.serving];
            link.serving = -1;
            if (!link.waiting.empty()) serve(event.subject, link.waiting.pop(packets_), event.seconds);
            if (packet.last && packet.entry == problem_.paths.begin(message_of(packet))) {
                listener_.has_left(packet.travel, event.seconds);
            }
            return;
        }
        Packet &packet = packets_[event.subject];
        if (++packet.entry < problem_.paths.end(message_of(packet))) {
            enter(event.subject, event.seconds);
            return;
        }
        const Packet arrived = packet;
        packets_.remove(event.subject);
        if (arrived.last)
            listener_.has_arrived(arrived.travel, event.seconds); // Packets of one travel keep their order.
    }

  private:
    struct Packet {
        std::int32_t travel;
        std::int32_t next;
        std::size_t entry; // of the problem's paths: the link that it takes now
        double bytes;
        bool last;
    };
    struct Link {
        std::int32_t serving = -1;
        Line waiting;
    };

    std::size_t message_of(const Packet &packet) { return static_cast<std::size_t>(travels_[packet.travel].message); }
    double whole_ticks(double seconds) const {
        const double tick = problem_.tick_seconds; // A whole number of them may come out a trifle less.
        return tick > 0 ? std::floor(seconds / tick + 1e-6) * tick : seconds;
    }

    void enter(std::int32_t packet, double seconds) {
        const std::size_t index = problem_.paths.link(packets_[packet].entry);
        if (links_[index].serving >= 0) {
            links_[index].waiting.push(packets_, packet);
        } else {
            serve(static_cast<std::int32_t>(index), packet, seconds);
        }
    }

    void serve(std::int32_t index, std::int32_t packet, double seconds) {
        const std::size_t link = static_cast<std::size_t>(index);
        const double busy = packets_[packet].bytes / problem_.bytes_per_second[link];
        links_[link].serving = packet;
        queue_.push(seconds + whole_ticks(busy), Kind::served, index);
        queue_.push(seconds + whole_ticks(busy + problem_.link_seconds[link]), Kind::hop, packet);
    }

    const Problem &problem_;
    Pool<Travel> &travels_;
    Queue &queue_;
    Listener &listener_;
    std::vector<Link> links_;
    Pool<Packet> packets_;
};

} // namespace

std::unique_ptr<Network> make_forwarding(const Problem &problem, Pool<Travel> &travels, Queue &queue,
                                         Listener &listener) {
    return std::make_unique<Forwarding>(problem, travels, queue, listener);
}

} // namespace hocket::simulator
