// Copies and sums of float32, through the caches or past them.
#pragma once

#include "memory.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstring>
#include <span>

namespace hand_written {

using Floats __attribute__((vector_size(line_bytes), aligned(sizeof(float)), may_alias)) = float;

template <class Value> Value load(const std::byte *from) {
    Value value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

template <class Value> void store(std::byte *to, const Value &value) { std::memcpy(to, &value, sizeof(value)); }

// Lines that no core reads soon need not be fetched before they are written. If two cores share no cache, the other
// core may get a line faster from memory than from this core's cache.
inline void store_past_caches(std::byte *to, const Floats &value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(reinterpret_cast<float *>(to), load<__m512>(reinterpret_cast<const std::byte *>(&value)));
#elif defined(__AVX2__)
    const auto *const from = reinterpret_cast<const float *>(&value);
    _mm256_stream_ps(reinterpret_cast<float *>(to), _mm256_loadu_ps(from));
    _mm256_stream_ps(reinterpret_cast<float *>(to) + 8, _mm256_loadu_ps(from + 8));
#else
    store(to, value);
#endif
}

// Calls each(place, kind) to write the value at byte `place` of `to`. kind: Floats or float.
template <class Each> void along_lines(const std::byte *to, std::size_t bytes, Each each) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(to) % line_bytes;
    const std::size_t head = std::min(bytes, (line_bytes - past) % line_bytes);
    std::size_t place = 0;
    for (; place < head; place += sizeof(float)) { each(place, float{}); }
    for (; place + line_bytes <= bytes; place += line_bytes) { each(place, Floats{}); }
    for (; place < bytes; place += sizeof(float)) { each(place, float{}); }
}

template <bool past_caches, class Value> void put(std::byte *to, const Value &value) {
    if constexpr (past_caches && sizeof(Value) == line_bytes) {
        store_past_caches(to, value);
    } else {
        store(to, value);
    }
}

template <bool past_caches>
void fold_lines(std::byte *to, const std::byte *one, const std::byte *other, std::size_t bytes) {
    along_lines(to, bytes, [=](std::size_t place, auto kind) {
        using Value = decltype(kind);
        put<past_caches>(to + place, Value(load<Value>(one + place) + load<Value>(other + place)));
    });
}

// From 2 KiB on, the C library copies with an instruction that is many times slower on some processors if the target is
// a little further in its page than the source: such as from memory that begins a page to a NumPy array.
inline bool is_slow_memcpy(const std::byte *to, const std::byte *from, std::size_t bytes) {
    const std::size_t further = (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % page;
    return bytes >= 2048 && further > 0 && further < line_bytes;
}

inline void copy_by_lines(std::byte *to, const std::byte *from, std::size_t bytes) {
    along_lines(to, bytes,
                [=](std::size_t place, auto kind) { put<false>(to + place, load<decltype(kind)>(from + place)); });
}

inline void copy(std::byte *to, const std::byte *from, std::size_t bytes, bool past_caches) {
    if (!past_caches && !is_slow_memcpy(to, from, bytes)) {
        std::memcpy(to, from, bytes);
        return;
    }
    if (!past_caches) { return copy_by_lines(to, from, bytes); }
    along_lines(to, bytes,
                [=](std::size_t place, auto kind) { put<true>(to + place, load<decltype(kind)>(from + place)); });
    __builtin_ia32_sfence();
}

// to = one + other; each may be the same memory as `to`.
inline void fold(std::byte *to, const std::byte *one, const std::byte *other, std::size_t bytes, bool past_caches) {
    if (!past_caches) {
        fold_lines<false>(to, one, other, bytes);
        return;
    }
    fold_lines<true>(to, one, other, bytes);
    __builtin_ia32_sfence();
}

template <bool past_caches>
void fold_twice_lines(std::byte *to, std::byte *also, const std::byte *one, const std::byte *other, std::size_t bytes) {
    along_lines(also, bytes, [=](std::size_t place, auto kind) {
        using Value = decltype(kind);
        const Value sum = load<Value>(one + place) + load<Value>(other + place);
        store(to + place, sum);
        put<past_caches>(also + place, sum);
    });
}

// Writes the sum to `to` and `also` in one pass. past_caches: for `also`.
inline void fold_twice(std::byte *to, std::byte *also, const std::byte *one, const std::byte *other, std::size_t bytes,
                       bool past_caches) {
    if (!past_caches) {
        fold_twice_lines<false>(to, also, one, other, bytes);
        return;
    }
    fold_twice_lines<true>(to, also, one, other, bytes);
    __builtin_ia32_sfence();
}

template <bool past_caches, std::size_t count>
void fold_all_lines(std::byte *to, std::byte *also, std::span<const std::byte *const> from, std::size_t bytes) {
    along_lines(to, bytes, [=](std::size_t place, auto kind) {
        using Value = decltype(kind);
        Value sum = load<Value>(from[0] + place);
        for (std::size_t each = 1; each < (count > 0 ? count : from.size()); ++each) {
            sum += load<Value>(from[each] + place);
        }
        if (also != nullptr) { store(also + place, sum); }
        put<past_caches>(to + place, sum);
    });
}

template <bool past_caches>
void fold_all_lines(std::byte *to, std::byte *also, std::span<const std::byte *const> from, std::size_t bytes) {
    switch (from.size()) {
    case 2: return fold_all_lines<past_caches, 2>(to, also, from, bytes);
    case 3: return fold_all_lines<past_caches, 3>(to, also, from, bytes);
    case 4: return fold_all_lines<past_caches, 4>(to, also, from, bytes);
    case 8: return fold_all_lines<past_caches, 8>(to, also, from, bytes);
    default: return fold_all_lines<past_caches, 0>(to, also, from, bytes);
    }
}

// Writes the sum of any number to `to`, which may be one of them, and to `also` if it is given. past_caches: for `to`.
inline void fold_all(std::byte *to, std::byte *also, std::span<const std::byte *const> from, std::size_t bytes,
                     bool past_caches) {
    if (!past_caches) { return fold_all_lines<false>(to, also, from, bytes); }
    fold_all_lines<true>(to, also, from, bytes);
    __builtin_ia32_sfence();
}

} // namespace hand_written
