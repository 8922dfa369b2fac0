"""What an algorithm is told about the ranks: their number, the root and, if it asks for them, groups or a grid."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

Parameter = Callable[..., Any]
"""A function of the rank count, and of root, groups and dims if it has parameters of these names."""

Constraint = tuple[str, Callable[[int], bool]] | tuple[str, Callable[[int], bool], str]
"""("a power of two", predicate), and if you like the name of an algorithm that takes any number of ranks."""


GroupsOfRanks = Sequence[int] | Sequence[Sequence[int]]
"""Sizes of groups of consecutive ranks, or the ranks of each group."""


@dataclass(frozen=True)
class Layout:
    """The arguments of one schedule. groups and dims are None where the algorithm does not take them.

    groups: sizes of groups of consecutive ranks, that add up to num_ranks. dims: lengths of a grid, whose product is
    num_ranks; ranks run along the last one fastest. order: where a group's ranks are not consecutive, the ranks group
    by group: the program is written for consecutive ones, and its rank i is rank order[i]; root is such an i.
    """

    num_ranks: int
    root: int = 0
    groups: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """The groups and the grid, as the end of an error: "; in groups of 3, 2"; "" without them."""
        groups = f"; in groups of {', '.join(map(str, self.groups))}" if self.groups else ""
        groups += f" of the ranks {', '.join(map(str, self.order))}" if self.order else ""
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


def ranks_in_order(expected: str, groups: Any, num_ranks: int) -> tuple[Any, tuple[int, ...] | None]:
    """The sizes of groups, and the ranks group by group if these are lists of ranks that are not consecutive.

    ValueError, which begins with `expected`, unless lists have every rank once. Sizes are returned as they are.
    """
    try:
        lists = [tuple(map(index, group)) for group in groups]
    except TypeError:
        lists = []
    if not lists:
        return groups, None
    order = tuple(rank for group in lists for rank in group)
    if sorted(order) != list(range(num_ranks)):
        raise ValueError(f"{expected}, lists of ranks with each of the {num_ranks} ranks once; found {groups!r}")
    return tuple(map(len, lists)), None if order == tuple(range(num_ranks)) else order


def groups_by_host(hosts: Sequence[int]) -> GroupsOfRanks:
    """The groups of ranks that share a host, by the host of each rank; hosts come in the order of their first ranks."""
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    lists = tuple(map(tuple, ranks.values()))
    return tuple(map(len, lists)) if sum(lists, ()) == tuple(range(len(hosts))) else lists
