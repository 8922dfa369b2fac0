"""Translates PyTorch's ReduceOps into Hocket's reductions.

Hocket has no mean of integers. Here it is the sum, divided and truncated towards zero, as NCCL defines it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from hocket.schedule import premul_sum
from hocket.torch_backend.tensors import Finish

# Keys are hashes, which are the numbers of the operations: two ReduceOps are slow to compare.
_NAMES = {
    hash(ReduceOp(op)): name
    for op, name in (
        (ReduceOp.SUM, "sum"),
        (ReduceOp.AVG, "avg"),
        (ReduceOp.PRODUCT, "prod"),
        (ReduceOp.MIN, "min"),
        (ReduceOp.MAX, "max"),
        (ReduceOp.BAND, "band"),
        (ReduceOp.BOR, "bor"),
        (ReduceOp.BXOR, "bxor"),
    )
}
_INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64}
_PREMUL_SUM = hash(dist._make_nccl_premul_sum(1.0))


def reduction_of(given: Any) -> Any:
    """Returns the op= of a collective for a ReduceOp, or for options that have one; None means the sum.

    Raises TypeError if it is neither, ValueError for an operation that Hocket does not have.
    """
    op = getattr(given, "reduceOp", given)
    if type(op) is not ReduceOp:
        if op is None:
            return "sum"
        if not isinstance(op, ReduceOp.RedOpType):
            raise TypeError(f"expected a torch.distributed.ReduceOp, or options that have one; found {given!r}")
        op = ReduceOp(op)
    number = hash(op)
    if number == _PREMUL_SUM:
        return premul_sum(float(op.factor))
    if number not in _NAMES:
        raise ValueError(f"expected one of {', '.join(_NAMES.values())} or premul_sum as ReduceOp; found {op}")
    return _NAMES[number]


def is_integer(array: Any) -> bool:
    """Returns whether a mean of such elements is the sum, and then `divided`."""
    return array.dtype in _INTEGERS


def divided(written: Any, num_ranks: int, finish: Finish) -> Finish:
    """Returns a function that divides the sum in `written` by the number of ranks, and then calls `finish`."""

    def divide() -> None:
        if written.dtype is torch.uint64:  # PyTorch cannot divide it
            written.numpy()[...] //= num_ranks
        else:  # in int64, where each number of ranks fits
            written.copy_(torch.div(written.to(torch.int64), num_ranks, rounding_mode="trunc"))
        if finish is not None:
            finish()

    return divide
