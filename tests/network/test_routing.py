"""Shortest ways, compiled and in Python, ECMP, and ways that a user gives."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import TopologyError
from hocket.network import ShortestPath, parse, shortest
from hocket.network.flow_hash import mix
from hocket.network.reach import components, distances
from hocket.network.routing import NOWHERE, Supplied, fill
from tests.network.ways import all_ways, hops


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    num_nodes = draw(st.integers(2, 9))
    ends = st.tuples(st.integers(0, num_nodes - 1), st.integers(0, num_nodes - 1)).filter(
        lambda pair: pair[0] != pair[1]
    )
    links = np.array(draw(st.lists(ends, min_size=1, max_size=30)), np.int64)
    return num_nodes, links[:, 0].copy(), links[:, 1].copy()


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_compiled_and_plain_ways_are_the_same(graph: tuple[int, np.ndarray, np.ndarray], random: Random) -> None:
    num_nodes, source, target = graph
    hops_of = np.array([random.choice((1, 2)) for _ in source])
    forwards = np.array([random.random() < 0.7 for _ in range(num_nodes)])
    begin = np.array([random.randrange(num_nodes) for _ in range(20)])
    end = np.sort([random.randrange(num_nodes) for _ in range(20)])
    keys = np.array([random.randrange(1 << 40) for _ in range(20)])
    plain = shortest.PlainRouter(source, target, hops_of, forwards).route(begin, end, keys)
    ours = shortest.make_router(source, target, hops_of, forwards).route(begin, end, keys)
    assert [each.tolist() for each in ours] == [each.tolist() for each in plain]


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_compiled_and_plain_latencies_are_the_same(graph: tuple[int, np.ndarray, np.ndarray], random: Random) -> None:
    num_nodes, source, target = graph
    seconds = np.array([float(random.randrange(8)) for _ in source])
    ours = shortest.shortest_seconds(source, target, seconds, num_nodes, 0)
    assert np.array_equal(ours, distances(source, target, num_nodes, 0, seconds))


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_components_are_what_hangs_together(graph: tuple[int, np.ndarray, np.ndarray]) -> None:
    num_nodes, source, target = graph
    both = (np.concatenate([source, target]), np.concatenate([target, source]))
    label = components(source, target, num_nodes)
    for node in range(num_nodes):
        together = np.isfinite(distances(*both, num_nodes, node))
        assert label[node] == np.flatnonzero(together)[0]


def test_the_hash_spreads_and_stays_as_it_is() -> None:
    assert mix(np.array([0, 1, 2]), 5).tolist() == [3292087688318865783, 1783652790038589654, 3469403746505969086]
    counts = np.bincount(mix(np.arange(100_000), 3) % 10)
    assert abs(counts / 10_000 - 1).max() < 0.05


def test_equal_ways_are_taken_by_key() -> None:
    tree = parse("fat-tree:16")
    tree = replace(tree, routing=ShortestPath())
    flows = np.zeros(4000, np.int64)
    paths = tree.paths(flows, flows + 15, np.arange(4000))
    assert set(hops(paths)) == {6}
    counts = np.bincount(paths.links, minlength=tree.num_links)
    assert len(set(tree.link_target[paths.links.reshape(-1, 6)[:, 2]])) == 4  # every core
    assert abs(counts[counts > 0].min() / 1000 - 1) < 0.1
    all_ways(tree)


def test_what_does_not_forward_is_not_passed() -> None:
    mesh = parse("mesh:3x3")
    blocked = replace(mesh, forwards=np.arange(9) != 4, routing=ShortestPath())
    paths = blocked.paths(np.array([3, 3]), np.array([5, 4]))
    assert hops(paths) == [4, 1]
    with pytest.raises(TopologyError, match="no route from rank0 to rank2"):
        replace(mesh, forwards=np.zeros(9, bool), routing=ShortestPath()).paths(np.array([0]), np.array([2]))


def test_given_ways_are_taken_and_others_found() -> None:
    ring = parse("ring:4")
    ring = replace(ring, routing=Supplied({("rank0", "rank1"): ["rank0", "rank3", "rank2", "rank1"]}, ring.routing))
    paths = all_ways(ring)
    assert hops(paths)[1] == 3
    assert hops(paths)[4] == 1


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (["rank0", "rank9", "rank2"], "an unknown node 'rank9'"),
        (["rank0", "rank1"], "expected a complete path from rank0 to rank2"),
        (["rank0", "rank2"], "goes from rank0 to rank2, but there is no such link"),
    ],
)
def test_wrong_ways_are_refused(way: list[str], message: str) -> None:
    ring = parse("ring:4")
    with pytest.raises(TopologyError, match=message):
        replace(ring, routing=Supplied({("rank0", "rank2"): way}, ring.routing)).paths(np.array([0]), np.array([2]))


def test_stops_left_out_leave_no_gap() -> None:
    columns = [np.array([1, 1]), np.array([NOWHERE, 2]), np.array([1, 2]), np.array([3, NOWHERE]), np.array([3, 4])]
    assert fill(columns).tolist() == [[1, 3, NOWHERE, NOWHERE, NOWHERE], [1, 2, 4, NOWHERE, NOWHERE]]
