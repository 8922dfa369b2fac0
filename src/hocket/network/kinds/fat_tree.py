"""Fat trees of two or three levels, of switches with equal port counts (Leiserson 1985; Al-Fares et al. 2008).

Hosts are below edge switches, which have `hosts` ports down and `ups` ports up. Two levels: every edge switch has a
cable to each of `ups` cores. Three levels: a pod has `edges` edge switches and `ups` aggregation switches, every edge
switch linked to every aggregation switch; aggregation switch j of every pod has a cable to each of the `cores` cores of
plane j. If hosts / ups, the oversubscription, is 1, any permutation of hosts can be routed without two flows on a link.
"""

from dataclasses import dataclass

import numpy as np

from hocket.errors import TopologyError
from hocket.network.drawing import Drawing
from hocket.network.flow_hash import mix
from hocket.network.links import Link
from hocket.network.routing import NOWHERE, fill
from hocket.network.topology import Ints, Topology

_MOST = 1e100  # oversubscription; larger values behave like infinity


@dataclass(frozen=True)
class FatTree:
    """The sizes described in the module docstring; `edges` counts per pod, `cores` per plane; both 0 with two levels.

    spread: how a switch chooses among its ports up. "dmodk" uses the target's number (D-mod-k, Zahavi et al. 2010): all
    traffic to a host comes down one path, and shift patterns have no contention. "ecmp" uses the flow's key. reduces:
    whether switches reduce and multicast, as SHARP does.
    """

    num_ranks: int
    hosts: int
    ups: int
    edges: int = 0
    cores: int = 0
    spread: str = "dmodk"
    reduces: bool = False

    @property
    def num_edges(self) -> int:
        """The number of edge switches: as many as the ranks need."""
        return -(-self.num_ranks // self.hosts)

    @property
    def num_pods(self) -> int:
        """The number of pods; 0 with two levels."""
        return -(-self.num_edges // self.edges) if self.edges else 0

    def draw(self, link: Link, name: str) -> Topology:
        """Returns the network: hosts first, then edge, aggregation and core switches."""
        drawing = Drawing(name)
        ranks = drawing.nodes("host", self.num_ranks, forwards=False)
        edges = drawing.nodes("edge", self.num_edges, reducing=self.reduces)
        drawing.cable(ranks, edges[ranks // self.hosts], link)
        if not self.edges:
            drawing.cable(edges[:, None], drawing.nodes("core", self.ups, reducing=self.reduces)[None, :], link)
            places, axes = (ranks // self.hosts, ranks % self.hosts), ("edge", "port")
            return drawing.topology(ranks, self, axes=axes, coordinates=np.stack(places, axis=1))
        aggregations = drawing.nodes("aggregation", self.num_pods * self.ups, reducing=self.reduces)
        aggregations = aggregations.reshape(self.num_pods, self.ups)
        drawing.cable(edges[:, None], aggregations[np.arange(self.num_edges) // self.edges], link)
        planes = drawing.nodes("core", self.ups * self.cores, reducing=self.reduces).reshape(1, self.ups, -1)
        drawing.cable(aggregations[:, :, None], planes, link)
        edge = ranks // self.hosts
        return drawing.topology(
            ranks,
            self,
            axes=("pod", "edge", "port"),
            coordinates=np.stack((edge // self.edges, edge % self.edges, ranks % self.hosts), axis=1),
        )

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing: up to a switch above both hosts, then down."""
        first = self.num_ranks  # the first edge switch
        from_edge, to_edge = source // self.hosts, target // self.hosts
        plane = target % self.ups if self.spread == "dmodk" else mix(keys, from_edge) % self.ups
        above = first + self.num_edges
        if not self.edges:
            middle = [np.where(from_edge == to_edge, NOWHERE, above + plane)]
        else:
            from_pod, to_pod = from_edge // self.edges, to_edge // self.edges
            higher = target // self.ups if self.spread == "dmodk" else mix(keys, -1 - from_pod)
            core = above + self.num_pods * self.ups + plane * self.cores + higher % self.cores
            up, down = above + from_pod * self.ups + plane, above + to_pod * self.ups + plane
            same_edge, same_pod = from_edge == to_edge, from_pod == to_pod
            middle = [np.where(same_edge, NOWHERE, up), np.where(same_pod, NOWHERE, core)]
            middle.append(np.where(same_edge, NOWHERE, down))
        nodes = fill([source, first + from_edge, *middle, first + to_edge, target])
        nodes[source == target, 1:] = NOWHERE
        return nodes


def fat_tree(
    num_ranks: int,
    link: Link,
    *,
    name: str,
    levels: int = 3,
    radix: int | None = None,
    oversubscription: float = 1,
    spread: str = "dmodk",
    reduces: bool = False,
) -> Topology:
    """Returns a fat tree of switches with `radix` ports for these ranks.

    radix: by default the least power of two that suffices. oversubscription: bandwidth from the hosts into an edge
    switch, divided by its bandwidth upwards. Raises TopologyError if the ranks do not fit.
    """
    if num_ranks < 1:
        raise TopologyError(f"{name}: expected 1 rank or more, found {num_ranks}")
    if oversubscription <= 0:
        raise TopologyError(f"{name}: expected an oversubscription above 0, found {oversubscription:g}")
    ports = radix or 4
    while radix is None and _capacity(ports, levels, oversubscription) < num_ranks:
        ports *= 2
    hosts = _hosts(ports, oversubscription)
    if not 0 < hosts < ports:
        raise TopologyError(
            f"{name}: {ports} ports leave no cable up, or none down, with an oversubscription of {oversubscription:g}"
        )
    capacity = _capacity(ports, levels, oversubscription)
    if num_ranks > capacity:
        raise TopologyError(
            f"{name}: {levels} levels of switches with {ports} ports have room for {capacity} ranks; "
            f"found {num_ranks}: use more levels or a larger radix"
        )
    edges, cores = (0, 0) if levels == 2 else (ports // 2, ports - ports // 2)
    return FatTree(num_ranks, hosts, ports - hosts, edges, cores, spread, reduces).draw(link, name)


def _hosts(radix: int, oversubscription: float) -> int:
    share = min(oversubscription, _MOST)  # keeps the product finite
    return round(radix * share / (share + 1))


def _capacity(radix: int, levels: int, oversubscription: float) -> int:
    hosts = _hosts(radix, oversubscription)
    return hosts * radix if levels == 2 else hosts * (radix // 2) * radix
