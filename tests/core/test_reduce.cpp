// The kernels against loops that are too plain to be wrong.

#include "reduce.h"

#include "check.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

constexpr Op all_ops[] = {Op::sum, Op::prod, Op::min, Op::max, Op::avg};

template <typename T> constexpr Dtype dtype_of = Dtype::float32;
template <> constexpr Dtype dtype_of<double> = Dtype::float64;
template <> constexpr Dtype dtype_of<std::int32_t> = Dtype::int32;
template <> constexpr Dtype dtype_of<std::int64_t> = Dtype::int64;
template <> constexpr Dtype dtype_of<std::uint8_t> = Dtype::uint8;

template <typename T> T naive(Op op, T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (op == Op::sum || op == Op::avg) return a + b;
        if (op == Op::prod) return a * b;
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
        if (a == b) return (op == Op::min) == std::signbit(a) ? a : b; // of -0 and +0, min is -0
    } else {
        const auto wide_a = static_cast<std::uint64_t>(a), wide_b = static_cast<std::uint64_t>(b);
        if (op == Op::sum) return static_cast<T>(wide_a + wide_b);
        if (op == Op::prod) return static_cast<T>(wide_a * wide_b);
    }
    if (op == Op::min) return a < b ? a : b;
    return a < b ? b : a;
}

template <typename T> bool same(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) && std::isnan(b)) return true; // any NaN equals any NaN
    }
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T> T random_value(std::mt19937_64 &random) {
    const std::uint64_t word = random();
    if constexpr (std::is_floating_point_v<T>) {
        using Limits = std::numeric_limits<T>;
        const T special[] = {T{0},           T{-0.0},         Limits::infinity(),   -Limits::infinity(),
                             Limits::max(),  Limits::min(),   Limits::denorm_min(), Limits::quiet_NaN(),
                             -Limits::max(), Limits::lowest()};
        if (word % 4 == 0) return special[word / 4 % std::size(special)];
        return static_cast<T>(static_cast<std::int64_t>(word)) * T{1e-15};
    } else {
        if (word % 8 == 0) return word % 16 == 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
        return static_cast<T>(word >> 8);
    }
}

/// `aliased`: the number of the source that is the destination, or -1.
template <typename T>
void compare(std::mt19937_64 &random, Op op, std::size_t num_sources, std::size_t n, int aliased, std::size_t skew,
             int divisor) {
    std::vector<std::vector<T>> arrays(num_sources, std::vector<T>(n + skew));
    for (auto &array : arrays) {
        for (T &value : array) value = random_value<T>(random);
    }
    std::vector<T> expected(arrays[0].begin() + static_cast<std::ptrdiff_t>(skew), arrays[0].end());
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t s = 1; s < num_sources; ++s) expected[i] = naive(op, expected[i], arrays[s][i + skew]);
        if (divisor != 1) expected[i] = static_cast<T>(expected[i] / static_cast<T>(divisor));
    }
    std::vector<T> separate(n + skew, T{77});
    std::vector<const std::byte *> sources;
    for (auto &array : arrays) sources.push_back(reinterpret_cast<const std::byte *>(array.data() + skew));
    T *to = (aliased < 0 ? separate : arrays[static_cast<std::size_t>(aliased)]).data() + skew;
    fold(dtype_of<T>, op, reinterpret_cast<std::byte *>(to), sources, n, divisor);
    for (std::size_t i = 0; i < n; ++i) {
        CHECK(same(to[i], expected[i]), "element", i, "of", n, "expected", +expected[i], "found", +to[i], "op",
              static_cast<int>(op), "sources", num_sources, "aliased", aliased, "divisor", divisor);
    }
    if (aliased < 0 && skew > 0) CHECK(separate[skew - 1] == T{77}, "wrote before its destination");
}

template <typename T> void compare_all() {
    std::mt19937_64 random(11);
    for (Op op : all_ops) {
        if (op == Op::avg && !std::is_floating_point_v<T>) continue;
        for (std::size_t num_sources : {1U, 2U, 3U, 8U}) {
            for (std::size_t n : {0U, 1U, 3U, 7U, 31U, 64U, 255U, 4096U, 4099U, 9001U}) {
                for (int aliased = -1; aliased < static_cast<int>(std::min<std::size_t>(num_sources, 3)); ++aliased) {
                    const std::size_t skew = (n + num_sources) % 3; // vectors seldom begin on a boundary
                    compare<T>(random, op, num_sources, n, aliased, skew, 1);
                    if (op == Op::avg) compare<T>(random, op, num_sources, n, aliased, skew, 7);
                }
            }
        }
    }
}

} // namespace

TEST(fold_float32) { compare_all<float>(); }
TEST(fold_float64) { compare_all<double>(); }
TEST(fold_int32) { compare_all<std::int32_t>(); }
TEST(fold_int64) { compare_all<std::int64_t>(); }
TEST(fold_uint8) { compare_all<std::uint8_t>(); }

TEST(fold_averages_once_at_the_end) {
    // 0.1 three times: the sum is rounded twice, the quotient once. Dividing first would give other bits.
    const float a[] = {0.1F}, b[] = {0.7F}, c[] = {0.9F};
    const std::byte *sources[] = {reinterpret_cast<const std::byte *>(a), reinterpret_cast<const std::byte *>(b),
                                  reinterpret_cast<const std::byte *>(c)};
    float found = 0;
    fold(Dtype::float32, Op::avg, reinterpret_cast<std::byte *>(&found), sources, 1, 3);
    const float sum = a[0] + b[0];
    CHECK(found == (sum + c[0]) / 3.0F);
    fold(Dtype::float32, Op::avg, reinterpret_cast<std::byte *>(&found), sources, 1, 1);
    CHECK(found == sum + c[0], "before it completes, an average is a sum");
}
