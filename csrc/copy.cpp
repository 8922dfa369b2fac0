#include "copy.h"

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

/// Whether `rep movsb` writes whole lines without having fetched them: on Zen 4 it is up to twice as quick where the
/// destination is in no near cache, and takes no longer where lines of it lie in another core's. On Zen 3, however, it
/// was found to take 10 to 30 times as long where the destination lies less than a vector behind the source, counted
/// from the beginnings of their pages, as do large private arrays, 16 bytes into a page, behind a staging slot; and 1.5
/// times as long into slots. What has vectors of 64 bytes is younger, or Intel's, for which C libraries copy so.
bool find_string_moves() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return false; // which do not see what it reads and writes
#else
    constexpr unsigned enhanced = 1U << 9; // of leaf 7
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool is_enhanced = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & enhanced) != 0;
    return is_enhanced && __builtin_cpu_supports("avx512f");
#endif
}

const bool has_string_moves = find_string_moves();
constexpr std::size_t least_string_bytes = std::size_t{8} << 10; // less is quicker by lines

/// Up to here the C library's copies are as quick.
constexpr std::size_t least_bytes_by_lines = 2048;

bool is_string(Bytes source) { return has_string_moves && source.size() >= least_string_bytes; }

void copy_string(std::byte *destination, Bytes source) {
    const std::byte *from = source.data();
    std::size_t num_left = source.size();
    asm volatile("rep movsb" : "+D"(destination), "+S"(from), "+c"(num_left) : : "memory");
}

/// Copies by whole lines of the destination, two stores each; what is before and behind them plainly.
template <bool past_caches> [[gnu::target("avx2")]] void copy_lines(std::byte *destination, Bytes source) {
    const auto ahead = static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(destination) % cache_line);
    const std::size_t head = std::min(ahead, source.size());
    std::memcpy(destination, source.data(), head);
    destination += head;
    source = source.subspan(head);
    for (; source.size() >= cache_line; source = source.subspan(cache_line), destination += cache_line) {
        const auto *from = reinterpret_cast<const __m256i *>(source.data());
        auto *to = reinterpret_cast<__m256i *>(destination);
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

} // namespace hocket
