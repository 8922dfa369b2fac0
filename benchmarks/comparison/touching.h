// The work of a program between two collectives: it reads the last result and writes the next input. touch.cpp and
// floor.cpp share it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace touching {

inline constexpr std::size_t line_bytes = 64;

/// Calls use(part, source) for each part of `whole`. `source` is the matching part of `table`, which repeats, beginning
/// at `offset`. Stops if `use` returns false.
template <class Use>
void along(std::span<std::byte> whole, std::span<const std::byte> table, std::size_t offset, Use use) {
    std::size_t done = 0;
    std::size_t place = offset % table.size();
    while (done < whole.size()) {
        const std::size_t now = std::min(whole.size() - done, table.size() - place);
        if (!use(whole.subspan(done, now), table.subspan(place, now))) { return; }
        done += now;
        place = 0;
    }
}

/// Fills an input with a table of a few KiB, which stays in the first-level cache: only the input is memory traffic.
inline void write(std::span<std::byte> input, std::span<const std::byte> table) {
    along(input, table, 0, [](std::span<std::byte> part, std::span<const std::byte> from) {
        std::memcpy(part.data(), from.data(), part.size());
        return true;
    });
}

/// Reads one word of each cache line of an output, so that the core must fetch every line.
inline std::uint64_t sum_of_lines(std::span<const std::byte> output) {
    std::uint64_t sum = 0;
    std::size_t place = 0;
    for (; place + sizeof(std::uint64_t) <= output.size(); place += line_bytes) {
        std::uint64_t word;
        std::memcpy(&word, output.data() + place, sizeof(word));
        sum += word * (place / line_bytes | 1);
    }
    if (place < output.size()) {
        std::uint64_t word = 0;
        std::memcpy(&word, output.data() + place, std::min(sizeof(word), output.size() - place));
        sum += word;
    }
    return sum;
}

} // namespace touching
