// A way to move data, with the parameters that are tried, and its text form.
#pragma once

#include "memory.h"

#include <cstring>
#include <iterator>
#include <string>

namespace hand_written {

enum class Way {
    turns,          // only the wait of all for all
    lined,          // through lines that hold their number
    staged,         // through a ring of pieces: copied once, read once
    two_steps,      // all_reduce: each adds one half and gives the sum back, both through rings
    attached,       // read or written in the peer's private memory, by the kernel
    attached_steps, // all_reduce in two steps, also by the kernel
    together,       // all memory is shared: a job reads and writes the buffers in place
    posted,         // more ranks: each writes its input to its slots, and reads the slots of the others
    posted_shares,  // more ranks: each sums a share of each piece from the slots, and writes the sum to another slot
    chained,        // more ranks: the ranks of a core add up in one slot, then each rank reads one slot per core
    fetched,        // more ranks: read from the others' private memory, by the kernel
    fetched_shares, // more ranks: like posted_shares, but the kernel reads the first step
};

// The rank that moves the data.
enum class Side { taker, both, giver };

struct Variant {
    Way way;
    std::size_t piece_bytes = line_bytes;
    Side side = Side::taker;
    std::size_t ring_bytes = most_ring_bytes; // small rings stay in caches; in large ones no slot was just read
    std::size_t lag = 1;                      // pieces that are given before the first is taken
    bool slots_past_caches = false;
    bool results_past_caches = false;
    bool swaps = false;     // each writes its pieces where it has just read
    bool pauses = true;     // more ranks: looks for 0.5 us before it yields to the ranks on its core
    bool lingers = false;   // more ranks: looks for 4 us
    bool by_memcpy = false; // more ranks: copies as the C library does

    bool operator==(const Variant &) const = default;
};

constexpr const char *names_of_ways[] = {"turns",         "lined",          "staged",   "two_steps",
                                         "attached",      "attached_steps", "together", "posted",
                                         "posted_shares", "chained",        "fetched",  "fetched_shares"};
constexpr const char *names_of_sides[] = {"taker", "both", "giver"};

// WAY:SIDE:PIECE:RING:LAG:FLAGS. Flags: s slots past caches, r results past caches, x swaps, p pauses, l lingers,
// m by memcpy.
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

// Reads the text of in_words. Any other text ends the program.
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
