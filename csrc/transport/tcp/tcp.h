// The transport between hosts. Each channel has a connection of its own: bytes go forward in frames, and the numbers
// that their reader tells go back. So a peer that does not read fills its own connection only, and how much the system
// holds of that is the credit. If several interfaces are named, there is one through each, a rail: frames take turns.
#pragma once

#include "transport/tcp/network_thread.h"
#include "transport/tcp/receiver.h"
#include "transport/tcp/sender.h"
#include "transport/transport.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace hocket {

/// Which of a channel's connections this is. The sending rank says how many there are.
struct Rail {
    int number = 0, num_rails = 1;

    auto operator<=>(const Rail &) const = default;
};

class TcpTransport final : public Transport {
  public:
    /// Nobody is connected yet. `want` asks once for a connection to a peer, without which nothing can be posted to it.
    /// `ring` wakes this rank. Neither may call back. The thread must outlive this.
    TcpTransport(NetworkThread &thread, std::size_t num_peers, std::function<void(int peer)> want,
                 std::function<void()> ring);
    TcpTransport(const TcpTransport &) = delete;
    TcpTransport &operator=(const TcpTransport &) = delete;
    ~TcpTransport() override;

    /// From any thread: a connected socket, which this closes, for what this rank posts to `peer`.
    void connect_to(int peer, int descriptor, Rail rail = {});
    /// For what `peer` posts to this rank. The greeting goes back first; from then on, what comes is not lost.
    void connect_from(int peer, int descriptor, Bytes greeting = {}, Rail rail = {});
    /// Nothing is posted any more: peers see that behind the last byte. From any thread.
    void end();
    /// Whether all that was posted to `peer` lies in its system.
    bool has_delivered(int peer) const;

    Reach reach(std::span<const int>) const override {
        return {.is_stream = true, .head_bytes = cache_line, .whole_pieces = true};
    }
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how) override;
    std::uint64_t posted(int peer) const override { return at(peer).num_posted; }
    /// A frame that the system has taken needs this rank no more.
    std::uint64_t released(int peer) const override;
    bool awaits_room(int peer) const override;
    View view(int peer) const override;
    void release(int peer, std::size_t num_bytes) override;
    void tell(int peer, std::uint64_t number) override;
    std::uint64_t told(int peer) const override;
    void flush() override;
    std::chrono::nanoseconds until_arrival(std::chrono::steady_clock::time_point since) const override;
    bool is_coming(int peer) const override;
    bool is_broken(int peer) const override;
    void withdraw() override;

  private:
    /// All connections of a channel, by rail. Numbers go back through the first.
    using Rails = std::vector<std::shared_ptr<Sender>>;
    struct Forward {
        explicit Forward(Rails all) : rails(std::move(all)), numbers(rails[0]->descriptor()) {}
        const std::shared_ptr<Sender> &of_frame(std::uint64_t number) const { return rails[number % rails.size()]; }
        bool is_broken() const;
        void end_loans() const;
        void end() const;
        Rails rails;
        NumberReceiver numbers;
    };
    struct Back {
        explicit Back(Rails all);
        Receiver &first() { return frames[num_read % frames.size()]; }
        const std::shared_ptr<Sender> &numbers() const { return rails[0]; }
        Rails rails;
        std::vector<Receiver> frames;
        std::uint64_t num_read = 0; // whole frames
    };
    struct Peer {
        // Made by whoever connects, and used from then on by whoever uses the transport. A look receives, as it makes
        // no difference whether bytes wait here or in the system.
        std::atomic<Forward *> to{nullptr};
        std::atomic<Back *> from{nullptr};
        bool is_wanted = false;
        std::uint64_t num_posted = 0;
        std::size_t num_ahead = 0; // bytes posted since the last flush
        Mutex mutex;               // guards the rest, and that the peer gets the last number last
        std::uint64_t number = 0;
        Rails rails_to, rails_from; // those that have come, until all have
    };

    const Peer &at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
    Peer &at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
    bool has_room(int peer);
    void look_at(int descriptor) const;
    static bool add(Rails &rails, std::shared_ptr<Sender> made, Rail rail);
    static bool are_complete(const Rails &rails);
    bool take_events() const;
    void send_number(const Back &back, std::uint64_t number);

    NetworkThread &thread_;
    std::atomic<bool> has_ended_{false};
    std::function<void(int)> want_;
    std::function<void()> ring_;
    int poll_ = -1; // tells of each arrival once
    std::vector<Peer> peers_;
};

} // namespace hocket
