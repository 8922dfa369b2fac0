"""Removes switches by edge splitting, so that spanning trees have only ranks as nodes (Zhao et al. 2024, ForestColl).

A trunk into a switch is joined with a trunk out of it, as far as all ranks can still be reached with all shares of all
roots. What limits this is a least cut: a flow that falls short says by how much less must be joined. Any order gives
the optimum; here each node first gets a part of the switch to every other node, because that makes trees shallow.
Switches that are not needed are left out before, the farthest from any rank first.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hocket.errors import TopologyError
from hocket.network.bounds.max_flow import make_max_flow
from hocket.network.synthesis.trunks import Ends, Trunks, neighbours, pairs_through
from hocket.network.topology import Topology


def remove_switches(topology: Topology, trunks: Trunks, roots: Mapping[int, int]) -> None:
    """Joins trunks until only ranks are left, so that each rank still gets every share of every root.

    roots: the number of trees of each root, by node. Raises TopologyError if a switch cannot be removed: only one
    whose bandwidths in and out differ may be such.
    """
    switches = _needed_switches(topology, trunks, roots)
    while switches:
        around = {node: neighbours(trunks, node) for node in switches}
        node = min(switches, key=lambda one: (len(around[one]), one))
        switches.remove(node)
        if len(around[node]) == 2:
            one, other = around[node]
            for first, last in ((one, other), (other, one)):
                shares = min(trunks.shares((first, node)), trunks.shares((node, last)))
                if shares:
                    trunks.join(first, node, last, shares)
        elif len(around[node]) > 2:
            _Splitting(topology, trunks, roots, node).split()
        trunks.drop(node)
    reached = _Flow(topology, trunks, roots, ())
    if reached.find_short() is not None:
        raise TopologyError(
            f"{topology.name}: no spanning trees reach the optimum, because a switch has other bandwidths in than out; "
            "expected links with equal bandwidth in both directions at switches"
        )


def _needed_switches(topology: Topology, trunks: Trunks, roots: Mapping[int, int]) -> list[int]:
    """Removes each switch without which all ranks still get all shares; returns the others."""
    distance = dict.fromkeys(topology.ranks.tolist(), 0)
    for node in (nodes := list(distance)):  # grows
        for other in trunks.behind(node):
            if other not in distance:
                distance[other] = distance[node] + 1
                nodes.append(other)
    needed = []
    for node in {node for ends in trunks for node in ends} - set(distance):
        trunks.drop(node)  # no rank reaches it
    flow = _Flow(topology, trunks, roots, ())
    for node in reversed(nodes[topology.num_ranks :]):
        before = flow.capacity.copy()
        flow.capacity[[place for ends, place in flow.place.items() if node in ends]] = 0
        if flow.find_short() is None:
            trunks.drop(node)
        else:
            flow.capacity = before
            needed.append(node)
    return needed


class _Flow:
    """Flows from all roots to each rank, over the trunks and over others that may be made."""

    def __init__(self, topology: Topology, trunks: Trunks, roots: Mapping[int, int], more: "tuple[Ends, ...]") -> None:
        self.ends = list(dict.fromkeys((*trunks, *more)))
        self.place = {ends: number for number, ends in enumerate(self.ends)}
        self.capacity = np.array([*(trunks.shares(ends) for ends in self.ends), *roots.values()], np.int64)
        self.enough = sum(roots.values())
        self.above = topology.num_nodes
        source, target = np.array([*self.ends, *((self.above, root) for root in roots)], np.int64).T.copy()
        self._flow = make_max_flow(topology.num_nodes + 1, source, target)
        only = next(iter(roots)) if len(roots) == 1 else None
        self._targets = np.array([node for node in topology.ranks.tolist() if node != only], np.int64)

    def find_short(self) -> int | None:
        """Returns what a rank lacks of all shares; None if no rank lacks any. The rank is asked first next time."""
        place, flow = self._flow.find_short(self.capacity, self.above, self._targets, self.enough)
        if place < 0:
            return None
        self._targets[: place + 1] = np.roll(self._targets[: place + 1], 1)
        return self.enough - flow


class _Splitting:
    """One switch that is being removed."""

    def __init__(self, topology: Topology, trunks: Trunks, roots: Mapping[int, int], node: int) -> None:
        self.trunks, self.node = trunks, node
        self.pairs = list(pairs_through(trunks.before(node), trunks.behind(node)))
        self.flow = _Flow(topology, trunks, roots, tuple(pair for pair in self.pairs if pair[0] != pair[1]))

    def split(self) -> None:
        """Joins all that can be joined: if possible equal parts from each node to each other and the rest at once."""
        equal = self._equal_parts()
        if not (self._join_all(self._with_rest(equal)) or self._join_all(equal)):
            for first, last in self.pairs:
                self._join(first, last, equal.get((first, last), 0))
        for first, last in self.pairs:
            self._join(first, last, self.trunks.shares((first, self.node)))

    def _equal_parts(self) -> dict[Ends, int]:
        """Returns equal parts of the switch from each node to each other, but not to those that it reaches as well."""
        pairs = [(first, last) for first, last in self.pairs if first != last]
        parts = self._parts_of(pairs)
        return self._parts_of([pair for pair in pairs if self.trunks.shares(pair) <= parts[pair]])

    def _parts_of(self, pairs: list[Ends]) -> dict[Ends, int]:
        behind, before = Counter(first for first, _ in pairs), Counter(last for _, last in pairs)
        into = {first: self.trunks.shares((first, self.node)) // number for first, number in behind.items()}
        out = {last: self.trunks.shares((self.node, last)) // number for last, number in before.items()}
        return {(first, last): min(into[first], out[last]) for first, last in pairs}

    def _with_rest(self, parts: Mapping[Ends, int]) -> dict[Ends, int]:
        """Returns the parts and what they leave, which goes to the pairs in their order."""
        into = {first: self.trunks.shares((first, self.node)) for first, _ in parts}
        out = {last: self.trunks.shares((self.node, last)) for _, last in parts}
        made = dict(parts)
        for (first, last), shares in parts.items():
            into[first] -= shares
            out[last] -= shares
        for most in (1, sum(into.values())):  # at first evenly
            for first, last in parts:
                more = min(into[first], out[last], most)
                made[first, last] += more
                into[first] -= more
                out[last] -= more
        return made

    def _join_all(self, parts: Mapping[Ends, int]) -> bool:
        """Joins all of these parts if every rank still gets every share; returns whether it does."""
        for ends, shares in parts.items():
            self._change(*ends, shares)
        fits = self.flow.find_short() is None
        for (first, last), shares in parts.items():
            if not fits:
                self._change(first, last, -shares)
            elif shares:
                self.trunks.join(first, self.node, last, shares)
        return fits

    def _join(self, first: int, last: int, most: int) -> None:
        shares = min(most, self.trunks.shares((self.node, last)))
        while shares > 0:
            self._change(first, last, shares)
            lacking = self.flow.find_short()
            if lacking is None:
                self.trunks.join(first, self.node, last, shares)
                return
            self._change(first, last, -shares)
            shares -= lacking

    def _change(self, first: int, last: int, shares: int) -> None:
        capacity, place = self.flow.capacity, self.flow.place
        capacity[place[first, self.node]] -= shares
        capacity[place[self.node, last]] -= shares
        if first != last:
            capacity[place[first, last]] += shares
