"""Bounds: known ones by hand, published ones, and the worst cut among all cuts of small networks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import ScheduleError
from hocket.network import ShortestPath, Topology, find_optimum, lower_bound, parse
from hocket.network.bounds import cuts, network_bound
from hocket.schedule import COLLECTIVES
from tests.network import goldens_bounds, validation

UNIT = ",bandwidth=1B/s,latency=0s"


@pytest.mark.slow(reason="z3 searches the schedules of SCCL")
def test_published_figures() -> None:
    for name, ours, published, tolerance, _ in goldens_bounds.entries():
        if tolerance == goldens_bounds.AT_MOST:
            assert ours <= published * (1 + 1e-12), name
        else:
            assert abs(ours - published) <= tolerance * abs(published), name


def test_a_bound_above_what_was_reached_is_off() -> None:
    entries = [("high", 1.9, 1.0, goldens_bounds.AT_MOST, ""), ("low", 0.1, 1.0, goldens_bounds.AT_MOST, "")]
    table, off = validation._table(entries)
    assert off == ["high"]
    assert "|low|0.1|1|-90.0%|at most||" in table


@pytest.mark.parametrize(
    ("text", "collective", "seconds"),
    [
        ("switch:4", "all_gather", 3 / 4),  # what every rank receives
        ("switch:4", "reduce_scatter", 3 / 4),
        ("switch:4", "all_reduce", 2 * 3 / 4),
        ("switch:4", "broadcast", 1),
        ("switch:4", "reduce", 1),
        ("switch:4", "gather", 3 / 4),
        ("switch:4", "scatter", 3 / 4),
        ("switch:4", "all_to_all", 3 / 4),
        ("switch:4", "all_gather_v", 3 / 4),
        ("switch:4,reduces=yes", "all_reduce", 1),
        ("switch:4,reduces=yes", "all_gather", 3 / 4),
        ("ring:8", "all_to_all", 1),  # n p / 8 for each link
        ("ring:8", "all_gather", 7 / 8 / 2),
        ("torus:4x4", "all_to_all", 16 / 4 / 8),
        ("fat-tree:16,levels=2,radix=8,oversubscription=3", "all_to_all", 6 * 10 / 16 / 2),
        ("fat-tree:16,levels=2,radix=8,oversubscription=3", "all_gather", 15 / 16),
        ("line:3", "all_reduce", 4 / 4),
        ("ring:1", "all_reduce", 0),
    ],
)
def test_bounds_by_hand(text: str, collective: str, seconds: float) -> None:
    assert lower_bound(parse(text + UNIT), collective, 1.0).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if not name.endswith("_v")])
def test_small_messages_wait_for_the_farthest_rank(collective: str) -> None:
    topology = parse("line:5,bandwidth=1GB/s,latency=2s").with_links("rank1->rank0", seconds=5.0)
    back = 5 + 3 * 2
    expected = 8 if collective in ("broadcast", "scatter") else back
    bound = lower_bound(topology, collective, 1.0)
    assert bound.latency_seconds == expected
    assert (bound.seconds, bound.binding) == (expected, "latency")
    assert lower_bound(topology, collective, 0.0).bandwidth_seconds == 0


def test_the_last_byte_travels_too() -> None:
    pair = parse("ring:2,bandwidth=1B/s,latency=3s")
    assert lower_bound(pair, "broadcast", 10.0).seconds == 13
    through = parse("switch:2,bandwidth=1B/s,latency=3s")
    assert lower_bound(through, "broadcast", 10.0).seconds == 16


def test_additions_are_shared_by_ranks_or_done_by_switches() -> None:
    bound = lower_bound(parse("switch:4" + UNIT), "all_reduce", 1.0, reduce_seconds_per_byte=8.0)
    assert (bound.reduction_seconds, bound.seconds, bound.binding) == (6, 6, "reduction")
    assert lower_bound(parse("switch:4" + UNIT), "all_gather", 1.0, reduce_seconds_per_byte=8.0).reduction_seconds == 0
    switch = parse("switch:4,reduces=yes" + UNIT)
    assert lower_bound(switch, "all_reduce", 1.0, reduce_seconds_per_byte=8.0).reduction_seconds == 0


def test_nvswitches_reduce_within_hosts_only() -> None:
    sizes = ",pcie=no,direct-bandwidth=10B/s,nic-bandwidth=1B/s,direct-latency=0s,nic-latency=0s"
    plain, nvls = parse("dgx-h100:4" + sizes), parse("dgx-h100:4,reduces=yes" + sizes)
    hosts = 2 * 3 / (4 * 8)  # four hosts exchange sums over eight cards each
    assert lower_bound(plain, "all_reduce", 1.0).seconds == pytest.approx(max(hosts, 2 * 31 / (32 * 11)))
    assert lower_bound(nvls, "all_reduce", 1.0).seconds == pytest.approx(hosts)


def test_a_rank_on_a_switch_that_reduces_is_none() -> None:
    topology = parse("switch:4,reduces=yes,bandwidth=1B/s,latency=1s")
    with_switch = topology.place([0, 1, 2, 3, "switch0"])
    for collective in ("all_reduce", "all_gather"):
        expected, found = (lower_bound(network, collective, 1.0) for network in (topology, with_switch))
        assert (found.seconds, found.latency_seconds) == (expected.seconds, expected.latency_seconds)


def test_the_links_of_the_worst_cut_are_named() -> None:
    topology = parse("torus:4x4,bandwidth=8B/s,latency=0s").with_links("rank5->rank6", bytes_per_second=1.0)
    bound = lower_bound(topology, "all_gather", 1.0)
    assert sorted(topology.link_names(bound.binding_links)) == [
        "rank10->rank6",
        "rank2->rank6",
        "rank5->rank6",
        "rank7->rank6",
    ]
    assert bound.exact
    assert bound.seconds == pytest.approx(15 / 16 / 25)
    assert lower_bound(topology, "broadcast", 1.0, root=6).seconds == pytest.approx(1 / 32)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="expected a root from 0 to 3, found 4"):
        lower_bound(parse("ring:4"), "broadcast", 1.0, root=4)
    with pytest.raises(ScheduleError, match="expected a collective"):
        lower_bound(parse("ring:4"), "all_guess", 1.0)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Up to five ranks and three switches: a ring of all, and more random links, each in one direction."""
    num_ranks, num_switches = draw(st.integers(2, 5)), draw(st.integers(0, 3))
    num_nodes = num_ranks + num_switches
    order = draw(st.permutations(range(num_nodes)))
    ends = {(one, other) for one, other in zip(order, [*order[1:], order[0]], strict=True)}
    node = st.integers(0, num_nodes - 1)
    ends |= draw(st.sets(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), max_size=12))
    source, target = np.array(sorted(ends), np.int64).T
    speeds = draw(st.lists(st.integers(1, 9), min_size=len(source), max_size=len(source)))
    return Topology(
        name="random",
        node_kinds=np.array(["rank"] * num_ranks + ["switch"] * num_switches),
        ranks=np.arange(num_ranks),
        link_source=source.copy(),
        link_target=target.copy(),
        bytes_per_second=np.array(speeds, float),
        seconds=np.zeros(len(source)),
        link_class=np.full(len(source), "nic"),
        routing=ShortestPath(),
    )


def worst(topology: Topology, collective: str, root: int) -> float:
    """Returns the largest bound of all cuts, one by one."""
    p, found = topology.num_ranks, 0.0
    for chosen in itertools.product((False, True), repeat=topology.num_nodes):
        before = np.array(chosen)
        ranks = float(before[:p].sum())
        crossing = network_bound._CROSSING[collective](np.array(ranks), p, np.array(before[root]))
        if 0 < ranks < p and crossing > 0:
            found = max(found, float(crossing) / p / cuts.make_cut(topology, before).bytes_per_second)
    return found


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "gather", "scatter", "broadcast", "reduce"])
@given(networks())
@settings(max_examples=30, deadline=None)
def test_the_worst_cut_is_found(collective: str, topology: Topology) -> None:
    root = topology.num_ranks - 1
    bound = lower_bound(topology, collective, 1.0, root=root)
    # Together, parts that only forward data may give a higher bound than any cut.
    assert bound.seconds >= worst(topology, collective, root) * (1 - 1e-9)
    [searched, *_] = network_bound._searched(topology, collective, root)
    assert searched.seconds_per_byte / topology.num_ranks == pytest.approx(worst(topology, collective, root))


@given(networks())
@settings(max_examples=30, deadline=None)
def test_all_to_all_counts_cuts_or_hops(topology: Topology) -> None:
    bound = lower_bound(topology, "all_to_all", 1.0).seconds
    assert bound >= network_bound.carried_seconds_per_byte(topology) * (1 - 1e-9)


@pytest.mark.parametrize("text", ["torus:3x4", "hypercube:3", "ring:5", "mesh:3x3", "torus:4x4"])
def test_ranks_that_are_alike_need_one_flow(text: str) -> None:
    topology = parse(text)
    assert cuts.ranks_alike(topology) == (not text.startswith("mesh"))
    slow = topology.with_links("rank0->rank1", bytes_per_second=1.0)
    assert not cuts.ranks_alike(slow)
    cut = cuts.tightest(topology, range(topology.num_ranks))
    if not text.startswith("mesh"):
        one = cuts.tightest(topology, [0])
        assert one.bytes_per_second / one.ranks == cut.bytes_per_second / cut.ranks


def test_without_compiled_code_the_bounds_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["dgx-1v:1", "fat-tree:12,radix=6", "torus:3x3"]
    expected = [find_optimum(parse(text), "all_gather").bytes_per_second for text in texts]
    monkeypatch.setattr("hocket.network.compiled.simulator", None)
    assert [find_optimum(parse(text), "all_gather").bytes_per_second for text in texts] == expected


def test_many_ranks_are_bounded_by_what_is_seen() -> None:
    tree = parse("fat-tree:8192,bandwidth=1B/s,latency=1s")
    bound = lower_bound(tree, "all_gather", 1e6)
    assert bound.seconds == pytest.approx(8191 / 8192 * 1e6 + 2)
    assert not bound.exact
    assert len(bound.binding_links) == 1


def test_uneven_bandwidths_are_scaled_to_whole_numbers() -> None:
    topology = parse("ring:4")
    odd = replace(topology, bytes_per_second=np.array([1 / 3, 2 / 3] * 4))
    assert find_optimum(odd, "all_gather").bytes_per_second == pytest.approx(
        4 * cuts.tightest(odd, range(4)).bytes_per_second / 3
    )
    huge = replace(topology, bytes_per_second=np.array([1e18, 3e18] * 4))
    assert cuts.whole_capacities(huge.bytes_per_second, 4).max() < 2**62
