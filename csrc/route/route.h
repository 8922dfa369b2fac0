// The one place that decides by which way bytes travel between ranks. It knows no clock and no order of arrival, so
// equal calls get equal routes.
#pragma once

#include "base/limits.h"
#include "kernels/copy.h"
#include "machine/profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace hocket {

/// line: bytes are inside the cache line that announces them. stage: they are copied into a slot of shared memory,
/// which all readers share. lend: they are read where they lie. put: the sender writes them where the reader wants
/// them. halve: each end moves one half, the sender by writing, the reader by reading. fetch: on the reader's request,
/// the system copies them out of the sender's private memory. stream: they go through a byte stream, and what that does
/// not take at once is sent from where it lies.
enum class Way : std::uint8_t { line, stage, lend, put, halve, fetch, stream };
inline constexpr std::array way_names{"line", "stage", "lend", "put", "halve", "fetch", "stream"};

/// Where the source lies. The readers reach the first two by themselves; the others are private, in huge, in small or
/// in unknown pages: the system does not tell, or nobody has written there yet.
enum class MemoryKind : std::uint8_t { registered, same_process, huge_pages, small_pages, unknown_pages };

/// What a plan or a message says: the same for all pieces of a chunk.
struct Transfer {
    std::size_t num_bytes = 0;    // of the chunk or message
    std::size_t here = 0;         // of the call, on this rank
    std::size_t of_all_ranks = 0; // of the call
    int num_readers = 1;
    MemoryKind source = MemoryKind::small_pages;
    bool is_fresh = false;     // this rank has just folded it
    bool comes_back = false;   // the reader writes its result back to the source
    bool only_copied = false;  // readers store it as it is
    bool one_way = false;      // this rank gives it to one reader, and does nothing else
    bool overwritten = false;  // in the same step
    bool may_be_given = false; // readers may let this rank write it where they want it
};

/// How this rank reaches the readers: the same for all calls.
struct Reach {
    bool is_stream = false;
    bool may_put = false;       // into memory that a reader lets it write
    bool may_fetch = false;     // the reader can read its private memory
    bool may_change = false;    // a reader is yet to find out whether it can
    bool is_far = false;        // a reader's core shares no cache with this rank's
    std::size_t line_bytes = 0; // that travel with the line which announces them
    std::size_t head_bytes = 0; // that may come before others, in one message
    int via = 0;                // peers with other numbers cannot share what is posted
    bool whole_pieces = false;  // a piece is taken, and shown, as a whole, or in parts the rest of which is coming
};

struct Route {
    Way way = Way::stage;
    Way otherwise = Way::stage; // where a reader does not let this rank write
    bool whole = false;         // as one message, of which the reader takes as much at a time as it likes
    bool past_caches = false;   // nobody finds it in a cache when it is read next
    bool may_change = false;    // something is unknown yet, and is asked for again in the next call
};

constexpr std::size_t twice(std::size_t num_bytes) {
    return num_bytes > Profile::never / 2 ? Profile::never : 2 * num_bytes;
}

/// The length from which on no cache holds a chunk: cores that share no cache have two of them.
constexpr std::size_t caches_of(const Reach &r, const Profile &p) {
    return r.is_far ? twice(p.all_caches) : p.all_caches;
}

/// Whether no cache holds a chunk until it is read next.
constexpr bool outgrows_caches(const Transfer &t, const Reach &r, const Profile &p) {
    return t.num_bytes >= caches_of(r, p) || t.of_all_ranks >= twice(caches_of(r, p));
}

constexpr bool is_reached(MemoryKind memory) {
    return memory == MemoryKind::registered || memory == MemoryKind::same_process;
}

/// Whether the one reader would fetch private memory, if it can, in those pages that pay most.
constexpr bool pays_to_fetch(const Transfer &t, const Profile &p) {
    return t.only_copied && t.num_readers == 1 && !t.overwritten &&
           t.num_bytes >= std::min(p.fetch_huge, p.fetch_small);
}

/// The route of up to most_copied bytes, whatever else is true.
constexpr Route route_of_short(std::size_t num_bytes, const Reach &r) {
    const Way way = num_bytes <= r.line_bytes ? Way::line : Way::stage;
    return {.way = way, .otherwise = way};
}

/// The route of a transfer. A plan asks once for each memory and length that it is bound to, and a message once.
constexpr Route choose(const Transfer &t, const Reach &r, const Profile &p) {
    const bool outgrows = outgrows_caches(t, r, p);
    const auto go = [&](Way way, Way otherwise) {
        const bool whole = way == Way::fetch || (way == Way::lend && p.shares_cores);
        return Route{.way = way, .otherwise = otherwise, .whole = whole, .past_caches = outgrows};
    };
    if (r.is_stream) {
        const Way way = t.overwritten ? Way::stage : Way::stream;
        return go(way, way);
    }
    if (t.num_bytes <= most_copied) return route_of_short(t.num_bytes, r);
    if (!is_reached(t.source)) {
        const std::size_t least = t.source == MemoryKind::huge_pages ? p.fetch_huge : p.fetch_small;
        const bool pays = pays_to_fetch(t, p);
        const Way way = pays && r.may_fetch && t.num_bytes >= least ? Way::fetch : Way::stage;
        Route route = go(way, way);
        route.may_change = pays && (r.may_change || (r.may_fetch && t.source == MemoryKind::unknown_pages));
        return route;
    }
    // If this core's own cache holds a chunk, readers would take its lines from there one by one, and this core would
    // have to take them back before it changes them. A copy in a slot is quicker, as its lines lie in neither cache.
    // There are two exceptions. If the reader writes its result back to the chunk, it needs those lines anyway.
    // And where ranks share cores, a chunk that is longer than what may lie unread costs each rank several turns.
    const bool takes_turns = p.shares_cores && t.num_bytes >= most_bytes_ahead;
    const bool is_held = !outgrows && !t.comes_back && !takes_turns && (t.here <= p.own_cache || r.is_far);
    const Way shown = t.overwritten || is_held ? Way::stage : Way::lend;
    if (!r.may_put || !t.may_be_given) return go(shown, shown);
    if (t.is_fresh) return go(Way::put, shown); // it is hot here
    // If a chunk goes one way, its sender would idle while the reader works, so each moves one half. But a put takes
    // lines away from a far reader's cache: there the reader moves all, unless the chunk fits no cache.
    const bool halves = (t.one_way && !r.is_far) || t.num_bytes >= caches_of(r, p);
    if (!halves || !t.only_copied || t.num_bytes < p.halve) return go(shown, shown);
    Route route = go(Way::halve, shown);
    // The reader's cache may still hold the place, which the reader has just used. [Registered broadcasts that both
    // ends copy]
    route.past_caches = t.num_bytes >= twice(p.all_caches);
    return route;
}

/// How a reader stores such a transfer. `is_alone`: nothing else reads or writes the place.
constexpr Stores stores_of(const Transfer &t, bool is_alone, const Reach &r, const Profile &p) {
    if (is_alone && outgrows_caches(t, r, p)) return Stores::past_caches;
    return r.is_far && t.only_copied && t.here <= p.own_cache ? Stores::from_other_cache : Stores::near;
}

} // namespace hocket
