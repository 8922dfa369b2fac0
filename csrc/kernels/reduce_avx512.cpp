// The kernels for AVX-512. Its bfloat16 instructions are not used: they take subnormal numbers for zero.
#include "kernels/reduce_kernels.h"

#ifdef HOCKET_X86
// Before the pragma: what they define inline may be linked into code for any processor.
#include <cstring>
#include <immintrin.h>
#include <type_traits>
#include <utility>

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc 12 finds what its own header leaves undefined on purpose
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")
#define HOCKET_KERNELS avx512
#define HOCKET_VECTOR_BYTES 64
#include "kernels/reduce_folds.h"
#endif
