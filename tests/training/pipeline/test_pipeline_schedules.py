"""The schedules are those of the papers: their orders, peaks, capacities, times and published bubble rates."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.training.pipeline import (
    KINDS,
    SCHEDULES,
    PipelinePromise,
    PipelineSchedule,
    PipelineTable,
    alternate,
    backward,
    build_table,
    forward,
    full,
    time_table,
    verify_table,
    weight,
)
from tests.training.pipeline.pipeline_world import operations_of

# Zero Bubble (Qi et al. 2023): the bubble rates of Table 5, from the times of Table 6 in milliseconds.
# p, m, F, B, W, message, then the rates of 1f1b, zb-h1, zb-h2, and of 1f1b-interleaved with 3 chunks.
TABLE_5 = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083, 0.1055),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837, 0.0818),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444, 0.0443),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672, 0.1104),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.1088, 0.0516, 0.0852),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576, 0.0266, 0.0445),
]


def text_of(table: PipelineTable, rank: int) -> str:
    """The operations of a rank of a table with one stage on each rank, for example "F0 F1 G0 G1"."""
    return " ".join(f"{kind}{microbatch}" for kind, _, microbatch, _ in operations_of(table)[rank])


@pytest.mark.parametrize("row", TABLE_5, ids=lambda row: f"p{row[0]} m{row[1]}")
def test_bubble_rates_of_the_zero_bubble_paper(row: Sequence[Any]) -> None:
    p, m, forward_ms, input_ms, weight_ms, message_ms, *rates, interleaved = row
    times = {"F": forward_ms, "B": input_ms, "W": weight_ms}
    for name, rate in zip(("1f1b", "zb-h1", "zb-h2"), rates, strict=True):
        found = time_table(build_table(name, p, m), **times, message=message_ms)
        assert round(found.bubble_rate, 4) == rate, name
    chunk = {name: value / 3 for name, value in times.items()}
    found = time_table(build_table("1f1b-interleaved", p, m, 3), **chunk, message=message_ms)
    # The published rate is a formula of the bubble; the order of Megatron waits for p messages more.
    bubble = (p - 1) * sum(times.values()) / 3 + (2 * p * 2 + p - 2) * message_ms
    assert round(bubble / (bubble + m * sum(times.values())), 4) == interleaved
    assert found.cost - found.work[0] == pytest.approx(bubble + p * message_ms)


# schedule, m, v, length of an operation, idle, cost - work, peak by rank, peak until W, fewest messages tagged, FIFO
UNIT_TIMES = [
    ("gpipe", 8, 1, 1, 9, 9, [8] * 4, [8] * 4, 0, 0),
    ("1f1b", 8, 1, 1, 9, 9, [4, 3, 2, 1], [4, 3, 2, 1], 1, 1),
    ("1f1b-interleaved", 8, 2, 0.5, 4.5, 4.5, [11, 9, 7, 5], [11, 9, 7, 5], 1, 1),
    ("zb-h1", 8, 1, 1, 3, 3, [4, 3, 2, 1], [4] * 4, 1, 1),
    ("zb-h2", 8, 1, 1, 3, 0, [7, 5, 3, 1], [7] * 4, 1, 1),
    ("zbv", 8, 2, 0.5, 1.5, 0, [8] * 4, [8] * 4, 2, None),
    ("dualpipe", 8, 2, 1, 2, 2, [5] * 4, [5] * 4, 2, 2),
    ("dualpipev", 10, 2, 0.5, 3, 3, [9] * 4, [9] * 4, 2, None),
]


@pytest.mark.parametrize("row", UNIT_TIMES, ids=lambda row: row[0])
def test_unit_times_memory_and_capacities_on_four_ranks(row: Sequence[Any]) -> None:
    name, m, chunks, length, idle, bubble, peak, until_weight, tagged, fifo = row
    table = build_table(name, 4, m, chunks)
    proof, timing = verify_table(table), time_table(table, F=length, B=length, W=length)
    np.testing.assert_array_equal(timing.idle, [idle] * 4)
    assert timing.cost - timing.work.max() == bubble
    assert timing.bubble_rate == bubble / timing.cost
    np.testing.assert_array_equal(proof.peak_activations, peak)
    np.testing.assert_array_equal(proof.peak_until_weight, until_weight)
    assert proof.fewest_messages == (tagged, fifo)


def test_interleaved_needs_two_messages_on_two_ranks() -> None:
    assert verify_table(build_table("1f1b-interleaved", 2, 4, 2)).fewest_messages == (2, 2)


def test_orders_of_small_tables() -> None:
    assert text_of(build_table("gpipe", 2, 2), 1) == "F0 F1 G0 G1"
    assert text_of(build_table("1f1b", 3, 4), 0) == "F0 F1 F2 G0 F3 G1 G2 G3"
    assert text_of(build_table("1f1b", 3, 4), 2) == "F0 G0 F1 G1 F2 G2 F3 G3"
    assert text_of(build_table("zb-h1", 3, 4), 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert text_of(build_table("zb-h1", 3, 4), 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    assert text_of(build_table("zb-h2", 3, 6), 1) == "F0 F1 F2 B0 F3 B1 F4 B2 W0 F5 B3 W1 B4 W2 B5 W3 W4 W5"
    rows = operations_of(build_table("1f1b-interleaved", 2, 2, 2))[1]
    assert " ".join(f"{kind}{stage}.{number}" for kind, stage, number, _ in rows) == (
        "F1.0 F1.1 F3.0 G3.0 F3.1 G3.1 G1.0 G1.1"
    )


def defined_for(name: str, p: int, m: int) -> bool:
    """Whether the paper defines the schedule for these counts."""
    if name == "dualpipe":
        return p % 2 == 0 and m % 2 == 0 and m >= 2 * p
    return name != "dualpipev" or m >= 2 * p


@pytest.mark.parametrize("name", SCHEDULES)
@given(p=st.integers(1, 9), m=st.integers(1, 24), v=st.integers(1, 4))
def test_every_size_holds_the_laws_and_its_promise(name: str, p: int, m: int, v: int) -> None:
    chunks = v if SCHEDULES[name].chunks is None else None
    if not defined_for(name, p, m):
        with pytest.raises(ValueError, match=f"{name}: expected .* micro-batches.*found"):
            build_table(name, p, m, chunks)
        return
    table = build_table(name, p, m, chunks)
    proof = verify_table(table)
    assert proof.fewest_messages.tagged <= max(2, p)
    assert table.promise.cost is not None or m % p  # only interleaved, and only then, promises no time
    work = np.array([1, 1, 1, 2])[table.kind].sum()  # F, B, W and G
    assert work == 3 * m * table.num_stages == proof.timing.work.sum()


@given(p=st.integers(1, 6), m=st.integers(1, 12), v=st.integers(1, 3))
def test_schedules_differ_in_order_only(p: int, m: int, v: int) -> None:
    """Every schedule runs the forwards and backwards of a stage in the order of the micro-batches: so gradients are
    summed in one order, whatever the schedule.
    """
    for name, schedule in SCHEDULES.items():
        if name != "dualpipe" and defined_for(name, p, m):
            table = build_table(name, p, m, v if schedule.chunks is None else None)
            for kinds in ("F", "BG", "WG"):
                for stage in range(table.num_stages):
                    rows = np.isin(table.kind, [KINDS.index(kind) for kind in kinds]) & (table.stage == stage)
                    np.testing.assert_array_equal(table.microbatch[rows], np.arange(m), f"{name} {kinds}")


def test_a_function_of_a_user_is_a_schedule() -> None:
    def one_by_one(rank: int, p: int, m: int, v: int) -> list[np.ndarray]:
        return [alternate(forward(rank, m).take(), full(backward(rank, m).take()))]

    table = build_table(one_by_one, ranks=3, microbatches=4)
    assert text_of(table, 1) == "F0 G0 F1 G1 F2 G2 F3 G3" and table.name == "one_by_one"
    assert verify_table(table).fewest_messages == (0, 0)
    assert time_table(table).makespan == 4 * 3 * 3  # no two ranks ever work at once


def test_a_schedule_of_a_user_may_promise_and_place() -> None:
    def v_shaped(rank: int, p: int, m: int, v: int) -> list[np.ndarray]:
        stages = rank, 2 * p - 1 - rank
        ends = [backward(stage, m).take() for stage in reversed(stages)]
        return [*(forward(stage, m).take() for stage in stages), *ends, *map(weight, ends)]

    promise = PipelinePromise(peak_activations=[6, 6])
    schedule = PipelineSchedule("v-shaped", v_shaped, "v", 2, lambda p, m, v: promise)
    table = build_table(schedule, 2, 3)
    np.testing.assert_array_equal(table.placement, [[0, 1, 1, 0]])
    assert verify_table(table).peak_activations.tolist() == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1bb", 2, 2), r"pipeline schedule of gpipe, .* found '1f1bb'; did you mean '1f1b'\?"),
        ((7, 2, 2), "or a function, found 7"),
        (("1f1b", 0, 2), "1f1b: expected ranks of 1 or more, found 0"),
        (("1f1b", 2, 1.5), r"expected microbatches of 1 or more, found 1\.5"),
        (("1f1b-interleaved", 2, 2, 0), "expected chunks of 1 or more, found 0"),
        (("zbv", 2, 2, 3), "zbv: expected chunks=2, which it always has, found 3"),
        (("dualpipev", 4, 7), "expected at least 8 micro-batches for 4 ranks, found 7"),
        (("dualpipe", 3, 8), "expected an even number of ranks.*found 3 ranks and 8"),
        ((lambda rank, p, m, v: [np.zeros(3, int)], 2, 2), r"rank 0: .* of shape \(n, 4\).* found shape \(3,\) of int"),
        ((lambda rank, p, m, v: [np.zeros((3, 4))], 2, 2), r"expected arrays of integers.* shape \(3, 4\) of float64"),
        ((lambda rank, p, m, v: [np.full((1, 4), 259)], 2, 2), r"rank 0: expected kinds from 0 to 3, found \[259\]"),
        ((lambda rank, p, m, v: None, 2, 2), "rank 0: expected a sequence of arrays, as take returns, found NoneType"),
        ((lambda rank, p, m, v: [forward(rank, m + 1).take()], 2, 2), "expected microbatch from 0 to 1, found 2"),
        ((lambda rank, p, m, v: [forward(7, m).take()], 2, 2), "expected stage from 0 to 1, found 7"),
        ((PipelineSchedule("x", lambda *_: [], "ring", 2), 2, 2), "placement of loop, v and both, found 'ring'"),
        ((PipelineSchedule("x", lambda *_: [], "v", 3), 2, 2), "expected 2 chunks for placement 'v', found 3"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_table(*arguments)


def test_parts_that_alternate_must_have_one_length() -> None:
    with pytest.raises(ValueError, match="expected parts of equal length, found 2, 3"):
        alternate(forward(0, 2).take(), forward(0, 3).take())


def test_only_the_runner_imports_torch() -> None:
    program = (
        "import sys; from hocket.training import pipeline; "
        "[getattr(pipeline, name) for name in pipeline.__all__ if name != 'Runner']; "
        "print('numpy' in sys.modules, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "True False\n"
