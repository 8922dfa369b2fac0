// Every byte is copied, and no byte outside, for every alignment of source and destination.

#include "check.h"
#include "kernels/copy.h"

#include <algorithm>
#include <array>
#include <memory>

using namespace hocket;

namespace {

constexpr std::size_t of_a_page = 4096, room = 5 * of_a_page;
struct alignas(of_a_page) Memory { // bytes at the same position of two of them have the same position in their pages
    std::array<std::byte, room> bytes{};
};

void check_copies(void (&copy)(std::byte *, Bytes)) {
    const auto source = std::make_unique<Memory>(), destination = std::make_unique<Memory>();
    for (std::size_t i = 0; i < room; ++i) source->bytes[i] = static_cast<std::byte>(i * 7 % 251 + 1);
    for (std::size_t from : {0, 1, 16, 33}) {
        for (std::size_t to = 0; to < 110; to += 3) {
            for (std::size_t size :
                 {0, 1, 15, 63, 64, 65, 127, 128, 200, 513, 2047, 2048, 2113, 4500, 8191, 8192, 8193, 16500}) {
                destination->bytes.fill(std::byte{});
                copy(destination->bytes.data() + to, Bytes(source->bytes).subspan(from, size));
                const auto begin = destination->bytes.begin() + to, end = begin + size;
                CHECK(std::equal(begin, end, source->bytes.begin() + from), from, to, size);
                CHECK(static_cast<std::size_t>(std::ranges::count(destination->bytes, std::byte{})) == room - size,
                      from, to, size);
            }
        }
    }
}

} // namespace

TEST(copies_are_exact) { check_copies(copy_bytes); }

TEST(copies_past_the_caches_are_exact) { check_copies(copy_past_caches); }

TEST(copies_to_another_cache_are_exact) { check_copies(copy_to_other_cache); }

TEST(copies_from_another_cache_are_exact) { check_copies(copy_from_other_cache); }

#if defined(__x86_64__)
TEST(string_moves_are_exact) { check_copies(copy_string); } // under sanitizers, the other copies do not use them
#endif
