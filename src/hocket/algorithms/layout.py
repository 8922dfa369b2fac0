"""What an algorithm is told about the ranks: their number, the root and, if it asks for them, groups or a grid."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

Parameter = Callable[..., Any]
"""A function of the rank count, and of root, groups and dims if it has parameters of these names."""

Constraint = tuple[str, Callable[[int], bool]] | tuple[str, Callable[[int], bool], str]
"""("a power of two", predicate), and if you like the name of an algorithm that takes any number of ranks."""


@dataclass(frozen=True)
class Layout:
    """The arguments of one schedule. groups and dims are None where the algorithm does not take them.

    groups: sizes of groups of consecutive ranks, that add up to num_ranks. dims: lengths of a grid, whose product is
    num_ranks; ranks run along the last one fastest.
    """

    num_ranks: int
    root: int = 0
    groups: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """The groups and the grid, as the end of an error: "; in groups of 3, 2"; "" without them."""
        groups = f"; in groups of {', '.join(map(str, self.groups))}" if self.groups else ""
        return groups + (f"; on a grid of {'x'.join(map(str, self.dims))}" if self.dims else "")

    def call(self, parameter: Parameter) -> Any:
        """A parameter's value for this layout."""
        try:
            wanted = set(inspect.signature(parameter).parameters)
        except ValueError:  # Some functions written in C do not say what they take.
            wanted = set()
        named = {name: getattr(self, name) for name in ("root", "groups", "dims") if name in wanted}
        return parameter(self.num_ranks, **named)


def partition(expected: str, name: str, value: Any, num_ranks: int) -> tuple[int, ...]:
    """The value given for "groups" or "dims" as whole numbers; ValueError unless their sum, or product, is num_ranks.

    `expected` is the beginning of the message.
    """
    try:
        sizes = tuple(index(size) for size in value)
    except TypeError:
        sizes = ()
    total = sum(sizes) if name == "groups" else math.prod(sizes)
    if not sizes or min(sizes) < 1 or total != num_ranks:
        what = "sum" if name == "groups" else "product"
        raise ValueError(f"{expected}, whole numbers from 1 whose {what} is {num_ranks}; found {value!r}")
    return sizes
