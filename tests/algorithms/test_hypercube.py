"""Hypercube: all dimensions are busy in every step."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, refuses, title


@pytest.mark.parametrize("one", named("hypercube"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 65), () if one.collective == "all_gather" else ("same_on_all_ranks",))


@pytest.mark.parametrize("one", named("hypercube"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 4, 8, 16])


@pytest.mark.parametrize("one", named("hypercube"), ids=title)
def test_every_rank_uses_all_its_links_alike_in_every_step(one: Algorithm) -> None:
    for step in one.build(16).steps():
        used: dict[tuple[int, int], int] = {}
        for src, dst, count in zip(step.src.tolist(), step.dst.tolist(), step.count.tolist(), strict=True):
            used[src, src ^ dst] = used.get((src, src ^ dst), 0) + count
        assert set(used) == {(rank, 2**dim) for rank in range(16) for dim in range(4)}
        assert len(set(used.values())) == 1


def test_each_part_goes_through_the_dimensions_in_an_order_of_its_own() -> None:
    steps = list(ALGORITHMS["all_gather", "hypercube"].build(8).steps())
    orders = [[int((step.src ^ step.dst)[step.src_chunk % 3 == part][0]) for step in steps] for part in range(3)]
    assert orders == [[1, 2, 4], [2, 4, 1], [4, 1, 2]]


@pytest.mark.parametrize("one", named("hypercube"), ids=title)
def test_refused_rank_counts_have_an_alternative(one: Algorithm) -> None:
    refuses(one, 6, "a power of two", "halving_doubling" if one.collective == "all_reduce" else "bruck")
