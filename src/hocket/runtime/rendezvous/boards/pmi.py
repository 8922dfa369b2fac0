"""A conversation with the process manager that started an MPI job: PMI-1, one line of text for each side in turn.

A line is `cmd=NAME` and other words NAME=VALUE. Every wait has a limit, and a line a length; what comes otherwise is a
PmiError.
"""

import atexit
import contextlib
import os
import select
import sys
import time

from hocket.runtime.rendezvous.boards.board import ANSWER_SECONDS, shortened

_MAX_LINE_BYTES = 4096
_FAREWELL_SECONDS = 2.0


class PmiError(Exception):
    """The manager did not do what was expected of it. Attributes: found, expected."""

    def __init__(self, found: str, expected: str) -> None:
        self.found, self.expected = found, expected


def talk_at(descriptor: int) -> "PmiTalk":
    """Returns this process's conversation at the descriptor; the first call begins it."""
    if descriptor not in _talks:
        _talks[descriptor] = PmiTalk(descriptor)
    return _talks[descriptor]


class PmiTalk:
    """What one process and its manager say to each other.

    meetings: how many this process has had; in_barrier: whether it waits in the barrier of one. name: of the place for
    keys and values that all ranks share.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._process = descriptor, os.getpid()
        self._identity = _identity(descriptor)
        self._heard = b""
        self.meetings = 0
        self.in_barrier = False
        self.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")
        atexit.register(self._say_farewell)
        self.name = self.ask("get_my_kvsname", "my_kvsname").get("kvsname", "")

    @property
    def key(self) -> str:
        """The key of the meeting that comes next."""
        return f"hocket-{self.meetings}"

    def ask(self, said: str, expected: str) -> dict[str, str]:
        """Returns the fields of the answer to one line."""
        self._say(said)
        answer = self._hear(ANSWER_SECONDS, expected)
        if answer is None:
            raise PmiError(f"no answer to {said.split()[0]} within {ANSWER_SECONDS:g} s", "one at once")
        return answer

    def enter_barrier(self, seconds: float) -> bool:
        """Returns whether all ranks have come within the seconds; if not, this one waits there the next time."""
        if not self.in_barrier:
            self._say("barrier_in")
            self.in_barrier = True
        self.in_barrier = self._hear(seconds, "barrier_out") is None
        return not self.in_barrier

    def _say(self, what: str) -> None:
        if _identity(self._descriptor) != self._identity:
            raise PmiError("another file at the descriptor", "that of the manager")
        if not _ready(self._descriptor, select.POLLOUT, ANSWER_SECONDS):
            raise PmiError(f"no room for {what.split()[0]} within {ANSWER_SECONDS:g} s", "a reader")
        os.write(self._descriptor, f"cmd={what}\n".encode())

    def _hear(self, seconds: float, expected: str) -> dict[str, str] | None:
        """Returns the fields of the next line, None if it does not come within the seconds."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._heard:
            if len(self._heard) > _MAX_LINE_BYTES:
                raise PmiError(f"a line of more than {_MAX_LINE_BYTES} bytes", f"cmd={expected}")
            if not _ready(self._descriptor, select.POLLIN, max(0.0, deadline - time.monotonic())):
                return None
            more = os.read(self._descriptor, _MAX_LINE_BYTES)
            if not more:
                raise PmiError("its end", f"cmd={expected}")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        fields = dict(word.partition("=")[::2] for word in line.decode("latin-1").split())
        answer, code = fields.get("cmd", ""), fields.get("rc", "0")
        if answer != expected or code != "0":  # a message has no other part of the line, which may hold a key
            raise PmiError(f"cmd={shortened(answer)} rc={shortened(code)}", f"cmd={expected!r} rc='0'")
        return fields

    def _say_farewell(self) -> None:
        mpi = sys.modules.get("mpi4py.MPI")
        if os.getpid() == self._process and not (mpi is not None and mpi.Is_initialized()):
            with contextlib.suppress(OSError, PmiError):
                self._say("finalize")
                self._hear(_FAREWELL_SECONDS, "finalize_ack")


_talks: dict[int, PmiTalk] = {}  # of this process, by descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000))
