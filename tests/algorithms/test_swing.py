"""Swing: partners on alternating sides, nearer than those of recursive doubling."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import distances, has_sound_plans, keeps_its_promises, named, refuses, title


@pytest.mark.parametrize("one", named("swing"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    rank_counts = [1, *range(2, 65, 2)]
    keeps_its_promises(one, rank_counts, () if one.collective == "all_gather" else ("same_on_all_ranks",))


@pytest.mark.parametrize("one", named("swing"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 4, 6, 8, 10, 16])


@pytest.mark.parametrize("p", [4, 6, 10, 16, 32, 62])
def test_partners_swap_on_alternating_sides_at_the_distances_of_the_paper(p: int) -> None:
    steps = list(ALGORITHMS["reduce_scatter", "swing"].build(p).steps())
    for step, ahead in zip(steps, (1, -1, 3, -5, 11, -21), strict=False):
        assert distances(step, p) == {ahead % p, -ahead % p}
        even = step.src % 2 == 0
        assert set(((step.dst - step.src)[even] % p).tolist()) == {ahead % p}
        pairs = set(zip(step.src.tolist(), step.dst.tolist(), strict=True))
        assert pairs == {(dst, src) for src, dst in pairs} and len(pairs) == p


def test_for_a_power_of_two_what_is_sent_halves() -> None:
    steps = ALGORITHMS["reduce_scatter", "swing"].build(32).steps()
    assert [int(step.count[step.src == 0].sum()) for step in steps] == [16, 8, 4, 2, 1]


@pytest.mark.parametrize("one", named("swing"), ids=title)
def test_refused_rank_counts_have_an_alternative(one: Algorithm) -> None:
    refuses(one, 7, "an even number of", "nonuniform_hierarchical_ring")
