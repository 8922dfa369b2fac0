// The lengths, in bytes, at which the core changes what it does on every machine. Those that depend on the processor
// are in machine/profile.cpp; what is built into the layout of shared memory is in transport/shm/shm.h.
#pragma once

#include <cstddef>

namespace hocket {

// Each was set by benchmarks/compare.py.

// Copies (kernels/copy.cpp): below the first, the C library's are as quick as copies by lines;
// below the second, copies by lines are as quick as string moves.
inline constexpr std::size_t least_by_lines = 2048, least_by_string_moves = std::size_t{8} << 10;
/// How far ahead the lines of another core's cache are asked for, and how much of what a message has behind its head:
/// as much as can be on its way to a core at a time.
inline constexpr std::size_t most_asked_ahead = 2048, most_asked_behind_head = 1024;

/// Up to this, data is copied into a slot: that takes less time than to lend it and wait at the end until it is read,
/// or than to find out where a reader wants it. How far a reader's core is makes no difference to so little.
inline constexpr std::size_t most_copied = 4096;
/// Of what is made while it is put: a part that stays in the nearest cache until it is written to all readers.
inline constexpr std::size_t made_part = std::size_t{8} << 10;
/// A slot is written, and its readers are told of it, part by part: each a quarter of it, but no longer than the first
/// of these. Nor shorter than the second where a reader's cache is another: stores past the caches have to be over
/// before it is told of a part, and the line that tells it takes long.
inline constexpr std::size_t most_near_part = std::size_t{16} << 10, least_far_part = std::size_t{32} << 10;
/// Where ranks share cores, so much may lie unread at a peer: a few bytes are not worth that all have a turn.
inline constexpr std::size_t most_bytes_ahead = std::size_t{64} << 10;
/// Of private memory, copied at a time by the system, which has to look up its pages.
inline constexpr std::size_t attached_bytes = std::size_t{1} << 20;
/// In one message, whose length is counted in words of few bits.
inline constexpr std::size_t most_lent_bytes = std::size_t{1} << 28;

/// Up to here ranks that exchange chunks wait for each other only briefly.
inline constexpr std::size_t most_short_chunk = std::size_t{8} << 10;

/// Up to here a message travels at once, and its receiver keeps it until somebody asks for it.
inline constexpr std::size_t eager_bytes = std::size_t{256} << 10;
/// An eager message counts as several where it is longer.
inline constexpr std::size_t unit_bytes = std::size_t{8} << 10;
/// So long a message goes unasked, too, where ranks share cores and its receiver waits for one, behind none that is
/// unmatched: to announce it and be answered would take a turn of each of them.
inline constexpr std::size_t most_awaited_bytes = std::size_t{512} << 10;

} // namespace hocket
