"""A network is checked when it is made; groups, changes and ways keep its properties."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import ShortestPath, Topology, parse
from tests.network.ways import all_ways


def pair(**changes: object) -> Topology:
    """Two ranks and a switch between them, with columns exchanged."""
    columns: dict[str, object] = {
        "name": "pair",
        "node_kinds": np.array(["rank", "rank", "switch"]),
        "ranks": np.array([0, 1]),
        "link_source": np.array([0, 2, 1, 2]),
        "link_target": np.array([2, 1, 2, 0]),
        "bytes_per_second": np.full(4, 1e9),
        "seconds": np.full(4, 1e-6),
        "link_class": np.full(4, "nic"),
        "routing": ShortestPath(),
    }
    return Topology(**columns | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link_target": np.array([2, 1, 2])}, "link_target has 3 entries; expected 4"),
        ({"bytes_per_second": np.array([1, 0, 1, 1.0])}, "link switch0->rank1 has 0 bytes_per_second"),
        ({"bytes_per_second": np.array([1, np.inf, 1, 1])}, "has inf bytes_per_second"),
        ({"seconds": np.array([0, 0, -1e-6, 0])}, "link rank1->switch0 has -1e-06 seconds of latency"),
        ({"seconds": np.array([0, np.nan, 0, 0])}, "unknown: please set it"),
        ({"link_class": np.full(4, "string")}, "is of class 'string'; expected one of nic"),
        ({"lanes": np.array([1, 1, 0, 1])}, "has 0 lanes"),
        ({"link_source": np.array([0, 2, 1, 7])}, r"link_source\[3\] is 7; the nodes are 0 to 2"),
        ({"link_source": np.array([0, 2, 2, 2])}, "switch0->switch0 leads back to its source"),
        ({"ranks": np.array([0, 3])}, r"ranks\[1\] is 3"),
        ({"ranks": np.array([1, 1])}, "node rank1 has several ranks"),
        ({"ranks": np.zeros(0, np.int64)}, "expected at least 1 rank"),
        ({"names": ("a", "b")}, "expected 3 different names"),
        ({"names": ("a", "b", "b")}, "expected 3 different names"),
        ({"link_target": np.array([2, 0, 2, 0])}, "disconnected: there is no path from rank0 to rank1"),
        ({"forwards": np.ones(2, bool)}, "forwards has 2 entries; expected 3"),
    ],
)
def test_a_broken_network_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        pair(**changes)


def test_two_parts_are_seen_without_following_a_long_ring() -> None:
    ring = parse("ring:100000")
    kept = ~np.isin(ring.link_source, (10, 11)) & ~np.isin(ring.link_target, (10, 11))
    columns = ("link_source", "link_target", "bytes_per_second", "seconds", "link_class", "lanes")
    with pytest.raises(TopologyError, match="disconnected: there is no path from rank0 to rank10"):
        replace(ring, **{column: getattr(ring, column)[kept] for column in columns})


def test_ways_are_told_by_links_and_their_latency() -> None:
    paths = pair(seconds=np.array([1, 2, 4, 8.0])).paths(np.array([0, 1, 0]), np.array([1, 0, 0]))
    assert paths.offsets.tolist() == [0, 2, 4, 4]
    assert paths.links.tolist() == [0, 1, 2, 3]
    assert paths.seconds.tolist() == [3, 12, 0]


def test_a_group_keeps_the_network() -> None:
    torus = parse("torus:4x4")
    group = torus.place([5, 0, 15])
    assert group.ranks.tolist() == [5, 0, 15]
    assert group.num_links == torus.num_links
    assert group.coordinates.tolist() == [[1, 1], [0, 0], [3, 3]]
    assert parse("switch:3").place(["rank2", "switch0"]).ranks.tolist() == [2, 3]
    with pytest.raises(TopologyError, match="has no node 'gpu7'"):
        torus.place(["gpu7"])
    with pytest.raises(TopologyError, match="ranks 0 to 15; found rank 16"):
        torus.place([16])


@pytest.mark.parametrize(
    ("which", "number"),
    [
        ("", 64),
        ("nic", 64),
        ("host0->edge0", 1),
        ("host0<->edge0", 2),
        ("host->edge0", 4),
        ("edge->core", 16),
        ("core->edge", 16),
        ("edge<->core", 32),
        ("edge1<->core", 8),
    ],
)
def test_links_are_named_by_class_by_nodes_and_by_kinds_of_nodes(which: str, number: int) -> None:
    tree = parse("fat-tree:16,levels=2,bandwidth=8B/s")
    changed = tree.with_links(which, bytes_per_second=1.0, seconds=7.0)
    assert (changed.bytes_per_second == 1.0).sum() == (changed.seconds == 7.0).sum() == number
    wanted = which.replace("<", "").partition("->")
    for name in changed.link_names((changed.seconds == 7.0).nonzero()[0].tolist()):
        assert which in ("", "nic") or (wanted[0] in name and wanted[2] in name)


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("trunk", r"by class \(nic\), or .* kinds of nodes \(host<->edge, edge<->core\); found 'trunk'"),
        ("edge0-core0", r"found 'edge0-core0'; did you mean 'edge<->core'\?"),
        ("host->core", "no link host->core; links lead between these kinds of nodes: host<->edge, edge<->core"),
        (
            "egde<->core",
            "no node 'egde'; its nodes are host0, .*; kinds of nodes: host, edge, core; did you mean 'edge'",
        ),
    ],
)
def test_links_that_do_not_exist_are_refused_with_those_that_do(which: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        parse("fat-tree:16,levels=2").with_links(which, seconds=0.0)


def test_one_link_can_be_made_slow_one_way() -> None:
    ring = parse("ring:4,bandwidth=8B/s").with_links("rank1->rank2", bytes_per_second=1.0, seconds=3.0)
    [there] = np.flatnonzero((ring.link_source == 1) & (ring.link_target == 2))
    [back] = np.flatnonzero((ring.link_source == 2) & (ring.link_target == 1))
    assert (ring.bytes_per_second[there], ring.seconds[there], ring.bytes_per_second[back]) == (1, 3, 8)
    with pytest.raises(TopologyError, match="has no link rank0->rank2"):
        ring.with_links("rank0->rank2", seconds=0)
    with pytest.raises(TopologyError, match="has no node 'x'"):
        ring.with_links("rank0->x", seconds=0)


def test_parallel_links_share_flows_by_key() -> None:
    double = pair(
        **{
            column: np.repeat(getattr(pair(), column), 2)
            for column in ("link_source", "link_target", "bytes_per_second", "seconds", "link_class")
        }
    )
    flows = np.zeros(400, np.int64)
    used, counts = np.unique(double.paths(flows, flows + 1, np.arange(400)).links, return_counts=True)
    assert used.tolist() == [0, 1, 2, 3]
    assert counts.min() > 150
    alike = double.paths(flows, flows + 1).links.reshape(-1, 2)
    assert (alike == alike[0]).all()


def test_names_are_kinds_and_numbers_unless_given() -> None:
    assert pair().node_names == ("rank0", "rank1", "switch0")
    assert pair(names=("a", "b", "s")).link_names([1]) == ["s->b"]


def test_every_way_leads_from_end_to_end() -> None:
    all_ways(pair())


def test_a_network_is_one_line_in_a_notebook() -> None:
    assert repr(parse("torus:4x4")) == "<Topology torus:4x4: 16 ranks, 16 nodes, 64 links>"
    assert repr(parse("ring:1")) == "<Topology ring:1: 1 rank, 1 node, 0 links>"
