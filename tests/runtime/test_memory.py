"""Registered memory: arrays that peers read in place, allocated at once and freed with the last reference."""

import ctypes
import errno
import gc
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import ResourceError
from hocket.runtime import memory, run_ranks
from hocket.schedule import EXTENSION_DTYPES

MIB = 1 << 20


def committed_bytes() -> int:
    """Returns the memory that the calling rank's arena takes."""
    return os.fstat(memory.arena().descriptor).st_blocks * 512


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (7, "float32", (7,)),
        (np.int64(7), "int64", (7,)),
        ((2, 3, 4), np.float64, (2, 3, 4)),
        ([5, 1], np.dtype("uint8"), (5, 1)),
        ((), "int32", ()),
        # An empty array is an array, too.
        (0, "float32", (0,)),
        ((3, 0, 2), "float64", (3, 0, 2)),
    ],
)
def test_an_array_of_this_shape_that_can_be_written(shape: Any, dtype: Any, expected: tuple[int, ...]) -> None:
    x = hocket.empty(shape, dtype)
    assert x.shape == expected and x.dtype == dtype and x.flags.c_contiguous and x.flags.writeable and x.flags.aligned
    x[...] = 3
    assert (x == 3).all()


def test_float32_is_what_nobody_asks_for() -> None:
    assert hocket.empty(3).dtype == np.float32


@pytest.mark.parametrize("dtype", sorted(EXTENSION_DTYPES))
def test_a_type_of_ml_dtypes_is_known_by_name(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a new process: NumPy has these names only after ml_dtypes was imported.
    program = f"import hocket; x = hocket.empty(4, {dtype!r}); x[:] = 2; print(x.dtype.name, x.tolist())"
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split(maxsplit=1) == [dtype, "[2.0, 2.0, 2.0, 2.0]\n"]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=rf"{dtype} is not a type of NumPy's own: .*hocket\[types\]"):
        hocket.empty(4, dtype)


def test_arrays_begin_on_pages_of_their_own() -> None:
    arrays = [hocket.empty(count, "uint8") for count in (1, mmap.PAGESIZE, mmap.PAGESIZE + 1, 3)]
    addresses = [x.ctypes.data for x in arrays]
    assert all(address % mmap.PAGESIZE == 0 for address in addresses) and len(set(addresses)) == len(addresses)
    for number, x in enumerate(arrays):
        x[:] = number
    assert all((x == number).all() for number, x in enumerate(arrays))


def test_memory_is_taken_at_once_and_goes_back_with_the_last_view() -> None:
    before = committed_bytes()
    x = hocket.empty(8 * MIB, "uint8")
    assert committed_bytes() - before >= 8 * MIB
    view = x[100:200].reshape(10, 10)
    del x
    gc.collect()
    assert committed_bytes() - before >= 8 * MIB
    view[:] = 1
    del view
    gc.collect()
    assert committed_bytes() <= before


def test_memory_that_was_given_back_is_used_again() -> None:
    first = hocket.empty(3 * MIB, "uint8")
    address = first.ctypes.data
    first[:] = 255
    del first
    second = hocket.empty(3 * MIB, "uint8")
    assert second.ctypes.data == address
    assert not second.any(), "pages that were given back come back empty"


def test_many_arrays_in_any_order_leave_nothing() -> None:
    before = committed_bytes()
    choose = np.random.default_rng(0)
    arrays: list[Any] = []
    for turn in range(500):
        if arrays and choose.random() < 0.45:
            number, x = arrays.pop(int(choose.integers(len(arrays))))
            assert (x == number).all()
        else:
            x = hocket.empty(int(choose.integers(1, 50_000)), "int32")
            x[:] = turn
            arrays.append((turn, x))
    for number, x in arrays:
        assert (x == number).all()
    del arrays, x
    gc.collect()
    assert committed_bytes() <= before


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "words"),
    [
        # Negative sizes.
        (-1, "float32", ValueError, "sizes of at least 0"),
        ((4, -2), "float32", ValueError, r"shape is \(4, -2\)"),
        # Not numbers.
        ("abc", "float32", TypeError, "shape is 'abc'; expected an int or a tuple of ints"),
        (2.5, "float32", TypeError, "shape is 2.5; expected an int"),
        ((2, 2.5), "float32", TypeError, r"shape is \(2, 2.5\); expected an int"),
        # A type that NumPy does not know.
        (3, "float31", TypeError, "float31"),
        # Objects of Python cannot be shared between processes.
        (3, object, TypeError, "dtype is object; expected one whose values are not Python objects"),
    ],
)
def test_bad_arguments(shape: Any, dtype: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        hocket.empty(shape, dtype)


@pytest.mark.parametrize("count", [1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 70])
def test_more_than_the_machine_has_is_refused(count: int) -> None:
    before = committed_bytes()
    with pytest.raises(ResourceError) as caught:
        hocket.empty(count, "uint8")
    assert caught.value.errno == errno.ENOMEM and caught.value.call
    assert committed_bytes() == before
    hocket.empty(3)[:] = 1


def test_an_array_outlives_its_communicator_and_serves_the_next() -> None:
    def main() -> Any:
        with hocket.init(address=f"{hocket.runtime.ranks.environment.discover().address}-first") as comm:
            x = hocket.empty(20_000)
            x[:] = comm.rank + 1
            comm.all_reduce(x)
        assert (x == 6).all()
        with hocket.init() as comm:
            comm.all_reduce(x)
            comm.barrier()
        assert (x == 18).all()
        return x

    arrays = run_ranks(main, 3, kind="thread")
    gc.collect()
    assert all((x == 18).all() for x in arrays), "the array keeps its arena, after the rank has ended"


def test_ranks_that_are_threads_have_an_arena_each() -> None:
    def main() -> int:
        first, second = hocket.empty(3), hocket.empty(3)
        assert memory.arena() is memory.arena()
        first[:], second[:] = 1, 2
        with hocket.init() as comm:
            comm.barrier()
        return int(memory.arena().descriptor)

    assert len(set(run_ranks(main, 4, kind="thread"))) == 4


def descriptors_left_by_communicators() -> int:
    def number() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    address = hocket.runtime.ranks.environment.discover().address
    numbers = []
    for turn in range(5):
        with hocket.init(address=f"{address}-{turn}") as comm:
            comm.all_reduce(hocket.empty(100_000))
        numbers.append(number())
    return numbers[-1] - numbers[0]


def test_communicators_that_were_closed_leave_no_descriptor() -> None:
    assert run_ranks(descriptors_left_by_communicators, 2, kind="process") == [0, 0]


def memory_left_by_communicators() -> int:
    address = hocket.runtime.ranks.environment.discover().address
    sizes = []
    for turn in range(20):
        with hocket.init(address=f"{address}-{turn}") as comm:
            comm.all_reduce(np.ones(200_000))
        gc.collect()
        sizes.append(committed_bytes())
    return sizes[-1] - sizes[2]


def test_communicators_that_were_closed_leave_little_memory() -> None:
    for left in run_ranks(memory_left_by_communicators, 2, kind="process"):
        assert left < 2 * MIB


# --- streams -------------------------------------------------------------------------------------------------------


def written_by_a_stream(recorded: bool) -> bool:
    """Returns whether a stream that writes to the address of a deleted array changes a new array."""
    s, may_write = hocket.Stream(), threading.Event()
    gone = hocket.empty(1000, "uint8")
    s.submit(may_write.wait, 60)
    s.submit(ctypes.memset, gone.ctypes.data, 7, 1000)
    if recorded:
        hocket.record_stream(gone[10:], s)
        hocket.record_stream(gone, s)
    del gone
    gc.collect()
    new = hocket.empty(1000, "uint8")
    new.fill(1)
    may_write.set()
    s.synchronize()
    assert (new == new[0]).all()
    return bool(new[0] == 7)


def test_memory_is_used_again_only_once_its_streams_have_passed() -> None:
    assert written_by_a_stream(recorded=False), "the hazard"
    before = committed_bytes()
    assert not written_by_a_stream(recorded=True)
    assert committed_bytes() == before


def test_a_stream_is_recorded_on_memory_of_its_own_only() -> None:
    x, s = hocket.empty((0,)), hocket.Stream()
    hocket.record_stream(x, s)
    with pytest.raises(ValueError, match=r"expected an array of hocket\.empty\(\), found other memory"):
        hocket.record_stream(np.zeros(1000), s)
    with pytest.raises(TypeError, match=r"expected a hocket\.Stream, found None"):
        hocket.record_stream(x, None)  # type: ignore[arg-type]


def _kept_by_closed_communicators() -> list[int]:
    kept = []
    for _ in range(20):
        hocket.init().close()
        kept.append(committed_bytes())
    return kept


@pytest.mark.parametrize("size", [1, 2])
def test_what_closed_communicators_had_in_the_arena_is_used_again(size: int) -> None:
    for kept in run_ranks(_kept_by_closed_communicators, size, kind="process"):
        assert kept[-1] <= 4 * kept[0], "another rank may be a little later to go"


LIMITED = """
import resource, sys, hocket
from hocket.errors import ResourceError
from hocket.runtime import run_ranks

def rank():
    with hocket.init() as communicator:
        x = hocket.empty(50 << 20, "uint8")
        x[:] = 1
        communicator.all_reduce(x)
        assert (x == 3).all()
        try:
            hocket.empty(8 << 30, "uint8")
        except ResourceError as error:
            return str(error)

limit, kind = sys.argv[1:]
resource.setrlimit(getattr(resource, limit), (4 << 30, 4 << 30))
if __name__ == "__main__":
    print(*run_ranks(rank, 3, kind=kind), sep="\\n")
"""


@pytest.mark.parametrize("kind", ["process", "thread"])
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_FSIZE"])
def test_limits_of_addresses_and_file_sizes_leave_room_for_what_a_program_needs(
    limit: str, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "limited.py"
    file.write_text(LIMITED)
    command = [sys.executable, str(file), limit, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert "reserving 8589934592 bytes of the arena failed" in line and "hocket doctor" in line
