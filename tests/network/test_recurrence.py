"""The compiled event engine skips repetitions, with the same result as if it simulated every one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS
from hocket.network import SimulationOptions, Topology, parse, traffic_of
from hocket.network.simulation.engine import run_events
from hocket.network.simulation.jobs import make_job
from hocket.network.simulation.periodic import never_contends
from hocket.network.simulation.traffic import Floats, Traffic, TrafficPattern

OPTIONS = {
    "whole": SimulationOptions(piece_bytes=math.inf),
    "pieces": SimulationOptions(piece_bytes=20000),
    "work": SimulationOptions(piece_bytes=20000, reduce_bytes_per_second=1e10),
    "overheads": SimulationOptions(
        piece_bytes=30000, send_seconds=1e-7, receive_seconds=3e-7, reduce_bytes_per_second=1e10, launch_seconds=1e-6
    ),
    "gaps": SimulationOptions(piece_bytes=20000, send_seconds=1e-7, gap_seconds=4e-7, eager_bytes=15000),
    "packets": SimulationOptions(store_and_forward_bytes=30000, reduce_bytes_per_second=1e10),
    "ticks": SimulationOptions(store_and_forward_bytes=math.inf, tick_seconds=1e-9),
}
FLOWS = [name for name, one in OPTIONS.items() if one.store_and_forward_bytes is None]
CHUNK_BYTES = 90000.0


def ends(traffic: Traffic, topology: Topology, options: SimulationOptions, *, every: bool) -> Floats:
    """Returns when each rank ends in the event engine. every: record all messages, so that no repetition is skipped."""
    job = make_job(traffic, topology, CHUNK_BYTES * traffic.chunks_per_vector, options.launch_seconds)
    work = tuple(one.reduced / options.reduce_bytes_per_second for one in traffic.patterns)
    (found,), _ = run_events([job], topology.seconds, options, [work], record=every)
    return found


def transposed(num_ranks: int) -> Topology:
    """A fat tree with neighbours in different groups, and too few links between the groups."""
    size = math.isqrt(num_ranks)
    order = np.arange(num_ranks).reshape(size, size).T.ravel().tolist()
    return parse(f"fat-tree:{num_ranks},radix={2 * size},oversubscription={size}").place(order)


def ring(num_ranks: int, *times: int) -> Traffic:
    """A ring with these numbers of steps."""
    traffic = traffic_of(ALGORITHMS["all_reduce", "ring"].build(num_ranks))
    return replace(traffic, repeats=tuple(enumerate(times)))


@st.composite
def traffics(draw: st.DrawFn, num_ranks: int, most: int) -> Traffic:
    """Two patterns, repeated in turns: each a ring through all ranks in random order, and a few more messages."""
    random = np.random.default_rng(draw(st.integers(0, 9999)))

    def pattern() -> TrafficPattern:
        order = random.permutation(num_ranks)
        more = random.integers(0, num_ranks, (2, draw(st.integers(0, 4))))
        pairs = np.concatenate((np.stack((order, np.roll(order, -1))), more), axis=1)
        source, target = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
        apart = np.argsort(source * num_ranks + (target - source) % num_ranks)
        reduced = random.integers(0, 3, num_ranks)
        chunks = random.integers(1, 3, len(source))
        return TrafficPattern(source[apart], target[apart], chunks, reduced, np.zeros_like(reduced))

    patterns = (pattern(), pattern())
    repeats = tuple((number % 2, draw(st.integers(1, most))) for number in range(draw(st.integers(1, 3))))
    return Traffic(num_ranks, patterns, repeats, num_ranks)


KINDS = ("ring:7", "mesh:2x3", "torus:2x3", "switch:5", "fat-tree:8,radix=4,oversubscription=2", "dragonfly:2,1,1,3")


def varied(topology: Topology, seed: int) -> Topology:
    """No two links are alike: with symmetry, rounding errors would grow until they decide which message goes first."""
    speeds = topology.bytes_per_second * np.random.default_rng(seed).uniform(0.8, 1.2, len(topology.bytes_per_second))
    return replace(topology, bytes_per_second=speeds)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data(), kind=st.sampled_from(KINDS), options=st.sampled_from(FLOWS), seed=st.integers(0, 999))
def test_what_is_left_out_changes_nothing(data: st.DataObject, kind: str, options: str, seed: int) -> None:
    topology = varied(parse(kind), seed)
    traffic = data.draw(traffics(topology.num_ranks, 200))
    few, every = (ends(traffic, topology, OPTIONS[options], every=each) for each in (False, True))
    assert few == pytest.approx(every, rel=1e-11, abs=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), kind=st.sampled_from(KINDS), options=st.sampled_from(FLOWS), seed=st.integers(0, 999))
def test_the_plain_engine_that_leaves_out_nothing_says_the_same(
    data: st.DataObject, kind: str, options: str, seed: int
) -> None:
    topology = varied(parse(kind), seed)
    traffic = data.draw(traffics(topology.num_ranks, 20))
    few = ends(traffic, topology, OPTIONS[options], every=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hocket.network.compiled.simulator", None)
        every = ends(traffic, topology, OPTIONS[options], every=False)
    assert few == pytest.approx(every, rel=1e-11, abs=0)


@pytest.mark.parametrize("options", [pytest.param(OPTIONS[name], id=name) for name in FLOWS])
@pytest.mark.parametrize("slow", [False, True])
def test_a_contended_ring_that_nobody_could_go_through(options: SimulationOptions, *, slow: bool) -> None:
    topology, num_ranks = transposed(16), 16
    if slow:
        [up] = topology.link_names([3])
        topology = topology.with_links(up, bytes_per_second=1e9)
    assert not never_contends(make_job(ring(num_ranks, 1, 1), topology, 1e6), options)
    few, first, more = (
        ends(ring(num_ranks, *times), topology, options, every=True) for times in ((960, 960), (1200, 960), (960, 1200))
    )
    found = ends(ring(num_ranks, 960 + 240_000_000, 960 + 480_000_000), topology, options, every=False)
    assert found == pytest.approx(few + 1e6 * (first - few) + 2e6 * (more - few), rel=1e-9, abs=0)


def test_pieces_of_a_ring_that_contends_are_followed_to_the_end() -> None:
    """More ranks. Those at the end of groups wait for others, and it takes several repetitions until all are alike."""
    topology, options = transposed(64).place(range(56)), OPTIONS["pieces"]
    traffic = ring(56, 55, 55)
    few, every = (ends(traffic, topology, options, every=each) for each in (False, True))
    assert few == pytest.approx(every, rel=1e-11, abs=0)
    assert (few != every).any(), "rounding shows that something was left out"


def test_paces_that_differ_by_little_are_not_taken_for_one() -> None:
    """Two independent pairs. The difference of their paces in one repetition is as small as the rounding of many."""
    topology, nothing = parse("fully-connected:4"), np.zeros(4, np.int64)
    slow = 1 - 1e-8 * ((topology.link_source >= 2) & (topology.link_target >= 2))
    topology = replace(topology, bytes_per_second=topology.bytes_per_second * slow)
    pairs = TrafficPattern(np.arange(4), np.arange(4) ^ 1, np.ones(4, np.int64), nothing, nothing)
    few, more, most = (
        ends(Traffic(4, (pairs,), ((0, repeat),), 4), topology, OPTIONS["whole"], every=False)
        for repeat in (1, 1001, 3_000_001)
    )
    assert most == pytest.approx(few + 3000 * (more - few), rel=1e-9, abs=0)


@pytest.mark.parametrize("options", ["packets", "ticks"])
def test_of_packets_no_repetition_is_left_out(options: str) -> None:
    few, every = (ends(ring(16, 300, 300), transposed(16), OPTIONS[options], every=each) for each in (False, True))
    assert (few == every).all()


def test_of_several_collectives_at_once_no_repetition_is_left_out() -> None:
    topology, options = transposed(16), OPTIONS["pieces"]
    jobs = [make_job(ring(16, repeat), topology, 1e6, start) for repeat, start in ((300, 0.0), (200, 1e-4))]
    works = [tuple(np.zeros(16) for _ in job.traffic.patterns) for job in jobs]
    few, every = (run_events(jobs, topology.seconds, options, works, record=each)[0] for each in (False, True))
    for one, other in zip(few, every, strict=True):
        assert (one == other).all()
