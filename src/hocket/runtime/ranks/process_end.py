"""Callbacks for the end of the process; they get the uncaught exception that ended it, if there was one.

The interpreter calls the functions of atexit when it ends. A process that multiprocessing started does not: it calls
multiprocessing's finalizers instead, while the exception still propagates.
"""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from hocket import _core

_Callback = TypeVar("_Callback", bound=Callable[[BaseException | None], None])

_FIRST, _LAST = 1000, -1000  # priorities of multiprocessing's finalizers; between them it waits for child processes

_fails = False  # whether what was found at the end makes it a failure
_callbacks: list[Callable[[BaseException | None], None]] = []
_watched = 0  # the id of the process whose finalizers call them


def at_process_end(callback: _Callback) -> _Callback:
    """Registers callback(uncaught exception or None) for the end of the process; it may be called twice.

    The last registered is called first. A process calls `watch_process` before it makes anything that a callback ends.
    """
    _callbacks.append(callback)
    atexit.register(lambda: callback(getattr(sys, "last_value", None)))
    return callback


def fail_process() -> None:
    """Makes the process end with exit code 1 if it would end with 0."""
    global _fails
    _fails = True
    _core.fail_at_exit()


def watch_process() -> None:
    """Makes sure that the callbacks also run if multiprocessing ends this process."""
    global _watched
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched == os.getpid():
        return
    _watched = os.getpid()
    from multiprocessing.util import Finalize  # such a process has loaded it already

    Finalize(None, _tell_exception, exitpriority=_FIRST)
    Finalize(None, _end, exitpriority=_LAST)


def _tell_exception() -> None:
    """Calls the callbacks with the exception at once: other ranks may wait for this rank, and its children for them."""
    error = _uncaught()
    if error is not None:
        _call_all(error)


def _end() -> None:
    if _uncaught() is None:
        threading._shutdown()  # type: ignore[attr-defined]  # the threads of the program end first, as at any end
        _call_all(None)
        if _fails and not getattr(sys.exc_info()[1], "code", None):
            raise SystemExit(1)  # multiprocessing takes its exit code


def _call_all(error: BaseException | None) -> None:
    with contextlib.ExitStack() as calls:  # if one raises, the others are called all the same
        for callback in _callbacks:
            calls.callback(callback, error)


def _uncaught() -> BaseException | None:
    """Returns the uncaught exception of a process that multiprocessing ends, None if there is none."""
    error = sys.exc_info()[1]
    if not isinstance(error, SystemExit):
        return error
    # torch.multiprocessing.spawn catches what its function raises, and exits.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    by_torch = trace is not None and trace.tb_frame.f_globals.get("__name__") == "torch.multiprocessing.spawn"
    return error.__context__ if by_torch else None
