// What a Python array is in the core's terms: address, number of elements and type, or an error that says what to pass.

#include "arrays.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <string>

namespace nb = nanobind;
using namespace hocket;

namespace {

struct Array {
    std::uintptr_t address = 0;
    std::size_t count = 0;
    Dtype dtype = Dtype::float32;
};

/// An argument, and what its caller calls it: "all_reduce: x".
struct Argument {
    nb::handle object;
    const char *name;
    bool writable;

    std::string type() const { return nb::cast<std::string>(nb::str(nb::type_name(object.type()))); }

    [[noreturn]] void refuse_kind() const {
        throw nb::type_error((std::string(name) +
                              ": expected an array in CPU memory with the buffer protocol or DLPack, found " + type())
                                 .c_str());
    }

    [[noreturn]] void refuse_dtype(const std::string &fallback) const {
        const nb::object dtype = nb::getattr(object, "dtype", nb::none());
        const std::string found = dtype.is_none() ? fallback : std::string(nb::str(nb::handle(dtype)).c_str());
        throw nb::type_error((std::string(name) +
                              ": expected an array of float32, float64, int32, int64 or uint8, found " + type() +
                              " of " + found + "; convert it, for example with x.astype(\"float32\")")
                                 .c_str());
    }

    [[noreturn]] void refuse_layout(const char *found, const char *next) const {
        throw nb::value_error((std::string(name) + ": expected a C-contiguous, aligned array, found a " + type() +
                               " that is " + found + "; " + next)
                                  .c_str());
    }

    [[noreturn]] void refuse_read_only() const {
        refuse_layout("read-only", "a result is written into it: pass a writable one, or out=");
    }
};

Dtype dtype_of_format(const Argument &argument, const char *format, Py_ssize_t item_size) {
    const char *code = format == nullptr ? "B" : format;
    if (*code == '@' || *code == '=' || *code == '<') ++code;
    if (code[0] != '\0' && code[1] == '\0') {
        switch (*code) {
        case 'f': return Dtype::float32;
        case 'd': return Dtype::float64;
        case 'i': return Dtype::int32;
        case 'B': return Dtype::uint8;
        case 'l':
        case 'q':
            if (item_size == 8) return Dtype::int64;
            break;
        default: break;
        }
    }
    argument.refuse_dtype("format '" + std::string(format == nullptr ? "" : format) + "'");
}

void check_alignment(const Argument &argument, const Array &array) {
    if (array.count > 0 && array.address % size_of(array.dtype) != 0) {
        argument.refuse_layout("not aligned to its elements", "pass a copy of it");
    }
}

Array array_of_buffer(const Argument &argument) {
    PyObject *object = argument.object.ptr();
    Py_buffer buffer;
    constexpr int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    if (PyObject_GetBuffer(object, &buffer, flags | (argument.writable ? PyBUF_WRITABLE : 0)) != 0) {
        PyErr_Clear();
        if (PyObject_GetBuffer(object, &buffer, flags) == 0) {
            PyBuffer_Release(&buffer);
            argument.refuse_read_only();
        }
        PyErr_Clear();
        if (PyObject_GetBuffer(object, &buffer, PyBUF_FULL_RO) != 0) { // NumPy's dates, for example
            PyErr_Clear();
            argument.refuse_dtype("a type that the buffer protocol cannot show");
        }
        PyBuffer_Release(&buffer);
        argument.refuse_layout("not C-contiguous",
                               "pass numpy.ascontiguousarray(x), and copy the result back if it is in place");
    }
    Array array;
    try {
        array.dtype = dtype_of_format(argument, buffer.format, buffer.itemsize);
        array.address = reinterpret_cast<std::uintptr_t>(buffer.buf);
        array.count = static_cast<std::size_t>(buffer.len / buffer.itemsize);
    } catch (...) {
        PyBuffer_Release(&buffer);
        throw;
    }
    PyBuffer_Release(&buffer); // the caller keeps the object alive
    check_alignment(argument, array);
    return array;
}

Array array_of_dlpack(const Argument &argument) {
    nb::ndarray<nb::ro, nb::device::cpu> view;
    if (argument.object.is_none() || !nb::try_cast(argument.object, view, false)) argument.refuse_kind();
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
    Array array{.address = reinterpret_cast<std::uintptr_t>(view.data()), .count = view.size()};
    if (view.dtype() == nb::dtype<float>()) array.dtype = Dtype::float32;
    else if (view.dtype() == nb::dtype<double>()) array.dtype = Dtype::float64;
    else if (view.dtype() == nb::dtype<std::int32_t>()) array.dtype = Dtype::int32;
    else if (view.dtype() == nb::dtype<std::int64_t>()) array.dtype = Dtype::int64;
    else if (view.dtype() == nb::dtype<std::uint8_t>()) array.dtype = Dtype::uint8;
    else argument.refuse_dtype("DLPack type code " + std::to_string(view.dtype().code));
    check_alignment(argument, array);
    return array;
}

} // namespace

nb::tuple describe(nb::handle object, bool writable, const char *name) {
    const Argument argument{object, name, writable};
    const Array array = PyObject_CheckBuffer(object.ptr()) ? array_of_buffer(argument) : array_of_dlpack(argument);
    return nb::make_tuple(array.address, array.count, static_cast<int>(array.dtype));
}
