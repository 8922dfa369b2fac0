"""Every built-in algorithm keeps its promises, for all roots."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.algorithms.registry import Algorithm

ALL_LABELS = {"same_on_all_ranks", "rank_order", "balanced_tree", "size_invariant"}


def roots(one: Algorithm, p: int) -> range:
    return range(p if one.collective in ("broadcast", "reduce") else 1)


def test_the_registry() -> None:
    assert set(ALGORITHMS) == {
        ("reduce_scatter", "ring"),
        ("all_gather", "ring"),
        ("all_reduce", "ring"),
        ("all_reduce", "direct"),
        ("reduce_scatter", "direct"),
        ("all_gather", "direct"),
        ("all_reduce", "direct_two_shot"),
        ("broadcast", "binomial"),
        ("reduce", "binomial"),
        ("all_reduce", "halving_doubling"),
        ("barrier", "dissemination"),
    }


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_the_law_holds_and_promises_are_kept(one: Algorithm) -> None:
    for p in range(1, 17):
        for root in roots(one, p):
            certificate = one.verify(p, root, laws=(1, 2, 4, 5))
            assert certificate.num_steps == one.steps(p)
            assert float(certificate.sent) == pytest.approx(one.sent(p))
            assert certificate.labels >= one.labels


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
@pytest.mark.parametrize("p", [31, 64, 65, 100])
def test_the_law_holds_for_many_ranks(one: Algorithm, p: int) -> None:
    assert one.verify(p, roots(one, p)[-1], laws=(1, 2, 4, 5)).num_steps == one.steps(p)


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        (("all_reduce", "ring"), {"same_on_all_ranks"}),
        (("reduce_scatter", "ring"), {"same_on_all_ranks"}),
        (("all_reduce", "direct"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("reduce_scatter", "direct"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("all_reduce", "direct_two_shot"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("all_reduce", "halving_doubling"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("reduce", "binomial"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("all_gather", "ring"), set()),
        (("broadcast", "binomial"), set()),
        (("barrier", "dissemination"), set()),
    ],
)
def test_labels_are_exactly_these_from_three_ranks_on(key: tuple[str, str], labels: set[str]) -> None:
    one = ALGORITHMS[key]
    for p in range(3, 17):
        for root in roots(one, p):
            assert one.verify(p, root, laws=(4,)).labels == labels, p


def test_one_rank_has_no_steps_and_any_order() -> None:
    for one in ALGORITHMS.values():
        certificate = one.verify(1, laws=(1, 2, 4, 5))
        assert (certificate.num_steps, certificate.sent) == (0, 0)
        assert certificate.labels in (ALL_LABELS, frozenset())


@pytest.mark.parametrize("p", [1, 2, 3, 8, 13, 1024])
def test_nothing_beats_the_lower_bounds(p: int) -> None:
    least = {"all_reduce": 2 * (p - 1) / p, "reduce_scatter": (p - 1) / p, "all_gather": (p - 1) / p}
    for (collective, _), one in ALGORITHMS.items():
        assert one.sent(p) >= least.get(collective, min(p - 1, 1)) - 1e-12
        assert one.steps(p) >= min(p - 1, 1)


def test_a_ring_of_1024_ranks_stays_periodic() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(1024)
    assert (len(schedule.blocks), schedule.num_steps, schedule.num_rows) == (2, 2046, 2046 * 1024)
    assert np.all(schedule.blocks[0].step.count == 1)


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_docstrings_say_what_the_house_asks_for(one: Algorithm) -> None:
    lines = one.doc.strip().splitlines()
    assert lines[0].endswith((".", ",", ":")) or len(lines) > 1
    text = " ".join(one.doc.split())
    for word in ("step", " N" if one.collective != "barrier" else "token", "Any rank count"):
        assert word in text, word
    assert "Best" in text or one.collective == "barrier"
