"""The core's folds are those of hocket.schedule.reduction, bit for bit."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hocket import _core
from hocket.schedule import (
    DTYPES,
    ITEM_BYTES,
    REDUCTIONS,
    Array,
    Reduction,
    as_reduction,
    check_reduction,
    fold,
    numpy_dtype,
    premul_sum,
)
from hocket.schedule import user_op as op

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SIZES = (0, 1, 7, 1000, 5000)


def reduction_of(name: str, dtype: str) -> Reduction:
    """Returns a reduction of this name, with factors that round or wrap."""
    if name == "custom":
        return op(lambda left, right: left + right)
    if name != "premul_sum":
        return as_reduction(name)
    if "int" in dtype:
        return premul_sum(-3)
    return premul_sum(0.37 - 1.3j if "complex" in dtype else 0.37)


def has_meaning(name: str, dtype: str) -> bool:
    try:
        check_reduction(reduction_of(name, dtype), numpy_dtype(dtype))
    except TypeError:
        return False
    return True


def values(dtype: str, size: int, seed: int) -> Array:
    """Random bits, with all floats, also infinities, subnormal numbers and NaN, and with moderate numbers."""
    random, kind = np.random.default_rng([size, seed]), numpy_dtype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, size).astype(bool)
    bits = np.frombuffer(random.bytes(size * kind.itemsize), kind)
    moderate = random.integers(0 if "uint" in dtype else -8, 8, size).astype(kind)
    return np.where(random.integers(0, 2, size) == 1, bits, moderate)


def bits(array: Array) -> Array:
    """Returns the bits, with the same bits for all NaN."""
    parts = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    result = parts.view(f"uint{8 * parts.itemsize}").copy()
    with np.errstate(all="ignore"):
        result[parts != parts] = np.iinfo(result.dtype).max
    return result


@pytest.fixture(params=range(len(_core.KERNEL_SETS)), ids=_core.KERNEL_SETS)
def kernels(request: pytest.FixtureRequest) -> int:
    """Yields the number of each set of kernels that this processor can run."""
    return int(request.param)


def native(
    arrays: Sequence[Array],
    reduction: Reduction,
    raw: Sequence[bool] = (),
    divisor: int = 1,
    target: int | None = None,
    kernels: int = 0,
) -> Array:
    """Runs the core's fold into a new array, or into operand number `target`."""
    out = np.empty_like(arrays[0]) if target is None else arrays[target]
    number = REDUCTIONS.index(reduction.name)
    _core.fold(out, list(arrays), number, list(raw), divisor, reduction.factor_parts(), reduction.function, kernels)
    return out


def folds(name: str) -> Iterator[tuple[int, tuple[bool, ...], bool]]:
    """Yields (number of operands, which are raw, whether the result is complete)."""
    for num_sources in (1, 2, 3, 5):
        for raw in ((), (True,) * num_sources, tuple(i % 2 == 1 for i in range(num_sources))):
            yield num_sources, raw, False
            if name == "avg":
                yield num_sources, raw, True


def test_names_and_numbers_are_those_of_the_schedule() -> None:
    assert _core.DTYPES == DTYPES
    assert _core.OPS == REDUCTIONS
    for number, name in enumerate(DTYPES):
        assert numpy_dtype(name).itemsize == ITEM_BYTES[number]
        assert _core.describe(np.zeros(3, numpy_dtype(name)), True, "x")[1:] == (3, number)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fold_has_the_bits_of_its_definition(dtype: str, name: str, kernels: int) -> None:
    kind, reduction = numpy_dtype(dtype), reduction_of(name, dtype)
    if not has_meaning(name, dtype):
        out = np.zeros(1, kind)
        with pytest.raises(TypeError, match=f"{name} has no meaning for {dtype}"):
            native([out, out], reduction if name != "premul_sum" else premul_sum(2))
        return
    with np.errstate(all="ignore"):
        for size in SIZES:
            for num_sources, raw, completes in folds(name):
                arrays = [values(dtype, size, seed) for seed in range(num_sources)]
                expected = bits(fold(arrays, reduction, kind, completes, 7, raw))
                for target in (None, 0, num_sources - 1):
                    found = native([x.copy() for x in arrays], reduction, raw, 7 if completes else 1, target, kernels)
                    np.testing.assert_array_equal(bits(found), expected, f"{size} {num_sources} {raw} {target}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fold_may_begin_at_any_element(dtype: str, kernels: int) -> None:
    left, right = values(dtype, 300, 1), values(dtype, 300, 2)
    reduction = as_reduction("prod")
    for skew in range(9):
        for length in (1, 15, 16, 17, 67, 200):
            memory = np.zeros(300, left.dtype)
            operands = [left[skew : skew + length], right[2 * skew : 2 * skew + length]]
            _core.fold(memory[skew : skew + length], operands, REDUCTIONS.index("prod"), kernel_set=kernels)
            expected = fold(operands, reduction, left.dtype, True, 2)
            np.testing.assert_array_equal(bits(memory[skew : skew + length]), bits(expected))
            assert not memory[:skew].view(np.uint8).any() and not memory[skew + length :].view(np.uint8).any()


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_pair_of_eight_bit_floats(dtype: str, name: str, kernels: int) -> None:
    every = np.arange(256, dtype=np.uint8)
    pair = [np.repeat(every, 256).view(numpy_dtype(dtype)), np.tile(every, 256).view(numpy_dtype(dtype))]
    expected = fold(pair, name, pair[0].dtype, True, 2)
    np.testing.assert_array_equal(bits(native(pair, as_reduction(name), kernels=kernels)), bits(expected))


@pytest.mark.parametrize("dtype", NARROW)
def test_every_narrow_float_is_widened_and_comes_back(dtype: str, kernels: int) -> None:
    kind = numpy_dtype(dtype)
    every = np.arange(1 << 8 * kind.itemsize).astype(f"uint{8 * kind.itemsize}").view(kind)
    # Times one: widened, multiplied, rounded.
    np.testing.assert_array_equal(bits(native([every], premul_sum(1.0), [True], kernels=kernels)), bits(every))


def rounded(numbers: Array, dtype: str, kernels: int) -> Array:
    """Converts float32 to narrow floats in the core: each number is the factor of a 1, so it is only rounded."""
    one, out = np.ones(1, numpy_dtype(dtype)), np.empty(len(numbers), numpy_dtype(dtype))
    number = REDUCTIONS.index("premul_sum")
    for i, value in enumerate(numbers.tolist()):
        _core.fold(out[i : i + 1], [one], number, [True], 1, (value, 0.0, 0), kernel_set=kernels)
    return out


def halfway(dtype: str) -> Array:
    """Returns the middle between any two neighbours, and the float32 on both sides of it."""
    kind = numpy_dtype(dtype)
    positive = np.arange(1 << 8 * kind.itemsize - 1).astype(f"uint{8 * kind.itemsize}").view(kind).astype(np.float64)
    positive = positive[np.isfinite(positive)]
    largest, step = positive[-1], positive[-1] - positive[-2]
    beyond = largest + step * np.array([0.5, 1, 1.5])
    middles = np.concatenate([(positive[:-1] + positive[1:]) / 2, beyond]).astype(np.float32)
    return np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))])


@pytest.mark.parametrize("dtype", NARROW)
def test_rounding_is_that_of_ml_dtypes(dtype: str, kernels: int) -> None:
    with np.errstate(all="ignore"):
        middles, random = halfway(dtype), np.random.default_rng(5)
        middles *= random.choice(np.float32([-1, 1]), len(middles))
        some = np.frombuffer(random.bytes(4 * 2000), np.float32)
        near = (random.standard_normal(2000) * 2.0 ** random.integers(-28, 18, 2000)).astype(np.float32)
        numbers = np.concatenate([middles, some, near, np.float32([np.inf, -np.inf, np.nan, 0, -0.0])])
        expected = numbers.astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(bits(rounded(numbers, dtype, kernels)), bits(expected))


def test_bytes_of_a_bool_that_are_neither_0_nor_1_are_true(kernels: int) -> None:
    odd = np.array([0, 2, 255, 0], np.uint8).view(bool)
    other = np.array([0, 1, 0, 4], np.uint8).view(bool)
    for name, expected in {
        "sum": [0, 1, 1, 1],
        "prod": [0, 1, 0, 0],
        "bxor": [0, 0, 1, 1],
        "max": [0, 1, 1, 1],
    }.items():
        found = native([odd, other], as_reduction(name), kernels=kernels)
        for result in (found, fold([odd, other], name, bool, True, 2)):
            assert result.view(np.uint8).tolist() == expected


def test_a_user_s_function_is_called_with_arrays_of_the_stored_type() -> None:
    seen: list[Any] = []

    def doubled(left: Array, right: Array) -> Array:
        seen.append((left.dtype.name, right.flags.writeable, left.tolist()))
        return right * right.dtype.type(2)

    kind = numpy_dtype("bfloat16")
    first, second = np.array([1, 2], kind), np.array([3, 4], kind)
    assert native([first, second, second], op(doubled)).tolist() == [6, 8]
    assert seen == [("bfloat16", False, [1, 2]), ("bfloat16", False, [6, 8])]
    with pytest.raises(TypeError, match=r"must return a new array like its arguments, int64\[2\]; found float64\[2\]"):
        native([np.array([1, 2])] * 2, op(lambda left, right: left / right))
    with pytest.raises(ZeroDivisionError):
        native([np.array([1, 2])] * 2, op(lambda left, right: left * (1 // 0)))


def test_a_fold_refuses_what_it_cannot_do() -> None:
    x, plus = np.zeros(3), REDUCTIONS.index("sum")
    for words, arguments in [
        ("index of OPS", (x, [x], len(REDUCTIONS))),
        ("index of OPS", (x, [x], -1)),
        ("expected sources", (x, [], plus)),
        ("length and dtype", (x, [x, x[:2]], plus)),
        ("length and dtype", (x, [x, x.astype("float32")], plus)),
        ("raw for each source", (x, [x, x], plus, [True])),
        ("only avg divides", (x, [x, x], plus, [], 2)),
        ("takes a function", (x, [x, x], REDUCTIONS.index("custom"))),
        ("index of KERNEL_SETS", (x, [x], plus, [], 1, (1, 0, 1), None, len(_core.KERNEL_SETS))),
        ("read-only", (memoryview(bytes(8)), [bytes(8)], plus)),
    ]:
        with pytest.raises(ValueError, match=words):
            _core.fold(*arguments)
