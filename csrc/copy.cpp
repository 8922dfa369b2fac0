#include "copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hocket {

void copy_past_caches(std::byte *destination, Bytes source) {
#if defined(__x86_64__)
    // Whole lines of the destination, as only those are written without being read.
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
        _mm_stream_si128(to, first);
        _mm_stream_si128(to + 1, second);
        _mm_stream_si128(to + 2, third);
        _mm_stream_si128(to + 3, fourth);
        destination += cache_line;
        source = source.subspan(cache_line);
    }
    _mm_sfence();
#endif
    std::memcpy(destination, source.data(), source.size());
}

} // namespace hocket
