"""Finds a tree of reducing switches that connects all ranks of a network, like the trees of SHARP."""

from dataclasses import dataclass, replace

import numpy as np

from hocket.network.reach import distances
from hocket.network.routing import ShortestPath
from hocket.network.topology import Ints, Topology

_MOST_TRIED = 64  # switches tried as the root, those farthest from ranks first
_NONE = -1


@dataclass(frozen=True)
class SwitchTree:
    """network: the network with the tree's switches added as ranks. parents: the parent of each rank, -1: the root."""

    network: Topology
    parents: tuple[int, ...]


def switch_tree(network: Topology) -> SwitchTree | None:
    """Returns the tree with the fewest links from its root to ranks; None if reducing switches do not connect all."""
    below = _links_down(network)
    source, target = network.link_source[below], network.link_target[below]
    switches, ranks = np.flatnonzero(network.reducing), network.ranks
    far = [distances(source, target, network.num_nodes, int(root)) for root in _roots(network, switches)]
    best = min(far, key=lambda hops: float(hops[ranks].sum()), default=np.full(network.num_nodes, np.inf))
    if np.isinf(best[ranks]).any():
        return None
    nearer = np.flatnonzero(best[source] + 1 == best[target])
    parent = np.full(network.num_nodes, _NONE)
    parent[target[nearer[::-1]]] = source[nearer[::-1]]  # the last assignment counts: the first link
    members, at = np.zeros(network.num_nodes, bool), parent[ranks]
    while (at >= 0).any():
        at = np.unique(at[at >= 0])
        members[at] = True
        at = parent[at]
    nodes = np.concatenate([ranks, np.flatnonzero(members)])
    number = np.full(network.num_nodes, _NONE)
    number[nodes] = np.arange(len(nodes))
    parents = np.where(parent[nodes] >= 0, number[parent[nodes]], _NONE)
    placed = network.place([network.node_names[node] for node in nodes])
    return SwitchTree(replace(placed, routing=ShortestPath()), tuple(parents.tolist()))


def _links_down(network: Topology) -> Ints:
    """Returns the links from a reducing switch to another, or to a rank, that have a link back."""
    is_rank = np.zeros(network.num_nodes, bool)
    is_rank[network.ranks] = True
    there = network.link_source * np.int64(network.num_nodes) + network.link_target
    back = network.link_target * np.int64(network.num_nodes) + network.link_source
    ends = network.reducing[network.link_source] & (network.reducing | is_rank)[network.link_target]
    return np.flatnonzero(ends & np.isin(back, there))


def _roots(network: Topology, switches: Ints) -> Ints:
    hops = distances(network.link_source, network.link_target, network.num_nodes, int(network.ranks[0]))
    return switches[np.argsort(-hops[switches], kind="stable")][:_MOST_TRIED]
