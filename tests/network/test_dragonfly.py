"""Dragonflies: cables between all groups, minimal ways over one of them, Valiant ways over a third group."""

import itertools

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import Topology, parse
from hocket.network.topology import Ints
from tests.network.ways import all_ways, hops

SMALL = ["dragonfly:4,2,2,9", "dragonfly:4,2,2,5", "dragonfly:2,1,1,1", "dragonfly+:2,2,2,2,5", "dragonfly+:3,1,2,2,3"]


def groups(topology: Topology) -> Ints:
    """The group of each node."""
    group = np.full(topology.num_nodes, -1)
    for kind in np.unique(topology.node_kinds):
        nodes = np.flatnonzero(topology.node_kinds == kind)
        group[nodes] = np.arange(len(nodes)) * (topology.coordinates[:, 0].max() + 1) // len(nodes)
    return group


@pytest.mark.parametrize("text", SMALL)
def test_any_two_groups_have_equally_many_cables(text: str) -> None:
    topology = parse(text)
    group = groups(topology)
    ends = zip(group[topology.link_source].tolist(), group[topology.link_target].tolist(), strict=True)
    counts = dict.fromkeys(itertools.permutations(range(int(group.max()) + 1), 2), 0)
    for one, other in ends:
        if one != other:
            counts[one, other] += 1
    assert len(set(counts.values())) <= 1
    assert 0 not in counts.values()
    sizes = [int(size) for size in text.partition(":")[2].split(",")]
    if "+" in text:
        leaves, hosts, spines, cables, _ = sizes
        most = max(hosts + spines, leaves + cables)
    else:
        routers, hosts, cables, _ = sizes
        most = hosts + routers - 1 + cables
    assert np.bincount(topology.link_source).max() <= most


@pytest.mark.parametrize("text", SMALL)
def test_minimal_ways_cross_one_cable_between_groups(text: str) -> None:
    topology = parse(text)
    group = groups(topology)
    paths = all_ways(topology, keys=3)
    longest = 5  # up, to the gate, across, to the router, down; with spines the same
    assert max(hops(paths)) <= longest
    flow = np.repeat(np.arange(topology.num_ranks**2), hops(paths))
    crosses = group[topology.link_source[paths.links]] != group[topology.link_target[paths.links]]
    crossings = np.bincount(flow, crosses, topology.num_ranks**2).reshape(topology.num_ranks, -1)
    of_rank = group[topology.ranks]
    assert (crossings == (of_rank[:, None] != of_rank[None, :])).all()


@pytest.mark.parametrize("text", ["dragonfly:4,2,2,9", "dragonfly+:2,2,2,2,5"])
def test_valiant_ways_pass_a_third_group_and_spread(text: str) -> None:
    topology = parse(f"{text},routing=valiant")
    group = groups(topology)
    all_ways(topology, keys=3)
    flows = np.zeros(2000, np.int64)
    paths = topology.paths(flows, flows + topology.num_ranks - 1, np.arange(2000))
    flow = np.repeat(flows + np.arange(2000), hops(paths))
    entered = group[topology.link_target[paths.links]]
    third = (entered != 0) & (entered != group.max())
    assert (np.bincount(flow, third) > 0).all()
    assert set(entered[third]) == set(range(1, int(group.max())))
    inside = topology.paths(flows[:1], flows[:1] + 1)
    assert set(group[topology.link_target[inside.links]]) == {0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dragonfly:2,1,1,9", "2 x 1 global cables; expected one to each of the 8 other groups"),
        ("dragonfly:2,0,1,2", "expected sizes of 1 or more"),
        ("dragonfly:2,1,1", "found 3 sizes; expected dragonfly:a,p,h,g"),
        ("dragonfly+:2,1,0,1,2", "0 spines"),
        ("dragonfly:4,2,2,9,routing=guess", "routing=guess is none of minimal, valiant"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text)
