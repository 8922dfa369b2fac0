"""Lower bounds: the minimum of work, and its time at given costs."""

import pytest

from hocket.errors import ScheduleError
from hocket.runtime import MachineCosts
from hocket.runtime.tuning.host_bound import MESSAGE, lower_bound, traffic_of
from hocket.runtime.tuning.machine_costs import PASSES
from hocket.schedule import COLLECTIVES

RATES = {"load": 10e9, "store": 5e9, "copy": 4e9, "add": 3e9}
# In cache, up to 1 MiB, everything is ten times as fast; both cores together are 1.5 times as fast as one.
COSTS = MachineCosts(
    2,
    1e-7,
    {kind: {4096: 10 * rate, 1 << 20: rate} for kind, rate in RATES.items()},
    {kind: 1.5 * rate for kind, rate in RATES.items()},
)
N = 1 << 24


@pytest.mark.parametrize(
    ("collective", "in_place", "loads", "stores", "copies", "folds", "crossings"),
    [
        ("all_reduce", False, 4, 4, 0, 1, 3),
        ("all_reduce", True, 4, 4, 0, 1, 3),
        ("reduce_scatter", False, 4, 1, 0, 1, 3),
        ("reduce", True, 4, 1, 0, 1, 3),
        ("all_gather", False, 1, 4, 1, 0, 0),
        ("all_gather", True, 1, 3, 1, 0, 0),
        ("broadcast", False, 1, 4, 1, 0, 0),
        ("broadcast", True, 1, 3, 1, 0, 0),
        ("gather", False, 1, 1, 1, 0, 0),
        ("gather", True, 0.75, 0.75, 0.75, 0, 0),
        ("scatter", True, 0.75, 0.75, 0.75, 0, 0),
        ("all_to_all", False, 4, 4, 4, 0, 0),
        ("all_to_all", True, 3, 3, 0, 0, 0),
        (MESSAGE, False, 2, 2, 2, 0, 0),
        ("barrier", False, 0, 0, 0, 0, 0),
    ],
)
def test_traffic_of_four_ranks_in_sizes_of_the_vector(
    collective: str, in_place: bool, loads: float, stores: float, copies: float, folds: float, crossings: float
) -> None:
    found = traffic_of(collective, 4, N, in_place=in_place)
    assert (found.loads, found.stores, found.copies) == (loads * N, stores * N, copies * N)
    assert (found.folds, found.crossings) == (folds * N, crossings * N)
    rooted = collective != MESSAGE and COLLECTIVES[collective].rooted
    assert found.hops == (0 if rooted else 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_at_most_copies(collective: str) -> None:
    assert lower_bound(collective, 1, N, COSTS, registered=True, in_place=True) == 0
    copied = N if COLLECTIVES[collective].exactly_once else 0
    found = traffic_of(collective, 1, N, in_place=False)
    assert (found.loads, found.stores, found.copies, found.folds, found.hops) == (copied, copied, copied, 0, 0)


def test_the_slowest_part_counts() -> None:
    # Two ranks: 2 N loaded, 2 N stored, N added, at 1.5 times the rate of one core.
    found = lower_bound("all_reduce", 2, N, COSTS, registered=True, in_place=True)
    assert found == pytest.approx(2 * N / (1.5 * RATES["store"]))


def test_cores_share_the_work_and_ranks_share_the_cores() -> None:
    two = lower_bound("broadcast", 2, 4096, COSTS, registered=True, in_place=True)
    assert two == pytest.approx(4096 / (2 * 10 * RATES["copy"]))
    four = lower_bound("broadcast", 4, 4096, COSTS, registered=True, in_place=True)
    assert four == pytest.approx(3 * 4096 / (2 * 10 * RATES["store"]))


def test_private_sums_cross_in_cache() -> None:
    registered, private = (
        lower_bound("reduce_scatter", 2, 65536, COSTS, registered=memory, in_place=False) for memory in (True, False)
    )
    assert registered == pytest.approx(65536 / (20 * RATES["add"]))
    assert private == pytest.approx(2 * 65536 / (20 * RATES["store"]))  # the result, and one operand


def test_small_ones_take_a_hop_unless_calls_may_overlap() -> None:
    for collective, least in (("all_reduce", 1e-7), ("barrier", 1e-7), (MESSAGE, 1e-7), ("broadcast", 1e-10)):
        assert lower_bound(collective, 2, 8, COSTS, registered=False, in_place=True) == pytest.approx(least)


@pytest.mark.parametrize("collective", [name for name, kind in COLLECTIVES.items() if kind.exactly_once])
def test_more_bytes_and_less_cache_never_take_less(collective: str) -> None:
    for num_ranks in (2, 3, 8):
        found = [
            lower_bound(collective, num_ranks, size, COSTS, registered=False, in_place=False)
            for size in (8, 4096, 1 << 16, 1 << 20, 1 << 24)
        ]
        assert found == sorted(found)


def test_unknown_collective() -> None:
    with pytest.raises(ScheduleError, match="expected a collective"):
        lower_bound("all_scatter", 2, 8, COSTS, registered=True, in_place=True)


def test_rates_are_the_best_of_what_was_measured() -> None:
    assert COSTS.rate("load", 8, 1) == COSTS.rate("load", 4096, 1) == 10 * RATES["load"]
    assert COSTS.rate("load", 8192, 2) == 20 * RATES["load"]
    assert COSTS.rate("load", 1 << 20, 2) == 1.5 * RATES["load"]
    assert COSTS.rate("load", 1 << 30, 1) == RATES["load"]
    odd = MachineCosts(1, 0, {kind: {4096: 1.0, 8192: 2.0} for kind in PASSES}, dict.fromkeys(PASSES, 3.0))
    assert odd.rate("copy", 0, 1) == 2.0  # a small footprint is never slower than a large one
