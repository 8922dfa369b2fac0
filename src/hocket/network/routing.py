"""Which way traffic takes: shortest paths, dimension order, and what a user says.

Those of fat trees and dragonflies stand beside these networks. A routing gives the nodes of each way; a Topology finds
the links between them. Where several ways are equally good, a hash of the flow's key takes one, as switches do (ECMP).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hocket.errors import TopologyError
from hocket.network.reach import ranges
from hocket.network.shortest import Router, make_router
from hocket.network.topology import Ints, Routing, Topology

NOWHERE = -1
"""What follows the last node of a way that is shorter than the longest."""

_HOP = 3
_HOPS = {"pcie": 2 * _HOP, "nvlink": 1, "nvswitch": 1, "c2c": 1, "ub": 1}
"""What a hop over these links counts as; over any other, _HOP. So what joins accelerators directly is preferred where
PCIe, or the fabric that joins hosts, leads to the peer too, as NCCL, CUDA and SimAI do."""


@dataclass(frozen=True)
class ShortestPath:
    """The fewest hops; of several such ways, one by the flow's key at each node.

    A hop over PCIe counts as two, one over what joins accelerators directly as a third. Only nodes that forward are
    passed.
    """

    _routers: "WeakKeyDictionary[Topology, Router]" = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing."""
        nodes = self.find(topology, source, target, keys)
        lost = np.flatnonzero(nodes[:, 0] == NOWHERE)
        if len(lost):
            ends = (topology.node_names[node] for node in (source[lost[0]], target[lost[0]]))
            raise TopologyError(
                f"{topology.name}: no route from {' to '.join(ends)}, as only nodes that forward may be passed; "
                "expected a schedule that sends along links, or more links"
            )
        return nodes

    def find(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """The same; where there is no route, the row has nothing but NOWHERE."""
        if topology not in self._routers:
            hops = np.full(topology.num_links, _HOP)
            for link_class, count in _HOPS.items():
                hops[topology.link_class == link_class] = count
            self._routers[topology] = make_router(topology.link_source, topology.link_target, hops, topology.forwards)
        order = np.argsort(target, kind="stable")
        visited, ends = self._routers[topology].route(source[order], target[order], keys[order])
        lengths = np.diff(ends, prepend=0)
        nodes = np.full((len(source), int(lengths.max(initial=1))), NOWHERE, np.int64)
        nodes[np.repeat(order, lengths), ranges(np.zeros_like(ends), lengths)[0]] = visited
        return nodes


@dataclass(frozen=True)
class DimensionOrder:
    """On a grid whose node numbers are row-major: along the last axis first, the shorter way round where it is a ring.

    Deadlock-free on a mesh (Dally, Seitz 1987). ties: half way round a ring, "alternate" lets sources with an even
    coordinate go up and the others down, which loads both ways equally; "up" sends all up.
    """

    shape: tuple[int, ...]
    rings: tuple[bool, ...]
    ties: str = "alternate"

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing."""
        at = np.stack(np.unravel_index(source, self.shape), axis=1).astype(np.int64)
        goal = np.stack(np.unravel_index(target, self.shape), axis=1).astype(np.int64)
        sizes = np.array(self.shape)
        moves = self._moves(at, goal, sizes)
        hops = np.abs(moves)
        columns = [source]
        longest = int(hops.sum(axis=1).max(initial=0))
        strides = np.append(np.cumprod(sizes[::-1])[::-1][1:], 1)
        before = np.cumsum(hops[:, ::-1], axis=1)[:, ::-1]  # hops until the end of this axis, the last axis first
        flows = np.arange(len(source))
        for hop in range(longest):
            axis = np.maximum((before > hop).sum(axis=1) - 1, 0)
            going = hop < before[:, 0]
            at[flows, axis] = np.where(
                going, (at[flows, axis] + np.sign(moves[flows, axis])) % sizes[axis], at[flows, axis]
            )
            columns.append(np.where(going, at @ strides, NOWHERE))
        return np.stack(columns, axis=1)

    def _moves(self, at: Ints, goal: Ints, sizes: Ints) -> Ints:
        ahead = goal - at
        up = ahead % sizes
        tie = 2 * up == sizes
        prefers_up = (2 * up < sizes) | (tie & ((at % 2 == 0) | (self.ties == "up")))
        return np.where(np.array(self.rings), np.where(prefers_up, up, up - sizes), ahead)


@dataclass(frozen=True, eq=False)
class Supplied:
    """Ways that a user gives by hand, and another routing for all the rest.

    ways: by (source, target), names of nodes, all names of the nodes from the source to the target.
    """

    ways: Mapping[tuple[str, str], Sequence[str]]
    otherwise: Routing

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing. TopologyError for a node that there is not, or a way that has other ends."""
        numbers = {ends: self._numbers(topology, ends) for ends in self.ways}
        by_pair = {(way[0], way[-1]): way for way in numbers.values()}
        given = [by_pair.get(pair) for pair in zip(source.tolist(), target.tolist(), strict=True)]
        left = np.array([way is None for way in given], bool)
        rest = self.otherwise.route(topology, source[left], target[left], keys[left])
        width = max(rest.shape[1], *(len(way) for way in by_pair.values()), 1)
        nodes = np.full((len(source), width), NOWHERE, np.int64)
        nodes[left, : rest.shape[1]] = rest
        for flow in np.flatnonzero(~left):
            way = given[flow]
            assert way is not None
            nodes[flow, : len(way)] = way
        return nodes

    def _numbers(self, topology: Topology, ends: tuple[str, str]) -> list[int]:
        names = list(self.ways[ends])
        for name in (*ends, *names):
            if name not in topology.node_numbers:
                raise TopologyError(f"{topology.name}: the way {names} has a node {name!r} that there is not")
        if not names or (names[0], names[-1]) != ends:
            raise TopologyError(
                f"{topology.name}: expected a way from {ends[0]} to {ends[1]}, from end to end; found {names}"
            )
        return [topology.node_numbers[name] for name in names]


def through(routing: Routing, topology: Topology, stops: Sequence[Ints], keys: Ints) -> Ints:
    """The nodes of ways that pass these stops, one after the other; a stop that is NOWHERE is left out.

    stops: the sources, what lies between, the targets: int64[num_flows] each.
    """
    columns, at = [stops[0]], stops[0]
    for stop in stops[1:]:
        goal = np.where(stop == NOWHERE, at, stop)
        columns += list(routing.route(topology, at, goal, keys).T)
        at = goal
    return fill(columns)


def fill(columns: Sequence[npt.NDArray[np.int64]]) -> Ints:
    """The nodes of ways from what they visit one after the other: NOWHERE, and a node again, are left out."""
    last = np.asarray(columns[0], np.int64)
    nodes = np.full((len(last), len(columns)), NOWHERE)
    flat, place = nodes.reshape(-1), np.arange(len(last)) * len(columns)
    flat[place] = last
    for column in columns[1:]:
        goes = (column != NOWHERE) & (column != last)
        last = np.where(goes, column, last)
        place += goes
        flat[place] = last
    return nodes
