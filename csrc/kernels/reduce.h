// The reduction kernels: the only code that looks into elements. hocket.schedule.reduction defines their bits.
#pragma once

#include "base/types.h"

#include <functional>
#include <vector>

namespace hocket {

/// What premul_sum multiplies by. Floats use `real`, complex numbers both parts, integers `integer` modulo their range.
struct Factor {
    double real = 1, imaginary = 0;
    std::uint64_t integer = 1;
};

/// A user's own left fold of two sources or more, over stored values; `destination` may be one of the sources.
using CustomFold =
    std::function<void(std::byte *destination, std::span<const std::byte *const> sources, std::size_t num_elements)>;

/// What a fold computes, beside its sources.
struct Fold {
    Dtype dtype;
    Op op;
    int divisor = 1; ///< the number of ranks where an average is completed by this fold, else 1
    Factor factor{};
    const CustomFold *custom = nullptr;
    std::byte *also = nullptr; ///< where the result goes besides, in the same pass; aligned to the element
    bool past_caches = false;  ///< nobody reads it soon: its stores leave caches alone, where they can; not with `also`
};

/// Whether the reduction exists for the type: no order on complex numbers, no bits of floats, no average of integers.
bool has_meaning(Op op, Dtype dtype);

/// The sets of kernels that this processor can run, the widest first. Their bits are the same.
std::vector<const char *> kernel_set_names();

/// Folds `sources` from the left, element by element, in the accumulator type, and stores the result, rounded once.
///
/// Every pointer is aligned to the element. `destination` may be one of the sources, but may not overlap one partly.
/// `raw` is empty, or says of each source whether it is the untouched contribution of a rank: premul_sum multiplies it
/// as it is read. One source is copied, unless there is something to multiply or divide, or a raw one to make true or
/// false. Tests and benchmarks choose another of the sets of kernels.
///
/// The same sources give the same bits in any destination and with any set of kernels, but any NaN equals any NaN. Of
/// two NaN a processor passes on one by its place in the instruction, the compiler may swap the operands of a sum or
/// product, and it does so in some of a kernel's loops; which loop takes an element is up to the alignment.
void fold(const Fold &what, std::byte *destination, std::span<const std::byte *const> sources,
          std::span<const bool> raw, std::size_t num_elements, std::size_t kernel_set = 0);

} // namespace hocket
