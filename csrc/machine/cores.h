// The cores of this machine: how to run on them, and how long a cache line takes between two of them.
#pragma once

#include "base/system.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <span>
#include <thread>
#include <vector>

namespace hocket {

/// Binds the calling thread to a core. std::system_error where that may not be used.
void run_on_core(int core);

/// Runs on a thread of its own on each core; what one of them throws is thrown here, after all have ended.
template <typename Function> void on_cores(std::span<const int> cores, const Function &function) {
    std::atomic<std::size_t> ready{0}, failed{0};
    std::vector<std::exception_ptr> errors(cores.size());
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < cores.size(); ++i) {
        threads.emplace_back([&, i] {
            enter_own_thread();
            try {
                run_on_core(cores[i]);
            } catch (...) {
                errors[i] = std::current_exception();
                ++failed;
            }
            // Nobody begins before all are there, and nobody at all if one cannot: they wait for each other.
            ++ready;
            while (ready < cores.size()) std::this_thread::yield();
            if (failed == 0) function(i);
        });
    }
    threads.clear();
    for (const std::exception_ptr &error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

/// Seconds from a store on one core to another core's seeing it: half of the fastest round trips of a cache line.
double hop_seconds(int first_core, int second_core, std::chrono::nanoseconds duration);

} // namespace hocket
