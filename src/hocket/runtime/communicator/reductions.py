"""Reductions on their way into the core: a number where a name says all, else what the core has to know besides."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from hocket import _core
from hocket.runtime.vocabulary import DTYPES, OPS
from hocket.schedule import Reduction, as_reduction, check_reduction, check_result, name_of, numpy_dtype

_NUMBERS, _TRUTHS = ((3, 1, 2), (2, 3, 1)), ((1, 1, 0), (0, 1, 1))
"""What a user's op is tried on: numbers that every dtype has but bool."""

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
    if reduction.function is not None:
        try:
            _try_once(reduction.function, DTYPES[dtype])
        except (ImportError, TypeError, ValueError) as error:
            raise type(error)(f"{collective}: {error}") from error.__cause__
    return reduction


def _try_once(function: Callable[..., Any], dtype: str) -> None:
    """As _try, which serves all calls with this function; an object without a hash is tried at each."""
    try:
        hash(function)
    except TypeError:
        _try(function, dtype)
    else:
        _try_hashable(function, dtype)


def _try(function: Callable[..., Any], dtype: str) -> None:
    """ImportError, TypeError or ValueError for a function that cannot be a reduction of any arrays of this dtype.

    Where it fails for some values only, it fails while ranks wait, and their communicator with it.
    """
    name = f"op {name_of(function)}"
    if isinstance(function, np.ufunc) and (function.nin, function.nout) != (2, 1):
        raise TypeError(
            f"{name}: expected a function of two arrays that returns one, found a ufunc of {function.nin} that returns "
            f"{function.nout}"
        )
    try:
        tried = _TRUTHS if dtype == "bool" else _NUMBERS
        operands = [np.array(one).astype(numpy_dtype(dtype)) for one in tried]
    except ImportError as error:
        raise ImportError(f"{name}: {error}") from None
    for operand in operands:
        operand.flags.writeable = False  # as in a call, where they are what the ranks contribute
    whole = _tried(function, *operands)
    alone = np.concatenate([_tried(function, *(one[i : i + 1] for one in operands)) for i in range(len(whole))])
    if not ((whole == alone) | (np.isnan(whole) & np.isnan(alone))).all():
        raise ValueError(
            f"{name}: expected a function that works element by element; found that of {_shown(operands[0])} and "
            f"{_shown(operands[1])} it makes {_shown(whole)}, but {_shown(alone)} of one element after the other; pass "
            "one such as numpy.add"
        )


def _tried(function: Callable[..., Any], left: Any, right: Any) -> Any:
    """What it returns, an array like its arguments."""
    try:
        result = function(left, right)
    except Exception as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"op {name_of(function)}: it raises {type(error).__name__} for read-only arrays of {left.dtype}, "
            f"{_shown(left)} and {_shown(right)}: {error}; pass a function of two NumPy arrays of any length that "
            "returns a new one"
        ) from error
    check_result(function, result, left)
    return result


def _shown(array: Any) -> str:
    return str(array.tolist())


_try_hashable = lru_cache(maxsize=32)(_try)


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
