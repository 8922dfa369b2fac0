// A hash of numbers: what spreads flows over equally good ways. Python has the same in network/flow_hash.py.
#pragma once

#include <cstdint>

namespace hocket::simulator {

/// The finaliser of SplitMix64 (Steele 2014), without its last two bits.
inline std::uint64_t mix(std::uint64_t key, std::uint64_t salt) {
    std::uint64_t x = key * 0x9E3779B97F4A7C15U + salt;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return (x ^ (x >> 31)) >> 2;
}

} // namespace hocket::simulator
