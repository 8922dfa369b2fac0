import numpy as np
import pytest

from benchmarks.predicted import Profile, host, predict, staged
from hocket.algorithms import ALGORITHMS

THIS = Profile(2, 10e9, 15e9, 1 << 20, 1e-6, 2e-6)


def test_what_many_read_is_staged_once() -> None:
    schedule = staged(ALGORITHMS["all_gather", "direct"].build(4))
    into, out = (repeat.step for repeat in schedule.repeats)
    assert sorted(zip(into.src.tolist(), into.dst.tolist(), into.count.tolist(), strict=True)) == [
        (rank, 4 + rank, 2)
        for rank in range(4)  # its block for the others, and once more for its own output
    ]
    assert len(out) == 12 and (out.src >= 4).all() and (out.dst < 4).all()


def test_ranks_of_a_core_share_it() -> None:
    network = host(THIS, 4, cached=True)
    source, target = np.array([0, 1, 2, 4, 4]), np.array([4, 5, 6, 1, 3])  # ranks into their slots, slot 0 to others
    paths = network.paths(source, target)
    names = [
        network.link_names(paths.links[begin:end]) for begin, end in zip(paths.offsets, paths.offsets[1:], strict=False)
    ]
    assert ["core0->core0 done" in name for name in names] == [True, False, True, False, False]
    assert ["core1->core1 done" in name for name in names] == [False, True, False, True, True]


def test_a_prediction_by_hand() -> None:
    # Two ranks in cache: each of two steps stages half of a vector and reads half; each of these costs a message.
    expected = 4 * (1e-6 + (1 << 18) / 2 / 10e9)
    assert predict(THIS, "all_reduce", "direct_two_shot", 2, 1 << 18) == pytest.approx(expected, rel=1e-6)
