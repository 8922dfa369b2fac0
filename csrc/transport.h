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
};

} // namespace hocket
