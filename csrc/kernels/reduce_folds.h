// A fold of any number of sources in one pass, in registers, and the table of all of them.
#pragma once

#include "kernels/reduce_operations.h"

namespace hocket::HOCKET_KERNELS {
namespace {

/// What a sum does besides.
struct Average : Sum {};
struct Premultiplied : Sum {};

template <typename Format, typename Operation> class Pass {
  public:
    using Stored = typename Format::Stored;
    using Accumulator = typename Format::Accumulator;
    using Part = typename Format::Part;

    Pass(const Fold &what, std::byte *to, Sources sources, std::span<const bool> raw)
        : to_(to), also_(what.also), sources_(sources), raw_(raw), divisor_(static_cast<Part>(what.divisor)),
          past_caches_(what.past_caches) {
        if constexpr (scales) spread(factor_, what.factor);
    }

    void run(std::size_t num_bytes) {
        constexpr std::size_t at_once = max_accumulators * sizeof(Vector<Part>) / sizeof(Accumulator);
        // To a boundary of the destination, as a store across lines costs more than a load; of the one that another
        // core reads, if there are two. Complex numbers may begin in the middle of a line.
        const std::byte *const aligned = also_ == nullptr ? to_ : also_;
        const std::size_t before = -reinterpret_cast<std::uintptr_t>(aligned) % vector_bytes;
        const bool aligns = num_bytes >= 16 * vector_bytes && before % Format::num_bytes == 0;
        past_caches_ = past_caches_ && aligns && also_ == nullptr;
        std::size_t at = 0;
        for (std::size_t less = aligns ? before : 0;; less = num_bytes - at) {
            if (less > 0) some(at, less);
            at += less;
            for (; num_bytes - at >= at_once * vector_bytes; at += at_once * vector_bytes) whole<at_once>(at);
            if constexpr (at_once > 1) {
                for (; num_bytes - at >= vector_bytes; at += vector_bytes) whole<1>(at);
            }
            if (at == num_bytes) break;
        }
        if (past_caches_) end_stores_past_caches();
    }

  private:
    /// So many chains of additions run side by side, in half of the registers that a processor has at least.
    static constexpr std::size_t max_accumulators = 4;
    static constexpr bool scales = std::is_same_v<Operation, Premultiplied>;
    static constexpr bool divides = std::is_same_v<Operation, Average>;

    template <std::size_t num_vectors> void whole(std::size_t at) {
        Stored results[num_vectors];
        fold<num_vectors>(
            [&](std::size_t source, std::size_t i) { return load<Stored>(sources_[source] + at + i * vector_bytes); },
            [&](Stored result, std::size_t i) { results[i] = result; });
        std::byte *to = to_ + at;
        if (past_caches_) {
            for (std::size_t i = 0; i < num_vectors; ++i) store_past_caches(to + i * vector_bytes, results[i]);
        } else {
            for (std::size_t i = 0; i < num_vectors; ++i) store(to + i * vector_bytes, results[i]);
        }
        if (also_ == nullptr) return;
        for (std::size_t i = 0; i < num_vectors; ++i) store(also_ + at + i * vector_bytes, results[i]);
    }

    /// Less than a vector.
    void some(std::size_t at, std::size_t num_bytes) {
        fold<1>([&](std::size_t source, std::size_t) { return load_some<Stored>(sources_[source] + at, num_bytes); },
                [&](Stored result, std::size_t) {
                    store_some(to_ + at, result, num_bytes);
                    if (also_ != nullptr) store_some(also_ + at, result, num_bytes);
                });
    }

    template <std::size_t num_vectors, typename Load, typename Store> void fold(const Load &load, const Store &store) {
        const auto read = [&](std::size_t source, std::size_t i) {
            const Accumulator values = Format::widen(load(source, i));
            if constexpr (scales) {
                if (raw_[source]) return combine<Prod>(values, factor_);
            }
            return values;
        };
        Accumulator values[num_vectors];
        for (std::size_t i = 0; i < num_vectors; ++i) values[i] = read(0, i);
        for (std::size_t source = 1; source < sources_.size(); ++source) {
            for (std::size_t i = 0; i < num_vectors; ++i) values[i] = combine<Operation>(values[i], read(source, i));
        }
        for (std::size_t i = 0; i < num_vectors; ++i) {
            if constexpr (divides) {
                if (divisor_ != 1) divide(values[i], divisor_);
            }
            store(Format::narrow(values[i]), i);
        }
    }

    std::byte *to_, *also_;
    Sources sources_;
    std::span<const bool> raw_;
    Part divisor_;
    bool past_caches_;
    Accumulator factor_;
};

template <typename Format, typename Operation>
[[gnu::flatten]] void run(const Fold &what, std::byte *to, Sources sources, std::span<const bool> raw, std::size_t n) {
    Pass<Format, Operation>(what, to, sources, raw).run(n * Format::num_bytes);
}

using Row = std::array<Kernel, num_ops>;

template <typename F, Kernel min, Kernel max>
constexpr Row floats{run<F, Sum>, run<F, Prod>, min,     max,     run<F, Average>,       run<F, And>, run<F, Or>,
                     run<F, Xor>, nullptr,      nullptr, nullptr, run<F, Premultiplied>, nullptr};
template <typename F> constexpr Row real_floats = floats<F, run<F, Min>, run<F, Max>>;
template <typename T> constexpr Row complexes = floats<Complex<T>, nullptr, nullptr>;

/// Only order tells signed integers from unsigned ones: all else has the same bits.
template <typename U, typename T = U>
constexpr Row integers{run<Plain<U>, Sum>,
                       run<Plain<U>, Prod>,
                       run<Plain<T>, Min>,
                       run<Plain<T>, Max>,
                       nullptr,
                       run<Plain<U>, And>,
                       run<Plain<U>, Or>,
                       run<Plain<U>, Xor>,
                       run<Plain<U>, BitAnd>,
                       run<Plain<U>, BitOr>,
                       run<Plain<U>, BitXor>,
                       run<Plain<U>, Premultiplied>,
                       nullptr};

/// A byte that is neither 0 nor 1 counts as true. Sums are "or" and products "and", as in NumPy; false is below true.
using Bytewise = Plain<std::uint8_t>;
constexpr Kernel both = run<Bytewise, And>, either = run<Bytewise, Or>, one = run<Bytewise, Xor>;
constexpr Row booleans{either, both, both, either, nullptr, both, either, one, both, either, one, nullptr, nullptr};

} // namespace

constinit const Kernels kernels{real_floats<Float16>,
                                real_floats<Bfloat16>,
                                real_floats<Plain<float>>,
                                real_floats<Plain<double>>,
                                real_floats<Float8E4m3fn>,
                                real_floats<Float8E5m2>,
                                integers<std::uint8_t, std::int8_t>,
                                integers<std::uint16_t, std::int16_t>,
                                integers<std::uint32_t, std::int32_t>,
                                integers<std::uint64_t, std::int64_t>,
                                integers<std::uint8_t>,
                                integers<std::uint16_t>,
                                integers<std::uint32_t>,
                                integers<std::uint64_t>,
                                booleans,
                                complexes<float>,
                                complexes<double>};

} // namespace hocket::HOCKET_KERNELS
