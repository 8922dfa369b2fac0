// The transport between ranks of one host. Five ways for a message, one interface: up to 48 bytes travel inside the
// flag's cache line; registered memory and the memory of the same process are lent where they lie, or written by the
// sender where the reader wants them; all other memory is copied once into a staging slot that all readers share.
#pragma once

#include "context.h"
#include "transport.h"
#include "waiting.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace hocket {

/// What a channel carries. The lanes share nothing but the bell and the staging pool, so neither holds up the other.
enum class Lane : std::uint8_t { collectives, messages };
inline constexpr std::size_t num_lanes = 2;

/// One rank's end of a communicator in its arena: the control page, then, for each lane and peer, a ring of lines and a
/// release counter, the boards, the calls of an abort record, then a reserved staging slot for each lane and peer,
/// which only takes memory when the shared pool was ever exhausted.
class Endpoint {
  public:
    static constexpr std::uint64_t ring_size = 16; // messages under way on one channel
    static constexpr std::size_t inline_bytes = 48;

    // A rank that is ahead fills the channel to one that is behind; the call that differs must still be remembered.
    static_assert(ring_size + 1 < ControlPage::history);

    enum class Tier : std::uint32_t { in_line, arena, address, put };

    /// One message. `number` grows by one with each message of the channel and is stored last.
    struct alignas(cache_line) Line {
        std::atomic<std::uint32_t> number;
        std::uint32_t tag;
        std::uint32_t num_bytes;
        Tier tier;
        union {
            std::uint64_t offset; // arena: in the publisher's arena; put: in the reader's
            const std::byte *address;
            std::array<std::byte, inline_bytes> bytes;
        };
    };
    static_assert(sizeof(Line) == cache_line);

    struct alignas(cache_line) Counter {
        std::atomic<std::uint64_t> value;
    };

    /// What a rank lets one peer write, in one call. The peer reads it before it posts its last message of that call,
    /// and only then does the rank write the next.
    struct alignas(cache_line) Board {
        static constexpr std::size_t max_windows = 12;
        struct Entry {
            std::int32_t step, order, after_step, after_order;
            std::uint64_t place; // an offset in the rank's arena, or an address where the two share a process
            std::uint64_t num_bytes;
        };

        std::atomic<std::uint64_t> call; // messages of the peer before it, + 1; 0: nothing is granted. Stored last.
        std::uint32_t tag, num_windows;
        std::array<Entry, max_windows> entries;
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
    /// Written by this rank, read by `peer`. Of the lane of collectives.
    Board &board(int peer) const;
    std::size_t reserved_slot(Lane lane, int peer) const; // offset from the endpoint
    /// Beside the abort record: the calls of the members that it is about, sequence 0 where unknown.
    std::span<Fingerprint> aborted_calls() const;

  private:
    std::size_t place(Lane lane, int peer) const;
    std::size_t boards() const;

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
    void grant(int peer, std::uint32_t tag, std::span<const Window> windows) override;
    void revoke() override;
    std::span<const Window> granted(int peer, std::uint32_t tag, std::uint64_t num_posted) override;
    bool put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
             bool past_caches) override;

    /// Whether `peer` may still read what this rank has lent to it, or write where this rank lets it.
    bool may_be_used_by(int peer) const;
    /// After a failure: no peer begins to write any more. One that has begun may go on: see may_be_used_by.
    void withdraw() const;

    /// Nothing more is sent or read: slots that all readers have released go back to the pool. Returns those of the
    /// pool that may still be read.
    std::vector<std::size_t> leave();
    std::size_t own_offset() const { return offset_; }

    const Endpoint &endpoint(int member) const { return endpoints_[static_cast<std::size_t>(member)]; }
    ControlPage &control(int member) const { return endpoint(member).control(); }

  private:
    /// Below this, copying is cheaper than waiting for the readers at the end.
    static constexpr std::size_t least_lent_bytes = 4096;
    /// How many bytes of which pieces show how slow plain stores into a slot are, and from when on they are too slow.
    static constexpr std::size_t least_watched_bytes = 8192, watched_bytes = 4096;
    static constexpr unsigned watch_interval = 8;
    static constexpr std::chrono::nanoseconds slow_stores{1000};
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
        bool may_write = false;           // something is granted to it
        Endpoint::Board *board = nullptr; // for the peer
        const Endpoint::Board *its_board = nullptr;
        std::vector<Window> windows; // what it grants, for the call of this number, as on the board
        std::uint64_t windows_of = 0;
    };

    /// A slot that readers may still look at.
    struct Staged {
        std::size_t offset = 0;
        int reserved_for = -1;                              // -1: from the pool
        std::vector<std::pair<int, std::uint64_t>> readers; // (peer, its message)
    };

    Peer &peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
    const Peer &peer_at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
    bool has_room(std::span<const int> peers);
    void post(int peer, const Endpoint::Line &message);
    void stage(std::byte *slot, Bytes bytes);
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
    unsigned num_staged_ = 0;
    bool past_caches_ = false; // plain stores into slots are slow
    bool has_left_ = false;
    unsigned generation_ = fork_generation();
};

} // namespace hocket
