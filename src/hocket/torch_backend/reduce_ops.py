"""Translates PyTorch's ReduceOps into Hocket's reductions."""

from typing import Any

import torch.distributed as dist
from torch.distributed import ReduceOp

from hocket.schedule import premul_sum

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
