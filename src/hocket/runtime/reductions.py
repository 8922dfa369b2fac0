"""Reductions on their way into the core: a number where a name says all, else what the core has to know besides."""

from typing import Any

from hocket import _core
from hocket.runtime.failures import DTYPES, OPS
from hocket.schedule.reduction import Reduction, as_reduction, check_reduction

_NAMED = tuple(name for name in OPS if name not in ("premul_sum", "custom"))

PLAIN = {
    (name, dtype): OPS.index(name)
    for name in _NAMED
    for dtype in range(len(DTYPES))
    if _core.has_meaning(OPS.index(name), dtype)
}
"""The core's number of every (name, number of a dtype) that has a meaning and needs nothing else."""


def reduction_of(collective: str, op: Any, dtype: int) -> Reduction:
    """What `op` means for this dtype; ValueError or TypeError, naming the collective, where it means nothing."""
    try:
        reduction = as_reduction(op)
        check_reduction(reduction, DTYPES[dtype])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{collective}: op: {error}") from None
    return reduction


def parameters_of(reduction: Reduction, dtype: int) -> dict[str, Any]:
    """Arguments of the core's Extra: factor, Python function, and the identity that all ranks compare."""
    if reduction.function is not None:
        return {"detail": reduction.identity(), "function": reduction.function, "dtype": dtype}
    return {} if reduction.factor is None else {"detail": reduction.identity(), "factor": reduction.factor_parts()}


def labels_of(reduction: Reduction) -> frozenset[str]:
    """Labels of which the certificate of a schedule needs one, if any: a user's op is folded in the order of ranks."""
    if reduction.function is None:
        return frozenset()
    return frozenset(("rank_order", "balanced_tree") if reduction.commutative else ("rank_order",))


def extra_of(parameters: dict[str, Any], lengths: tuple[list[int], list[int]] | None) -> Any:
    """The core's Extra, or None where a call needs none."""
    if lengths is not None:
        parameters = {**parameters, "input_counts": lengths[0], "output_counts": lengths[1]}
    return _core.Extra(**parameters) if parameters else None
