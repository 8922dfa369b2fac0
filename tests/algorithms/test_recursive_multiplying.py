"""Recursive multiplying: each rank knows four times as much after each step of three messages."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.schedule import reference
from tests.algorithms.observed import holdings, moved
from tests.algorithms.promises import distances, has_sound_plans, keeps_its_promises, named, title

LABELS = {"reduce_scatter": ("same_on_all_ranks",), "all_reduce": ("same_on_all_ranks", "size_invariant")}


@pytest.mark.parametrize("one", named("knomial", "all_gather", "reduce_scatter"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("knomial", "all_gather", "reduce_scatter", "all_reduce"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


def test_one_group_of_an_all_reduce_has_the_order_of_ranks() -> None:
    for p in range(2, 34):
        labels = ALGORITHMS["all_reduce", "knomial"].verify(p, laws=(1, 2, 4, 5)).labels
        assert labels >= set(LABELS["all_reduce"]) and ("rank_order" in labels) == (p <= 4), p


@pytest.mark.parametrize("p", [1, 2, 4, 5, 6, 11, 16, 17, 23, 40, 63, 64, 65, 100])
def test_everybody_has_the_blocks_of_four_times_as_many_neighbours(p: int) -> None:
    schedule = ALGORITHMS["all_gather", "knomial"].build(p)
    ahead = (np.arange(p) - np.arange(p)[:, None]) % p
    for k, held in enumerate(holdings(schedule)):
        assert (held == (ahead < 4**k)).all()
    for k, step in enumerate(schedule.steps()):
        assert distances(step, p) <= {-i * 4**k % p for i in (1, 2, 3)}


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("p", [2, 5, 6, 11, 16, 23, 63, 65])
def test_all_ranks_are_equally_busy_in_every_step(collective: str, p: int) -> None:
    sent, received = moved(ALGORITHMS[collective, "knomial"].build(p))
    grown = np.diff([min(4**k, p) for k in range(len(sent) + 1)])
    expected = grown if collective == "all_gather" else grown[::-1]
    assert (sent == expected[:, None]).all() and (received == expected[:, None]).all()


@pytest.mark.parametrize("p", [4, 5, 7, 16, 19, 23])
def test_an_all_reduce_is_one_step_for_each_power_of_four_and_two_for_the_rest(p: int) -> None:
    full = 4 ** (len(f"{p:b}") - 1 >> 1)
    sent, received = moved(ALGORITHMS["all_reduce", "knomial"].build(p))
    whole = sent[1:-1] if p > full else sent
    assert (whole == np.where(np.arange(p) < full, 3, 0)).all() and len(whole) == (full - 1).bit_length() // 2
    if p > full:
        outside = (np.arange(p) >= full).astype(int)
        assert (sent[0] == outside).all() and (received[-1] == outside).all()


def test_all_ranks_have_the_same_bits() -> None:
    random = np.random.default_rng(4)
    for p in (4, 6, 16, 19):
        inputs = [random.standard_normal(17).astype(np.float32) for _ in range(p)]
        outputs = reference.run(ALGORITHMS["all_reduce", "knomial"].build(p), inputs)
        assert len({output.tobytes() for output in outputs}) == 1
