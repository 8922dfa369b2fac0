#include "kernels/rates.h"

#include "kernels/reduce.h"
#include "machine/cores.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <sys/mman.h>
#include <vector>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hocket {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t round_bytes = 8 * piece_bytes; // a round is at least as long: the clock takes 20 ns itself

// What is in memory: some processors store zeros several times faster than anything else.
constexpr int filling = 1; // in every byte; as a float, a small normal number
constexpr int missing = 2;

/// Touched memory, in huge pages where the system gives them.
class Memory {
  public:
    explicit Memory(std::size_t num_bytes) {
        const std::size_t rounded = (num_bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
        start_.reset(static_cast<std::byte *>(std::aligned_alloc(huge_page_bytes, rounded)));
        if (!start_) throw std::bad_alloc();
        madvise(start_.get(), rounded, MADV_HUGEPAGE);
        std::memset(start_.get(), filling, rounded);
    }
    std::byte *start() const { return start_.get(); }

  private:
    struct Free {
        void operator()(std::byte *memory) const { std::free(memory); }
    };
    std::unique_ptr<std::byte, Free> start_;
};

/// The compiler must take memory for read and written here.
inline void use(const void *pointer) { __asm__ volatile("" : : "r"(pointer) : "memory"); }

#if defined(__SSE2__)
void store_past_cache(std::byte *to, const std::byte *from, std::size_t num_bytes) {
    __m128i value = _mm_set1_epi8(filling);
    for (std::size_t at = 0; at + 16 <= num_bytes; at += 16) {
        if (from != nullptr) value = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at));
        _mm_stream_si128(reinterpret_cast<__m128i *>(to + at), value);
    }
    _mm_sfence();
}
#else
void store_past_cache(std::byte *to, const std::byte *from, std::size_t num_bytes) {
    if (from != nullptr) std::memcpy(to, from, num_bytes);
    else std::memset(to, filling, num_bytes);
}
#endif

/// How many bytes one pass goes over: all, or half where there is a source and a destination.
std::size_t bytes_of(Pass pass, std::size_t footprint) {
    return pass == Pass::load || pass == Pass::store ? footprint : footprint / 2;
}

void run(Pass pass, bool past_cache, std::byte *memory, std::size_t footprint) {
    const std::size_t num_bytes = bytes_of(pass, footprint);
    std::byte *other = memory + num_bytes;
    if (pass == Pass::load) {
        use(std::memchr(memory, missing, num_bytes)); // reads all
    } else if (past_cache) {
        store_past_cache(memory, pass == Pass::copy ? other : nullptr, num_bytes);
    } else if (pass == Pass::store) {
        std::memset(memory, filling, num_bytes);
    } else if (pass == Pass::copy) {
        std::memcpy(memory, other, num_bytes);
    } else {
        const std::array<const std::byte *, 2> sources{memory, other};
        fold({.dtype = Dtype::float32, .op = Op::sum}, memory, sources, {}, num_bytes / sizeof(float));
    }
    use(memory);
}

double seconds_since(Clock::time_point started) {
    return std::chrono::duration<double>(Clock::now() - started).count();
}

double fastest_rounds(Pass pass, bool past_cache, std::size_t footprint, std::span<const int> cores,
                      std::chrono::nanoseconds duration) {
    std::vector<Memory> memory;
    for (std::size_t i = 0; i < cores.size(); ++i) memory.emplace_back(footprint);
    const std::size_t passes = std::max<std::size_t>(1, round_bytes / footprint), others = cores.size() - 1;
    // Round by round: the first core lets the others go and counts those that are done. Release, acquire.
    std::atomic<std::size_t> round{0}, done{0};
    std::atomic<bool> over{false};
    double best = std::numeric_limits<double>::infinity();
    on_cores(cores, [&](std::size_t core) {
        const auto all_passes = [&] {
            for (std::size_t i = 0; i < passes; ++i) run(pass, past_cache, memory[core].start(), footprint);
        };
        if (core != 0) {
            for (std::size_t next = 1;; ++next) {
                while (round.load(std::memory_order_acquire) < next) {}
                if (over.load(std::memory_order_relaxed)) return;
                all_passes();
                done.fetch_add(1, std::memory_order_release);
            }
        }
        all_passes(); // not counted: it warms up
        const Clock::time_point end = Clock::now() + duration;
        for (std::size_t number = 1; !over.load(std::memory_order_relaxed); ++number) {
            const Clock::time_point started = Clock::now();
            round.store(number, std::memory_order_release);
            all_passes();
            while (done.load(std::memory_order_acquire) < number * others) {}
            best = std::min(best, seconds_since(started));
            if (Clock::now() >= end) {
                over.store(true, std::memory_order_relaxed);
                round.store(number + 1, std::memory_order_release);
            }
        }
    });
    const std::size_t num_bytes = bytes_of(pass, footprint) * passes * cores.size();
    return static_cast<double>(num_bytes) / best;
}

} // namespace

double bytes_per_second(Pass pass, std::size_t footprint, std::span<const int> cores,
                        std::chrono::nanoseconds duration) {
    const bool writes_only = pass == Pass::store || pass == Pass::copy;
    double best = fastest_rounds(pass, false, footprint, cores, writes_only ? duration / 2 : duration);
    if (writes_only) best = std::max(best, fastest_rounds(pass, true, footprint, cores, duration / 2));
    return best;
}

} // namespace hocket
