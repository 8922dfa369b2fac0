// Copies that leave the caches alone.
#pragma once

#include "types.h"

namespace hocket {

/// Copies bytes that nobody reads soon: where the processor can, its stores go past the caches, so that the destination
/// is not fetched first and nothing of use is driven out. Ordered before later stores, like a plain copy.
void copy_past_caches(std::byte *destination, Bytes source);

} // namespace hocket
