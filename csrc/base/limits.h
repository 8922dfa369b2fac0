// The lengths, in bytes, at which the core changes what it does on every machine. machine/profile.cpp has those that
// depend on the processor. In brackets is the paragraph of docs/lab/2026-11.md that tells how a length was found.
#pragma once

#include <cstddef>

namespace hocket {

// Units, which decide nothing alone -----------------------------------------------------------------------------------

/// The executor moves so much at once, and one staging slot holds it. All ranks have the same, so pieces match.
inline constexpr std::size_t piece_bytes = std::size_t{128} << 10;
/// Readers of a slot are told in such units how much of it is there. A result that is put is made in such parts, which
/// are in the nearest cache while they are written to all readers. [Growing messages; Fold and put in one pass]
inline constexpr std::size_t cell_bytes = std::size_t{8} << 10;
/// The processor looks up such a page in one step less than a small one.
inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// Copies --------------------------------------------------------------------------------------------------------------

/// Shorter copies are as quick by the C library. [Copies by lines of 32 bytes]
inline constexpr std::size_t least_by_lines = 2048;
/// Shorter copies are as quick by lines. [String moves]
inline constexpr std::size_t least_by_string_moves = std::size_t{8} << 10;
/// A copy asks so far ahead for lines of another core's cache. [Slots that go to and fro]
inline constexpr std::size_t most_asked_ahead = 2048;
/// The reader of a head asks for so much of the payload behind it. [Exchanges of 16 MiB, fetched; what is behind a
/// head]
inline constexpr std::size_t most_asked_behind_head = 1024;

// Collectives and messages --------------------------------------------------------------------------------------------

/// Data of up to this length is copied into a slot: that takes less time than to wait at the end until a loan is read.
/// [Lent or staged]
inline constexpr std::size_t most_copied = 4096;
/// A slot is written part by part, and readers are told of each part. This is the longest part. [Messages that wait for
/// nobody]
inline constexpr std::size_t most_near_part = std::size_t{16} << 10;
/// This is the shortest part if a reader's core shares no cache with this one, because the stores of each part have to
/// be over before its reader is told. [Copies by lines of 32 bytes]
inline constexpr std::size_t least_far_part = std::size_t{32} << 10;
/// Where ranks share cores, so much may lie unread at a peer, because short data is not worth a turn of all ranks.
/// [Around what has not come]
inline constexpr std::size_t most_bytes_ahead = std::size_t{64} << 10;
/// So much is copied at a time where it lies, before a rank looks around. [Copied once by the system]
inline constexpr std::size_t bytes_at_once = std::size_t{1} << 20;
/// One message has at most this length, which is counted in words of few bits.
inline constexpr std::size_t most_lent_bytes = std::size_t{1} << 28;

/// A chunk or message is short up to here. A short message waits for no receiver, and a longer one counts as several.
/// Ranks that exchange short chunks look for each other before they let other ranks run. [Messages; Turns of many
/// ranks]
inline constexpr std::size_t short_bytes = std::size_t{8} << 10;
/// A message that is copied travels at once up to here: its receiver keeps it until somebody asks for it. [Messages
/// that wait for nobody]
inline constexpr std::size_t eager_bytes = std::size_t{256} << 10;
/// Where ranks share cores, a message that its receiver waits for travels at once up to here, because to announce it
/// takes a turn of each rank. [Messages that wait for nobody]
inline constexpr std::size_t most_awaited_bytes = std::size_t{512} << 10;

// Calls from Python ---------------------------------------------------------------------------------------------------

/// A call with so little data keeps the interpreter's lock: it takes less time than another thread needs to get the
/// lock. [The way to the first store]
inline constexpr std::size_t most_under_lock = std::size_t{16} << 10;
/// If a work has more data, Python looks now and then whether earlier works are done, and lets go of their memory.
/// [What is begun now and waited for later]
inline constexpr std::size_t longest_unseen = std::size_t{64} << 10;

} // namespace hocket
