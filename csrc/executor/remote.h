// A source that comes over a channel, as a fold sees it: in whole elements.
#pragma once

#include "transport/transport.h"

#include <vector>

namespace hocket {

/// A message of another call than the one that runs: `peer` and this rank called different things, or it is left over.
struct ForeignMessage {
    int peer;
    std::uint32_t tag;
};

/// What `peer` sends, or expects, is not as long as what this rank expects.
struct ForeignSize {
    int peer;
    std::uint64_t expected, found; // elements
};

class Remote {
  public:
    explicit Remote(int peer) : peer_(peer) {}

    int peer() const { return peer_; }
    bool has_carry() const { return !carry_.empty(); }
    void clear();

    /// The bytes that lie ready in one place, in whole elements, whose size is a power of two; an element that comes in
    /// parts is put together.
    View gather(Transport &transport, std::uint32_t tag, std::size_t element, bool may_be_attached, bool &progress);
    /// Takes what a channel shows of a piece that cannot be folded yet, of which `num_left` are not folded, unless it
    /// shows all of it, or soon will. So a channel holds at least one piece, however little its transport holds, and
    /// law 3 has proved the plan for just that.
    bool make_room(Transport &transport, std::uint32_t tag, std::size_t num_left);
    /// The first `num_bytes` that were gathered are folded.
    void release(Transport &transport, std::size_t num_bytes);

  private:
    bool carry_over(Transport &transport, std::size_t num_bytes);

    int peer_;
    std::vector<std::byte> carry_; // bytes that had to leave the channel before they could be folded
    std::size_t used_ = 0;         // of them folded
};

} // namespace hocket
