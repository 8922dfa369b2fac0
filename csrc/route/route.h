// By which way bytes go from one rank to another.
#pragma once

#include <array>
#include <cstdint>

namespace hocket {

/// line: inside the cache line that announces them. stage: copied into a slot of shared memory, which all readers
/// share. lend: read where they lie. put: written by the sender where the reader wants them. halve: each end moves one
/// half, the sender by writing, the reader by reading. fetch: copied by the system out of the sender's private memory,
/// on the reader's request. stream: through a byte stream.
enum class Way : std::uint8_t { line, stage, lend, put, halve, fetch, stream };
inline constexpr std::array way_names{"line", "stage", "lend", "put", "halve", "fetch", "stream"};

} // namespace hocket
