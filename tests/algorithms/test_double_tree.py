"""Double binary tree: two trees over the same ranks; no rank is an inner node of both."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.schedule import compose, verify
from hocket.schedule.ir import concatenate
from tests.algorithms.observed import moved
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, title

SOME = [*range(1, 40), 63, 64, 65, 100, 127, 128, 129, 1000, 1023]
LABELS = {"reduce": ("same_on_all_ranks",), "all_reduce": ("same_on_all_ranks",)}


@pytest.mark.slow("proves it for many rank counts and all roots")
@pytest.mark.parametrize("one", named("double_tree"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), LABELS.get(one.collective, ()))


@pytest.mark.parametrize("one", named("double_tree"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


@pytest.mark.parametrize("p", [p for p in SOME if p > 1])
def test_both_are_binary_trees_and_nobody_is_inner_in_both(p: int) -> None:
    root = p * 2 // 3
    rows = concatenate(list(ALGORITHMS["broadcast", "double_tree"].build(p, root).steps()))
    others = np.arange(p) != root
    inner = []
    for half in (0, 1):
        tree = rows.take(rows.src_chunk == half)
        children = np.bincount(tree.src, minlength=p)
        assert (np.bincount(tree.dst, minlength=p) == others).all(), "each rank has one parent, except the root"
        assert children.max() <= 2 and children[root] == 1
        inner.append((children > 0) & others)
    assert not (inner[0] & inner[1]).any()


@pytest.mark.parametrize("p", SOME)
def test_steps_are_logarithmic_and_nobody_sends_more_than_the_vector(p: int) -> None:
    one = ALGORITHMS["broadcast", "double_tree"]
    sent, received = moved(one.build(p, p - 1))
    assert len(sent) == (p - 1).bit_length()
    assert sent.sum(axis=0).max() <= 2, "both halves once, or one half twice"
    assert (received.sum(axis=0) == 2 * (np.arange(p) != p - 1)).all()
    sent, _ = moved(ALGORITHMS["all_reduce", "double_tree"].build(p))
    assert sent.sum(axis=0).max(initial=0) <= 4


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_reduce"])
def test_many_thousand_ranks(collective: str) -> None:
    for p in (16383, 16384):
        steps = 28 if collective == "all_reduce" else 14
        assert ALGORITHMS[collective, "double_tree"].verify(p, 5, laws=(1, 2, 5)).num_steps == steps


@pytest.mark.parametrize("p", [2, 3, 6, 9])
def test_composed_otherwise_it_still_holds(p: int) -> None:
    broadcast, reduce = (ALGORITHMS[name, "double_tree"].build(p, 1) for name in ("broadcast", "reduce"))
    assert compose.reversed(reduce).digest == broadcast.digest
    everything = ALGORITHMS["all_reduce", "double_tree"].build(p)
    halves = [
        compose.on(everything, ranks, p, chunks=chunks, num_chunks=4)
        for ranks, chunks in ((range(p), (0, 1)), (range(p)[::-1], (2, 3)))
    ]
    for schedule in (
        compose.then(compose.refine(reduce, 3), broadcast),
        compose.refine(everything, 2),
        compose.beside(halves[0], halves[1]),
    ):
        assert schedule.collective == "all_reduce"
        verify(schedule, laws=(1, 2, 4))
