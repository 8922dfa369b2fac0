#include "bindings/python/tensor.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nb = nanobind;

namespace hocket {
namespace {

using View = nb::dlpack::dltensor;

/// DLPackExchangeAPI of DLPack 1, up to the function that is used here.
struct ExchangeFunctions {
    std::uint32_t major_version, minor_version;
    const void *previous;
    void (*allocate)(), (*give)(), (*take)();
    int (*view)(void *object, View *view); // may be null
};

struct TensorType {
    PyTypeObject *type = nullptr;
    int (*view)(void *object, View *view) = nullptr; // null where this PyTorch does not lend it
};

/// What `type` lends if it is torch.Tensor. Other libraries' arrays may be read-only, which a view does not say. It
/// throws nothing: its callers are called from C.
TensorType find_tensor_type(PyTypeObject *type) {
    const auto name = nb::steal(PyUnicode_FromString("torch"));
    const auto torch = nb::steal(name.is_valid() ? PyImport_GetModule(name.ptr()) : nullptr);
    const auto tensor = nb::steal(torch.is_valid() ? PyObject_GetAttrString(torch.ptr(), "Tensor") : nullptr);
    TensorType found;
    if (tensor.ptr() == reinterpret_cast<PyObject *>(type)) {
        found.type = reinterpret_cast<PyTypeObject *>(Py_NewRef(tensor.ptr())); // for good
        const auto capsule = nb::steal(PyObject_GetAttrString(tensor.ptr(), "__dlpack_c_exchange_api__"));
        const auto *functions = static_cast<const ExchangeFunctions *>(
            capsule.is_valid() ? PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api") : nullptr);
        if (functions != nullptr && functions->major_version == 1) found.view = functions->view;
    }
    PyErr_Clear();
    return found;
}

/// PyTorch's type, once one of its tensors was met. The interpreter lock guards it.
TensorType tensor_type;

bool is_plain_type(PyTypeObject *type) {
    if (tensor_type.type == nullptr && std::string_view(type->tp_name) == "Tensor") {
        tensor_type = find_tensor_type(type);
    }
    return type == tensor_type.type && tensor_type.view != nullptr;
}

bool is_false(PyObject *answer) {
    if (answer == nullptr) PyErr_Clear();
    Py_XDECREF(answer);
    return answer == Py_False;
}

/// As PyTorch understands it, so strides of what has no elements do not count.
bool is_contiguous(const View &view) {
    if (view.strides == nullptr || count_of(view) == 0) return true;
    std::int64_t expected = 1;
    for (int dim = view.ndim; dim-- > 0;) {
        if (view.shape[dim] > 1 && view.strides[dim] != expected) return false;
        expected *= view.shape[dim];
    }
    return true;
}

/// What a view does not say: that the bytes mean another value, or that autograd has to know who changes them.
bool has_plain_values(PyObject *tensor, const View &view) {
    static PyObject *const is_conj = PyUnicode_InternFromString("is_conj");
    static PyObject *const is_neg = PyUnicode_InternFromString("is_neg");
    static PyObject *const requires_grad = PyUnicode_InternFromString("requires_grad");
    const bool is_complex = view.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Complex);
    return (!is_complex || is_false(PyObject_CallMethodNoArgs(tensor, is_conj))) &&
           is_false(PyObject_CallMethodNoArgs(tensor, is_neg)) && is_false(PyObject_GetAttr(tensor, requires_grad));
}

} // namespace

bool view_plain_tensor(PyObject *object, View &view) {
    if (!is_plain_type(Py_TYPE(object))) return false;
    if (tensor_type.view(object, &view) != 0) {
        PyErr_Clear();
        return false;
    }
    const bool has_memory = view.data != nullptr || count_of(view) == 0; // a fake tensor has none
    return has_memory && view.device.device_type == nb::device::cpu::value && is_contiguous(view) &&
           has_plain_values(object, view);
}

std::size_t count_of(const View &view) {
    std::size_t count = 1;
    for (int dim = 0; dim < view.ndim; ++dim) count *= static_cast<std::size_t>(view.shape[dim]);
    return count;
}

std::byte *data_of(const View &view) { return static_cast<std::byte *>(view.data) + view.byte_offset; }

} // namespace hocket
