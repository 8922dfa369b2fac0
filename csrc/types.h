// The vocabulary that every part of the core shares: element types, reductions, spaces, and views of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hocket {

enum class Dtype : std::uint8_t { float32, float64, int32, int64, uint8 };
enum class Op : std::uint8_t { sum, prod, min, max, avg };

constexpr std::size_t size_of(Dtype dtype) {
    switch (dtype) {
    case Dtype::float32:
    case Dtype::int32: return 4;
    case Dtype::float64:
    case Dtype::int64: return 8;
    case Dtype::uint8: return 1;
    }
    return 0;
}

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t page = 4096;

/// What the executor moves at once, and what one staging slot holds. All ranks share it, so pieces match.
inline constexpr std::size_t piece_bytes = std::size_t{128} << 10;

/// Where an operand of an instruction lies. `remote` is a message of a channel.
enum class Space : std::int32_t { input = 0, output = 1, scratch = 2, remote = 3 };

using Bytes = std::span<const std::byte>;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

} // namespace hocket
