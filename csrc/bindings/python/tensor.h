// PyTorch's tensors, read through the C functions that PyTorch lends by DLPack's exchange API; its headers are not
// used.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace hocket {

/// The memory of a torch.Tensor, not of a derived class, that is what it looks like: in CPU memory and C-contiguous,
/// without the conjugate or the negative bit and without a gradient. The view is the tensor's own, and good while that
/// is unchanged. False of all other objects.
bool view_plain_tensor(PyObject *object, nanobind::dlpack::dltensor &view);

std::size_t count_of(const nanobind::dlpack::dltensor &view);
std::byte *data_of(const nanobind::dlpack::dltensor &view);

} // namespace hocket
