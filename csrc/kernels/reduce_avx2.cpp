// The kernels for AVX2, and F16C, which came before it.
#include "kernels/reduce_kernels.h"

#ifdef HOCKET_X86
// Before the pragma: what they define inline may be linked into code for any processor.
#include <cstring>
#include <immintrin.h>
#include <type_traits>
#include <utility>

#pragma GCC target("avx2,f16c")
#define HOCKET_KERNELS avx2
#define HOCKET_VECTOR_BYTES 32
#include "kernels/reduce_folds.h"
#endif
