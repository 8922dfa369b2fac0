"""What a row group computes, to the bit. This is the only definition; the native kernels are tested against it.

A group folds its operands from left to right in the accumulator type and rounds once, when the result is stored.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.errors import did_you_mean
from hocket.schedule.dtypes import dtype_name, numpy_dtype
from hocket.schedule.function_identity import function_text

Array = npt.NDArray[Any]

REDUCTIONS = (
    "sum",
    "prod",
    "min",
    "max",
    "avg",
    "land",
    "lor",
    "lxor",
    "band",
    "bor",
    "bxor",
    "premul_sum",
    "custom",
)
"""All reductions; the position of a name is its number in the core (csrc/base/types.h)."""

_LOGICAL = ("land", "lor", "lxor")
_BITWISE = ("band", "bor", "bxor")
_NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# NumPy adds bools by "or" and multiplies them by "and"; the order is false < true.
_OF_BOOL = {"sum": "lor", "prod": "land", "min": "land", "max": "lor", "band": "land", "bor": "lor", "bxor": "lxor"}
_HOW_TO_MAKE = {"premul_sum": "hocket.premul_sum(factor)", "custom": "hocket.op(function)"}


@dataclass(frozen=True)
class Reduction:
    """What `op=` may be besides a name. `factor` is of premul_sum, `function` and `commutative` are of custom."""

    name: str
    factor: complex | float | int | None = None
    function: Callable[[Array, Array], Array] | None = None
    commutative: bool = False

    def identity(self) -> int:
        """64 bits that tell ranks whether they mean the same: of the factor, or of all of the function; else 0."""
        if self.name == "premul_sum":
            meant = _factor_text(self.factor)
        elif self.name == "custom":
            meant = f"{function_text(self.function)} {self.commutative}"
        else:
            return 0
        return int.from_bytes(hashlib.blake2b(f"{self.name} {meant}".encode(), digest_size=8).digest(), "little")

    def factor_parts(self) -> tuple[float, float, int]:
        """The factor as the core takes it: real and imaginary part, and modulo 2^64; what does not apply is 0."""
        factor = 1 if self.factor is None else self.factor
        if isinstance(factor, int):
            try:
                return float(factor), 0.0, factor % 2**64
            except OverflowError:  # Only integers multiply by it; check_reduction has refused all other types.
                return 0.0, 0.0, factor % 2**64
        return factor.real, factor.imag, 0


def premul_sum(factor: complex | float | int) -> Reduction:
    """The sum of every rank's contribution times `factor`, which must be equal on all ranks.

    The factor is converted to the accumulator type. Integers need an integer factor, and wrap.
    """
    value = factor.item() if isinstance(factor, np.generic) else factor
    if isinstance(value, bool) or not isinstance(value, int | float | complex):
        raise TypeError(f"premul_sum: expected a number as factor, found {factor!r}")
    return Reduction("premul_sum", factor=value)


def user_op(function: Callable[[Array, Array], Array], *, commutative: bool = False) -> Reduction:
    """A reduction of one's own: function(left, right) returns a new array of the shape and dtype of its arguments.

    Its arguments are NumPy arrays, also where the ranks contribute tensors: one-dimensional pieces of any length, which
    it must not write. It works element by element, is associative, and the same on all ranks: they compare its name,
    code, defaults and closure, but not the globals that it uses, nor lists and arrays. A NumPy ufunc of two arguments
    is one. Before it is first used with a dtype it is tried on two arrays of three numbers, and on each pair of them
    alone. On bfloat16 and float8 it needs ml_dtypes ("hocket[types]").
    """
    if not callable(function):
        raise TypeError(f"op: expected a function of two arrays, found {function!r}")
    if not isinstance(commutative, bool):
        raise TypeError(f"op: expected commutative as True or False, found {commutative!r}")
    return Reduction("custom", function=function, commutative=commutative)


def as_reduction(op: "str | Reduction | Callable[[Array, Array], Array]") -> Reduction:
    """The reduction that `op` names or is. A callable is a user's own reduction that does not commute."""
    if isinstance(op, str):
        return _named(op)
    if isinstance(op, Reduction):
        return op
    if callable(op):
        return user_op(op)
    raise TypeError(f"expected a reduction: a name, hocket.premul_sum(factor) or hocket.op(function); found {op!r}")


@cache
def _named(name: str) -> Reduction:
    if name in _HOW_TO_MAKE:
        raise ValueError(f"{name!r} alone does not say what to compute; pass op={_HOW_TO_MAKE[name]}")
    if name not in REDUCTIONS:
        plain = ", ".join(one for one in REDUCTIONS if one not in _HOW_TO_MAKE)
        made = " or ".join(_HOW_TO_MAKE.values())
        raise ValueError(
            f"expected a reduction, one of {plain}, or {made}; found {name!r}{did_you_mean(name, REDUCTIONS)}"
        )
    return Reduction(name)


def accumulator_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The type in which a group accumulates: float32 for floats of 16 and 8 bits, else the stored type itself."""
    stored = np.dtype(dtype)
    return np.dtype(np.float32) if dtype_name(stored) in _NARROW else stored


def check_reduction(reduction: "str | Reduction", dtype: npt.DTypeLike) -> None:
    """ValueError for a reduction that does not exist, TypeError for one that has no meaning for this dtype."""
    meant, name = as_reduction(reduction), dtype_name(dtype)
    kind = np.dtype(dtype).kind if name not in _NARROW else "f"
    if meant.name == "avg" and kind in "biu":
        raise TypeError(f"'avg' has no meaning for {name}; use sum and divide as you need")
    if meant.name in ("min", "max") and kind == "c":
        raise TypeError(f"{meant.name!r} has no meaning for {name}: complex numbers have no order")
    if meant.name in _BITWISE and kind in "fc":
        raise TypeError(f"{meant.name!r} has no meaning for {name}: expected integers or bool")
    if meant.name == "premul_sum":
        _check_factor(meant.factor, name, kind)
    if meant.name == "custom" and meant.function is None:
        raise ValueError(f"custom without a function; pass op={_HOW_TO_MAKE['custom']}")


def _check_factor(factor: complex | float | int | None, name: str, kind: str) -> None:
    if factor is None:
        raise ValueError(f"premul_sum without a factor; pass op={_HOW_TO_MAKE['premul_sum']}")
    if kind == "b":
        raise TypeError(f"'premul_sum' has no meaning for {name}; use lor or land")
    if kind in "iu" and not isinstance(factor, int):
        raise TypeError(f"premul_sum of {name} needs an integer factor, found {factor!r}")
    if kind == "f" and isinstance(factor, complex):
        raise TypeError(f"premul_sum of {name} needs a real factor, found {factor!r}")
    if kind in "fc" and isinstance(factor, int):
        try:
            float(factor)
        except OverflowError:
            raise ValueError(
                f"premul_sum: no {name} is as large as this factor of {factor.bit_length()} bits"
            ) from None


def _factor_text(factor: complex | float | int | None) -> str:
    """One text for 2, 2.0 and 2+0j, which multiply alike; -0.0 keeps its sign."""
    if isinstance(factor, complex) and str(factor.imag) == "0.0":
        factor = factor.real
    if isinstance(factor, float) and factor.is_integer() and str(factor) != "-0.0":
        factor = int(factor)
    return repr(factor)


def fold(
    arrays: Sequence[Array],
    reduction: "str | Reduction",
    dtype: npt.DTypeLike,
    completes: bool,
    num_ranks: int,
    raw: Sequence[bool] = (),
) -> Array:
    """The left fold of equally long arrays of the stored dtype, in a new array of that dtype.

    `completes` says that the result holds the contributions of all num_ranks ranks. Only then avg divides, in the
    accumulator type and before the one rounding. raw[i] says that array i is the untouched contribution of a rank:
    premul_sum multiplies it when it is read, and a logical reduction of this array alone makes it 1 or 0. Integers
    wrap. min and max propagate NaN and order -0 < +0. Everything but 0 is true, NaN included.
    """
    check_reduction(reduction, dtype)
    meant, stored, accumulator = as_reduction(reduction), np.dtype(dtype), accumulator_dtype(dtype)
    if meant.function is not None:
        return fold_custom(meant.function, arrays)
    if stored.kind == "b":
        return _fold_bool(arrays, _OF_BOOL.get(meant.name, meant.name), any(raw))
    combine = _COMBINE[meant.name]
    with np.errstate(all="ignore"):  # Overflow, NaN and wrap-around are results, not mistakes.
        operands = [array.astype(accumulator) for array in arrays]
        if meant.name == "premul_sum":
            factor = _factor_as(meant, accumulator)
            operands = [_product(one, factor) if i < len(raw) and raw[i] else one for i, one in enumerate(operands)]
        elif meant.name in _LOGICAL and len(operands) == 1 and any(raw):
            operands *= 2
            combine = _COMBINE["lor"]
        total = operands[0]
        for operand in operands[1:]:
            total = combine(total, operand)
        if completes and meant.name == "avg":
            parts = _parts(total)
            parts /= parts.dtype.type(num_ranks)
        return total.astype(stored, copy=False)


def fold_custom(function: Callable[[Array, Array], Array], arrays: Sequence[Array]) -> Array:
    """The left fold by a user's function, which sees stored values; TypeError if it returns another shape or dtype."""
    total = arrays[0]
    for array in arrays[1:]:
        total = function(total, array)
        check_result(function, total, array)
    return total.copy()


def check_result(function: Callable[[Array, Array], Array], result: Any, like: Array) -> None:
    """TypeError unless a user's function has returned an array like its argument."""
    if not isinstance(result, np.ndarray) or result.shape != like.shape or result.dtype != like.dtype:
        found = f"{result.dtype}{list(result.shape)}" if isinstance(result, np.ndarray) else type(result).__name__
        raise TypeError(
            f"op {name_of(function)}: must return a new array like its arguments, {like.dtype}{list(like.shape)}; "
            f"found {found}"
        )


def name_of(function: Callable[..., Any]) -> str:
    """The name of a user's function, or the class of an object that is called like one."""
    return str(getattr(function, "__name__", type(function).__name__))


def fold_memory(
    function: Callable[[Array, Array], Array], dtype: str, destination: memoryview, sources: Sequence[memoryview]
) -> None:
    """fold_custom for the core: on memory, whose destination may be one of the sources."""
    stored = numpy_dtype(dtype)
    arrays = [np.frombuffer(source, stored) for source in sources]
    try:
        np.frombuffer(destination, stored)[:] = fold_custom(function, arrays)
    except Exception as error:
        error.add_note(f"raised by op {name_of(function)} of a collective, for arrays of {len(arrays[0])} {dtype}")
        raise


def _fold_bool(arrays: Sequence[Array], name: str, raw: bool) -> Array:
    if len(arrays) == 1 and not raw:
        return arrays[0].copy()
    # As bytes, because NumPy does not expect a bool other than 0 and 1; any byte but 0 is true.
    bits: list[Array] = [array.view(np.uint8) != 0 for array in arrays]
    total = bits[0]
    for more in bits[1:]:
        total = _LOGIC[name](total, more)
    return total


def _factor_as(reduction: Reduction, accumulator: np.dtype[Any]) -> Array:
    real, imaginary, integer = reduction.factor_parts()
    if accumulator.kind in "iu":
        return np.array(integer % 2 ** (8 * accumulator.itemsize), f"uint{8 * accumulator.itemsize}").view(accumulator)
    return np.array(complex(real, imaginary) if accumulator.kind == "c" else real, accumulator)


def _parts(array: Array) -> Array:
    """Real and imaginary parts side by side, or the array itself; a view."""
    return np.asarray(array.view(array.real.dtype)) if array.dtype.kind == "c" else array


def _product(left: Array, right: Array) -> Array:
    if left.dtype.kind != "c":
        return np.asarray(np.multiply(left, right))
    # In real parts, each rounded: NumPy's own complex product may keep more bits where the processor has FMA.
    product = np.empty_like(left)
    product.real = left.real * right.real - left.imag * right.imag
    product.imag = left.real * right.imag + left.imag * right.real
    return product


def _minimum(left: Array, right: Array) -> Array:
    return np.where(left == right, np.where(np.signbit(left), left, right), np.minimum(left, right))


def _maximum(left: Array, right: Array) -> Array:
    return np.where(left == right, np.where(np.signbit(left), right, left), np.maximum(left, right))


def _ordered(integer: Callable[[Array, Array], Array], real: Callable[[Array, Array], Array]) -> Any:
    return lambda left, right: (real if left.dtype.kind == "f" else integer)(left, right)


_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}


def _logical(name: str) -> Callable[[Array, Array], Array]:
    return lambda left, right: _LOGIC[name](left, right).astype(left.dtype)


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": _product,
    "min": _ordered(np.minimum, _minimum),
    "max": _ordered(np.maximum, _maximum),
    "avg": np.add,
    "land": _logical("land"),
    "lor": _logical("lor"),
    "lxor": _logical("lxor"),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "premul_sum": np.add,
}
