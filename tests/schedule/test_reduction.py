"""The bits of a row group."""

import numpy as np
import pytest

from hocket.schedule.reduction import accumulator_dtype, check_reduction, fold


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
    with pytest.raises(TypeError, match="avg needs a floating-point dtype, found int64"):
        check_reduction("avg", np.int64)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sum, prod, min, max, avg; found 'mean'"):
        check_reduction("mean", np.float32)


def test_operands_are_left_alone() -> None:
    left, right = np.array([1.0]), np.array([2.0])
    total = fold([left, right], "sum", np.float64, True, 2)
    assert (left[0], right[0], total[0]) == (1, 2, 3)
    single = fold([left], "sum", np.float64, False, 2)
    single[0] = 7
    assert left[0] == 1
