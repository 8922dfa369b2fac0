"""The kernels alone, in one process: every type with every reduction and size, as folds of one to eight operands."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from hocket import _core
from hocket.runtime import DTYPES, OPS
from hocket.schedule import reduction
from tests.matrix.collectives import operation
from tests.matrix.definition import Array, difference, dtype_of, has_meaning, left_fold, user_function
from tests.matrix.values import values

SIZES = (0, 1, 7, 1000, 5000)
NUM_SOURCES = (1, 2, 3, 8)


class Kernel(NamedTuple):
    """One fold. raw: which sources are contributions of ranks: all, or every second one; avg divides if all are."""

    op: str
    dtype: str
    size: int
    num_sources: int
    all_raw: bool

    @property
    def refused(self) -> bool:
        return not has_meaning(self.op, self.dtype)


def kernels() -> Iterable[Kernel]:
    return (Kernel(*one) for one in itertools.product(OPS, DTYPES, SIZES, NUM_SOURCES, (True, False)))


def check(kernel: Kernel) -> str:
    """Returns the verdict on one fold: "right", "refused", or what is wrong."""
    op, dtype, size, num_sources, all_raw = kernel
    sources = [values(dtype, op, size, [number, size], wild=True) for number in range(num_sources)]
    raw = [all_raw or number % 2 == 0 for number in range(num_sources)]
    meant = operation(op, dtype)
    divisor = num_sources if all_raw else 1
    try:
        found = native(kernel, meant, sources, divisor, raw)
    except TypeError as error:
        return "refused" if kernel.refused else f"refused, although it has a meaning: {error}"
    if kernel.refused:
        return "accepted, although it has no meaning"
    expected = left_fold(op, sources, divisor=divisor, raw=raw)
    if wrong := difference(found, expected):
        return f"not the definition: {wrong}"
    wrong = difference(found, reduction.fold(sources, meant, dtype_of(dtype), all_raw, num_sources, raw))
    return f"not the reference: {wrong}" if wrong else "right"


def native(kernel: Kernel, meant: Any, sources: list[Array], divisor: int, raw: list[bool]) -> Array:
    """Returns the compiled kernel's result for the sources, in memory that begins at an odd element."""
    memory = np.zeros(kernel.size + 1, dtype_of(kernel.dtype))[1:]
    function = user_function if kernel.op == "custom" else None
    factor = meant.factor_parts() if kernel.op == "premul_sum" else (1.0, 0.0, 1)
    divisor = divisor if kernel.op == "avg" else 1
    _core.fold(memory, sources, OPS.index(kernel.op), raw, divisor, factor, function)
    return memory
