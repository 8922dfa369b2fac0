"""Objects between ranks: what arrives, what stays apart from arrays, what is refused."""

import threading
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveTimeout
from hocket.runtime import run_ranks
from hocket.runtime.communicator.objects import _HEAD_BYTES, _IN_HEAD

KINDS = ("process", "thread")
BIG = np.arange(70_000, dtype="float32")
OBJECTS: list[Any] = [
    {"lr": 0.1, "steps": [1, 2, 3]},
    None,
    "x" * (_IN_HEAD - 30),  # about as long as what travels at once
    "x" * (4 * _HEAD_BYTES),
    list(range(5_000)),
    BIG,
    BIG[::3],  # not contiguous
    {"one": BIG, "two": [BIG[:100], BIG.reshape(7, -1)], "none": np.zeros((0, 3))},
]


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("it holds a lock")


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return bool(found.dtype == expected.dtype and found.shape == expected.shape and (found == expected).all())
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def move_everything() -> None:
    comm = hocket.init()
    rank, size, last = comm.rank, comm.size, comm.size - 1
    for x in OBJECTS:
        assert same(comm.broadcast_object(x if rank == last else "ignored", root=last), x)
        expected = [(other, x) for other in range(size)]
        assert same(comm.all_gather_object((rank, x)), expected)
        gathered = comm.gather_object((rank, x), root=last)
        assert same(gathered, expected) if rank == last else gathered is None
        assert same(comm.scatter_object(expected if rank == last else None, root=last), expected[rank])
        for tag in (0, 7) if size > 1 else ():
            if rank == 0:
                comm.send_object(x, 1, tag=tag)
            if rank == 1:
                found, source, found_tag = comm.recv_object(hocket.ANY_SOURCE if tag else 0, tag=tag)
                assert same(found, x) and (source, found_tag) == (0, tag)
    comm.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_objects_arrive_as_they_were_sent(size: int, kind: str) -> None:
    run_ranks(move_everything, size, kind=kind)


def test_what_is_received_may_be_changed() -> None:
    def main() -> None:
        comm = hocket.init()
        found = comm.broadcast_object(BIG.copy() if comm.rank == 0 else None)
        found += comm.rank
        assert found.flags.writeable and (found == BIG + comm.rank).all()

    run_ranks(main, 3, kind="thread")


def test_messages_of_arrays_and_of_objects_never_mix() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            works = [comm.isend(np.full(_HEAD_BYTES, 128, np.uint8), 1), comm.isend(np.arange(3.0), 1)]
            comm.send_object({"an": "object"}, 1)
            for work in works:
                work.wait()
        else:
            assert comm.recv_object() == ({"an": "object"}, 0, 0)
            taken, _, _ = comm.recv(np.empty(_HEAD_BYTES, np.uint8))
            assert (taken == 128).all()
            assert comm.recv(np.empty(3), tag=hocket.ANY_TAG)[0].tolist() == [0.0, 1.0, 2.0]

    run_ranks(main, 2, kind="thread")


def test_several_threads_receive_large_objects_at_once() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            for number in range(12):
                comm.send_object((number, np.full(20_000, number)), 1, tag=3)
            return
        found: list[int] = []

        def receive() -> None:
            for _ in range(3):
                (number, array), _, _ = comm.recv_object(tag=3)
                assert (array == number).all()
                found.append(number)

        threads = [threading.Thread(target=receive) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(12))

    run_ranks(main, 2, kind="thread")


def test_what_cannot_be_moved_is_refused_before_anything_is_sent() -> None:
    with hocket.init(0, 1) as comm:
        for call in (
            comm.broadcast_object,
            comm.all_gather_object,
            comm.gather_object,
            lambda x: comm.scatter_object([x]),
        ):
            with pytest.raises(TypeError, match="can be pickled, found a Unpicklable: it holds a lock"):
                call(Unpicklable())
            with pytest.raises(TypeError, match="can be pickled, found a function"):
                call(lambda: None)
        with pytest.raises(ValueError, match="expected a sequence of 1 objects at the root, found 2 of them"):
            comm.scatter_object([1, 2])
        with pytest.raises(ValueError, match="expected a sequence of 1 objects at the root, found a NoneType"):
            comm.scatter_object()
        with pytest.raises(ValueError, match="expected tag from 0"):
            comm.send_object(1, 0, tag=hocket.ANY_TAG)
        with pytest.raises(ValueError, match="expected dst from 0 to 0, found 3"):
            comm.send_object(1, 3)
        with hocket.stream(hocket.Stream()), pytest.raises(RuntimeError, match="because it blocks"):
            comm.broadcast_object(1)
        assert comm.broadcast_object(5) == 5


def test_an_object_that_never_comes_is_a_time_out() -> None:
    with hocket.init(0, 1) as comm, pytest.raises(CollectiveTimeout):
        comm.recv_object(0, timeout=0.05)


def test_no_array_call_unpickles_anything() -> None:
    """Bytes that would end the process, if somebody unpickled them, are only bytes to every call of arrays."""

    def main() -> None:
        comm = hocket.init()
        evil_bytes = np.frombuffer(b"cos\n_exit\n(I17\ntR.".ljust(_HEAD_BYTES, b"\0"), np.uint8).copy()
        assert (comm.broadcast(evil_bytes.copy()) == evil_bytes).all()
        assert (comm.all_gather(evil_bytes)[:_HEAD_BYTES] == evil_bytes).all()

    run_ranks(main, 2, kind="thread")
