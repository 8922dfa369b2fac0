"""The bits of a row group."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hocket.schedule import (
    DTYPES,
    REDUCTIONS,
    Array,
    Reduction,
    as_reduction,
    check_reduction,
    fold,
    fold_memory,
    numpy_dtype,
    premul_sum,
    user_op,
)
from hocket.schedule.reduction import accumulator_dtype

FLOATS = [name for name in DTYPES if "float" in name]
INTEGERS = [name for name in DTYPES if "int" in name]
COMPLEX = ["complex64", "complex128"]

# NumPy's own reductions in the accumulator type, over rows from first to last.
OF_NUMPY: dict[str, Callable[[Array], Array]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "avg": lambda rows: np.add.reduce(rows) / rows.dtype.type(len(rows)),
    "land": np.logical_and.reduce,
    "lor": np.logical_or.reduce,
    "lxor": np.logical_xor.reduce,
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}
NO_MEANING = {
    **{(name, dtype): "expected integers or bool" for name in ("band", "bor", "bxor") for dtype in FLOATS + COMPLEX},
    **{(name, dtype): "complex numbers have no order" for name in ("min", "max") for dtype in COMPLEX},
    **{("avg", dtype): "use sum and divide" for dtype in [*INTEGERS, "bool"]},
}


def rows_of(dtype: str, count: int = 4) -> list[Array]:
    """Rows whose values differ and have fractions; zeros among them, as logic needs, but no infinities and NaN."""
    random = np.random.default_rng(len(dtype))
    if "int" in dtype:
        kind = np.dtype(dtype)
        full = random.integers(np.iinfo(kind).min, np.iinfo(kind).max, (count, 200), kind, endpoint=True)
        return list(np.where(random.integers(0, 3, full.shape) == 0, 0, full).astype(kind))
    numbers = random.integers(-6, 7, (count, 200)) / 4
    if dtype == "bool":
        return list(numbers > 0)
    if dtype in COMPLEX:
        numbers = numbers + 1j * random.integers(-6, 7, (count, 200)) / 4
    return list(numbers.astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("name", OF_NUMPY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fold_is_what_numpy_says(dtype: str, name: str) -> None:
    kind, rows = numpy_dtype(dtype), rows_of(dtype)
    if (name, dtype) in NO_MEANING:
        with pytest.raises(TypeError, match=f"{name}.* has no meaning for {dtype}.*{NO_MEANING[name, dtype]}"):
            fold(rows, name, kind, True, len(rows))
        return
    stacked = np.stack([row.astype(accumulator_dtype(kind)) for row in rows])
    found = fold(rows, name, kind, True, len(rows))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, OF_NUMPY[name](stacked).astype(kind))


@pytest.mark.parametrize("dtype", DTYPES)
def test_premul_sum_multiplies_what_is_raw(dtype: str) -> None:
    kind, rows = numpy_dtype(dtype), rows_of(dtype)
    if dtype == "bool":
        with pytest.raises(TypeError, match="'premul_sum' has no meaning for bool; use lor or land"):
            fold(rows, premul_sum(1), kind, True, 4)
        return
    factor = -3 if dtype in INTEGERS else 0.75
    accumulator = accumulator_dtype(kind)
    for raw in ([], [True] * 4, [False, True, True, False]):
        wide = [row.astype(accumulator) for row in rows]
        times = np.array(factor).astype(accumulator)
        total = functools.reduce(np.add, [x * times if i < len(raw) and raw[i] else x for i, x in enumerate(wide)])
        found = fold(rows, premul_sum(factor), kind, True, 4, raw)
        np.testing.assert_array_equal(found, total.astype(kind))
    alone = fold(rows[:1], premul_sum(factor), kind, False, 4, [True])
    np.testing.assert_array_equal(alone, (rows[0].astype(accumulator) * times).astype(kind))
    np.testing.assert_array_equal(fold(rows[:1], premul_sum(factor), kind, False, 4, [False]), rows[0])


def test_factors_are_those_of_the_accumulator_type() -> None:
    one = np.ones(1, ml_dtypes.bfloat16)
    # As a bfloat16 the factor would be 1.
    assert fold([one] * 3, premul_sum(1 + 2**-8), one.dtype, True, 3, [True] * 3)[0] == 3 + 2**-6
    byte = np.array([3], np.uint8)
    assert fold([byte], premul_sum(2**70 + 100), np.uint8, False, 2, [True])[0] == 300 % 256
    turned = fold([np.array([1 + 2j])], premul_sum(1j), np.complex128, False, 2, [True])
    assert turned[0] == -2 + 1j


def test_complex_products_are_rounded_part_by_part() -> None:
    random = np.random.default_rng(3)
    left, right = random.standard_normal((2, 500, 2)).astype(np.float32).view(np.complex64)[..., 0]
    found = fold([left, right], "prod", np.complex64, True, 2)
    (a, b), (c, d) = (left.real, left.imag), (right.real, right.imag)
    np.testing.assert_array_equal(found.real, a * c - b * d)
    np.testing.assert_array_equal(found.imag, a * d + b * c)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e5m2, np.complex64])
def test_nan_is_true_and_minus_zero_is_false(dtype: Any) -> None:
    pair = [np.array([np.nan, -0.0, 0.5, np.inf]).astype(dtype), np.array([1, 0, -0.0, np.nan]).astype(dtype)]
    assert fold(pair, "land", dtype, True, 2).tolist() == [1, 0, 0, 1]
    assert fold(pair, "lor", dtype, True, 2).tolist() == [1, 0, 1, 1]
    assert fold(pair, "lxor", dtype, True, 2).tolist() == [0, 0, 1, 0]


def test_logic_of_one_contribution_is_its_truth() -> None:
    for name in ("land", "lor", "lxor"):
        assert fold([np.array([5, 0, -1])], name, np.int64, True, 1, [True]).tolist() == [1, 0, 1]
    # An earlier result of a fold is passed on unchanged.
    assert fold([np.array([5, 0])], "lor", np.int64, False, 2).tolist() == [5, 0]


def test_narrow_floats_accumulate_in_float32_and_round_once() -> None:
    assert accumulator_dtype(np.float16) == np.float32
    assert accumulator_dtype(np.float64) == np.float64
    assert accumulator_dtype(np.uint8) == np.uint8
    one, tiny = np.array([1], np.float16), np.array([2**-11], np.float16)  # 1 + tiny ties back to 1 in float16.
    assert fold([one, tiny, tiny], "sum", np.float16, False, 3)[0] == np.float16(1 + 2**-10)


def test_integers_wrap() -> None:
    byte = np.array([200], np.uint8)
    assert fold([byte, byte], "sum", np.uint8, True, 2).tolist() == [144]
    assert fold([byte, byte], "prod", np.uint8, True, 2).tolist() == [64]
    least = np.array([-(2**31)], np.int32)
    assert fold([least, least], "sum", np.int32, True, 2).tolist() == [0]


def test_the_fold_goes_from_left_to_right() -> None:
    values = [np.array([v], np.float32) for v in (1e8, 1, -1e8)]
    assert fold(values, "sum", np.float32, True, 3)[0] == 0
    assert fold([values[0], values[2], values[1]], "sum", np.float32, True, 3)[0] == 1


@pytest.mark.parametrize("order", [1, -1])
def test_min_and_max_order_zeros_and_pass_on_nan(order: int) -> None:
    pair = [np.array([0.0, np.nan, 1]), np.array([-0.0, 1, 2])][::order]
    low, high = (fold(pair, op, np.float64, True, 2) for op in ("min", "max"))
    assert np.signbit(low[0]) and not np.signbit(high[0])
    assert np.isnan(low[1]) and np.isnan(high[1])
    assert (low[2], high[2]) == (1, 2)


def test_avg_divides_only_where_the_sum_is_complete() -> None:
    pair = [np.array([3.0], np.float32), np.array([4.0], np.float32)]
    assert fold(pair, "avg", np.float32, True, 2)[0] == 3.5
    assert fold(pair, "avg", np.float32, False, 4)[0] == 7
    with pytest.raises(TypeError, match="'avg' has no meaning for int64"):
        check_reduction("avg", np.int64)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"bxor, or hocket.premul_sum\(factor\) or hocket.op\(function\); found 'mean'"
    ):
        check_reduction("mean", np.float32)
    with pytest.raises(ValueError, match=r"'premul_sum' alone .* pass op=hocket.premul_sum\(factor\)"):
        as_reduction("premul_sum")
    with pytest.raises(ValueError, match=r"'custom' alone .* pass op=hocket.op\(function\)"):
        as_reduction("custom")
    with pytest.raises(TypeError, match="found 3"):
        as_reduction(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a dtype"):
        check_reduction("sum", "U3")


def test_what_an_op_may_be() -> None:
    assert [as_reduction(name).name for name in REDUCTIONS[:-2]] == list(REDUCTIONS[:-2])
    halves = premul_sum(0.5)
    assert as_reduction(halves) is halves
    assert as_reduction(np.maximum) == Reduction("custom", function=np.maximum)
    assert user_op(np.maximum, commutative=True).commutative


REFUSED_FACTORS = [
    ("bool", True, "expected a number as factor, found True"),
    ("float64", "2", "expected a number as factor, found '2'"),
    ("int32", 0.5, "premul_sum of int32 needs an integer factor, found 0.5"),
    ("float8_e4m3fn", 2j, "premul_sum of float8_e4m3fn needs a real factor, found 2j"),
    ("float64", 1 << 1100, "no float64 is as large as this factor of 1101 bits"),
]


@pytest.mark.parametrize(("dtype", "factor", "words"), REFUSED_FACTORS, ids=[row[2][:30] for row in REFUSED_FACTORS])
def test_factors_that_a_type_cannot_take(dtype: str, factor: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        check_reduction(premul_sum(factor), numpy_dtype(dtype))


def test_a_reduction_without_what_it_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="premul_sum without a factor"):
        check_reduction(Reduction("premul_sum"), np.float32)
    with pytest.raises(ValueError, match="custom without a function"):
        check_reduction(Reduction("custom"), np.float32)
    with pytest.raises(TypeError, match="expected a function of two arrays, found 3"):
        user_op(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="op: expected commutative as True or False, found 'x'"):
        user_op(np.add, commutative="x")  # type: ignore[arg-type]


def test_ranks_that_mean_the_same_have_the_same_identity() -> None:
    assert as_reduction("sum").identity() == 0
    same = {premul_sum(factor).identity() for factor in (2, 2.0, 2 + 0j, np.float32(2), np.int8(2))}
    assert same == {8366482090296652438}  # the same in every process
    different = [premul_sum(factor).identity() for factor in (2, 3, -2, 0.5, 0, -0.0, 1j, float("nan"), 2**64 + 2)]
    assert len(set(different)) == len(different)
    functions = [user_op(np.add), user_op(np.multiply), user_op(max), user_op(np.add, commutative=True)]
    assert len({one.identity() for one in functions}) == 4


class Scaled:
    """A function that is an object with state."""

    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __call__(self, left: Array, right: Array) -> Array:
        return left + self.factor * right

    def method(self, left: Array, right: Array) -> Array:
        return left


def scaled_by(factor: Any) -> Callable[[Array, Array], Array]:
    return lambda left, right: left + factor * right


def with_defaults(factor: Any) -> Callable[[Array, Array], Array]:
    def function(left: Array, right: Array, by: Any = factor, *, at: Any = factor) -> Array:
        return left + by * right

    return function


def that_calls(inner: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda left, right: inner(left, right)


def that_calls_itself(left: Array, right: Array) -> Array:
    def again(left: Array, right: Array) -> Array:
        return again(left, right) if len(left) > 1 else right

    return again  # type: ignore[return-value]


def members(left: Array, right: Array) -> Array:
    return np.where(np.isin(left, list({"a", "b", "c", "d"} & {"x"})), left, right) if left in {"a", "b"} else right


# Functions with different meanings, though many have the same name.
DIFFERENT: list[Callable[[], Callable[..., Any]]] = [
    lambda: np.add,
    lambda: np.maximum,
    lambda: max,
    lambda: functools.partial(np.add),
    lambda: functools.partial(np.add, dtype="float32"),
    lambda: functools.partial(np.add, casting="no"),
    lambda: lambda a, b: a,
    lambda: lambda a, b: b,
    lambda: lambda a, b: a + 1,
    lambda: lambda a, b: a + 2,
    lambda: lambda a, b: a + 2.0,
    lambda: lambda a, b: a[1:],
    lambda: lambda a, b: a[2:],
    lambda: lambda a, b: (lambda: a)(),
    lambda: lambda a, b: (lambda: b)(),
    lambda: lambda a, b: a.real,
    lambda: lambda a, b: a.imag,
    *[
        lambda factor=factor: scaled_by(factor)
        for factor in (2, 3, 2.0, True, None, "2", b"2", (2, 3), (2, 4), np.int8(2))
    ],
    *[lambda dtype=dtype: scaled_by(np.dtype(dtype)) for dtype in ("int8", "int16")],
    *[lambda factor=factor: with_defaults(factor) for factor in (2, 3, -0.0, 0.0)],
    *[lambda factor=factor: Scaled(factor) for factor in (2, 3, [2], {})],
    *[lambda factor=factor: Scaled(factor).method for factor in (2, 3)],
    lambda: that_calls(scaled_by(2)),
    lambda: that_calls(scaled_by(3)),
    lambda: that_calls(np.add),
    lambda: that_calls(np.fmax),
    lambda: that_calls_itself(np.zeros(1), np.zeros(1)),  # type: ignore[return-value]
    lambda: members,
    lambda: functools.lru_cache(scaled_by(2)),
    lambda: functools.lru_cache(scaled_by(3)),
]


def identities() -> list[int]:
    return [user_op(make()).identity() for make in DIFFERENT]


def test_functions_that_differ_have_different_identities() -> None:
    found = identities()
    assert len(set(found)) == len(found) and all(0 <= one < 2**64 for one in found)


@pytest.mark.ring2  # starts processes
@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_function_has_the_same_identity_in_every_process(seed: str) -> None:
    # Another seed gives strings another hash, and sets another order.
    program = f"from {__name__} import identities; print(*identities())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [int(one) for one in done.stdout.split()] == identities()


def test_what_has_no_value_to_compare_counts_by_its_type() -> None:
    assert user_op(scaled_by([2])).identity() == user_op(scaled_by([3])).identity()
    assert user_op(scaled_by(object())).identity() == user_op(scaled_by(object())).identity()
    counted = with_defaults(2)
    before = user_op(counted).identity()
    for _ in range(100):  # the interpreter rewrites code that is called often
        counted(np.ones(1), np.ones(1))
    assert user_op(counted).identity() == before


def test_a_factor_as_the_core_takes_it() -> None:
    assert premul_sum(0.5).factor_parts() == (0.5, 0, 0)
    assert premul_sum(1 - 2j).factor_parts() == (1, -2, 0)
    assert premul_sum(-1).factor_parts() == (-1, 0, 2**64 - 1)
    assert premul_sum(10**400).factor_parts() == (0, 0, 10**400 % 2**64)


def test_a_user_s_function_folds_from_the_left_in_the_stored_type() -> None:
    rows = [np.array([2, 3], ml_dtypes.bfloat16), np.array([3, 1], ml_dtypes.bfloat16)] * 2
    minus = user_op(np.subtract)
    assert fold(rows, minus, rows[0].dtype, True, 4).tolist() == [-6, -2]
    alone = fold(rows[:1], minus, rows[0].dtype, True, 1)
    alone[0] = 7
    assert rows[0][0] == 2
    for function, found in [
        (lambda a, b: a.astype("float32"), r"found float32\[2\]"),
        (lambda a, b: a[:1], r"found bfloat16\[1\]"),
        (lambda a, b: a.tolist(), "found list"),
    ]:
        with pytest.raises(TypeError, match=rf"<lambda>: must return a new array .* bfloat16\[2\]; {found}"):
            fold(rows, user_op(function), rows[0].dtype, True, 4)


def test_a_user_s_function_may_write_its_result_over_a_source() -> None:
    left, right = np.array([1, 2], np.int16), np.array([3, 5], np.int16)
    fold_memory(
        np.subtract, "int16", memoryview(left).cast("B"), [memoryview(x).cast("B") for x in (left, right, right)]
    )
    assert left.tolist() == [-5, -8]


def test_operands_are_left_alone() -> None:
    left, right = np.array([1.0]), np.array([2.0])
    total = fold([left, right], "sum", np.float64, True, 2)
    assert (left[0], right[0], total[0]) == (1, 2, 3)
    single = fold([left], "sum", np.float64, False, 2)
    single[0] = 7
    assert left[0] == 1
