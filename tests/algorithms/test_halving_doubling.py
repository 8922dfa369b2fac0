"""Halving and doubling: near ranks exchange half of the vector, far ones a block; the balanced tree's bits."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import chunks_sent, has_sound_plans, keeps_its_promises, named, refuses, title

BITS = ("same_on_all_ranks", "balanced_tree", "size_invariant")


@pytest.mark.parametrize("one", named("halving_doubling"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), () if one.collective == "all_gather" else BITS)


@pytest.mark.parametrize("one", named("halving_doubling"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("p", [2, 8, 32])
def test_a_reduce_scatter_halves_what_it_sends_while_the_distance_doubles(p: int) -> None:
    steps = list(ALGORITHMS["reduce_scatter", "halving_doubling"].build(p).steps())
    for k, step in enumerate(steps):
        away = step.src != step.dst
        assert set((step.src ^ step.dst)[away].tolist()) == {2**k}
        assert chunks_sent(step) == {p >> k + 1} and away.sum() == p
    back = list(ALGORITHMS["all_gather", "halving_doubling"].build(p).steps())
    assert [chunks_sent(step) for step in back] == [chunks_sent(step) for step in reversed(steps)]
    assert all(len(step) == p for step in back), "no local rows"


def test_refused_rank_counts_have_an_alternative() -> None:
    refuses(ALGORITHMS["reduce_scatter", "halving_doubling"], 5, "a power of two", "tree")
    refuses(ALGORITHMS["all_gather", "halving_doubling"], 12, "a power of two", "bruck")
