import numpy as np
import pytest

from hocket.network import all_reduce_in_switches, all_reduce_in_tree
from hocket.schedule import Schedule


def sums(schedule: Schedule) -> np.ndarray:
    """Returns the contents of data chunks at the end and at the start, when each rank has different numbers."""
    held = np.random.default_rng(7).integers(0, 1 << 30, (schedule.num_ranks, schedule.num_chunks))
    began = held.copy()
    for step in schedule.steps():
        before, step, written = held.copy(), step.expanded(), set[tuple[int, int]]()
        for row in range(len(step)):
            place = (int(step.dst[row]), int(step.dst_chunk[row]))
            value = before[step.src[row], step.src_chunk[row]]
            held[place] = held[place] + value if step.reduce[row] or place in written else value
            written.add(place)
    return np.stack((held, began))


@pytest.mark.parametrize(("num_ranks", "num_hosts"), [(1, 1), (4, 1), (4, 2), (6, 3), (8, 4), (5, 5)])
@pytest.mark.parametrize("num_pieces", [1, 2, 5])
def test_every_rank_gets_the_sum(num_ranks: int, num_hosts: int, num_pieces: int) -> None:
    held, began = sums(all_reduce_in_switches(num_ranks, num_hosts, num_pieces))
    assert (held[:num_ranks] == began[:num_ranks].sum(axis=0)).all(), "switches behind the ranks contribute nothing"


@pytest.mark.parametrize("parents", [(2, 2, -1), (4, 4, 5, 6, 5, 6, -1), (3, 4, 5, 4, 5, -1)])
@pytest.mark.parametrize("num_pieces", [1, 5])
def test_every_rank_gets_the_sum_of_a_tree(parents: tuple[int, ...], num_pieces: int) -> None:
    held, began = sums(all_reduce_in_tree(parents, num_pieces))
    num_ranks = min(parents[:-1])  # ranks are nobody's parents, and come first
    assert (held[:num_ranks] == began[:num_ranks].sum(axis=0)).all(), "switches behind the ranks contribute nothing"
