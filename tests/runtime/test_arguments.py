"""A bad argument is refused before anything is sent: all ranks go on as if nothing had happened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CommunicationError
from hocket.runtime import run_ranks

Comm = hocket.Communicator
SIZE = 3


def floats(count: int = 6) -> Any:
    return np.zeros(count, "float32")


def read_only() -> Any:
    x = floats()
    x.flags.writeable = False
    return x


def shifted_by_a_byte() -> Any:
    return np.frombuffer(bytearray(25), "float32", 6, offset=1)


def memory(count: int) -> tuple[Any, Any]:
    """Returns an array, and one that begins an element later in the same memory."""
    whole = floats(count + 1)
    return whole[:-1], whole[1:]


def masked() -> Any:
    return np.ma.masked_array(floats(), [0, 1, 0, 0, 0, 0])


def row(error: type[Exception], words: str, call: Callable[[Comm], Any]) -> Any:
    return pytest.param(error, words, call)


REFUSED = [
    # Every second element.
    row(ValueError, "C-contiguous.*ascontiguousarray", lambda comm: comm.all_reduce(floats()[::2])),
    # A column.
    row(ValueError, "C-contiguous", lambda comm: comm.all_reduce(np.zeros((4, 4))[:, 1])),
    # Backwards.
    row(ValueError, "C-contiguous", lambda comm: comm.all_gather(floats()[::-1])),
    # Columns first, as in Fortran.
    row(ValueError, "C-contiguous", lambda comm: comm.all_reduce(np.zeros((3, 4), order="F"))),
    # One value that looks like many.
    row(ValueError, "C-contiguous|read-only", lambda comm: comm.all_reduce(np.broadcast_to(np.float32(1), 8))),
    # A number of NumPy, which is an array without memory of its own.
    row(ValueError, "found a NumPy scalar, a float64: pass x", lambda comm: comm.all_reduce(np.float64(3))),
    row(ValueError, "found a NumPy scalar, a float64: pass x", lambda comm: comm.recv(np.float64(3), 0)),
    # The output is not contiguous.
    row(ValueError, "C-contiguous", lambda comm: comm.all_reduce(floats(), out=floats(12)[::2])),
    # The result cannot be written to the input.
    row(ValueError, "read-only.*out=", lambda comm: comm.all_reduce(read_only())),
    # The result cannot be written to this output.
    row(ValueError, "read-only", lambda comm: comm.all_reduce(floats(), out=read_only())),
    row(ValueError, "read-only", lambda comm: comm.all_gather(floats(2), out=read_only())),
    row(ValueError, "read-only", lambda comm: comm.reduce_scatter(floats(18), out=read_only())),
    # Rank 0 is not the root here, so it receives.
    row(ValueError, "read-only", lambda comm: comm.broadcast(read_only(), root=1)),
    # Rank 0 is the root here, so it receives.
    row(ValueError, "read-only", lambda comm: comm.reduce(read_only(), root=0)),
    # bytes are read-only, too.
    row(ValueError, "read-only", lambda comm: comm.all_reduce(b"123456")),
    # An address that the processor reads slowly, and that C++ does not allow.
    row(ValueError, "aligned.*copy", lambda comm: comm.all_reduce(shifted_by_a_byte())),
    row(ValueError, "aligned", lambda comm: comm.all_reduce(floats(), out=shifted_by_a_byte())),
    # Values that a mask hides.
    *[
        row(TypeError, r"without a mask, found a MaskedArray; pass x\.filled", call)
        for call in (
            lambda comm: comm.all_reduce(masked()),
            lambda comm: comm.all_reduce(floats(), out=masked()),
            lambda comm: comm.all_gather(masked()),
            lambda comm: comm.all_gather_v(masked(), [6, 6, 6]),
            lambda comm: comm.broadcast(masked()),
            lambda comm: comm.scatter(masked(), out=floats(2)),
            lambda comm: comm.send(masked(), 0),
            lambda comm: comm.irecv(masked()),
            lambda comm: comm.batch([hocket.Send(masked(), 0)]),
        )
    ],
    # Types that Hocket does not have.
    *[
        row(TypeError, "float16, .*, complex128; found", lambda comm, d=dtype: comm.all_reduce(np.zeros(6, d)))
        for dtype in (">f4", "U3", "longdouble", "clongdouble")
    ],
    row(TypeError, "float32", lambda comm: comm.all_reduce(np.zeros(6, "f4,i4"))),
    row(TypeError, "float32", lambda comm: comm.all_reduce(np.array([None]))),
    row(TypeError, "float32", lambda comm: comm.all_reduce(np.zeros(6, "datetime64[s]"))),
    # Objects that are not arrays.
    row(TypeError, r"or DLPack, found list: pass numpy\.array\(", lambda comm: comm.all_reduce([1.0, 2.0])),
    row(TypeError, r"or DLPack, found float: pass numpy\.array\(", lambda comm: comm.all_reduce(1.0)),
    row(
        TypeError, "found dict: for Python objects there are broadcast_object, ", lambda comm: comm.broadcast({"a": 1})
    ),
    row(TypeError, "found str: for Python objects there are .* send_object", lambda comm: comm.send("a", 0)),
    row(TypeError, "buffer protocol or DLPack, found NoneType$", lambda comm: comm.all_reduce(None)),
    row(TypeError, "found NoneType", lambda comm: comm.all_reduce(None)),
    row(TypeError, "found float", lambda comm: comm.all_gather(1.0)),
    row(TypeError, "found str", lambda comm: comm.all_reduce(floats(), out="y")),
    # An op that does not exist.
    row(
        ValueError,
        "op: expected a reduction, one of sum, prod, min, max, avg, .*; found 'mean'",
        lambda c: c.all_reduce(floats(), op="mean"),
    ),
    row(ValueError, "op", lambda comm: comm.reduce_scatter(floats(), op="")),
    row(TypeError, "op", lambda comm: comm.reduce(floats(), op=None)),
    # An average of integers would have to be rounded.
    *[
        row(
            TypeError,
            f"'avg' has no meaning for {dtype}",
            lambda comm, d=dtype: comm.all_reduce(np.zeros(6, d), op="avg"),
        )
        for dtype in ("int32", "int64", "uint8")
    ],
    row(TypeError, "avg", lambda comm: comm.reduce_scatter(np.zeros(6, "int32"), op="avg")),
    row(TypeError, "avg", lambda comm: comm.reduce(np.zeros(6, "uint8"), op="avg", root=1)),
    # A root that does not exist, or is not a number.
    row(ValueError, "root from 0 to 2, found -1", lambda comm: comm.broadcast(floats(), root=-1)),
    row(ValueError, "root from 0 to 2, found 3", lambda comm: comm.reduce(floats(), root=SIZE)),
    row(ValueError, "found 1.0", lambda comm: comm.broadcast(floats(), root=1.0)),
    row(ValueError, "found None", lambda comm: comm.reduce(floats(), root=None)),
    # An output of another length or dtype.
    row(
        ValueError,
        "all_reduce: expected out with 6 elements of float32, found 5",
        lambda c: c.all_reduce(floats(), out=floats(5)),
    ),
    row(ValueError, "found 6 of int32", lambda comm: comm.all_reduce(floats(), out=np.zeros(6, "int32"))),
    row(ValueError, "expected out with 18 elements", lambda comm: comm.all_gather(floats(), out=floats(6))),
    row(ValueError, "found 18 of float64", lambda comm: comm.all_gather(floats(), out=np.zeros(18))),
    row(ValueError, "expected out with 1/3 of the 6 elements", lambda c: c.reduce_scatter(floats(), out=floats(3))),
    row(ValueError, "found 2 of uint8", lambda comm: comm.reduce_scatter(floats(), out=np.zeros(2, "uint8"))),
    row(ValueError, "found 7", lambda comm: comm.broadcast(floats(), out=floats(7))),
    row(ValueError, "found 0", lambda comm: comm.reduce(floats(), out=floats(0))),
    # Blocks of different length.
    row(ValueError, "3 ranks can split evenly, found shape \\(7,\\)", lambda comm: comm.reduce_scatter(floats(7))),
    row(ValueError, "found shape \\(\\)", lambda comm: comm.reduce_scatter(np.array(1.0))),
    row(ValueError, "found shape \\(2, 3\\)", lambda comm: comm.reduce_scatter(np.zeros((2, 3)))),
    # Input and output share memory, but not as in an in-place call.
    row(ValueError, "all_reduce: x and out overlap", lambda comm: call_on(comm.all_reduce, *memory(6))),
    row(ValueError, "broadcast: x and out overlap", lambda comm: call_on(comm.broadcast, *memory(6))),
    row(ValueError, "reduce: x and out overlap", lambda comm: call_on(comm.reduce, *memory(6))),
    # Rank 0 passes the position of rank 1's block, so this is not an in-place call.
    row(ValueError, "all_gather: x and out overlap", lambda comm: block_of_another(comm.all_gather, "out")),
    row(ValueError, "reduce_scatter: x and out overlap", lambda comm: block_of_another(comm.reduce_scatter, "x")),
    # No time at all.
    row(ValueError, "timeout.*seconds above 0", lambda comm: comm.all_reduce(floats(), timeout=0)),
    row(ValueError, "barrier: .*timeout.*-1|barrier: timeout is -1", lambda comm: comm.barrier(timeout=-1)),
    row(ValueError, "nan", lambda comm: comm.all_gather(floats(), timeout=float("nan"))),
    row(TypeError, "all_gather: timeout is a str", lambda comm: comm.all_gather(floats(), timeout="1 s")),
    # Neither messages nor a reason.
    row(TypeError, "batch: expected a list of hocket.Send and hocket.Recv, found None", lambda comm: comm.batch(None)),
    row(TypeError, "abort: expected a reason as text, found 3", lambda comm: comm.abort(3)),
    # An algorithm that is not known, is known for something else, or is in a file that is not there.
    row(
        ValueError,
        "one of bidirectional_ring, .*, tree or FILE.py:NAME; found 'magic'",
        lambda comm: comm.all_reduce(floats(), algorithm="magic"),
    ),
    row(ValueError, "found 'ring'", lambda comm: comm.broadcast(floats(), algorithm="ring")),
    row(ValueError, "dissemination", lambda comm: comm.barrier(algorithm="ring")),
    # Objects that are not names.
    *[
        row(
            TypeError,
            r"all_reduce: expected algorithm as .* for the table; found",
            lambda comm, a=algorithm: comm.all_reduce(floats(), algorithm=a),
        )
        for algorithm in (0, 3, [], b"ring")
    ],
    row(TypeError, "configure: expected algorithm as .*; found 3", lambda comm: comm.configure(algorithm=3)),
    row(TypeError, "found 3", lambda comm: comm.configure("all_reduce", algorithm=3)),
    row(Exception, "missing.py", lambda comm: comm.all_reduce(floats(), algorithm="missing.py:own")),
    # The same before an asynchronous call is launched.
    row(ValueError, "C-contiguous", lambda comm: comm.all_reduce(floats()[::2], async_op=True)),
    row(ValueError, "timeout", lambda comm: comm.barrier(timeout=0, async_op=True)),
]


def call_on(method: Any, x: Any, out: Any) -> Any:
    return method(x, out=out)


def block_of_another(method: Any, whole: str) -> Any:
    data = floats(6)
    return method(data[2:4], out=data) if whole == "out" else method(data, out=data[2:4])


@pytest.mark.parametrize(("error", "words", "call"), REFUSED)
def test_refused_before_anything_is_sent(error: type[Exception], words: str, call: Callable[[Comm], Any]) -> None:
    def main() -> None:
        with hocket.init() as comm:
            if comm.rank == 0:
                with pytest.raises(error, match=words) as caught:
                    call(comm)
                assert not isinstance(caught.value, CommunicationError)
            assert (comm.all_reduce(np.full(5, comm.rank + 1.0)) == 6).all()
            # If the refused call had been counted, later calls would have different numbers.
            assert (comm.all_gather(np.full(20_000, comm.rank)).reshape(3, -1) == np.arange(3)[:, None]).all()

    run_ranks(main, SIZE, kind="thread")


def test_a_broken_algorithm_of_a_file_never_runs(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import hocket\n"
        "several = lambda p: p > 1\n"
        "@hocket.algorithm('broadcast', name='forgetful', chunks=lambda p: 1, steps=several, sent=several)\n"
        "def forgetful(schedule):\n"
        "    for _ in range(min(schedule.num_ranks - 1, 1)):\n"
        "      with schedule.step():\n"
        "        schedule.copy(src=schedule.root, dst=(schedule.root + 1) % schedule.num_ranks, chunk=0)\n"
    )

    def main() -> None:
        with hocket.init() as comm:
            with pytest.raises(hocket.errors.VerifyError, match="law 2"):
                comm.broadcast(floats(), algorithm=f"{file}:forgetful")
            comm.barrier()

    run_ranks(main, SIZE, kind="thread")


CALLS: list[Callable[[Comm], Any]] = [
    lambda comm: comm.all_reduce(floats()),
    lambda comm: comm.all_gather(floats()),
    lambda comm: comm.reduce_scatter(floats()),
    lambda comm: comm.broadcast(floats()),
    lambda comm: comm.reduce(floats()),
    lambda comm: comm.barrier(),
    lambda comm: comm.all_reduce(floats(), async_op=True),
    lambda comm: comm.abort("too late"),
    lambda comm: comm.statistics,
]


def test_a_closed_communicator_refuses_all_but_close() -> None:
    def main() -> None:
        with hocket.init() as comm:
            comm.barrier()
        for call in CALLS:
            with pytest.raises(
                CommunicationError,
                match=r"closed; use it inside its `with` block, or make another one with hocket\.init\(\)",
            ):
                call(comm)
        comm.close()
        assert (comm.rank, comm.size) in {(0, 2), (1, 2)}

    run_ranks(main, 2, kind="thread")


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        # One of the two is not enough.
        ({"rank": 0}, ValueError, "give both or neither"),
        ({"size": 2}, ValueError, "give both or neither"),
        # Not numbers.
        ({"rank": "0", "size": 1}, TypeError, "rank is '0'"),
        ({"rank": 0, "size": True}, TypeError, "size is True"),
        # A rank above the size.
        ({"rank": 1, "size": 1}, ValueError, "0 <= rank < size"),
        ({"rank": 0, "size": 0}, ValueError, "0 <= rank < size"),
        # No time at all.
        ({"rank": 0, "size": 1, "timeout": 0}, ValueError, "init: timeout is 0"),
        ({"timeout": "5"}, TypeError, "init: timeout is a str; expected seconds"),
    ],
)
def test_bad_places(keywords: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        hocket.init(**keywords)


def test_numbers_of_other_libraries_and_any_time_will_do() -> None:
    """An int may be too large for a float."""
    with hocket.init(np.int64(0), np.int64(1), timeout=10**400) as comm:
        comm.configure(timeout=10**400)
        comm.barrier()
        comm.barrier(timeout=10**400)
        comm.barrier(async_op=True, timeout=float("inf")).wait(10**400)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_wait_has_a_limit_of_at_least_zero(timeout: float) -> None:
    with hocket.init(0, 1) as comm:
        work = comm.barrier(async_op=True)
        with pytest.raises(ValueError, match="expected seconds of at least 0"):
            work.wait(timeout)
        with pytest.raises(TypeError, match="timeout is 'x'; expected seconds of at least 0"):
            work.wait("x")
        work.wait()


ALONE: dict[str, Callable[[Comm], object]] = {
    "send": lambda comm: comm.send(floats(), 1),
    "sendrecv": lambda comm: comm.sendrecv(floats(), 0, floats(), 1),
    "batch": lambda comm: comm.batch([hocket.Send(floats(), 1)]),
    "send_object": lambda comm: comm.send_object("x", 1),
    "recv_object": lambda comm: comm.recv_object(1),
    "broadcast": lambda comm: comm.broadcast(floats(), root=1),
    "subgroup": lambda comm: comm.subgroup([0, 1]),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_rank_that_runs_alone_is_told_how_to_start_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/farm.py"])
    with hocket.init() as comm:
        with pytest.raises(ValueError, match="from 0 to 0") as caught:
            ALONE[name](comm)
        assert str(caught.value).startswith(f"{name}: ")
        assert str(caught.value).endswith("; this is one rank alone: start more with `hocket run -n 4 -- farm.py`")
        with pytest.raises(ValueError, match="tag from 0 to") as caught:
            comm.send(floats(), 0, tag=-1)
        assert "alone" not in str(caught.value)
    assert "alone" not in run_ranks(tell_refusal, 1, kind="thread", args=(ALONE[name],))[0]


def tell_refusal(call: Callable[[Comm], object]) -> str:
    with hocket.init() as comm, pytest.raises(ValueError, match="from 0 to 0") as caught:
        call(comm)
    return str(caught.value)
