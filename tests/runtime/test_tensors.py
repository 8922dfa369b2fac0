"""PyTorch's tensors are arrays like others: repeated calls with plain tensors, and only these, skip Python."""

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hocket
from hocket import _core
from hocket.runtime import run_ranks
from hocket.schedule import DTYPES
from tests.runtime.repeating import count_misses

TURNS = 3


def in_threads(function: Callable[[hocket.Communicator], Any]) -> list[Any]:
    def main() -> Any:
        with hocket.init() as comm:
            return function(comm)

    return run_ranks(main, 2, kind="thread")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_core_sees_the_memory_itself(dtype: str) -> None:
    x = torch.zeros(24, dtype=getattr(torch, dtype))[12:].view(3, 4)
    assert _core.describe(x, True, "x") == (x.data_ptr(), 12, DTYPES.index(dtype))
    assert _core.describe(x[:0], True, "x")[1:] == (0, DTYPES.index(dtype))
    assert _core.describe(x[1, 1], True, "x")[:2] == (x[1, 1].data_ptr(), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_repeated_call_skips_python(dtype: str) -> None:
    def main(comm: hocket.Communicator) -> None:
        missed = count_misses(comm)
        for turn in range(TURNS):
            x = torch.tensor([comm.rank, turn % 2, 1]).to(getattr(torch, dtype))
            assert comm.all_reduce(x, op="bor" if dtype == "bool" else "sum") is x
            assert x.real.tolist() == [1, 2 * (turn % 2), 2] if dtype != "bool" else [True, turn % 2 == 1, True]
        assert missed == ["all_reduce"]

    in_threads(main)


def test_calls_of_other_shapes_types_and_kinds_are_other_calls() -> None:
    makes: list[Callable[[int], Any]] = [
        lambda value: torch.full((6,), value),
        lambda value: torch.full((2, 3), value),
        lambda value: torch.full((3, 2), value),
        lambda value: torch.full((6,), value, dtype=torch.int32),
        lambda value: torch.full((6,), float(value)),
        lambda value: torch.tensor(value),
        lambda value: np.full(6, value),
        lambda value: np.full(6, value, "int32"),
    ]

    def main(comm: hocket.Communicator) -> None:
        missed = count_misses(comm)
        for _ in range(TURNS):
            for make in makes:
                out = make(0) if make(0).ndim == 0 else np.concatenate([make(0), make(0)])
                if make(0).ndim > 0:
                    given = torch.from_numpy(out) if isinstance(make(0), torch.Tensor) else out
                    assert comm.all_gather(make(comm.rank + 1), out=given) is given
                    assert out[: len(out) // 2].tolist() == make(1).tolist()
                    assert out[len(out) // 2 :].tolist() == make(2).tolist()
                x = make(comm.rank + 1)
                comm.all_reduce(x)
                assert x.tolist() == make(3).tolist()
        assert len(missed) == 2 * len(makes) - 1

    in_threads(main)


def test_in_place_is_seen() -> None:
    def main(comm: hocket.Communicator) -> None:
        for _ in range(TURNS):
            whole = torch.arange(8) * (comm.rank + 1)
            block = whole[4 * comm.rank :][:4]
            assert comm.reduce_scatter(whole, out=block) is block
            assert block.tolist() == [3 * (4 * comm.rank + i) for i in range(4)]
            with pytest.raises(ValueError, match="overlap"):
                comm.reduce_scatter(whole, out=whole[1:5])
            comm.barrier()

    in_threads(main)


def test_a_tensor_is_not_kept() -> None:
    with hocket.init(0, 1) as comm:
        for _ in range(TURNS):
            x = torch.zeros(5)
            comm.all_reduce(x)
            gone = weakref.ref(x)
            del x
            gc.collect()
            assert gone() is None


def fake() -> Any:
    with FakeTensorMode():
        return torch.zeros(6)


def conjugate() -> Any:
    return torch.ones(6, dtype=torch.complex64).conj()


NOT_PLAIN = [
    (ValueError, "C-contiguous", lambda: torch.zeros(12)[::2]),
    (ValueError, "C-contiguous", lambda: torch.zeros(3, 2).t()),
    (ValueError, "conjugate bit", conjugate),
    (ValueError, "negative bit", lambda: conjugate().imag),
    (ValueError, "requires grad", lambda: torch.zeros(6, requires_grad=True)),
    (ValueError, "requires grad", lambda: torch.nn.Parameter(torch.zeros(6))),
    (ValueError, "memory", fake),
    (TypeError, "CPU memory", lambda: torch.zeros(6, device="meta")),
    (TypeError, "CPU memory", lambda: torch.zeros(6).to_sparse()),
    (TypeError, "float8_e4m3fn,", lambda: torch.zeros(6, dtype=torch.float8_e4m3fnuz)),
]


@pytest.mark.parametrize(("error", "words", "make"), NOT_PLAIN)
def test_what_is_no_plain_tensor_is_refused_beside_one_that_is(
    error: type[Exception], words: str, make: Callable[[], Any]
) -> None:
    with hocket.init(0, 1) as comm, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of a fake tensor's memory
        for _ in range(TURNS):
            for dtype in (torch.float32, torch.complex64):
                comm.all_reduce(torch.zeros(6, dtype=dtype))
                comm.all_reduce(torch.zeros(2, 3, dtype=dtype))
            with pytest.raises(error, match=words):
                comm.all_reduce(make())


def test_a_parameter_can_be_given_where_nothing_is_written() -> None:
    def main(comm: hocket.Communicator) -> None:
        for _ in range(TURNS):
            out = torch.zeros(4)
            comm.all_gather(torch.nn.Parameter(torch.full((2,), comm.rank + 1.0)), out=out)
            assert out.tolist() == [1, 1, 2, 2]

    in_threads(main)
