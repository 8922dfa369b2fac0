"""Torus: rings along one axis of a grid after the other, for any number of axes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.algorithms.programs.torus import grid
from hocket.schedule import Schedule
from tests.schedule.promise import keeps_promise

ALL = [one for (_, name), one in ALGORITHMS.items() if name in ("torus", "torus_3d")]
NAMES = [f"{one.collective}-{one.name}" for one in ALL]


def axes_used(schedule: Schedule, dims: tuple[int, ...]) -> list[set[int]]:
    """Returns the axes along which ranks send in each step; asserts that all send to neighbours."""
    used = []
    for step in schedule.steps():
        there, here = (np.array(np.unravel_index(ranks, dims)) for ranks in (step.dst, step.src))
        moved = np.abs(there - here)
        assert (np.count_nonzero(moved, axis=0) == 1).all()
        assert ((moved <= 1) | (moved == np.array(dims)[:, None] - 1)).all()
        used.append(set(np.flatnonzero(moved.any(axis=1)).tolist()))
    return used


def test_grids_without_being_told() -> None:
    assert [grid(p, 2) for p in (1, 2, 5, 6, 8, 12, 16, 36)] == [
        (1, 1),
        (2, 1),
        (5, 1),
        (3, 2),
        (4, 2),
        (4, 3),
        (4, 4),
        (6, 6),
    ]
    assert [grid(p, 3) for p in (1, 7, 8, 12, 24, 64, 1000)] == [
        (1, 1, 1),
        (7, 1, 1),
        (2, 2, 2),
        (3, 2, 2),
        (4, 3, 2),
        (4, 4, 4),
        (10, 10, 10),
    ]


@pytest.mark.parametrize("one", ALL, ids=NAMES)
def test_the_law_holds_for_all_rank_counts(one: Algorithm) -> None:
    for p in range(1, 34):
        assert one.verify(p, laws=(1, 2, 4, 5)).labels >= one.labels
    for p in range(1, 10):
        one.verify(p, laws=(3,))


@pytest.mark.parametrize("one", ALL, ids=NAMES)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple).filter(lambda dims: math.prod(dims) <= 36))
@settings(max_examples=20, deadline=None)
def test_the_law_holds_for_any_grid(one: Algorithm, dims: tuple[int, ...]) -> None:
    p = math.prod(dims)
    certificate = one.verify(p, dims=dims, laws=(1, 2, 4, 5))
    laps = 2 if one.collective == "all_reduce" else 1
    assert certificate.num_steps == laps * sum(length - 1 for length in dims)
    assert certificate.sent * p == laps * (p - 1), "no algorithm sends less"
    keeps_promise(one.build(p, dims=dims))


@pytest.mark.parametrize("one", ALL, ids=NAMES)
@pytest.mark.parametrize("dims", [(4, 4), (3, 3), (3, 3, 3)])
def test_all_axes_are_busy_in_every_step(one: Algorithm, dims: tuple[int, ...]) -> None:
    """Each axis carries an equal share."""
    schedule = one.build(math.prod(dims), dims=dims)
    assert axes_used(schedule, dims) == [set(range(len(dims)))] * schedule.num_steps
    by_axis = np.zeros(len(dims))
    for step in schedule.steps():
        there, here = (np.array(np.unravel_index(ranks, dims)) for ranks in (step.dst, step.src))
        by_axis += ((there != here) * step.count).sum(axis=1)
    assert (by_axis == by_axis[0]).all()


def test_one_half_goes_along_x_first() -> None:
    """4 x 2: one half takes three steps along x, then one along y; the other half one along y, then three along x."""
    schedule = ALGORITHMS["all_reduce", "torus"].build(8)
    assert axes_used(schedule, (4, 2)) == [{0, 1}, {0}, {0}, {0, 1}, {0, 1}, {0}, {0}, {0, 1}]
    for chunks, order in ((range(8), [{0}] * 3 + [{1}] * 2 + [{0}] * 3), (range(8, 16), [{1}] + [{0}] * 6 + [{1}])):
        used = []
        for step in schedule.steps():
            half = np.isin(step.src_chunk, chunks)
            used.append({0 if abs(s - d) != 1 else 1 for s, d in zip(step.src[half], step.dst[half], strict=True)})
        assert used == order


def test_one_axis_is_a_ring() -> None:
    ring = ALGORITHMS["all_gather", "ring"].build(5)
    for dims in (None, (1, 5), (5,), (5, 1, 1)):
        schedule = ALGORITHMS["all_gather", "torus"].build(5, dims=dims)
        for left, right in zip(schedule.steps(), ring.steps(), strict=True):
            rows = [
                set(zip(one.src.tolist(), one.dst.tolist(), one.src_chunk.tolist(), strict=True))
                for one in (left, right)
            ]
            assert rows[0] == rows[1]


def test_a_grid_that_is_none() -> None:
    for one in ALL:
        with pytest.raises(ValueError, match=r"whole numbers from 1 whose product is 6; found \(4, 2\)"):
            one.build(6, dims=(4, 2))
        with pytest.raises(ValueError, match="expected no groups, which it does not take"):
            one.build(6, groups=(4, 2))


def test_a_plane_of_many_ranks_takes_ranges() -> None:
    schedule = ALGORITHMS["all_reduce", "torus"].build(256)
    assert schedule.num_steps == 4 * 15
    assert max(len(repeat.step) for repeat in schedule.repeats) == 2 * 256, "a row for each rank and share"
