"""`hocket run`: watches ranks, passes their output on, tells which failed first, and ends them all.

The ranks are processes of this host (`host_ranks`), or of several hosts (`remote_ranks`). Ctrl-C in the terminal
reaches only this process, which passes it on once.
"""

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import FrameType
from typing import Protocol

from hocket.runtime.launch.failure_text import FailedRanks
from hocket.runtime.launch.guarded_group import FORWARDED
from hocket.runtime.launch.host_ranks import LEFTOVER_SECONDS, HostRanks, Wait, reserved_port
from hocket.runtime.launch.output import Sink, Source
from hocket.runtime.launch.tracebacks import (
    joined_stalls,
    last_traceback,
    reports_another,
    split_at_last,
    split_closing,
)
from hocket.runtime.ranks.environment import new_address
from hocket.runtime.ranks.failure_reports import FailureReport, FailureReports

GRACE_SECONDS = 5.0  # for the other ranks to end by themselves after one has failed
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL
INTERRUPT_SECONDS = 0.3  # from Ctrl-C to SIGTERM, and from SIGTERM to SIGKILL: together well below a second
# A rank goes on after a traceback if it says more after the first time, or still runs after the second one.
TALK_SECONDS = 1.0
HOLD_SECONDS = 10.0
STALL_SECONDS = 0.5  # from a rank's report that it waits to those of the others, which began at about the same time
TIMED_OUT_CODE = 124  # the exit code of timeout(1)


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
    ranks = HostRanks(range(n), n)
    with reserved_port() as port, Supervisor(ranks, n, label=label, timeout=timeout) as supervisor:
        store = ("127.0.0.1", port.getsockname()[1])
        ranks.start(supervisor, command, new_address(), store, reads_input=not os.isatty(0))
        return supervisor.run()


class SupervisedRanks(Protocol):
    """Ranks that were started and tell a supervisor what they do."""

    @property
    def finished(self) -> bool:
        """Returns whether all have ended and no output of them is to come."""

    @property
    def running(self) -> Collection[int]:
        """Returns the ranks that have not ended."""

    def waits(self) -> Iterable[Wait]:
        """Yields what to wait for."""

    def pass_time(self, now: float) -> float | None:
        """Does what is due, and returns when to call it again at the latest."""

    def hear(self) -> None:
        """Takes what ranks have told of their failures up to now."""

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all ranks and to what they have started. A handler of a signal may call it, too."""

    def place_of(self, rank: int) -> str:
        """Returns what to say of the place of a rank, such as " on node1"."""

    def close(self) -> None:
        """Ends all that still runs."""


class Supervisor:
    """Watches the ranks of one run and says how they end. It hears of them, and closes them at the end.

    num_ranks, label and timeout: as for `run_command`.
    """

    def __init__(self, ranks: SupervisedRanks, num_ranks: int, *, label: bool, timeout: float | None) -> None:
        self.ranks, self.num_ranks, self.label, self.timeout = ranks, num_ranks, label, timeout
        self.sinks = (Sink(1), Sink(2))
        self.sources = [self._sources(rank) for rank in range(num_ranks)]
        self.codes: dict[int, int] = {}  # the exit codes of ranks that have ended
        self.failed: list[int] = []  # ranks that ended with a failure before they were told to, in this order
        self.unended: list[int] = []  # ranks that ran after a traceback when they were told to end
        self.lost: list[str] = []  # what is told of hosts whose ranks this process could not watch to their end
        self.lost_code: int | None = None  # the exit code, if a host was lost before any rank failed
        self.refused: tuple[str, int] | None = None  # why the command did not start on a host, and the exit code
        self.ended_by: signal.Signals | None = None  # the signal to this process, if it ended the run
        self.timed_out: list[int] = []
        self.ending = False  # whether ranks were told to end: their exit codes then count no longer
        self.stop_asked = False  # whether this process and the ranks are to stop, by Ctrl-Z
        self.escalation: list[tuple[float, signal.Signals]] = []  # the signals to send to all, and when
        self.stalls_at: float | None = None  # when reports of a wait that have come are told
        self._reports = FailureReports()

    def _sources(self, rank: int) -> tuple[Source, Source]:
        """Returns standard output and error of a rank."""
        label = b"[%d] " % rank if self.label else b""
        return Source(self.sinks[0], label), Source(self.sinks[1], label, holds=True)

    def __enter__(self) -> "Supervisor":
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._old_wakeup = signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in FORWARDED}
        self._old_handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)
        return self

    def __exit__(self, *_: object) -> None:
        self.ranks.close()
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        for descriptor in (self._wakeup_read, self._wakeup_write):
            os.close(descriptor)

    def run(self) -> int:
        """Blocks until all ranks have ended, prints what failed, and returns the exit code."""
        self._watch()
        return self._report()

    def _watch(self) -> None:
        """Passes output on until all ranks have ended and all output is written."""
        if self.timeout is not None:
            timeout_at = time.monotonic() + self.timeout
        while self.refused is None:
            now = time.monotonic()
            if self.timeout is not None and not self.timed_out and self.ranks.running and now >= timeout_at:
                self.timed_out = sorted(self.ranks.running)
                self._end(0.0, TERMINATE_SECONDS)
            if self.escalation and now >= self.escalation[0][0]:
                if not self.ending:
                    self.ranks.hear()
                    self.unended = [rank for rank in self.ranks.running if self._holds(rank)]
                    self.ending = True
                self.ranks.send(self.escalation.pop(0)[1])
            self._release_held(now)
            self._tell_stalls(now)
            due_at = self.ranks.pass_time(now)
            if self.ranks.finished and (self.ended_by is not None or not any(sink.pending for sink in self.sinks)):
                return
            times = [at for at, _ in self.escalation[:1]]
            times += [] if self.stalls_at is None else [self.stalls_at]
            times += [self.sources[rank][1].held_since + HOLD_SECONDS for rank in self._holding()]
            if self.timeout is not None and not self.timed_out:
                times.append(timeout_at)
            times += [] if due_at is None else [due_at]
            self._turn(min(times) - now if times else None)

    def _holds(self, rank: int) -> bool:
        return bool(self.sources[rank][1].held)

    def _holding(self) -> list[int]:
        """Returns the ranks whose held output may have to be passed on, because they have not failed."""
        return [
            rank
            for rank in filter(self._holds, range(len(self.sources)))
            if rank in self.ranks.running or self.codes.get(rank) == 0
        ]

    def _release_held(self, now: float) -> None:
        """Passes on what ranks told that go on after it, or have returned 0.

        What they found as they closed waits for the rank whose failure says it.
        """
        for rank in self._holding():
            output, errors = self.sources[rank]
            said = max(output.read_at, errors.read_at)
            goes_on = now >= errors.held_since + HOLD_SECONDS
            if rank in self.ranks.running:
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

    def _report(self) -> int:
        """Prints what failed, and returns the exit code."""
        self._tell_stalls(math.inf)
        self.ranks.hear()
        if self.refused is not None:
            self._say(f"hocket run: {self.refused[0]}\n")
            return self.refused[1]
        causes = self._causes() if self.lost_code is None else []
        cause = causes[0] if causes else None
        told = [self._fold(causes), "".join(f"hocket run: {text}\n" for text in self.lost)]
        self._say("".join(told if cause is None else reversed(told)))  # the cause comes last
        if self.ended_by is not None:
            return 128 + self.ended_by
        if self.lost_code is not None:
            return self.lost_code
        if cause is not None:
            code = self.codes[cause if cause in self.failed else self.failed[0]]
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
        by_themselves = [rank for rank in self._reports.by_themselves if self.codes.get(rank) != 0]
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
        following = {rank for rank in range(self.num_ranks) if self.codes.get(rank) != 0 and self._follows(rank)}
        for rank in filter(self._holds, range(len(self.sources))):
            source = self.sources[rank][1]
            closing[rank], rest = split_closing(source.take())
            if self.codes.get(rank) != 0:
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
            places=self.ranks.place_of,
            returned=[rank for rank, code in self.codes.items() if code == 0],
            label=self.label,
        ).text()

    def _way(self, rank: int) -> str:
        """Returns how a rank that failed ended."""
        if rank not in self.failed:
            return "and did not end by itself"
        code = self.codes[rank]
        return f"with exit code {code}" if code > 0 else f"with {_signal_name(-code)}"

    def _turn(self, seconds: float | None) -> None:
        """Waits at most `seconds` for something to do, and does it."""
        poll = select.poll()
        actions: dict[int, Callable[[], None]] = {self._wakeup_read: self._drain_wakeup}
        poll.register(self._wakeup_read, select.POLLIN)
        for descriptor, events, action in self.ranks.waits():
            actions[descriptor] = action
            poll.register(descriptor, events)
        for sink in self.sinks:
            if sink.pending:
                actions[sink.descriptor] = sink.write
                poll.register(sink.descriptor, select.POLLOUT)
        for descriptor, _ in poll.poll(None if seconds is None else max(0.0, seconds) * 1000 + 1):
            actions[descriptor]()
        if self.stop_asked:
            self._stop()
        if self.sinks[0].broken and self.ended_by is None:
            # The reader of the output has closed it (for example `| head`): end as a process that SIGPIPE ends.
            self.ended_by = signal.SIGPIPE
            self._end(0.0, TERMINATE_SECONDS)

    # --- what ranks do: the supervisor is their listener -------------------------------------------------------------

    def is_full(self, stream: int) -> bool:
        """Returns whether output should stay unread. After a signal all is read, so that the end is heard."""
        return self.sinks[stream - 1].full and self.ended_by is None

    def on_output(self, rank: int, stream: int, data: bytes) -> None:
        """Passes output on; after a signal, what nobody reads is dropped."""
        if self.ended_by is None or not self.sinks[stream - 1].full:
            self.sources[rank][stream - 1].take_in(data)

    def on_report(self, report: FailureReport) -> None:
        """Keeps what a rank tells of its failure."""
        self._reports.take(report, ending=self.ending)

    def on_exit(self, rank: int, code: int) -> None:
        """Keeps how a rank has ended. After the first failure, the others have little time."""
        self.codes[rank] = code
        if code != 0 and not self.ending:
            self.failed.append(rank)
            if not self.escalation:
                self._end(GRACE_SECONDS, TERMINATE_SECONDS)

    def on_refusal(self, text: str, code: int) -> None:
        """Ends the run, as a host cannot start the command. text: what to tell; code: the exit code of the run."""
        self.refused = self.refused or (text, code)

    def on_loss(self, text: str, code: int) -> None:
        """Ends the run, as nothing more is heard of a host that has ranks. Arguments as for `on_refusal`."""
        self.lost.append(text)
        if not self.ending:
            self.lost_code = code if self.lost_code is None and not self.failed else self.lost_code
            if not self.escalation:
                self._end(GRACE_SECONDS, TERMINATE_SECONDS)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.ending = True
        if self.ended_by is not None:
            self.ranks.send(signal.SIGKILL)
            return
        self.ended_by = signal.Signals(number)
        self.ranks.send(self.ended_by)
        if number == signal.SIGINT:
            self._end(INTERRUPT_SECONDS, INTERRUPT_SECONDS)
        else:
            self._end(GRACE_SECONDS, TERMINATE_SECONDS)

    def _on_stop(self, _number: int, _: FrameType | None) -> None:
        self.stop_asked = True

    def _stop(self) -> None:
        self.stop_asked = False
        self.ranks.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.ranks.send(signal.SIGCONT)

    def _end(self, terminate_after: float, kill_after: float) -> None:
        now = time.monotonic()
        self.escalation = [
            (now + terminate_after, signal.SIGTERM),
            (now + terminate_after + kill_after, signal.SIGKILL),
        ]

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
