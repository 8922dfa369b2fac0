// Vectors as wide as a set of kernels has them, and the few instructions that gcc's vectors do not have. HOCKET_KERNELS
// names the set, HOCKET_VECTOR_BYTES is the width.
#pragma once

#include "kernels/reduce_kernels.h"

#include <cstring>
#include <type_traits>
#ifdef HOCKET_X86
#include <emmintrin.h>
#endif

namespace hocket::HOCKET_KERNELS {
namespace {

inline constexpr std::size_t vector_bytes = HOCKET_VECTOR_BYTES;

template <typename T> struct VectorOf {
    typedef T type __attribute__((vector_size(vector_bytes)));
};
template <typename T> using Vector = typename VectorOf<T>::type;

template <typename To, typename From> To as(From from) { return __builtin_bit_cast(To, from); }

template <typename V> V load(const std::byte *from) {
    V vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

template <typename V> void store(std::byte *to, V vector) { std::memcpy(to, &vector, sizeof vector); }

/// To an aligned place. Later stores are only ordered behind it by end_stores_past_caches().
template <typename V> void store_past_caches(std::byte *to, V vector) {
#if defined(HOCKET_X86) && HOCKET_VECTOR_BYTES == 64
    _mm512_stream_si512(reinterpret_cast<__m512i *>(to), as<__m512i>(vector));
#elif defined(HOCKET_X86) && HOCKET_VECTOR_BYTES == 32
    _mm256_stream_si256(reinterpret_cast<__m256i *>(to), as<__m256i>(vector));
#elif defined(HOCKET_X86)
    _mm_stream_si128(reinterpret_cast<__m128i *>(to), as<__m128i>(vector));
#else
    store(to, vector);
#endif
}

inline void end_stores_past_caches() {
#ifdef HOCKET_X86
    _mm_sfence();
#endif
}

#if HOCKET_VECTOR_BYTES == 64

__mmask64 first(std::size_t num_bytes) { return (__mmask64{1} << num_bytes) - 1; }

/// Less than a vector; zeros behind.
template <typename V> V load_some(const std::byte *from, std::size_t num_bytes) {
    return as<V>(_mm512_maskz_loadu_epi8(first(num_bytes), from));
}

template <typename V> void store_some(std::byte *to, V vector, std::size_t num_bytes) {
    _mm512_mask_storeu_epi8(to, first(num_bytes), as<Vector<long long>>(vector));
}

Vector<float> widen_low(Vector<std::uint16_t> stored) {
    return _mm512_cvtph_ps(_mm512_castsi512_si256(as<Vector<long long>>(stored)));
}

Vector<float> widen_high(Vector<std::uint16_t> stored) {
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(as<Vector<long long>>(stored), 1));
}

Vector<std::uint16_t> narrow_both(Vector<float> low, Vector<float> high) {
    const __m512i stored = _mm512_castsi256_si512(_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    return as<Vector<std::uint16_t>>(_mm512_inserti64x4(stored, _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), 1));
}

struct Table {
    alignas(vector_bytes) std::uint8_t bytes[2 * vector_bytes];
};

/// By the lower seven bits of each byte.
Vector<std::uint8_t> look_up(const Table &table, Vector<std::uint8_t> index) {
    const __m512i low = _mm512_load_si512(table.bytes), high = _mm512_load_si512(table.bytes + vector_bytes);
    return as<Vector<std::uint8_t>>(_mm512_permutex2var_epi8(low, as<Vector<long long>>(index), high));
}

/// Of each 16 bytes the first eight, or the last, as the lower and upper bytes of 16 bits.
Vector<std::uint8_t> interleave_low(Vector<std::uint8_t> lower, Vector<std::uint8_t> upper) {
    return as<Vector<std::uint8_t>>(_mm512_unpacklo_epi8(as<Vector<long long>>(lower), as<Vector<long long>>(upper)));
}

Vector<std::uint8_t> interleave_high(Vector<std::uint8_t> lower, Vector<std::uint8_t> upper) {
    return as<Vector<std::uint8_t>>(_mm512_unpackhi_epi8(as<Vector<long long>>(lower), as<Vector<long long>>(upper)));
}

/// The upper bytes alone, in the order before.
Vector<std::uint8_t> pack_upper(Vector<std::uint16_t> low, Vector<std::uint16_t> high) {
    return as<Vector<std::uint8_t>>(
        _mm512_packus_epi16(as<Vector<long long>>(low >> 8), as<Vector<long long>>(high >> 8)));
}

#else

/// Less than a vector; zeros behind. One word, of 8 bytes or 4, as of the smallest messages, goes through a register.
template <typename V> V load_some(const std::byte *from, std::size_t num_bytes) {
    if (num_bytes == sizeof(std::uint64_t)) return as<V>(Vector<std::uint64_t>{load<std::uint64_t>(from)});
    if (num_bytes == sizeof(std::uint32_t)) return as<V>(Vector<std::uint32_t>{load<std::uint32_t>(from)});
    V vector{};
    std::memcpy(&vector, from, num_bytes);
    return vector;
}

template <typename V> void store_some(std::byte *to, V vector, std::size_t num_bytes) {
    if (num_bytes == sizeof(std::uint64_t)) return store(to, as<Vector<std::uint64_t>>(vector)[0]);
    if (num_bytes == sizeof(std::uint32_t)) return store(to, as<Vector<std::uint32_t>>(vector)[0]);
    std::memcpy(to, &vector, num_bytes);
}

#endif
#if HOCKET_VECTOR_BYTES == 32

Vector<float> widen_low(Vector<std::uint16_t> stored) {
    return _mm256_cvtph_ps(_mm256_castsi256_si128(as<Vector<long long>>(stored)));
}

Vector<float> widen_high(Vector<std::uint16_t> stored) {
    return _mm256_cvtph_ps(_mm256_extracti128_si256(as<Vector<long long>>(stored), 1));
}

Vector<std::uint16_t> narrow_both(Vector<float> low, Vector<float> high) {
    return as<Vector<std::uint16_t>>(_mm256_set_m128i(_mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT),
                                                      _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT)));
}

#endif
} // namespace
} // namespace hocket::HOCKET_KERNELS
