"""What each collective and each reduction means, in plain NumPy: the definition.

It uses nothing of `hocket.schedule`, so that it finds mistakes there. Arrays are one-dimensional.
"""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = (*NARROW, "float32", "float64")
COMPLEX = ("complex64", "complex128")
ROUNDED = ("sum", "prod", "avg", "premul_sum")  # for inexact types, the result depends on the order of the operands
ORDERED = {"rank": "rank_order", "invariant": "balanced_tree"}  # order= -> the label that a certificate must hold
INTEGER_FACTOR, REAL_FACTOR, COMPLEX_FACTOR = 3, 1.25, 0.5 - 1.25j  # of premul_sum; 1.25 rounds in every type


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def accumulator_of(name: str) -> np.dtype[Any]:
    return np.dtype(np.float32) if name in NARROW else dtype_of(name)


def has_meaning(op: str, dtype: str) -> bool:
    if op in ("band", "bor", "bxor"):
        return dtype not in FLOATS + COMPLEX
    if op in ("min", "max"):
        return dtype not in COMPLEX
    if op == "avg":
        return dtype in FLOATS + COMPLEX
    return op != "premul_sum" or dtype != "bool"


def factor_of(dtype: str) -> complex | float | int:
    if dtype in COMPLEX:
        return COMPLEX_FACTOR
    return REAL_FACTOR if dtype in FLOATS else INTEGER_FACTOR


def user_function(left: Array, right: Array) -> Array:
    """A user's own reduction that neither commutes nor associates, for every type."""
    if left.dtype == bool:
        return left & ~right
    with np.errstate(all="ignore"):
        return (left + left - right).astype(left.dtype)


# --- one reduction -------------------------------------------------------------------------------------------------


def product(left: Array, right: Array) -> Array:
    if left.dtype.kind != "c":
        return left * right
    result = np.empty(np.broadcast_shapes(left.shape, right.shape), left.dtype)
    result.real = left.real * right.real - left.imag * right.imag
    result.imag = left.real * right.imag + left.imag * right.real
    return result


def smaller(left: Array, right: Array) -> Array:
    """NaN if either is; -0 is below +0."""
    if left.dtype.kind != "f":
        return np.where(left < right, left, right)
    result = np.where((left < right) | ((left == right) & np.signbit(left)), left, right)
    return np.where(np.isnan(left) | np.isnan(right), left.dtype.type(np.nan), result)


def larger(left: Array, right: Array) -> Array:
    if left.dtype.kind != "f":
        return np.where(left > right, left, right)
    result = np.where((left > right) | ((left == right) & ~np.signbit(left)), left, right)
    return np.where(np.isnan(left) | np.isnan(right), left.dtype.type(np.nan), result)


def _logical(combine: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda left, right: combine(left != 0, right != 0).astype(left.dtype)


COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,  # for bools, NumPy's sum is "or", and its product "and"
    "avg": np.add,
    "premul_sum": np.add,
    "prod": product,
    "min": smaller,
    "max": larger,
    "land": _logical(np.logical_and),
    "lor": _logical(np.logical_or),
    "lxor": _logical(np.logical_xor),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "custom": user_function,
}


def contribution(op: str, array: Array, accumulator: np.dtype[Any]) -> Array:
    """Returns what a rank gives to the fold: its array in the accumulator type, for premul_sum times the factor."""
    if op == "custom":
        return array  # it sees stored values
    given = array.astype(accumulator)
    if op == "premul_sum":
        return product(given, np.array(factor_of(array.dtype.name), accumulator))
    return (given != 0).astype(accumulator) if op in ("land", "lor", "lxor") else given


def stored(op: str, total: Array, dtype: np.dtype[Any], divisor: int) -> Array:
    """Ends a fold: divides for avg, and rounds once."""
    if op == "avg" and divisor > 1:
        parts = total.view(total.real.dtype)
        total = (parts / parts.dtype.type(divisor)).view(total.dtype)
    return total.astype(dtype)


def left_fold(
    op: str, arrays: Sequence[Array], *, divisor: int | None = None, raw: Sequence[bool] | None = None
) -> Array:
    """Returns ((a0 + a1) + a2) ... in the accumulator type, rounded once.

    A kernel may be given less than all contributions: then divisor is 1, and raw says which arrays are contributions.
    """
    dtype = arrays[0].dtype
    accumulator = accumulator_of(dtype.name)
    with np.errstate(all="ignore"):
        given = [
            contribution(op if raw is None or raw[i] or op == "custom" else "", array, accumulator)
            for i, array in enumerate(arrays)
        ]
        total = given[0]
        for one in given[1:]:
            total = COMBINE[op](total, one)
        return stored(op, total, dtype, len(arrays) if divisor is None else divisor)


def balanced_tree(op: str, arrays: Sequence[Array]) -> Array:
    """Folds in a binary tree over the ranks, split at the largest power of two below their number; rounds each node."""
    dtype, accumulator = arrays[0].dtype, accumulator_of(arrays[0].dtype.name)

    def node(first: int, last: int) -> Array:
        if last - first == 1:
            return contribution(op, arrays[first], accumulator)
        half = 1
        while 2 * half < last - first:
            half *= 2
        total = COMBINE[op](node(first, first + half), node(first + half, last))
        divisor = len(arrays) if last - first == len(arrays) else 1
        return stored(op, total, dtype, divisor).astype(total.dtype)

    with np.errstate(all="ignore"):
        return stored(op, node(0, len(arrays)), dtype, 1)


SHAPES = {"fast": left_fold, "rank": left_fold, "invariant": balanced_tree}


def is_exact(op: str, dtype: str, order: str) -> bool:
    """Returns whether there is one right answer to the bit, and not an interval around the exact one."""
    return order != "fast" or op not in ROUNDED or dtype not in FLOATS + COMPLEX


def interval(op: str, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Returns the result in a wider type, and how far a result may be from it for any order of p operands.

    An operand passes through at most p - 1 folds, each of which rounds in the accumulator and once when it stores;
    premul and avg round once more, and a complex product rounds like three real ones.
    """
    dtype = arrays[0].dtype.name
    wide = {"complex64": np.complex128, "float64": np.longdouble, "complex128": np.clongdouble}.get(dtype, np.float64)
    given = [contribution(op, array, np.dtype(wide)) for array in arrays]
    combine = np.multiply if op == "prod" else np.add
    exact, scale = given[0], np.abs(given[0])
    for one in given[1:]:
        exact, scale = combine(exact, one), combine(scale, np.abs(one))
    if op == "avg":
        exact, scale = exact / len(arrays), scale / len(arrays)
    limits = ml_dtypes.finfo(arrays[0].real.dtype)
    accumulator = ml_dtypes.finfo(accumulator_of(dtype).type(0).real.dtype)
    when_stored, within = len(arrays), (6 if dtype in COMPLEX else 2) * (len(arrays) + 1)
    growth = when_stored * np.log1p(float(limits.eps) / 2) + within * np.log1p(float(accumulator.eps) / 2)
    return exact, scale * np.expm1(growth) + when_stored * float(limits.smallest_subnormal)


def difference(found: Array, expected: Array) -> str | None:
    """Returns None if all bits are equal (any NaN equals any NaN), else the first difference."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"found {found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"
    if found.tobytes() == expected.tobytes():
        return None
    left, right = (one.view(one.real.dtype) if one.dtype.kind == "c" else one for one in (found, expected))
    bits = f"u{left.dtype.itemsize}"
    equal = left.view(bits) == right.view(bits)
    if left.dtype.kind not in "iub":
        equal |= np.isnan(left) & np.isnan(right)
    wrong = np.flatnonzero(~equal)
    return f"element {wrong[0]} is {left[wrong[0]]}, expected {right[wrong[0]]}" if wrong.size else None


def outside(found: Array, exact: Array, bound: Array) -> str | None:
    """Returns None if every element is as near the exact one as it must be, else the first one that is not."""
    if found.shape != exact.shape:
        return f"found {list(found.shape)} elements, expected {list(exact.shape)}"
    wrong = np.flatnonzero(~(np.abs(found.astype(exact.dtype) - exact) <= bound))
    if not wrong.size:
        return None
    return f"element {wrong[0]} is {found[wrong[0]]}, expected {exact[wrong[0]]} within {bound[wrong[0]]}"


# --- one collective ------------------------------------------------------------------------------------------------


def cut(array: Array, lengths: Sequence[int]) -> list[Array]:
    return np.split(array, np.cumsum(lengths)[:-1])


def moved(collective: str, inputs: Sequence[Array | None], lengths: Sequence[Sequence[int]], root: int) -> list[Any]:
    """Returns the output of every rank of a collective that reduces nothing, None for a rank without one.

    lengths[i][j]: how many elements go from rank i to rank j; gather and scatter use only the pairs that they need.
    """
    ranks = range(len(inputs))
    given: list[Any] = list(inputs)
    name = collective.removesuffix("_v")
    if name == "broadcast":
        return [given[root] for _ in ranks]
    if name == "all_gather":
        return [np.concatenate(given) for _ in ranks]
    if name == "gather":
        return [np.concatenate(given) if rank == root else None for rank in ranks]
    if name == "scatter":
        return cut(given[root], lengths[root])
    rows = [cut(given[i], lengths[i]) for i in ranks]
    return [np.concatenate([rows[i][j] for i in ranks]) for j in ranks]  # all_to_all


def spread(collective: str, total: Any, lengths: Sequence[int], root: int) -> list[Any]:
    """Returns the part of the reduced vector that every rank gets, None if it gets nothing."""
    if collective == "all_reduce":
        return [total for _ in lengths]
    if collective == "reduce":
        return [total if rank == root else None for rank in range(len(lengths))]
    return cut(total, lengths)  # reduce_scatter, reduce_scatter_v
