"""What collectives ask of their arrays and counts before anything is sent, in words that say what to pass instead."""

import array
import math
from typing import Any

import numpy as np

from hocket import _core
from hocket.runtime.vocabulary import DTYPES
from hocket.schedule import numpy_dtype

Described = tuple[int, int, int]
"""Of an array: its address, number of elements, and the number of its dtype."""

NOTHING: Described = (0, 0, 0)

RESIZABLE = frozenset((bytearray, array.array))
"""Types whose memory moves when they grow, unless a memoryview holds it."""


def check_unmasked(what: str, x: Any) -> None:
    """TypeError for a masked array, whose memory has a value also where the array has none."""
    if hasattr(x, "filled"):
        raise TypeError(
            f"{what}: expected an array without a mask, found a {type(x).__name__}; pass x.filled(...) with what shall "
            "stand where it is masked, or x.data"
        )


def check_like(collective: str, found: Described, count: int, dtype: int) -> None:
    """ValueError unless `out` has so many elements of this dtype."""
    if found[1] != count or found[2] != dtype:
        raise ValueError(
            f"{collective}: expected out with {count} elements of {DTYPES[dtype]}, "
            f"found {found[1]} of {DTYPES[found[2]]}"
        )


def needed(collective: str, out: Any, root: int) -> Any:
    """`out` where a rank can only tell by it what it expects."""
    if out is None:
        raise ValueError(f"{collective}: expected out= off the root, which is rank {root}: it says what this rank gets")
    return out


def shape_of(x: Any, count: int) -> tuple[int, ...]:
    """The shape of an array; what has none is a vector."""
    shape = getattr(x, "shape", None)
    return (count,) if shape is None else tuple(shape)


def rows_of(collective: str, x: Any, count: int) -> tuple[int, ...]:
    """The shape of an array that has rows."""
    shape = shape_of(x, count)
    if not shape:
        raise ValueError(f"{collective}: expected x of at least 1 dim, found one of 0 dims; pass x.reshape(1)")
    return shape


def check_rows(collective: str, name: str, expected: int, shape: tuple[int, ...]) -> None:
    """ValueError unless x has as many rows as its counts say."""
    if shape[0] != expected:
        raise ValueError(f"{collective}: expected x with {name} = {expected} rows, found shape {shape}")


def elements_of(rows: list[int], shape: tuple[int, ...]) -> list[int]:
    """Numbers of rows of such an array, in elements."""
    return [count * math.prod(shape[1:]) for count in rows]


def cannot_split(collective: str, size: int, shape: tuple[int, ...]) -> ValueError:
    """That x has no even blocks."""
    return ValueError(
        f"{collective}: expected x with a dim 0 that {size} ranks can split evenly, found shape {shape}; pad it, or "
        f"use {collective}_v"
    )


def new_like(x: Any, shape: tuple[int, ...], dtype: int) -> Any:
    """A new array of the caller's kind, for what comes out: tensors make their own, all else is NumPy's."""
    if hasattr(x, "new_empty"):
        made = x.new_empty(shape)
        _core.note_made(made, "new_empty", shape, None)
    else:
        kind = numpy_dtype(DTYPES[dtype])
        made = np.empty(shape, kind)
        _core.note_made(made, np.empty, shape, kind)
    return made


def in_place(collective: str, input: Described, output: Described, ahead: int, item_bytes: int) -> bool:
    """Whether input begins `ahead` elements after output, as it does in place. Any other overlap is a ValueError."""
    (start, count, _), (out_start, out_count, _) = input, output
    if not count or not out_count:
        return False
    if start == out_start + ahead * item_bytes:
        return True
    if start < out_start + out_count * item_bytes and out_start < start + count * item_bytes:
        raise ValueError(
            f"{collective}: x and out overlap, but not as an in-place call does (see its docstring); pass arrays that "
            "share no memory"
        )
    return False
