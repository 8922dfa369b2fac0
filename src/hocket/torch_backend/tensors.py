"""Tensors as arrays of the core. Tensors that are not contiguous go through a contiguous copy, so strides never matter.

Autograd does not see that a result is written, as on every backend. But the tensor's version is counted up, so the
backward pass finds a saved tensor that was overwritten.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hocket.runtime import current_stream, note_written
from hocket.torch_backend.cuda import staged

Finish = Callable[[], object] | None
"""A function that copies a complete result to its tensors; None if the result is already in place."""


def source(name: str, tensor: Any) -> Any:
    """Returns an array with the tensor's values; it shares the tensor's memory if that is contiguous."""
    return _array(_contiguous(_checked(name, tensor)))


def target(name: str, tensor: Any) -> tuple[Any, Finish]:
    """Returns an array for a result; it also has the tensor's values, because an in-place operation reads them."""
    tensor = _check_apart(name, _checked(name, tensor))
    written = _contiguous(tensor)
    torch._C._increment_version([tensor])
    note_written(tensor)
    return _array(written), None if written is tensor else lambda: _copy(tensor, written)


def source_of(name: str, tensors: Sequence[Any], result: Any = None, index: int = 0) -> Any:
    """Returns an array with the values of tensors of one dtype, one after the other.

    result: the tensor that the operation writes; it may be tensors[index].
    """
    tensors = [_checked(name, tensor) for tensor in tensors]
    _check_dtypes(name, tensors)
    joined = _joined(tensors, result, index)
    if tensors[0].is_cuda:
        return staged(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
    if joined is None:
        parts = [tensor.detach() for tensor in tensors]
        joined = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype)
        on_current_stream(lambda: torch.cat([part.reshape(-1) for part in parts], out=joined))
    return _array(joined)


def target_of(name: str, tensors: Sequence[Any], input: Any = None, index: int = 0) -> tuple[Any, Finish]:
    """Returns an array for a result whose parts are these tensors, of one dtype, one after the other.

    input: the tensor that the operation reads; it may be tensors[index].
    """
    tensors = [_check_apart(name, _checked(name, tensor)) for tensor in tensors]
    _check_dtypes(name, tensors)
    torch._C._increment_version(tensors)
    joined = _joined(tensors, input, index)
    if joined is not None:
        return _array(joined), None
    counts = [tensor.numel() for tensor in tensors]
    written = torch.empty(sum(counts), dtype=tensors[0].dtype, pin_memory=tensors[0].is_cuda)

    def finish() -> None:
        for tensor, part in zip(tensors, written.split(counts), strict=True):
            _copy(tensor, part.view(tensor.shape))

    return _array(written), finish


def on_current_stream(finish: Finish) -> None:
    """Calls `finish` after all items of Hocket's current stream; at once if the current stream is the host."""
    stream = current_stream()
    if finish is None:
        return
    if stream is None:
        finish()
    else:
        stream.submit(finish)


def single(name: str, tensors: Any) -> Any:
    """Returns the tensor, or the only tensor of a list. Raises ValueError if the list has another length."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{name}: expected a list of one tensor, found {len(tensors)}")
    return tensors[0]


def _checked(name: str, tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, found a {type(tensor).__name__}")
    tensor = _plain(tensor)
    if not (tensor.is_cpu or (tensor.is_cuda and torch.cuda.is_available())):
        raise ValueError(
            f"{name}: expected a tensor in CPU memory, found one on {tensor.device}; pass x.cpu(), or use a process "
            "group of a backend for that device"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name}: expected a dense tensor, found a {tensor.layout} one; pass x.to_dense()")
    return tensor


def _plain(tensor: Any) -> Any:
    """Returns a tensor with memory: the result of a functional collective is a wrapper that waits for its tensor."""
    if type(tensor) is torch.Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    return tensor.trigger_wait()


def _check_apart(name: str, tensor: Any) -> Any:
    """Raises ValueError if elements of a result share memory."""
    if not tensor.is_contiguous() and torch._debug_has_internal_overlap(tensor) == 1:
        raise ValueError(
            f"{name}: expected a result tensor whose elements have memory of their own, found an expanded one of "
            f"strides {tensor.stride()}; pass x.clone()"
        )
    return tensor


def _check_dtypes(name: str, tensors: Sequence[Any]) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise ValueError(f"{name}: expected tensors of one dtype, found {sorted(map(str, dtypes)) or 'no tensor'}")


def _contiguous(tensor: Any) -> Any:
    if tensor.is_cuda:
        return staged(tensor)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    on_current_stream(lambda: _copy(copy, tensor.detach()))
    return copy


def _array(tensor: Any) -> Any:
    """Returns the form that the communicator recognises fastest: a plain torch.Tensor without a gradient."""
    return tensor if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor.detach()


def _joined(tensors: Sequence[Any], other: Any, index: int) -> Any:
    """Returns one tensor over all of them if each begins where the previous one ends; else None.

    Also returns None if `other` shares memory with them but is not tensors[index]: no in-place call allows that.
    """
    first = tensors[0]
    if first.is_cuda:
        return None
    storage, address = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if (
            not tensor.is_contiguous()
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.data_ptr() != address
            or tensor.untyped_storage().data_ptr() != storage
        ):
            return None
        address += tensor.nbytes
    if other is not None:
        start = _plain(other).data_ptr()
        if start != tensors[index].data_ptr() and start < address and first.data_ptr() < start + other.nbytes:
            return None
    return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def _copy(tensor: Any, written: Any) -> None:
    with torch.no_grad():
        tensor.detach().copy_(written, non_blocking=tensor.is_cuda)
