"""Ranks that believe that they are on several hosts, on one machine and without root: they meet over loopback.

They are told another identity of their host, which is all that decides which of them share memory. What only a real
network has, such as a cut cable, needs namespaces: see lab.py.
"""

import contextlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hocket
from hocket.runtime.rendezvous import star

KEY = bytes(range(32)).hex()
LIMIT_SECONDS = 60.0


@dataclass
class Outcome:
    """What became of a rank: what its program returned, or raised, or the signal that killed it."""

    value: Any = None
    error: BaseException | None = None
    signal: int = 0
    seconds: float = 0.0  # of the monotonic clock, at its end


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(
    program: Callable[[hocket.Communicator], Any],
    layout: Sequence[int] = (0, 0, 1, 1),
    *,
    keys: Sequence[str] | None = None,
    timeout: float = 30.0,
    before: Callable[[int], None] = lambda rank: None,
) -> list[Outcome]:
    """Runs the program on as many ranks as `layout` has numbers of hosts; `before` comes before a rank meets others."""
    port, ends = free_port(), []
    for rank, number in enumerate(layout):
        mine, theirs = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(mine)
            _be(
                program, rank, len(layout), f"host {number}", port, keys[rank] if keys else KEY, timeout, before, theirs
            )
        os.close(theirs)
        ends.append((process, mine))
    return [_outcome(process, mine) for process, mine in ends]


def _be(
    program: Any, rank: int, size: int, name: str, port: int, key: str, timeout: float, before: Any, end: int
) -> None:
    outcome, status = Outcome(), 0
    try:
        star.identity = lambda: name
        os.environ["HOCKET_KEY"] = key
        signal.alarm(int(LIMIT_SECONDS))
        before(rank)
        with hocket.init(rank, size, address=f"127.0.0.1:{port}", timeout=timeout) as comm:
            outcome.value = program(comm)
    except BaseException as error:
        error.__traceback__ = None
        outcome.error, status = error, 1
    outcome.seconds = time.monotonic()
    with contextlib.suppress(BaseException):
        try:
            data = pickle.dumps(outcome)
        except Exception:
            traceback.print_exc()
            data = pickle.dumps(Outcome(error=RuntimeError(repr(outcome))))
        with os.fdopen(end, "wb") as pipe:
            pipe.write(data)
        sys.last_value = outcome.error  # type: ignore[assignment]
        import atexit

        atexit._run_exitfuncs()
        sys.stderr.flush()
    os._exit(status)


def _outcome(process: int, end: int) -> Outcome:
    with os.fdopen(end, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(process, 0)
    found: Outcome = pickle.loads(data) if data else Outcome()
    found.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return found
