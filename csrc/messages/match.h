// Messages between two ranks: tags, MPI's matching rules, eager and announced messages. A resumable state machine over
// any transport; it has no threads and no clock, and never blocks.
#pragma once

#include "base/error.h"
#include "base/limits.h"
#include "base/types.h"
#include "route/route.h"
#include "transport/transport.h"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace hocket {

/// Whose messages: the program's arrays, Hocket's own, or parts of the program's objects, of which the first has a tag
/// of the program. One is never matched with another.
enum class Scope : std::uint8_t { user, internal, objects };

inline constexpr int any_source = -1;

/// What is to be sent or received.
struct Message {
    bool sends = false;
    int peer = 0;                                    // a receive may take from any_source
    std::optional<std::uint64_t> tag = std::nullopt; // nothing: a receive from any
    Scope scope = Scope::user;
    Dtype dtype = Dtype::uint8;
    std::byte *data = nullptr; // only read where it is sent
    std::size_t num_bytes = 0;
};

/// A message that nobody asked for, and the member at its other end.
struct Unmatched {
    int peer = 0;
    Scope scope = Scope::user;
    std::uint64_t tag = 0;
};

/// A message under way, at one of its ends.
struct Exchange : Message {
    explicit Exchange(const Message &message) : Message(message) {}

    bool done = false;       // the memory is the caller's again
    int source = any_source; // of a receive, once it is matched, as is the tag
    std::uint64_t found_tag = 0;
    std::uint64_t ordinal = 0; // among all from its source to its destination, the same at both ends, from 1

  private:
    friend class Matcher;
    Route route;                  // of a send,
    Stores stores = Stores::near; // and how a receive stores
    std::size_t moved = 0;        // bytes
    std::uint32_t number = 0;     // of an announced one
    bool is_counted = false;      // a receive of a long one, which the sender was told of
    std::uint64_t ticket = 0;     // of the last loan: it is over when the peer has released so many; 0 without one
};

/// One rank's part in the messages of a communicator.
///
/// Per source and tag, messages are received in the order in which they were sent, by receives in the order in which
/// they were posted. A short one travels at once and is kept here until somebody asks for it; a long one is announced,
/// unless its receiver is known to wait for one, waits until it is asked for, and goes in pieces that take turns with
/// those of others and may be lent. So that nobody fills a rank's memory, a peer may have only so many short ones there
/// that nobody has asked for (`may_be_kept`); what goes beyond is announced too. How many were asked for the peer sees
/// at once, so it is never too careful.
class Matcher {
  public:
    static constexpr std::uint64_t max_user_tag = 0x7fffffff;
    /// So many short messages may be unmatched, and so many of all with a longer one: else that would leave no credit
    /// to those short ones that programs send behind it, and expect to wait for nobody.
    static constexpr unsigned max_unmatched = 64, max_unmatched_longer = 32;
    static_assert(eager_bytes <= max_unmatched_longer * short_bytes, "the longest has credit");
    /// The transport must outlive this. A peer's word is trusted in nothing: what it cannot mean is a Failure, and so
    /// is what comes from another epoch.
    Matcher(Transport &transport, const Profile &profile, int rank, int num_ranks, std::uint8_t epoch = 0);

    /// Begins a send or a receive, whose memory has to stay until it is done. Throws a mismatch, as advance() does, of
    /// which one has to follow, as peers are told of nothing here.
    void post(std::shared_ptr<Exchange> exchange);

    /// The same of a short message that nothing is before, which is done then. False: nothing has begun.
    bool send_at_once(Exchange &send);
    /// Of a receive that may be so, as no other is posted and nothing is kept for it, where its message comes next.
    /// What has begun may still have to be advanced until it is done, or be received on until then.
    bool may_receive_at_once(const Exchange &receive) const;
    bool receive_at_once(Exchange &receive);
    void receive_on(const Exchange &receive) { receive_from(receive.peer, 1); }
    /// Nobody asks any more for what a receive waits for: it is done. False where a message has met it, and is to be
    /// taken.
    bool withdraw(Exchange &receive);
    /// Whether its peer has sent something.
    bool has_come(const Exchange &receive) const { return !transport_.view(receive.peer).bytes.empty(); }

    /// Moves what can be moved, within a budget. False when nothing could. Without `keeps` a message that nobody has
    /// asked for stays on its way, and so does what comes behind it: who asks for it next then copies it once.
    bool advance(bool keeps = true);

    /// The peers whose messages, room or releases are missing, ascending; none when all is done.
    std::vector<int> waiting_for() const;

    /// Both only grow.
    std::uint64_t num_moves() const { return num_moves_; }
    std::uint64_t num_done() const { return num_done_; }

    /// Arrays and objects of the program that have come, or were announced, and that nobody asked for.
    std::vector<Unmatched> unmatched() const;
    /// Bytes that this rank keeps of them.
    std::size_t num_kept_bytes() const;

  private:
    static constexpr std::size_t frames_per_advance = 4; // for each peer and direction
    static constexpr unsigned bits_of_matched = 48;      // of what a peer is told; the others are of num_awaited

    enum class Kind : std::uint8_t { eager, announce, clear, data };

    /// Goes before each frame.
    struct Header {
        Kind kind = Kind::eager;
        Scope scope = Scope::user;
        Dtype dtype = Dtype::uint8;
        std::uint8_t unused = 0;
        std::uint32_t number = 0;    // announce, clear, data: of the announced message, given by its sender
        std::uint64_t tag = 0;       // eager, announce
        std::uint64_t num_bytes = 0; // of the message; data: of the payload
    };
    static_assert(sizeof(Header) == 24);

    /// A message that came, or was announced, before somebody asked for it.
    struct Arrival {
        int source = 0;
        Header header;
        std::uint64_t ordinal = 0;
        std::unique_ptr<std::byte[]> memory; // which nobody fills with zeros first
        std::span<std::byte> kept{};         // in it
        std::shared_ptr<Exchange> receive;   // asks for it while its bytes are still coming
    };

    /// How many short messages one counts as: of more than eager_bytes all that longer ones have credit for.
    static unsigned units_of(std::size_t num_bytes) {
        const std::size_t num_units = (num_bytes + short_bytes - 1) / short_bytes;
        return static_cast<unsigned>(std::clamp<std::size_t>(num_units, 1, max_unmatched_longer));
    }
    /// Whether one may go unasked behind so many that are unmatched.
    static bool may_be_kept(std::size_t num_bytes, std::uint64_t num_unmatched) {
        const unsigned units = units_of(num_bytes);
        return num_unmatched + units <= (units > 1 ? max_unmatched_longer : max_unmatched);
    }

    /// Tells the sender of an announced message that it was asked for. The receive of an empty one is done only when
    /// that is on its way: else nobody might be left to send it, and the sender would wait.
    struct Clearance {
        std::uint32_t number = 0;
        std::shared_ptr<Exchange> complete; // the receive, if it is empty
    };

    struct Outgoing {
        // Lists take no memory while they are empty, as most are in a communicator.
        std::list<std::shared_ptr<Exchange>> posted;                  // in order; not begun
        std::list<Clearance> clearances;                              // to be given to the peer
        std::map<std::uint32_t, std::shared_ptr<Exchange>> announced; // not asked for yet
        std::list<std::shared_ptr<Exchange>> cleared;                 // take turns, piece by piece
        std::vector<std::shared_ptr<Exchange>> lent;                  // all sent, perhaps not yet read
        bool takes_heads = false; // a header goes with its payload, and a piece as a whole
        std::uint32_t next_number = 0;
        std::uint64_t num_messages = 0; // posted so far
        std::uint64_t num_eager = 0;    // of them unasked, in units,
        std::uint64_t num_matched = 0;  // of which the peer has asked for so many, when it was looked at last
        std::uint16_t num_long = 0;     // of them longer than what goes unasked in any case; from 0 again
        bool turn_of_data = false;

        // The frame under way.
        std::shared_ptr<Exchange> exchange;
        Header header;
        Bytes head, payload; // what is left of that, and of what comes behind it

        bool is_in_frame() const { return !head.empty() || !payload.empty(); }
        /// Whether a frame is under way, or may begin.
        bool has_frames() const { return is_in_frame() || !posted.empty() || !clearances.empty() || !cleared.empty(); }
    };

    struct Incoming {
        std::array<std::byte, sizeof(Header)> header;
        std::size_t header_bytes = 0; // of the header that have come
        std::size_t payload_left = 0;
        std::byte *target = nullptr;
        std::shared_ptr<Exchange> receive;                           // what the payload is for,
        std::shared_ptr<Arrival> arrival;                            // or where it is kept
        std::map<std::uint32_t, std::shared_ptr<Exchange>> expected; // cleared: its pieces come
        std::uint32_t next_number = 0;                               // of its announcements
        std::uint64_t num_messages = 0;                              // that came so far, or were announced
        std::uint64_t num_eager = 0;                                 // of them unasked, in units,
        std::uint64_t num_matched = 0;                               // and asked for, which the peer is told,
        std::uint16_t num_awaited = 0; // as of how many long ones were asked for, or are still to come
    };

    static Header header_of(const Exchange &send, Kind kind) {
        return {.kind = kind, .scope = send.scope, .dtype = send.dtype, .tag = *send.tag, .num_bytes = send.num_bytes};
    }

    [[noreturn]] void refuse(int peer, const char *what) const;
    bool accepts(const Exchange &receive, int source, const Header &header) const;
    void check_alike(const Exchange &receive, int source, const Header &header) const;
    void receive_from(int peer, std::size_t max_frames, bool keeps = true);
    bool is_unasked(int peer, Bytes bytes) const;
    std::size_t take_header(int peer, Bytes bytes);
    bool write_payload(int peer, const View &view, Bytes bytes);
    void take_frame(int peer, const Header &header);
    void take_envelope(int peer, const Header &header);
    void match(const std::shared_ptr<Exchange> &receive, int source, const Header &header, std::uint64_t ordinal);
    void end_payload(int peer);
    void count_matched(int peer, std::size_t num_bytes);
    void count_awaited(int peer, Exchange &receive);
    void tell(int peer);
    bool has_credit(int peer, std::size_t num_bytes);
    static bool is_shown(const Exchange &send);
    bool goes_unasked(const Exchange &send);
    void send_to(int peer);
    Transfer transfer_of(std::size_t num_bytes) const;
    Route route_to(int peer, Bytes message);
    Stores stores_from(int peer, std::size_t num_bytes) const;
    bool begin_frame(int peer);
    void begin_message(int peer, std::shared_ptr<Exchange> exchange);
    void put_frame(int peer, const Header &header, std::shared_ptr<Exchange> exchange, Bytes payload);
    bool push_frame(int peer);
    bool is_answered(int peer);
    void end_frame(int peer);
    void finish(Exchange &exchange);

    using Exchanges = std::list<std::shared_ptr<Exchange>>;
    void append(Exchanges &list, std::shared_ptr<Exchange> exchange);
    std::shared_ptr<Exchange> take(Exchanges &list, Exchanges::iterator at);

    Outgoing &to(int peer) { return outgoing_[static_cast<std::size_t>(peer)]; }
    Incoming &from(int peer) { return incoming_[static_cast<std::size_t>(peer)]; }

    Transport &transport_;
    Profile profile_;
    int rank_;
    std::uint32_t tag_; // of all that goes through this lane: frames tell themselves what else matters
    std::vector<Outgoing> outgoing_;
    std::vector<Incoming> incoming_;
    Exchanges receives_;                           // posted and not matched, in order
    Exchanges spare_;                              // nodes of such lists, whose memory is used again
    std::list<std::shared_ptr<Arrival>> arrivals_; // that nobody has asked for, in order
    std::uint64_t num_moves_ = 0, num_done_ = 0;
};

} // namespace hocket
