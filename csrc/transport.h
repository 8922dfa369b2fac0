// The contract between the executor and whatever carries bytes. hocket.testing.check_transport holds every
// implementation to it.
#pragma once

#include "types.h"

#include <cstdint>
#include <span>

namespace hocket {

/// The next readable bytes of a channel, wherever they lie. Empty: nothing yet. May end inside an element.
struct View {
    Bytes bytes;
    std::uint32_t tag = 0; // that the publisher gave these bytes
};

struct Published {
    std::size_t num_bytes = 0; // taken, a prefix of what was offered; 0: no credit now
    bool lent = false;         // the source is still being read: it is drained when `released` has passed `posted`
};

/// A place where a peer may write what it would else send: the chunk of message `order` of step `step`.
struct Window {
    std::int32_t step = 0, order = 0;
    /// The message that has to be folded by the peer before, piece by piece, as it may be lent from this very place.
    /// -1: there is none.
    std::int32_t after_step = -1, after_order = 0;
    std::byte *place = nullptr;
    std::uint64_t num_bytes = 0;
};

/// Ordered byte streams from this rank to each peer and back: one per communicator, used by one thread at a time.
///
/// What several peers shall read is published once. A channel has room for at least one byte whatever the other
/// channels do, and only a peer that does not release holds it up. Nothing here blocks.
class Transport {
  public:
    virtual ~Transport() = default;

    /// Offers `bytes` to all `peers` after all that was published to them before. `may_lend`: readers may be shown the
    /// source itself; otherwise it may be overwritten as soon as this returns. Never called with empty bytes.
    virtual Published publish(std::span<const int> peers, Bytes bytes, std::uint32_t tag, bool may_lend) = 0;

    /// How many messages have been posted to `peer`, and how many of them it has released: both only grow.
    virtual std::uint64_t posted(int peer) const = 0;
    virtual std::uint64_t released(int peer) const = 0;

    /// Valid until the next release on this channel.
    virtual View view(int peer) = 0;

    /// Gives back the first `num_bytes` of the view.
    virtual void release(int peer, std::size_t num_bytes) = 0;

    // Puts: only a hint, which a transport may leave without effect. Whoever grants has released all messages of
    // earlier calls, and by their number the two know which call is meant.

    /// Lets `peer` write into these places of this rank, in the call that `tag` stands for, until revoke().
    virtual void grant(int, std::uint32_t, std::span<const Window>) {}
    /// All messages of the call have come: nobody writes any more where it was let.
    virtual void revoke() {}
    /// What `peer` has granted for this call, before which `num_posted` messages were posted to it; in this rank's
    /// addresses, valid until its last message of this call is posted. Empty: nothing, or nothing yet.
    virtual std::span<const Window> granted(int, std::uint32_t, std::uint64_t) { return {}; }
    /// Writes `bytes` to one place of each peer, inside a window that it has granted, and posts that: its view will
    /// show the place itself. `past_caches`: nobody reads them soon. False: no credit now, or it was withdrawn.
    virtual bool put(std::span<const int> /*peers*/, std::span<std::byte *const> /*places*/, Bytes,
                     std::uint32_t /*tag*/, bool /*past_caches*/) {
        return false;
    }
};

} // namespace hocket
