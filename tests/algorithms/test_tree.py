"""Binomial trees, and k-nomial ones by the same programs."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.algorithms.programs.rounds import rounds
from hocket.algorithms.programs.tree import largest_subtree
from hocket.schedule import compose, reference, verify
from tests.algorithms.observed import holdings, moved
from tests.algorithms.promises import has_sound_plans, keeps_its_promises, named, title

RADIX = {"binomial": 2, "knomial": 4}
ROOTED = ("broadcast", "reduce", "gather", "scatter")
TREES = named("binomial") + named("tree") + named("knomial", *ROOTED)
BALANCED = ("same_on_all_ranks", "balanced_tree", "size_invariant")
ROOT_FREE = {"same_on_all_ranks", "size_invariant"}


@pytest.mark.parametrize("one", [one for one in TREES if title(one) != "reduce-knomial"], ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), BALANCED if "reduce" in one.collective else ())


@pytest.mark.parametrize("one", TREES, ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])


def test_a_k_nomial_reduce_of_one_group_has_the_order_of_ranks() -> None:
    for p in range(3, 34):
        for root in (0, p // 2, p - 1):
            labels = ALGORITHMS["reduce", "knomial"].verify(p, root, laws=(1, 2, 4, 5)).labels
            assert labels == ROOT_FREE | ({"rank_order"} if p <= 4 else set())


def test_rounds_are_exact() -> None:
    assert [rounds(p) for p in (1, 2, 3, 4, 5, 2**30, 2**30 + 1)] == [0, 1, 2, 2, 3, 30, 31]
    assert [rounds(p, 4) for p in (1, 2, 4, 5, 16, 17, 4**15, 4**15 + 1)] == [0, 1, 1, 2, 2, 3, 15, 16]


@pytest.mark.parametrize("name", RADIX)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 13, 16, 17, 64, 65])
def test_those_who_know_grow_by_the_radix(name: str, p: int) -> None:
    radix = RADIX[name]
    for root in {0, p // 2, p - 1}:
        schedule = ALGORITHMS["broadcast", name].build(p, root)
        known = [int(held.sum()) for held in holdings(schedule)]
        top = radix ** max(rounds(p, radix) - 1, 0)  # Far away first: one rank in each group of `top`.
        groups = [-(-p // (top // radix**k)) for k in range(rounds(p, radix))]
        assert known == [1, *groups]
        sent, _ = moved(schedule)
        assert sent.max(initial=0) <= radix - 1


@pytest.mark.parametrize("name", RADIX)
@pytest.mark.parametrize("p", [2, 3, 6, 13, 16, 21])
def test_sums_do_not_depend_on_the_root(name: str, p: int) -> None:
    """Sums do not depend on the ranks that hold them on the way, either: operands are in the order of ranks."""
    random = np.random.default_rng(p)
    inputs = [random.standard_normal(33).astype(np.float32) for _ in range(p)]
    sums = [reference.run(ALGORITHMS["reduce", name].build(p, root), inputs)[root].tobytes() for root in range(p)]
    assert len(set(sums)) == 1


@pytest.mark.parametrize("name", RADIX)
@pytest.mark.parametrize("p", [2, 3, 5, 13, 16, 21, 64])
def test_in_a_gather_blocks_move_up_in_whole_subtrees(name: str, p: int) -> None:
    radix = RADIX[name]
    for root in {0, p // 3, p - 1}:
        sent, received = moved(ALGORITHMS["gather", name].build(p, root))
        others = np.arange(p) != root
        assert (np.count_nonzero(sent, axis=0) == others).all(), "everyone but the root sends once"
        assert sent.max() == largest_subtree(p, radix) and received[:, root].sum() == p - 1


def test_every_block_of_a_tree_reduce_scatter_goes_up_its_own_tree() -> None:
    for p in (2, 3, 6, 13):
        scattered = list(ALGORITHMS["reduce_scatter", "tree"].build(p).steps())
        for root in range(p):
            alone = list(ALGORITHMS["reduce", "binomial"].build(p, root).steps())
            for step, of_root in zip(scattered, alone, strict=True):
                mine = step.take(step.src_chunk == root)
                rows = sorted(zip(mine.src, mine.dst, mine.reduce, strict=True))
                assert rows == sorted(zip(of_root.src, of_root.dst, of_root.reduce, strict=True))


@pytest.mark.parametrize("p", [2, 3, 7, 10, 16, 21])
def test_composed_otherwise_they_still_hold(p: int) -> None:
    root = p // 2
    broadcast, reduce, gather, scatter = (ALGORITHMS[name, "knomial"].build(p, root) for name in ROOTED)
    all_gather, reduce_scatter = (ALGORITHMS[name, "knomial"].build(p) for name in ("all_gather", "reduce_scatter"))
    for schedule, collective in (
        (compose.then(scatter, all_gather), "broadcast"),
        (compose.then(compose.refine(reduce_scatter, 3), gather), "reduce"),
        (compose.reversed(reduce), "broadcast"),
        (compose.then(compose.refine(reduce, 2), broadcast), "all_reduce"),
        (compose.then(gather, broadcast), "all_gather"),
        (compose.reversed(compose.reversed(gather)), "gather"),
    ):
        assert schedule.collective == collective
        verify(schedule, laws=(1, 2, 4))
