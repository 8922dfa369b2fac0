// Memory of a rank that its peers write themselves: the optional part of the contract.
#pragma once

#include "base/types.h"

#include <cstdint>
#include <functional>
#include <span>

namespace hocket {

/// A place where a peer may write what it would else send: the chunk of message `order` of step `step`.
struct Window {
    std::int32_t step = 0, order = 0;
    /// The message that the peer has to fold before, piece by piece, as it may be lent from this very place. -1: none.
    std::int32_t after_step = -1, after_order = 0;
    std::byte *place = nullptr;
    std::uint64_t num_bytes = 0;
};

/// Memory that peers write themselves. A rank that grants has released all messages of earlier calls, and by their
/// number the two know which call is meant.
class Windows {
  public:
    virtual ~Windows() = default;
    /// Lets `peer` write into these places, if it can reach them, in the call that `tag` stands for. A hint.
    virtual void grant(int peer, std::uint32_t tag, std::span<const Window> windows) = 0;
    /// What `peer` has granted for this call, before which `num_posted` messages were posted to it; valid until its
    /// last message of this call is posted. Empty: nothing, or nothing yet.
    virtual std::span<const Window> granted(int peer, std::uint32_t tag, std::uint64_t num_posted) = 0;
    /// Makes the bytes [begin, begin + num_bytes) of what is sent, and where `also` is given writes them there, too.
    using Making = std::function<void(std::size_t begin, std::size_t num_bytes, std::byte *also)>;
    /// Writes `bytes` to one place of each peer, inside a window that it has granted, and posts that: its view shows
    /// the place itself. If they have still to be made, that is done part by part, and each part is written while it is
    /// hot. False: no credit now, or it was withdrawn; nothing was made.
    virtual bool put(std::span<const int> peers, std::span<std::byte *const> places, Bytes bytes, std::uint32_t tag,
                     bool past_caches, const Making &make = {}) = 0;
    /// All messages of the call have come: nobody writes any more.
    virtual void revoke() = 0;
    virtual bool may_be_written_by(int peer) const = 0;
};

} // namespace hocket
