"""Bidirectional ring: neighbours only, both ways at once, half the steps."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.observed import moved
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, title

LABELS = {"all_reduce": ("same_on_all_ranks",), "reduce_scatter": ("same_on_all_ranks",)}


@pytest.mark.parametrize("one", named("bidirectional_ring"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("bidirectional_ring"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 33])
def test_a_block_at_most_goes_each_way_over_every_link(collective: str, p: int) -> None:
    schedule = ALGORITHMS[collective, "bidirectional_ring"].build(p)
    one_way = ALGORITHMS[collective, "ring"].build(p)
    assert schedule.num_steps == -(-one_way.num_steps // 2)
    for step in schedule.steps():
        onward = (step.dst - step.src) % p == 1
        assert (onward | ((step.src - step.dst) % p == 1)).all(), "neighbours only"
        if p > 2:
            assert np.bincount(step.src[onward], minlength=p).tolist() == [1] * p
            assert np.bincount(step.src[~onward], minlength=p).tolist() == [1] * p
        assert (step.count <= schedule.chunks_per_block).all()
    sent, received = moved(schedule)
    assert (sent == received).all() and (sent == sent[:, :1]).all(), "all ranks are equally busy at any time"


@pytest.mark.parametrize("p", [2, 4, 10])
def test_half_of_the_block_right_opposite_comes_from_each_side(p: int) -> None:
    last = list(ALGORITHMS["all_gather", "bidirectional_ring"].build(p).steps())[-1]
    for rank in range(p):
        from_below = last.src_chunk[(last.dst == rank) & (last.src == (rank - 1) % p)].tolist()
        from_above = last.src_chunk[(last.dst == rank) & (last.src == (rank + 1) % p)].tolist()
        opposite = (rank + p // 2) % p
        assert sorted({*from_below, *from_above}) == [2 * opposite, 2 * opposite + 1]
        if p > 2:
            assert (from_below, from_above) == ([2 * opposite], [2 * opposite + 1])
