#include "kernels/copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace hocket {

#if defined(__x86_64__)
namespace {

const bool has_vectors = __builtin_cpu_supports("avx2");

/// What the processor is good at. Of AMD's the named ones were measured, of Intel's Emerald Rapids (one socket), which
/// is taken for an example of all that have "fast short" string moves.
struct Processor {
    /// Whether string moves write whole lines that they have not fetched. On AMD's family 26 (Zen 5) they are twice as
    /// quick where the destination is in no near cache, and take no longer where lines of it lie in another core's.
    /// Before it they were found to lose: on Zen 4 up to 1.15 times as long, on Zen 3 1.5 times into slots, and 10 to
    /// 30 times where the destination lies less than a vector behind the source, counted from the beginnings of their
    /// pages, as do large private arrays, 16 bytes into a page, behind a staging slot. On Emerald Rapids they gain 1.1
    /// times on average.
    bool string_moves = false;
};

Processor find_processor() {
    Processor found;
#if !defined(HOCKET_SANITIZE) // sanitizers do not see what string moves read and write
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0, &a, &b, &c, &d) == 0) return found;
    const bool is_amd = b == signature_AMD_ebx && c == signature_AMD_ecx,
               is_intel = b == signature_INTEL_ebx && c == signature_INTEL_ecx;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
    const unsigned family = (a >> 8 & 0xf) + (a >> 20 & 0xff);
    constexpr unsigned first_family = 26, enhanced = 1U << 9, fast_short = 1U << 4; // the last two are bits of leaf 7
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
    const bool is_fast_intel = is_intel && (d & fast_short) != 0, is_fast_amd = is_amd && family >= first_family;
    found.string_moves = (is_fast_intel || is_fast_amd) && (b & enhanced) != 0;
#endif
    return found;
}

const Processor processor = find_processor();
constexpr std::size_t least_string_bytes = std::size_t{8} << 10; // less is quicker by lines

/// Up to here the C library's copies are as quick.
constexpr std::size_t least_bytes_by_lines = 2048;

bool is_string(Bytes source) { return processor.string_moves && source.size() >= least_string_bytes; }

/// How far ahead the lines of another core's cache are asked for: those behind the source, too, as its rest will come
/// there, though that may be written just then.
constexpr std::size_t bytes_ahead = 2048;

/// Copies by whole lines of the destination, two stores each; what is before and behind them plainly.
template <bool past_caches, bool asks_ahead = false>
[[gnu::target("avx2")]] void copy_lines(std::byte *destination, Bytes source) {
    const auto ahead = static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(destination) % cache_line);
    const std::size_t head = std::min(ahead, source.size());
    std::memcpy(destination, source.data(), head);
    destination += head;
    source = source.subspan(head);
    for (; source.size() >= cache_line; source = source.subspan(cache_line), destination += cache_line) {
        const auto *from = reinterpret_cast<const __m256i *>(source.data());
        auto *to = reinterpret_cast<__m256i *>(destination);
        if constexpr (asks_ahead) __builtin_prefetch(source.data() + bytes_ahead);
        const __m256i first = _mm256_loadu_si256(from), second = _mm256_loadu_si256(from + 1);
        if constexpr (past_caches) {
            _mm256_stream_si256(to, first);
            _mm256_stream_si256(to + 1, second);
        } else {
            _mm256_store_si256(to, first);
            _mm256_store_si256(to + 1, second);
        }
    }
    std::memcpy(destination, source.data(), source.size());
}

} // namespace

bool has_quick_string_moves() { return processor.string_moves; }

void copy_string(std::byte *destination, Bytes source) {
    const std::byte *from = source.data();
    std::size_t num_left = source.size();
    // Its stores may overtake each other, but no later one overtakes them. The direction is always upwards.
    asm volatile("rep movsb" : "+D"(destination), "+S"(from), "+c"(num_left) : : "memory");
}
#else
bool has_quick_string_moves() { return false; }
#endif

void copy_bytes(std::byte *destination, Bytes source) {
    if (source.empty()) return; // no bytes need not lie anywhere
#if defined(__x86_64__)
    if (is_string(source)) return copy_string(destination, source);
    if (has_vectors && source.size() >= least_bytes_by_lines) return copy_lines<false>(destination, source);
#endif
    std::memcpy(destination, source.data(), source.size());
}

void copy_past_caches(std::byte *destination, Bytes source) {
#if defined(__x86_64__)
    if (has_vectors) {
        copy_lines<true>(destination, source); // whole lines, as only those are written without being read
        return _mm_sfence();
    }
#endif
    copy_bytes(destination, source);
}

void copy_to_other_cache(std::byte *destination, Bytes source) {
#if defined(__x86_64__)
    if (is_string(source)) return copy_string(destination, source);
#endif
    copy_past_caches(destination, source);
}

void copy_from_other_cache(std::byte *destination, Bytes source) {
#if defined(__x86_64__)
    if (is_string(source)) return copy_lines<false, true>(destination, source); // quicker than string moves just there
#endif
    copy_bytes(destination, source);
}

} // namespace hocket
