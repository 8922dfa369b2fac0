// The operations on two vectors of accumulators.
#pragma once

#include "kernels/reduce_formats.h"

#include <utility>

namespace hocket::HOCKET_KERNELS {
namespace {

template <typename V> using Element = std::remove_cvref_t<decltype(std::declval<V &>()[0])>;
template <typename V> inline constexpr std::size_t length = sizeof(V) / sizeof(Element<V>);
template <typename V> using Places = std::make_index_sequence<length<V>>;

template <std::size_t num_bytes> struct UnsignedOf;
template <> struct UnsignedOf<1> {
    using type = std::uint8_t;
};
template <> struct UnsignedOf<2> {
    using type = std::uint16_t;
};
template <> struct UnsignedOf<4> {
    using type = std::uint32_t;
};
template <> struct UnsignedOf<8> {
    using type = std::uint64_t;
};
template <typename V> using Bits = Vector<typename UnsignedOf<sizeof(Element<V>)>::type>;

template <typename V, std::size_t... i> V reals(V v, std::index_sequence<i...>) {
    return __builtin_shufflevector(v, v, (i & ~std::size_t{1})...);
}
template <typename V, std::size_t... i> V imaginaries(V v, std::index_sequence<i...>) {
    return __builtin_shufflevector(v, v, (i | 1)...);
}
template <typename V, std::size_t... i> V swapped(V v, std::index_sequence<i...>) {
    return __builtin_shufflevector(v, v, (i ^ 1)...);
}
/// One value at the places of real parts, another at those of imaginary ones.
template <typename V, std::size_t... i>
V alternating(Element<V> real, Element<V> imaginary, std::index_sequence<i...>) {
    return V{(i % 2 == 0 ? real : imaginary)...};
}

struct Sum {
    template <typename V> static V apply(V a, V b) { return a + b; }
    template <typename T> static Numbers<T> apply(Numbers<T> a, Numbers<T> b) { return {a.parts + b.parts}; }
};

struct Prod {
    template <typename V> static V apply(V a, V b) { return a * b; }
    // A difference beside a sum would be one instruction for gcc 12, fused in spite of -ffp-contract=off; so the sign
    // is a bit, turned over.
    template <typename T> static Numbers<T> apply(Numbers<T> a, Numbers<T> b) {
        using V = Vector<T>;
        constexpr Places<V> places;
        const V left = reals(a.parts, places) * b.parts;
        const V right = imaginaries(a.parts, places) * swapped(b.parts, places);
        return {left + as<V>(as<Bits<V>>(right) ^ as<Bits<V>>(alternating<V>(T{-0.0}, T{0}, places)))};
    }
};

// NaN wins, and -0 is below +0. Equal floats differ in their sign bit at most, so OR and AND pick the right zero.
struct Min {
    template <typename V> static V apply(V a, V b) {
        V smaller = a < b ? a : b;
        if constexpr (std::is_floating_point_v<Element<V>>) {
            smaller = a == b ? as<V>(as<Bits<V>>(a) | as<Bits<V>>(b)) : smaller;
            smaller = a != a ? a : smaller;
        }
        return smaller;
    }
};

struct Max {
    template <typename V> static V apply(V a, V b) {
        V larger = a > b ? a : b;
        if constexpr (std::is_floating_point_v<Element<V>>) {
            larger = a == b ? as<V>(as<Bits<V>>(a) & as<Bits<V>>(b)) : larger;
            larger = a != a ? a : larger;
        }
        return larger;
    }
};

/// All ones where a number is not 0.
template <typename V> Bits<V> truth(V a) { return as<Bits<V>>(a != 0); }
template <typename T> Bits<Vector<T>> truth(Numbers<T> a) {
    const Bits<Vector<T>> parts = truth(a.parts);
    return parts | swapped(parts, Places<Vector<T>>{});
}

template <typename V> V one_where(V, Bits<V> mask) { return as<V>(as<Bits<V>>(V{} + 1) & mask); }
template <typename T> Numbers<T> one_where(Numbers<T>, Bits<Vector<T>> mask) {
    using V = Vector<T>;
    return {as<V>(as<Bits<V>>(alternating<V>(1, 0, Places<V>{})) & mask)};
}

struct And {
    template <typename V> static V apply(V a, V b) { return one_where(a, truth(a) & truth(b)); }
};

struct Or {
    template <typename V> static V apply(V a, V b) { return one_where(a, truth(a) | truth(b)); }
};

struct Xor {
    template <typename V> static V apply(V a, V b) { return one_where(a, truth(a) ^ truth(b)); }
};

struct BitAnd {
    template <typename V> static V apply(V a, V b) { return a & b; }
};

struct BitOr {
    template <typename V> static V apply(V a, V b) { return a | b; }
};

struct BitXor {
    template <typename V> static V apply(V a, V b) { return a ^ b; }
};

template <typename Operation, typename Accumulator> Accumulator combine(const Accumulator &a, const Accumulator &b) {
    return Operation::apply(a, b);
}
template <typename Operation, std::size_t n> Widened<n> combine(const Widened<n> &a, const Widened<n> &b) {
    Widened<n> result;
    for (std::size_t i = 0; i < n; ++i) result.part[i] = Operation::apply(a.part[i], b.part[i]);
    return result;
}

/// An accumulator that holds one value everywhere: what premul_sum multiplies by.
template <typename V> void spread(V &values, const Factor &factor) {
    using T = Element<V>;
    T value;
    if constexpr (std::is_floating_point_v<T>) value = static_cast<T>(factor.real);
    else value = static_cast<T>(factor.integer);
    values = alternating<V>(value, value, Places<V>{}); // a zero vector plus -0 would be +0
}
template <typename T> void spread(Numbers<T> &values, const Factor &factor) {
    using V = Vector<T>;
    values.parts = alternating<V>(static_cast<T>(factor.real), static_cast<T>(factor.imaginary), Places<V>{});
}
template <std::size_t n> void spread(Widened<n> &values, const Factor &factor) {
    for (Vector<float> &part : values.part) spread(part, factor);
}

template <typename V, typename T> void divide(V &values, T divisor) { values /= divisor; }
template <typename T> void divide(Numbers<T> &values, T divisor) { values.parts /= divisor; }
template <std::size_t n> void divide(Widened<n> &values, float divisor) {
    for (Vector<float> &part : values.part) part /= divisor;
}

} // namespace
} // namespace hocket::HOCKET_KERNELS
