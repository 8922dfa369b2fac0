"""Arguments that torch.distributed passes to a process group: lists of tensors, and options of several types."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

_NO_TIME = timedelta(0)


def row_of(tensors: Any) -> Sequence[Any]:
    """Returns a list of tensors, or the only list in a list of lists."""
    found: Sequence[Any] = tensors[0] if tensors and isinstance(tensors[0], list | tuple) else tensors
    return found


def check_alike(name: str, tensors: Sequence[Any]) -> None:
    """Raises ValueError unless all tensors have the same number of elements."""
    counts = {tensor.numel() for tensor in tensors}
    if len(counts) > 1:
        raise ValueError(f"{name}: expected tensors of one length on all ranks, found {sorted(counts)} elements")


def check_own(name: str, rank: int, tensors: Sequence[Any], tensor: Any) -> None:
    """Raises ValueError unless the list's tensor at this rank's index has as many elements as `tensor`.

    Only the other ranks know whether the tensors at their indices fit.
    """
    if tensors[rank].numel() != tensor.numel():
        raise ValueError(
            f"{name}: expected a list with {tensor.numel()} elements, as in this rank's own tensor, at index {rank}; "
            f"found {tensors[rank].numel()}"
        )


def check_even(name: str, tensor: Any, size: int) -> None:
    """Raises ValueError unless `size` ranks can split the rows of the tensor evenly."""
    if tensor.dim() == 0 or tensor.size(0) % size:
        raise ValueError(
            f"all_to_all: expected an {name} tensor with a dim 0 that {size} ranks can split evenly, found shape "
            f"{tuple(tensor.shape)}; give split sizes on all ranks"
        )


def rows_of(name: str, tensor: Any, splits: Sequence[int], size: int) -> list[int]:
    """Returns the rows for each rank as numbers of elements. Raises ValueError for bad splits."""
    if tensor.dim() == 0:
        raise ValueError(f"all_to_all: expected an {name} tensor of at least 1 dim, found one of 0 dims")
    if not splits:
        check_even(name, tensor, size)
        splits = [tensor.size(0) // size] * size
    if len(splits) != size or min(splits) < 0 or sum(splits) != tensor.size(0):
        raise ValueError(
            f"all_to_all: expected {name}_split_sizes as {size} numbers of rows, at least 0, with the sum "
            f"{tensor.size(0)}, the rows of the {name} tensor; found {list(splits)}"
        )
    row = tensor.numel() // tensor.size(0) if tensor.size(0) else 0
    return [count * row for count in splits]


def root_of(opts: Any) -> int:
    """Returns the root in the options, or the root itself if it was passed instead of options; 0 without either."""
    root: int = opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank
    return root


def is_asynchronous(opts: Any) -> bool:
    """Returns whether the caller goes on at once. Callers in C++ do, and pass no flag."""
    found: bool = getattr(opts, "asyncOp", True)
    return found


def seconds_of(opts: Any, timeout: timedelta | None) -> float | None:
    """Returns the timeout of the call in seconds, None if it has none; -1 ms in the options means none."""
    if timeout is None:
        timeout = getattr(opts, "timeout", None)
        if timeout is None and isinstance(opts, timedelta):
            timeout = opts
    return timeout.total_seconds() if timeout is not None and timeout > _NO_TIME else None
