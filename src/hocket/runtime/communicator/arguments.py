"""Checks of arrays and counts before anything is sent; each error says what to pass instead."""

import array
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hocket import _core
from hocket.runtime.ranks.environment import discover
from hocket.runtime.streams.stream import current_stream
from hocket.runtime.vocabulary import DTYPES
from hocket.schedule import numpy_dtype

Described = tuple[int, int, int]
"""An array as the core sees it: address, number of elements, number of the dtype."""

NOTHING: Described = (0, 0, 0)

RESIZABLE = frozenset((bytearray, array.array))
"""Types whose memory moves when they grow, unless a memoryview holds it."""


def check_unmasked(what: str, x: Any) -> None:
    """Raises TypeError for a masked array: its memory also has values where the array has none."""
    if hasattr(x, "filled"):
        raise TypeError(
            f"{what}: expected an array without a mask, found a {type(x).__name__}; pass x.filled(...) with a value "
            "for the masked elements, or x.data"
        )


def check_like(collective: str, found: Described, count: int, dtype: int) -> None:
    """Raises ValueError unless `out` has `count` elements of this dtype."""
    if found[1] != count or found[2] != dtype:
        raise ValueError(
            f"{collective}: expected out with {count} elements of {DTYPES[dtype]}, "
            f"found {found[1]} of {DTYPES[found[2]]}"
        )


def check_blocks(collective: str, async_op: bool) -> None:
    """Raises ValueError unless the call blocks the host, which has to wait for a shape that the root tells."""
    if async_op or current_stream() is not None:
        how = "with async_op=True" if async_op else "in a stream"
        raise ValueError(f"{collective}: expected out= {how}, on all ranks: without it the call waits for a shape")


def refused_rank(error: ValueError, size: int) -> ValueError:
    """Returns the error for a rank that does not exist; if no launcher has started this process, it says how to.

    Other errors are returned unchanged.
    """
    if size > 1 or " from 0 to 0" not in str(error) or discover().source != "alone":
        return error
    program = Path(sys.argv[0]).name or "FILE.py"
    return ValueError(f"{error}; this is one rank alone: start more with `hocket run -n 4 -- {program}`")


def shape_of(x: Any, count: int) -> tuple[int, ...]:
    """Returns the shape of x; an object without a shape counts as a vector of `count` elements."""
    shape = getattr(x, "shape", None)
    return (count,) if shape is None else tuple(shape)


def rows_of(collective: str, x: Any, count: int) -> tuple[int, ...]:
    """Returns the shape of x. Raises ValueError if x has 0 dims, and so no rows."""
    shape = shape_of(x, count)
    if not shape:
        raise ValueError(f"{collective}: expected x of at least 1 dim, found one of 0 dims; pass x.reshape(1)")
    return shape


def check_rows(collective: str, name: str, expected: int, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless x has as many rows as its counts say."""
    if shape[0] != expected:
        raise ValueError(f"{collective}: expected x with {name} = {expected} rows, found shape {shape}")


def elements_of(rows: list[int], shape: tuple[int, ...]) -> list[int]:
    """Returns the numbers of rows as numbers of elements, for an array of this shape."""
    return [count * math.prod(shape[1:]) for count in rows]


def cannot_split(collective: str, size: int, shape: tuple[int, ...]) -> ValueError:
    """Returns the error for an x that cannot be split into equal blocks."""
    return ValueError(
        f"{collective}: expected x with a dim 0 that {size} ranks can split evenly, found shape {shape}; pad it, or "
        f"use {collective}_v"
    )


def new_like(x: Any, shape: tuple[int, ...], dtype: int) -> Any:
    """Returns a new array for a result: a tensor if x is a tensor, else a NumPy array."""
    if hasattr(x, "new_empty"):
        made = x.new_empty(shape)
        _core.note_made(made, "new_empty", shape, None)
    else:
        kind = numpy_dtype(DTYPES[dtype])
        made = np.empty(shape, kind)
        _core.note_made(made, np.empty, shape, kind)
    return made


def in_place(collective: str, input: Described, output: Described, ahead: int, item_bytes: int) -> bool:
    """Returns whether the call is in place: input begins `ahead` elements after output. Other overlap: ValueError."""
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
