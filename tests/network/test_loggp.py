"""The constants of LogGP (Alexandrov et al. 1995) mean what they mean there: L, o, g, G, and senders that go on."""

import math

import numpy as np
import pytest

import hocket
from hocket.network import SimulationOptions, parse, simulate
from hocket.schedule import Builder, Schedule

L, O, G = 5e-6, 1e-6, 1e-9  # noqa: E741
GAP = 4e-6
NUM_BYTES = 1000
_OPTIONS = SimulationOptions(send_seconds=O, receive_seconds=O, gap_seconds=GAP, eager_bytes=math.inf)


def _steps(num_ranks: int, *steps: list[tuple[int, int]]) -> Schedule:
    """A broadcast with these messages, from a source to a target, in each step."""
    builder = Builder("broadcast", num_ranks, 1)
    for messages in steps:
        with builder.step():
            for source, target in messages:
                builder.copy(src=source, dst=target, chunk=0)
    return builder.finish()


def _ends(schedule: Schedule, options: SimulationOptions = _OPTIONS) -> list[float]:
    network = parse(f"fully-connected:{schedule.num_ranks},latency={L * 1e6}us,bandwidth={1 / G}B/s")
    found: list[float] = simulate(schedule, network, NUM_BYTES, options=options).rank_seconds.tolist()
    return found


def test_a_message_takes_o_k_G_L_o_and_its_sender_only_o() -> None:  # noqa: N802
    schedule = _steps(2, [(0, 1)])
    arrived = O + NUM_BYTES * G + L + O
    assert _ends(schedule) == pytest.approx([O, arrived])
    waits = SimulationOptions(send_seconds=O, receive_seconds=O, eager_bytes=NUM_BYTES - 1)
    assert _ends(schedule, waits) == pytest.approx([O + NUM_BYTES * G, arrived])


@pytest.mark.parametrize("gap", [0, O / 2, GAP])
@pytest.mark.parametrize("apart", [False, True], ids=["one step", "many steps"])
def test_messages_leave_at_least_a_gap_and_an_overhead_apart(gap: float, *, apart: bool) -> None:
    messages = [(0, target) for target in range(1, 6)]
    schedule = _steps(6, *([one] for one in messages)) if apart else _steps(6, messages)
    options = SimulationOptions(send_seconds=O, receive_seconds=O, gap_seconds=gap, eager_bytes=math.inf)
    leaves = O + np.arange(5) * max(O, gap)
    assert _ends(schedule, options) == pytest.approx([5 * O, *(leaves + NUM_BYTES * G + L + O)])


@pytest.mark.parametrize("gap", [0, GAP])
def test_messages_are_received_at_least_a_gap_apart(gap: float) -> None:
    builder = Builder("gather", 6, 6)
    with builder.step():
        builder.copy(src=np.arange(1, 6), dst=0, chunk=np.arange(1, 6))
    network = parse(f"fully-connected:6,latency={L * 1e6}us,bandwidth={1 / G}B/s")
    options = SimulationOptions(send_seconds=O, receive_seconds=O, gap_seconds=gap, eager_bytes=math.inf)
    first = O + NUM_BYTES * G + L
    ends = simulate(builder.finish(), network, 6 * NUM_BYTES, options=options).rank_seconds
    assert ends == pytest.approx([first + 4 * max(O, gap) + O, *([O] * 5)])


def test_the_best_broadcast_of_one_item_is_that_of_the_paper_of_logp() -> None:
    """Karp et al. 1993: 8 processors, L = 6, o = 2, g = 4; the last one has the item at time 24."""
    # The root sends to 1, 2, 3 and 5, a gap apart; who has the item sends it on.
    steps = [[(0, 1)], [(0, 2)], [(0, 3), (1, 4)], [(0, 5), (1, 6), (2, 7)]]
    options = SimulationOptions(send_seconds=2e-6, receive_seconds=2e-6, gap_seconds=4e-6, eager_bytes=math.inf)
    network = parse("fully-connected:8,latency=6us,bandwidth=1e15B/s")
    found = simulate(_steps(8, *steps), network, 1, options=options)
    received = [None, 10, 14, 18, 20, 22, 24, 24]
    ends = {rank: at for rank, at in enumerate(received) if rank >= 3}  # who sends nothing on
    assert {rank: found.rank_seconds[rank] for rank in ends} == pytest.approx({r: t * 1e-6 for r, t in ends.items()})
    assert found.seconds == pytest.approx(24e-6)


@pytest.mark.parametrize("level", ["closed", "steps"])
def test_other_levels_count_gaps_too(level: str) -> None:
    found = hocket.simulate(
        "gather", 6, topology=f"fully-connected:6,latency={L * 1e6}us", algorithm="direct", level=level,
        overhead="1us,gap=4us",
    )  # fmt: skip
    assert found.seconds == pytest.approx(O + L + O + 4 * GAP, rel=1e-3)
    assert {"gap 4.00 us (default 0)"} < set(found.changes)


def test_what_one_types_is_told_again() -> None:
    found = hocket.simulate("barrier", topology="ring:4", overhead="1us,eager=8K,gap=2us")
    assert found.changes[-3:] == ("overhead 1.00 us (default 0)", "gap 2.00 us (default 0)", "eager 8 KiB (default 0)")
    for bad in ("gap=1us", "1us,gap=2us,gap=2us", "1us,late=2us", "1us,eager=-1", "1us,gap=2"):
        with pytest.raises(ValueError, match=r"expected a time of 0 or more .* 0.5us,gap=1us,eager=8K; found"):
            hocket.simulate("barrier", topology="ring:4", overhead=bad)
