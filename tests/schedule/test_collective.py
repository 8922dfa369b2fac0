"""Collectives as data: blocks before and after, and chunk bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import ScheduleError
from hocket.schedule.collective import COLLECTIVES, chunk_bounds, find_collective


def test_blocks_of_each_collective_before_and_after() -> None:
    p, root, rank = 4, 2, 1
    table = {
        name: (list(c.input_blocks(rank, p, root)), list(c.output_blocks(rank, p, root)), c.num_blocks(p))
        for name, c in COLLECTIVES.items()
    }
    assert table == {
        "all_reduce": ([0], [0], 1),
        "all_gather": ([1], [0, 1, 2, 3], 4),
        "reduce_scatter": ([0, 1, 2, 3], [1], 4),
        "broadcast": ([], [0], 1),
        "reduce": ([0], [], 1),
        "barrier": ([0], [0], 1),
    }
    assert list(COLLECTIVES["broadcast"].input_blocks(root, p, root)) == [0]
    assert list(COLLECTIVES["reduce"].output_blocks(root, p, root)) == [0]


@pytest.mark.parametrize("kind", COLLECTIVES.values(), ids=lambda kind: kind.name)
def test_counts_for_all_ranks_at_once_are_those_of_each(kind) -> None:
    for p in (1, 2, 5):
        for root in range(p):
            assert kind.num_input_blocks(p, root).tolist() == [len(kind.input_blocks(r, p, root)) for r in range(p)]
            assert kind.num_output_blocks(p, root).tolist() == [len(kind.output_blocks(r, p, root)) for r in range(p)]


@pytest.mark.parametrize("kind", COLLECTIVES.values(), ids=lambda kind: kind.name)
def test_reverse_swaps_input_and_output(kind) -> None:
    if kind.reverse is not None:
        back = COLLECTIVES[kind.reverse]
        assert (back.input, back.output, back.reverse) == (kind.output, kind.input, kind.name)
        assert back.reduces != kind.reduces


def test_contributors() -> None:
    assert list(COLLECTIVES["all_reduce"].contributors(0, 3)) == [0, 1, 2]
    assert list(COLLECTIVES["all_gather"].contributors(2, 3)) == [2]
    assert list(COLLECTIVES["broadcast"].contributors(0, 3, root=1)) == [1]


@given(st.integers(0, 10_000), st.integers(1, 50), st.integers(1, 8))
def test_chunk_bounds_cover_evenly_and_survive_refinement(num_elements: int, chunks: int, refine: int) -> None:
    bounds = chunk_bounds(num_elements, chunks)
    assert bounds[0] == 0 and bounds[-1] == num_elements and len(bounds) == chunks + 1
    lengths = np.diff(bounds)
    assert lengths.min() >= 0 and lengths.max() - lengths.min() <= 1
    assert chunk_bounds(num_elements, chunks * refine)[::refine].tolist() == bounds.tolist()


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(ScheduleError, match=r"one of all_reduce, .*found 'all_redcue'"):
        find_collective("all_redcue")
    with pytest.raises(ScheduleError, match=r"positive multiple of 4 chunks.*found 6"):
        COLLECTIVES["all_gather"].chunks_per_block(4, 6)
