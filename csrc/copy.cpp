#include "copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hocket {

#if defined(__x86_64__)
namespace {

/// Copies by whole lines of the destination, each quarter by `store`; what is before and behind them plainly.
template <typename Store> void copy_lines(std::byte *destination, Bytes source, const Store &store) {
    const auto ahead = static_cast<std::size_t>(-reinterpret_cast<std::uintptr_t>(destination) % cache_line);
    const std::size_t head = std::min(ahead, source.size());
    std::memcpy(destination, source.data(), head);
    destination += head;
    source = source.subspan(head);
    while (source.size() >= cache_line) {
        const auto *from = reinterpret_cast<const __m128i *>(source.data());
        auto *to = reinterpret_cast<__m128i *>(destination);
        const __m128i first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1),
                      third = _mm_loadu_si128(from + 2), fourth = _mm_loadu_si128(from + 3);
        store(to, first);
        store(to + 1, second);
        store(to + 2, third);
        store(to + 3, fourth);
        destination += cache_line;
        source = source.subspan(cache_line);
    }
    std::memcpy(destination, source.data(), source.size());
}

/// From 2 KiB on, C libraries copy by `rep movsb`. On Zen 3 that was found to take 10 to 30 times as long where the
/// destination lies less than a vector behind the source, counted from the beginnings of their pages: as do large
/// private arrays, 16 bytes into a page, behind a staging slot.
bool is_slow_for_memcpy(const std::byte *destination, Bytes source) {
    constexpr std::size_t least_bytes = 2048, vector_bytes = 64;
    const auto behind =
        (reinterpret_cast<std::uintptr_t>(destination) - reinterpret_cast<std::uintptr_t>(source.data())) % page;
    return source.size() >= least_bytes && behind > 0 && behind < vector_bytes;
}

} // namespace
#endif

void copy_bytes(std::byte *destination, Bytes source) {
    if (source.empty()) return; // no bytes need not lie anywhere
#if defined(__x86_64__)
    const auto store = [](__m128i *to, __m128i bytes) { _mm_store_si128(to, bytes); };
    if (is_slow_for_memcpy(destination, source)) return copy_lines(destination, source, store);
#endif
    std::memcpy(destination, source.data(), source.size());
}

void copy_past_caches(std::byte *destination, Bytes source) {
#if defined(__x86_64__)
    // Whole lines, as only those are written without being read.
    copy_lines(destination, source, [](__m128i *to, __m128i bytes) { _mm_stream_si128(to, bytes); });
    _mm_sfence();
#else
    std::memcpy(destination, source.data(), source.size());
#endif
}

} // namespace hocket
