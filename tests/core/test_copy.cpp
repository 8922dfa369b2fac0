// Every byte arrives, and none beside, however source and destination lie to cache lines.

#include "check.h"
#include "copy.h"

#include <algorithm>
#include <vector>

using namespace hocket;

TEST(copies_past_the_caches_are_exact) {
    constexpr std::size_t room = 1024;
    std::vector<std::byte> source(room);
    for (std::size_t i = 0; i < room; ++i) source[i] = static_cast<std::byte>(i * 7 % 251 + 1);
    for (std::size_t from : {std::size_t{0}, std::size_t{1}, std::size_t{16}, std::size_t{33}}) {
        for (std::size_t to = 0; to < 70; to += 3) {
            for (std::size_t size : {0, 1, 15, 63, 64, 65, 127, 128, 200, 513}) {
                std::vector<std::byte> destination(room);
                copy_past_caches(destination.data() + to, Bytes(source).subspan(from, size));
                const auto begin = destination.begin() + static_cast<std::ptrdiff_t>(to);
                const auto end = begin + static_cast<std::ptrdiff_t>(size);
                CHECK(std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from)), from, to, size);
                CHECK(std::count(destination.begin(), destination.end(), std::byte{}) ==
                          static_cast<std::ptrdiff_t>(room - size),
                      from, to, size);
            }
        }
    }
}
