"""PyTorch's ReduceOps in Hocket's words."""

from typing import Any

import torch.distributed as dist
from torch.distributed import ReduceOp

from hocket.schedule import premul_sum

# By hash, which is the operation's number: comparing two of them takes longer than all else in a call.
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
    """What op= of a collective is, for a ReduceOp, or options that have one; the sum where it is None.

    TypeError, ValueError for what is none of ours.
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
