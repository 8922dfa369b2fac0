"""Every kind of contiguous array works, and is written in place."""

import array
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import hocket
from hocket import _core
from hocket.runtime import run_ranks
from hocket.schedule import DTYPES, EXTENSION_DTYPES, numpy_dtype


class OnlyDLPack:
    """An array of a library that has only DLPack."""

    def __init__(self, inner: Any, *, version: bool = True) -> None:
        self.inner, self.version = inner, version

    def __dlpack__(self, **keywords: Any) -> Any:
        if not self.version and keywords:
            raise TypeError("__dlpack__ of an older library takes no keywords")
        return self.inner.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.inner.__dlpack_device__()


def of_older_library(inner: Any) -> OnlyDLPack:
    return OnlyDLPack(inner, version=False)


KINDS = [
    np.asarray,
    memoryview,
    OnlyDLPack,
    of_older_library,
    lambda x: memoryview(x).cast("B").cast(x.dtype.char),
    lambda x: x.view(type("Subclass", (np.ndarray,), {})),
]


def in_threads(size: int, function: Callable[[hocket.Communicator], Any]) -> list[Any]:
    def main() -> Any:
        with hocket.init() as comm:
            return function(comm)

    return run_ranks(main, size, kind="thread")


@pytest.mark.parametrize("wrap", KINDS, ids=["numpy", "memoryview", "dlpack", "old dlpack", "cast", "subclass"])
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name in "float32 float64" or "int" in name])
def test_an_array_of_any_kind_takes_part(wrap: Callable[[Any], Any], dtype: str) -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.full(1000, comm.rank + 1, dtype)
        wrapped, out = wrap(x), np.zeros(1000, dtype)
        assert comm.all_reduce(wrapped) is wrapped and (x == 6).all()
        result = wrap(out)
        assert comm.all_reduce(wrapped, out=result) is result and (out == 18).all() and (x == 6).all()
        gathered = comm.all_gather(wrap(np.full(7, comm.rank, dtype)))
        assert isinstance(gathered, np.ndarray) and gathered.dtype == dtype
        assert (gathered == np.repeat([0, 1, 2], 7)).all()
        assert comm.broadcast(wrapped, root=1) is wrapped

    in_threads(3, main)


@pytest.mark.parametrize("dtype", [*sorted(EXTENSION_DTYPES), "bool"])
def test_an_array_of_a_type_that_counts_little_takes_part(dtype: str) -> None:
    kind = numpy_dtype(dtype)

    def main(comm: hocket.Communicator) -> None:
        x, out = np.array([comm.rank, 0, 1]).astype(kind), np.zeros(3, kind)
        assert comm.all_reduce(x, op="max", out=out) is out
        assert out.tolist() == np.array([2, 0, 1]).astype(kind).tolist()
        gathered = comm.all_gather(x)
        assert gathered.dtype == kind and gathered[::3].tolist() == np.arange(3).astype(kind).tolist()

    in_threads(3, main)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_core_sees_the_memory_itself(dtype: str) -> None:
    x = np.zeros((3, 4), numpy_dtype(dtype))
    number = DTYPES.index(dtype)
    ways = [x] if dtype in EXTENSION_DTYPES else [x, memoryview(x), OnlyDLPack(x)]
    for shown in ways:
        assert _core.describe(shown, True, "x") == (x.ctypes.data, 12, number)
    assert _core.describe(x[:0], False, "x")[1:] == (0, number)


def test_a_complex_number_is_aligned_as_its_parts_are() -> None:
    memory = np.zeros(7)
    numbers = memory[1:].view("complex128")
    assert _core.describe(numbers, True, "x") == (memory.ctypes.data + 8, 3, DTYPES.index("complex128"))


def test_the_standard_library_s_arrays_take_part() -> None:
    def main(comm: hocket.Communicator) -> None:
        for code in "fdbhilqBHILQ":
            values = array.array(code, [comm.rank, 1])
            assert comm.all_reduce(values) is values and values.tolist() == [1, 2]
        data = bytearray([comm.rank, 7])
        assert comm.all_reduce(data, op="max") is data and data == bytearray([1, 7])
        # Bytes of text can be an input, but not an output.
        assert comm.all_gather(b"ab" if comm.rank == 0 else b"cd").tobytes() == b"abcd"
        assert comm.broadcast(b"from the root" if comm.rank == 0 else bytearray(13)) == b"from the root"

    in_threads(2, main)


def test_ranks_may_pass_different_kinds() -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.full(50_000, 2, "int64")
        comm.all_reduce(KINDS[comm.rank](x), op="prod")
        assert (x == 16).all()

    in_threads(4, main)


def test_length_zero_of_any_kind() -> None:
    def main(comm: hocket.Communicator) -> None:
        for empty in (bytearray(), array.array("f"), np.zeros((3, 0)), OnlyDLPack(np.zeros(0, "int32"))):
            assert comm.all_reduce(empty) is empty
        assert comm.all_gather(b"").shape == (0,)

    in_threads(2, main)


REFUSED = [
    # Every second element.
    (ValueError, "C-contiguous", lambda: OnlyDLPack(np.zeros(8)[::2])),
    (ValueError, "C-contiguous", lambda: memoryview(bytearray(8))[::2]),
    # Columns first.
    (ValueError, "C-contiguous", lambda: OnlyDLPack(np.zeros((2, 3), order="F"))),
    # A type that Hocket does not have.
    (TypeError, "float16, bfloat16, .*, complex128; found", lambda: np.zeros(3, "longdouble")),
    (TypeError, "float32, .*format 'c'", lambda: memoryview(bytearray(8)).cast("c")),
    (TypeError, "float8_e4m3fn, .* of float8_e5m2fnuz", lambda: np.zeros(3, ml_dtypes.float8_e5m2fnuz)),
    # A type of Hocket, but in the other byte order.
    (TypeError, "float32", lambda: np.zeros(3, ">i4")),
    # Types that NumPy itself does not show.
    (ValueError, "C-contiguous", lambda: np.zeros((2, 3), ml_dtypes.bfloat16).T),
    (ValueError, "C-contiguous", lambda: np.zeros(8, ml_dtypes.float8_e4m3fn)[::2]),
    (ValueError, "aligned", lambda: np.frombuffer(bytearray(9), np.uint8)[1:].view(ml_dtypes.bfloat16)),
    (ValueError, "read-only", lambda: np.frombuffer(bytes(8), ml_dtypes.bfloat16)),
    # Elements at addresses that are no multiples of their size.
    (ValueError, "aligned", lambda: OnlyDLPack(np.frombuffer(bytearray(17), "int64", 2, offset=1))),
    # Read-only.
    (ValueError, "read-only", lambda: memoryview(b"abc")),
    # Not in memory of the CPU.
    (TypeError, "CPU memory", lambda: OnAnotherDevice()),
    # It says that it has DLPack, but fails.
    (Exception, "CPU memory|broken", lambda: Broken()),
]


class OnAnotherDevice(OnlyDLPack):
    def __init__(self) -> None:
        super().__init__(None)

    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("this memory is in an accelerator")

    def __dlpack_device__(self) -> Any:
        return (2, 0)


class Broken(OnlyDLPack):
    def __init__(self) -> None:
        super().__init__(None)

    def __dlpack__(self, **keywords: Any) -> Any:
        raise RuntimeError("broken")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


@pytest.mark.parametrize(("error", "words", "make"), REFUSED)
def test_what_cannot_take_part_is_refused(error: type[Exception], words: str, make: Callable[[], Any]) -> None:
    def main(comm: hocket.Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises(error, match=words):
                comm.all_reduce(make())
        comm.barrier()

    in_threads(2, main)


def test_memory_shown_by_dlpack_is_given_back() -> None:
    x, data = np.zeros(10), bytearray(16)
    with hocket.init(0, 1) as comm:
        before = sys.getrefcount(x)
        comm.all_reduce(OnlyDLPack(x))
        assert sys.getrefcount(x) == before
        comm.all_reduce(data)
        data.extend(b"a bytearray that is still looked at cannot grow")
        for received in (hocket.Recv(bytearray(1), 1), hocket.Recv(data, 0)):
            with pytest.raises(ValueError, match="batch") as refused:
                comm.batch([hocket.Send(data, 0), received])
            assert refused.value.__traceback__ is not None, "it holds what the frames of the call do"
            data.extend(b"nor after a call that is refused")


def test_tensors_of_torch_take_part_and_make_tensors() -> None:

    def main(comm: hocket.Communicator) -> None:
        x = torch.full((3, 4), comm.rank + 1.0)
        assert comm.all_reduce(x) is x and bool((x == 3).all())
        gathered = comm.all_gather(torch.full((2, 3), comm.rank, dtype=torch.int64))
        assert isinstance(gathered, torch.Tensor) and gathered.shape == (4, 3) and gathered.dtype == torch.int64
        assert gathered[:, 0].tolist() == [0, 0, 1, 1]
        block = comm.reduce_scatter(torch.ones(4, 2))
        assert isinstance(block, torch.Tensor) and block.shape == (2, 2) and bool((block == 2).all())
        point = torch.tensor(1, dtype=torch.int32)
        assert comm.all_reduce(point) is point and int(point) == 2
        if comm.rank == 0:
            with pytest.raises(ValueError, match="C-contiguous"):
                comm.all_reduce(torch.zeros(3, 4).t())
            with pytest.raises(TypeError, match=r"found .*Tensor of torch.float8_e5m2fnuz; .* x.to\(torch.float32\)"):
                comm.all_reduce(torch.zeros(3, dtype=torch.float8_e5m2fnuz))
        comm.barrier()

    in_threads(2, main)


# How to make a tensor, the errors for reading and for writing it, and their text.
OF_TORCH: list[tuple[Callable[[Any], Any], type[Exception] | None, type[Exception] | None, str]] = [
    # The memory holds the conjugate.
    (lambda torch: torch.tensor([1 + 1j]).conj(), ValueError, ValueError, r"Tensor whose .*; pass x.resolve_conj\(\)"),
    # The memory holds the values with the other sign.
    (lambda torch: torch.tensor([1 + 1j]).conj().imag, ValueError, ValueError, r"negated; pass x.resolve_neg\(\)"),
    # Autograd would not notice the change.
    (lambda torch: torch.ones(3, requires_grad=True), None, ValueError, r"requires grad; pass x.detach\(\)"),
    (lambda torch: torch.ones(3, requires_grad=True) * 2, None, ValueError, r"requires grad; pass x.detach\(\)"),
    # Their values are in memory unchanged.
    (lambda torch: torch.tensor([1 + 1j]).conj().resolve_conj(), None, None, ""),
    (lambda torch: torch.tensor([1 + 1j]).conj().imag.resolve_neg(), None, None, ""),
    (lambda torch: torch.ones(3, requires_grad=True).detach(), None, None, ""),
]


@pytest.mark.parametrize(("make", "read", "written", "words"), OF_TORCH)
def test_tensors_that_are_not_what_their_memory_says(make: Any, read: Any, written: Any, words: str) -> None:
    x = make(torch)
    for writable, error in ((False, read), (True, written)):
        if error is None:
            assert _core.describe(x, writable, "x")[0] == x.data_ptr()
        else:
            with pytest.raises(error, match=f"^x: expected a tensor .*{words}"):
                _core.describe(x, writable, "x")


def test_advice_for_a_type_that_is_not_among_ours_is_of_its_library() -> None:
    with pytest.raises(TypeError, match=r'found ndarray of .*; .* x.astype\("float32"\)'):
        _core.describe(np.zeros(3, "longdouble"), False, "x")
    with pytest.raises(TypeError, match=r'format \'c\'; .* numpy.asarray\(x\).astype\("float32"\)'):
        _core.describe(memoryview(bytearray(8)).cast("c"), False, "x")


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_torch_are_of_the_same_types(dtype: str) -> None:
    x = torch.zeros((3, 4), dtype=getattr(torch, dtype))
    assert _core.describe(x, True, "x") == (x.data_ptr(), 12, DTYPES.index(dtype))

    def main(comm: hocket.Communicator) -> None:
        ones = torch.ones(5).to(x.dtype)
        assert comm.all_reduce(ones) is ones
        readable = ones.to(torch.float64) if ones.dtype.is_floating_point else ones
        assert readable.tolist() == ([True] * 5 if dtype == "bool" else [2] * 5)

    in_threads(2, main)
