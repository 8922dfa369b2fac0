"""Follows every way of a network, link by link."""

import numpy as np

from hocket.network import Topology
from hocket.network.topology import Paths


def all_ways(topology: Topology, keys: int = 0) -> Paths:
    """Returns the ways between all ranks. Checks that each has the right ends, no gap, and no node twice."""
    source, target = (each.ravel() for each in np.indices((topology.num_ranks, topology.num_ranks)))
    paths = topology.paths(source, target, np.full(len(source), keys) + np.arange(len(source)) if keys else None)
    for flow in range(len(source)):
        links = paths.links[paths.offsets[flow] : paths.offsets[flow + 1]]
        nodes = [topology.ranks[source[flow]], *topology.link_target[links]]
        assert nodes[-1] == topology.ranks[target[flow]]
        assert topology.link_source[links].tolist() == nodes[:-1]
        assert len(set(topology.link_names(links))) == len(links)
        assert np.isclose(paths.seconds[flow], topology.seconds[links].sum())
    return paths


def hops(paths: Paths) -> list[int]:
    """Returns the links of each way."""
    lengths: list[int] = np.diff(paths.offsets).tolist()
    return lengths
