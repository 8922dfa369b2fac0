"""`hocket run`: starts one command as n ranks, passes their output on, and leaves no process behind.

The ranks, and all processes that they start, are one process group. Its leader is a guard: a fork of this process that
only waits for the end of a pipe whose other end only this process holds. If this process dies, even by SIGKILL, the
guard kills the group. Ctrl-C in the terminal reaches only this process, which passes it on once.
"""

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from types import FrameType

from hocket.runtime.launch.failure_text import FailedRanks
from hocket.runtime.launch.output import Sink, Source
from hocket.runtime.launch.tracebacks import (
    joined_stalls,
    last_traceback,
    reports_another,
    split_at_last,
    split_closing,
)
from hocket.runtime.ranks.cores import bound
from hocket.runtime.ranks.environment import new_address, rank_variables, torchrun_variables
from hocket.runtime.ranks.failure_reports import FailureReports

GRACE_SECONDS = 5.0  # for the other ranks to end by themselves after one has failed
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL
INTERRUPT_SECONDS = 0.3  # from Ctrl-C to SIGTERM, and from SIGTERM to SIGKILL: together well below a second
LEFTOVER_SECONDS = 0.2  # for the last output of processes that left the group but hold a stream open
# A rank goes on after a traceback if it says more after the first time, or still runs after the second one.
TALK_SECONDS = 1.0
HOLD_SECONDS = 10.0
STALL_SECONDS = 0.5  # from a rank's report that it waits to those of the others, which began at about the same time
TIMED_OUT_CODE = 124  # the exit code of timeout(1)

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_command(n: int, command: Sequence[str], *, label: bool = False, timeout: float | None = None) -> int:
    """Runs command as n ranks and returns the exit code for the shell; blocks until all ended.

    Ranks get rank and size from Hocket's environment variables, and from torchrun's. Lines on their standard output and
    error are passed on whole and unchanged, with "[rank] " in front if `label` is true. Only the tracebacks with which
    ranks end are told at the end: equal ones once, that of the first rank that failed last, and one line for those that
    report its failure. Ranks tell whether they fail because of another rank. Those that do not are candidates for the
    first; among them the one that ended first is taken. The exit code is 0 if all ranks returned 0, else the code of
    the first rank that failed (128 + number for a signal). timeout, in seconds, limits the whole run. Rank 0 reads
    standard input unless that is a terminal; the other ranks have no input. Raises OSError if the command cannot be
    started. Call it on the main thread only.
    """
    with _Supervisor(n, label, timeout) as supervisor:
        supervisor.start(command)
        supervisor.watch()
        return supervisor.report()


def _start_guard() -> tuple[int, int]:
    """Starts the guard; returns its process group and the descriptor whose end it waits for."""
    end, hold = os.pipe2(os.O_CLOEXEC)
    process = os.fork()
    if process == 0:
        try:
            os.setpgid(0, 0)
            for number in (*_FORWARDED, signal.SIGTSTP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_IGN)
            # The guard must keep no pipe open, above all not the one whose end it waits for.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(end, 3)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            os.read(3, 1)
            os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(end)
    # Parent and guard both make the group, because either may be first. The second call may be refused.
    with contextlib.suppress(OSError):
        os.setpgid(process, process)
    return process, hold


def _reserved_port() -> socket.socket:
    """Returns a socket that reserves a port of this host: only a program that asks for this number gets it.

    The socket does not listen and reuses addresses, so another socket that reuses addresses can bind the same port.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))  # all addresses, because a host may have no loopback address
    return reserved


class _Supervisor:
    def __init__(self, num_ranks: int, label: bool, timeout: float | None) -> None:
        self.num_ranks, self.label, self.timeout = num_ranks, label, timeout
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sources: list[tuple[Source, Source]] = []  # standard output and error, by rank
        self.sinks = (Sink(1), Sink(2))
        self.running: dict[int, int] = {}  # rank to pidfd
        self.failed: list[int] = []  # ranks that ended with a failure before they were told to, in this order
        self.unended: list[int] = []  # ranks that ran after a traceback when they were told to end
        self.ended_by: signal.Signals | None = None  # the signal to this process, if it ended the run
        self.timed_out: list[int] = []
        self.ending = False  # whether ranks were told to end: their exit codes then count no longer
        self.escalation: list[tuple[float, signal.Signals]] = []  # the signals to send to all, and when
        self.stalls_at: float | None = None  # when reports of a wait that have come are told
        self._address = new_address()
        self._reports = FailureReports(self._address)
        self._port = _reserved_port()
        self.group, self._guard_pipe = _start_guard()

    def __enter__(self) -> "_Supervisor":
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._old_wakeup = signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in _FORWARDED}
        self._old_handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._send(signal.SIGKILL)  # to the guard as well
        for process in self.processes:
            process.wait()
        os.waitpid(self.group, 0)
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        for descriptor in (self._guard_pipe, self._wakeup_read, self._wakeup_write, *self.running.values()):
            os.close(descriptor)
        for source in (source for pair in self.sources for source in pair):
            source.close()
        self._port.close()
        self._reports.close()

    def start(self, command: Sequence[str]) -> None:
        port = self._port.getsockname()[1]
        for rank in range(self.num_ranks):
            if self.ended_by is not None:
                break
            variables = rank_variables(rank, self.num_ranks, self._address)  # reads all cores, so before binding
            with bound(rank, self.num_ranks):
                process = subprocess.Popen(
                    command,
                    stdin=None if rank == 0 and not os.isatty(0) else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # By default Python writes to a pipe in blocks: lines would appear long after they were printed.
                    env={"PYTHONUNBUFFERED": "1", **os.environ}
                    | variables
                    | torchrun_variables(rank, self.num_ranks, port),
                    process_group=self.group,
                )
            self.processes.append(process)
            assert process.stdout is not None and process.stderr is not None
            label = b"[%d] " % rank if self.label else b""
            streams = (os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno()))
            process.stdout.close()
            process.stderr.close()
            output, errors = self.sinks
            self.sources.append((Source(streams[0], output, label), Source(streams[1], errors, label, holds=True)))
            self.running[rank] = os.pidfd_open(process.pid)

    def watch(self) -> None:
        """Passes output on until all ranks have ended and all output is written."""
        if self.timeout is not None:
            timeout_at = time.monotonic() + self.timeout
        leftovers_at: float | None = None
        while True:
            now = time.monotonic()
            if self.timeout is not None and not self.timed_out and self.running and now >= timeout_at:
                self.timed_out = sorted(self.running)
                self._end(0.0, TERMINATE_SECONDS)
            if self.escalation and now >= self.escalation[0][0]:
                if not self.ending:
                    self._hear()
                    self.unended = [rank for rank in self.running if self._holds(rank)]
                    self.ending = True
                self._send(self.escalation.pop(0)[1])
            self._release_held(now)
            self._tell_stalls(now)
            if not self.running:
                if leftovers_at is None:
                    leftovers_at = now + LEFTOVER_SECONDS
                    self._send(signal.SIGKILL)  # to processes that the ranks left behind in their group
                open_sources = any(not source.ended for pair in self.sources for source in pair)
                pending = any(sink.pending for sink in self.sinks)
                if (self.ended_by is not None or not pending) and (not open_sources or now >= leftovers_at):
                    return
            times = [at for at, _ in self.escalation[:1]]
            times += [] if self.stalls_at is None else [self.stalls_at]
            times += [self.sources[rank][1].held_since + HOLD_SECONDS for rank in self._holding()]
            if self.timeout is not None and not self.timed_out:
                times.append(timeout_at)
            if leftovers_at is not None:
                times.append(max(leftovers_at, now + 0.01))
            self._turn(min(times) - now if times else None)

    def _holds(self, rank: int) -> bool:
        return bool(self.sources[rank][1].held)

    def _holding(self) -> list[int]:
        """Returns the ranks whose held output may have to be passed on, because they have not failed."""
        return [
            rank
            for rank in filter(self._holds, range(len(self.sources)))
            if rank in self.running or self.processes[rank].returncode == 0
        ]

    def _release_held(self, now: float) -> None:
        """Passes on what ranks told that go on after it, or have returned 0.

        What they found as they closed waits for the rank whose failure says it.
        """
        for rank in self._holding():
            output, errors = self.sources[rank]
            said = max(output.read_at, errors.read_at)
            goes_on = now >= errors.held_since + HOLD_SECONDS
            if rank in self.running:
                goes_on |= said >= errors.held_since + TALK_SECONDS
            else:
                goes_on |= not split_closing(errors.held.decode(errors="replace"))[0]
            if goes_on:
                errors.release()

    def _tell_stalls(self, now: float) -> None:
        """Tells, a moment after the first report of a wait, all that came, once where ranks wait for the same."""
        found = {rank: errors.stalls for rank, (_, errors) in enumerate(self.sources) if errors.stalls}
        if self.stalls_at is None and found:
            self.stalls_at = now + STALL_SECONDS
        if self.stalls_at is None or now < self.stalls_at:
            return
        self.stalls_at = None
        while found:
            lines = joined_stalls({rank: stalls.pop(0) for rank, stalls in found.items()})
            self.sinks[1].put("".join(f"{line}\n" for line in lines).encode())
            found = {rank: stalls for rank, stalls in found.items() if stalls}

    def report(self) -> int:
        """Prints what failed, and returns the exit code."""
        self._tell_stalls(math.inf)
        self._hear()
        causes = self._causes()
        cause = causes[0] if causes else None
        self._say(self._fold(causes))
        if self.ended_by is not None:
            return 128 + self.ended_by
        if cause is not None:
            code = self.processes[cause if cause in self.failed else self.failed[0]].returncode
            return code if code > 0 else 128 - code
        if self.timed_out:
            ranks = ", ".join(map(str, self.timed_out))
            self._say(f"hocket run: ended after {self.timeout:g} s; ranks still running: {ranks} of {self.num_ranks}\n")
            return TIMED_OUT_CODE
        return 0

    def _causes(self) -> list[int]:
        """Returns the ranks that failed and do not tell that another rank failed before; if all tell it, all of them.

        A rank that fails by itself may end last: it may not even end before it is told to.
        """
        if not self.failed:
            return []
        by_themselves = [rank for rank in self._reports.by_themselves if self.processes[rank].returncode != 0]
        for ranks in ([*dict.fromkeys([*self.failed, *by_themselves])], self.unended):
            causes = [rank for rank in ranks if not self._follows(rank)]
            if causes:
                return causes
        return self.failed

    def _follows(self, rank: int) -> bool:
        said = last_traceback(self.sources[rank][1].tail.decode(errors="replace"))
        return self._reports.follows(rank) or reports_another(said)

    def _fold(self, causes: Sequence[int]) -> str:
        """Returns what to say of the tracebacks with which ranks ended, and passes on what else they wrote."""
        tracebacks: dict[int, str] = {}
        closing: dict[int, str] = {}
        following = {
            rank for rank, process in enumerate(self.processes) if process.returncode != 0 and self._follows(rank)
        }
        for rank in filter(self._holds, range(len(self.sources))):
            source = self.sources[rank][1]
            closing[rank], rest = split_closing(source.take())
            if self.processes[rank].returncode != 0:
                before, traceback, after = split_at_last(rest)
                tracebacks |= {rank: traceback} if traceback else {}
                rest = before + after
            source.put(rest.encode())
        return FailedRanks(
            self.num_ranks,
            tracebacks,
            closing,
            causes,
            following=following,
            suspects=self._reports.suspects,
            ways={rank: self._way(rank) for rank in causes},
            returned=[rank for rank, process in enumerate(self.processes) if process.returncode == 0],
            label=self.label,
        ).text()

    def _way(self, rank: int) -> str:
        """Returns how a rank that failed ended."""
        code = self.processes[rank].returncode
        if rank not in self.failed:
            return "and did not end by itself"
        return f"with exit code {code}" if code > 0 else f"with {_signal_name(-code)}"

    def _turn(self, seconds: float | None) -> None:
        """Waits at most `seconds` for something to do, and does it."""
        poll = select.poll()
        actions: dict[int, Callable[[], None]] = {self._wakeup_read: self._drain_wakeup}
        actions[self._reports.fileno()] = self._hear
        for descriptor in actions:
            poll.register(descriptor, select.POLLIN)
        for rank, pidfd in self.running.items():
            actions[pidfd] = lambda rank=rank: self._on_exit(rank)  # type: ignore[misc]
            poll.register(pidfd, select.POLLIN)
        for source in (source for pair in self.sources for source in pair):
            if not source.ended and not source.sink.full:
                actions[source.descriptor] = source.read
                poll.register(source.descriptor, select.POLLIN)
        for sink in self.sinks:
            if sink.pending:
                actions[sink.descriptor] = sink.write
                poll.register(sink.descriptor, select.POLLOUT)
        for descriptor, _ in poll.poll(None if seconds is None else max(0.0, seconds) * 1000 + 1):
            actions[descriptor]()
        if self.sinks[0].broken and self.ended_by is None:
            # The reader of the output has closed it (for example `| head`): end as a process that SIGPIPE ends.
            self.ended_by = signal.SIGPIPE
            self._end(0.0, TERMINATE_SECONDS)

    def _hear(self) -> None:
        self._reports.read(self.num_ranks, ending=self.ending)

    def _on_exit(self, rank: int) -> None:
        os.close(self.running.pop(rank))
        if self.processes[rank].wait() != 0 and not self.ending:
            self.failed.append(rank)
            if not self.escalation:
                self._end(GRACE_SECONDS, TERMINATE_SECONDS)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.ending = True
        if self.ended_by is not None:
            self._send(signal.SIGKILL)
            return
        self.ended_by = signal.Signals(number)
        self._send(self.ended_by)
        if number == signal.SIGINT:
            self._end(INTERRUPT_SECONDS, INTERRUPT_SECONDS)
        else:
            self._end(GRACE_SECONDS, TERMINATE_SECONDS)

    def _on_stop(self, _number: int, _: FrameType | None) -> None:
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send(signal.SIGCONT)

    def _end(self, terminate_after: float, kill_after: float) -> None:
        now = time.monotonic()
        self.escalation = [
            (now + terminate_after, signal.SIGTERM),
            (now + terminate_after + kill_after, signal.SIGKILL),
        ]

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def _drain_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_read, 64)

    def _say(self, text: str) -> None:
        self.sinks[1].put(text.encode())
        # After a signal, the reader may have ended, too.
        until = None if self.ended_by is None else time.monotonic() + LEFTOVER_SECONDS
        while self.sinks[1].pending and (until is None or time.monotonic() < until):
            self._turn(None if until is None else until - time.monotonic())


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
