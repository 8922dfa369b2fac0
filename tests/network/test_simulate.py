"""Simulated times: levels compared with each other, with bounds, and with an engine in Python."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS
from hocket.errors import ResourceError, TopologyError
from hocket.network import SimulationOptions, Topology, parse, simulate, traffic_of
from hocket.network.simulation.engine import run_events
from hocket.network.simulation.jobs import make_job
from hocket.network.simulation.simulate import LEVELS, Run, simulate_together
from hocket.network.simulation.traffic import Traffic, TrafficPattern
from hocket.network.topology import Ints
from hocket.schedule import Builder, Schedule, lower_all
from hocket.schedule.lowering.dependencies import REMOTE

MIB = 2.0**20
WHOLE = SimulationOptions(piece_bytes=math.inf)
LINK = "bandwidth=10e9B/s,latency=1us"
BETA, ALPHA = 1e-10, 1e-6
KINDS = ("ring:8", "torus:3x3", "fat-tree:8,radix=4,oversubscription=2", "fully-connected:5", "dragonfly:2,1,1,3")


OPTIONS = {
    "pieces": SimulationOptions(piece_bytes=20000),
    "whole": WHOLE,
    "overheads": SimulationOptions(
        piece_bytes=math.inf, send_seconds=1e-7, receive_seconds=3e-7, reduce_bytes_per_second=1e10, launch_seconds=1e-6
    ),
    "everything": SimulationOptions(
        piece_bytes=40000,
        send_seconds=1e-7,
        receive_seconds=3e-7,
        reduce_bytes_per_second=1e10,
        copy_bytes_per_second=3e10,
    ),
    "gaps": SimulationOptions(piece_bytes=20000, send_seconds=1e-7, gap_seconds=4e-7, eager_bytes=15000),
    "packets": SimulationOptions(store_and_forward_bytes=30000, reduce_bytes_per_second=1e10),
    "ticks": SimulationOptions(store_and_forward_bytes=math.inf, tick_seconds=1e-9),
}


def built(num_ranks: int, *names: str) -> list[tuple[str, Schedule]]:
    """Returns the schedules of all algorithms that take this rank count, or only of those with these names."""
    return [
        (f"{collective} {name}", one.build(num_ranks))
        for (collective, name), one in ALGORITHMS.items()
        if one.allows(num_ranks) and (not names or name in names)
    ]


def has_one_transfer_per_step(schedule: Schedule) -> bool:
    """Returns whether in every step each rank sends and receives one message of the same length, and works as much."""
    traffic = traffic_of(schedule)
    everyone = list(range(traffic.num_ranks))
    return len(traffic.patterns) > 0 and all(
        pattern.source.tolist() == everyone
        and sorted(pattern.target.tolist()) == everyone
        and len(set(pattern.chunks.tolist())) == 1
        for pattern in traffic.patterns
    )


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 16, 31, 64])
def test_levels_agree_with_the_registry_where_steps_are_alike(num_ranks: int) -> None:
    topology = parse(f"fully-connected:{num_ranks},{LINK}")
    options = SimulationOptions(piece_bytes=math.inf, reduce_bytes_per_second=5e9)
    gamma, checked = 1 / 5e9, 0
    for (collective, name), algorithm in ALGORITHMS.items():
        if not algorithm.allows(num_ranks) or algorithm.steps is None or algorithm.sent is None:
            continue
        schedule = algorithm.build(num_ranks)
        if not has_one_transfer_per_step(schedule):
            continue
        layout = algorithm.layout(num_ranks)
        traffic = traffic_of(schedule)
        reduced = sum(
            times * int(traffic.patterns[pattern].reduced.max()) for pattern, times in traffic.repeats
        ) * traffic.chunk_bytes(MIB)
        steps, sent = layout.call(algorithm.steps), layout.call(algorithm.sent) * MIB
        expected = steps * ALPHA + sent * BETA + reduced * gamma
        for level in LEVELS:
            found = simulate(schedule, topology, MIB, level=level, options=options).seconds
            assert found == pytest.approx(expected, rel=1e-9, abs=0), (collective, name, level)
        checked += 1
    assert checked >= 6


@pytest.mark.parametrize("kind", KINDS)
def test_no_time_is_below_the_bound(kind: str) -> None:
    topology = parse(kind)
    for name, schedule in built(topology.num_ranks):
        for num_bytes, options in (
            (1.0, WHOLE),
            (1e5, OPTIONS["pieces"]),
            (64 * MIB, WHOLE),
            (1e5, OPTIONS["everything"]),
        ):
            result = simulate(schedule, topology, num_bytes, options=options)
            assert result.seconds >= result.bound_seconds * (1 - 1e-9), (name, num_bytes)
        for level in ("closed", "steps"):
            for num_bytes in (1.0, 64 * MIB):
                result = simulate(schedule, topology, num_bytes, level=level, options=OPTIONS["overheads"])
                assert result.seconds >= result.bound_seconds * (1 - 1e-9), (name, num_bytes, level)
                assert result.binding_share <= 1 + 1e-9, (name, num_bytes, level)


@settings(max_examples=60, deadline=None)
@given(
    one=st.sampled_from(sorted(ALGORITHMS)),
    num_ranks=st.integers(2, 12),
    slow=st.integers(0, 11),
    kind=st.sampled_from(["ring:12", "mesh:3x4", "switch:12", "fat-tree:12,radix=4,oversubscription=3"]),
    num_bytes=st.floats(0, 1e7),
    seed=st.integers(0, 99),
)
def test_no_time_is_below_the_bound_for_ranks_anywhere_and_a_slow_link(
    one: tuple[str, str], num_ranks: int, slow: int, kind: str, num_bytes: float, seed: int
) -> None:
    algorithm = ALGORITHMS[one]
    assume(algorithm.allows(num_ranks))
    places = np.random.default_rng(seed).permutation(12)[:num_ranks].tolist()
    topology = parse(kind).place(places)
    ends = (int(column[slow]) for column in (topology.link_source, topology.link_target))
    source, target = (topology.node_names[end] for end in ends)
    topology = topology.with_links(f"{source}->{target}", bytes_per_second=1e8, seconds=1e-5)
    result = simulate(algorithm.build(num_ranks, seed % num_ranks), topology, num_bytes, options=WHOLE)
    assert result.seconds >= result.bound_seconds * (1 - 1e-9)


SOME = ("ring", "halving_doubling", "direct", "double_tree", "pairwise", "nonuniform_bruck", "hierarchical", "chain")


@pytest.mark.parametrize("options", [pytest.param(one, id=name) for name, one in OPTIONS.items()])
@pytest.mark.parametrize("kind", ["torus:3x2", "fat-tree:8,radix=4,oversubscription=2", "fully-connected:4"])
def test_compiled_collapsed_or_neither_all_say_the_same(
    kind: str, options: SimulationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = parse(kind)
    schedules = built(topology.num_ranks, *SOME)
    compiled = [simulate(one, topology, 1e5, options=options) for _, one in schedules]
    recorded = [simulate(one, topology, 1e5, options=options, record=True) for _, one in schedules]
    monkeypatch.setattr("hocket.network.compiled.simulator", None)
    plain = [simulate(one, topology, 1e5, options=options, record=True) for _, one in schedules]
    for (name, _), one, other, third in zip(schedules, compiled, recorded, plain, strict=True):
        assert one.rank_seconds == pytest.approx(other.rank_seconds, rel=1e-9, abs=0), name
        assert third.rank_seconds == pytest.approx(other.rank_seconds, rel=1e-9, abs=0), name
        assert other.messages is not None and third.messages is not None
        assert np.sort(third.messages.arrived) == pytest.approx(np.sort(other.messages.arrived), rel=1e-9, abs=0), name


@settings(max_examples=40, deadline=None, derandomize=True)  # Rounding may grow until it decides what goes first.
@given(
    one=st.sampled_from(sorted(ALGORITHMS)),
    num_ranks=st.integers(2, 9),
    kind=st.sampled_from(["ring:12", "mesh:3x4", "fat-tree:12,radix=4,oversubscription=3", "dragonfly:2,2,1,3"]),
    slow=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_rates_that_are_kept_are_those_that_solving_all_again_gives(
    one: tuple[str, str], num_ranks: int, kind: str, slow: int, seed: int
) -> None:
    assume(ALGORITHMS[one].allows(num_ranks))
    topology = parse(kind).place(np.random.default_rng(seed).permutation(12)[:num_ranks].tolist())
    ends = (int(column[slow]) for column in (topology.link_source, topology.link_target))
    source, target = (topology.node_names[end] for end in ends)
    topology = topology.with_links(f"{source}->{target}", bytes_per_second=3e9)
    schedule = ALGORITHMS[one].build(num_ranks)
    compiled = simulate(schedule, topology, 1e5, options=OPTIONS["pieces"], record=True).seconds
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hocket.network.compiled.simulator", None)
        plain = simulate(schedule, topology, 1e5, options=OPTIONS["pieces"], record=True).seconds
    assert compiled == pytest.approx(plain, rel=1e-9, abs=0)


def sent_by(traffic: Traffic, kind: str, *, engine: str, reduces: float = math.inf) -> list[tuple[float, ...]]:
    """Returns (start, source, target, step, piece) of all sent pieces, by start. A chunk has two pieces of 1 KiB."""
    topology, options = parse(kind), SimulationOptions(piece_bytes=1024.0)
    job = make_job(traffic, topology, 2048.0 * traffic.chunks_per_vector)
    work = tuple(one.reduced / reduces for one in traffic.patterns)
    with pytest.MonkeyPatch.context() as patched:
        if engine == "plain":
            patched.setattr("hocket.network.compiled.simulator", None)
        _, found = run_events([job], topology.seconds, options, [work], record=True)
    assert found is not None
    columns = (found.started, found.source, found.target, found.step, found.piece)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def message(source: int, target: int, chunks: int, reducing: int = 0) -> TrafficPattern:
    """A step of one message, after which rank 0 reduces chunks."""
    columns = [np.array([one]) for one in (source, target, chunks)]
    return TrafficPattern(*columns, np.array([reducing, 0, 0]), np.zeros(3, int))


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_of_pieces_that_come_to_a_channel_at_once_that_of_the_earlier_step_goes_first(engine: str) -> None:
    """From 1 s to 3 s, the second piece to rank 0 and the first one to rank 1 share a link; the rest goes to rank 1."""
    traffic = Traffic(3, (message(2, 0, 1), message(2, 1, 1)), ((0, 1), (1, 2)), 3)
    sent = sent_by(traffic, "switch:3,bandwidth=1024B/s,latency=1s", engine=engine)
    assert sent[:3] == [(0, 2, 0, 0, 0), (1, 2, 0, 0, 1), (1, 2, 1, 1, 0)]
    assert sent[3:] == [(3, 2, 1, 1, 1), (4, 2, 1, 2, 0), (5, 2, 1, 2, 1)]


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_of_pieces_that_a_rank_could_work_on_at_once_that_of_the_earlier_step_goes_first(engine: str) -> None:
    """At 5 s, rank 0 gets the second piece of rank 1, and the first piece of rank 2, which belongs to the next step."""
    traffic = Traffic(3, (message(1, 0, 2, 1), message(2, 0, 4, 1), message(0, 1, 1)), ((0, 1), (1, 1), (2, 1)), 3)
    sent = sent_by(traffic, "fully-connected:3,bandwidth=1024B/s,latency=1s", engine=engine, reduces=1024.0)
    assert sent[-2:] == [(7, 0, 1, 2, 0), (10, 0, 1, 2, 1)]


@pytest.mark.parametrize("kind", ["torus:3x3", "fat-tree:8,radix=4,oversubscription=2"])
def test_what_is_sent_is_there_before(kind: str) -> None:
    """Checks every dependency of every plan, chunk by chunk: an instruction starts after those that it waits for."""
    topology = parse(kind)
    for name, schedule in built(topology.num_ranks, *SOME):
        result = simulate(schedule, topology, 1e5, options=WHOLE, record=True)
        assert result.messages is not None
        one = result.messages
        times = {
            (int(step), int(source), int(target)): (started, sent, arrived)
            for step, source, target, started, sent, arrived in zip(
                one.step, one.source, one.target, one.started, one.sent, one.arrived, strict=True
            )
        }
        for plan in lower_all(schedule, in_place=False):
            begins, ends = plan_times(plan, times)
            previous = 0
            for number, row in enumerate(plan.instructions.tolist()):
                for earlier in plan.dependencies[previous : row[4]].tolist():
                    assert ends[earlier] <= begins[number] * (1 + 1e-9) + 1e-15, (name, plan.rank, number)
                previous = row[4]


def plan_times(plan, times):
    """Returns when each instruction of a plan begins and ends, as far as messages show it."""
    begins, ends = [], []
    source_end = destination_end = 0
    for step, _, sources_end, destinations_end, _, _ in plan.instructions.tolist():
        sources = plan.sources[source_end:sources_end].tolist()
        destinations = plan.destinations[destination_end:destinations_end].tolist()
        sent = [times[step, plan.rank, peer] for peer, space, _ in destinations if space == REMOTE]
        received = [times[step, peer, plan.rank] for peer, space, *_ in sources if space == REMOTE]
        begins.append(min([one[0] for one in sent] or [math.inf]))
        ends.append(max([one[1] for one in sent] + [one[2] for one in received] or [0.0]))
        source_end, destination_end = sources_end, destinations_end
    return begins, ends


def test_a_rank_goes_on_when_its_own_inputs_are_there_not_when_all_are() -> None:
    topology = parse(f"fully-connected:4,{LINK}").with_links("rank2->rank3", seconds=1.0)
    builder = Builder("broadcast", 4, 1)
    for source, target in ((0, 1), (2, 3)):
        with builder.step():
            builder.copy(src=[source, 0], dst=[target, 2], chunk=0) if source == 0 else builder.copy(
                src=[source, 1], dst=[target, 0], chunk=0
            )
    result = simulate(builder.finish(), topology, 1.0)
    assert result.rank_seconds[0] < 1e-5 < 1 < result.rank_seconds[3]
    assert simulate(builder.finish(), topology, 1.0, level="steps").seconds > 1


def test_pieces_make_a_chain_as_fast_as_its_links() -> None:
    topology = parse(f"line:8,{LINK}")
    schedule = ALGORITHMS["broadcast", "chain"].build(8)
    whole = simulate(schedule, topology, 16 * MIB, options=WHOLE).seconds
    pieces = simulate(schedule, topology, 16 * MIB).seconds
    assert whole == pytest.approx(7 * (ALPHA + 16 * MIB * BETA))
    assert pieces == pytest.approx(7 * ALPHA + (16 * MIB + 6 * 256 * 1024) * BETA)


def test_reduction_and_overheads_are_paid_for_each_step() -> None:
    topology = parse(f"fully-connected:2,{LINK}")
    schedule = ALGORITHMS["all_reduce", "ring"].build(2)
    options = SimulationOptions(
        launch_seconds=5e-6, send_seconds=2e-6, receive_seconds=3e-6, reduce_bytes_per_second=1e9
    )
    half = MIB / 2
    expected = 5e-6 + 2 * (2e-6 + ALPHA + half * BETA + 3e-6) + half / 1e9
    for level in LEVELS:
        whole = SimulationOptions(**(vars(options) | {"piece_bytes": math.inf}))
        found = simulate(schedule, topology, MIB, level=level, options=whole)
        assert found.seconds == pytest.approx(expected, rel=1e-9)
        assert found.parts.latency + found.parts.bandwidth + found.parts.reduction == pytest.approx(expected)
        assert found.parts.contention == pytest.approx(0, abs=1e-15)


def up_and_down(num_pieces: int) -> tuple[Schedule, Topology]:
    """Three ranks send to the switch that joins them, then it sends the sum to all; one piece after the other."""
    topology = parse(f"switch:3,reduces=yes,{LINK}")
    builder, ranks = Builder("all_reduce", 4, num_pieces), np.arange(3)
    for piece in builder.repeat(num_pieces):
        builder.reduce(src=ranks, dst=3, chunk=piece)
    for piece in builder.repeat(num_pieces):
        builder.copy(src=3, dst=ranks, chunk=piece)
    return builder.finish(), topology.place([*ranks.tolist(), topology.node_names[3]])


@pytest.mark.parametrize("level", ["steps", "events"])
def test_a_switch_that_reduces_does_so_while_data_passes(level: str) -> None:
    schedule, topology = up_and_down(1)
    options = SimulationOptions(
        piece_bytes=math.inf, send_seconds=2e-6, receive_seconds=3e-6, reduce_bytes_per_second=1e6
    )
    found = simulate(schedule, topology, MIB, level=level, options=options)
    assert found.seconds == pytest.approx(2e-6 + 2 * (ALPHA + MIB * BETA) + 3e-6) and found.parts.reduction == 0


@pytest.mark.parametrize("name", ["overheads", "everything", "packets"])
def test_compiled_periodic_and_plain_say_the_same_of_switches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, topology = up_and_down(50)
    found = [simulate(schedule, topology, MIB, options=OPTIONS[name], record=record) for record in (False, True)]
    monkeypatch.setattr("hocket.network.compiled.simulator", None)
    found.append(simulate(schedule, topology, MIB, options=OPTIONS[name], record=True))
    for other in found[1:]:
        assert other.rank_seconds == pytest.approx(found[0].rank_seconds, rel=1e-9, abs=0)


def test_messages_that_meet_share_a_link_fairly() -> None:
    topology = parse(f"switch:4,{LINK}")
    result = simulate(ALGORITHMS["gather", "direct"].build(4), topology, 4e6)  # three blocks of 1e6 into rank 0
    assert result.seconds == pytest.approx(2 * ALPHA + 3e6 * BETA)
    assert topology.link_names(result.binding_links) == ["switch0->rank0"]
    assert result.link_bytes[result.binding_links].tolist() == [3e6]
    assert result.binding_share == pytest.approx(3e6 * BETA / result.seconds)
    assert result.algorithm_bytes_per_second == pytest.approx(4e6 / result.seconds)
    assert result.bus_bytes_per_second == pytest.approx(3e6 / result.seconds)


def test_collectives_at_once_share_links_only_where_they_meet() -> None:
    topology = parse(f"switch:4,{LINK}")
    pair = ALGORITHMS["broadcast", "binomial"].build(2)
    alone = simulate(pair, topology.place([0, 1]), 8 * MIB).seconds
    apart = simulate_together(topology, [Run(pair, 8 * MIB, [0, 1]), Run(pair, 8 * MIB, [2, 3])])
    assert [one.seconds for one in apart] == pytest.approx([alone, alone])
    meeting = simulate_together(topology, [Run(pair, 8 * MIB, [0, 1]), Run(pair, 8 * MIB, [2, 1])])
    assert [one.seconds for one in meeting] == pytest.approx([2 * ALPHA + 16 * MIB * BETA] * 2, rel=1e-6)
    later = simulate_together(topology, [Run(pair, 8 * MIB, [0, 1]), Run(pair, 8 * MIB, [2, 1], 1.0)])
    assert [one.seconds for one in later] == pytest.approx([alone, alone])
    assert simulate_together(topology, []) == []


def test_a_ring_of_many_ranks_is_neither_unrolled_nor_guessed() -> None:
    """On a network with different hops, compared with a simulation of every repetition."""
    topology = parse("fat-tree:64,radix=8")
    schedule = ALGORITHMS["all_reduce", "ring"].build(64)
    costs = {"receive_seconds": 1e-7, "send_seconds": 2e-7, "reduce_bytes_per_second": 1e10}
    for options in (
        *(SimulationOptions(size) for size in (math.inf, 3000)),
        *(SimulationOptions(size, **costs) for size in (math.inf, 5000)),
    ):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("hocket.network.simulation.simulate.run_events", None)
            result = simulate(schedule, topology, MIB, options=options)
        every = simulate(schedule, topology, MIB, options=options, record=True)
        assert result.rank_seconds == pytest.approx(every.rank_seconds, rel=1e-9, abs=0)


def test_where_early_pieces_overtake_late_ones_the_events_decide() -> None:
    """Slow additions are in the first half of the steps only; pieces that have passed it overtake late ones."""
    topology = parse("fat-tree:16,radix=8")
    schedule = ALGORITHMS["all_reduce", "ring"].build(16)
    options = SimulationOptions(piece_bytes=10000, reduce_bytes_per_second=1e9)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hocket.network.simulation.simulate.run_events", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            simulate(schedule, topology, MIB, options=options)
    found = simulate(schedule, topology, MIB, options=options).rank_seconds
    every = simulate(schedule, topology, MIB, options=options, record=True).rank_seconds
    assert found == pytest.approx(every, rel=1e-9, abs=0)


def test_a_barrier_and_a_call_of_nothing_cost_latency_only() -> None:
    topology = parse(f"fully-connected:4,{LINK}")
    schedule = ALGORITHMS["all_reduce", "ring"].build(4)
    assert simulate(schedule, topology, 0).seconds == pytest.approx(6 * ALPHA)
    assert simulate(ALGORITHMS["barrier", "direct"].build(4), topology, 1).seconds == pytest.approx(ALPHA + BETA)


def test_one_rank_alone_takes_no_time() -> None:
    topology = parse("ring:4").place([2])
    result = simulate(ALGORITHMS["all_reduce", "ring"].build(1), topology, MIB)
    assert (result.seconds, result.ratio, len(result.binding_links)) == (0, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"schedule": ALGORITHMS["all_reduce", "ring"].build(5)},
            "has 4 ranks, but the schedule of all_reduce is for 5",
        ),
        ({"num_bytes": -1}, "num_bytes: expected 0 or more, found -1"),
        ({"num_bytes": math.inf}, "num_bytes: expected 0 or more, found inf"),
        ({"level": "guess"}, "expected a level, one of closed, steps, events; found 'guess'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, message: str) -> None:
    good = {"schedule": ALGORITHMS["all_reduce", "ring"].build(4), "topology": parse("ring:4"), "num_bytes": 1.0}
    with pytest.raises(ValueError, match=message):
        simulate(**(good | arguments))


@pytest.mark.parametrize("name", ["chain", "binomial", "direct"])
def test_a_size_whose_pieces_could_not_be_held_is_refused_before_they_are(name: str) -> None:
    topology, schedule = parse("ring:3"), ALGORITHMS["broadcast", name].build(3)
    for arguments in ({}, {"record": True}, {"options": SimulationOptions(reduce_bytes_per_second=1e9)}):
        if name == "direct" and "record" not in arguments:
            assert simulate(schedule, topology, 1e16, **arguments).seconds > 0
            continue
        words = r"num_bytes: 1e\+16 bytes move in 38146972657 pieces .* among 3 ranks; .* at most 33554432: use fewer"
        with pytest.raises(ValueError, match=words):
            simulate(schedule, topology, 1e16, **arguments)
    with pytest.raises(ValueError, match="num_bytes: 1e"):
        simulate_together(topology, [Run(schedule, 1e16)])
    assert simulate(schedule, topology, 1e16, level="steps").seconds > 0
    assert simulate(ALGORITHMS["broadcast", name].build(1), parse("ring:1"), 1e16).seconds == 0


@pytest.mark.ring2  # the compiled engine alone
def test_more_pieces_than_can_be_numbered_are_refused_by_the_compiled_engine() -> None:
    job = make_job(traffic_of(ALGORITHMS["broadcast", "chain"].build(3)), parse("ring:3"), 1.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hocket.network.simulation.jobs._MOST_PIECES", 1 << 60)
        with pytest.raises(ValueError, match=r"fewer pieces in all than 2\^31"):
            run_events(
                [replace(job, chunk_bytes=1e15)], parse("ring:3").seconds, SimulationOptions(), [(np.zeros(3),) * 2]
            )


@pytest.mark.ring2  # the memory of the compiled engine
def test_short_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("hocket.network.simulation.engine.engine_arrays", short)
    with pytest.raises(ResourceError, match="not enough memory to simulate 3 ranks by events; use fewer bytes"):
        simulate(ALGORITHMS["broadcast", "chain"].build(3), parse("ring:3"), 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"piece_bytes": 0}, "piece_bytes: expected more than 0, found 0"),
        ({"reduce_bytes_per_second": 0}, "reduce_bytes_per_second: expected more than 0"),
        ({"send_seconds": -1e-6}, "send_seconds: expected 0 or more"),
        ({"receive_seconds": math.nan}, "receive_seconds: expected 0 or more"),
        ({"launch_seconds": math.inf}, "launch_seconds: expected 0 or more"),
        ({"store_and_forward_bytes": 0}, "store_and_forward_bytes: expected more than 0"),
        ({"tick_seconds": 1e-9}, "tick_seconds: expected 0 without store_and_forward_bytes"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimulationOptions(**options)


def test_several_collectives_name_the_rank_that_there_is_not() -> None:
    pair = ALGORITHMS["broadcast", "binomial"].build(2)
    with pytest.raises(TopologyError, match="found rank 9"):
        simulate_together(parse("ring:4"), [Run(pair, 1.0, [0, 9])])
    with pytest.raises(ValueError, match="start_seconds: expected 0 or more, found -1"):
        simulate_together(parse("ring:4"), [Run(pair, 1.0, [0, 1], -1.0)])


def test_ways_of_all_steps_are_asked_for_at_once() -> None:
    asked = []

    class Counting:
        def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
            asked.append(len(source))
            return ring.routing.route(topology, source, target, keys)

    ring = parse("ring:8")
    schedule = ALGORITHMS["all_to_all", "pairwise"].build(8)
    counted = simulate(schedule, replace(ring, routing=Counting()), MIB)
    assert asked == [8 * 7]
    assert counted.seconds == simulate(schedule, ring, MIB).seconds


def test_a_result_is_one_line_in_a_notebook() -> None:
    result = simulate(ALGORITHMS["broadcast", "chain"].build(4, 3), parse("ring:4"), 1 << 20)
    call = "broadcast of 4 ranks, root 3, 1048576 bytes on ring:4"
    assert repr(result) == f"<SimulationResult: {call}: {result.seconds:.4g} s, level {result.level!r}>"
