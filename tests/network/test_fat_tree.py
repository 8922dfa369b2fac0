"""Fat trees: how many switches and cables, and ways that go up and down again."""

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import parse
from tests.network.ways import all_ways, hops


@pytest.mark.parametrize(
    ("text", "kinds", "cables"),
    [
        ("fat-tree:16", {"host": 16, "edge": 8, "aggregation": 8, "core": 4}, 48),  # k = 4 (Al-Fares et al. 2008)
        ("fat-tree:16,levels=2", {"host": 16, "edge": 4, "core": 4}, 32),  # 8 ports: the least power of two
        ("fat-tree:10,radix=4", {"host": 10, "edge": 5, "aggregation": 6, "core": 4}, 32),
        ("fat-tree:12,radix=6,levels=2,oversubscription=2", {"host": 12, "edge": 3, "core": 2}, 18),
    ],
)
def test_switches_and_cables(text: str, kinds: dict[str, int], cables: int) -> None:
    tree = parse(text)
    found, counts = np.unique(tree.node_kinds, return_counts=True)
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == kinds
    assert tree.num_links == 2 * cables


@pytest.mark.parametrize("routing", ["dmodk", "ecmp"])
@pytest.mark.parametrize("text", ["fat-tree:16", "fat-tree:10,radix=4", "fat-tree:20,levels=2,radix=8"])
def test_ways_go_no_higher_than_they_must(text: str, routing: str) -> None:
    tree = parse(f"{text},routing={routing}")
    lengths = np.array(hops(all_ways(tree, keys=7))).reshape(tree.num_ranks, tree.num_ranks)
    for one in range(tree.num_ranks):
        for other in range(tree.num_ranks):
            same = np.cumprod(tree.coordinates[one] == tree.coordinates[other]).sum()
            assert lengths[one, other] == 2 * (len(tree.axes) - same)


def test_shifts_meet_on_no_link_by_d_mod_k() -> None:
    tree = parse("fat-tree:16")
    ranks = np.arange(16)
    for shift in range(1, 16):
        assert np.bincount(tree.paths(ranks, (ranks + shift) % 16).links).max() == 1


def test_all_ways_to_a_host_come_down_alike_by_d_mod_k() -> None:
    tree = parse("fat-tree:54,radix=6")
    far = np.arange(18, 54)
    core = tree.link_target[tree.paths(far, np.full(36, 5)).links.reshape(36, 6)[:, 2]]
    assert len(set(core)) == 1


def test_ecmp_uses_all_cores() -> None:
    tree = parse("fat-tree:54,radix=6,routing=ecmp")
    flows = np.zeros(3000, np.int64)
    links = tree.paths(flows, flows + 40, np.arange(3000)).links.reshape(-1, 6)
    assert np.unique(tree.link_target[links[:, 2]], return_counts=True)[1].min() > 250


def test_switches_reduce_where_it_is_said() -> None:
    assert not parse("fat-tree:16").reducing.any()
    tree = parse("fat-tree:16,reduces=yes")
    assert (tree.reducing == (tree.node_kinds != "host")).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fat-tree:17,radix=4", "have place for 16 ranks; found 17"),
        ("fat-tree:0", "expected 1 rank or more"),
        ("fat-tree:8,oversubscription=0", "oversubscription=0 is no positive number"),
        ("fat-tree:8,oversubscription=x", "oversubscription=x is no positive number"),
        ("fat-tree:8,radix=4,oversubscription=9", "leave no cable up"),
        ("fat-tree:8,levels=4", "levels=4 is none of 3, 2"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text)
