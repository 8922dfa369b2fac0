import pytest

from hocket.algorithms import ALGORITHMS
from hocket.network.simulation.machines import MACHINES, predict
from hocket.schedule import Schedule
from tests.network.goldens_machines import Entry, entries

ALL = list(entries())


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry[0])
def test_measured_times_are_predicted(entry: Entry) -> None:
    name, ours, published, allowed, how = entry
    assert abs(ours / published - 1) <= allowed, f"{name}: {ours:.4g} us predicted, {published:.4g} us measured ({how})"


def build(collective: str, algorithm: str, num_ranks: int) -> Schedule:
    return ALGORITHMS[collective, algorithm].build(num_ranks)


def test_one_rule_chooses_algorithm_and_protocol() -> None:
    ways = [predict(MACHINES["h100"], "all_reduce", 8, size, build) for size in (1 << 10, 1 << 30)]
    assert [(way.algorithm, way.protocol) for way in ways] == [("ring", "LL"), ("nvls", "Simple")]
    way = predict(MACHINES["a100"], "all_reduce", 8, 1 << 30, build)
    assert (way.algorithm, way.protocol) == ("ring", "Simple"), "its switches do not reduce"


def test_another_collective_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected all_reduce or all_gather, .* found barrier"):
        predict(MACHINES["h100"], "barrier", 8, 1, build)
