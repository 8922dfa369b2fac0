"""Reductions other than sum: logical, bitwise, premultiplied, and a user's own; and those without a meaning."""

import functools
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, PeerAborted
from hocket.runtime import run_ranks
from hocket.schedule import DTYPES, numpy_dtype

NAMED = {
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def values(rank: int, dtype: str, count: int = 300) -> Any:
    return np.random.default_rng(rank).integers(0, 3, count).astype(dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float32", "complex64"])
@pytest.mark.parametrize("op", NAMED)
def test_logical_and_bitwise(op: str, dtype: str) -> None:
    if op.startswith("b") and dtype in ("float32", "complex64"):
        words = f"all_reduce.*{op}.*{dtype}"
    else:
        words = ""

    def main() -> None:
        with hocket.init() as comm:
            x = values(comm.rank, dtype)
            if words:
                with pytest.raises(TypeError, match=words):
                    comm.all_reduce(x, op=op)
                comm.barrier()
                return
            expected = functools.reduce(NAMED[op], [values(rank, dtype) for rank in range(3)]).astype(dtype)
            assert (comm.all_reduce(x, op=op) == expected).all()

    run_ranks(main, 3, kind="thread")


@pytest.mark.parametrize(
    ("op", "dtype"), [("min", "complex64"), ("avg", "int32"), ("avg", "bool"), ("bxor", "float64")]
)
def test_what_has_no_meaning_is_refused_on_every_rank(op: str, dtype: str) -> None:
    def main() -> None:
        with hocket.init() as comm:
            for call in (comm.all_reduce, comm.reduce_scatter, comm.reduce):
                with pytest.raises(TypeError, match=f"{op}.*{dtype}|{dtype}.*{op}"):
                    call(np.zeros(4, dtype), op=op)
            comm.barrier()

    run_ranks(main, 2, kind="thread")


def test_a_reduction_that_there_is_not() -> None:
    with hocket.init(0, 1, address="no-such-op") as comm:
        with pytest.raises(ValueError, match="sum, prod"):
            comm.all_reduce(np.zeros(1), op="mean")
        with pytest.raises(ValueError, match=r"hocket\.premul_sum"):
            comm.all_reduce(np.zeros(1), op="premul_sum")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("algorithm", ["direct", "direct_two_shot", "ring", "halving_doubling", "tree"])
def test_premul_sum_multiplies_each_contribution(size: int, algorithm: str) -> None:
    def main() -> None:
        with hocket.init() as comm:
            for dtype, factor in (("float64", 0.5), ("int32", 3), ("complex128", 0.5j)):
                for count in (0, 1, 7, 30_000):
                    x = values(comm.rank, dtype, count)
                    expected = sum((values(rank, dtype, count) * factor).astype(dtype) for rank in range(size))
                    op = hocket.premul_sum(factor)
                    assert (comm.all_reduce(x, op=op, out=np.empty_like(x), algorithm=algorithm) == expected).all()
                    assert (comm.all_reduce(x, op=op, algorithm=algorithm) == expected).all()

    run_ranks(main, size, kind="thread")


def test_factors_that_differ_are_a_mismatch() -> None:
    def main() -> None:
        with hocket.init() as comm, pytest.raises(CollectiveMismatch, match="op"):
            comm.all_reduce(np.ones(3), op=hocket.premul_sum(1.0 + comm.rank))

    run_ranks(main, 2, kind="thread")


def concatenate_digits(left: Any, right: Any) -> Any:
    """Joins digits, 1, 2, 3 -> 123: does not commute, and needs neighbouring operands."""
    return left * 10 + right


def digits() -> None:
    with hocket.init() as comm:
        expected = int("".join(str(rank + 1) for rank in range(comm.size)))
        op = hocket.op(concatenate_digits)
        for count in (1, 7, 40_000):
            x = np.full(count, comm.rank + 1, "int64")
            assert (comm.all_reduce(x.copy(), op=op) == expected).all()
            assert (comm.all_reduce(x.copy(), op=op, async_op=True).wait() == expected).all()
            found = comm.reduce(x.copy(), comm.size - 1, op=op)
            assert found is None or (found == expected).all()
        x = np.full(2 * comm.size, comm.rank + 1, "int64")
        assert (comm.reduce_scatter(x, op=op) == expected).all()
        assert (comm.all_reduce(x.copy(), op=np.maximum) == comm.size).all()


@pytest.mark.parametrize("kind", ["thread", "process"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_users_own_op_is_folded_in_the_order_of_ranks(size: int, kind: Any) -> None:
    run_ranks(digits, size, kind=kind)


def test_a_users_own_op_needs_a_schedule_in_the_order_of_ranks() -> None:
    def main() -> None:
        with hocket.init() as comm:
            with pytest.raises(ValueError, match="this op needs an algorithm that reduces in rank order"):
                comm.all_reduce(np.ones(3), op=hocket.op(concatenate_digits), algorithm="ring")
            with pytest.raises(ValueError, match="this op needs an algorithm that reduces in rank order"):
                comm.all_reduce(np.ones(3), op=hocket.op(concatenate_digits), algorithm="tree")
            commutes = hocket.op(np.add, commutative=True)
            assert comm.all_reduce(np.ones(3), op=commutes, algorithm="tree")[0] == 5

    run_ranks(main, 5, kind="thread")


def raises(left: Any, right: Any) -> Any:
    if len(left) > 3:
        raise ZeroDivisionError("in the middle of it")
    return left + right


def changes_type(left: Any, right: Any) -> Any:
    return left.astype("float64") + right if len(left) > 3 else left + right


@pytest.mark.parametrize(
    ("function", "error", "words"), [(raises, ZeroDivisionError, "middle"), (changes_type, TypeError, "float64")]
)
def test_what_a_users_own_op_raises_for_some_arrays_is_raised_and_told(function: Any, error: Any, words: str) -> None:
    def main() -> type[BaseException]:
        with hocket.init() as comm, pytest.raises((error, PeerAborted), match=words) as caught:
            if comm.rank == 0:
                comm.all_reduce(np.ones(4, "float32"), op=hocket.op(function))
            else:
                comm.all_reduce(np.ones(4, "float32"), op=hocket.op(function), async_op=True).wait()
        if isinstance(caught.value, error):
            note = f"raised by op {function.__name__} of a collective, for arrays of {{}} float32"
            assert [note.format(count) in caught.value.__notes__ for count in (2, 4)].count(True) == 1
        return type(caught.value)

    assert error in run_ranks(main, 2, kind="thread")


@pytest.mark.parametrize(
    ("method", "words"),
    [("barrier", "called inside another one"), ("close", "an op closed the communicator that runs it")],
)
@pytest.mark.parametrize("async_op", [False, True])
def test_an_op_cannot_use_the_communicator_that_runs_it(method: str, words: str, async_op: bool) -> None:
    def main() -> None:
        comm = hocket.init()

        def function(left: Any, right: Any) -> Any:
            if left.size > 3:  # not when Hocket tries it out
                getattr(comm, method)()
            return left + right

        with pytest.raises(
            (RuntimeError, PeerAborted), match="closed inside" if not async_op and method == "close" else words
        ):
            result = comm.all_reduce(np.ones(4), op=hocket.op(function), async_op=async_op)
            if async_op:
                result.wait()
        comm.close()

    run_ranks(main, 2, kind="thread")


def raises_at_once(left: Any, right: Any) -> Any:
    raise ZeroDivisionError("at once")


def writes_its_argument(left: Any, right: Any) -> Any:
    left += right
    return left


def takes_tensors(left: Any, right: Any) -> Any:
    if isinstance(left, np.ndarray):
        raise TypeError("argument 'input' must be Tensor, not numpy.ndarray")
    return left


class Unhashable:
    """A callable object that no cache can hold."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, left: Any, right: Any) -> Any:
        return self.function(left, right)


MALFORMED = [
    # Ufuncs of one argument, and of two results.
    (np.sin, TypeError, r"op sin: expected a function of two arrays that returns one, found a ufunc of 1 "),
    (np.divmod, TypeError, r"op divmod: .* found a ufunc of 2 that returns 2"),
    # Results of another type.
    (np.greater, TypeError, r"op greater: must return .* float32\[3\]; found bool\[3\]"),
    (np.frompyfunc(max, 2, 1), TypeError, r"op max .vectorized.: must return .*; found object\[3\]"),
    (lambda left, right: None, TypeError, r"op <lambda>: must return .*; found NoneType"),
    (Unhashable(lambda left, right: 3.0), TypeError, r"op Unhashable: must return .*; found float"),
    # A result of another shape.
    (np.dot, TypeError, r"op dot: must return"),
    # Python's own functions of numbers: they fail, or mix the elements.
    (max, ValueError, r"op max: it raises ValueError for .* float32, \[3.0, 1.0, 2.0\] and \[2.0, .* is ambiguous"),
    (
        sum,
        ValueError,
        r"op sum: expected a function that works element by element; found that for .* it returns \[8.0, 9.0, 7.0\], "
        r"but one element at a time \[5.0, 4.0, 3.0\]; pass a function such as numpy.add",
    ),
    (lambda left, right: np.sort(left + right), ValueError, r"op <lambda>: expected .* element by element"),
    # Functions that always fail.
    (lambda left: left, TypeError, r"op <lambda>: it raises TypeError .* positional argument"),
    (
        raises_at_once,
        ValueError,
        r"op raises_at_once: it raises ZeroDivisionError .*: at once; pass a function of two NumPy",
    ),
    (writes_its_argument, ValueError, r"op writes_its_argument: .* read-only"),
    (takes_tensors, TypeError, r"op takes_tensors: .* must be Tensor, not numpy.ndarray; pass a function of two NumPy"),
]


@pytest.mark.parametrize(("function", "error", "words"), MALFORMED)
def test_a_function_that_can_be_no_reduction_is_refused_before_anything_is_sent(
    function: Any, error: type[Exception], words: str
) -> None:
    def main() -> None:
        with hocket.init() as comm:
            if comm.rank == 0:
                for op in (function, hocket.op(function, commutative=True)):
                    with pytest.raises(error, match=f"^all_reduce: {words}"):
                        comm.all_reduce(np.ones(3, "float32"), op=op)
                with pytest.raises(error, match=r"^reduce_scatter: op"):
                    comm.reduce_scatter(np.ones(4, "float32"), op=function)
            assert comm.all_reduce(np.ones(3))[0] == 2

    run_ranks(main, 2, kind="thread")


def test_a_function_is_tried_once_for_each_dtype() -> None:
    tried = []

    def noted(left: Any, right: Any) -> Any:
        tried.append((left.dtype.name, left.tolist(), left.flags.writeable, right.flags.writeable))
        return left + right

    with hocket.init(0, 1) as comm:  # a single rank has nothing to fold
        for dtype in ("float32", "int8", "float32", "bool"):
            comm.all_reduce(np.ones(5, dtype), op=noted)
            comm.all_reduce(np.ones(5, dtype), op=hocket.op(noted, commutative=True))
    numbers, truths = [[3, 1, 2], [3], [1], [2]], [[1, 1, 0], [1], [1], [0]]
    by_dtype = {"float32": numbers, "int8": numbers, "bool": truths}
    assert tried == [(dtype, left, False, False) for dtype, lefts in by_dtype.items() for left in lefts]


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_that_work_element_by_element_pass_on_every_dtype(dtype: str) -> None:
    """NaN too, if each element gives it."""

    def some_nan(left: Any, right: Any) -> Any:
        return np.where(left == 1, left.dtype.type("nan"), left + right).astype(left.dtype)

    has_nan = dtype.startswith(("float", "bfloat", "complex"))
    with hocket.init(0, 1) as comm:
        for function in (np.maximum, lambda left, right: left, *([some_nan] if has_nan else [])):
            comm.all_reduce(np.ones(5, numpy_dtype(dtype)), op=function)


def test_an_object_without_a_hash_can_be_a_function() -> None:
    with hocket.init(0, 1) as comm:
        x = np.ones(5)
        assert comm.all_reduce(x, op=Unhashable(np.add)) is x


@pytest.mark.parametrize(
    "functions",
    [
        (np.fmin, np.fmax),
        # With the same name.
        (lambda left, right: left + right, lambda left, right: left * right),
        (functools.partial(np.add, casting="no"), functools.partial(np.add, casting="safe")),
    ],
)
def test_ops_of_other_functions_are_a_mismatch(functions: Any) -> None:
    def main() -> None:
        with hocket.init() as comm, pytest.raises(CollectiveMismatch, match=r"op .*function with its code") as caught:
            comm.all_reduce(np.ones(3), op=functions[comm.rank])
        assert caught.value.field == "op"

    run_ranks(main, 2, kind="thread")
