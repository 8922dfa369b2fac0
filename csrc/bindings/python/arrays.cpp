// What a Python array is in the core's terms: address, number of elements and type, or an error that says what to pass.

#include "bindings/python/arrays.h"

#include "bindings/python/tensor.h"

#include <initializer_list>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>
#include <string_view>

namespace nb = nanobind;
using namespace hocket;

namespace {

/// An argument, and what its caller calls it: "all_reduce: x".
struct Argument {
    nb::handle object;
    const char *name;
    bool writable;

    std::string type() const { return nb::cast<std::string>(nb::str(nb::type_name(object.type()))); }

    [[noreturn]] void refuse_kind() const {
        throw nb::type_error((std::string(name) +
                              ": expected an array in CPU memory with the buffer protocol or DLPack, found " + type() +
                              instead())
                                 .c_str());
    }

    /// What to do with something that is no array.
    const char *instead() const {
        PyObject *const given = object.ptr();
        if (given == Py_None || nb::hasattr(object, "__dlpack__")) return "";
        if (PyList_Check(given) || PyTuple_Check(given) || PyNumber_Check(given))
            return ": pass numpy.array(...) of it";
        return ": for Python objects there are broadcast_object, all_gather_object, gather_object, scatter_object, "
               "send_object and recv_object";
    }

    [[noreturn]] void refuse_dtype(const std::string &fallback) const {
        const nb::object dtype = nb::getattr(object, "dtype", nb::none());
        const std::string found = dtype.is_none() ? fallback : std::string(nb::str(nb::handle(dtype)).c_str());
        const char *next = nb::hasattr(object, "astype") ? "x.astype(\"float32\")"
                           : nb::hasattr(object, "to")   ? "x.to(torch.float32)"
                                                         : "numpy.asarray(x).astype(\"float32\")";
        std::string known;
        for (const char *one : dtype_names) known += (known.empty() ? "" : ", ") + std::string(one);
        throw nb::type_error((std::string(name) + ": expected an array of one of " + known + "; found " + type() +
                              " of " + found + "; convert it, for example with " + next)
                                 .c_str());
    }

    [[noreturn]] void refuse(const char *expected, const char *found, const char *next) const {
        throw nb::value_error(
            (std::string(name) + ": expected a " + expected + ", found a " + type() + " " + found + "; " + next)
                .c_str());
    }

    [[noreturn]] void refuse_layout(const char *found, const char *next) const {
        refuse("C-contiguous, aligned array", ("that is " + std::string(found)).c_str(), next);
    }

    [[noreturn]] void refuse_read_only() const {
        if (nb::hasattr(object, "dtype") && !nb::hasattr(object, "__setitem__")) {
            throw nb::value_error(
                (std::string(name) +
                 ": expected an array, because the result is written into it; found a NumPy scalar, a " + type() +
                 ": pass x = numpy.array(x)")
                    .c_str());
        }
        refuse_layout("read-only", "the result is written into this array: pass a writable one, or out=");
    }
};

/// The type of this kind with elements of this size.
std::optional<Dtype> sized(std::initializer_list<Dtype> kind, std::size_t num_bytes) {
    for (const Dtype dtype : kind) {
        if (size_of(dtype) == num_bytes) return dtype;
    }
    return {};
}

constexpr auto floats = {Dtype::float16, Dtype::float32, Dtype::float64};
constexpr auto signed_integers = {Dtype::int8, Dtype::int16, Dtype::int32, Dtype::int64};
constexpr auto unsigned_integers = {Dtype::uint8, Dtype::uint16, Dtype::uint32, Dtype::uint64};
constexpr auto complex_numbers = {Dtype::complex64, Dtype::complex128};

/// Letters of the struct module, of which some have another size on another system.
std::optional<Dtype> dtype_of_format(const char *format, std::size_t item_size) {
    std::string_view code = format;
    if (code.starts_with('@') || code.starts_with('=') || code.starts_with('<')) code.remove_prefix(1);
    if (code == "Zf" || code == "Zd") return sized(complex_numbers, item_size);
    if (code.size() != 1) return {};
    switch (code[0]) {
    case 'e':
    case 'f':
    case 'd': return sized(floats, item_size);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q': return sized(signed_integers, item_size);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q': return sized(unsigned_integers, item_size);
    case '?': return Dtype::boolean;
    default: return {};
    }
}

void check_alignment(const Argument &argument, const Array &array) {
    if (array.count > 0 && array.address % alignment_of(array.dtype) != 0) {
        argument.refuse_layout("not aligned to its elements", "pass a copy of it");
    }
}

/// The type of an array of ml_dtypes, whose memory NumPy shows only as something else.
std::optional<Dtype> dtype_of_extension(nb::handle object) {
    const nb::object dtype = nb::getattr(object, "dtype", nb::none());
    const nb::object name = nb::getattr(dtype, "name", nb::none());
    if (!nb::isinstance<nb::str>(name)) return {};
    for (const Dtype extension : {Dtype::bfloat16, Dtype::float8_e4m3fn, Dtype::float8_e5m2}) {
        if (std::string_view(nb::borrow<nb::str>(name).c_str()) == name_of(extension)) return extension;
    }
    return {};
}

/// A view by the buffer protocol, given back at the end of its scope.
struct Buffer {
    Py_buffer view{};
    bool open;

    Buffer(nb::handle object, int flags) : open(PyObject_GetBuffer(object.ptr(), &view, flags) == 0) {
        if (!open) PyErr_Clear();
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() {
        if (open) PyBuffer_Release(&view);
    }
};

/// `object` is the argument itself, or a view of its memory whose elements are of the type `known`.
Array array_of_buffer(const Argument &argument, nb::handle object, std::optional<Dtype> known) {
    constexpr int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    const Buffer buffer(object, flags | (argument.writable ? PyBUF_WRITABLE : 0));
    if (!buffer.open) {
        if (Buffer(object, flags).open) argument.refuse_read_only();
        if (Buffer(object, PyBUF_FULL_RO).open) {
            argument.refuse_layout("not C-contiguous",
                                   "pass numpy.ascontiguousarray(x), and copy the result back if it is in place");
        }
        const auto extension = dtype_of_extension(object);
        if (!extension) argument.refuse_dtype("a type that the buffer protocol cannot express"); // dates, for example
        const nb::object view = object.attr("view")(size_of(*extension) == 1 ? "uint8" : "uint16");
        return array_of_buffer(argument, view, extension);
    }
    const char *format = buffer.view.format == nullptr ? "B" : buffer.view.format;
    const auto item_size = static_cast<std::size_t>(buffer.view.itemsize);
    const auto dtype = known ? known : dtype_of_format(format, item_size);
    if (!dtype) argument.refuse_dtype("format '" + std::string(format) + "'");
    const Array array{.address = reinterpret_cast<std::uintptr_t>(buffer.view.buf),
                      .count = static_cast<std::size_t>(buffer.view.len) / item_size,
                      .dtype = *dtype};
    check_alignment(argument, array);
    return array;
}

std::optional<Dtype> dtype_of_dlpack(nb::dlpack::dtype type) {
    // Of DLPack 1.1, which nanobind does not name in all versions.
    constexpr std::uint8_t float8_e4m3fn = 10, float8_e5m2 = 12;
    using Code = nb::dlpack::dtype_code;
    const std::size_t num_bytes = type.bits / 8;
    if (type.lanes != 1 || type.bits % 8 != 0) return {};
    switch (type.code) {
    case static_cast<std::uint8_t>(Code::Float): return sized(floats, num_bytes);
    case static_cast<std::uint8_t>(Code::Bfloat): return sized({Dtype::bfloat16}, num_bytes);
    case static_cast<std::uint8_t>(Code::Int): return sized(signed_integers, num_bytes);
    case static_cast<std::uint8_t>(Code::UInt): return sized(unsigned_integers, num_bytes);
    case static_cast<std::uint8_t>(Code::Bool): return sized({Dtype::boolean}, num_bytes);
    case static_cast<std::uint8_t>(Code::Complex): return sized(complex_numbers, num_bytes);
    case float8_e4m3fn: return sized({Dtype::float8_e4m3fn}, num_bytes);
    case float8_e5m2: return sized({Dtype::float8_e5m2}, num_bytes);
    default: return {};
    }
}

/// A flag of PyTorch's tensors, an attribute or a method; false where there is none.
bool flag_of(nb::handle object, const char *name) {
    const nb::object flag = nb::getattr(object, name, nb::none());
    const nb::object value = PyCallable_Check(flag.ptr()) ? flag() : flag;
    return value.ptr() == Py_True;
}

/// What a tensor of PyTorch says beside its memory, and DLPack does not: left unseen, the bytes would mean another
/// value, or change behind the back of autograd.
void check_flags(const Argument &argument) {
    if (flag_of(argument.object, "is_conj")) {
        argument.refuse("tensor without PyTorch's conjugate bit", "whose memory holds the conjugate of its values",
                        "pass x.resolve_conj(), and copy the result back if it is in place");
    }
    if (flag_of(argument.object, "is_neg")) {
        argument.refuse("tensor without PyTorch's negative bit", "whose memory holds its values negated",
                        "pass x.resolve_neg(), and copy the result back if it is in place");
    }
    if (argument.writable && flag_of(argument.object, "requires_grad")) {
        argument.refuse("tensor that needs no gradient where a result is written", "that requires grad",
                        "pass x.detach(), which shares its memory, or another out=");
    }
}

/// False of what is no tensor of PyTorch, or not a plain one.
bool find_tensor(const Argument &argument, Array &array) {
    nb::dlpack::dltensor view;
    if (!view_plain_tensor(argument.object.ptr(), view)) return false;
    const auto dtype = dtype_of_dlpack(view.dtype);
    if (!dtype) return false;
    array = {.address = reinterpret_cast<std::uintptr_t>(data_of(view)), .count = count_of(view), .dtype = *dtype};
    return true;
}

Array array_of_dlpack(const Argument &argument) {
    Array array;
    if (find_tensor(argument, array)) {
        check_alignment(argument, array);
        return array;
    }
    check_flags(argument);
    nb::ndarray<nb::ro, nb::device::cpu> view;
    if (argument.object.is_none() || !nb::try_cast(argument.object, view, false)) argument.refuse_kind();
    if (view.data() == nullptr && view.size() > 0) {
        argument.refuse("tensor with memory", "without memory, for example a fake tensor of PyTorch",
                        "pass a real one");
    }
    std::int64_t expected = 1;
    for (std::size_t dim = view.ndim(); dim-- > 0;) {
        if (view.shape(dim) > 1 && view.stride(dim) != expected) {
            argument.refuse_layout("not C-contiguous", "pass x.contiguous() or a copy of it");
        }
        expected *= static_cast<std::int64_t>(view.shape(dim));
    }
    if (argument.writable) {
        nb::ndarray<nb::device::cpu> writable_view;
        if (!nb::try_cast(argument.object, writable_view, false)) argument.refuse_read_only();
    }
    const auto dtype = dtype_of_dlpack(view.dtype());
    if (!dtype) argument.refuse_dtype("DLPack type code " + std::to_string(view.dtype().code));
    array = {.address = reinterpret_cast<std::uintptr_t>(view.data()), .count = view.size(), .dtype = *dtype};
    check_alignment(argument, array);
    return array;
}

} // namespace

Array array_of(nb::handle object, bool writable, const char *name) {
    const Argument argument{object, name, writable};
    return PyObject_CheckBuffer(object.ptr()) ? array_of_buffer(argument, object, {}) : array_of_dlpack(argument);
}

nb::tuple describe(nb::handle object, bool writable, const char *name) {
    const Array array = array_of(object, writable, name);
    return nb::make_tuple(array.address, array.count, static_cast<int>(array.dtype));
}
