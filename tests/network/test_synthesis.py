"""Schedules that are synthesised for a network: proved, as good as the cut allows, and as fast in the simulator."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import (
    ShortestPath,
    Topology,
    find_optimum,
    lanes_of,
    lower_bound,
    match_links,
    parse,
    rounds_of,
    search_tuple,
    simulate,
    synthesise_schedule,
)
from hocket.network.bounds.max_flow import PlainMaxFlow, make_max_flow
from hocket.network.drawing import Drawing
from hocket.network.links import Link
from hocket.network.simulation.simulation_options import PIECE_BYTES
from hocket.network.synthesis.packing import pack_trees
from hocket.network.synthesis.throughput import optimum_with_trees
from hocket.schedule import Builder, verify

_A100 = "dgx-a100:{},pcie=no,direct-bandwidth=300GB/s,nic-bandwidth=25GB/s"
_H100 = "dgx-h100:{},pcie=no,direct-bandwidth=450GB/s,nic-bandwidth=50GB/s"
_PIECES = 1024  # of each chunk: enough that only bandwidth counts


def _odd_switches(seed: int) -> Topology:
    """Ranks and switches in a random connected graph, with cables of random bandwidth."""
    random = np.random.default_rng(seed)
    drawing = Drawing(f"odd switches {seed}")
    nodes = np.concatenate([drawing.nodes("gpu", 6, forwards=False), drawing.nodes("switch", 3)])
    cables = [(rank, 6 + rank % 3) for rank in range(6)] + [(6, 7), (7, 8), (6, 8)]
    cables += [tuple(random.choice(6, 2, replace=False).tolist()) for _ in range(4)]
    for one, other in cables:
        drawing.cable(nodes[one], nodes[other], Link("nvlink", float(random.integers(1, 6)) * 1e9, 1e-6))
    return drawing.topology(nodes[:6], ShortestPath())


def _odd_ranks(seed: int) -> Topology:
    """Ranks in a ring with chords. The two directions of a cable differ."""
    random = np.random.default_rng(seed)
    drawing, p = Drawing(f"odd ranks {seed}"), 7
    nodes = drawing.nodes("gpu", p)
    pairs = [(rank, (rank + 1) % p) for rank in range(p)] + [(rank, (rank + 3) % p) for rank in range(0, p, 2)]
    for one, other in (*pairs, *(pair[::-1] for pair in pairs)):
        drawing.one_way(nodes[one], nodes[other], Link("nvlink", float(random.integers(1, 5)) * 1e9, 1e-6))
    return drawing.topology(nodes, ShortestPath())


_NETWORKS = {
    **{name: name for name in ("line:5", "ring:4", "ring:9", "torus:3x3", "torus:4x4", "torus:2x3x4", "mesh:3x3")},
    **{name: name for name in ("mesh:2x5", "hypercube:3", "hypercube:4", "fully-connected:5", "switch:8")},
    **{name: name for name in ("fat-tree:16", "fat-tree:16,levels=2,radix=8", "dgx-1v:1,pcie=no")},
    "NPU": "npu8:1,direct-latency=1us",
    "A100 1x8": _A100.format(1),
    "A100 2x8": _A100.format(2),
    "H100 2x8": _H100.format(2),
    "MI250": "mi250:1,direct-bandwidth=50GB/s",
    **{name: name for name in ("dgx-a100:2", "fat-tree:16,oversubscription=2", "mi250:1")},
}
_ODD = {"odd switches": _odd_switches, "odd ranks": _odd_ranks}


def _check(topology: Topology, collective: str, root: int = 0) -> None:
    """Proves the synthesised schedule, and compares its busiest link and its time with the optimum."""
    optimum = find_optimum(topology, collective, root)
    made = synthesise_schedule(optimum)
    verify(made.schedule)
    num_bytes = float(made.schedule.vector_chunks * PIECE_BYTES * _PIECES)
    best = num_bytes / optimum.bytes_per_second
    result = simulate(made.schedule, made.network, num_bytes)
    busy = result.link_seconds.max()
    if collective == "all_reduce":  # the two parts may use different links at the same time
        assert busy <= best * (1 + 1e-6)
    else:
        assert busy == pytest.approx(best, rel=1e-6)
        assert best == pytest.approx(lower_bound(topology, collective, num_bytes, root=root).seconds, rel=1e-3)
    assert busy * (1 - 1e-9) <= result.seconds <= best * 1.01


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
@pytest.mark.parametrize("name", [*_NETWORKS, *(f"{name} {seed}" for name in _ODD for seed in range(2))])
def test_all_gather_and_back_reach_the_optimum(name: str) -> None:
    kind, _, seed = name.rpartition(" ")
    topology = _ODD[kind](int(seed)) if kind in _ODD else parse(_NETWORKS[name])
    for collective in ("all_gather", "reduce_scatter"):
        _check(topology, collective)


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
@pytest.mark.parametrize("name", ["ring:9", "torus:4x4", "mesh:3x3", "hypercube:3", "fat-tree:16", "MI250", "H100 2x8"])
def test_all_reduce_is_as_fast_as_both_of_its_parts(name: str) -> None:
    _check(parse(_NETWORKS[name]), "all_reduce")


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize("name", ["ring:4", "torus:3x3", "switch:8", "dgx-1v:1,pcie=no", "NPU", "dgx-a100:2"])
def test_rooted_collectives_reach_the_optimum(name: str, collective: str) -> None:
    _check(parse(_NETWORKS[name]), collective, root=1)


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
@pytest.mark.parametrize("seed", range(10))
def test_all_collectives_reach_the_optimum_where_messages_share_switches(seed: int) -> None:
    for collective in ("all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"):
        rooted = collective not in ("all_gather", "reduce_scatter")
        _check(_odd_switches(seed), collective, root=seed % 6 if rooted else 0)


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
@pytest.mark.parametrize("ranks", [64, 128])
def test_a_cluster_takes_seconds(ranks: int) -> None:
    topology = parse(_H100.format(ranks // 8))
    optimum = find_optimum(topology, "all_gather")
    assert optimum.bytes_per_second == pytest.approx(ranks * 400e9 / (ranks - 8))
    if ranks == 64:
        made = synthesise_schedule(optimum)
        assert made.schedule.num_steps <= 4
        num_bytes = 1e12
        busy = simulate(made.schedule, made.network, num_bytes, level="steps").link_seconds.max()
        assert busy == pytest.approx(num_bytes / optimum.bytes_per_second, rel=1e-6)


def test_the_cut_is_that_of_the_bandwidth() -> None:
    for collective in ("all_gather", "scatter", "reduce"):
        topology = parse(_A100.format(4))
        optimum = find_optimum(topology, collective, 3)
        crossing = optimum.before[topology.link_source] & ~optimum.before[topology.link_target]
        assert np.flatnonzero(crossing).tolist() == sorted(optimum.links.tolist())
        ranks = int(optimum.before[topology.ranks].sum())
        share = {"all_gather": ranks / 32, "scatter": 1 - ranks / 32, "reduce": 1}[collective]
        capacity = topology.bytes_per_second[optimum.links].sum()
        assert optimum.bytes_per_second == pytest.approx(capacity / share)


def test_too_many_exact_shares_are_rounded_to_fewer() -> None:
    optimum = find_optimum(parse("dgx-h100:2"), "all_gather")
    assert optimum.num_trees == 14
    assert find_optimum(parse("dgx-h100:2"), "broadcast").num_trees == 8  # the fewest of many numbers that are exact
    assert 0.999 * optimum.bytes_per_second <= optimum.reached_bytes_per_second < optimum.bytes_per_second
    assert optimum_with_trees(parse(_A100.format(2)), 13) == pytest.approx(346.666667e9)


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
def test_idle_accelerators_forward_only_if_they_may() -> None:
    drawing = Drawing("four in a row, and a long way round")
    gpus = drawing.nodes("gpu", 4, forwards=False)
    drawing.cable(gpus[:-1], gpus[1:], Link("nvlink", 4e9, 0.0))
    drawing.cable(gpus[:1], gpus[3:], Link("nvlink", 1e9, 0.0))
    topology = drawing.topology(gpus, ShortestPath()).place([0, 3])
    assert find_optimum(topology, "all_gather").bytes_per_second == pytest.approx(2e9)
    assert lower_bound(topology, "all_gather", 2e9).seconds == pytest.approx(1.0)
    allowed = find_optimum(topology, "all_gather", forwarding=True)
    assert allowed.bytes_per_second == pytest.approx(10e9)
    made = synthesise_schedule(allowed)
    assert simulate(made.schedule, made.network, 1e10).seconds == pytest.approx(1.0, rel=0.01)
    with pytest.raises(TopologyError, match=r"disconnected"):
        find_optimum(drawing.topology(gpus, ShortestPath()).place([0, 2]), "all_gather")


def test_paths_of_a_schedule_are_for_this_schedule() -> None:
    made = synthesise_schedule(find_optimum(parse("ring:5"), "all_gather"))
    other = Builder("all_gather", 5, 5)
    with other.step():
        other.copy(src=0, dst=2, chunk=0)
    with pytest.raises(TopologyError, match=r"made for one schedule, which sends nothing from rank0 to rank2"):
        simulate(other.finish(), made.network, 1e6)


@pytest.mark.parametrize(
    ("collective", "reason"),
    [("all_to_all", "every pair of ranks"), ("barrier", "moves no data"), ("all_gather_v", "differ in length")],
)
def test_collectives_without_a_known_optimum_are_refused(collective: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_optimum(parse("ring:4"), collective)


def test_a_single_rank_and_a_wrong_root_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 ranks or more"):
        find_optimum(parse("ring:4").place([0]), "all_gather")
    with pytest.raises(ValueError, match="expected a root from 0 to 3, found 4"):
        find_optimum(parse("ring:4"), "broadcast", 4)


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
def test_a_switch_with_less_out_than_in_may_have_no_trees() -> None:
    topology = parse("switch:4,bandwidth=1GB/s")
    slow = topology.link_source == int(topology.link_target[topology.link_source == topology.ranks[0]][0])
    slow &= topology.link_target == topology.ranks[1]
    odd = replace(topology, bytes_per_second=np.where(slow, 0.5e9, topology.bytes_per_second))
    _check(odd, "all_gather")  # what is left over in one direction does no harm


def test_packed_trees_span_all_nodes_and_fit() -> None:
    topology = _odd_ranks(5)
    optimum = find_optimum(topology, "all_gather")
    trunks: dict[tuple[int, int], int] = {}
    for source, target, shares in zip(topology.link_source, topology.link_target, optimum.shares, strict=True):
        trunks[int(source), int(target)] = trunks.get((int(source), int(target)), 0) + int(shares)
    roots = dict.fromkeys(topology.ranks.tolist(), optimum.num_trees)
    used = dict.fromkeys(trunks, 0)
    for tree in pack_trees(trunks, roots, topology.ranks.tolist()):
        assert sorted(tree.depth) == sorted(roots) and len(tree.edges) == len(roots) - 1
        roots[tree.root] -= tree.shares
        for ends in tree.edges:
            used[ends] += tree.shares
    assert set(roots.values()) == {0}
    assert all(used[ends] <= trunks[ends] for ends in trunks)


def test_flows_are_the_same_without_compiled_code() -> None:
    topology = _odd_switches(7)
    capacity = (topology.bytes_per_second / 1e9).astype(np.int64)
    arguments = (topology.num_nodes, topology.link_source, topology.link_target)
    compiled, plain = make_max_flow(*arguments), PlainMaxFlow(*arguments)
    targets = topology.ranks[1:].copy()
    for enough in (1, 4, 7, 100):
        assert compiled.find_short(capacity, 0, targets, enough) == plain.find_short(capacity, 0, targets, enough)
    for flow in (compiled, plain):
        most, along = flow.run(capacity, 0, 1), np.empty(topology.num_links, np.int64)
        flow.write_flows(along)
        balance = np.bincount(topology.link_target, along) - np.bincount(topology.link_source, along)
        assert (along <= capacity).all() and balance.astype(int).tolist() == [-most, most, 0, 0, 0, 0, 0, 0, 0]


_SCATTERED = [((1, 2, 2), True), ((2, 2, 3), True), ((3, 2, 4), True), ((3, 2, 2), False), ((4, 2, 3), False)]


@pytest.mark.slow(reason="z3 searches the schedules of SCCL")
@pytest.mark.parametrize(("wanted", "exists"), _SCATTERED)
def test_scatter_and_gather_of_sccl(wanted: tuple[int, int, int], *, exists: bool) -> None:
    lanes = lanes_of(parse("dgx-1v:1"))
    for collective in ("scatter", "gather"):
        schedule = search_tuple(collective, lanes, 8, *wanted)
        assert (schedule is not None) == exists
        if schedule is not None:
            verify(schedule)
            assert (schedule.chunks_per_block, schedule.num_steps) == wanted[:2]
            assert rounds_of(schedule, lanes) <= wanted[2]


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "scatter", "gather", "broadcast", "reduce"])
def test_matching_needs_as_few_steps_as_links_allow(collective: str) -> None:
    for name, chunks in (("torus:3x4", 2), ("ring:6", 1), ("hypercube:3", 3)):
        topology = parse(name)
        schedule = match_links(topology, collective, chunks, root=1)
        verify(schedule)
        lanes = lanes_of(topology)
        assert rounds_of(schedule, lanes) == schedule.num_steps  # a link carries one chunk in each step
        degree = topology.num_links // topology.num_ranks
        if collective not in ("broadcast", "reduce"):
            assert schedule.num_steps == -(-(topology.num_ranks - 1) * chunks // degree)


# Published by TACOS: the shape, GiB/s along both dimensions, the latency in us, MiB in all, and the time in us.
_UNEQUAL = [
    ((5, 5), (50, 75), 0.5, 1024, 8005.0),
    ((8, 5), (80, 35), 1.0, 1024, 8595.43),
    ((7, 10), (16, 73), 1.5, 4096, 44612.47),
]


@pytest.mark.slow(reason="thousands of pieces, which only compiled code simulates quickly")
@pytest.mark.parametrize(("shape", "speeds", "latency", "mebibytes", "microseconds"), _UNEQUAL)
def test_links_of_unequal_bandwidths_are_matched(
    shape: tuple[int, int], speeds: tuple[int, int], latency: float, mebibytes: int, microseconds: float
) -> None:
    mesh = parse(f"mesh:{shape[0]}x{shape[1]},latency={latency}us")
    in_row = np.abs(mesh.link_source - mesh.link_target) == 1
    topology = replace(mesh, bytes_per_second=np.where(in_row, speeds[1], speeds[0]) * 2.0**30)
    schedule = match_links(topology, "all_gather", 1)
    verify(schedule)
    assert simulate(schedule, topology, mebibytes * 2.0**20).seconds * 1e6 == pytest.approx(microseconds, rel=0.01)


def test_double_links_carry_twice_as_much() -> None:
    """Without the nodes that are no ranks: PCIe switches, CPUs and cards."""
    topology = parse("dgx-1v:1")
    schedule = match_links(topology, "scatter", 2)
    verify(schedule)
    lanes, carried = lanes_of(topology), dict[tuple[int, int], int]()
    for step in schedule.steps():
        for pair in zip(step.src.tolist(), step.dst.tolist(), strict=True):
            carried[pair] = carried.get(pair, 0) + 1
    assert max(number / lanes[pair] for pair, number in carried.items()) <= 3  # 14 chunks over 6 lanes


def test_searches_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        match_links(parse("ring:4"), "all_to_all", 1)
    with pytest.raises(ValueError, match="a round or more per step"):
        search_tuple("all_gather", lanes_of(parse("ring:4")), 4, 1, 3, 2)
    with pytest.raises(ValueError, match="expected 1 chunk per block or more"):
        match_links(parse("ring:4"), "all_gather", 0)
    for root in (-1, 4):
        with pytest.raises(ValueError, match=f"expected a root from 0 to 3, found {root}"):
            match_links(parse("ring:4"), "broadcast", 1, root=root)
        with pytest.raises(ValueError, match=f"expected a root from 0 to 3, found {root}"):
            search_tuple("broadcast", lanes_of(parse("ring:4")), 4, 1, 2, 2, root=root)
    alone = parse("ring:4").place([0])
    with pytest.raises(ValueError, match="expected 2 ranks or more"):
        match_links(alone, "all_gather", 1)
    with pytest.raises(ValueError, match="expected 2 ranks or more"):
        search_tuple("all_gather", lanes_of(alone), 1, 1, 1, 1)
    apart = parse("ring:6").place([0, 1, 3])
    for topology, missing in ((parse("switch:4"), "rank0 to rank1"), (apart, "rank0 to rank3")):
        with pytest.raises(TopologyError, match=f"without switches, .*; found none from {missing}"):
            match_links(topology, "all_gather", 1)
