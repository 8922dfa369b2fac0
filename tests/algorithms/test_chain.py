"""Chain: one neighbour after the other."""

from itertools import pairwise

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, title

LABELS = {"reduce": ("same_on_all_ranks", "size_invariant")}


@pytest.mark.slow("proves it for 33 rank counts and all roots")
@pytest.mark.parametrize("one", named("chain"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("chain"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("p", [1, 2, 5, 9])
def test_each_step_is_one_hop_further_from_the_root_or_nearer_to_it(p: int) -> None:
    for root in range(p):
        around = [(root + i) % p for i in range(p)]
        hops = [
            (step.src.tolist(), step.dst.tolist()) for step in ALGORITHMS["broadcast", "chain"].build(p, root).steps()
        ]
        assert hops == [([src], [dst]) for src, dst in pairwise(around)]
        back = [(step.src.tolist(), step.dst.tolist()) for step in ALGORITHMS["reduce", "chain"].build(p, root).steps()]
        assert back == [(dst, src) for src, dst in reversed(hops)]
