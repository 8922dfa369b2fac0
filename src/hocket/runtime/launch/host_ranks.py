"""The ranks of one host, as child processes: starts one command for each, reads their output, waits for their end.

They are one guarded process group, with all processes that they start. What they do is told to a listener: the
supervisor on one host, or the agent that tells it to a supervisor on another host.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from hocket.runtime.launch.guarded_group import GuardedGroup
from hocket.runtime.ranks.cores import bound
from hocket.runtime.ranks.environment import rank_variables, torchrun_variables
from hocket.runtime.ranks.failure_reports import FailureReport, ReportSocket
from hocket.runtime.variables import KEY_FD

LEFTOVER_SECONDS = 0.2  # for the last output of processes that left the group but hold a stream open
_MAX_READ_BYTES = 65536

Wait = tuple[int, int, Callable[[], None]]
"""A descriptor, the events of select.poll that are waited for there, and what to call then."""


class RanksListener(Protocol):
    """What hears of ranks. stream: 1 for standard output, 2 for standard error."""

    def is_full(self, stream: int) -> bool:
        """Returns whether output should stay unread."""

    def on_output(self, rank: int, stream: int, data: bytes) -> None:
        """Takes output. data: as it was read, in any portions; b"" at the end of the stream."""

    def on_report(self, report: FailureReport) -> None:
        """Takes what a rank tells of its failure."""

    def on_exit(self, rank: int, code: int) -> None:
        """Takes the exit code of a rank, or minus the number of the signal that ended it."""


class HostRanks:
    """The ranks `ranks` of a job of `size`. No process remains after `close`, or after the end of this process.

    running: the ranks that run. Call `start` once, and `pass_time` and what `waits` returns until `finished`.
    """

    def __init__(self, ranks: range, size: int) -> None:
        self.ranks, self.size = ranks, size
        self.running: dict[int, int] = {}  # rank to pidfd
        self.finished = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: dict[tuple[int, int], int] = {}  # rank and stream to descriptor, until its end
        self._told_to_end = False
        self._leftovers_at: float | None = None  # when output of what ranks left behind is no longer waited for
        self._reports: ReportSocket | None = None
        self._group = GuardedGroup()

    def start(
        self,
        listener: RanksListener,
        command: Sequence[str],
        address: str,
        store: tuple[str, int],
        *,
        key: bytes | None = None,
        variables: Mapping[str, str] | None = None,
        reads_input: bool = False,
    ) -> None:
        """Starts the command for each rank, bound to its share of the cores. OSError if that is impossible.

        address: where the ranks meet; store: host and port of torchrun's store; key: what each rank can read from its
        HOCKET_KEY_FD; variables: more of the environment; reads_input: whether the first rank has standard input.
        """
        self._listener = listener
        self._reports = ReportSocket(address, self.ranks.start)
        for rank in self.ranks:
            if self._told_to_end:
                break
            place = (rank - self.ranks.start, len(self.ranks))
            assigned = rank_variables(rank, self.size, address, place)  # reads all cores, so before binding
            with _readable(key) as (descriptors, key_variables), bound(*place):
                process = subprocess.Popen(
                    command,
                    stdin=None if reads_input and place[0] == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # By default Python writes to a pipe in blocks: lines would appear long after they were printed.
                    env={"PYTHONUNBUFFERED": "1", **os.environ}
                    | dict(variables or {})
                    | assigned
                    | key_variables
                    | torchrun_variables(rank, self.size, store, place),
                    process_group=self._group.number,
                    pass_fds=descriptors,
                )
            self._processes[rank] = process
            assert process.stdout is not None and process.stderr is not None
            for stream, file in ((1, process.stdout), (2, process.stderr)):
                self._outputs[rank, stream] = os.dup(file.fileno())
                file.close()
            self.running[rank] = os.pidfd_open(process.pid)

    def waits(self) -> Iterator[Wait]:
        """Yields what to wait for."""
        if self._reports is not None:
            yield self._reports.fileno(), select.POLLIN, self.hear
        for rank, pidfd in self.running.items():
            yield pidfd, select.POLLIN, partial(self._end, rank)
        for (rank, stream), descriptor in self._outputs.items():
            if not self._listener.is_full(stream):
                yield descriptor, select.POLLIN, partial(self._read, rank, stream)

    def pass_time(self, now: float) -> float | None:
        """Does what is due, and returns when to call it again at the latest."""
        if self.running or self.finished:
            return None
        if self._leftovers_at is None:
            self._leftovers_at = now + LEFTOVER_SECONDS
            self._group.send(signal.SIGKILL)  # to processes that the ranks left behind in their group
        self.finished = not self._outputs or now >= self._leftovers_at
        return max(self._leftovers_at, now + 0.01)

    def hear(self) -> None:
        """Takes the reports of ranks that have come."""
        for report in self._reports.read() if self._reports is not None else ():
            if report.rank in self.ranks:
                self._listener.on_report(report)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all ranks and to what they have started."""
        self._told_to_end |= number not in (signal.SIGSTOP, signal.SIGCONT)
        self._group.send(number)

    def place_of(self, rank: int) -> str:
        """Returns what to say of the place of a rank: nothing, as all are here."""
        return ""

    def close(self) -> None:
        """Ends all that still runs."""
        self._group.send(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._group.close()
        for descriptor in (*self.running.values(), *self._outputs.values()):
            os.close(descriptor)
        if self._reports is not None:
            self._reports.close()

    def _read(self, rank: int, stream: int) -> None:
        data = os.read(self._outputs[rank, stream], _MAX_READ_BYTES)
        if not data:
            os.close(self._outputs.pop((rank, stream)))
        self._listener.on_output(rank, stream, data)

    def _end(self, rank: int) -> None:
        self.hear()
        os.close(self.running.pop(rank))
        self._listener.on_exit(rank, self._processes[rank].wait())


def reserved_port() -> socket.socket:
    """Returns a socket that reserves a port of this host: only a program that asks for this number gets it.

    The socket does not listen and reuses addresses, so another socket that reuses addresses can bind the same port.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))  # all addresses, because a host may have no loopback address
    return reserved


def key_descriptor(key: bytes) -> int:
    """Returns a descriptor from which the key can be read.

    It is a file in memory, not a pipe: a shell script, for example, may start two programs that read it in turn.
    """
    descriptor = os.memfd_create("hocket-key")
    os.write(descriptor, key)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@contextlib.contextmanager
def _readable(key: bytes | None) -> Iterator[tuple[list[int], dict[str, str]]]:
    """Yields the descriptor from which a child reads the key, and its variable; nothing without a key."""
    if key is None:
        yield [], {}
        return
    descriptor = key_descriptor(key)
    try:
        yield [descriptor], {KEY_FD: str(descriptor)}
    finally:
        os.close(descriptor)
