"""Nested networks: at each rank of an outer network there is an inner network, such as a pod.

An inner network connects to the outer one at its ports: its network cards or, without cards, its ranks. The link
between a port and the outer node is as fast as the fastest link of that node, but no faster than the card itself, and
adds no latency.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hocket.errors import TopologyError
from hocket.network.drawing import expect_room
from hocket.network.reach import distances
from hocket.network.routing import NOWHERE, fill
from hocket.network.topology import Ints, Topology


def compose(outer: Topology, inners: Sequence[Topology], *, name: str = "") -> Topology:
    """Returns the outer network with an inner one, of any size, at each of its ranks; the new ranks are the inner ones.

    Nodes are those of the outer network under their names, then those of inner network i as "i.name". If the outer
    network is nested itself and already has such names, the name of its rank i replaces i. Raises TopologyError
    unless there is one inner network for each rank.
    """
    name = name or f"{inners[0].name if inners else ''}@{outer.name}"
    if len(inners) != outer.num_ranks:
        raise TopologyError(f"{name}: {outer.name} has {outer.num_ranks} ranks; found {len(inners)} networks for them")
    num_nodes, num_links = (
        sum(getattr(part, column) for part in (outer, *inners)) for column in ("num_nodes", "num_links")
    )
    expect_room(name, num_nodes, num_links)
    starts = outer.num_nodes + np.cumsum([0, *(inner.num_nodes for inner in inners)])
    joints = [_ports(inner) for inner in inners]
    ports = np.concatenate([start + joint for start, joint in zip(starts, joints, strict=False)])
    at = np.repeat(outer.ranks, [len(joint) for joint in joints])
    fastest = np.zeros(outer.num_nodes)
    np.maximum.at(fastest, outer.link_source, outer.bytes_per_second)
    np.maximum.at(fastest, outer.link_target, outer.bytes_per_second)
    fastest[fastest == 0] = max(float(inner.bytes_per_second.max(initial=1)) for inner in inners)  # outer: one node
    cards = np.repeat([inner.card_bytes_per_second for inner in inners], [len(joint) for joint in joints])
    joined = np.minimum(fastest[at], cards)

    forwards = outer.forwards.copy()
    forwards[outer.ranks] = True
    parts = (outer, *inners)
    offsets = (0, *starts[:-1].tolist())
    same_axes = len({inner.axes for inner in inners}) == 1
    sizes = [inner.num_ranks for inner in inners]
    host = np.repeat(np.arange(outer.num_ranks), sizes)
    inside = (
        np.concatenate([inner.coordinates for inner in inners]) if same_axes else np.zeros((len(host), 0), np.int64)
    )
    upper = outer.coordinates if outer.axes else np.arange(outer.num_ranks)[:, None]
    return Topology(
        name=name,
        node_kinds=np.concatenate([part.node_kinds for part in parts]),
        ranks=np.concatenate([start + inner.ranks for start, inner in zip(starts, inners, strict=False)]),
        link_source=np.concatenate([*_moved(parts, offsets, "link_source"), ports, at]),
        link_target=np.concatenate([*_moved(parts, offsets, "link_target"), at, ports]),
        bytes_per_second=np.concatenate([*(part.bytes_per_second for part in parts), joined, joined]),
        seconds=np.concatenate([*(part.seconds for part in parts), np.zeros(2 * len(at))]),
        link_class=np.concatenate([*(part.link_class for part in parts), np.full(2 * len(at), "nic")]),
        lanes=np.concatenate([*(part.lanes for part in parts), np.ones(2 * len(at), np.int64)]),
        forwards=np.concatenate([forwards, *(inner.forwards for inner in inners)]),
        reducing=np.concatenate([part.reducing for part in parts]),
        routing=_Composed(outer, tuple(inners), starts),
        axes=(*(outer.axes or ("host",)), *(inners[0].axes if same_axes else ())),
        coordinates=np.concatenate([upper[host], inside], axis=1),
        names=_names(outer, inners),
    )


def _names(outer: Topology, inners: Sequence[Topology]) -> tuple[str, ...]:
    hosts = [outer.node_names[node] for node in outer.ranks]
    for prefixes in (range(len(inners)), hosts):
        made = (
            *outer.node_names,
            *(f"{prefix}.{node}" for prefix, inner in zip(prefixes, inners, strict=True) for node in inner.node_names),
        )
        if len(set(made)) == len(made):
            break
    return made


def _moved(parts: Sequence[Topology], offsets: Sequence[int], column: str) -> list[Ints]:
    return [getattr(part, column) + offset for part, offset in zip(parts, offsets, strict=True)]


def _ports(inner: Topology) -> Ints:
    cards = np.flatnonzero(inner.node_kinds == "nic")
    return cards if len(cards) else inner.ranks


@dataclass(frozen=True, eq=False)
class _Composed:
    """Routes inside an inner network by its own routing, else by the nearest ports and the outer network."""

    outer: Topology
    inners: tuple[Topology, ...]
    starts: Ints  # the first node of each inner network, then the end of the last one
    _nearest: dict[Topology, Ints] = field(default_factory=dict, init=False)

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing."""
        here, there = self._number_of(source), self._number_of(target)
        if (here < 0).any() or (there < 0).any():
            raise TopologyError(f"{topology.name}: expected paths between nodes of inner networks, found an outer node")
        leaves = here != there
        out = np.where(leaves, self._port(source, here), target)
        into = np.where(leaves, self._port(target, there), target)
        hosts = self.outer.ranks
        between = self.outer.routing.route(self.outer, hosts[here], np.where(leaves, hosts[there], hosts[here]), keys)
        between[~leaves] = NOWHERE
        legs = (self._inside(here, source, out, keys), between, self._inside(there, into, target, keys))
        return fill([column for leg in legs for column in leg.T])

    def _number_of(self, nodes: Ints) -> Ints:
        """The number of the inner network of each node; -1 for a node outside them."""
        return np.searchsorted(self.starts, nodes, "right") - 1

    def _port(self, nodes: Ints, which: Ints) -> Ints:
        port: Ints = self.starts[which] + self._ports_of_all[nodes - self.starts[0]]
        return port

    @cached_property
    def _ports_of_all(self) -> Ints:
        """The nearest port of each node of the inner networks, as a node number within its inner network."""
        for inner in self.inners:
            if inner not in self._nearest:
                self._nearest[inner] = _nearest_ports(inner)
        return np.concatenate([self._nearest[inner] for inner in self.inners])

    def _inside(self, which: Ints, source: Ints, target: Ints, keys: Ints) -> Ints:
        """Returns paths inside inner networks; equal inner networks are routed together."""
        nodes = np.full((len(source), 1), NOWHERE)
        start = self.starts[which]
        kinds = {inner: number for number, inner in enumerate(dict.fromkeys(self.inners))}
        kind = np.array([kinds[inner] for inner in self.inners])[which]
        for inner, number in kinds.items():
            flows = np.flatnonzero(kind == number)
            if len(flows):
                local = (source[flows] - start[flows], target[flows] - start[flows])
                ways = inner.routing.route(inner, *local, keys[flows])
                ways = np.where(ways == NOWHERE, NOWHERE, ways + start[flows][:, None])
                wider = max(nodes.shape[1], ways.shape[1])
                nodes = np.pad(nodes, ((0, 0), (0, wider - nodes.shape[1])), constant_values=NOWHERE)
                nodes[flows[:, None], np.arange(ways.shape[1])] = ways
        return nodes


def _nearest_ports(inner: Topology) -> Ints:
    """Returns the nearest port of each node; of several, rank i takes the i-th in turn, to share ports evenly."""
    ports = _ports(inner)
    far = np.stack([distances(inner.link_source, inner.link_target, inner.num_nodes, int(port)) for port in ports])
    turn = np.zeros(inner.num_nodes, np.int64)
    turn[inner.ranks] = np.arange(inner.num_ranks)
    best = far == far.min(axis=0)
    wanted = turn % best.sum(axis=0)
    chosen: Ints = ports[(np.cumsum(best, axis=0) == wanted + 1).argmax(axis=0)]
    return chosen
