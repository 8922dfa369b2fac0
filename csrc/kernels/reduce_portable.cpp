// The kernels for every processor: 16 bytes at a time are in the baseline of x86-64 and of AArch64.
#define HOCKET_KERNELS portable
#define HOCKET_VECTOR_BYTES 16
#include "kernels/reduce_folds.h"
