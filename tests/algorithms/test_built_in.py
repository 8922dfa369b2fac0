"""Every built-in algorithm keeps its promises, for all roots."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.algorithms.registry import Algorithm
from hocket.schedule import COLLECTIVES, find_collective

ALL_LABELS = {"same_on_all_ranks", "rank_order", "balanced_tree", "size_invariant"}


def roots(one: Algorithm, p: int) -> range:
    return range(p if find_collective(one.collective).rooted else 1)


def test_every_collective_has_an_algorithm_for_every_rank_count() -> None:
    for collective in COLLECTIVES:
        for p in range(1, 33):
            assert any(one.allows(p) for (kind, _), one in ALGORITHMS.items() if kind == collective), (collective, p)


@pytest.mark.parametrize("label", ["rank_order", "balanced_tree"])
@pytest.mark.parametrize("collective", [one.name for one in COLLECTIVES.values() if one.counts_contributions])
def test_every_reducing_collective_can_be_done_in_every_order_by_any_number_of_ranks(
    collective: str, label: str
) -> None:
    serving = [one for one in ALGORITHMS.values() if one.collective == collective and label in one.labels]
    assert any(all(one.allows(p) for p in range(1, 257)) for one in serving)


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
def test_the_law_holds_and_promises_are_kept(one: Algorithm) -> None:
    labels = ALL_LABELS if find_collective(one.collective).counts_contributions else frozenset()
    for p in filter(one.allows, range(1, 17)):
        for root in roots(one, p):
            certificate = one.verify(p, root, laws=(1, 2, 4, 5))
            declared = one.declared(p, root)
            assert certificate.num_steps == declared.steps
            assert float(certificate.sent) == pytest.approx(float(declared.sent))
            labels = labels & certificate.labels
    assert labels == one.labels, "declared are those that hold for every rank count"


@pytest.mark.parametrize("one", ALGORITHMS.values(), ids=map("-".join, ALGORITHMS))
@pytest.mark.parametrize("p", [31, 64, 65, 100])
def test_the_law_holds_for_many_ranks(one: Algorithm, p: int) -> None:
    p = next(filter(one.allows, range(p, 2 * p)))
    assert one.verify(p, roots(one, p)[-1], laws=(1, 2, 4, 5)).num_steps == one.declared(p).steps


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        (("all_reduce", "ring"), {"same_on_all_ranks"}),
        (("reduce_scatter", "ring"), {"same_on_all_ranks"}),
        (("all_reduce", "direct"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("reduce_scatter", "direct"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("all_reduce", "direct_two_shot"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("reduce", "direct"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("reduce_scatter_v", "direct"), {"same_on_all_ranks", "rank_order", "size_invariant"}),
        (("all_reduce", "halving_doubling"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("all_reduce", "tree"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("reduce", "binomial"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("reduce_scatter", "tree"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("reduce_scatter_v", "tree"), {"same_on_all_ranks", "balanced_tree", "size_invariant"}),
        (("all_to_all", "pairwise"), set()),
        (("gather", "binomial"), set()),
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


def test_one_rank_sends_nothing_and_has_any_order() -> None:
    for one in ALGORITHMS.values():
        certificate = one.verify(1, laws=(1, 2, 4, 5))
        # In an all_to_all, a rank's own block moves from input to output.
        assert (certificate.num_steps, certificate.sent) == (int(one.collective.startswith("all_to_all")), 0)
        assert certificate.labels in (ALL_LABELS, frozenset())


@pytest.mark.parametrize("p", [1, 2, 3, 8, 13, 1024])
def test_nothing_beats_the_lower_bounds(p: int) -> None:
    least = {
        "all_reduce": 2 * (p - 1) / p,
        "reduce_scatter": (p - 1) / p,
        "all_gather": (p - 1) / p,
        "gather": min(p - 1, 1) / p,
        "scatter": (p - 1) / p,
        "all_to_all": (p - 1) / p,
    }
    for (collective, _), one in ALGORITHMS.items():
        if not one.allows(p):
            continue
        declared = one.declared(p)
        assert float(declared.sent) >= least.get(collective.removesuffix("_v"), min(p - 1, 1)) - 1e-12
        assert declared.steps >= min(p - 1, 1)


@pytest.mark.slow("a schedule of 1,024 ranks")
def test_a_ring_of_1024_ranks_stays_periodic() -> None:
    schedule = ALGORITHMS["all_reduce", "ring"].build(1024)
    assert (len(schedule.repeats), schedule.num_steps, schedule.num_rows) == (2, 2046, 2046 * 1024)
    assert np.all(schedule.repeats[0].step.count == 1)


@pytest.mark.parametrize("name", ["direct", "pairwise"])
@pytest.mark.parametrize("p", [2, 3, 8])
def test_all_to_all_gives_no_rank_two_messages_of_one_place_at_once(name: str, p: int) -> None:
    """The n-th message of every rank goes to another rank: its n-th neighbour."""
    schedule = ALGORITHMS["all_to_all", name].build(p)
    for step in schedule.steps():
        peers = step.dst.reshape(-1, p)
        assert all(len(set(row)) == p for row in peers.tolist())
    goals = np.concatenate([step.dst.reshape(-1, p) for step in schedule.steps()])
    assert goals[:, 0].tolist() == list(range(p)), "oneself, then the next neighbour first"


def test_in_a_binomial_gather_the_root_hears_from_few() -> None:
    for p in (5, 8, 13):
        for root in (0, p - 1):
            steps = list(ALGORITHMS["gather", "binomial"].build(p, root).steps())
            heard = [set(step.src[step.dst == root].tolist()) for step in steps]
            assert all(len(ranks) == 1 for ranks in heard) and len(heard) == (p - 1).bit_length()
