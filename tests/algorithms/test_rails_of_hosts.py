import numpy as np
import pytest

import hocket
from hocket.algorithms import ALGORITHMS


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("num_groups", [2, 4])
def test_rings_stay_on_their_rails_and_load_them_alike(collective: str, num_groups: int) -> None:
    size = 3
    schedule = ALGORITHMS[collective, "rail_ring"].build(size * num_groups, groups=(size,) * num_groups)
    carried = np.zeros(schedule.num_ranks)
    for step in schedule.steps():
        between = step.src // size != step.dst // size
        assert (step.src[between] % size == step.dst[between] % size).all()
        np.add.at(carried, step.src[between], step.count[between])
    assert (carried == carried[0]).all(), "every rank's card carries the same"


def test_hosts_of_accelerators_use_all_their_cards() -> None:
    one, all_cards = (
        hocket.simulate("all_reduce", "256M", topology="dgx-h100:8", algorithm=name).seconds
        for name in ("ring", "rail_ring")
    )
    assert one == pytest.approx(8 * all_cards, rel=0.01)


def test_trees_use_all_cards_and_few_steps() -> None:
    times = {
        name: hocket.simulate("all_reduce", "256K", topology="dgx-h100:8", algorithm=name)
        for name in ("double_tree", "rail_ring", "rail_tree")
    }
    assert times["rail_tree"].bandwidth < times["double_tree"].bandwidth / 6
    assert times["rail_tree"].num_steps == 20 and times["rail_ring"].num_steps == 126
