"""Ranks that believe that they are on several hosts, on one machine and without root: they meet over loopback.

They are told another identity of their host, which is all that decides which of them share memory. What only a real
network has, such as a cut cable, needs namespaces: then the ranks are on the hosts of a lab (lab.py), and nobody tells
them anything.
"""

import contextlib
import mmap
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import hocket
from hocket.runtime.rendezvous import star
from tests.hosts import namespaces
from tests.hosts.lab import Lab
from tests.waiting import wait_until

KEY = bytes(range(32)).hex()
LIMIT_SECONDS = 60.0


@dataclass
class Outcome:
    """What became of a rank: what its program returned, or raised, or the signal that killed it."""

    value: Any = None
    error: BaseException | None = None
    signal: int = 0
    seconds: float = 0.0  # of the monotonic clock, at the end of its program
    ended: float = 0.0  # and when its process was seen to have ended


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


_marks: "memoryview | None" = None


def mark(comm: hocket.Communicator, number: int) -> None:
    """In a program: says to the process that started the ranks how far this one has come."""
    assert _marks is not None
    _marks[comm.rank] = number


def told() -> int:
    """In a program: the number that was told to the ranks last; 0 before."""
    assert _marks is not None
    return _marks[-1]


def is_told() -> bool:
    """In a program: whether the ranks were told something."""
    return told() != 0


class Job:
    """Ranks that run a program, and what becomes of them. From `with` to the end of its block."""

    def __init__(
        self,
        program: Callable[[hocket.Communicator], Any],
        layout: Sequence[int] = (0, 0, 1, 1),
        *,
        lab: Lab | None = None,
        keys: Sequence[str] | None = None,
        timeout: float = 30.0,
        limit: float = LIMIT_SECONDS,
        before: Callable[[int], None] = lambda rank: None,
    ) -> None:
        """`layout`: by rank, the number of its host. `before` comes before a rank meets others; `limit`: for all."""
        global _marks
        self._program, self._layout, self._lab, self._keys = program, layout, lab, keys
        self._timeout, self._limit, self._before = timeout, limit, before
        self._host = "127.0.0.1" if lab is None else lab.hosts[layout[0]].address
        self._port = free_port()
        self._marks = _marks = memoryview(mmap.mmap(-1, 8 * (len(layout) + 1))).cast("Q")
        self.processes: list[int] = []
        self._ends: list[int] = []
        for rank in range(len(layout)):
            mine, theirs = os.pipe()
            process = os.fork()
            if process == 0:
                os.close(mine)
                self._be(rank, theirs)
            os.close(theirs)
            self.processes.append(process)
            self._ends.append(mine)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.outcomes()

    @property
    def address(self) -> tuple[str, int]:
        """Where rank 0 listens while the ranks meet."""
        return self._host, self._port

    def kill(self, *ranks: int, by: int = signal.SIGKILL) -> float:
        """Send a signal to these ranks; return when."""
        now = time.monotonic()
        for rank in ranks:
            os.kill(self.processes[rank], by)
        return now

    def await_mark(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Return once these ranks, or all, have come so far."""
        wait_until(lambda: all(self._marks[rank] >= number for rank in ranks or range(len(self._layout))))

    def marks(self) -> list[int]:
        """Return how far each rank has come."""
        return list(self._marks[:-1])

    def tell(self, number: int = 1) -> None:
        """From now on, this is what all ranks are told."""
        self._marks[-1] = number

    def num_descriptors(self) -> list[int]:
        """Return how many files and sockets each rank has open."""
        return [len(list(Path(f"/proc/{process}/fd").iterdir())) for process in self.processes]

    def outcomes(self) -> list[Outcome]:
        """Wait until all ranks have ended."""
        found = [_outcome(process, end) for process, end in zip(self.processes, self._ends, strict=True)]
        self.processes, self._ends = [], []
        return found

    def _be(self, rank: int, end: int) -> None:
        outcome, status = Outcome(), 0
        try:
            number = self._layout[rank]
            if self._lab is None:
                star.identity = lambda: f"host {number}"
            else:
                namespaces.enter(self._lab.hosts[number].keeper)
            os.environ["HOCKET_KEY"] = self._keys[rank] if self._keys else KEY
            signal.alarm(int(self._limit))
            self._before(rank)
            size, address = len(self._layout), f"{self._host}:{self._port}"
            with hocket.init(rank, size, address=address, timeout=self._timeout) as comm:
                outcome.value = self._program(comm)
        except BaseException as error:
            error.__traceback__ = None
            outcome.error, status = error, 1
        _tell(outcome, status, end)


def run(program: Callable[[hocket.Communicator], Any], *arguments: Any, **options: Any) -> list[Outcome]:
    """Runs a job to its end; the arguments are those of Job."""
    with Job(program, *arguments, **options) as job:
        return job.outcomes()


def _tell(outcome: Outcome, status: int, end: int) -> NoReturn:
    """Ends the process of a rank."""
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
    found.ended = time.monotonic()
    found.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return found
