"""Finds the largest flow through a network and its least cut, with compiled code or in Python alone."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from hocket.network import compiled

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class MaxFlow(Protocol):
    """A network of links with whole capacities, which may differ from run to run."""

    def run(self, capacity: Ints, source: int, target: int) -> int:
        """Returns the largest flow from source to target. capacity: int64, one per link, 0 or more."""

    def find_short(self, capacity: Ints, source: int, targets: Ints, enough: int) -> tuple[int, int]:
        """Returns the place in `targets` of the first that gets less than `enough`, and its flow; -1 for none."""

    def write_flows(self, flows: Ints) -> None:
        """Writes, after a run, what flows along each link."""

    def mark_before_cut(self, mask: Bools) -> None:
        """Writes, after a run, whether each node is on the source's side of a least cut."""


def make_max_flow(num_nodes: int, source: Ints, target: Ints) -> MaxFlow:
    """Returns a MaxFlow for links from each source to its target."""
    if compiled.simulator is None:
        return PlainMaxFlow(num_nodes, source, target)
    flow: MaxFlow = compiled.simulator.MaxFlow(num_nodes, source, target)
    return flow


class PlainMaxFlow:
    """MaxFlow without compiled code: Edmonds and Karp's shortest augmenting paths (1972)."""

    def __init__(self, num_nodes: int, source: Ints, target: Ints) -> None:
        # Arc 2i is link i, arc 2i + 1 is its reverse.
        self._heads = np.stack([target, source], axis=1).ravel().tolist()
        self._leaving: list[list[int]] = [[] for _ in range(num_nodes)]
        for arc in range(len(self._heads)):
            self._leaving[self._heads[arc ^ 1]].append(arc)
        self._before: list[int | None] = []
        self._left: list[int] = []  # of each arc

    def run(self, capacity: Ints, source: int, target: int) -> int:
        """See MaxFlow."""
        left = self._left = np.stack([capacity, np.zeros_like(capacity)], axis=1).ravel().tolist()
        flow = 0
        while path := self._path(left, source, target):
            pushed = min(left[arc] for arc in path)
            for arc in path:
                left[arc] -= pushed
                left[arc ^ 1] += pushed
            flow += pushed
        return flow

    def find_short(self, capacity: Ints, source: int, targets: Ints, enough: int) -> tuple[int, int]:
        """See MaxFlow."""
        for place, target in enumerate(targets.tolist()):
            flow = self.run(capacity, source, target)
            if flow < enough:
                return place, flow
        return -1, enough

    def write_flows(self, flows: Ints) -> None:
        """See MaxFlow."""
        flows[:] = self._left[1::2]

    def mark_before_cut(self, mask: Bools) -> None:
        """See MaxFlow."""
        mask[:] = [arc is not None for arc in self._before]

    def _path(self, left: list[int], source: int, target: int) -> list[int]:
        """Returns the arcs of a shortest path with capacity left; an empty list if there is none."""
        self._before = [None] * len(self._leaving)  # the arc by which each node was reached
        self._before[source] = -1
        front = [source]
        while front and self._before[target] is None:
            reached = []
            for node in front:
                for leaving in self._leaving[node]:
                    if left[leaving] and self._before[self._heads[leaving]] is None:
                        self._before[self._heads[leaving]] = leaving
                        reached.append(self._heads[leaving])
            front = reached
        path = []
        arc = self._before[target]
        while arc is not None and arc >= 0:
            path.append(arc)
            arc = self._before[self._heads[arc ^ 1]]
        return path
