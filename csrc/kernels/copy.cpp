#include "kernels/copy.h"

#include "base/limits.h"
#include "machine/profile.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hocket {

#if defined(__x86_64__)
namespace {

const bool has_vectors = __builtin_cpu_supports("avx2");

const bool has_string_moves = has_quick_string_moves();
bool is_string(Bytes source) { return has_string_moves && source.size() >= least_by_string_moves; }

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
        // Behind the source, too, as its rest will come there, though that may be written just then.
        if constexpr (asks_ahead) __builtin_prefetch(source.data() + most_asked_ahead);
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

void copy_string(std::byte *destination, Bytes source) {
    const std::byte *from = source.data();
    std::size_t num_left = source.size();
    // Its stores may overtake each other, but no later one overtakes them. The direction is always upwards.
    asm volatile("rep movsb" : "+D"(destination), "+S"(from), "+c"(num_left) : : "memory");
}
#endif

void copy_bytes(std::byte *destination, Bytes source) {
    if (source.empty()) return; // no bytes need not lie anywhere
#if defined(__x86_64__)
    if (is_string(source)) return copy_string(destination, source);
    if (has_vectors && source.size() >= least_by_lines) return copy_lines<false>(destination, source);
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

void copy_bytes(Stores how, std::byte *destination, Bytes source) {
    switch (how) {
    case Stores::near: return copy_bytes(destination, source);
    case Stores::from_other_cache: return copy_from_other_cache(destination, source);
    case Stores::past_caches: return copy_past_caches(destination, source);
    }
}

} // namespace hocket
