// How ranks wait: spin or let others run, then sleep on the bell, and look up now and then.
#pragma once

#include <chrono>

namespace hocket {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::milliseconds attention{100}; // between looks at signals, clocks and what peers wrote down
inline constexpr std::chrono::microseconds spin_time{200};
inline constexpr std::chrono::seconds stall_time{5};
inline constexpr unsigned max_yields = 1000;
inline constexpr unsigned polls_per_look = 64; // at the clock, while spinning

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

} // namespace hocket
