"""Finds shortest paths through a network, with compiled code or with NumPy alone."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hocket.network import compiled
from hocket.network.flow_hash import mix
from hocket.network.reach import different, distances

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def shortest_seconds(source: Ints, target: Ints, seconds: Floats, num_nodes: int, start: int) -> Floats:
    """Returns the least latency from a node to each node: float64[num_nodes], infinity without a path."""
    if compiled.simulator is None:
        return distances(source, target, num_nodes, start, seconds)
    best = np.empty(num_nodes)
    compiled.simulator.shortest_seconds(source, target, seconds, start, best)
    return best


class Router(Protocol):
    """Finds paths of the fewest hops; of several, a hash of the flow's key and the node chooses one at each node."""

    def route(self, source: Ints, target: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """Returns the nodes of all paths, one path after the other, and the end of each; a missing path is empty.

        Flows with the same target must be adjacent.
        """


def make_router(source: Ints, target: Ints, hops: Ints, forwards: npt.NDArray[np.bool_]) -> Router:
    """Returns a router for the links from source to target, which cost `hops`; paths pass only nodes that forward."""
    if compiled.simulator is None:
        return PlainRouter(source, target, hops, forwards)
    router: Router = compiled.simulator.Router(source, target, hops, forwards)
    return router


@dataclass(frozen=True)
class PlainRouter:
    """The router without compiled code."""

    source: Ints
    target: Ints
    hops: Ints
    forwards: npt.NDArray[np.bool_]

    def route(self, source: Ints, target: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """See Router."""
        begins = np.flatnonzero(np.diff(target, prepend=-1))
        ways = []
        for flows in np.split(np.arange(len(target)), begins[1:]):
            if len(flows):
                ways += self._walk(int(target[flows[0]]), source[flows], keys[flows])
        ends = np.cumsum([len(way) for way in ways], dtype=np.int64)
        return np.concatenate([np.zeros(0, np.int64), *ways]), ends

    def _walk(self, goal: int, source: Ints, keys: Ints) -> list[Ints]:
        begins, ahead = self._choices(goal)
        columns, at = [source], source
        stuck = np.zeros(len(source), bool)
        while (going := (at != goal) & (at >= 0)).any():
            count = np.where(going, begins[at + 1] - begins[at], 0)
            stuck |= going & (count == 0)
            going &= ~stuck
            after = np.full(len(source), -1)
            here = at[going]
            after[going] = ahead[begins[here] + mix(keys[going], here) % count[going]]
            columns.append(after)
            at = after
        nodes = np.stack(columns, axis=1)
        return [np.zeros(0, np.int64) if lost else way[way >= 0] for way, lost in zip(nodes, stuck, strict=True)]

    def _choices(self, goal: int) -> tuple[Ints, Ints]:
        """Returns (begins, ahead): a path to the goal goes from v to a node of ahead[begins[v] : begins[v + 1]]."""
        num_nodes = len(self.forwards)
        enters = self.forwards | (np.arange(num_nodes) == goal)
        usable = np.flatnonzero(enters[self.target])
        source, target, hops = self.source[usable], self.target[usable], self.hops[usable]
        far = distances(target, source, num_nodes, goal, hops)
        good = np.isfinite(far[target]) & (far[source] == far[target] + hops)
        pairs = different(source[good] * np.int64(num_nodes) + target[good])
        return np.searchsorted(pairs // num_nodes, np.arange(num_nodes + 1)), pairs % num_nodes
