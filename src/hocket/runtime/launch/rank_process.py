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
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import process, spawn
from multiprocessing.connection import Connection
from typing import Any

from hocket.runtime.ranks.environment import discover, rank_scope
from hocket.runtime.ranks.failure_reports import follows_from_another

_PR_SET_PDEATHSIG = 1

preparing = False  # whether the main module is being imported for its functions: it must not start ranks then


@dataclass
class Outcome:
    """How a rank function ended: with a value, or with an error (None if it does not survive pickling) and its text.

    follows: whether the error only follows from the failure of another rank.
    """

    value: Any = None
    failed: bool = False
    interrupted: bool = False
    error: BaseException | None = None
    text: str = ""
    follows: bool = False


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
        outcome = _call(preparation, call)
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


def _call(preparation: bytes, call: bytes) -> Outcome:
    global preparing
    try:
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
            return Outcome(value=function(*args))
    except KeyboardInterrupt:
        return Outcome(failed=True, interrupted=True)
    except SystemExit as error:
        if error.code in (None, 0):
            return Outcome()
        text = f"the rank function called sys.exit({error.code!r})"
        return Outcome(failed=True, error=RuntimeError(text), follows=follows_from_another(error))
    except BaseException as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        return Outcome(failed=True, error=_transferable(error), text=text, follows=follows_from_another(error))


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


def _transferable(error: BaseException) -> BaseException | None:
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error if type(copy) is type(error) else None
