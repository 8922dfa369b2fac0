"""Split binary tree: one half of the vector down each side, then both sides swap."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.observed import holdings, moved
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, title

LABELS = {"reduce": ("same_on_all_ranks",)}


@pytest.mark.parametrize("one", named("split_binary"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("split_binary"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("p", [3, 4, 5, 6, 7, 14, 15, 16, 17, 33, 64])
def test_each_rank_has_one_half_before_the_swap_and_swaps_with_one_that_has_the_other(p: int) -> None:
    for root in {0, p // 2, p - 1}:
        schedule = ALGORITHMS["broadcast", "split_binary"].build(p, root)
        *_, before, after = holdings(schedule)
        others = np.arange(p) != root
        assert (before[others].sum(axis=1) == 1).all() and before[root].all() and after.all()
        assert before[others].sum(axis=0).tolist() == [p // 2, (p - 1) // 2]
        *down, swap = schedule.steps()
        for step in down:
            children = np.bincount(step.src, minlength=p)
            assert children.max() <= 2, "a binary tree"
        pairs = set(zip(swap.src.tolist(), swap.dst.tolist(), strict=True))
        single = [pair for pair in pairs if pair[::-1] not in pairs]
        assert len(single) == (p % 2 == 0), "one half-hearted pair where the trees differ in size"


def test_in_a_reduce_nobody_sends_or_receives_much() -> None:
    for p in range(2, 34):
        sent, received = moved(ALGORITHMS["reduce", "split_binary"].build(p, 1))
        chunks = 2 if p > 2 else 1
        assert (sent.sum(axis=0) == chunks * (np.arange(p) != 1)).all()
        assert received.sum(axis=0).max() <= 1.5 * chunks
