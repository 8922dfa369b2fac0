"""Costs without times: of a schedule's work, at made-up costs of a machine."""

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.runtime import Costs, MachineCosts
from hocket.runtime.tuning.machine_costs import PASSES
from hocket.runtime.tuning.rough_costs import rough_costs, rough_entries, work_of
from hocket.runtime.tuning.tuner import COLLECTIVES, candidates

RATES = {"load": 1e11, "store": 1e11, "copy": 1e10, "add": 5e9}
N = 1 << 20


def machine(num_cores: int) -> MachineCosts:
    """Cores that do not slow each other down, wherever the data is."""
    return MachineCosts(
        num_cores,
        1e-7,
        {kind: {1 << 14: RATES[kind], 1 << 27: RATES[kind]} for kind in PASSES},
        {kind: num_cores * RATES[kind] for kind in PASSES},
    )


def seconds(collective: str, name: str, num_cores: int) -> tuple[Costs, float, float]:
    """For four ranks: also what one core moves and adds, in vector lengths."""
    work = work_of(ALGORITHMS[collective, name].build(4))
    costs = rough_costs(work, N, machine(num_cores))
    _, moved, added = costs.parts(work.traits, N)
    return costs, moved * RATES["copy"] / N, added * RATES["add"] / N


@pytest.mark.parametrize(
    ("collective", "name", "moved", "added"),
    [
        ("all_reduce", "direct", 1, 3),  # staged once, for three that add
        ("all_gather", "ring", 0.75 + 0.75, 0),  # each block staged by one and copied by the next
        ("broadcast", "direct", 1, 0),  # the root stages as much as each other rank copies
        ("broadcast", "chain", 2, 0),  # those between do both
        ("reduce", "binomial", 1, 2),  # the root adds twice
    ],
)
def test_with_a_core_for_each_the_busiest_rank_counts(collective: str, name: str, moved: float, added: float) -> None:
    costs, found_moved, found_added = seconds(collective, name, 4)
    assert (found_moved, found_added) == pytest.approx((moved, added))
    assert 2e-7 < costs.alpha < 1e-6


@pytest.mark.parametrize(
    ("collective", "name", "moved", "added"),
    [
        ("all_reduce", "direct", 2, 6),
        ("all_gather", "ring", 3, 0),
        ("broadcast", "direct", (1 + 3) / 2, 0),
        ("broadcast", "chain", (3 + 3) / 2, 0),
        ("reduce", "binomial", 3 / 2, 2),  # the root still does more than its core's share
    ],
)
def test_ranks_that_share_cores_wait_for_each_other(collective: str, name: str, moved: float, added: float) -> None:
    costs, found_moved, found_added = seconds(collective, name, 2)
    assert (found_moved, found_added) == pytest.approx((moved, added))
    assert costs.alpha > 1e-6, "all ranks of a core have their turn in each step"


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_candidate_has_costs(collective: str) -> None:
    for p in (1, 2, 3, 8):
        entry = rough_entries(collective, p, (8, N), machine(2))[N]
        names = {name for one in entry.algorithms for name in (one.algorithm, *one.twins)}
        assert names == {name for same in candidates(collective, p).items() for name in (same[0], *same[1])}
        assert entry.date == "" and not any(one.samples for one in entry.algorithms)
        assert all(one.costs.seconds(one.traits, N) > 0 for one in entry.algorithms if one.traits.steps)
