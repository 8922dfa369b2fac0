"""Pairwise: one distance in each step; spread out: a window of them."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import chunks_sent, distances, has_sound_plans, keeps_its_promises, named, title

BOTH = [*named("pairwise"), *named("spread_out")]


@pytest.mark.parametrize("one", BOTH, ids=title)
def test_they_keep_their_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), ("same_on_all_ranks",) if one.collective == "reduce_scatter" else ())


@pytest.mark.parametrize("one", BOTH, ids=title)
def test_their_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 5, 8, 13])


@pytest.mark.parametrize("one", named("pairwise"), ids=title)
def test_each_rank_sends_one_block_to_one_rank_in_a_step(one: Algorithm) -> None:
    for p in (2, 5, 8):
        steps = list(one.build(p).steps())
        assert all(len(distances(step, p)) == 1 and chunks_sent(step) == {1} for step in steps)
        assert {d for step in steps for d in distances(step, p)} == set(range(1, p))


@pytest.mark.parametrize("collective", ["all_to_all", "all_to_all_v"])
def test_spread_out_has_windows_of_eight(collective: str) -> None:
    steps = list(ALGORITHMS[collective, "spread_out"].build(20).steps())
    assert [distances(step, 20) for step in steps] == [set(range(1, 9)), set(range(9, 17)), {17, 18, 19}]


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_no_rank_passes_anything_on(collective: str) -> None:
    for step in ALGORITHMS[collective, "pairwise"].build(7).steps():
        owner = step.src if collective == "all_gather" else step.dst
        assert (step.src_chunk == owner).all()
