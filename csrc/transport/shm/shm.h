// The transport between ranks of one host. Up to 48 bytes travel inside the flag's cache line, up to 96 as two such
// messages. Registered memory and memory of the same process are lent where they lie, or written by the sender where
// the reader wants them. Private memory of another process is copied by its reader, if the two may attach to each
// other. All other memory is copied once into a staging slot that all readers share, and which they read while it is
// still being filled. A slot for one rank alone, if that answers, goes to and fro: the rank writes its answer there.
#pragma once

#include "base/waiting.h"
#include "transport/shm/context.h"
#include "transport/transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

namespace hocket {

/// What a channel carries. The lanes share nothing but the bell and the staging pool, so neither holds up the other.
enum class Lane : std::uint8_t { collectives, messages };
inline constexpr std::size_t num_lanes = 2;

inline constexpr std::uint64_t least_ring = 32, largest_ring = 64; // of collectives

/// Messages under way on one channel, a power of two. Where ranks share cores and one of them only gives, a call costs
/// fewer turns the further that one may be ahead. Many members, of which each has a ring, get shorter ones.
constexpr std::uint64_t ring_size_of(Lane lane, std::size_t num_members) {
    if (lane == Lane::messages) return 16;
    return std::clamp<std::uint64_t>(std::bit_floor(512 / std::max<std::size_t>(num_members, 1)), least_ring,
                                     largest_ring);
}

/// One rank's end of a communicator in its arena: the control page, then, for each lane and peer, a ring of lines and a
/// release counter, the boards, the calls of an abort record, then a reserved staging slot for each lane and peer,
/// which only takes memory when the shared pool was ever exhausted, and last the times of arrival of a paced link.
class Endpoint {
  public:
    /// What the fields of a line leave for a message, and those of `Elsewhere` for its head.
    static constexpr std::size_t inline_bytes = cache_line - 4 * sizeof(std::uint32_t);
    static constexpr std::size_t head_bytes = inline_bytes - 2 * sizeof(std::uint64_t);
    static constexpr std::size_t max_handed = 3; // parts of slots that a rank hands to one peer

    // A rank that is ahead fills the channel to one that is behind; the call that differs must still be remembered.
    static_assert(largest_ring + 1 < ControlPage::history);

    /// `kept`: as arena, in a slot that could as well have been handed.
    enum class Tier : std::uint8_t { in_line, arena, address, put, attach, kept, handed, handed_back };

    struct Elsewhere {
        union {
            std::uint64_t offset;     // arena, kept, handed: in the publisher's arena; else in the reader's
            const std::byte *address; // attach: in the publisher's process
        };
        std::uint64_t released; // messages of the reader, so that it need not fetch the counter
        std::array<std::byte, head_bytes> head;
    };

    /// One message. `number` grows by one with each message of the channel and is stored last, but for `num_cells`.
    struct alignas(cache_line) Line {
        static constexpr std::uint16_t all_cells = 0xffff;

        std::atomic<std::uint32_t> number;
        std::uint32_t tag;
        std::uint32_t num_bytes; // in line, where all is in the head: see released_in_line()
        Tier tier;
        std::uint8_t num_head_bytes;          // in `bytes`; or of `elsewhere`, where they come before the `num_bytes`
        std::atomic<std::uint16_t> num_cells; // that are there: all_cells in the end; in line as `num_bytes`
        union {
            std::array<std::byte, inline_bytes> bytes;
            Elsewhere elsewhere;
        };

        /// Messages of the reader, as `elsewhere`: 48 bits, which nobody exhausts. Fewer would come round while a line
        /// lies unread and its reader goes on sending, and let that write where nothing was released.
        std::uint64_t released_in_line() const {
            return std::uint64_t{num_cells.load(std::memory_order_relaxed)} << 32 | num_bytes;
        }
        void set_released_in_line(std::uint64_t number) {
            num_bytes = static_cast<std::uint32_t>(number);
            num_cells.store(static_cast<std::uint16_t>(number >> 32), std::memory_order_relaxed);
        }
    };
    static_assert(sizeof(Line) == cache_line);

    struct alignas(cache_line) Counter {
        std::atomic<std::uint64_t> value;
        std::atomic<std::uint64_t> told; // another one, by tell(), in a line that the reader writes anyway
        /// Of the writer's slots that were handed to the reader: those that it gives back without a message. There are
        /// never more of them that the writer has not seen, as it has handed no others.
        std::atomic<std::uint64_t> num_given_back;
        std::array<std::atomic<std::uint64_t>, max_handed> given_back; // offsets, in turn
    };
    static_assert(sizeof(Counter) == cache_line);

    /// Of each message in a ring, where the link is paced: when it arrives, in ticks of its clock.
    using Arrivals = std::array<std::atomic<Clock::rep>, largest_ring>;

    /// What a rank lets one peer write, in one call. The peer reads it before it posts its last message of that call,
    /// and only then does the rank write the next.
    struct alignas(cache_line) Board {
        static constexpr std::size_t max_windows = 12;
        struct Entry {
            std::int32_t step, order, after_step, after_order;
            std::uint64_t place; // arena: an offset in the rank's arena; address: in its process
            std::uint64_t num_bytes;
            Tier tier;
        };

        std::atomic<std::uint64_t> call; // messages of the peer before it, + 1; 0: nothing is granted. Stored last.
        std::uint32_t tag, num_windows;
        std::array<Entry, max_windows> entries;
    };

    /// A number that stands for the layout of all that ranks share. Builds that differ in it would misread each other.
    static std::uint64_t layout();

    /// Bytes to commit, and bytes to reserve, in the arena.
    static std::size_t committed_bytes(int num_members);
    static std::size_t reserved_bytes(int num_members);

    Endpoint(std::byte *base, int num_members) : base_(base), num_members_(num_members) {}

    ControlPage &control() const { return *reinterpret_cast<ControlPage *>(base_); }
    /// Written by this rank, read by `peer`.
    Line *ring(Lane lane, int peer) const;
    /// Messages of `peer` that this rank has released.
    Counter &released(Lane lane, int peer) const;
    /// Written by this rank, read by `peer`. Of the lane of collectives.
    Board &board(int peer) const;
    std::size_t reserved_slot(Lane lane, int peer) const; // offset from the endpoint
    std::size_t arrivals_begin() const;                   // offset from the endpoint
    /// Beside ring().
    Arrivals &arrivals(Lane lane, int peer) const;
    /// Beside the abort record: the calls of the members that it is about, sequence 0 where unknown.
    std::span<Fingerprint> aborted_calls() const;

  private:
    std::size_t place(Lane lane, int peer) const;
    std::size_t channel(Lane lane, int peer) const;
    std::size_t boards() const;

    std::byte *base_;
    int num_members_;
};

class ShmTransport final : public Transport, public Windows {
  public:
    /// What goes as one message in line, or as two: they come one behind the other, while of a slot only the flag tells
    /// where to ask for it. Three lines have won nothing.
    static constexpr std::size_t most_bytes_in_lines = 2 * Endpoint::inline_bytes;

    /// `members` are ranks of the context; offsets lead to each one's endpoint in its arena.
    ShmTransport(Context &context, std::vector<int> members, int rank, std::span<const std::size_t> offsets, Lane lane);

    Reach reach(std::span<const int> peers) const override;
    MemoryKind memory_of(Bytes bytes, std::span<const int> peers, bool asks_for_pages) override;
    void prepare(int peer, std::size_t num_bytes) override;
    Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how = {}) override;
    std::uint64_t posted(int peer) const override { return peer_at(peer).posted; }
    std::uint64_t released(int peer) const override { return released(peer_at(peer)); }
    View view(int peer) const override;
    bool copy(int peer, std::byte *destination, std::size_t num_bytes) override;
    void release(int peer, std::size_t num_bytes) override;
    void tell(int peer, std::uint64_t number) override {
        peer_at(peer).incoming_released->told.store(number, std::memory_order_release);
    }
    std::uint64_t told(int peer) const override {
        return peer_at(peer).outgoing_released->told.load(std::memory_order_acquire);
    }
    void flush() override;
    Windows *windows() override { return this; }
    /// Whether `peer` has all the slots that go to and fro between it and this rank, as many as there may be, and has
    /// yet to read something: a piece that may wait then gets no credit.
    bool awaits_handed(int peer, std::size_t num_bytes) const;

    void grant(int peer, std::uint32_t tag, std::span<const Window> windows) override;
    std::span<const Window> granted(int peer, std::uint32_t tag, std::uint64_t num_posted) override;
    bool put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
             bool past_caches, const Making &make = {}) override;
    void revoke() override;
    void withdraw() override;
    bool may_be_written_by(int peer) const override { return peer_at(peer).may_write; }

    /// Takes memory for the two below.
    void commit_arrivals();
    /// When the next message to a peer, and the first one from it that is not released, arrives: for a paced link.
    std::atomic<Clock::rep> &arrival_of_next(int peer) const;
    const std::atomic<Clock::rep> &arrival_of_first(int peer) const;

    /// Once: nothing more is sent or read, and slots that all readers have released go back to the pool. Returns those
    /// of the pool that may still be read.
    std::vector<std::size_t> leave();
    std::size_t own_offset() const { return offset_; }

    int size() const { return static_cast<int>(peers_.size()); }
    std::uint64_t ring_size() const { return ring_size_; }
    const Endpoint &endpoint(int member) const { return peer_at(member).endpoint; }
    ControlPage &control(int member) const { return endpoint(member).control(); }

  private:
    static constexpr std::uint64_t num_lines_of(std::size_t num_bytes) {
        return num_bytes > Endpoint::inline_bytes ? 2 : 1;
    }
    /// Messages of more than `most_copied` that may lie unread in slots at a peer. A sender that is further ahead would
    /// write where the reader has read just now. Where ranks share cores, however, a few bytes are not worth that all
    /// have a turn. A blocking send of a message waits there, too.
    static constexpr std::uint64_t max_unread = 4, most_unread_by_turns = most_bytes_ahead / most_copied;
    /// Messages may lie unread for long, and collectives shall not be slow meanwhile.
    static constexpr std::ptrdiff_t max_slots_of_messages = 4;
    /// Slots of which each peer gets a part, to be handed to and fro; where ranks share cores, slots for messages to
    /// come are worth more.
    static constexpr std::size_t max_shared_out = Endpoint::max_handed, max_shared_out_by_turns = 1;
    /// Messages from the arena of a peer that a rank reads without an answer before it gives back what it could answer
    /// in.
    static constexpr unsigned max_unanswered = 16;

    /// A part of a slot that goes to and fro between this rank and a peer: who has read a message there writes the
    /// next.
    struct Handed {
        std::size_t offset = 0;
        bool is_own = false; // in this rank's arena; else in the peer's
    };

    /// What view() has shown of the message at hand, for release(): that asks the line no more, which a wrong peer may
    /// have changed meanwhile. Nothing else reads this, so a look changes nothing.
    struct Shown {
        std::size_t num_bytes = 0; // of the message
        Endpoint::Tier tier = Endpoint::Tier::in_line;
        std::uint64_t released = 0;   // messages of this rank that the peer had released as it sent this one
        std::optional<Handed> slot{}; // that comes with it
    };

    struct Peer {
        Endpoint endpoint{nullptr, 0};
        Endpoint::Line *outgoing = nullptr;
        const Endpoint::Counter *outgoing_released = nullptr; // the peer's
        const Endpoint::Line *incoming = nullptr;             // the peer's
        Endpoint::Counter *incoming_released = nullptr;
        std::uint64_t posted = 0;
        std::uint64_t seen_released = 0; // of them, as far as the peer's lines and the counter have told
        std::array<std::uint64_t, most_unread_by_turns> staged{}; // the last ones that are longer and in slots,
        std::uint64_t num_staged = 0;                             // of so many
        std::uint64_t received = 0;                               // messages released here
        std::size_t consumed = 0;                                 // bytes of the message at hand
        mutable Shown shown;
        Context::Rank rank;
        bool may_await = false;           // what was stored since flush()
        bool may_write = false;           // something is granted to it
        Endpoint::Board *board = nullptr; // for the peer
        const Endpoint::Board *its_board = nullptr;
        std::vector<Window> windows; // what it grants, for the call of this number, as on the board
        std::uint64_t windows_of = 0;
        std::vector<Handed> handed;     // that are here: the next messages to the peer may be written in them
        std::vector<std::size_t> given; // own ones that the peer has
        bool answers = false;           // by something that it kept since it was given the last new one
        unsigned num_unanswered = 0;    // messages from its arena, since this rank last looked for a slot to hand
        std::uint64_t num_given_back = 0, num_had_back = 0;
    };

    /// How a slot is filled: as a whole, as its readers share this core, and so look at it when this rank has made room
    /// for them; or part by part, past the caches where another core's hold its lines, which shares none with this one.
    enum class Filling : std::uint8_t { whole, near, past_caches };

    /// A slot that readers may still look at, or that the next message may go to.
    struct Lease {
        Context::Slot slot;
        /// Bytes whose turn is over. What lies behind them is short or for this core alone, so it is quick to write
        /// again: that is done once all is read.
        std::size_t used_up = 0;
        int reserved_for = -1;                                // -1: from the pool
        std::vector<std::pair<int, std::uint64_t>> readers{}; // (peer, its last message there)
    };

    Peer &peer_at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
    const Peer &peer_at(int peer) const { return peers_[static_cast<std::size_t>(peer)]; }
    /// Whether the message is there that is read next. Like the cells of a slot, something that a sleeper looks at once
    /// more before it sleeps.
    bool has_come(const Peer &from) const {
        // A message may go on in the next line: who waits for both has them come together. Until its peer writes there
        // too, that line lies here, as this rank has read it a round of the ring ago.
        __builtin_prefetch(&from.incoming[at(from.received + 1)]);
        return first_of(from).number.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(from.received + 1);
    }
    std::size_t at(std::uint64_t number) const { return static_cast<std::size_t>(number & (ring_size_ - 1)); }
    const Endpoint::Line &first_of(const Peer &from) const { return from.incoming[at(from.received)]; }
    /// A peer's word is never trusted beyond what this rank knows by itself.
    [[noreturn]] void refuse(int peer) const;
    bool can_attach(int peer) const;
    bool has_room(std::span<const int> peers, std::uint64_t num_lines = 1);
    bool has_read(Peer &to, std::uint64_t number);
    Taken post_elsewhere(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how);
    bool shows_source(std::span<const int> peers, Endpoint::Line &message, Bytes bytes, Way way) const;
    View view_elsewhere(int peer, const Endpoint::Line &line) const;
    void post_line(int peer, const Endpoint::Line &message, std::uint16_t num_cells = Endpoint::Line::all_cells);
    /// Of every short message: compilers would take it for too long to be inlined.
    inline void post_in_line(int peer, Bytes head, Bytes bytes, std::uint32_t tag);
    void complete(Endpoint::Line &line, Peer &to);
    static std::uint64_t released(const Peer &to) {
        return to.outgoing_released->value.load(std::memory_order_seq_cst);
    }
    Lease *slot_for(std::span<const int> peers, std::size_t num_bytes);
    bool stage(std::span<const int> peers, Endpoint::Line &message, Bytes bytes);
    std::optional<Handed> take_handed(int peer);
    bool hand(int peer, Endpoint::Line &message, Bytes bytes);
    const std::byte *show_handed(const Peer &from, Handed slot) const;
    void take_over(int peer);
    void fill(std::span<const int> peers, Endpoint::Line &message, std::byte *place, Bytes bytes, Filling how);
    void give_back(Peer &from);
    void have_back(int peer);
    void end_sharing_out();
    void collect(bool looks);
    bool is_read(const Lease &lease, bool looks);
    bool has_lease_of(int peer) const; // to the slot that is reserved for it

    Context &context_;
    std::vector<int> members_;
    int rank_;
    Lane lane_;
    std::uint64_t ring_size_;
    std::size_t offset_; // of the own endpoint
    std::vector<Peer> peers_;
    std::vector<Lease> leases_;           // the one at hand last
    std::vector<std::size_t> shared_out_; // slots of which each peer has a part
    std::vector<bool> reserved_committed_;
    std::size_t part_bytes_; // of a slot that is shared out
    bool may_await_ = false; // any peer
    bool is_far_ = false;    // any peer: its cores share no cache with those of this rank
};

} // namespace hocket
