"""Tensors as arrays of the core. Those that lie apart in memory go through a contiguous copy, so strides never matter.

A result is written behind autograd's back, as on every backend, but counted in the tensor's version: what was saved for
a backward pass and then overwritten is found there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hocket.runtime import current_stream, note_written
from hocket.torch_backend.cuda import staged

Finish = Callable[[], object] | None
"""What brings a result from a copy to where it belongs, once it is complete."""


def source(name: str, tensor: Any) -> Any:
    """An array with the tensor's values, of its memory where that is contiguous."""
    return _array(_contiguous(_checked(name, tensor)))


def target(name: str, tensor: Any) -> tuple[Any, Finish]:
    """An array for a result of this tensor: of its values, too, as an operation in place reads them."""
    tensor = _check_apart(name, _checked(name, tensor))
    written = _contiguous(tensor)
    torch._C._increment_version([tensor])
    note_written(tensor)
    return _array(written), None if written is tensor else lambda: _copy(tensor, written)


def source_of(name: str, tensors: Sequence[Any], result: Any = None, place: int = 0) -> Any:
    """An array with the values of tensors of one dtype, one behind the other.

    result: the tensor that is written meanwhile, which may be tensors[place].
    """
    tensors = [_checked(name, tensor) for tensor in tensors]
    _check_dtypes(name, tensors)
    joined = _joined(tensors, result, place)
    if tensors[0].is_cuda:
        return staged(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))
    if joined is None:
        parts = [tensor.detach() for tensor in tensors]
        joined = torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype)
        on_current_stream(lambda: torch.cat([part.reshape(-1) for part in parts], out=joined))
    return _array(joined)


def target_of(name: str, tensors: Sequence[Any], input: Any = None, place: int = 0) -> tuple[Any, Finish]:
    """An array for a result whose parts are these tensors, of one dtype, one behind the other.

    input: the tensor that is read meanwhile, which may be tensors[place].
    """
    tensors = [_check_apart(name, _checked(name, tensor)) for tensor in tensors]
    _check_dtypes(name, tensors)
    torch._C._increment_version(tensors)
    joined = _joined(tensors, input, place)
    if joined is not None:
        return _array(joined), None
    counts = [tensor.numel() for tensor in tensors]
    written = torch.empty(sum(counts), dtype=tensors[0].dtype, pin_memory=tensors[0].is_cuda)

    def finish() -> None:
        for tensor, part in zip(tensors, written.split(counts), strict=True):
            _copy(tensor, part.view(tensor.shape))

    return _array(written), finish


def on_current_stream(finish: Finish) -> None:
    """Does it after all that is in hocket's current stream; at once where that is the host."""
    stream = current_stream()
    if finish is None:
        return
    if stream is None:
        finish()
    else:
        stream.submit(finish)


def single(name: str, tensors: Any) -> Any:
    """The tensor of a list of one, or that is given itself; ValueError."""
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
    """What a functional collective gives has no memory of its own: it is a tensor that waits for another one."""
    if type(tensor) is torch.Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    return tensor.trigger_wait()


def _check_apart(name: str, tensor: Any) -> Any:
    """ValueError where elements of a result share memory."""
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
    """What the communicator recognises fastest: a torch.Tensor itself, without a gradient."""
    return tensor if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor.detach()


def _joined(tensors: Sequence[Any], other: Any, place: int) -> Any:
    """One tensor of all of them, where each begins where the last one ends; else None.

    None, too, where `other` shares memory with them, and is not the one at its place: no call in place does that.
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
        if start != tensors[place].data_ptr() and start < address and first.data_ptr() < start + other.nbytes:
            return None
    return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


def _copy(tensor: Any, written: Any) -> None:
    with torch.no_grad():
        tensor.detach().copy_(written, non_blocking=tensor.is_cuda)
