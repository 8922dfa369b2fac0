#include "bindings/reductions.h"

#include "bindings/python/arrays.h"
#include "bindings/python/blocking.h"

#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <tuple>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

nb::object view_of(std::byte *memory, std::size_t num_bytes, int access) {
    return nb::steal(
        PyMemoryView_FromMemory(reinterpret_cast<char *>(memory), static_cast<Py_ssize_t>(num_bytes), access));
}

template <typename Names> nb::tuple tuple_of(const Names &names) {
    nb::list list;
    for (const char *name : names) list.append(name);
    return nb::tuple(list);
}

/// One fold of whole arrays, for tests and tables: exactly what the executor does to a piece.
void fold_arrays(nb::handle destination, const std::vector<nb::object> &sources, int op, const std::vector<bool> &raw,
                 int divisor, const std::tuple<double, double, std::uint64_t> &factor, const nb::object &function,
                 std::size_t kernel_set) {
    const Array to = array_of(destination, true, "fold: destination");
    Fold what{.dtype = to.dtype,
              .op = static_cast<Op>(op),
              .divisor = divisor,
              .factor = {std::get<0>(factor), std::get<1>(factor), std::get<2>(factor)}};
    if (op < 0 || static_cast<std::size_t>(op) >= num_ops)
        throw nb::value_error("fold: expected op as an index of OPS");
    if (kernel_set >= kernel_set_names().size())
        throw nb::value_error("fold: expected kernel_set as an index of KERNEL_SETS");
    if (!has_meaning(what.op, what.dtype)) {
        throw nb::type_error(
            (std::string("fold: ") + name_of(what.op) + " has no meaning for " + name_of(what.dtype)).c_str());
    }
    if (sources.empty() || divisor < 1) throw nb::value_error("fold: expected sources, and a divisor of 1 or more");
    if (divisor > 1 && what.op != Op::avg) throw nb::value_error("fold: only avg divides");
    if (!raw.empty() && raw.size() != sources.size())
        throw nb::value_error("fold: expected raw for each source, or ()");
    std::vector<const std::byte *> operands;
    for (const nb::object &source : sources) {
        const Array from = array_of(source, false, "fold: source");
        if (from.count != to.count || from.dtype != to.dtype) {
            throw nb::value_error("fold: expected sources of the destination's length and dtype");
        }
        operands.push_back(reinterpret_cast<const std::byte *>(from.address));
    }
    CustomFold custom;
    if (what.op == Op::custom) {
        if (function.is_none()) throw nb::value_error("fold: custom takes a function");
        custom = custom_fold(function, what.dtype);
        what.custom = &custom;
    }
    const auto flags = std::make_unique<bool[]>(raw.size()); // a vector of bool has no bool to point at
    std::copy(raw.begin(), raw.end(), flags.get());
    const WithoutLock release;
    fold(what, reinterpret_cast<std::byte *>(to.address), operands, {flags.get(), raw.size()}, to.count, kernel_set);
}

} // namespace

CustomFold custom_fold(nb::object function, Dtype dtype) {
    const std::shared_ptr<nb::object> held(new nb::object(std::move(function)), [](nb::object *object) {
        if (!nb::is_alive()) return; // the interpreter is gone, and the function with it
        const WithLock acquire;
        delete object;
    });
    return [held, dtype](std::byte *destination, std::span<const std::byte *const> sources, std::size_t num_elements) {
        const WithLock acquire;
        const std::size_t num_bytes = num_elements * size_of(dtype);
        nb::list views;
        for (const std::byte *source : sources) {
            views.append(view_of(const_cast<std::byte *>(source), num_bytes, PyBUF_READ));
        }
        const CallOfPython call;
        nb::module_::import_("hocket.schedule")
            .attr("fold_memory")(*held, name_of(dtype), view_of(destination, num_bytes, PyBUF_WRITE), views);
    };
}

void bind_reductions(nb::module_ &module) {
    module.attr("DTYPES") = tuple_of(dtype_names);
    module.attr("OPS") = tuple_of(op_names);
    module.attr("KERNEL_SETS") = tuple_of(kernel_set_names());
    module.def(
        "has_meaning", [](int op, int dtype) { return has_meaning(static_cast<Op>(op), static_cast<Dtype>(dtype)); },
        "op"_a, "dtype"_a);
    module.def("fold", &fold_arrays, "destination"_a, "sources"_a, "op"_a, "raw"_a = std::vector<bool>{},
               "divisor"_a = 1, "factor"_a = std::make_tuple(1.0, 0.0, std::uint64_t{1}), "function"_a = nb::none(),
               "kernel_set"_a = 0);
}
