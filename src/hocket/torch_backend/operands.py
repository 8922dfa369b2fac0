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
