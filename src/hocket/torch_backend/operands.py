"""What torch.distributed gives a process group beside one tensor: lists of them, and options of several types."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

_NO_TIME = timedelta(0)


def row_of(tensors: Any) -> Sequence[Any]:
    """A list of tensors, or the only one in a list of lists."""
    found: Sequence[Any] = tensors[0] if tensors and isinstance(tensors[0], list | tuple) else tensors
    return found


def check_alike(name: str, tensors: Sequence[Any]) -> None:
    """ValueError unless all have as many elements."""
    counts = {tensor.numel() for tensor in tensors}
    if len(counts) > 1:
        raise ValueError(f"{name}: expected tensors of one length on all ranks, found {sorted(counts)} elements")


def check_own(name: str, rank: int, tensors: Sequence[Any], tensor: Any) -> None:
    """ValueError unless the list has at this rank's place as many elements as the tensor that comes from or goes there.

    Whether those at other places fit, only the others know.
    """
    if tensors[rank].numel() != tensor.numel():
        raise ValueError(
            f"{name}: expected a list with {tensor.numel()} elements, as in this rank's own tensor, at place {rank}; "
            f"found {tensors[rank].numel()}"
        )


def root_of(opts: Any) -> int:
    """The root that options say, or that is given itself; 0 where nothing says it."""
    root: int = opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank
    return root


def is_asynchronous(opts: Any) -> bool:
    """Whether the caller goes on at once; code in C++ does, and says nothing of it."""
    found: bool = getattr(opts, "asyncOp", True)
    return found


def seconds_of(opts: Any, timeout: timedelta | None) -> float | None:
    """What a call says itself; -1 ms in the options means nothing."""
    if timeout is None:
        timeout = getattr(opts, "timeout", None)
        if timeout is None and isinstance(opts, timedelta):
            timeout = opts
    return timeout.total_seconds() if timeout is not None and timeout > _NO_TIME else None
