// The transport between ranks of one host. Four ways for a message, one interface: up to 48 bytes travel inside the
// flag's cache line; registered memory and the memory of the same process are lent where they lie; all other memory is
// copied once into a staging slot that all readers share.
#pragma once

#include "context.h"
#include "transport.h"

#include <array>
#include <atomic>
#include <memory>
#include <vector>

namespace hocket {

/// What a channel carries. The lanes share nothing but the bell and the staging pool, so neither holds up the other.
enum class Lane : std::uint8_t { collectives, messages };
inline constexpr std::size_t num_lanes = 2;

/// One rank's end of a communicator in its arena: the control page, then, for each lane and peer, a ring of lines and a
/// release counter, the calls of an abort record, then a reserved staging slot for each lane and peer, which only takes
/// memory when the shared pool was ever exhausted.
class Endpoint {
  public:
    static constexpr std::uint64_t ring_size = 16; // messages under way on one channel
    static constexpr std::size_t inline_bytes = 48;

    // A rank that is ahead fills the channel to one that is behind; the call that differs must still be remembered.
    static_assert(ring_size + 1 < ControlPage::history);

    enum class Tier : std::uint32_t { in_line, arena, address };

    /// One message. `number` grows by one with each message of the channel and is stored last.
    struct alignas(cache_line) Line {
        std::atomic<std::uint32_t> number;
        std::uint32_t tag;
        std::uint32_t num_bytes;
        Tier tier;
        union {
            std::uint64_t offset; // arena: in the publisher's arena
            const std::byte *address;
            std::array<std::byte, inline_bytes> bytes;
        };
    };
    static_assert(sizeof(Line) == cache_line);

    struct alignas(cache_line) Counter {
        std::atomic<std::uint64_t> value;
    };

    /// Bytes to commit, and bytes to reserve, in the arena.
    static std::size_t committed_bytes(int num_members);
    static std::size_t reserved_bytes(int num_members);

    Endpoint(std::byte *base, int num_members);

    ControlPage &control() const { return *reinterpret_cast<ControlPage *>(base_); }
    /// Written by this rank, read by `peer`.
    Line *ring(Lane lane, int peer) const;
    /// Messages of `peer` that this rank has released.
    Counter &released(Lane lane, int peer) const;
    std::size_t reserved_slot(Lane lane, int peer) const; // offset from the endpoint
    /// Beside the abort record: the calls of the members that it is about, sequence 0 where unknown.
    std::span<Fingerprint> aborted_calls() const;

  private:
    std::size_t place(Lane lane, int peer) const;

    std::byte *base_;
    int num_members_;
};

class ShmTransport final : public Transport {
  public:
    /// `members` are ranks of the context; offsets lead to each one's endpoint in its arena.
    ShmTransport(Context &context, std::vector<int> members, int rank, std::span<const std::size_t> offsets, Lane lane);
    ~ShmTransport() override;

    Published publish(std::span<const int> peers, Bytes bytes, std::uint32_t tag, bool may_lend) override;
    std::uint64_t posted(int peer) const override { return peer_at(peer).posted; }
    std::uint64_t released(int peer) const override;
    View view(int peer) override;
    void release(int peer, std::size_t num_bytes) override;

    /// Nothing more is sent or read: slots that all readers have released go back to the pool. Returns those of the
    /// pool that may still be read.
    std::vector<std::size_t> leave();
    std::size_t own_offset() const { return offset_; }

    const Endpoint &endpoint(int member) const { return endpoints_[static_cast<std::size_t>(member)]; }
    ControlPage &control(int member) const { return endpoint(member).control(); }

  private:
    /// Below this, copying is cheaper than waiting for the readers at the end.
    static constexpr std::size_t least_lent_bytes = 4096;
    /// Messages may lie unread for long, and collectives shall not be slow meanwhile.
    static constexpr std::ptrdiff_t max_slots_of_messages = 4;

    struct Peer {
        const Mapping *mapping = nullptr;
        Endpoint::Line *outgoing = nullptr;
        const Endpoint::Counter *outgoing_released = nullptr; // the peer's
        const Endpoint::Line *incoming = nullptr;             // the peer's
        Endpoint::Counter *incoming_released = nullptr;
        std::uint64_t posted = 0;
        std::uint64_t seen_released = 0; // of them, when `outgoing_released` was last read
        std::uint64_t received = 0;      // messages released here
        std::size_t consumed = 0;        // bytes of the message at hand
        bool shares_process = false;
    };

    /// A slot that readers may still look at.
    struct Staged {
        std::size_t offset = 0;
        int reserved_for = -1;                              // -1: from the pool
        std::vector<std::pair<int, std::uint64_t>> readers; // (peer, its message)
    };

    Peer &peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
    const Peer &peer_at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
    void post(int peer, const Endpoint::Line &message);
    std::optional<Staged> take_slot(std::span<const int> peers);
    void collect();

    Context &context_;
    std::vector<int> members_;
    int rank_;
    Lane lane_;
    std::size_t offset_; // of the own endpoint
    std::vector<Endpoint> endpoints_;
    std::vector<Peer> peers_;
    std::vector<Staged> staged_;
    std::vector<bool> reserved_in_use_, reserved_committed_;
    bool has_left_ = false;
    unsigned generation_ = fork_generation();
};

} // namespace hocket
