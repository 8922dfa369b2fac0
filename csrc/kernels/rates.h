// What the cores of this machine do to memory in a second: for lower bounds.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hocket {

/// What a core does to memory: reads it, writes it, copies one half of it to the other, or adds one half to the other.
enum class Pass : std::uint8_t { load, store, copy, add };
inline constexpr std::array pass_names{"load", "store", "copy", "add"};

/// Bytes per second that all these cores together load, store, copy or add, each in `footprint` bytes of its own.
///
/// All go over their memory at once, again and again for about `duration`; the fastest round counts, and of several
/// ways to do it (through the cache and past it) the fastest one. std::system_error where a core may not be used.
double bytes_per_second(Pass pass, std::size_t footprint, std::span<const int> cores,
                        std::chrono::nanoseconds duration);

} // namespace hocket
