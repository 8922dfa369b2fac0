"""The living definition, against plain NumPy and against its own words."""

from collections.abc import Callable

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import ScheduleError
from hocket.schedule import reference
from hocket.schedule.builder import Builder

PLAIN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda x: x.sum(axis=0, dtype=x.dtype),
    "prod": lambda x: x.prod(axis=0, dtype=x.dtype),
    "min": lambda x: x.min(axis=0),
    "max": lambda x: x.max(axis=0),
}


def expected(collective: str, inputs: list[np.ndarray], reduction: str, root: int) -> list[np.ndarray | None]:
    p = len(inputs)
    if collective == "broadcast":
        return [inputs[root]] * p
    if collective == "all_gather":
        return [np.concatenate(inputs)] * p
    total = PLAIN[reduction](np.stack(inputs))
    if collective == "reduce":
        return [total if rank == root else None for rank in range(p)]
    return np.split(total, p) if collective == "reduce_scatter" else [total] * p


@pytest.mark.parametrize("key", ALGORITHMS, ids="-".join)
@pytest.mark.parametrize("p", range(1, 10))
def test_integers_are_those_of_numpy(key: tuple[str, str], p: int) -> None:
    random = np.random.default_rng(p)
    for length in (0, 1, 7, 23):
        length *= p if key[0] == "reduce_scatter" else 1
        for reduction, dtype in (("sum", np.int64), ("prod", np.uint8), ("min", np.int32), ("max", np.uint8)):
            if key[0] == "barrier":
                reduction = "max"
            inputs = [random.integers(0, 200, length).astype(dtype) for _ in range(p)]
            for root in {0, p - 1} if key[0] in ("broadcast", "reduce") else {0}:
                given = [x if key[0] != "broadcast" or rank == root else None for rank, x in enumerate(inputs)]
                outputs = reference.run(ALGORITHMS[key].build(p, root), given, reduction)
                for rank, (found, wanted) in enumerate(
                    zip(outputs, expected(key[0], inputs, reduction, root), strict=True)
                ):
                    assert (found is None) == (wanted is None), rank
                    assert found is None or (found.dtype == dtype and np.array_equal(found, wanted)), rank


@pytest.mark.parametrize("key", [key for key in ALGORITHMS if key[0] in ("all_reduce", "reduce", "reduce_scatter")])
@pytest.mark.parametrize("p", [1, 2, 3, 6, 8])
def test_avg_divides_once(key: tuple[str, str], p: int) -> None:
    inputs = [np.arange(3 * p, dtype=np.float64) * p * (rank + 1) for rank in range(p)]
    total = sum(inputs) / p
    for found, wanted in zip(
        reference.run(ALGORITHMS[key].build(p), inputs, "avg"),
        expected(key[0], [total] + [np.zeros_like(total)] * (p - 1), "sum", 0),
        strict=True,
    ):
        assert (found is None) == (wanted is None)
        assert found is None or np.array_equal(found, wanted)


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
    for key in ALGORITHMS:
        inputs = [np.full(2, rank + 1) for rank in range(2)]
        outputs = reference.run(ALGORITHMS[key].build(2), inputs)
        assert [x.tolist() for x in inputs] == [[1, 1], [2, 2]]
        for output in outputs:
            assert output is None or not any(np.shares_memory(output, x) for x in inputs)


def test_what_the_reference_refuses() -> None:
    ring = ALGORITHMS["all_reduce", "ring"].build(2)
    pair = [np.zeros(2, np.int64)] * 2
    with pytest.raises(ValueError, match="expected 2 inputs"):
        reference.run(ring, pair[:1])
    with pytest.raises(ValueError, match="one dtype and length"):
        reference.run(ring, [np.zeros(2), np.zeros(3)])
    with pytest.raises(TypeError, match="avg needs"):
        reference.run(ring, pair, "avg")
    with pytest.raises(ValueError, match="multiple of 2"):
        reference.run(ALGORITHMS["reduce_scatter", "ring"].build(2), [np.zeros(3)] * 2)
    broken = Builder("broadcast", 2, 1)
    with pytest.raises(ScheduleError, match="rank 1: 1 chunk"):
        reference.run(broken.finish(), [np.zeros(1), None])
    with broken.step():
        broken.copy(src=1, dst=0, chunk=0)
    with pytest.raises(ScheduleError, match="holds nothing"):
        reference.run(broken.finish(), [np.zeros(1), None])
