"""The columns: expansion into single chunks and row groups, shifts, the digest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.schedule import COLUMNS, Builder, Schedule, Step, compose


def one_step(write, num_ranks: int = 4, num_chunks: int = 8, collective: str = "all_reduce") -> Step:
    schedule = Builder(collective, num_ranks, num_chunks)
    with schedule.step():
        write(schedule)
    (step,) = schedule.finish().steps()
    return step


def rows(step: Step, *columns: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(step, column).tolist() for column in columns), strict=True))


def test_expanded_rows_stand_by_row_group_in_order_of_appearance() -> None:
    def write(schedule: Builder) -> None:
        schedule.copy(src=1, dst=0, chunk=2, count=2)
        schedule.copy(src=1, dst=3, chunk=5)
        schedule.reduce(src=2, dst=0, chunk=2, count=2)

    step = one_step(write).expanded()
    assert rows(step, "group", "src", "dst", "dst_chunk", "reduce") == [
        (0, 1, 0, 2, False),
        (0, 2, 0, 2, True),
        (1, 1, 0, 3, False),
        (1, 2, 0, 3, True),
        (2, 1, 3, 5, False),
    ]
    assert (step.count == 1).all() and (step.stride == 1).all()
    assert step.expanded() is step


def test_stride_leads_over_the_chunks_between() -> None:
    step = one_step(lambda s: s.copy(src=0, dst=1, src_chunk=0, dst_chunk=1, count=3, stride=3), 8, 8, "all_gather")
    step = step.expanded()
    assert rows(step, "src_chunk", "dst_chunk") == [(0, 1), (3, 4), (6, 7)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 7)), min_size=1, max_size=30),
    st.integers(0, 20),
)
def test_a_shift_and_expansion_commute(transfers, amount: int) -> None:
    src, dst, chunk = np.array(transfers).T
    pattern = one_step(lambda s: s.reduce(src=src, dst=dst, chunk=chunk))
    shifted = pattern.shifted(amount, 8)
    fresh = one_step(lambda s: s.reduce(src=src, dst=dst, chunk=(chunk + amount) % 8))
    for column in (*COLUMNS, "group"):
        assert getattr(shifted.expanded(), column).tolist() == getattr(fresh.expanded(), column).tolist()


def test_scratch_does_not_shift() -> None:
    pattern = one_step(lambda s: s.copy(src=0, dst=1, src_chunk=7, dst_chunk=7, dst_buffer="scratch"))
    assert rows(pattern.shifted(3, 8), "src_chunk", "dst_chunk") == [(2, 7)]


def ring(p: int, parametric: bool) -> Schedule:
    schedule = Builder("reduce_scatter", p, p)
    rank = schedule.ranks
    if parametric:
        for i in schedule.repeat(p - 1):
            schedule.reduce(src=rank, dst=(rank + 1) % p, chunk=(rank - 1 - i) % p)
    else:
        for i in range(p - 1):
            with schedule.step():
                schedule.reduce(src=rank, dst=(rank + 1) % p, chunk=(rank - 1 - i) % p)
    return schedule.finish()


def test_a_repetition_is_the_plain_loop() -> None:
    short, plain = ring(5, True), ring(5, False)
    assert (len(short.repeats), len(plain.repeats)) == (1, 4)
    assert short.num_steps == plain.num_steps == 4
    assert short.num_rows == plain.num_rows == 20
    for left, right in zip(short.steps(), plain.steps(), strict=True):
        for column in COLUMNS:
            assert getattr(left, column).tolist() == getattr(right, column).tolist()


def test_digest_is_of_content() -> None:
    assert ring(5, True).digest == ring(5, True).digest
    assert len({ring(5, True).digest, ring(6, True).digest, compose.reversed(ring(5, True)).digest}) == 3


def test_site_names_the_line_of_each_step() -> None:
    schedule = compose.then(ring(3, True), compose.reversed(ring(3, True)))
    assert all(schedule.site(step).rpartition(":")[0] == __file__ for step in range(schedule.num_steps))


def test_columns_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ring(3, True).repeats[0].step.src[0] = 1


def test_a_changed_repetition_expands_to_what_it_says() -> None:
    schedule = Builder("all_gather", 4, 4)
    for i in schedule.repeat(3):
        schedule.copy(src=schedule.ranks, dst=(schedule.ranks + 1) % 4, chunk=(schedule.ranks - i) % 4)
    step = list(schedule.finish().steps())[1]
    changed = replace(step, reduce=~step.reduce)
    assert changed.expanded().reduce.all() and not step.expanded().reduce.any()


def test_a_schedule_is_one_line_in_a_notebook() -> None:
    schedule = Builder("broadcast", 4, 1, root=2)
    with schedule.step():
        schedule.copy(src=2, dst=3, chunk=0)
    made = schedule.finish()
    assert repr(made) == "<Schedule: broadcast of 4 ranks, root 2, 1 step, 1 row>"
    assert repr(replace(made, collective="no_such")) == "<Schedule: no_such of 4 ranks, 1 step, 1 row>"
