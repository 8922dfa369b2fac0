"""The reference, against plain NumPy and against its own rules."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError
from hocket.schedule import Builder, find_collective, reference
from tests.schedule.promise import even_lengths, input_sizes, named_lengths, promised_outputs
from tests.schedule.random_schedules import random_inputs, random_lengths

PLAIN: dict[str, Callable[[Sequence[np.ndarray]], np.ndarray]] = {
    "sum": lambda x: np.stack(x).sum(axis=0, dtype=x[0].dtype),
    "prod": lambda x: np.stack(x).prod(axis=0, dtype=x[0].dtype),
    "min": lambda x: np.stack(x).min(axis=0),
    "max": lambda x: np.stack(x).max(axis=0),
}


@pytest.mark.parametrize(
    ("key", "p"),
    [
        (key, p)
        for number, (key, one) in enumerate(ALGORITHMS.items())
        for p in filter(one.allows, (1, 2, 3, 4, (5, 7, 8)[number % 3]) if one.allows(3) else (1, 2, 4, 6, 8))
    ],
)
def test_integers_are_those_of_numpy(key: tuple[str, str], p: int) -> None:
    random = np.random.default_rng(p)
    for root in {0, p - 1} if find_collective(key[0]).rooted else {0}:
        schedule = ALGORITHMS[key].build(p, root)
        for length in (0, 1, 7, 23):
            lengths = random_lengths(schedule, length, p, in_place=False)
            lengths = even_lengths(schedule, length) if lengths is None else lengths
            for reduction, dtype in (("sum", np.int64), ("prod", np.uint8), ("min", np.int32), ("max", np.uint8)):
                reduction = "max" if key[0] == "barrier" else reduction
                sizes = input_sizes(schedule, lengths)
                inputs = [None if size is None else random.integers(0, 200, size).astype(dtype) for size in sizes]
                wanted = promised_outputs(schedule, inputs, lengths, PLAIN[reduction])
                outputs = reference.run(schedule, inputs, reduction, **named_lengths(schedule, lengths))
                for rank, (found, expected) in enumerate(zip(outputs, wanted, strict=True)):
                    assert (found is None) == (expected is None), rank
                    assert found is None or (found.dtype == dtype and np.array_equal(found, expected)), rank


@pytest.mark.parametrize(
    ("key", "p"),
    [
        (key, p)
        for key, one in ALGORITHMS.items()
        if one.collective in ("all_reduce", "reduce", "reduce_scatter")
        for p in filter(one.allows, (1, 2, 3, 6, 8))
    ],
)
def test_avg_divides_once(key: tuple[str, str], p: int) -> None:
    inputs = [np.arange(3 * p, dtype=np.float64) * p * (rank + 1) for rank in range(p)]
    schedule = ALGORITHMS[key].build(p)
    lengths = even_lengths(schedule, 3 * p // schedule.kind.num_blocks(p))
    wanted = promised_outputs(schedule, inputs, lengths, lambda all: sum(all) / p)
    for found, expected in zip(reference.run(schedule, inputs, "avg"), wanted, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or np.array_equal(found, expected)


def test_rank_order_means_the_left_fold_rounded_once() -> None:
    p = 5
    inputs = [np.random.default_rng(rank).standard_normal(64).astype(np.float16) for rank in range(p)]
    total = inputs[0].astype(np.float32)
    for x in inputs[1:]:
        total = total + x.astype(np.float32)
    for name in ("direct", "direct_two_shot"):
        for found in reference.run(ALGORITHMS["all_reduce", name].build(p), inputs):
            assert np.array_equal(found, total.astype(np.float16))


def test_balanced_tree_means_a_rounding_at_every_node() -> None:
    p = 7
    inputs = [np.random.default_rng(rank).standard_normal(64).astype(np.float16) for rank in range(p)]

    def node(low: int, high: int) -> np.ndarray:
        if high - low == 1:
            return inputs[low]
        split = low + (1 << (high - low - 1).bit_length() - 1)
        return (node(low, split).astype(np.float32) + node(split, high).astype(np.float32)).astype(np.float16)

    for found in reference.run(ALGORITHMS["all_reduce", "halving_doubling"].build(p), inputs):
        assert np.array_equal(found, node(0, p))
    for root in range(p):
        found = reference.run(ALGORITHMS["reduce", "binomial"].build(p, root), inputs)[root]
        assert np.array_equal(found, node(0, p))


def test_inputs_stay_as_they_are_and_outputs_are_new() -> None:
    for algorithm in ALGORITHMS.values():
        schedule = algorithm.build(2)
        lengths = even_lengths(schedule, 2)
        inputs = random_inputs(schedule, 2, 0, lengths)
        before = [None if x is None else x.copy() for x in inputs]
        outputs = reference.run(schedule, inputs, **named_lengths(schedule, lengths))
        assert all(x is None or np.array_equal(x, old) for x, old in zip(inputs, before, strict=True))
        for output in outputs:
            assert output is None or not any(x is not None and np.shares_memory(output, x) for x in inputs)


def test_what_the_reference_refuses() -> None:
    ring = ALGORITHMS["all_reduce", "ring"].build(2)
    pair = [np.zeros(2, np.int64)] * 2
    with pytest.raises(ValueError, match="expected 2 inputs"):
        reference.run(ring, pair[:1])
    with pytest.raises(ValueError, match="one dtype and length"):
        reference.run(ring, [np.zeros(2), np.zeros(3)])
    with pytest.raises(TypeError, match="'avg' has no meaning for int64"):
        reference.run(ring, pair, "avg")
    with pytest.raises(ValueError, match="multiple of 2"):
        reference.run(ALGORITHMS["reduce_scatter", "ring"].build(2), [np.zeros(3)] * 2)
    with pytest.raises(ScheduleError, match="rank 1: 1 chunk"):
        reference.run(Builder("broadcast", 2, 1).finish(), [np.zeros(1), None])
    broken = Builder("broadcast", 2, 1)
    with broken.step():
        broken.copy(src=1, dst=0, chunk=0)
    with pytest.raises(ScheduleError, match="holds nothing"):
        reference.run(broken.finish(), [np.zeros(1), None])
