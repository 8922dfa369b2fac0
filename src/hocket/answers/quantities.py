"""Reads rank counts and sizes, as numbers or as text such as "1-16" or "64M"."""

import math
import re
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from hocket.answers.limits import MOST_BYTES, MOST_COUNT

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_COUNTS = 1 << 16  # rank counts in one range


def read_num_ranks(ranks: Any) -> int:
    """Returns a number of ranks as an int. Raises TypeError for anything that is no whole number."""
    try:
        return index(ranks)
    except TypeError:
        raise TypeError(f"ranks: expected a number of ranks, such as 4; found {ranks!r}") from None


def read_rank_counts(asked: int | str | Iterable[int]) -> list[int]:
    """Returns rank counts, sorted: of 4, of "4", "1-16" or "2,4,8-16", or of numbers. Raises ValueError for others."""
    if not isinstance(asked, str):
        counts = sorted({*map(read_num_ranks, asked if isinstance(asked, Iterable) else [asked])})
        for count in counts:
            if not 1 <= count <= MOST_COUNT:
                raise ValueError(f"expected rank counts from 1 to {MOST_COUNT}; found {count}")
        return counts
    found: set[int] = set()
    for part in asked.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise ValueError(f"{part!r} is not a rank count; expected for example 4, 1-16 or 2,4,8-16")
        if int(last) > MOST_COUNT or int(last) - int(first) >= _MOST_COUNTS:
            raise ValueError(
                f"{part!r} is too large; expected at most {_MOST_COUNTS} rank counts, each at most {MOST_COUNT}"
            )
        found.update(range(int(first), int(last) + 1))
    return sorted(found)


def read_layout(
    groups: Iterable[int] | None, dims: Iterable[int] | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Returns groups and dims as tuples. Raises ValueError for what is no sequence of whole numbers."""
    found: list[tuple[int, ...] | None] = []
    for name, given, example in (("groups", groups, (3, 2)), ("dims", dims, (2, 3))):
        try:
            found.append(None if given is None else tuple(map(index, given)))
        except TypeError:
            raise ValueError(f"{name}: expected whole numbers, such as {example}; found {given!r}") from None
    return found[0], found[1]


def ranks_of_layout(groups: Sequence[int] | None, dims: Sequence[int] | None) -> int | None:
    """Returns the number of ranks that groups or a grid describe; None without them."""
    if groups is not None:
        return sum(groups)
    return None if dims is None else math.prod(dims)


def read_hosts(hosts: int | Sequence[int], num_ranks: int | None) -> tuple[int, ...]:
    """Returns the host of each rank: consecutive ranks on a number of hosts, as evenly as can be, or of given sizes.

    Raises ValueError unless they are as many as the ranks.
    """
    try:
        sizes = (index(hosts),) if not isinstance(hosts, Iterable) else tuple(map(index, hosts))
    except TypeError:
        sizes = ()
    if len(sizes) == 1:
        if num_ranks is None:
            raise ValueError(f"hosts: expected ranks (--ranks), which {sizes[0]} hosts have together; found none")
        if 1 <= sizes[0] <= num_ranks:
            sizes = tuple(num_ranks // sizes[0] + (host < num_ranks % sizes[0]) for host in range(sizes[0]))
        else:
            sizes = ()
    total = num_ranks or sum(sizes)
    if not sizes or min(sizes) < 1 or sum(sizes) != total:
        raise ValueError(
            f"hosts: expected a number of hosts, at most one for each rank, or numbers of ranks whose sum is {total}; "
            f"found {hosts!r}"
        )
    return tuple(host for host, size in enumerate(sizes) for _ in range(size))


def parse_size(asked: int | str) -> int:
    """Returns the bytes of 65536, "8", "64K", "1.5M" or "1G". Raises ValueError for anything else."""
    if isinstance(asked, int):
        asked = str(asked)
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMG]?)(?:i?B)?", asked.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"expected a size in bytes, such as 8, 64K, 1M or 2G; found {asked!r}")
    size = float(found[1]) * _UNITS[found[2].upper()]
    if size > MOST_BYTES:
        raise ValueError(f"expected a size of at most {MOST_BYTES >> 30}G, found {asked!r}")
    return int(size)
