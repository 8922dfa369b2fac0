// The contract between the executor and whatever carries bytes. hocket.testing.check_transport holds every
// implementation to it. Peers are members of one communicator.
#pragma once

#include "base/types.h"
#include "route/route.h"
#include "transport/windows.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>

namespace hocket {

/// The next readable bytes of a channel, wherever they lie. Empty: nothing yet. May end inside an element.
struct View {
    Bytes bytes;
    std::uint32_t tag = 0;      // that the sender gave these bytes
    std::size_t num_coming = 0; // bytes that the sender is about to add to them, whether these are released or not
    bool attached = false;      // `bytes` are the peer's addresses, for copy() only
    Bytes behind{};             // what comes after them, if that is known: it may be read and released with them
};

/// How bytes are to be posted. If a transport does not have this way, it takes another one.
struct Manner {
    Way way = Way::stage;  // only lend, fetch and stream need the source to stay as it is
    Bytes head{};          // comes before the bytes, and is copied: at most Reach::head_bytes
    bool may_wait = false; // for a slot that comes with what this rank still expects from the one peer
};

/// What post() has taken.
struct Taken {
    std::size_t num_bytes = 0; // a prefix of what was offered; 0: no credit now
    bool lent = false;         // the source is still being read: it is drained when `released` has passed `posted`
    Way way = Way::stage;
};

/// Ordered byte streams from this rank to each peer and back: one per communicator, used by one thread at a time.
///
/// What several peers shall read is posted once. A channel has room for at least one byte whatever the other channels
/// do, and only a peer that does not release holds it up. Nothing here blocks, and a look changes nothing.
class Transport {
  public:
    virtual ~Transport() = default;

    /// How this rank reaches these peers. It only changes while ranks find out what they can read.
    virtual Reach reach(std::span<const int> peers) const = 0;
    /// Where `bytes` of this rank lie, for these readers. Pages are looked up only if `asks_for_pages`.
    virtual MemoryKind memory_of(Bytes, std::span<const int>, bool) { return MemoryKind::small_pages; }

    /// A hint: this rank is about to post so many bytes to `peer`, and nothing before them.
    virtual void prepare(int /*peer*/, std::size_t /*num_bytes*/) {}
    /// Offers `bytes`, never none, to all `peers` after all that was posted to them before.
    virtual Taken post(std::span<const int> peers, Bytes bytes, std::uint32_t tag, const Manner &how = {}) = 0;
    /// How many messages have been posted to `peer`, and how many of them nobody reads from this rank any more, as it
    /// has released them or they were sent: both only grow.
    virtual std::uint64_t posted(int peer) const = 0;
    virtual std::uint64_t released(int peer) const = 0;
    /// Whether the peer, or the way to it, holds up what is to be posted next.
    virtual bool awaits_room(int peer) const { return released(peer) < posted(peer); }

    /// Valid until the next release on this channel. Called again before that, it may show more.
    virtual View view(int peer) const = 0;
    /// Copies the first `num_bytes` of the view. False: the peer is gone, which others will tell of.
    virtual bool copy(int peer, std::byte *destination, std::size_t num_bytes) {
        std::memcpy(destination, view(peer).bytes.data(), num_bytes);
        return true;
    }
    /// Gives back the first `num_bytes` of the view, with what is behind it.
    virtual void release(int peer, std::size_t num_bytes) = 0;

    /// A number for one peer, 0 at first. The peer sees it whatever the channels hold.
    virtual void tell(int peer, std::uint64_t number) = 0;
    virtual std::uint64_t told(int peer) const = 0; // what `peer` has told last

    /// Wakes peers that sleep until something is posted or released. Comes after each round of that, and before this
    /// rank sleeps or returns.
    virtual void flush() {}
    /// Comes before this rank sleeps: how long until view() shows what it hid at `since`, as it is still on its way,
    /// unless this rank is rung before; the longest time where nothing is.
    virtual std::chrono::nanoseconds until_arrival(std::chrono::steady_clock::time_point) const {
        return std::chrono::nanoseconds::max();
    }
    /// Whether view() may hide what `peer` has sent: that will come, whatever becomes of the peer.
    virtual bool is_coming(int /*peer*/) const { return false; }
    /// Whether the way to or from `peer` has ended: nothing more comes, or goes, by it. So it ends, too, where the peer
    /// leaves or dies, and others may tell of that later.
    virtual bool is_broken(int /*peer*/) const { return false; }
    /// After a failure: no peer begins to write into memory of this rank any more, but one that has begun may go on.
    /// What was lent is not read any more by this rank itself.
    virtual void withdraw() {}
    /// Null: no peer can write into memory of this rank.
    virtual Windows *windows() { return nullptr; }
};

/// The route of a chunk or message that lies in `bytes`.
inline Route route_of(Transfer transfer, Bytes bytes, std::span<const int> peers, Transport &transport,
                      const Profile &profile) {
    const Reach reach = transport.reach(peers);
    transfer.source = transport.memory_of(bytes, peers, reach.may_fetch && pays_to_fetch(transfer, profile));
    return choose(transfer, reach, profile);
}

/// Whether `peer` may still read what this rank has lent to it, or write where it was let.
inline bool may_be_used_by(Transport &transport, int peer) {
    Windows *const windows = transport.windows();
    if (windows != nullptr && windows->may_be_written_by(peer)) return true;
    return transport.released(peer) < transport.posted(peer);
}

} // namespace hocket
