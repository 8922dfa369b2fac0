#include "reduce.h"

#include "reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hocket {
namespace {

constinit const std::array<const Kernels *, num_dtypes> kernels_by_dtype{
    &float16_kernels,     &bfloat16_kernels,  &float32_kernels, &float64_kernels, &float8_e4m3fn_kernels,
    &float8_e5m2_kernels, &int8_kernels,      &int16_kernels,   &int32_kernels,   &int64_kernels,
    &uint8_kernels,       &uint16_kernels,    &uint32_kernels,  &uint64_kernels,  &boolean_kernels,
    &complex64_kernels,   &complex128_kernels};

const Kernels &kernels_of(Dtype dtype) { return *kernels_by_dtype[static_cast<std::size_t>(dtype)]; }

/// Reduces to true and false, so that even one source of its own may change.
bool makes_truth(const Fold &what) {
    const bool logical = what.op == Op::land || what.op == Op::lor || what.op == Op::lxor;
    return logical || (what.dtype == Dtype::boolean && what.op != Op::custom);
}

using Sources = std::span<const std::byte *const>;

/// Tile by tile, so that what is computed on stays in the first-level cache. `raw` is empty where nothing is scaled.
void fold_tiles(const Fold &what, std::byte *destination, Sources sources, std::span<const bool> raw, bool to_truth,
                std::size_t n) {
    constexpr std::size_t tile_bytes = 4096;
    alignas(cache_line) std::byte running[tile_bytes], operand[tile_bytes];
    const Kernels &kernels = kernels_of(what.dtype);
    const auto combine = kernels.of(what.op);
    const std::size_t stored_size = size_of(what.dtype);
    const std::size_t tile = tile_bytes / (kernels.widen == nullptr ? stored_size : sizeof(float));
    const bool ends_there = kernels.narrow == nullptr && what.divisor == 1 && !to_truth;
    for (std::size_t at = 0; at < n; at += tile) {
        const std::size_t count = std::min(tile, n - at);
        std::byte *result = destination + at * stored_size;
        const auto read = [&](std::size_t i, std::byte *memory) {
            const std::byte *values = sources[i] + at * stored_size;
            if (kernels.widen != nullptr) {
                kernels.widen(memory, values, count);
                values = memory;
            }
            if (!raw.empty() && raw[i]) {
                kernels.scale(memory, values, what.factor, count);
                values = memory;
            }
            return values;
        };
        const std::byte *left = read(0, running);
        for (std::size_t i = 1; i < sources.size(); ++i) {
            std::byte *to = ends_there && i + 1 == sources.size() ? result : running;
            combine(to, left, read(i, operand), count);
            left = to;
        }
        if (to_truth) {
            kernels.of(Op::lor)(running, left, left, count);
            left = running;
        }
        if (what.divisor != 1) {
            kernels.divide(running, left, what.divisor, count);
            left = running;
        }
        if (kernels.narrow != nullptr) kernels.narrow(result, left, count);
        else if (left != result) std::memcpy(result, left, count * stored_size);
    }
}

} // namespace

bool has_meaning(Op op, Dtype dtype) { return op == Op::custom || kernels_of(dtype).of(op) != nullptr; }

void fold(const Fold &what, std::byte *destination, Sources sources, std::span<const bool> raw, std::size_t n) {
    if (n == 0) return;
    const bool some_raw = std::ranges::find(raw, true) != raw.end();
    const bool scales = some_raw && what.op == Op::premul_sum;
    const bool to_truth = some_raw && sources.size() == 1 && makes_truth(what);
    const bool plain = what.divisor == 1 && !scales && !to_truth;
    if (plain && sources.size() == 1) {
        if (destination != sources[0]) std::memcpy(destination, sources[0], n * size_of(what.dtype));
        return;
    }
    if (!has_meaning(what.op, what.dtype)) {
        throw std::invalid_argument(std::string(name_of(what.op)) + " has no meaning for " + name_of(what.dtype));
    }
    if (what.op == Op::custom) return (*what.custom)(destination, sources, n);
    const Kernels &kernels = kernels_of(what.dtype);
    if (plain && sources.size() == 2 && kernels.widen == nullptr) {
        return kernels.of(what.op)(destination, sources[0], sources[1], n);
    }
    fold_tiles(what, destination, sources, scales ? raw : std::span<const bool>{}, to_truth, n);
}

} // namespace hocket
