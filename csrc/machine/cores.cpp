#include "machine/cores.h"

#include "base/types.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <sched.h>
#include <string>
#include <system_error>

namespace hocket {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int trips = 100; // of a cache line, between two looks at the clock

} // namespace

void run_on_core(int core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<std::size_t>(core), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0)
        throw std::system_error(errno, std::generic_category(), "cannot run on core " + std::to_string(core));
}

double hop_seconds(int first_core, int second_core, std::chrono::nanoseconds duration) {
    alignas(2 * cache_line) std::atomic<std::uint32_t> ball{0}; // even: the first core's turn
    constexpr std::uint32_t over = std::numeric_limits<std::uint32_t>::max();
    double best = std::numeric_limits<double>::infinity();
    const std::array cores{first_core, second_core};
    on_cores(cores, [&](std::size_t core) {
        if (core != 0) {
            for (std::uint32_t turn = 1;; turn += 2) {
                std::uint32_t seen;
                while ((seen = ball.load(std::memory_order_acquire)) != turn) {
                    if (seen == over) return;
                }
                ball.store(turn + 1, std::memory_order_release);
            }
        }
        const Clock::time_point end = Clock::now() + duration;
        std::uint32_t turn = 0;
        while (Clock::now() < end) {
            const Clock::time_point started = Clock::now();
            for (int trip = 0; trip < trips; ++trip) {
                ball.store(turn + 1, std::memory_order_release);
                turn += 2;
                while (ball.load(std::memory_order_acquire) != turn) {}
            }
            const std::chrono::duration<double> seconds = Clock::now() - started;
            best = std::min(best, seconds.count() / (2 * trips));
        }
        ball.store(over, std::memory_order_release);
    });
    return best;
}

} // namespace hocket
