"""From the best bandwidth to a schedule that reaches it: trees or paths between ranks, and the links that they use.

Every tree carries its shares of its root's block one edge deeper in each step. The executor moves pieces of all steps
at once, so for long vectors all edges are busy all the time, and only the sum of the shares on each link counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from typing import Protocol

import msgspec
import numpy as np

from hocket.errors import TopologyError
from hocket.network.bounds.max_flow import make_max_flow
from hocket.network.synthesis.packing import pack_trees
from hocket.network.synthesis.splitting import remove_switches
from hocket.network.synthesis.spread import with_ways
from hocket.network.synthesis.throughput import FORWARD, Optimum, trees_per_root, turned
from hocket.network.synthesis.trunks import Ends, Trunks, Way
from hocket.network.topology import Topology
from hocket.schedule import Builder, Schedule, compose

_ROUNDING = 1e-9

Hop = tuple[int, int, int]
"""The step, the node that sends, and the node that receives."""


class Forest(msgspec.Struct, frozen=True):
    """What spanning trees, or paths to one root, carry. trees: the root's node, the number of shares, and the hops.

    ways: from a node to another, the links in use (numbers in the topology) and the shares of each way.
    """

    trees: tuple[tuple[int, int, tuple[Hop, ...]], ...]
    ways: tuple[tuple[int, int, tuple[Way, ...]], ...]


class Kept(Protocol):
    """Keeps forests, because it takes seconds to find a large one."""

    def forest(self, optimum: Optimum, find: Callable[[Optimum], Forest]) -> Forest:
        """Returns the forest of an optimum that has no parts: a kept one, or what `find` returns."""


@dataclass(frozen=True, eq=False)
class Synthesised:
    """A schedule that reaches an optimum. network: the topology, with the paths that the schedule counts on."""

    optimum: Optimum
    schedule: Schedule
    network: Topology


def synthesise_schedule(optimum: Optimum, kept: Kept | None = None) -> Synthesised:
    """Returns a schedule that reaches the optimum for long vectors. It is not proved yet.

    Raises TopologyError if a switch has other bandwidths in than out and no spanning trees reach the optimum.
    """
    parts = optimum.parts or (optimum,)
    forests = [find_forest(part) if kept is None else kept.forest(part, find_forest) for part in parts]
    schedules = [_schedule_of(*each) for each in zip(parts, forests, strict=True)]
    ways: dict[Ends, tuple[Way, ...]] = {}
    for part, forest in zip(parts, forests, strict=True):
        is_turned = FORWARD[part.collective] != part.collective
        for source, target, used in forest.ways:
            ends = (target, source) if is_turned else (source, target)
            ways[ends] = ways.get(ends, ()) + used
    schedule = schedules[0] if len(schedules) == 1 else compose.then(*schedules)
    topology = optimum.topology
    return Synthesised(optimum, schedule, replace(topology, routing=with_ways(topology, ways)))


def find_forest(optimum: Optimum) -> Forest:
    """Returns trees or paths that reach an optimum that has no parts.

    If every rank can send its block directly to every other without loss, by the network's own paths, it does so.
    """
    kind = FORWARD[optimum.collective]
    network = optimum.topology if kind == optimum.collective else turned(optimum.topology)
    if kind == "all_gather" and (direct := _direct(optimum, network)):
        return direct
    trunks = Trunks(network, optimum.shares)
    roots = trees_per_root(optimum)
    if kind == "gather":
        return _paths(network, trunks, roots, int(network.ranks[optimum.root]))
    remove_switches(network, trunks, roots)
    trees = pack_trees({ends: trunks.shares(ends) for ends in trunks}, roots, network.ranks.tolist())
    return Forest(
        tuple(
            (tree.root, tree.shares, tuple((tree.depth[source], source, target) for source, target in tree.edges))
            for tree in trees
        ),
        tuple((*ends, trunks.ways(ends)) for ends in sorted({ends for tree in trees for ends in tree.edges})),
    )


def _direct(optimum: Optimum, network: Topology) -> Forest | None:
    """Returns trees of one step on the paths of the topology's routing; None if a link cannot carry all that comes."""
    topology, p = optimum.topology, optimum.topology.num_ranks
    one, other = np.nonzero(~np.eye(p, dtype=bool))
    try:
        paths = topology.paths(one, other) if network is topology else topology.paths(other, one)
    except TopologyError:  # ranks may have to send on what others forward
        return None
    busy = np.bincount(paths.links, minlength=topology.num_links) / topology.bytes_per_second
    if busy.max() * optimum.reached_bytes_per_second > p * (1 + _ROUNDING):
        return None
    sources, targets = topology.ranks[one].tolist(), topology.ranks[other].tolist()
    offsets = paths.offsets.tolist()
    links = [tuple(paths.links[begin:end].tolist()) for begin, end in pairwise(offsets)]
    hops = [(0, source, target) for source, target in zip(sources, targets, strict=True)]
    return Forest(
        tuple(
            (int(node), 1, tuple(hops[rank * (p - 1) : (rank + 1) * (p - 1)]))
            for rank, node in enumerate(topology.ranks)
        ),
        tuple((source, target, (Way(way, 1),)) for source, target, way in zip(sources, targets, links, strict=True)),
    )


def _paths(network: Topology, trunks: Trunks, roots: Mapping[int, int], root: int) -> Forest:
    """Returns the paths of a largest flow from all ranks to the root, with a hop from each rank to the next."""
    above, ends = network.num_nodes, list(trunks)
    source, target = np.array([*ends, *((above, node) for node in roots)], np.int64).T.copy()
    capacity = np.array([*(trunks.shares(each) for each in ends), *roots.values()], np.int64)
    flow = make_max_flow(above + 1, source, target)
    flow.run(capacity, above, root)
    crossing = np.empty(len(ends) + len(roots), np.int64)
    flow.write_flows(crossing)
    left = {each: number for each, number in zip(ends, crossing.tolist(), strict=False) if number}
    behind: dict[int, list[int]] = {}
    for one, other in left:
        behind.setdefault(one, []).append(other)
    ranks, trees = set(network.ranks.tolist()), []
    ways: dict[Ends, list[Way]] = {}
    for node, shares in roots.items():
        while shares and node != root:
            nodes = _walk(behind, left, node, root)
            number = min(shares, *(left[hop] for hop in pairwise(nodes)))
            shares -= number
            for hop in pairwise(nodes):
                left[hop] -= number
            stops = [place for place, each in enumerate(nodes) if each in ranks]
            hops = []
            for step, (begin, end) in enumerate(pairwise(stops)):
                hops.append((step, nodes[begin], nodes[end]))
                ways.setdefault((nodes[begin], nodes[end]), []).extend(trunks.take_path(nodes[begin : end + 1], number))
            trees.append((node, number, tuple(hops)))
    return Forest(tuple(trees), tuple((*each, tuple(ways[each])) for each in sorted(ways)))


def _walk(behind: Mapping[int, list[int]], left: dict[Ends, int], node: int, root: int) -> list[int]:
    """Returns the nodes of a path to the root along which something flows. A circle of flow is taken out of `left`."""
    nodes = [node]
    while nodes[-1] != root:
        following = next(other for other in behind[nodes[-1]] if left[nodes[-1], other])
        if following in nodes:
            begin = nodes.index(following)
            circle = list(pairwise([*nodes[begin:], following]))
            number = min(left[hop] for hop in circle)
            for hop in circle:
                left[hop] -= number
            del nodes[begin + 1 :]
        else:
            nodes.append(following)
    return nodes


def _schedule_of(optimum: Optimum, forest: Forest) -> Schedule:
    """Returns the schedule in which each tree has its shares of its root's block as consecutive chunks."""
    topology, kind = optimum.topology, FORWARD[optimum.collective]
    rank = {int(node): number for number, node in enumerate(topology.ranks)}
    common = gcd(*(shares for _, shares, _ in forest.trees))
    first = forest.trees[0][0]
    per_block = sum(shares for root, shares, _ in forest.trees if root == first) // common
    begins = {node: (0 if kind == "broadcast" else rank[node] * per_block) for node in rank}
    rows: dict[int, list[tuple[int, int, int, int]]] = {}
    for root, shares, hops in forest.trees:
        count = shares // common
        for step, source, target in hops:
            rows.setdefault(step, []).append((rank[source], rank[target], begins[root], count))
        begins[root] += count
    num_chunks = per_block * (1 if kind == "broadcast" else topology.num_ranks)
    schedule = Builder(kind, topology.num_ranks, num_chunks, optimum.root)
    for step in sorted(rows):
        source, target, chunk, count = np.array(rows[step]).T
        with schedule.step():
            schedule.copy(src=source, dst=target, chunk=chunk, count=count)
    made = schedule.finish()
    return made if kind == optimum.collective else compose.reversed(made)
