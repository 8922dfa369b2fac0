// The reduction kernels: the only code that looks into elements.
#pragma once

#include "types.h"

namespace hocket {

/// Folds `sources` from the left, element by element, and stores the result once into `destination`.
///
/// Every pointer is aligned to the element. `destination` may be one of the sources, but may not overlap one partly.
/// `divisor` is 1, or the number of ranks where an average is completed by this fold. With one source it is a copy.
void fold(Dtype dtype, Op op, std::byte *destination, std::span<const std::byte *const> sources,
          std::size_t num_elements, int divisor);

} // namespace hocket
