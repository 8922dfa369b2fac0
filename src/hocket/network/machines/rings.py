"""The rings of a host: in which orders its GPUs pass data on, found by search in the links between them."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hocket.network.topology import Topology

Ints = npt.NDArray[np.int64]
Lanes = tuple[tuple[int, ...], ...]
"""The number of links from each GPU of a host to each other; with a switch, none."""

_MOST_TRIES = 50_000  # GPUs that the search tries; rings of eight GPUs need a few thousand


def lanes_of(topology: Topology, ranks: Ints) -> Lanes:
    """Returns the links that lead directly from one of these ranks to another."""
    nodes = topology.ranks[ranks]
    where = np.full(topology.num_nodes, -1)
    where[nodes] = np.arange(len(nodes))
    one, other = where[topology.link_source], where[topology.link_target]
    direct = (one >= 0) & (other >= 0)
    lanes = np.zeros((len(nodes), len(nodes)), np.int64)
    np.add.at(lanes, (one[direct], other[direct]), topology.lanes[direct])
    return tuple(map(tuple, lanes.tolist()))


@lru_cache(64)
def find_rings(lanes: Lanes) -> tuple[tuple[int, ...], ...]:
    """Returns as many rings through all GPUs as the search finds such that no link is in two of them.

    Each ring is an order of GPUs, from 0. Without such a ring, for example behind a switch, the result is the order of
    their numbers.
    """
    number = len(lanes)
    left = [list(row) for row in lanes]
    most = min(min(map(sum, left)), min(map(sum, zip(*left, strict=True)))) if number > 1 else 0
    best: list[tuple[int, ...]] = []
    tries = 0

    def pack(found: list[tuple[int, ...]]) -> bool:
        nonlocal best
        if len(found) > len(best):
            best = list(found)
        return len(best) == most or any(pack([*found, ring]) or restore(ring) for ring in rings())

    def restore(ring: tuple[int, ...]) -> bool:
        for one, other in _hops(ring):
            left[one][other] += 1
        return False

    def rings() -> Iterator[tuple[int, ...]]:
        """Yields rings of links that are left, and takes the links of each."""
        for ring in extended([0]):
            for one, other in _hops(ring):
                left[one][other] -= 1
            yield ring

    def extended(path: list[int]) -> Iterator[tuple[int, ...]]:
        nonlocal tries
        tries += 1
        if tries > _MOST_TRIES:
            return
        if len(path) == number:
            if left[path[-1]][0]:
                yield tuple(path)
            return
        ways = [other for other in range(number) if left[path[-1]][other] and other not in path]
        for other in sorted(ways, key=lambda other: (sum(left[other]), -left[path[-1]][other])):
            yield from extended([*path, other])

    if most:
        pack([])
    return tuple(best) or (tuple(range(number)),)


def _hops(ring: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(ring, (*ring[1:], ring[0]), strict=True)
