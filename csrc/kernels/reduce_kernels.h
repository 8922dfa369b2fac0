// What a set of kernels is. Each set is compiled for one family of instructions, from the same reduce_folds.h, and all
// of them compute the same bits.
#pragma once

#include "kernels/reduce.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) // `pragma GCC target` is gcc's alone
#define HOCKET_X86
#endif

namespace hocket {

using Sources = std::span<const std::byte *const>;

/// A left fold of one source or more, in one pass. `raw` is empty where nothing is multiplied as it is read.
using Kernel = void (*)(const Fold &what, std::byte *to, Sources sources, std::span<const bool> raw, std::size_t n);

/// By type and reduction; null where there is no meaning.
using Kernels = std::array<std::array<Kernel, num_ops>, num_dtypes>;

namespace portable { // whatever the compiler may always use
extern const Kernels kernels;
}
#ifdef HOCKET_X86
namespace avx2 { // and F16C, which converts float16
extern const Kernels kernels;
}
namespace avx512 { // F, BW, DQ, VL and VBMI: Ice Lake, Zen 4 and newer
extern const Kernels kernels;
}
#endif

} // namespace hocket
