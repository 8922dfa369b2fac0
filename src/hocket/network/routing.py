"""Routings: shortest paths, dimension order, and paths supplied by the user.

The routings of fat trees and dragonflies are in the modules of these networks. A routing gives the nodes of each path;
a Topology finds the links between them. Of several equally good paths, a hash of the flow's key chooses one, as
switches do (ECMP).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hocket.errors import TopologyError, did_you_mean
from hocket.network.reach import ranges
from hocket.network.shortest import Router, make_router
from hocket.network.topology import Ints, Routing, Topology

NOWHERE = -1
"""Fills the row of a path that is shorter than the longest path."""

_HOP = 3
_HOPS = {"pcie": 2 * _HOP, "nvlink": 1, "nvswitch": 1, "c2c": 1, "ub": 1}
"""The cost of a hop over these links; over any other, _HOP. So a direct link between accelerators is preferred to PCIe
and to the fabric between hosts, as in NCCL, CUDA and SimAI."""


@dataclass(frozen=True)
class ShortestPath:
    """The path of the fewest hops; of several, the flow's key chooses one at each node.

    A hop over PCIe counts as two hops, a direct link between accelerators as a third of a hop. Paths pass only nodes
    that forward. nic_cost: what a hop between hosts costs, in thirds of a hop.
    """

    nic_cost: int = _HOP
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
                f"{topology.name}: no route from {' to '.join(ends)}, because a path may pass only nodes that forward; "
                "expected a schedule that sends along links, or more links"
            )
        return nodes

    def find(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """Returns the same as `route`, but where there is no route, the row has only NOWHERE."""
        if topology not in self._routers:
            hops = np.full(topology.num_links, _HOP)
            for link_class, count in (_HOPS | {"nic": self.nic_cost}).items():
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
    """Routes on a grid with row-major node numbers: along the last axis first, on a ring in the shorter direction.

    Deadlock-free on a mesh (Dally, Seitz 1987). ties: to the opposite point of a ring, "alternate" sends sources with
    an even coordinate up and the others down, which loads both directions equally; "up" sends all up.
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
        before = np.cumsum(hops[:, ::-1], axis=1)[:, ::-1]  # hops until the end of this axis; the last axis comes first
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
    """Paths given by the user, and another routing for all other pairs.

    ways: for each (source, target), by name, the names of all nodes from the source to the target.
    """

    ways: Mapping[tuple[str, str], Sequence[str]]
    otherwise: Routing

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing. Raises TopologyError for an unknown node or for a path with other ends."""
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
                near = did_you_mean(name, topology.node_numbers)
                raise TopologyError(f"{topology.name}: the path {names} has an unknown node {name!r}{near}")
        if not names or (names[0], names[-1]) != ends:
            raise TopologyError(f"{topology.name}: expected a complete path from {ends[0]} to {ends[1]}; found {names}")
        return [topology.node_numbers[name] for name in names]


def through(routing: Routing, topology: Topology, stops: Sequence[Ints], keys: Ints) -> Ints:
    """Returns the nodes of paths that pass these stops in order; a stop that is NOWHERE is left out.

    stops: the sources, the nodes to pass, the targets: int64[num_flows] each.
    """
    columns, at = [stops[0]], stops[0]
    for stop in stops[1:]:
        goal = np.where(stop == NOWHERE, at, stop)
        columns += list(routing.route(topology, at, goal, keys).T)
        at = goal
    return fill(columns)


def fill(columns: Sequence[npt.NDArray[np.int64]]) -> Ints:
    """Returns the nodes of paths from the nodes visited in order; drops NOWHERE and a repeated node."""
    last = np.asarray(columns[0], np.int64)
    nodes = np.full((len(last), len(columns)), NOWHERE)
    flat, position = nodes.reshape(-1), np.arange(len(last)) * len(columns)
    flat[position] = last
    for column in columns[1:]:
        goes = (column != NOWHERE) & (column != last)
        last = np.where(goes, column, last)
        position += goes
        flat[position] = last
    return nodes
