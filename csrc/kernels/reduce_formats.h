// How elements are stored, and what they are while one computes on them: vectors of the accumulator type.
#pragma once

#include "kernels/reduce_vectors.h"

namespace hocket::HOCKET_KERNELS {
namespace {

/// Stored as it is computed on.
template <typename T> struct Plain {
    using Part = T;
    using Stored = Vector<T>;
    using Accumulator = Vector<T>;
    static constexpr std::size_t num_bytes = sizeof(T);
    static Accumulator widen(Stored stored) { return stored; }
    static Stored narrow(Accumulator values) { return values; }
};

/// Complex numbers side by side, each a real and an imaginary part.
template <typename T> struct Numbers {
    Vector<T> parts;
};

template <typename T> struct Complex {
    using Part = T;
    using Stored = Vector<T>;
    using Accumulator = Numbers<T>;
    static constexpr std::size_t num_bytes = 2 * sizeof(T);
    static Accumulator widen(Stored stored) { return {stored}; }
    static Stored narrow(Accumulator values) { return values.parts; }
};

/// A vector of narrow floats, widened. Which element is where is up to the format: it only has to find back.
template <std::size_t n> struct Widened {
    Vector<float> part[n];
};

using Lanes = Vector<std::uint32_t>;

/// One number of a `Layout` in each half or quarter of 32 bits. A layout knows it as the upper bits of
/// a lane, and may leave junk beneath.
template <typename Layout> struct InLanes {
    using Part = float;
    using Stored = Lanes;
    static constexpr std::uint32_t num_bits = Layout::num_bits, num_parts = 32 / num_bits;
    static constexpr std::size_t num_bytes = num_bits / 8;
    using Accumulator = Widened<num_parts>;

    static Accumulator widen(Lanes stored) {
        Accumulator values;
        for (std::uint32_t i = 0; i < num_parts; ++i) {
            const Lanes upper = stored << (32 - num_bits * (i + 1));
            values.part[i] = Layout::widen(i == 0 ? upper : upper & mask);
        }
        return values;
    }

    static Lanes narrow(const Accumulator &values) {
        Lanes stored = Layout::narrow(values.part[0]) >> (32 - num_bits);
        for (std::uint32_t i = 1; i < num_parts; ++i) {
            stored |= (Layout::narrow(values.part[i]) & mask) >> (32 - num_bits * (i + 1));
        }
        return stored;
    }

  private:
    static constexpr std::uint32_t mask = ~std::uint32_t{0} << (32 - num_bits);
};

/// Floats of 16 and 8 bits in the way of IEEE 754: a sign, an exponent, a mantissa. Without infinities, the largest
/// exponent holds numbers too, and all ones are NaN. Only normal float32 are computed with, whatever the processor does
/// to subnormal ones.
template <std::uint32_t bits, std::uint32_t mantissa_bits, bool infinities> struct Ieee {
    static constexpr std::uint32_t num_bits = bits, shift = 23 - mantissa_bits;
    static constexpr std::uint32_t most = (1U << (num_bits - 1)) - 1, bias = most >> mantissa_bits >> 1;
    static constexpr std::uint32_t rebias = (127 - bias) << 23, smallest_normal = rebias + (1U << 23);
    static constexpr std::uint32_t exponents = most >> mantissa_bits << 23; // of a widened number, before its bias
    static constexpr std::uint32_t sign = 0x80000000, infinity = 0x7f800000;

    static Vector<float> widen(Lanes upper) {
        const Lanes widened = (upper & ~sign) >> (8 - (num_bits - 1 - mantissa_bits));
        // A subnormal number is the fraction of the smallest normal one.
        const Vector<float> above = as<Vector<float>>(widened + smallest_normal);
        const Lanes subnormal = as<Lanes>(above - __builtin_bit_cast(float, smallest_normal));
        Lanes value = below(widened, 1U << 23) ? subnormal : widened + rebias;
        if constexpr (infinities) value |= as<Lanes>(below(widened, exponents)) == 0 ? Lanes{} + infinity : Lanes{};
        else value |= widened == most << shift ? Lanes{} + infinity : Lanes{};
        return as<Vector<float>>(value | (upper & sign));
    }

    /// To the nearest, and of two equally near ones to the even one.
    static Lanes narrow(Vector<float> value) {
        // What is too large becomes infinity or, where there is none, NaN, which is the number behind the largest.
        constexpr std::uint32_t largest = rebias + (infinities ? exponents : most << shift);
        Lanes magnitude = as<Lanes>(value) & ~sign;
        magnitude = smaller(magnitude, largest);
        // Rounded by the sum with a power of two so large that its last bit is worth the last bit that is stored. The
        // sum counts how often; what the exponent adds to that is added in two parts, one of them beforehand.
        const Lanes exponent = magnitude & infinity;
        const Lanes power = larger(exponent, smallest_normal);
        constexpr std::uint32_t beforehand = (0U - (smallest_normal >> shift)) & most;
        const Vector<float> rounder = as<Vector<float>>(power + ((shift << 23) + beforehand));
        Lanes stored = (as<Lanes>(as<Vector<float>>(magnitude) + rounder) + (power >> shift)) << (32 - num_bits);
        if constexpr (infinities)
            stored |= value == value ? Lanes{} : Lanes{} + (1U << (31 - num_bits + mantissa_bits));
        return (stored & ~sign) | (as<Lanes>(value) & sign);
    }

    /// The bits of one magnitude as float32, for tables.
    static constexpr std::uint32_t widened(std::uint32_t magnitude) {
        const std::uint32_t normal = magnitude << shift;
        if (infinities ? normal >= exponents : magnitude == most) return normal | infinity;
        if (normal >= 1U << 23) return normal + rebias;
        const float above = __builtin_bit_cast(float, normal + smallest_normal);
        return __builtin_bit_cast(std::uint32_t, above - __builtin_bit_cast(float, smallest_normal));
    }

  private:
    // Of lanes that are no negative numbers, for which processors have more comparisons.
    using Signed = Vector<std::int32_t>;

    static Signed below(Lanes a, std::uint32_t b) { return as<Signed>(a) < static_cast<std::int32_t>(b); }

    static Lanes smaller(Lanes a, std::uint32_t b) {
        const Signed one = as<Signed>(a), other = Signed{} + static_cast<std::int32_t>(b);
        return as<Lanes>(one < other ? one : other);
    }

    static Lanes larger(Lanes a, std::uint32_t b) {
        const Signed one = as<Signed>(a), other = Signed{} + static_cast<std::int32_t>(b);
        return as<Lanes>(one > other ? one : other);
    }
};

/// The upper half of a float32.
struct Upper {
    static constexpr std::uint32_t num_bits = 16;

    static Vector<float> widen(Lanes upper) { return as<Vector<float>>(upper); }

    static Lanes narrow(Vector<float> value) {
        const Lanes bits = as<Lanes>(value);
        return value == value ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000;
    }
};

using Bfloat16 = InLanes<Upper>;
using E4m3fn = Ieee<8, 3, false>;
using E5m2 = Ieee<8, 2, true>;

#if HOCKET_VECTOR_BYTES == 16

using Float16 = InLanes<Ieee<16, 10, true>>;

#else

/// Converted by the processor.
struct Float16 {
    using Part = float;
    using Stored = Vector<std::uint16_t>;
    using Accumulator = Widened<2>;
    static constexpr std::size_t num_bytes = 2;
    static Accumulator widen(Stored stored) { return {{widen_low(stored), widen_high(stored)}}; }
    static Stored narrow(const Accumulator &values) { return narrow_both(values.part[0], values.part[1]); }
};

#endif
#if HOCKET_VECTOR_BYTES == 64

/// Floats of 8 bits. As float32 they need no more than two bytes; both are looked up.
template <typename Layout> struct LookedUp {
    using Part = float;
    using Stored = Vector<std::uint8_t>;
    using Accumulator = Widened<4>;
    static constexpr std::size_t num_bytes = 1;

    static Accumulator widen(Stored stored) {
        const Stored lower = look_up(lower_bytes, stored), upper = look_up(upper_bytes, stored) | (stored & 0x80);
        const Lanes low = as<Lanes>(interleave_low(lower, upper)), high = as<Lanes>(interleave_high(lower, upper));
        return {{as<Vector<float>>(low << 16), as<Vector<float>>(low & 0xffff0000), //
                 as<Vector<float>>(high << 16), as<Vector<float>>(high & 0xffff0000)}};
    }

    static Stored narrow(const Accumulator &values) {
        const Lanes low = Layout::narrow(values.part[0]) >> 16 | Layout::narrow(values.part[1]);
        const Lanes high = Layout::narrow(values.part[2]) >> 16 | Layout::narrow(values.part[3]);
        return pack_upper(as<Vector<std::uint16_t>>(low), as<Vector<std::uint16_t>>(high));
    }

  private:
    /// Of the upper half of the float32 that the magnitudes 0 to 127 stand for: its lower or upper byte.
    static constexpr Table table_of(int shift) {
        Table table{};
        for (std::uint32_t magnitude = 0; magnitude < 128; ++magnitude) {
            table.bytes[magnitude] = static_cast<std::uint8_t>(Layout::widened(magnitude) >> shift);
        }
        return table;
    }

    static constexpr Table lower_bytes = table_of(16), upper_bytes = table_of(24);
};

using Float8E4m3fn = LookedUp<E4m3fn>;
using Float8E5m2 = LookedUp<E5m2>;

#else

using Float8E4m3fn = InLanes<E4m3fn>;
using Float8E5m2 = InLanes<E5m2>;

#endif
} // namespace
} // namespace hocket::HOCKET_KERNELS
