"""The working copy of a network that synthesis changes: trunks between nodes, each made of ways along links.

At first a trunk is the links between two nodes. A switch is removed by joining a trunk into it with one out of it; the
new trunk remembers the links of both. So what is sent along a trunk between two ranks has a path in the network.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hocket.network.topology import Ints, Topology

Ends = tuple[int, int]
"""The nodes where a trunk begins and ends."""


@dataclass(frozen=True)
class Way:
    """links: numbers in the topology, in the order of travel. shares: how much may be sent along them."""

    links: tuple[int, ...]
    shares: int


class Trunks:
    """All trunks of a network, with their ways. shares: int64[num_links], what each link may carry."""

    def __init__(self, topology: Topology, shares: Ints) -> None:
        self._topology = topology
        self._ways: dict[Ends, list[Way]] = {}
        ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), shares.tolist(), strict=True)
        for link, (source, target, number) in enumerate(ends):
            if number > 0:
                self._ways.setdefault((source, target), []).append(Way((link,), number))

    def __iter__(self) -> Iterator[Ends]:
        return iter(list(self._ways))

    def shares(self, ends: Ends) -> int:
        """Returns what may be sent from the one node directly to the other."""
        return sum(way.shares for way in self._ways.get(ends, ()))

    def ways(self, ends: Ends) -> tuple[Way, ...]:
        """Returns the ways of a trunk."""
        return tuple(self._ways[ends])

    def before(self, node: int) -> list[int]:
        """Returns the nodes with a trunk to this one."""
        return [source for source, target in self._ways if target == node]

    def behind(self, node: int) -> list[int]:
        """Returns the nodes with a trunk from this one."""
        return [target for source, target in self._ways if source == node]

    def join(self, first: int, node: int, last: int, shares: int) -> None:
        """Joins so many shares of first->node and node->last into first->last; nothing comes of it if these are one."""
        ways = self._joined(self._take((first, node), shares), self._take((node, last), shares))
        if first != last:
            self._ways.setdefault((first, last), []).extend(ways)

    def take_path(self, nodes: Sequence[int], shares: int) -> list[Way]:
        """Removes so many shares from the trunks along a path, and returns the ways along all of it."""
        hops = [self._take(ends, shares) for ends in pairwise(nodes)]
        return functools.reduce(self._joined, hops)

    def drop(self, node: int) -> None:
        """Removes a node with all its trunks."""
        for ends in [ends for ends in self._ways if node in ends]:
            del self._ways[ends]

    def _take(self, ends: Ends, shares: int) -> list[Way]:
        """Removes so many shares from a trunk, and returns their ways."""
        taken, left = [], []
        for way in self._ways[ends]:
            number = min(way.shares, shares)
            shares -= number
            if number:
                taken.append(Way(way.links, number))
            if way.shares > number:
                left.append(Way(way.links, way.shares - number))
        if left:
            self._ways[ends] = left
        else:
            del self._ways[ends]
        return taken

    def _joined(self, into: list[Way], out: list[Way]) -> list[Way]:
        """Returns the ways that go on along others with as many shares in all."""
        into, out, made = into[::-1], out[::-1], []
        while into:
            one, other = into.pop(), out.pop()
            number = min(one.shares, other.shares)
            made.append(Way(self._without_loops(one.links + other.links), number))
            if one.shares > number:
                into.append(Way(one.links, one.shares - number))
            if other.shares > number:
                out.append(Way(other.links, other.shares - number))
        return made

    def _without_loops(self, links: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the links without those that lead back to a node of the path: they would carry bytes for nothing."""
        kept: list[int] = []
        for link in links:
            kept.append(link)
            target = self._topology.link_target[link]
            loop = [place for place, one in enumerate(kept) if self._topology.link_source[one] == target]
            if loop:
                del kept[loop[0] :]
        return tuple(kept)


def neighbours(trunks: Trunks, node: int) -> set[int]:
    """Returns the nodes with a trunk from or to this one."""
    return {*trunks.before(node), *trunks.behind(node)}


def pairs_through(before: Iterable[int], behind: list[int]) -> Iterator[Ends]:
    """Yields every pair of a node before a switch and one behind it, for each node the next ones first."""
    for node in before:
        later = sorted(behind, key=lambda other: (other <= node, other))
        yield from ((node, other) for other in later)
