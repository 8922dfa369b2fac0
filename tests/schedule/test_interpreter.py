"""The plan interpreter gives the bits of the reference in any interleaving, and wrong bits if a plan is wrong."""

from itertools import product

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import VerifyError
from hocket.schedule import Schedule, find_collective, lower_all, reference, run_plans
from hocket.schedule.interpreter import Interpreter
from tests.schedule.plan_text import listing, plan_of
from tests.schedule.random_schedules import random_inputs, random_lengths


def same_bits(expected: list[np.ndarray | None], found: list[np.ndarray | None]) -> bool:
    return all(
        (left is None) == (right is None)
        and (left is None or (left.dtype, left.tobytes()) == (right.dtype, right.tobytes()))
        for left, right in zip(expected, found, strict=True)
    )


def check_equal(
    schedule: Schedule, block: int, reduction: str, seeds: range, inputs: list[np.ndarray | None] | None = None
) -> None:
    for in_place in (False, True):
        lengths = random_lengths(schedule, block, seed=block, in_place=in_place)
        given = random_inputs(schedule, block, seed=block, lengths=lengths) if inputs is None else inputs
        expected = reference.run(schedule, given, reduction, block_lengths=lengths)
        plans = lower_all(schedule, in_place)
        for num_pieces, capacity in ((1, 1), (2, 1), (3, 1), (3, 2)):
            interpreter = Interpreter(plans, num_pieces, capacity)
            for seed in seeds:
                found = interpreter.run(given, reduction, seed, lengths)
                assert same_bits(expected, found), (in_place, num_pieces, seed)


@pytest.mark.parametrize(
    ("key", "num_ranks"),
    [
        (key, p)
        for number, (key, one) in enumerate(ALGORITHMS.items())
        # Slow cases take turns, but each algorithm has a power of two and, if it takes one, another rank count.
        for p in filter(one.allows, (1, 2, 3, 4, (5, 8)[number % 2]) if one.allows(3) else (2, 6, 8))
    ],
)
def test_bits_equal_the_reference(key: tuple[str, str], num_ranks: int) -> None:
    reduction = "max" if key[0] == "barrier" else "avg"
    for root in sorted({0, num_ranks - 1}) if find_collective(key[0]).rooted else (0,):
        schedule = ALGORITHMS[key].build(num_ranks, root)
        # Blocks with fewer elements than chunks, with unequal chunks, and with several pieces.
        for block in (0, 1, 3 * schedule.chunks_per_block + 2):
            check_equal(schedule, block, reduction, seeds=range(1 if num_ranks > 4 else 2))


DTYPES = {"sum": "uint8 int32 int64 float32 float64", "prod": "uint8 int64 float32", "avg": "float32 float64"}
DTYPES |= {"min": DTYPES["sum"], "max": DTYPES["sum"]}


@pytest.mark.parametrize(
    ("reduction", "dtype"), [(key, dtype) for key, text in DTYPES.items() for dtype in text.split()]
)
def test_every_reduction_and_dtype(reduction: str, dtype: str) -> None:
    generator = np.random.default_rng(7)
    for name, num_ranks in product(("ring", "halving_doubling"), (3, 4)):
        schedule = ALGORITHMS["all_reduce", name].build(num_ranks)
        inputs = [generator.integers(0, 100, 11).astype(dtype) for _ in range(num_ranks)]
        check_equal(schedule, 11, reduction, range(1), inputs)


def test_a_seed_is_one_interleaving_and_seeds_differ() -> None:
    interpreter = Interpreter(lower_all(ALGORITHMS["all_reduce", "ring"].build(4), in_place=True), num_pieces=2)
    assert interpreter._order(5) == interpreter._order(5)
    assert len({tuple(interpreter._order(seed)) for seed in range(20)}) == 20


def test_a_plan_with_a_race_gives_wrong_bits_under_some_seed() -> None:
    schedule = ALGORITHMS["all_gather", "ring"].build(3)
    inputs = random_inputs(schedule, 4, seed=1)
    expected = reference.run(schedule, inputs)
    plans = lower_all(schedule, in_place=False)
    plans[1] = plan_of(plans[1], [line.split(" | after")[0] for line in listing(plans[1])])
    found = [run_plans(plans, inputs, seed=seed) for seed in range(50)]
    assert not all(same_bits(expected, outputs) for outputs in found)


def test_a_staged_source_may_be_overwritten_at_once_and_a_lent_one_deadlocks() -> None:
    schedule = ALGORITHMS["all_reduce", "direct"].build(2)
    inputs = random_inputs(schedule, 4, seed=1)
    plans = lower_all(schedule, in_place=True)
    assert same_bits(reference.run(schedule, inputs), run_plans(plans, inputs, seed=0))
    lent = [plan_of(plan, [line.replace("flags 2", "flags 0") for line in listing(plan)]) for plan in plans]
    with pytest.raises(VerifyError, match="deadlock: 2 tasks") as caught:
        run_plans(lent, inputs, seed=0)
    assert caught.value.law == 3


def test_inputs_must_fit() -> None:
    plans = lower_all(ALGORITHMS["all_reduce", "ring"].build(2), in_place=False)
    with pytest.raises(ValueError, match="rank 1: expected an input of 3 elements, found 2"):
        run_plans(plans, [np.ones(3), np.ones(2)], seed=0)
