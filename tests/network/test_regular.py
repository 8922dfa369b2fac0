"""Grids, rings and single switches: their links, and the ways in dimension order."""

import itertools

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import DimensionOrder, parse
from tests.network.ways import all_ways, hops


def around(size: int, ahead: int) -> int:
    return min(ahead % size, -ahead % size)


@pytest.mark.parametrize(
    ("text", "num_nodes", "num_links", "farthest"),
    [
        ("line:5", 5, 8, 4),
        ("ring:7", 7, 14, 3),
        ("ring:2", 2, 2, 1),
        ("ring:1", 1, 0, 0),
        ("mesh:3x4", 12, 34, 5),
        ("torus:4x4", 16, 64, 4),
        ("torus:3x2x5", 30, 150, 4),
        ("hypercube:4", 16, 64, 4),
        ("fully-connected:6", 6, 30, 1),
        ("switch:6", 7, 12, 2),
    ],
)
def test_links_and_farthest_ranks(text: str, num_nodes: int, num_links: int, farthest: int) -> None:
    topology = parse(text)
    assert (topology.num_nodes, topology.num_links) == (num_nodes, num_links)
    assert max(hops(all_ways(topology))) == farthest


def test_ways_on_a_torus_are_the_shortest() -> None:
    lengths = hops(all_ways(parse("torus:4x3x2")))
    places = list(itertools.product(range(4), range(3), range(2)))
    expected = [
        sum(around(size, b - a) for size, a, b in zip((4, 3, 2), one, other, strict=True))
        for one, other in itertools.product(places, repeat=2)
    ]
    assert lengths == expected


def test_dimension_order_goes_along_the_last_axis_first() -> None:
    mesh = parse("mesh:3x3")
    links = mesh.paths(np.array([0]), np.array([8])).links
    assert mesh.link_names(links) == ["rank0->rank1", "rank1->rank2", "rank2->rank5", "rank5->rank8"]


def test_half_way_round_both_ways_are_loaded_alike_or_all_go_up() -> None:
    ring = parse("ring:8")
    ranks = np.arange(8)
    opposite = ring.paths(ranks, (ranks + 4) % 8).links
    assert np.bincount(opposite).tolist() == [2] * 16
    up = DimensionOrder((8,), (True,), ties="up").route(ring, ranks, (ranks + 4) % 8, ranks)
    assert (np.diff(up, axis=1) % 8 == 1).all()


@pytest.mark.parametrize(
    "text", ["torus:0x3", "ring:0", "switch:0", "fully-connected:0", "hypercube:0", "hypercube:25"]
)
def test_nothing_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=text.split(":")[0]):
        parse(text)
