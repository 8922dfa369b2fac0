"""The harness of repeated calls: one like a call before skips Python, and must do just what the Python method does."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hocket

Comm = hocket.Communicator
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What one call is given, by position and by name."""

SIZE = 2  # ranks, where a test does not say another number
SIZES = (0, 1, 6, 8, 2048, 2049, 8192, 8193, 16_385, 20_000, 65_536, 65_537, 200_000, 300_000, 9 << 20)
"""Bytes of a message, on both sides of the limits between the ways in which it can travel."""

# Each call that goes through Python comes to one of these methods; this is where its arguments have the call's name.
_NAME_AT = {"_launch": 0, "_exchange": 1, "_begin": 1}


def count_misses(comm: Comm, method: str = "_launch") -> list[str]:
    """The names of the calls of this communicator that go through Python from now on; grows with each of them."""
    missed: list[str] = []
    original = getattr(comm, method)

    def counted(*args: Any, **keywords: Any) -> Any:
        missed.append(args[_NAME_AT[method]])
        return original(*args, **keywords)

    setattr(comm, method, counted)
    return missed


def by_python(comm: Comm, name: str) -> Callable[..., Any]:
    """The Python method of this name, past what is remembered of calls."""
    found: Callable[..., Any] = getattr(Comm, name).__wrapped__.__get__(comm)
    return found


def outcome(call: Callable[..., Any], arguments: Arguments) -> Any:
    """How a call refuses its arguments; or which of them it returns, what else, what they then hold, and its result.

    A receive returns an array with its source and tag; those two are the second part.
    """
    args, keywords = arguments
    try:
        result = call(*args, **keywords)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    array, *others = result if isinstance(result, tuple) else (result,)
    given = [*args, *keywords.values()]
    same = [at for at, one in enumerate(given) if array is not None and one is array]
    return (
        same,
        tuple(others),
        [np.asarray(one).tolist() for one in given if hasattr(one, "dtype")],
        np.asarray(array).tolist(),
    )


def values(rank: int, count: int, dtype: str = "float32") -> Any:
    """Small numbers that differ by rank."""
    return (np.arange(count) % 5 + rank + 1).astype(dtype)


def frozen(x: Any) -> Any:
    """The same array, which nobody may write from now on."""
    x.flags.writeable = False
    return x


def repeat(exchange: Callable[[Comm, Any, Any, int], None], method: str, names: Sequence[str]) -> None:
    """On two ranks: exchange x for y at every size, four times; only the first time these calls go through Python."""
    with hocket.init() as comm:
        missed = count_misses(comm, method)
        for size in SIZES:
            for turn in range(4):
                x, y = np.full(size, turn + comm.rank, "u1"), np.zeros(size, "u1")
                exchange(comm, x, y, 100 + turn)
                assert (y == turn + 1 - comm.rank).all()
                assert sorted(missed) == sorted(names)
            missed.clear()


def in_threads(*calls: Callable[[], None]) -> None:
    """Run each in a thread of its own; none may fail."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors


def wait_beside_a_thread(
    send: Callable[[Comm, Any, int], None], begin: Callable[[Comm, Any, int], Callable[[], Any]]
) -> None:
    """Rank 1 sends only when it has heard from a thread of rank 0 that starts while rank 0 waits."""
    with hocket.init() as comm:
        beside, x = comm.dup(), np.zeros(1)
        for tag in range(2):  # the second time without Python
            if comm.rank == 1:
                beside.recv(np.zeros(1), 0)
                send(comm, x, tag)
                continue
            wait = begin(comm, x, tag)
            thread = threading.Thread(target=lambda: beside.send(np.zeros(1), 1))
            thread.start()
            wait()
            thread.join()
