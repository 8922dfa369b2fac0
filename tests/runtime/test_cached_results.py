"""Repeated calls without `out` skip Python, too: each returns a new array, like Python."""

import gc
import resource
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.runtime import run_ranks
from tests.runtime.repeating import SIZE, by_python, count_misses, values

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def calls_for(rank: int, turn: int) -> list[Call]:
    """Calls of 2 ranks. Ranks other than the root get None from gather; scatter has an array to fill on all ranks."""
    x, rows = values(rank + turn, 6), values(rank + turn, 8).reshape(4, 2)
    got, got_rows = {"out": np.zeros(3, "float32")}, {"out": np.zeros((1 if rank == 0 else 3, 2), "float32")}
    return [
        ("all_gather", (x,), {}),
        ("all_gather", (np.array(rank + turn, "float32"),), {}),
        ("all_gather", (rows.astype("complex128"),), {}),
        ("reduce_scatter", (rows,), {"op": "max"}),
        ("reduce_scatter", (x,), {"out": None}),
        ("gather", (rows,), {}),
        ("scatter", (x,), got),
        ("all_to_all", (rows,), {}),
        ("all_gather_v", (rows[: rank + 1], [1, 2]), {}),
        ("gather_v", (rows[: rank + 1], [1, 2]), {}),
        ("scatter_v", (rows, [1, 3]), got_rows),
        ("reduce_scatter_v", (rows, (3, 1)), {}),
        ("all_to_all_v", (rows, [[1, 3], [3, 1]][rank], [[1, 3], [3, 1]][rank]), {}),
    ]


def equal(found: Any, expected: Any) -> bool:
    if found is None or expected is None:
        return found is expected
    same_kind = type(found) is type(expected) and found.dtype == expected.dtype and found.shape == expected.shape
    return same_kind and bool((found == expected).all())


def call_again(async_op: bool) -> None:
    with hocket.init() as comm:
        missed, kept = count_misses(comm), []
        for turn in range(5):
            again = calls_for(comm.rank, turn)
            for (name, args, more), (_, same_args, same) in zip(calls_for(comm.rank, turn), again, strict=True):
                before = len(missed)
                found = getattr(comm, name)(*args, **more, async_op=async_op)
                found = found.wait() if async_op else found
                # Counts that came once are not cached.
                assert len(missed) - before == (turn == 0 or (turn == 1 and name.endswith("_v"))), (name, turn)
                kept.append((found, by_python(comm, name)(*same_args, **same)))
        # No later call changed a result, and no two results share memory.
        assert all(equal(found, expected) for found, expected in kept)
        arrays = [found for found, _ in kept if found is not None]
        assert len({one.__array_interface__["data"][0] for one in arrays}) == len(arrays)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_only_the_first_of_equal_calls_goes_through_python(kind: str, async_op: bool) -> None:
    run_ranks(call_again, SIZE, args=(async_op,), kind=kind)


def test_a_new_array_is_kept_by_its_caller_alone() -> None:
    with hocket.init(0, 1) as comm:
        missed, x, alone = count_misses(comm), np.ones(3), np.ones(3)
        before = sys.getrefcount(x)
        for _ in range(4):
            found = comm.all_gather(x)
            assert sys.getrefcount(found) == sys.getrefcount(alone)
            began = comm.all_to_all(x, async_op=True)
            later = began.wait()
            references = [weakref.ref(found), weakref.ref(later)]
            del found, later, began
            gc.collect()
            assert [one() for one in references] == [None, None]
        assert missed == ["all_gather", "all_to_all"]
        assert sys.getrefcount(x) == before


def test_a_work_keeps_what_it_writes() -> None:
    """Also the work of a barrier, which returns none of its arguments."""

    def main() -> None:
        with hocket.init() as comm:
            missed, x = count_misses(comm), np.ones(3)
            for _ in range(3):
                barrier, gathering = comm.barrier(async_op=True), comm.all_gather(x, async_op=True)
                for work in (barrier, gathering):
                    assert any(type(one) is np.ndarray and one is not x for one in work._arrays), work._arrays
                assert barrier.wait() is None and (gathering.wait() == 1).all()
            assert missed == ["barrier", "all_gather"]

    run_ranks(main, SIZE, kind="thread")


def test_what_is_given_is_read_anew_each_time() -> None:
    """The same array with other values, and then with another shape, which makes it another call."""
    with hocket.init(0, 1) as comm:
        missed, x = count_misses(comm), np.zeros((2, 3))
        for turn in range(4):
            x[:] = turn
            found = comm.all_to_all(x)
            assert found.shape == (2, 3) and (found == turn).all() and not np.shares_memory(found, x)
        x.shape = (3, 2)
        assert comm.all_to_all(x).shape == comm.all_to_all(x).shape == (3, 2)
        assert missed == ["all_to_all"] * 2


def test_tensors_get_tensors() -> None:
    with hocket.init(0, 1) as comm:
        missed = count_misses(comm)
        for turn in range(4):
            x = torch.full((2, 3), turn, dtype=torch.bfloat16)
            found = comm.all_gather(x)
            assert type(found) is torch.Tensor and found.dtype == x.dtype and found.shape == x.shape
            assert torch.equal(found, x) and found.data_ptr() != x.data_ptr()
            assert comm.all_gather(x.view(torch.int16).numpy()).dtype == np.int16
        assert missed == ["all_gather"] * 2


def test_what_is_made_instead_of_a_new_array_is_refused() -> None:
    """A mode of PyTorch may make other tensors than the first time, for example shorter ones; they are not written."""
    made: list[Any] = []

    class Other(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.new_empty:
                return made[-1]
            return function(*args, **(kwargs or {}))

    with hocket.init(0, 1) as comm:
        missed, x = count_misses(comm), torch.ones(64, 64)
        for _ in range(3):
            assert torch.equal(comm.all_gather(x), x)
        assert missed == ["all_gather"]
        others = [torch.zeros(2), torch.zeros(64, 64, dtype=torch.float16), torch.zeros(64, 128)[:, ::2], [0.0]]
        for other in others:
            made.append(other)
            for number, call in enumerate((comm.all_gather, by_python(comm, "all_gather"))):
                with Other(), pytest.raises((TypeError, ValueError), match="expected"):
                    call(x)
                assert number or missed == ["all_gather"]
                missed[1:] = []
        assert not any(torch.as_tensor(other).any() for other in others)
        made.append(x)  # as if it were in place
        with Other(), pytest.raises(TypeError, match="expected a new array like that of the previous call"):
            comm.all_gather(x)
        assert torch.equal(comm.all_gather(x), x)


def call_without_memory() -> None:
    with hocket.init() as comm:
        missed, x = count_misses(comm), np.ones(1 << 23)
        for _ in range(2):
            comm.all_gather(x)
        limits = resource.getrlimit(resource.RLIMIT_AS)
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + x.nbytes // 2, limits[1]))
        try:
            with pytest.raises(MemoryError):
                comm.all_gather(x)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert comm.statistics["calls"] == 2
        assert (comm.all_gather(x) == 1).all() and missed == ["all_gather"]


def test_a_new_array_that_cannot_be_had_is_said_before_anything_is_sent() -> None:
    run_ranks(call_without_memory, 1, kind="process")
