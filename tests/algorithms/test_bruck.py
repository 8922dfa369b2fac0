"""Bruck: each message is one range, twice as long in every step; in an all_to_all, one hop per bit of the distance."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.schedule import Buffer
from tests.algorithms.promises import chunks_sent, distances, has_sound_plans, keeps_its_promises, named, title, turned

LABELS = {"all_reduce": ("same_on_all_ranks",), "reduce_scatter": ("same_on_all_ranks",)}


@pytest.mark.parametrize("one", named("bruck"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("bruck"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("p", [2, 3, 5, 8, 12, 13, 33])
def test_near_ranks_are_first_and_blocks_double(p: int) -> None:
    steps = list(ALGORITHMS["all_gather", "bruck"].build(p).steps())
    for k, step in enumerate(steps):
        assert distances(step, p) == {-(2**k) % p}
        assert chunks_sent(step) == {min(2**k, p - 2**k)}
        assert (step.stride == 1).all() and len(step) < 2 * p, "one range, cut where chunks end"
        assert len({frozenset(moves) for moves in turned(step, p)}) == 1
    assert [chunks_sent(step) for step in ALGORITHMS["reduce_scatter", "bruck"].build(p).steps()] == [
        chunks_sent(step) for step in reversed(steps)
    ]


@pytest.mark.parametrize("p", [2, 3, 7, 8, 12])
def test_a_block_takes_a_hop_for_each_bit_of_its_distance(p: int) -> None:
    steps = list(ALGORITHMS["all_to_all", "bruck"].build(p).steps())
    for k, step in enumerate(steps):
        assert distances(step, p) == {2**k}
        assert chunks_sent(step) == {sum(d >> k & 1 for d in range(p))}
    rows = np.concatenate([np.stack((step.src, step.dst, step.src_buffer, step.dst_buffer)) for step in steps], axis=1)
    src, dst, src_buffer, dst_buffer = rows
    assert (src == dst).sum() == p, "one's own block, and no other local copy"
    assert (src_buffer == Buffer.INPUT).sum() == (dst_buffer == Buffer.OUTPUT).sum() == p * p
    assert len(src) == p + p * sum(d.bit_count() for d in range(p))


def test_there_is_none_for_uneven_blocks() -> None:
    assert ("all_to_all_v", "bruck") not in ALGORITHMS
