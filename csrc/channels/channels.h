// All channels of one lane of a communicator: through memory that the ranks share, or through connections.
#pragma once

#include "transport/carrier.h"
#include "transport/shm/paced.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/tcp.h"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace hocket {

class Channels {
  public:
    /// `members` are ranks of the context, `offsets` lead to their endpoints. `generation`: of the first one's page.
    /// `connections`: where there are any, they carry what goes to ranks on other hosts, or to all; then they must
    /// outlive this.
    Channels(Context &context, const std::vector<int> &members, int rank, std::span<const std::size_t> offsets,
             std::uint32_t generation, Lane lane, Connections *connections);
    Channels(const Channels &) = delete;
    Channels &operator=(const Channels &) = delete;
    ~Channels();

    /// The endpoints of all members, whatever carries the bytes.
    ShmTransport &memory() { return memory_; }
    const ShmTransport &memory() const { return memory_; }
    Transport &carrier();
    const Transport &carrier() const { return const_cast<Channels &>(*this).carrier(); }
    /// Whether what is sent takes its time on a simulated link.
    bool is_paced() const { return paced_ != nullptr; }

    /// The name of this lane of a communicator in the job.
    static std::uint64_t name_of(int first_rank, std::size_t first_offset, std::uint32_t generation, Lane lane);

    /// Nothing is posted any more.
    void end();
    /// Whether nothing that was posted to this member is lost if this rank leaves now. What lies in shared memory stays
    /// there.
    bool has_delivered(int member) const;

  private:
    ShmTransport memory_;
    std::unique_ptr<PacedTransport> paced_;
    Connections *connections_;
    std::uint64_t name_ = 0;                           // of the lane in the job
    OfThisProcess<std::unique_ptr<TcpTransport>> tcp_; // a forked child must not touch it
    std::optional<Carrier> both_; // the memory, by which this rank reaches at least itself, and the connections
};

} // namespace hocket
