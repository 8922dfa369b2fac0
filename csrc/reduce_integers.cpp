// The kernels of integers, which wrap, and of bool.
#include "reduce_kernels.h"

namespace hocket {
namespace {

struct BitAnd {
    template <typename T> static T apply(T a, T b) { return static_cast<T>(a & b); }
};

struct BitOr {
    template <typename T> static T apply(T a, T b) { return static_cast<T>(a | b); }
};

struct BitXor {
    template <typename T> static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

} // namespace

// Only order tells signed integers from unsigned ones: all else has the same bits.
#define HOCKET_INTEGERS(WIDTH)                                                                                         \
    namespace {                                                                                                        \
    HOCKET_COMBINE(sum_##WIDTH, std::uint##WIDTH##_t, Sum)                                                             \
    HOCKET_COMBINE(prod_##WIDTH, std::uint##WIDTH##_t, Prod)                                                           \
    HOCKET_COMBINE(min_int##WIDTH, std::int##WIDTH##_t, Min)                                                           \
    HOCKET_COMBINE(max_int##WIDTH, std::int##WIDTH##_t, Max)                                                           \
    HOCKET_COMBINE(min_uint##WIDTH, std::uint##WIDTH##_t, Min)                                                         \
    HOCKET_COMBINE(max_uint##WIDTH, std::uint##WIDTH##_t, Max)                                                         \
    HOCKET_COMBINE(land_##WIDTH, std::uint##WIDTH##_t, And)                                                            \
    HOCKET_COMBINE(lor_##WIDTH, std::uint##WIDTH##_t, Or)                                                              \
    HOCKET_COMBINE(lxor_##WIDTH, std::uint##WIDTH##_t, Xor)                                                            \
    HOCKET_COMBINE(band_##WIDTH, std::uint##WIDTH##_t, BitAnd)                                                         \
    HOCKET_COMBINE(bor_##WIDTH, std::uint##WIDTH##_t, BitOr)                                                           \
    HOCKET_COMBINE(bxor_##WIDTH, std::uint##WIDTH##_t, BitXor)                                                         \
    HOCKET_SCALE(scale_##WIDTH, std::uint##WIDTH##_t)                                                                  \
    }                                                                                                                  \
    HOCKET_INTEGER_TABLE(int, WIDTH)                                                                                   \
    HOCKET_INTEGER_TABLE(uint, WIDTH)

#define HOCKET_INTEGER_TABLE(SIGN, WIDTH)                                                                              \
    constinit const Kernels SIGN##WIDTH##_kernels{                                                                     \
        .combine = {sum_##WIDTH, prod_##WIDTH, min_##SIGN##WIDTH, max_##SIGN##WIDTH, nullptr, land_##WIDTH,            \
                    lor_##WIDTH, lxor_##WIDTH, band_##WIDTH, bor_##WIDTH, bxor_##WIDTH, sum_##WIDTH, nullptr},         \
        .scale = scale_##WIDTH};

HOCKET_INTEGERS(8)
HOCKET_INTEGERS(16)
HOCKET_INTEGERS(32)
HOCKET_INTEGERS(64)

// A byte that is neither 0 nor 1 counts as true. Sums are "or" and products "and", as in NumPy; false is below true.
constinit const Kernels boolean_kernels{
    .combine = {lor_8, land_8, land_8, lor_8, nullptr, land_8, lor_8, lxor_8, land_8, lor_8, lxor_8, nullptr, nullptr}};

} // namespace hocket
