"""Times of tables: against a plain simulation of one operation after the other, and the shapes of what is returned."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import VerifyError
from hocket.training.pipeline import SCHEDULES, PipelineTable, build_table, time_table
from tests.training.pipeline.pipeline_world import operations_of, table_from

TIME = st.floats(0, 4, allow_subnormal=False)


def plain_ends(table: PipelineTable, seconds: dict[str, float], message: float, pair: float) -> list[list[float]]:
    """When each operation of each rank ends, found by trying ranks in turn until all are done."""
    ranks = operations_of(table)
    ends: list[list[float]] = [[] for _ in ranks]
    done: dict[tuple[str, int, int], tuple[int, float]] = {}  # F or B of a stage and micro-batch -> rank, end
    last = table.num_stages - 1
    while any(len(end) < len(rank) for end, rank in zip(ends, ranks, strict=True)):
        for rank, rows in enumerate(ranks):
            at = len(ends[rank])
            block = rows[at : at + (2 if at + 1 < len(rows) and rows[at + 1][3] else 1)]
            start = ends[rank][-1] if at else 0.0
            for kind, stage, microbatch, _ in block:
                source = ("F", stage - 1, microbatch) if kind == "F" else ("B", stage + 1, microbatch)
                if kind != "W" and 0 <= source[1] <= last:
                    other, end = done.get(source, (rank, np.inf))
                    start = max(start, end + (message if other != rank else 0))
            if block and start < np.inf:
                end = start + (pair if len(block) == 2 else seconds[block[0][0]])
                ends[rank] += [end] * len(block)
                for kind, stage, microbatch, _ in block:
                    if kind != "W":
                        done["F" if kind == "F" else "B", stage, microbatch] = rank, end
    return ends


@pytest.mark.parametrize("name", SCHEDULES)
@given(F=TIME, B=TIME, W=TIME, message=TIME, pair=TIME)
def test_times_are_those_of_a_plain_simulation(
    name: str,
    F: float,  # noqa: N803 - the names of the field
    B: float,  # noqa: N803
    W: float,  # noqa: N803
    message: float,
    pair: float,
) -> None:
    table = build_table(name, 4, 8)
    timing = time_table(table, F=F, B=B, W=W, message=message, pair=pair)
    plain = plain_ends(table, {"F": F, "B": B, "W": W, "G": B + W}, message, pair)
    np.testing.assert_allclose(timing.end, np.concatenate(plain), rtol=1e-12)
    np.testing.assert_allclose(timing.makespan, max(map(max, plain)))
    assert (timing.start <= timing.end).all() and timing.cost <= timing.makespan
    np.testing.assert_allclose(timing.idle + timing.work, timing.makespan)


def test_a_pair_takes_both_by_default_and_starts_and_ends_as_one() -> None:
    table = build_table("dualpipev", 2, 4)
    timing = time_table(table, F=1, B=2, W=3)
    second = np.flatnonzero((np.diff(table.position) == 0) & (np.diff(table.rank) == 0)) + 1
    assert len(second) > 0
    np.testing.assert_array_equal(timing.start[second], timing.start[second - 1])
    np.testing.assert_array_equal(timing.end[second] - timing.start[second], 6)
    assert time_table(table, F=1, B=2, W=3, pair=5).makespan < timing.makespan


def test_work_idle_and_bubble_of_a_small_table() -> None:
    timing = time_table(build_table("gpipe", 2, 1), F=1, B=2, W=3, message=0.5)
    np.testing.assert_array_equal(timing.start, [0, 8, 1.5, 2.5])
    assert (timing.makespan, timing.cost, timing.work.tolist(), timing.idle.tolist()) == (13, 13, [6, 6], [7, 7])
    assert timing.bubble_rate == 7 / 13
    assert time_table(build_table("gpipe", 2, 1), F=0, B=0, W=0).bubble_rate == 0


@pytest.mark.parametrize("times", [{"F": -1.0}, {"message": float("nan")}, {"W": float("inf")}, {"pair": -0.5}])
def test_times_are_finite_and_not_negative(times: dict[str, float]) -> None:
    (name,) = times
    with pytest.raises(ValueError, match=f"expected a time of 0 or more for {name}, found"):
        time_table(build_table("gpipe", 2, 1), **times)


def test_a_deadlock_has_no_times() -> None:
    operations = operations_of(build_table("1f1b", 3, 4))
    random.Random(0).shuffle(operations[1])
    with pytest.raises(VerifyError, match="law 2"):
        time_table(table_from(operations, np.arange(3)[None], 4))
