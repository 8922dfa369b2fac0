"""Nonuniform hierarchical ring and nonuniform Bruck: few steps and least traffic, most of it between neighbours."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import chunks_sent, distances, has_sound_plans, keeps_its_promises, named, title, turned

NAMES = ("nonuniform_hierarchical_ring", "nonuniform_bruck")
DIRECTIONS = [(NAMES[0], -1), (NAMES[1], 1)]  # Directions in which a reduce_scatter, or a scatter, sends.
BOTH = [one for name in NAMES for one in named(name)]
LABELS = {"all_reduce": ("same_on_all_ranks",), "reduce_scatter": ("same_on_all_ranks",)}


@pytest.mark.parametrize("one", BOTH, ids=title)
def test_they_keep_their_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", BOTH, ids=title)
def test_their_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("name", NAMES)
def test_both_serve_five_collectives(name: str) -> None:
    found = {one.collective for one in named(name)}
    assert found == {"reduce_scatter", "all_gather", "all_reduce", "scatter", "broadcast"}


@pytest.mark.parametrize(("name", "direction"), DIRECTIONS)
@pytest.mark.parametrize("p", [2, 3, 5, 6, 8, 13, 16, 24, 33])
def test_the_distance_2_to_the_k_moves_as_many_chunks_as_hccl_says(name: str, direction: int, p: int) -> None:
    for collective in ("reduce_scatter", "all_reduce"):
        steps = list(ALGORITHMS[collective, name].build(p).steps())
        for k in range((p - 1).bit_length()):
            assert distances(steps[k], p) == {direction * 2**k % p}
            assert chunks_sent(steps[k]) == {(p - 1 + 2**k) // 2 ** (k + 1)}


def test_a_reduce_scatter_sends_what_is_for_ranks_an_odd_number_of_distances_on() -> None:
    steps = list(ALGORITHMS["reduce_scatter", "nonuniform_bruck"].build(11).steps())
    first = [turned(step, 11)[0] for step in steps]
    assert first == [{(1, 1), (1, 3), (1, 5), (1, 7), (1, 9)}, {(2, 2), (2, 6), (2, 10)}, {(4, 4)}, {(8, 8)}]


@pytest.mark.parametrize("p", [5, 8, 12])
def test_one_is_the_mirror_image_of_the_other(p: int) -> None:
    ring, bruck = (list(ALGORITHMS["reduce_scatter", name].build(p).steps()) for name in NAMES)
    for mine, other in zip(ring, bruck, strict=True):
        mirrored = {((-goal) % p, (-chunk) % p) for goal, chunk in turned(mine, p)[0]}
        assert mirrored == turned(other, p)[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_what_a_rank_does_is_what_the_others_do(name: str, collective: str) -> None:
    for p in (7, 12, 16):
        for step in ALGORITHMS[collective, name].build(p).steps():
            assert len({frozenset(moves) for moves in turned(step, p)}) == 1


@pytest.mark.parametrize("p", [2, 4, 8, 16, 32])
def test_for_a_power_of_two_every_message_of_an_all_reduce_is_one_range(p: int) -> None:
    for step in ALGORITHMS["all_reduce", NAMES[0]].build(p).steps():
        assert len(step) == p and (step.stride == 1).all()


@pytest.mark.parametrize("p", [3, 5, 6, 7, 12, 20, 24, 40])
def test_otherwise_the_messages_of_distances_that_divide_p_are_ranges(p: int) -> None:
    """A range is cut in two at the end of a part. Other messages have every second chunk, every fourth ..."""
    steps = list(ALGORITHMS["all_reduce", NAMES[0]].build(p).steps())
    for k in range((p - 1).bit_length()):
        for step in (steps[k], steps[-1 - k]):
            _, rows = np.unique(step.src, return_counts=True)
            assert rows.max() <= (1 if p % 2 ** (k + 1) == 0 else 2)
            assert set(step.stride[step.count > 1].tolist()) <= {max(2**k // (p & -p), 1)}


@pytest.mark.parametrize(("name", "direction"), DIRECTIONS)
def test_a_scatter_is_a_tree_that_gives_no_block_twice(name: str, direction: int) -> None:
    for p in (2, 5, 8, 13):
        for root in (0, p - 1):
            informed, received = {root}, 0
            for k, step in enumerate(ALGORITHMS["scatter", name].build(p, root).steps()):
                assert distances(step, p) == {direction * 2**k % p}
                assert set(step.src.tolist()) <= informed and not set(step.dst.tolist()) & informed
                informed |= set(step.dst.tolist())
                received += int(step.count[step.src == root].sum())
            assert informed == set(range(p)) and received == p - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_many_ranks_has_few_rows(name: str) -> None:
    for one in named(name, "reduce_scatter", "all_gather", "all_reduce"):
        for p in (1000, 1023, 1024):
            assert all(len(repeat.step) <= 2 * p for repeat in one.build(p).repeats)
