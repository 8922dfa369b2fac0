// The contract between the executor and whatever carries bytes. hocket.testing.check_transport holds every
// implementation to it.
#pragma once

#include "base/types.h"
#include "route/route.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>

namespace hocket {

/// The next readable bytes of a channel, wherever they lie. Empty: nothing yet. May end inside an element.
struct View {
    Bytes bytes;
    std::uint32_t tag = 0;      // that the publisher gave these bytes
    std::size_t num_coming = 0; // bytes that the publisher is about to add to them, whether these are released or not
    bool attached = false;      // `bytes` are the peer's addresses, for copy() only
    Bytes behind{};             // what comes after them, if that is known: it may be read and released with them
};

struct Published {
    std::size_t num_bytes = 0; // taken, a prefix of what was offered; 0: no credit now
    bool lent = false;         // the source is still being read: it is drained when `released` has passed `posted`
    Way way = Way::stage;
};

/// Memory of a peer.
struct Target {
    std::byte *place = nullptr;
    bool attached = false; // `place` is the peer's address, for fetch() only
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

    /// Whether up to `piece_bytes` are taken as a whole or not at all, and, if not all of them at once, shown in parts
    /// that anything fits into and the rest of which is coming.
    virtual bool keeps_pieces_whole() const { return false; }
    /// How this rank reaches these peers. It only changes while ranks find out what they can read.
    virtual Reach reach(std::span<const int> /*peers*/) const { return {.is_stream = true}; }
    /// Where `bytes` of this rank lie, for these readers. Pages are looked up only if `asks_for_pages`.
    virtual MemoryKind memory_of(Bytes /*bytes*/, std::span<const int> /*peers*/, bool /*asks_for_pages*/) {
        return MemoryKind::small_pages;
    }

    /// Whether `peer` has all the slots that go to and fro between it and this rank, as many as there may be, and has
    /// yet to read something: who would send so many bytes, and expects more from it, had better wait for one of them.
    virtual bool awaits_handed(int /*peer*/, std::size_t /*num_bytes*/) const { return false; }

    /// The same with up to `max_head_bytes` more in front, which are copied. Up to `piece_bytes` are taken as a whole,
    /// with those in front, or not at all.
    virtual std::size_t max_head_bytes() const { return 0; }
    virtual Published publish_behind(Bytes /*head*/, int /*peer*/, Bytes /*bytes*/, std::uint32_t /*tag*/,
                                     bool /*may_lend*/) {
        return {};
    }

    /// A hint: this rank is about to publish so many bytes to `peer`, and nothing before them.
    virtual void prepare(int /*peer*/, std::size_t /*num_bytes*/) {}

    /// How many messages have been posted to `peer`, and how many of them it has released: both only grow.
    virtual std::uint64_t posted(int peer) const = 0;
    virtual std::uint64_t released(int peer) const = 0;
    /// Valid until the next release on this channel. Called again before that, it may show more.
    virtual View view(int peer) = 0;

    /// A quick look, for who waits: false only where view() is empty.
    virtual bool may_show(int /*peer*/) const { return true; }

    /// Copies the first `num_bytes` of the view. False: the peer is gone, which others will tell of.
    virtual bool copy(int peer, std::byte *destination, std::size_t num_bytes) {
        std::memcpy(destination, view(peer).bytes.data(), num_bytes);
        return true;
    }

    /// Gives back the first `num_bytes` of the view, with what is behind it.
    virtual void release(int peer, std::size_t num_bytes) = 0;

    /// A number for one peer, 0 at first, which that sees whatever the channels hold.
    virtual void tell(int /*peer*/, std::uint64_t /*number*/) {}
    /// What `peer` has told this rank last, before whatever this rank has seen of it.
    virtual std::uint64_t told(int /*peer*/) const { return 0; }

    /// Wakes peers that sleep until something is posted or released. Comes after each round of that, and before this
    /// rank sleeps or returns.
    virtual void ring() {}

    /// How long it takes until view() shows what it hid at `since`, as it is still on its way, unless a peer rings
    /// before; the longest time where nothing is. Who waits so long sleeps.
    virtual std::chrono::nanoseconds until_arrival(std::chrono::steady_clock::time_point /*since*/) {
        return std::chrono::nanoseconds::max();
    }

    /// Whether view() hides what `peer` has sent, as it is still on its way: it will come, whatever becomes of the
    /// peer.
    virtual bool is_coming(int /*peer*/) { return false; }

    // Puts: only a hint, which a transport may leave without effect. Whoever grants has released all messages of
    // earlier calls, and by their number the two know which call is meant.

    /// Lets `peer` write into these places of this rank, if it can reach them, in the call that `tag` stands for, until
    /// revoke().
    virtual void grant(int, std::uint32_t, std::span<const Window>) {}
    /// All messages of the call have come: nobody writes any more where it was let.
    virtual void revoke() {}
    /// What `peer` has granted for this call, before which `num_posted` messages were posted to it; valid until its
    /// last message of this call is posted. Empty: nothing, or nothing yet.
    virtual std::span<const Window> granted(int, std::uint32_t, std::uint64_t) { return {}; }
    /// Makes the bytes [begin, begin + num_bytes) of what is sent, and where `also` is given writes them there, too.
    using Making = std::function<void(std::size_t begin, std::size_t num_bytes, std::byte *also)>;
    /// Writes `bytes` to one place of each peer, inside a window that it has granted, and posts that: its view will
    /// show the place itself. `past_caches`: nobody reads them soon. Where they have still to be made, that is done
    /// part by part, each of which is written while it is hot. False: no credit now, or it was withdrawn; nothing was
    /// made.
    virtual bool put(std::span<const int> /*peers*/, std::span<std::byte *const>, Bytes, std::uint32_t /*tag*/,
                     bool /*past_caches*/, const Making & /*make*/ = {}) {
        return false;
    }
    /// Lends `bytes` to `peer`, which only copies them and can attach: its view may be attached. False: no credit now.
    virtual bool lend(int /*peer*/, Bytes, std::uint32_t /*tag*/) { return false; }

    // The same for one message, whose ends tell each other of it.

    /// What `peer` needs to know to write into `memory`, or to read it, until take_back(); 0: it may not. With
    /// `may_attach` it may be private, and can only be read.
    virtual std::uint64_t offer(int /*peer*/, std::span<std::byte> /*memory*/, bool /*may_attach*/) { return 0; }
    virtual void take_back(int /*peer*/, const std::byte * /*memory*/) {}
    /// What `peer` has offered by this word; nothing where that cannot be.
    virtual std::optional<Target> offered(int /*peer*/, std::uint64_t /*word*/, std::uint64_t /*num_bytes*/) {
        return {};
    }
    /// Reads what `peer` has offered. False: the peer is gone, which others will tell of.
    virtual bool fetch(int /*peer*/, const Target & /*source*/, std::span<std::byte> /*destination*/) { return false; }
};

/// The route of a chunk or message that lies in `bytes`.
inline Route route_of(Transfer transfer, Bytes bytes, std::span<const int> peers, Transport &transport,
                      const Profile &profile) {
    const Reach reach = transport.reach(peers);
    transfer.source = transport.memory_of(bytes, peers, reach.may_fetch && pays_to_fetch(transfer, profile));
    return choose(transfer, reach, profile);
}

} // namespace hocket
