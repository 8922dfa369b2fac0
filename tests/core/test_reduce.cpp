// The kernels, compared with very simple loops.

#include "kernels/reduce.h"

#include "check.h"

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace hocket;
using namespace hocket::test;

namespace {

const Factor factor{.real = 0.3, .imaginary = -1.7, .integer = ~std::uint64_t{2}}; // the integer: -3

// The value of a stored element, and the part of a result that can be stored.
template <typename T> struct Native {
    using Stored = T;
    static T widen(T stored) { return stored; }
    static T rounded(T value) { return value; }
};

/// A float of 16 or 8 bits by its definition, with arithmetic on doubles.
template <typename S, int exponent_bits, int mantissa_bits, bool infinities> struct Narrow {
    using Stored = S;
    static constexpr int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;

    static float widen(Stored stored) {
        const int mantissa = stored & ((1 << mantissa_bits) - 1), exponent = stored >> mantissa_bits & top;
        const int all_ones = (1 << mantissa_bits) - 1;
        double value = std::ldexp(mantissa + (exponent > 0 ? 1 << mantissa_bits : 0),
                                  std::max(exponent, 1) - bias - mantissa_bits);
        if (infinities && exponent == top) value = mantissa == 0 ? HUGE_VAL : std::nan("");
        if (!infinities && exponent == top && mantissa == all_ones) value = std::nan("");
        return static_cast<float>(stored >> (8 * sizeof(Stored) - 1) ? -value : value);
    }

    static float rounded(float value) {
        if (std::isnan(value) || value == 0) return value;
        if (std::isinf(value)) return infinities ? value : std::nanf("");
        const int last = std::max(std::ilogb(value), 1 - bias) - mantissa_bits; // the exponent of the last bit
        const double nearest = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), -last)), last);
        const auto largest = static_cast<Stored>((infinities ? top << mantissa_bits : (top + 1) << mantissa_bits) -
                                                 (infinities ? 1 : 2));
        if (std::abs(nearest) <= widen(largest)) return static_cast<float>(nearest);
        return infinities ? std::copysign(HUGE_VALF, value) : std::nanf("");
    }
};

struct Boolean {
    using Stored = std::uint8_t;
    static std::uint8_t widen(Stored stored) { return stored != 0; }
    static std::uint8_t rounded(std::uint8_t value) { return value != 0; }
};

template <typename T> T product(T a, T b) {
    if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    else return a * b;
}
template <typename T> std::complex<T> product(std::complex<T> a, std::complex<T> b) {
    const T first = a.real() * b.real(), second = a.imag() * b.imag();
    const T third = a.real() * b.imag(), fourth = a.imag() * b.real();
    return {first - second, third + fourth};
}

template <typename T> T smallest(Op op, T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
        if (a == b) return (op == Op::min) == std::signbit(a) ? a : b; // of -0 and +0, min is -0
    }
    return (op == Op::min) == (a < b) ? a : b;
}

template <typename T> T naive(Op op, T a, T b) {
    const bool left = a != T{}, right = b != T{};
    switch (op) {
    case Op::prod: return product(a, b);
    case Op::land: return left && right ? T{1} : T{};
    case Op::lor: return left || right ? T{1} : T{};
    case Op::lxor: return left != right ? T{1} : T{};
    default: break;
    }
    if constexpr (std::is_integral_v<T>) {
        if (op == Op::band) return static_cast<T>(a & b);
        if (op == Op::bor) return static_cast<T>(a | b);
        if (op == Op::bxor) return static_cast<T>(a ^ b);
        if (op == Op::sum || op == Op::premul_sum) {
            return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
        }
    }
    if constexpr (std::is_arithmetic_v<T>) {
        if (op == Op::min || op == Op::max) return smallest(op, a, b);
    }
    return static_cast<T>(a + b);
}

template <typename T> T factor_as() {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(factor.integer);
    else if constexpr (std::is_floating_point_v<T>) return static_cast<T>(factor.real);
    else
        return {static_cast<typename T::value_type>(factor.real),
                static_cast<typename T::value_type>(factor.imaginary)};
}

template <typename T> bool same(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) && std::isnan(b)) return true; // any NaN equals any NaN
    }
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}
template <typename T> bool same(std::complex<T> a, std::complex<T> b) {
    return same(a.real(), b.real()) && same(a.imag(), b.imag());
}

/// fold() promises equal bits, also for bytes that all count as true; any NaN equals any NaN.
template <typename Model> bool same_stored(typename Model::Stored a, typename Model::Stored b) {
    if constexpr (std::is_integral_v<decltype(Model::widen(a))>) return a == b;
    else return same(Model::widen(a), Model::widen(b)); // only NaN has several bits
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
    } else if constexpr (std::is_integral_v<T>) {
        if (word % 8 == 0) return word % 16 == 0 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
        return static_cast<T>(word % 32 == 1 ? 0 : word >> 8);
    } else {
        const auto real = random_value<typename T::value_type>(random);
        return {real, random_value<typename T::value_type>(random)};
    }
}

struct Shape {
    std::size_t num_sources, n;
    int aliased; // the number of the source that is the destination, or -1
    int divisor;
    unsigned raw;     // a bit for each source
    std::size_t skew; // elements before the first one: vectors seldom begin on a boundary
};

template <typename Model>
void compare(std::mt19937_64 &random, Dtype dtype, Op op, const Shape &shape, std::size_t kernel_set) {
    using Stored = typename Model::Stored;
    using Value = decltype(Model::widen(Stored{}));
    const auto &[num_sources, n, aliased, divisor, raw, skew] = shape;
    std::vector<std::vector<Stored>> arrays(num_sources, std::vector<Stored>(n + skew));
    for (auto &array : arrays) {
        for (Stored &value : array) value = random_value<Stored>(random);
    }
    Op meant = op;
    if (dtype == Dtype::boolean) {
        if (op == Op::sum || op == Op::max) meant = Op::lor;
        if (op == Op::prod || op == Op::min) meant = Op::land;
    }
    std::vector<Value> expected(n);
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t s = 0; s < num_sources; ++s) {
            Value value = Model::widen(arrays[s][i + skew]);
            if (op == Op::premul_sum && (raw >> s & 1)) value = product(value, factor_as<Value>());
            expected[i] = s == 0 ? value : naive(meant, expected[i], value);
        }
        const bool logical = op == Op::land || op == Op::lor || op == Op::lxor;
        if (num_sources == 1 && raw != 0 && logical) expected[i] = expected[i] != Value{} ? Value{1} : Value{};
        if constexpr (!std::is_integral_v<Value>) {
            if (divisor != 1) expected[i] /= static_cast<float>(divisor);
        }
    }
    std::vector<Stored> separate(n + skew, Stored{77});
    std::vector<const std::byte *> sources;
    for (auto &array : arrays) sources.push_back(reinterpret_cast<const std::byte *>(array.data() + skew));
    const auto flags = std::make_unique<bool[]>(num_sources);
    for (std::size_t s = 0; s < num_sources; ++s) flags[s] = raw >> s & 1;
    Stored *to = (aliased < 0 ? separate : arrays[static_cast<std::size_t>(aliased)]).data() + skew;
    Fold what{.dtype = dtype, .op = op, .divisor = divisor, .factor = factor};
    const auto fold_to = [&](Stored *place) {
        fold(what, reinterpret_cast<std::byte *>(place), sources,
             raw == 0 ? std::span<const bool>{} : std::span<const bool>(flags.get(), num_sources), n, kernel_set);
    };
    std::vector<Stored> elsewhere(n + skew, Stored{77}), besides(n + 2 * skew + 1, Stored{77});
    what.past_caches = true;
    fold_to(elsewhere.data() + skew);
    what.past_caches = false;
    fold_to(separate.data() + skew);
    what.past_caches = n % 2 == 0;
    what.also = reinterpret_cast<std::byte *>(besides.data() + 2 * skew); // begins elsewhere in a vector
    fold_to(to);
    CHECK(besides.back() == Stored{77} && (skew == 0 || besides[2 * skew - 1] == Stored{77}), "wrote around it");
    for (std::size_t i = 0; i < n; ++i) {
        CHECK(std::memcmp(&to[i], &besides[i + 2 * skew], sizeof(Stored)) == 0, "the same values", name_of(op),
              "element", i, "of", n, "kernels", kernel_set_names()[kernel_set]);
        CHECK(aliased < 0 || same_stored<Model>(separate[i + skew], elsewhere[i + skew]), "plainly", name_of(op),
              "element", i, "of", n, "kernels", kernel_set_names()[kernel_set]);
        CHECK(same_stored<Model>(to[i], elsewhere[i + skew]), "past caches", name_of(op), "of", num_sources,
              "sources of", name_of(dtype), "element", i, "of", n, "kernels", kernel_set_names()[kernel_set]);
        CHECK(same(Model::widen(to[i]), Model::rounded(expected[i])), name_of(op), "of", num_sources, "sources of",
              name_of(dtype), "element", i, "of", n, "expected", +Model::rounded(expected[i]), "found",
              +Model::widen(to[i]), "aliased", aliased, "divisor", divisor, "raw", raw, "kernels",
              kernel_set_names()[kernel_set]);
    }
    if (aliased < 0 && skew > 0) CHECK(separate[skew - 1] == Stored{77}, "wrote before its destination");
}

template <typename Model> void compare_all(Dtype dtype, std::size_t kernel_set) {
    std::mt19937_64 random(11);
    for (std::size_t number = 0; number < num_ops; ++number) {
        const Op op = static_cast<Op>(number);
        if (op == Op::custom || !has_meaning(op, dtype)) continue;
        for (std::size_t num_sources : {1U, 2U, 3U, 5U}) {
            for (std::size_t n : {0U, 1U, 3U, 7U, 31U, 64U, 255U, 1031U, 4099U}) {
                for (int aliased = -1; aliased < static_cast<int>(std::min<std::size_t>(num_sources, 3)); ++aliased) {
                    Shape shape{num_sources, n, aliased, 1, 0, (n + num_sources) % 3};
                    compare<Model>(random, dtype, op, shape, kernel_set);
                    if (op == Op::avg) shape.divisor = 7;
                    shape.raw = static_cast<unsigned>(n) % 3 == 0 ? 0b11111 : 0b01101;
                    compare<Model>(random, dtype, op, shape, kernel_set);
                }
            }
        }
    }
}

/// Every value plus zero, widened and rounded, is unchanged.
template <typename Model> void compare_conversions(Dtype dtype, std::size_t kernel_set) {
    using Stored = typename Model::Stored;
    const std::size_t count = std::size_t{1} << (8 * sizeof(Stored));
    std::vector<Stored> all(count), found(count), zeros(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<Stored>(i);
    const std::byte *sources[] = {reinterpret_cast<const std::byte *>(all.data()),
                                  reinterpret_cast<const std::byte *>(zeros.data())};
    fold({.dtype = dtype, .op = Op::sum}, reinterpret_cast<std::byte *>(found.data()), sources, {}, count, kernel_set);
    for (std::size_t i = 0; i < count; ++i) {
        const float value = Model::widen(all[i]);
        CHECK(same(Model::widen(found[i]), value + 0.0F), name_of(dtype), "of bits", i, "expected", value, "found",
              Model::widen(found[i]));
    }
}

/// With every set of kernels that this processor runs.
template <typename Model> void compare_sets(Dtype dtype) {
    for (std::size_t set = 0; set < kernel_set_names().size(); ++set) compare_all<Model>(dtype, set);
}

template <typename Model> void compare_narrow(Dtype dtype) {
    for (std::size_t set = 0; set < kernel_set_names().size(); ++set) compare_conversions<Model>(dtype, set);
    compare_sets<Model>(dtype);
}

template <typename T> std::byte *bytes_of(T &value) { return reinterpret_cast<std::byte *>(&value); }

} // namespace

TEST(fold_float16) { compare_narrow<Narrow<std::uint16_t, 5, 10, true>>(Dtype::float16); }
TEST(fold_bfloat16) { compare_narrow<Narrow<std::uint16_t, 8, 7, true>>(Dtype::bfloat16); }
TEST(fold_float8_e4m3fn) { compare_narrow<Narrow<std::uint8_t, 4, 3, false>>(Dtype::float8_e4m3fn); }
TEST(fold_float8_e5m2) { compare_narrow<Narrow<std::uint8_t, 5, 2, true>>(Dtype::float8_e5m2); }
TEST(fold_float32) { compare_sets<Native<float>>(Dtype::float32); }
TEST(fold_float64) { compare_sets<Native<double>>(Dtype::float64); }
TEST(fold_int8) { compare_sets<Native<std::int8_t>>(Dtype::int8); }
TEST(fold_int16) { compare_sets<Native<std::int16_t>>(Dtype::int16); }
TEST(fold_int32) { compare_sets<Native<std::int32_t>>(Dtype::int32); }
TEST(fold_int64) { compare_sets<Native<std::int64_t>>(Dtype::int64); }
TEST(fold_uint8) { compare_sets<Native<std::uint8_t>>(Dtype::uint8); }
TEST(fold_uint16) { compare_sets<Native<std::uint16_t>>(Dtype::uint16); }
TEST(fold_uint32) { compare_sets<Native<std::uint32_t>>(Dtype::uint32); }
TEST(fold_uint64) { compare_sets<Native<std::uint64_t>>(Dtype::uint64); }
TEST(fold_bool) { compare_sets<Boolean>(Dtype::boolean); }
TEST(fold_complex64) { compare_sets<Native<std::complex<float>>>(Dtype::complex64); }
TEST(fold_complex128) { compare_sets<Native<std::complex<double>>>(Dtype::complex128); }

TEST(fold_averages_once_at_the_end) {
    // 0.1 three times: the sum is rounded twice, the quotient once. Dividing first would give other bits.
    const float a[] = {0.1F}, b[] = {0.7F}, c[] = {0.9F};
    const std::byte *sources[] = {reinterpret_cast<const std::byte *>(a), reinterpret_cast<const std::byte *>(b),
                                  reinterpret_cast<const std::byte *>(c)};
    float found = 0;
    fold({.dtype = Dtype::float32, .op = Op::avg, .divisor = 3}, bytes_of(found), sources, {}, 1);
    const float sum = a[0] + b[0];
    CHECK(found == (sum + c[0]) / 3.0F);
    fold({.dtype = Dtype::float32, .op = Op::avg}, bytes_of(found), sources, {}, 1);
    CHECK(found == sum + c[0], "before it completes, an average is a sum");
}

TEST(fold_by_a_user_s_function_sees_stored_values) {
    std::uint16_t a[] = {1, 2, 3}, b[] = {4, 5, 6}, to[] = {0, 0, 0};
    const std::byte *sources[] = {bytes_of(a), bytes_of(b)};
    int calls = 0;
    const CustomFold last = [&calls](std::byte *destination, std::span<const std::byte *const> given, std::size_t n) {
        ++calls;
        std::memcpy(destination, given.back(), n * sizeof(std::uint16_t));
    };
    std::uint16_t besides[] = {0, 0, 0};
    const Fold what{.dtype = Dtype::float16, .op = Op::custom, .custom = &last, .also = bytes_of(besides)};
    fold(what, bytes_of(to), sources, {}, 3);
    CHECK(calls == 1 && std::memcmp(to, b, sizeof b) == 0 && std::memcmp(besides, b, sizeof b) == 0);
    fold(what, bytes_of(to), std::span(sources).first(1), {}, 3);
    CHECK(calls == 1 && std::memcmp(to, a, sizeof a) == 0, "one source is copied");
    CHECK(std::memcmp(besides, a, sizeof a) == 0, "to both places");
}

TEST(fold_refuses_what_has_no_meaning) {
    int refused = 0;
    for (std::size_t type = 0; type < num_dtypes; ++type) {
        for (std::size_t op = 0; op + 1 < num_ops; ++op) {
            std::uint64_t memory[2] = {0, 0};
            const std::byte *sources[] = {bytes_of(memory), bytes_of(memory)};
            const Fold what{.dtype = static_cast<Dtype>(type), .op = static_cast<Op>(op)};
            bool threw = false;
            try {
                fold(what, bytes_of(memory), sources, {}, 1);
            } catch (const std::invalid_argument &) { threw = true; }
            CHECK(threw != has_meaning(what.op, what.dtype), name_of(what.op), name_of(what.dtype));
            refused += threw;
        }
    }
    // No bits of 8 floating types, no order on 2 of them; no average of 8 integers and bool, no factor for bool.
    CHECK(refused == 8 * 3 + 2 * 2 + 9 + 1, "found", refused);
}
