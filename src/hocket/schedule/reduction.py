"""What a row group computes, to the bit: the one place that says so. The native kernels are tested against it.

A group folds its operands from left to right in the accumulator type and rounds once, when the result is stored.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

REDUCTIONS = ("sum", "prod", "min", "max", "avg")


def accumulator_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The type in which a group accumulates: float32 for floats of 16 and 8 bits, else the stored type itself."""
    stored = np.dtype(dtype)
    # Kind "V" is how NumPy sees the narrow floats of ml_dtypes (bfloat16, float8).
    return np.dtype(np.float32) if stored.kind in "fV" and stored.itemsize < 4 else stored


def check_reduction(reduction: str, dtype: npt.DTypeLike) -> None:
    """ValueError for a reduction that does not exist, TypeError for one that this dtype does not have."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"expected a reduction, one of {', '.join(REDUCTIONS)}; found {reduction!r}")
    if reduction == "avg" and np.dtype(dtype).kind in "biu":
        raise TypeError(f"avg needs a floating-point dtype, found {np.dtype(dtype)}; use sum and divide as you need")


def fold(arrays: Sequence[Array], reduction: str, dtype: npt.DTypeLike, completes: bool, num_ranks: int) -> Array:
    """The left fold of equally long arrays of the stored dtype, in a new array of that dtype.

    `completes` says that the result holds the contributions of all num_ranks ranks: there, and only there, avg divides,
    in the accumulator type and before the one rounding. Integers wrap. min and max propagate NaN and order -0 < +0.
    """
    check_reduction(reduction, dtype)
    accumulator = accumulator_dtype(dtype)
    combine = _COMBINE[reduction]
    total = arrays[0].astype(accumulator)
    with np.errstate(all="ignore"):  # Overflow, NaN and wrap-around are results here, not accidents.
        for array in arrays[1:]:
            total = combine(total, array.astype(accumulator, copy=False))
        if completes and reduction == "avg":
            total = total / accumulator.type(num_ranks)
        return total.astype(dtype, copy=False)


def _minimum(left: Array, right: Array) -> Array:
    return np.where(left == right, np.where(np.signbit(left), left, right), np.minimum(left, right))


def _maximum(left: Array, right: Array) -> Array:
    return np.where(left == right, np.where(np.signbit(left), right, left), np.maximum(left, right))


def _ordered(integer: Callable[[Array, Array], Array], real: Callable[[Array, Array], Array]) -> Any:
    return lambda left, right: (real if left.dtype.kind == "f" else integer)(left, right)


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": _ordered(np.minimum, _minimum),
    "max": _ordered(np.maximum, _maximum),
    "avg": np.add,
}
