"""Hocket's own tools for tests: they check a schedule against the laws and the reference, for blocks of any length."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.errors import VerifyError
from hocket.schedule import DTYPES, interpreter
from hocket.testing import assert_same_bits, check_schedule, random_block_lengths, random_inputs
from tests.schedule.small_algorithms import SMALL


@pytest.mark.parametrize("key", SMALL, ids=" ".join)
def test_a_right_schedule_passes(key: tuple[str, str]) -> None:
    for num_ranks in (1, 3):
        assert check_schedule(SMALL[key](num_ranks, num_ranks - 1, 2)).collective == key[0]


def test_an_algorithm_is_held_to_its_promises() -> None:
    assert "rank_order" in check_schedule(ALGORITHMS["all_reduce", "direct"], 3).labels
    with pytest.raises(VerifyError, match="law 5"):
        check_schedule(replace(ALGORITHMS["all_reduce", "direct"], steps=lambda p: 7), 3)


def test_plans_that_compute_something_else_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = interpreter.run_plans

    def unmarked(plans: list[Any], *arguments: Any, **named: Any) -> Any:
        without = [replace(plan, sources=plan.sources * np.array([1, 1, 1, 0], np.int32)) for plan in plans]
        return right(without, *arguments, **named)

    monkeypatch.setattr(interpreter, "run_plans", unmarked)
    check_schedule(SMALL["gather_v", "linear"](3, 0, 1))
    with pytest.raises(AssertionError, match=r"rank \d: element"):  # contributions that premul does not multiply
        check_schedule(SMALL["reduce_scatter_v", "direct"](3, 0, 1))


def test_lengths_have_zeros_and_are_equal_both_ways_in_place() -> None:
    exchange = SMALL["all_to_all_v", "pairwise"](8, 0, 1)
    lengths = random_block_lengths(exchange, seed=1, most=5)
    assert lengths.shape == (64,) and lengths.min() == 0 and lengths.max() == 5
    assert not np.array_equal(lengths.reshape(8, 8), lengths.reshape(8, 8).T)
    table = random_block_lengths(exchange, seed=1, in_place=True).reshape(8, 8)
    assert np.array_equal(table, table.T) and table.max() > 0
    assert random_block_lengths(SMALL["all_to_all", "pairwise"](2, 0, 1), seed=1) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_of_every_type(dtype: str) -> None:
    schedule = SMALL["gather_v", "linear"](3, 0, 1)
    inputs = random_inputs(schedule, seed=0, dtype=dtype, block_lengths=np.array([2, 0, 50]))
    assert [array.size for array in inputs] == [2, 0, 50]
    assert {array.dtype.name for array in inputs} == {dtype}
    assert len(set(inputs[2].tolist())) > 1
    assert_same_bits(inputs, [array.copy() for array in inputs])
    changed = inputs[2].copy()
    changed[7] = inputs[2][inputs[2] != inputs[2][7]][0]
    with pytest.raises(AssertionError, match=r"rank 2: element \[7\]"):
        assert_same_bits([*inputs[:2], changed], inputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_a_sign_of_zero_is_a_bit_and_any_nan_is_any_other(dtype: str) -> None:
    from hocket.schedule import numpy_dtype

    zeros = np.zeros(2, numpy_dtype(dtype))
    with pytest.raises(AssertionError, match=r"rank 0: element \[0\]"):
        assert_same_bits([zeros], [-zeros])
    nan = np.full(2, np.nan, numpy_dtype(dtype))
    assert_same_bits([nan], [-nan])
    with pytest.raises(AssertionError, match="rank 0: complex"):
        assert_same_bits([zeros.astype(np.complex128)], [zeros])
