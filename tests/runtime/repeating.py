"""The harness of repeated calls: they skip Python, and must do exactly what the Python method does."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hocket
from hocket.runtime.communicator.calls import explained

Comm = hocket.Communicator
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What one call is given, by position and by name."""

SIZE = 2  # ranks, unless a test has another number
SIZES = (0, 1, 6, 8, 2048, 2049, 8192, 8193, 16_385, 20_000, 65_536, 65_537, 200_000, 300_000, 9 << 20)
"""Bytes of a message, on both sides of each limit at which another way of sending begins."""

# Each call through Python runs one of these methods. The number is the position of the call's name in its arguments.
_NAME_AT = {"_launch": 0, "_exchange": 1, "_begin": 1}


def count_misses(comm: Comm, method: str = "_launch") -> list[str]:
    """Returns a list to which each call of this communicator that goes through Python adds its name from now on."""
    missed: list[str] = []
    original = getattr(comm, method)

    def counted(*args: Any, **keywords: Any) -> Any:
        missed.append(args[_NAME_AT[method]])
        return original(*args, **keywords)

    setattr(comm, method, counted)
    return missed


def by_python(comm: Comm, name: str) -> Callable[..., Any]:
    """Returns the Python method of this name, without the cache of calls."""
    return functools.partial(explained(getattr(Comm, name).__wrapped__), comm)


def outcome(call: Callable[..., Any], arguments: Arguments) -> Any:
    """Returns a call's error, or: which of its arguments it returns, what else, their contents then, and its result.

    A receive returns an array, its source and its tag; source and tag are the second part.
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
    """Returns small numbers that differ by rank."""
    return (np.arange(count) % 5 + rank + 1).astype(dtype)


def frozen(x: Any) -> Any:
    """Returns the same array, now read-only."""
    x.flags.writeable = False
    return x


def repeat(exchange: Callable[[Comm, Any, Any, int], None], method: str, names: Sequence[str]) -> None:
    """Exchanges x for y on two ranks, four times at every size; only the first calls may go through Python."""
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
    """Runs each call in its own thread; none may fail."""
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
    """Rank 1 sends only after a message from a thread of rank 0, which starts while rank 0 waits."""
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
