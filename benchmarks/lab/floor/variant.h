// A way in which data can go, with all that is tried in it, and the words for it.
#pragma once

#include "memory.h"

#include <cstring>
#include <iterator>
#include <string>

namespace hand_written {

enum class Way {
    turns,          // nothing but the wait of all for all
    lined,          // through lines that hold their number
    staged,         // through a ring of pieces: copied once, read once
    two_steps,      // all_reduce: each adds one half and gives the sum back, both through rings
    attached,       // read or written in the peer's private memory, by the kernel
    attached_steps, // all_reduce in two steps likewise
    together,       // all memory is shared: whoever does a job reads and writes where it belongs
    posted,         // of more ranks: each lays what it gives into its slots, and reads those of the others
    posted_shares,  // of more ranks: each sums a share of each piece from the slots, and lays the sum into one more
    chained,        // of more ranks: those on a core add up in one slot, then each reads one slot of each core
    fetched,        // of more ranks: read in the others' private memory, by the kernel
    fetched_shares, // of more ranks: as posted_shares, of which the first step is read by the kernel
};

// Who moves what one rank gives and another takes.
enum class Side { taker, both, giver };

struct Variant {
    Way way;
    std::size_t piece_bytes = line_bytes;
    Side side = Side::taker;
    std::size_t ring_bytes = most_ring_bytes; // small ones stay in the caches, of large ones no slot was just read
    std::size_t lag = 1;                      // so many pieces are given before the first is taken
    bool slots_past_caches = false;
    bool results_past_caches = false;
    bool swaps = false;     // each writes its pieces where it has just read
    bool pauses = true;     // of more ranks: looks half a microsecond before it yields to those on its core
    bool lingers = false;   // of more ranks: looks four
    bool by_memcpy = false; // of more ranks: copies as the C library does

    bool operator==(const Variant &) const = default;
};

constexpr const char *names_of_ways[] = {"turns",         "lined",          "staged",   "two_steps",
                                         "attached",      "attached_steps", "together", "posted",
                                         "posted_shares", "chained",        "fetched",  "fetched_shares"};
constexpr const char *names_of_sides[] = {"taker", "both", "giver"};

// WAY:SIDE:PIECE:RING:LAG:FLAGS, where s and r say what goes past the caches, slots and results, x that slots change
// hands, p that it pauses, l that it lingers, and m that it copies by memcpy.
inline std::string in_words(const Variant &variant) {
    std::string words = names_of_ways[static_cast<int>(variant.way)];
    words.append(":").append(names_of_sides[static_cast<int>(variant.side)]);
    for (const std::size_t number : {variant.piece_bytes, variant.ring_bytes, variant.lag}) {
        words.append(":").append(std::to_string(number));
    }
    words += ':';
    if (variant.slots_past_caches) { words += 's'; }
    if (variant.results_past_caches) { words += 'r'; }
    if (variant.swaps) { words += 'x'; }
    if (variant.pauses) { words += 'p'; }
    if (variant.lingers) { words += 'l'; }
    if (variant.by_memcpy) { words += 'm'; }
    return words;
}

// The variant in such words. What in_words did not write ends the program.
inline Variant variant_of(const std::string &words) {
    char flags[7] = "";
    Variant variant{};
    std::sscanf(words.c_str(), "%*[^:]:%*[^:]:%zu:%zu:%zu:%6s", &variant.piece_bytes, &variant.ring_bytes, &variant.lag,
                flags);
    variant.slots_past_caches = std::strchr(flags, 's') != nullptr;
    variant.results_past_caches = std::strchr(flags, 'r') != nullptr;
    variant.swaps = std::strchr(flags, 'x') != nullptr;
    variant.pauses = std::strchr(flags, 'p') != nullptr;
    variant.lingers = std::strchr(flags, 'l') != nullptr;
    variant.by_memcpy = std::strchr(flags, 'm') != nullptr;
    for (std::size_t each = 0; each < std::size(names_of_ways); ++each) {
        for (std::size_t other = 0; other < std::size(names_of_sides); ++other) {
            variant.way = static_cast<Way>(each);
            variant.side = static_cast<Side>(other);
            if (in_words(variant) == words) { return variant; }
        }
    }
    std::fprintf(stderr, "floor: %s: no variant\n", words.c_str());
    std::exit(2);
}

} // namespace hand_written
