"""Recursive doubling: ranks exchange everything with partners twice as far away in every step."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import chunks_sent, has_sound_plans, keeps_its_promises, named, refuses, title


@pytest.mark.parametrize("one", named("recursive_doubling"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps = {"same_on_all_ranks", "size_invariant"}
    if one.collective != "all_reduce":
        keeps_its_promises(one, range(1, 34))
        return
    for p in range(1, 34):
        balanced = (p + (p & -p)).bit_count() == 1  # Ones, then zeros: pairs are whole halves of the balanced tree.
        keeps_its_promises(one, [p], keeps | ({"balanced_tree"} if balanced else set()))


@pytest.mark.parametrize("one", named("recursive_doubling"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 3, 4, 5, 6, 7, 8, 11, 16])


@pytest.mark.parametrize("collective", ["all_reduce", "barrier", "all_gather"])
def test_partners_are_twice_as_far_away_in_every_step(collective: str) -> None:
    for k, step in enumerate(ALGORITHMS[collective, "recursive_doubling"].build(16).steps()):
        away = step.src != step.dst
        assert set((step.src ^ step.dst)[away].tolist()) == {2**k}
        assert chunks_sent(step) == {2**k if collective == "all_gather" else 1}
        assert away.sum() == 16, "each range in one row"


@pytest.mark.parametrize("p", [3, 5, 6, 7, 11])
def test_otherwise_the_first_ranks_fold_in_pairs_before_and_get_the_result_after(p: int) -> None:
    pairs = p - 2 ** (p.bit_length() - 1)
    first, *between, last = ALGORITHMS["all_reduce", "recursive_doubling"].build(p).steps()
    assert first.dst.tolist() == last.src.tolist() == list(range(0, 2 * pairs, 2))
    assert first.src.tolist() == last.dst.tolist() == list(range(1, 2 * pairs, 2))
    assert len(between) == p.bit_length() - 1
    assert not {rank for step in between for rank in step.dst.tolist()} & set(first.src.tolist())


def test_refused_rank_counts_have_an_alternative() -> None:
    refuses(ALGORITHMS["all_gather", "recursive_doubling"], 6, "a power of two", "bruck")
