// Shared memory of the floor's processes, and how they wait for each other.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hand_written {

constexpr int most_ranks = 64;
constexpr std::size_t most_batches = 64;
constexpr std::size_t line_bytes = 64;
constexpr std::size_t page = 4096;
constexpr std::size_t longest_buffer = std::size_t{64} << 20;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t most_ring_bytes = huge_page; // larger than a core's own cache
constexpr std::size_t most_lines = 4096;
constexpr std::size_t most_finalists = 4;
constexpr int looks = 20'000; // far more than any wait takes while both processes run

#ifndef MADV_COLLAPSE // new in Linux 6.1; many headers are older
constexpr int MADV_COLLAPSE = 25;
#endif

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// Has one writer. Its number only grows.
struct alignas(line_bytes) Signal {
    std::atomic<std::uint64_t> number;
};

// A part of a small message with the message's number. They travel together, so that a reader waits for one thing.
struct alignas(line_bytes) Line {
    std::atomic<std::uint64_t> number;
    std::byte payload[line_bytes - sizeof(number)];
};

// From one rank to the other.
struct Lane {
    Signal written; // pieces that lie in the ring
    Signal taken;   // pieces, or messages in lines, that the reader no longer needs
    Line lines[most_lines];
    alignas(huge_page) std::byte ring[most_ring_bytes];
};

struct Shared {
    Signal arrived[most_ranks];
    pid_t processes[most_ranks];
    double spent[most_ranks];
    double loops[most_finalists][most_ranks][3][most_batches];
    bool wrong;
    char ways[most_finalists][128]; // of the variants that were measured after the trial
    Lane given[2];                  // by the writing rank
    Lane sums[2];
};

// Memory as NumPy allocates it for the comparison, as long as the largest message: 16 bytes into a page, and in huge
// pages where whole ones fit. A process that is forked later gets its own copy when it writes.
inline std::byte *private_memory(std::size_t bytes) {
    const std::size_t length = std::max(bytes, longest_buffer);
    auto *const memory = static_cast<std::byte *>(std::malloc(length));
    if (memory == nullptr) {
        std::perror("malloc");
        std::exit(1);
    }
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory) % page;
    madvise(memory + (page - past) % page, length / page * page - page, MADV_HUGEPAGE);
    return memory;
}

// Memory for all processes that are forked later; like hocket.empty, it begins with a huge page and has huge pages.
inline std::byte *shared_memory(std::size_t bytes) {
    const auto mapped = [](void *address, std::size_t length, int protection, int flags) {
        void *const memory = mmap(address, length, protection, flags | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            std::perror("mmap");
            std::exit(1);
        }
        return static_cast<std::byte *>(memory);
    };
    const std::size_t length = round_up(bytes + 1, huge_page);
    std::byte *const reserved = mapped(nullptr, length + huge_page, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(reserved) % huge_page;
    std::byte *const memory = reserved + (huge_page - past) % huge_page;
    mapped(memory, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED);
    for (std::size_t place = 0; place < length; place += huge_page) { memory[place] = std::byte{0}; }
    madvise(memory, length, MADV_COLLAPSE); // if refused, the pages stay small
    return memory;
}

inline void tell(Signal &signal, std::uint64_t number) { signal.number.store(number, std::memory_order_release); }

// pauses: between looks; the machine decides whether the line then comes sooner or later.
inline void await(const std::atomic<std::uint64_t> &found, std::uint64_t number, bool pauses) {
    for (int look = 0; found.load(std::memory_order_acquire) < number; ++look) {
        if (look > looks) {
            sched_yield(); // the other has no core at present
        } else if (pauses) {
            __builtin_ia32_pause();
        }
    }
}

} // namespace hand_written
