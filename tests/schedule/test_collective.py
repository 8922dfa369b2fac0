"""Collectives as data: blocks before and after, and chunk bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import ScheduleError
from hocket.schedule import COLLECTIVES, find_collective, in_place_offset
from hocket.schedule.collective import chunk_bounds


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
        "gather": ([1], [], 4),
        "scatter": ([], [1], 4),
        "all_to_all": ([4, 5, 6, 7], [1, 5, 9, 13], 16),
        "gather_v": ([1], [], 4),
        "scatter_v": ([], [1], 4),
        "all_gather_v": ([1], [0, 1, 2, 3], 4),
        "reduce_scatter_v": ([0, 1, 2, 3], [1], 4),
        "all_to_all_v": ([4, 5, 6, 7], [1, 5, 9, 13], 16),
    }
    assert list(COLLECTIVES["broadcast"].input_blocks(root, p, root)) == [0]
    assert list(COLLECTIVES["reduce"].output_blocks(root, p, root)) == [0]
    assert list(COLLECTIVES["gather"].output_blocks(root, p, root)) == [0, 1, 2, 3]
    assert list(COLLECTIVES["scatter"].input_blocks(root, p, root)) == [0, 1, 2, 3]


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
        assert back.uneven == kind.uneven
        assert (back.reduces or kind.reduces) == ("whole" in (kind.input, kind.output))


def test_owners() -> None:
    assert COLLECTIVES["all_gather"].owner(2, 3) == 2
    assert COLLECTIVES["broadcast"].owner(0, 3, root=1) == 1
    assert COLLECTIVES["scatter"].owner(2, 3, root=1) == 1
    assert COLLECTIVES["all_to_all"].owner(5, 3) == 1


@pytest.mark.parametrize("kind", COLLECTIVES.values(), ids=lambda kind: kind.name)
def test_answers_for_many_at_once_are_those_of_each(kind) -> None:
    for p in (1, 2, 5):
        for root in range(p):
            every = range(kind.num_blocks(p))
            for rank in range(p):
                held, wanted = kind.input_blocks(rank, p, root), kind.output_blocks(rank, p, root)
                assert kind.input_block(rank, np.arange(len(held)), p).tolist() == list(held)
                assert kind.output_block(rank, np.arange(len(wanted)), p).tolist() == list(wanted)
                for blocks, position in ((held, kind.input_position), (wanted, kind.output_position)):
                    places = [blocks.index(block) if block in blocks else -1 for block in every]
                    assert position(rank, np.arange(len(every)), p, root).tolist() == places
                known = kind.knows(rank, np.arange(len(every)), p, root).tolist()
                assert known == [not kind.uneven or block in held or block in wanted for block in every]
                assert kind.known_by_all <= all(known)
            if not kind.reduces:
                owners = kind.owner(np.arange(len(every)), p, root).tolist()
                assert all(block in kind.input_blocks(owners[block], p, root) for block in every)


def test_in_place_the_smaller_lies_where_the_larger_has_it() -> None:
    assert in_place_offset(range(2, 3), range(4)) == 2
    assert in_place_offset(range(4), range(2, 3)) == 2
    assert in_place_offset(range(4, 8), range(1, 16, 4)) == 0


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
