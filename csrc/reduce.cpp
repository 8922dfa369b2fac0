#include "reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

// One binary per architecture family, the widest vectors that the processor has. Sanitizers cannot start before the
// resolvers of target_clones run, so sanitized builds keep to the baseline.
#if defined(__x86_64__) && !defined(HOCKET_SANITIZE)
#define HOCKET_VECTOR __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define HOCKET_VECTOR
#endif

namespace hocket {
namespace {

template <typename T> using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

struct Sum {
    template <typename T> static T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>) return a + b;
        else return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
    }
};

struct Prod {
    // Integers wrap; the detour over 64 bits keeps promoted small types out of undefined overflow.
    template <typename T> static T apply(T a, T b) {
        if constexpr (std::is_floating_point_v<T>) return a * b;
        else return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
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

// The destination may be one of the operands; ivdep says that there is no other overlap.
#define HOCKET_COMBINE(NAME, OPERATION, TYPE)                                                                          \
    HOCKET_VECTOR void NAME(TYPE *to, const TYPE *a, const TYPE *b, std::size_t n) {                                   \
        _Pragma("GCC ivdep") for (std::size_t i = 0; i < n; ++i) to[i] = OPERATION::apply<TYPE>(a[i], b[i]);           \
    }
#define HOCKET_COMBINE_ALL(TYPE, SUFFIX)                                                                               \
    HOCKET_COMBINE(sum_##SUFFIX, Sum, TYPE)                                                                            \
    HOCKET_COMBINE(prod_##SUFFIX, Prod, TYPE)                                                                          \
    HOCKET_COMBINE(min_##SUFFIX, Min, TYPE)                                                                            \
    HOCKET_COMBINE(max_##SUFFIX, Max, TYPE)                                                                            \
    constexpr Kernels<TYPE> kernels_##SUFFIX{sum_##SUFFIX, prod_##SUFFIX, min_##SUFFIX, max_##SUFFIX};

template <typename T> using Combine = void (*)(T *to, const T *a, const T *b, std::size_t n);
template <typename T> struct Kernels {
    Combine<T> sum, prod, min, max;
    constexpr Combine<T> of(Op op) const {
        switch (op) {
        case Op::sum:
        case Op::avg: return sum;
        case Op::prod: return prod;
        case Op::min: return min;
        case Op::max: return max;
        }
        return sum;
    }
};

HOCKET_COMBINE_ALL(float, float32)
HOCKET_COMBINE_ALL(double, float64)
HOCKET_COMBINE_ALL(std::int32_t, int32)
HOCKET_COMBINE_ALL(std::int64_t, int64)
HOCKET_COMBINE_ALL(std::uint8_t, uint8)

template <typename T>
void fold_as(const Kernels<T> &kernels, Op op, std::byte *destination, std::span<const std::byte *const> sources,
             std::size_t n, int divisor) {
    constexpr std::size_t tile = 4096 / sizeof(T); // the running result stays in the first-level cache
    const Combine<T> combine = kernels.of(op);
    T *to = reinterpret_cast<T *>(destination);
    const auto source = [&](std::size_t i) { return reinterpret_cast<const T *>(sources[i]); };
    if (sources.size() == 2 && divisor == 1) return combine(to, source(0), source(1), n);
    alignas(cache_line) T running[tile];
    for (std::size_t at = 0; at < n; at += tile) {
        const std::size_t count = std::min(tile, n - at);
        const T *left = source(0) + at;
        for (std::size_t i = 1; i < sources.size(); ++i) {
            combine(running, left, source(i) + at, count);
            left = running;
        }
        if constexpr (std::is_floating_point_v<T>) {
            const T by = static_cast<T>(divisor);
            if (divisor != 1) {
                for (std::size_t i = 0; i < count; ++i) running[i] = left[i] / by;
                left = running;
            }
        }
        std::memmove(to + at, left, count * sizeof(T));
    }
}

} // namespace

void fold(Dtype dtype, Op op, std::byte *destination, std::span<const std::byte *const> sources, std::size_t n,
          int divisor) {
    if (sources.size() == 1 && divisor == 1) {
        if (destination != sources[0] && n > 0) std::memcpy(destination, sources[0], n * size_of(dtype));
        return;
    }
    switch (dtype) {
    case Dtype::float32: return fold_as<float>(kernels_float32, op, destination, sources, n, divisor);
    case Dtype::float64: return fold_as<double>(kernels_float64, op, destination, sources, n, divisor);
    case Dtype::int32: return fold_as<std::int32_t>(kernels_int32, op, destination, sources, n, divisor);
    case Dtype::int64: return fold_as<std::int64_t>(kernels_int64, op, destination, sources, n, divisor);
    case Dtype::uint8: return fold_as<std::uint8_t>(kernels_uint8, op, destination, sources, n, divisor);
    }
}

} // namespace hocket
