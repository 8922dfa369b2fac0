// The vocabulary that every part of the core shares: element types, reductions, spaces, and views of memory.
#pragma once

#include "base/limits.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hocket {

/// In the order of hocket.schedule.dtypes.DTYPES.
enum class Dtype : std::uint8_t {
    float16,
    bfloat16,
    float32,
    float64,
    float8_e4m3fn,
    float8_e5m2,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
    complex64,
    complex128,
};
inline constexpr std::array dtype_names{"float16", "bfloat16", "float32", "float64",   "float8_e4m3fn", "float8_e5m2",
                                        "int8",    "int16",    "int32",   "int64",     "uint8",         "uint16",
                                        "uint32",  "uint64",   "bool",    "complex64", "complex128"};
inline constexpr std::size_t num_dtypes = dtype_names.size();

/// In the order of hocket.schedule.reduction.REDUCTIONS.
enum class Op : std::uint8_t { sum, prod, min, max, avg, land, lor, lxor, band, bor, bxor, premul_sum, custom };
inline constexpr std::array op_names{"sum",  "prod", "min", "max",  "avg",        "land",  "lor",
                                     "lxor", "band", "bor", "bxor", "premul_sum", "custom"};
inline constexpr std::size_t num_ops = op_names.size();

constexpr const char *name_of(Dtype dtype) { return dtype_names[static_cast<std::size_t>(dtype)]; }
constexpr const char *name_of(Op op) { return op_names[static_cast<std::size_t>(op)]; }

/// Not inside the function, which would build it on the stack each time.
inline constexpr std::array<std::size_t, num_dtypes> dtype_sizes{2, 2, 4, 8, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16};
constexpr std::size_t size_of(Dtype dtype) { return dtype_sizes[static_cast<std::size_t>(dtype)]; }

/// What the address of an element is a multiple of: a complex number is two floats.
constexpr std::size_t alignment_of(Dtype dtype) {
    return dtype == Dtype::complex64 || dtype == Dtype::complex128 ? size_of(dtype) / 2 : size_of(dtype);
}

inline constexpr std::size_t cache_line = 64;

/// Where an operand of an instruction lies. `remote` is a message of a channel.
enum class Space : std::int32_t { input = 0, output = 1, scratch = 2, remote = 3 };

using Bytes = std::span<const std::byte>;

/// The next state of a hash: nothing is lost, as the factor is odd, and the order of words counts.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15U; }

/// Two numbers as one word.
constexpr std::uint64_t pair_of(std::int32_t high, std::int32_t low) {
    return std::uint64_t{static_cast<std::uint32_t>(high)} << 32 | static_cast<std::uint32_t>(low);
}

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

} // namespace hocket
