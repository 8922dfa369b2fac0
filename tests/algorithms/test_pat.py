"""PAT: far ranks first, no more than 8 blocks in a message, little memory."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.schedule import lower
from tests.algorithms.promises import chunks_sent, distances, has_sound_plans, keeps_its_promises, named, title, turned


@pytest.mark.parametrize("one", named("pat"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, [*range(1, 34), 47, 64], () if one.collective == "all_gather" else ("same_on_all_ranks",))


@pytest.mark.parametrize("one", named("pat"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 17, 33])


@pytest.mark.parametrize("p", [3, 8, 13, 16, 17, 40, 64])
def test_a_message_has_eight_blocks_at_most_and_goes_to_one_rank(p: int) -> None:
    for step in ALGORITHMS["all_gather", "pat"].build(p).steps():
        assert len(distances(step, p)) == 1 and max(chunks_sent(step)) <= 8
        assert len({frozenset(moves) for moves in turned(step, p)}) == 1


def test_far_ranks_are_first_and_near_trees_are_walked_in_depth_first_order() -> None:
    steps = list(ALGORITHMS["all_gather", "pat"].build(64).steps())
    assert [(-distances(step, 64).pop()) % 64 for step in steps] == [32, 16, 8, 1, 2, 1, 4, 1, 2, 1]
    assert [chunks_sent(step).pop() for step in steps] == [1, 2, 4, 8, 8, 8, 8, 8, 8, 8]


@pytest.mark.parametrize("p", range(2, 17))
def test_to_16_ranks_it_takes_as_few_steps_as_there_can_be(p: int) -> None:
    assert ALGORITHMS["all_gather", "pat"].build(p).num_steps == (p - 1).bit_length()


def test_a_reduce_scatter_needs_memory_for_a_few_blocks_only() -> None:
    def slots(name: str, p: int) -> int:
        return lower(ALGORITHMS["reduce_scatter", name].build(p), 0, in_place=False).num_scratch

    assert [slots("bruck", p) for p in (64, 128, 256)] == [31, 63, 127]
    assert all(slots("pat", p) <= 8 * (p.bit_length() - 4) for p in (32, 64, 128, 256))
