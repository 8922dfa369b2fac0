// What the files of kernels share: how a kernel is compiled, the operations on two elements, and the table of a type.
#pragma once

#include "reduce.h"

#include <bit>
#include <concepts>
#include <type_traits>

// One binary per architecture family, the widest vectors that the processor has. Sanitizers cannot start before the
// resolvers of target_clones run, so sanitized builds keep to the baseline.
#if defined(__x86_64__) && !defined(HOCKET_SANITIZE)
#define HOCKET_VECTOR __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define HOCKET_VECTOR
#endif

namespace hocket {

/// to[i] = a[i] op b[i] for n elements of the accumulator type. `to` may be one operand, but overlaps none partly.
using Combine = void (*)(std::byte *to, const std::byte *a, const std::byte *b, std::size_t n);

/// The kernels of an element type; null where there is no meaning.
struct Kernels {
    std::array<Combine, num_ops> combine; ///< in the order of Op
    void (*scale)(std::byte *to, const std::byte *a, const Factor &factor, std::size_t n) = nullptr;
    void (*divide)(std::byte *to, const std::byte *a, int divisor, std::size_t n) = nullptr;
    /// Where the accumulator is float32 and the stored type is not: from the one to the other, and back with rounding.
    void (*widen)(std::byte *to, const std::byte *from, std::size_t n) = nullptr;
    void (*narrow)(std::byte *to, const std::byte *from, std::size_t n) = nullptr;

    Combine of(Op op) const { return combine[static_cast<std::size_t>(op)]; }
};

extern const Kernels float16_kernels, bfloat16_kernels, float32_kernels, float64_kernels, float8_e4m3fn_kernels,
    float8_e5m2_kernels, int8_kernels, int16_kernels, int32_kernels, int64_kernels, uint8_kernels, uint16_kernels,
    uint32_kernels, uint64_kernels, boolean_kernels, complex64_kernels, complex128_kernels;

/// Not std::complex, whose product treats NaN and infinity apart.
template <typename T> struct Complex {
    T real, imaginary;
};

template <typename T> using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

struct Sum {
    template <std::unsigned_integral T> static T apply(T a, T b) { return static_cast<T>(a + b); }
    template <std::floating_point T> static T apply(T a, T b) { return a + b; }
    template <typename T> static Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {a.real + b.real, a.imaginary + b.imaginary};
    }
};

struct Prod {
    // The detour over 64 bits keeps promoted small types out of undefined overflow.
    template <std::unsigned_integral T> static T apply(T a, T b) { return static_cast<T>(std::uint64_t{a} * b); }
    template <std::floating_point T> static T apply(T a, T b) { return a * b; }
    // A difference beside a sum would be one instruction for gcc 12, fused in spite of -ffp-contract=off; so the sign
    // is a bit, turned over.
    template <typename T> static Complex<T> apply(Complex<T> a, Complex<T> b) {
        constexpr Bits<T> sign = Bits<T>{1} << (8 * sizeof(T) - 1);
        const T negative = std::bit_cast<T>(std::bit_cast<Bits<T>>(a.imaginary * b.imaginary) ^ sign);
        return {a.real * b.real + negative, a.real * b.imaginary + a.imaginary * b.real};
    }
};

// NaN wins, and -0 is below +0. Equal floats differ in their sign bit at most, so OR and AND pick the right zero.
struct Min {
    template <typename T> static T apply(T a, T b) {
        T smaller = a < b ? a : b;
        if constexpr (std::is_floating_point_v<T>) {
            const T equal = std::bit_cast<T>(std::bit_cast<Bits<T>>(a) | std::bit_cast<Bits<T>>(b));
            smaller = a == b ? equal : smaller;
            smaller = a != a ? a : smaller;
        }
        return smaller;
    }
};

struct Max {
    template <typename T> static T apply(T a, T b) {
        T larger = a > b ? a : b;
        if constexpr (std::is_floating_point_v<T>) {
            const T equal = std::bit_cast<T>(std::bit_cast<Bits<T>>(a) & std::bit_cast<Bits<T>>(b));
            larger = a == b ? equal : larger;
            larger = a != a ? a : larger;
        }
        return larger;
    }
};

template <typename T> bool truth(T value) { return value != T{0}; }
template <typename T> bool truth(Complex<T> value) { return (value.real != 0) | (value.imaginary != 0); }

struct And {
    template <typename T> static T apply(T a, T b) { return {static_cast<T>(truth(a) & truth(b))}; }
    template <typename T> static Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {static_cast<T>(truth(a) & truth(b)), 0};
    }
};

struct Or {
    template <typename T> static T apply(T a, T b) { return static_cast<T>(truth(a) | truth(b)); }
    template <typename T> static Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {static_cast<T>(truth(a) | truth(b)), 0};
    }
};

struct Xor {
    template <typename T> static T apply(T a, T b) { return static_cast<T>(truth(a) ^ truth(b)); }
    template <typename T> static Complex<T> apply(Complex<T> a, Complex<T> b) {
        return {static_cast<T>(truth(a) ^ truth(b)), 0};
    }
};

template <typename T> struct FactorAs {
    static T of(const Factor &factor) {
        if constexpr (std::is_floating_point_v<T>) return static_cast<T>(factor.real);
        else return static_cast<T>(factor.integer);
    }
};
template <typename T> struct FactorAs<Complex<T>> {
    static Complex<T> of(const Factor &factor) {
        return {static_cast<T>(factor.real), static_cast<T>(factor.imaginary)};
    }
};

} // namespace hocket

// A loop over n elements; ivdep says that what may be the same memory overlaps in no other way.
#define HOCKET_LOOP(STATEMENT)                                                                                         \
    _Pragma("GCC ivdep") for (std::size_t i = 0; i < n; ++i) { STATEMENT; }

#define HOCKET_COMBINE(NAME, TYPE, OPERATION)                                                                          \
    HOCKET_VECTOR void NAME(std::byte *to, const std::byte *a, const std::byte *b, std::size_t n) {                    \
        auto *result = reinterpret_cast<TYPE *>(to);                                                                   \
        const auto *left = reinterpret_cast<const TYPE *>(a), *right = reinterpret_cast<const TYPE *>(b);              \
        HOCKET_LOOP(result[i] = OPERATION::apply(left[i], right[i]))                                                   \
    }

#define HOCKET_SCALE(NAME, TYPE)                                                                                       \
    HOCKET_VECTOR void NAME(std::byte *to, const std::byte *a, const Factor &factor, std::size_t n) {                  \
        auto *result = reinterpret_cast<TYPE *>(to);                                                                   \
        const auto *left = reinterpret_cast<const TYPE *>(a);                                                          \
        const TYPE by = FactorAs<TYPE>::of(factor);                                                                    \
        HOCKET_LOOP(result[i] = Prod::apply(left[i], by))                                                              \
    }
