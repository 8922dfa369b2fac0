"""The end of the process: who is called then, and which exception brings it about, if nothing has caught it.

Where the interpreter ends itself it calls what atexit has. A process that multiprocessing started ends without that: it
calls multiprocessing's finalizers instead, while the exception is on its way.
"""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_Callback = TypeVar("_Callback", bound=Callable[[BaseException | None], None])

_FIRST, _LAST = 1000, -1000  # among multiprocessing's finalizers; between them it waits for child processes

_callbacks: list[Callable[[BaseException | None], None]] = []
_watched = 0  # the process that calls them as multiprocessing ends it


def at_process_end(callback: _Callback) -> _Callback:
    """The decorator: callback(uncaught exception or None) is called when the process ends, perhaps twice.

    The last one first. Before the first thing that it ends is made in a process, `watch_process` has to be called.
    """
    _callbacks.append(callback)
    atexit.register(lambda: callback(getattr(sys, "last_value", None)))
    return callback


def watch_process() -> None:
    """Calls them, too, where multiprocessing ends this process."""
    global _watched
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched == os.getpid():
        return
    _watched = os.getpid()
    from multiprocessing.util import Finalize  # which such a process has loaded

    Finalize(None, _tell_exception, exitpriority=_FIRST)
    Finalize(None, _end, exitpriority=_LAST)


def _tell_exception() -> None:
    """At once: others may wait for this rank, and child processes for them."""
    error = _uncaught()
    if error is not None:
        _call_all(error)


def _end() -> None:
    if _uncaught() is None:
        threading._shutdown()  # type: ignore[attr-defined]  # what the threads of the program do comes first, as at any end
        _call_all(None)


def _call_all(error: BaseException | None) -> None:
    with contextlib.ExitStack() as calls:  # what one of them raises does not keep the others from being called
        for callback in _callbacks:
            calls.callback(callback, error)


def _uncaught() -> BaseException | None:
    """Of a process that multiprocessing ends."""
    error = sys.exc_info()[1]
    if not isinstance(error, SystemExit):
        return error
    # torch.multiprocessing.spawn catches what its function raises, and exits.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    by_torch = trace is not None and trace.tb_frame.f_globals.get("__name__") == "torch.multiprocessing.spawn"
    return error.__context__ if by_torch else None
