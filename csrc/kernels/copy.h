// Copies of what messages carry.
#pragma once

#include "base/types.h"

#include <cstdint>

namespace hocket {

/// As memcpy, to memory that does not overlap; but as quickly wherever the two lie.
void copy_bytes(std::byte *destination, Bytes source);

/// Copies bytes that nobody reads soon: where the processor can, its stores go past the caches, so that the destination
/// is not fetched first and nothing of use is driven out. Ordered before later stores, like a plain copy.
void copy_past_caches(std::byte *destination, Bytes source);

/// Copies bytes to where a core reads that shares no cache with this one, or takes lines as slowly. Ordered likewise.
void copy_to_other_cache(std::byte *destination, Bytes source);

/// Copies bytes that such a core has written to memory that this one's own cache holds.
void copy_from_other_cache(std::byte *destination, Bytes source);

/// How a reader stores what it copies.
enum class Stores : std::uint8_t { near, from_other_cache, past_caches };
void copy_bytes(Stores how, std::byte *destination, Bytes source);

#if defined(__x86_64__)
/// The way of copy_bytes and copy_to_other_cache with long copies where the processor is quick at it.
void copy_string(std::byte *destination, Bytes source);
#endif

} // namespace hocket
