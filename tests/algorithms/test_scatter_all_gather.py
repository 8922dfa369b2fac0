"""Rooted collectives in two parts, so that large vectors are divided."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.observed import moved
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, title

LABELS = {"reduce": ("same_on_all_ranks",)}


@pytest.mark.parametrize("one", named("scatter_all_gather") + named("reduce_scatter_gather"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("scatter_all_gather") + named("reduce_scatter_gather"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("p", [2, 3, 6, 8, 13])
def test_a_broadcast_scatters_first_and_then_goes_round_the_ring(p: int) -> None:
    for root in {0, p // 2, p - 1}:
        schedule = ALGORITHMS["broadcast", "scatter_all_gather"].build(p, root)
        scattering = (p - 1).bit_length()
        steps = list(schedule.steps())
        for step in steps[scattering:]:
            assert (step.dst == (step.src + 1) % p).all() and len(step) == p
        sent, _ = moved(schedule)
        assert sent[:scattering, root].sum() == p - 1
        assert (sent[scattering:] == 1).all()


@pytest.mark.parametrize("p", [2, 3, 6, 8, 13])
def test_a_reduce_sums_everywhere_and_then_gathers(p: int) -> None:
    for root in {0, p // 2, p - 1}:
        schedule = ALGORITHMS["reduce", "reduce_scatter_gather"].build(p, root)
        steps = list(schedule.steps())
        summing, gathering = steps[: len(steps) // 2], steps[len(steps) // 2 :]
        assert all(step.reduce.all() for step in summing) and not any(step.reduce.any() for step in gathering)
        sums = np.zeros(p, int)
        for step in summing:
            sums += np.bincount(step.dst, step.count, p).astype(int)
        assert sums.tolist() == [p - 1] * p, "all share the work equally"
        sent, received = moved(schedule)
        assert received[len(summing) :, root].sum() == p - 1 and sent[len(summing) :, root].sum() == 0
