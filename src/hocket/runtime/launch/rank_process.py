"""The program of a process that `run_ranks` started: it calls one function, as one rank.

The parent sends, over the inherited connection, how to prepare the interpreter and what to call; one Outcome comes
back. Only this module uses pickle, and only between a parent and the children that it started.
"""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import process, spawn
from multiprocessing.connection import Connection
from typing import Any

from hocket.runtime.launch.outcomes import Outcome, outcome_of
from hocket.runtime.ranks.environment import discover, rank_scope

_PR_SET_PDEATHSIG = 1

preparing = False  # whether the main module is being imported for its functions: it must not start ranks then


def end_with_parent(parent: int) -> None:
    """Tells the kernel to kill this process when the thread that started it ends, so that no orphan remains."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve(descriptor: int, parent: int) -> None:
    """Runs the whole life of a rank process. It starts with SIGINT blocked, so no Ctrl-C can come before this."""
    _end_silently_on_interrupt()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with_parent(parent)
    with Connection(descriptor) as connection:
        try:
            preparation, call = connection.recv_bytes(), connection.recv_bytes()
        except EOFError:
            return
        outcome = outcome_of(partial(_run, preparation, call), pickle)
        if isinstance(outcome.error, BrokenPipeError):
            # The reader of the output has closed it (for example `| head`). Nothing may be flushed to it at exit.
            sys.stdout = None
        try:
            data = pickle.dumps(outcome)
        except Exception as error:
            text = f"the rank function returned a {type(outcome.value).__qualname__} that cannot be pickled: {error}"
            data = pickle.dumps(Outcome(failed=True, error=TypeError(text)))
        try:
            connection.send_bytes(data)
        except OSError:
            return  # the parent has ended


def _run(preparation: bytes, call: bytes) -> Any:
    """Returns what the function returns."""
    global preparing
    # multiprocessing does the same; meanwhile it also refuses to start processes.
    current: Any = process.current_process()
    preparing = current._inheriting = True
    try:
        spawn.prepare(pickle.loads(preparation))
        function, args = pickle.loads(call)
    finally:
        preparing = False
        del current._inheriting
    with _interruptible(), rank_scope(discover(), whole_process=True):
        return function(*args)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Makes Ctrl-C a KeyboardInterrupt inside the block, as the function expects; outside it ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        _end_silently_on_interrupt()


def _end_silently_on_interrupt() -> None:
    """Gives Ctrl-C its default effect, unless SIGINT is ignored or the program has set its own handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
