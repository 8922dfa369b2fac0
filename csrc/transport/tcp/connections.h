// The connections of a rank to others. The core asks for them, and whoever opens and admits them, which Python does,
// hands them over.
#pragma once

#include "transport/tcp/tcp.h"

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace hocket {

/// What one connection is for: bytes go from one rank of the job to another.
struct ConnectionName {
    std::uint64_t communicator = 0; // and its lane
    std::int32_t from = 0, to = 0;
    Rail rail;

    auto operator<=>(const ConnectionName &) const = default;
};

/// Once per rank of a job. Thread-safe.
class Connections {
  public:
    /// `carry_all`: also between ranks that share memory. `num_rails`: of each channel from this rank.
    explicit Connections(int rank, bool carry_all = true, int num_rails = 1);
    Connections(const Connections &) = delete;
    Connections &operator=(const Connections &) = delete;
    ~Connections();

    int rank() const { return rank_; }
    bool carry_all() const { return carry_all_; }
    /// False in a forked child: locks and connections are the parent's.
    bool is_here() const { return home_.is_here(); }
    NetworkThread &thread() { return thread_; }

    /// Of whoever opens connections: readable while some are wanted.
    int descriptor() const { return wanted_bell_; }
    /// Those that are wanted, each once.
    std::vector<ConnectionName> take_wanted();
    /// Whether a communicator exists here: readable, too, once one has left.
    bool has(std::uint64_t communicator);
    /// Takes over a connection that was opened here, or was admitted, and closes it in the end. It is kept until its
    /// communicator exists. Then the greeting goes back through one that was admitted.
    void give(const ConnectionName &name, int descriptor, Bytes greeting = {});

    /// Of a transport: `ranks` are those of its peers in the job.
    void enter(std::uint64_t communicator, TcpTransport &transport, std::span<const int> ranks);
    void leave(std::uint64_t communicator);
    void want(std::uint64_t communicator, int to);

  private:
    struct Entry {
        TcpTransport *transport;
        std::vector<int> ranks;
    };

    struct Early {
        Early(int of, Bytes with) : descriptor(of), greeting(with.begin(), with.end()) {}
        int descriptor;
        std::vector<std::byte> greeting;
    };

    void ring() const;
    void hand_over(const Entry &entry, const ConnectionName &name, int descriptor, Bytes greeting) const;

    int rank_;
    bool carry_all_;
    int num_rails_;
    HomeProcess home_;
    int wanted_bell_ = -1;
    std::mutex mutex_; // guards the next three
    std::map<std::uint64_t, Entry> entries_;
    std::map<ConnectionName, Early> early_;
    std::vector<ConnectionName> wanted_;
    NetworkThread thread_;
};

} // namespace hocket
