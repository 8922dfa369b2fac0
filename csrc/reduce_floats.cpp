// The kernels of floats and complex numbers, and the conversions of the narrow floats that accumulate in float32.
#include "reduce_kernels.h"

namespace hocket {
namespace {

struct Quotient {
    template <typename T> static T apply(T a, T divisor) { return a / divisor; }
    template <typename T> static Complex<T> apply(Complex<T> a, T divisor) {
        return {a.real / divisor, a.imaginary / divisor};
    }
};

/// Without a branch, or gcc would put the arithmetic of one side behind it and make no vectors.
std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
    const std::uint32_t mask = 0U - std::uint32_t{condition};
    return (yes & mask) | (no & ~mask);
}

/// Floats of 16 and 8 bits in the way of IEEE 754: a sign, an exponent, a mantissa. Without infinities, the largest
/// exponent holds numbers too, and all ones are NaN. Only normal float32 are computed with, whatever the processor does
/// to subnormal ones.
template <typename Stored, int mantissa_bits, bool infinities> struct Narrow {
    static constexpr int num_bits = 8 * sizeof(Stored), shift = 23 - mantissa_bits;
    static constexpr std::uint32_t sign = 1U << (num_bits - 1), all = sign - 1;
    static constexpr std::uint32_t bias = all >> mantissa_bits >> 1, rebias = (127 - bias) << 23;
    static constexpr std::uint32_t exponents = all >> mantissa_bits << 23; // of a widened number, before its bias
    static constexpr std::uint32_t smallest_normal = rebias + (1U << 23);
    static constexpr std::uint32_t infinity = 0x7f800000;

    static float widen(Stored stored) {
        const std::uint32_t magnitude = stored & all, widened = magnitude << shift;
        // A subnormal number is the fraction of the smallest normal one.
        const float above = std::bit_cast<float>(widened + smallest_normal);
        const auto subnormal = std::bit_cast<std::uint32_t>(above - std::bit_cast<float>(smallest_normal));
        std::uint32_t bits = choose((widened & exponents) == 0, subnormal, widened + rebias);
        if constexpr (infinities) bits = choose((widened & exponents) == exponents, widened | infinity, bits);
        else bits = choose(magnitude == all, 0x7fc00000, bits);
        return std::bit_cast<float>(bits | (stored & sign) << (32 - num_bits));
    }

    /// To the nearest, and of two equally near ones to the even one.
    static Stored narrow(float value) {
        constexpr std::uint32_t last = 1U << shift, half = last >> 1;
        // A float32 whose last bit is worth the smallest subnormal number: adding it rounds there.
        constexpr std::uint32_t rounder = smallest_normal + (std::uint32_t{shift} << 23);
        const auto all_bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t magnitude = all_bits & 0x7fffffffU, odd = magnitude >> shift & 1;
        const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(rounder);
        const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(sum) - rounder;
        std::uint32_t bits = (magnitude - rebias + (half - 1) + odd) >> shift;
        bits = choose(magnitude < smallest_normal, subnormal, bits);
        if constexpr (infinities) {
            constexpr std::uint32_t stored_infinity = exponents >> shift, nan = stored_infinity | last >> shift;
            bits = choose(magnitude >= exponents + rebias, stored_infinity, bits);
            bits = choose(magnitude > infinity, nan, bits);
        } else {
            constexpr std::uint32_t last_tie = ((all - 1) << shift) + half + rebias;
            bits = choose(magnitude > last_tie, all, bits);
        }
        return static_cast<Stored>(bits | (all_bits >> (32 - num_bits) & sign));
    }
};

/// The upper half of a float32.
struct Bfloat16 {
    static float widen(std::uint16_t stored) { return std::bit_cast<float>(std::uint32_t{stored} << 16); }

    static std::uint16_t narrow(float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
        return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
};

#define HOCKET_DIVIDE(NAME, TYPE, PART)                                                                                \
    HOCKET_VECTOR void NAME(std::byte *to, const std::byte *a, int divisor, std::size_t n) {                           \
        auto *result = reinterpret_cast<TYPE *>(to);                                                                   \
        const auto *left = reinterpret_cast<const TYPE *>(a);                                                          \
        const auto by = static_cast<PART>(divisor);                                                                    \
        HOCKET_LOOP(result[i] = Quotient::apply(left[i], by))                                                          \
    }

#define HOCKET_CONVERT(NAME, TO, FROM, CONVERSION)                                                                     \
    HOCKET_VECTOR void NAME(std::byte *to, const std::byte *from, std::size_t n) {                                     \
        auto *result = reinterpret_cast<TO *>(to);                                                                     \
        const auto *given = reinterpret_cast<const FROM *>(from);                                                      \
        HOCKET_LOOP(result[i] = CONVERSION(given[i]))                                                                  \
    }

#define HOCKET_FIELD(SUFFIX, TYPE, PART)                                                                               \
    HOCKET_COMBINE(sum_##SUFFIX, TYPE, Sum)                                                                            \
    HOCKET_COMBINE(prod_##SUFFIX, TYPE, Prod)                                                                          \
    HOCKET_COMBINE(land_##SUFFIX, TYPE, And)                                                                           \
    HOCKET_COMBINE(lor_##SUFFIX, TYPE, Or)                                                                             \
    HOCKET_COMBINE(lxor_##SUFFIX, TYPE, Xor)                                                                           \
    HOCKET_SCALE(scale_##SUFFIX, TYPE)                                                                                 \
    HOCKET_DIVIDE(divide_##SUFFIX, TYPE, PART)

#define HOCKET_ORDER(SUFFIX, TYPE)                                                                                     \
    HOCKET_COMBINE(min_##SUFFIX, TYPE, Min)                                                                            \
    HOCKET_COMBINE(max_##SUFFIX, TYPE, Max)

HOCKET_FIELD(float32, float, float)
HOCKET_FIELD(float64, double, double)
HOCKET_FIELD(complex64, Complex<float>, float)
HOCKET_FIELD(complex128, Complex<double>, double)
HOCKET_ORDER(float32, float)
HOCKET_ORDER(float64, double)

#define HOCKET_NARROW(SUFFIX, STORED, ...)                                                                             \
    HOCKET_CONVERT(widen_##SUFFIX, float, STORED, __VA_ARGS__::widen)                                                  \
    HOCKET_CONVERT(narrow_##SUFFIX, STORED, float, __VA_ARGS__::narrow)

using Float16 = Narrow<std::uint16_t, 10, true>;
using Float8E4m3fn = Narrow<std::uint8_t, 3, false>;
using Float8E5m2 = Narrow<std::uint8_t, 2, true>;
HOCKET_NARROW(float16, std::uint16_t, Float16)
HOCKET_NARROW(bfloat16, std::uint16_t, Bfloat16)
HOCKET_NARROW(float8_e4m3fn, std::uint8_t, Float8E4m3fn)
HOCKET_NARROW(float8_e5m2, std::uint8_t, Float8E5m2)

} // namespace

#define HOCKET_FIELD_TABLE(SUFFIX, MIN, MAX)                                                                           \
    {sum_##SUFFIX,  prod_##SUFFIX, MIN,     MAX,     sum_##SUFFIX, land_##SUFFIX, lor_##SUFFIX,                        \
     lxor_##SUFFIX, nullptr,       nullptr, nullptr, sum_##SUFFIX, nullptr}
#define HOCKET_NARROW_TABLE(SUFFIX)                                                                                    \
    constinit const Kernels SUFFIX##_kernels{.combine = HOCKET_FIELD_TABLE(float32, min_float32, max_float32),         \
                                             .scale = scale_float32,                                                   \
                                             .divide = divide_float32,                                                 \
                                             .widen = widen_##SUFFIX,                                                  \
                                             .narrow = narrow_##SUFFIX};
#define HOCKET_TABLE(SUFFIX, MIN, MAX)                                                                                 \
    constinit const Kernels SUFFIX##_kernels{                                                                          \
        .combine = HOCKET_FIELD_TABLE(SUFFIX, MIN, MAX), .scale = scale_##SUFFIX, .divide = divide_##SUFFIX};

HOCKET_NARROW_TABLE(float16)
HOCKET_NARROW_TABLE(bfloat16)
HOCKET_NARROW_TABLE(float8_e4m3fn)
HOCKET_NARROW_TABLE(float8_e5m2)
HOCKET_TABLE(float32, min_float32, max_float32)
HOCKET_TABLE(float64, min_float64, max_float64)
HOCKET_TABLE(complex64, nullptr, nullptr)
HOCKET_TABLE(complex128, nullptr, nullptr)

} // namespace hocket
