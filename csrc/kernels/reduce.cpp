#include "kernels/reduce.h"

#include "kernels/copy.h"
#include "kernels/reduce_kernels.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace hocket {
namespace {

struct KernelSet {
    const char *name;
    const Kernels *kernels;
};

/// What this processor can run, the widest first.
std::vector<KernelSet> find_kernel_sets() {
    std::vector<KernelSet> found;
#ifdef HOCKET_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi")) {
        found.push_back({"avx512", &avx512::kernels});
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) found.push_back({"avx2", &avx2::kernels});
#endif
    found.push_back({"portable", &portable::kernels});
    return found;
}

const std::vector<KernelSet> kernel_sets = find_kernel_sets();

Kernel kernel_of(Op op, Dtype dtype, std::size_t kernel_set) {
    const Kernels &kernels = *kernel_sets.at(kernel_set).kernels;
    return kernels[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)];
}

bool is_logical(Op op) { return op == Op::land || op == Op::lor || op == Op::lxor; }

} // namespace

std::vector<const char *> kernel_set_names() {
    std::vector<const char *> names;
    for (const KernelSet &set : kernel_sets) names.push_back(set.name);
    return names;
}

bool has_meaning(Op op, Dtype dtype) { return op == Op::custom || kernel_of(op, dtype, 0) != nullptr; }

void fold(const Fold &what, std::byte *destination, Sources sources, std::span<const bool> raw, std::size_t n,
          std::size_t kernel_set) {
    if (n == 0) return;
    const auto some_raw = [raw] { return std::ranges::find(raw, true) != raw.end(); };
    const bool scales = what.op == Op::premul_sum && some_raw();
    if (sources.size() == 1 && what.divisor == 1 && !scales) {
        if ((is_logical(what.op) || (what.dtype == Dtype::boolean && what.op != Op::custom)) && some_raw()) {
            const std::array twice{sources[0], sources[0]}; // "or" of a value with itself makes it true or false
            return kernel_of(Op::lor, what.dtype, kernel_set)(what, destination, twice, {}, n);
        }
        const Bytes source(sources[0], n * size_of(what.dtype));
        if (what.also != nullptr) copy_bytes(what.also, source);
        if (destination != source.data()) copy_bytes(destination, source);
        return;
    }
    if (what.op == Op::custom) {
        (*what.custom)(destination, sources, n);
        if (what.also != nullptr) copy_bytes(what.also, Bytes(destination, n * size_of(what.dtype)));
        return;
    }
    // Where nothing is scaled, a premul_sum is a sum.
    const Op op = what.op == Op::premul_sum && !scales ? Op::sum : what.op;
    const Kernel kernel = kernel_of(op, what.dtype, kernel_set);
    if (kernel == nullptr || (op != what.op && !has_meaning(what.op, what.dtype))) {
        throw std::invalid_argument(std::string(name_of(what.op)) + " has no meaning for " + name_of(what.dtype));
    }
    kernel(what, destination, sources, raw, n);
}

} // namespace hocket
