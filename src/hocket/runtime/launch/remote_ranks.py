"""`hocket run --hosts`: the ranks of several hosts. ssh starts an agent on each, which starts and ends the ranks there.

All agents answer before any rank starts. Then each gets the command, the address of rank 0 and the key of the job over
the connection, never on a command line. A host whose agent or connection ends too early is lost, and this ends the run.
"""

import ipaddress
import os
import secrets
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from hocket import __version__
from hocket.errors import RendezvousError
from hocket.runtime.launch.guarded_group import GuardedGroup
from hocket.runtime.launch.host_messages import (
    AGENT_MODULE,
    BEAT,
    BEAT_SECONDS,
    HostDone,
    HostReady,
    HostRefuses,
    News,
    Order,
    RankEnded,
    RankOutput,
    RankTold,
    SendSignal,
    StartRanks,
    WholeLines,
    line_of,
    read_news,
)
from hocket.runtime.launch.host_ranks import RanksListener, Wait
from hocket.runtime.launch.output import Sink
from hocket.runtime.launch.supervisor import Supervisor
from hocket.runtime.ranks.rank_names import name_ranks
from hocket.runtime.variables import VARIABLES

ANSWER_SECONDS = 60.0  # for all agents to answer
CONFIRM_SECONDS = 5.0  # from SIGKILL to the last words of the agents
LEAVE_SECONDS = 1.0  # for agents to end their ranks once their standard input has ended
KEY_BYTES = 32
_MAX_WORDS_BYTES = 4096
_SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")


@dataclass(frozen=True)
class HostsJob:
    """What to run, and where.

    hosts: their names for ssh; per_host: ranks on each; program: as for `hocket run`; directory: the working directory
    on each host; python: the interpreter there; ssh: the command that connects, called with a host and a command line.
    """

    hosts: Sequence[str]
    per_host: int
    program: Sequence[str]
    directory: str
    python: str
    ssh: Sequence[str]


def run_on_hosts(job: HostsJob, *, label: bool, timeout: float | None = None) -> int:
    """Runs a program as ranks on several hosts and returns the exit code; see `run_command`. Ranks have no input.

    The exit code is 2 if a host cannot take part, and that of ssh if a host is lost before any rank fails.
    """
    ranks = RemoteRanks(job)
    with Supervisor(ranks, ranks.size, label=label, timeout=timeout) as supervisor:
        ranks.connect(supervisor)
        return supervisor.run()


class HostsListener(RanksListener, Protocol):
    """What hears of ranks on several hosts. text: what to tell; code: an exit code for the whole run."""

    def on_refusal(self, text: str, code: int) -> None:
        """Takes why the run cannot start on a host."""

    def on_loss(self, text: str, code: int) -> None:
        """Takes how a host was lost whose ranks had not ended."""


class _Connection:
    """The connection to one host: a process of ssh, and what the agent there has said."""

    def __init__(self, host: str, ranks: range, command: Sequence[str], group: int) -> None:
        self.host, self.ranks = host, ranks
        self.running = set(ranks)
        self.ready: HostReady | None = None
        self.over = False  # whether nothing more is to come of its ranks
        self.lines, self.words = WholeLines(), b""  # words: the last that were no news
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, process_group=group)
        self.pidfd = os.pidfd_open(self.process.pid)
        files = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.orders, self.news, self.errors = (file.fileno() for file in files if file is not None)
        for descriptor in (self.orders, self.news, self.errors):
            os.set_blocking(descriptor, False)
        self.reading = {self.news, self.errors}  # until their ends
        self.sink = Sink(self.orders)

    def order(self, order: Order) -> None:
        self.sink.put(line_of(order))  # written by the loop: a signal may have interrupted a write

    def last_words(self) -> str:
        """Returns what ssh and the host have said, as the end of a message."""
        words = self.words.decode(errors="replace").strip()
        return f":\n{words}" if "\n" in words else f": {words}" if words else ""

    def close_orders(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    def close(self) -> None:
        self.process.wait()
        self.process.__exit__(None, None, None)  # closes its pipes
        os.close(self.pidfd)


class RemoteRanks:
    """The ranks of a HostsJob. Call `connect` once; the rest is as for HostRanks."""

    def __init__(self, job: HostsJob) -> None:
        self.size = len(job.hosts) * job.per_host
        self._job, self._key = job, secrets.token_bytes(KEY_BYTES)
        self._started = self._told_to_end = False
        self._answer_by = time.monotonic() + ANSWER_SECONDS
        self._beat_at = 0.0
        self._confirm_by: float | None = None
        self._connections: list[_Connection] = []
        self._group = GuardedGroup()

    def connect(self, listener: HostsListener) -> None:
        """Starts ssh for each host. RendezvousError if there is no such command."""
        self._listener = listener
        job = self._job
        agent = shlex.join([job.python, "-P", "-m", AGENT_MODULE])  # -P: the home folder there may hold any names
        for number, host in enumerate(job.hosts):
            ranks = range(number * job.per_host, (number + 1) * job.per_host)
            try:
                connection = _Connection(host, ranks, [*_with_options(job.ssh), host, agent], self._group.number)
            except OSError as error:
                raise RendezvousError(
                    f"{name_ranks(ranks)} on {host}: {job.ssh[0]!r} cannot be started: {error.strerror}; expected a "
                    "command such as ssh, which connects to hosts (--ssh)",
                    missing=ranks,
                ) from error
            self._connections.append(connection)

    @property
    def running(self) -> list[int]:
        """Returns the ranks that have not ended."""
        return [rank for connection in self._connections for rank in sorted(connection.running)]

    @property
    def finished(self) -> bool:
        """Returns whether all hosts have said their last words, or are lost."""
        return all(connection.over for connection in self._connections)

    def waits(self) -> Iterator[Wait]:
        """Yields what to wait for."""
        may_read = self._may_read()
        for one in self._connections:
            if one.over:
                continue
            yield one.pidfd, select.POLLIN, partial(self._on_exit, one)
            if one.news in one.reading and may_read:
                yield one.news, select.POLLIN, partial(self._read_news, one)
            if one.errors in one.reading:
                yield one.errors, select.POLLIN, partial(self._read_errors, one)
            if one.sink.pending:
                yield one.orders, select.POLLOUT, one.sink.write

    def _may_read(self) -> bool:
        return not (self._listener.is_full(1) or self._listener.is_full(2))

    def pass_time(self, now: float) -> float | None:
        """Gives the agents a sign of life, and gives up hosts that give none."""
        left = [one for one in self._connections if not one.over]
        if not self._started:
            late = [one for one in left if one.ready is None]
            if now >= self._answer_by and late:
                one = late[0]
                self._refuse(one, f"has not answered in {ANSWER_SECONDS:g} s{one.last_words()}")
            return self._answer_by
        if self._confirm_by is not None:
            if not self._may_read():
                self._confirm_by = now + CONFIRM_SECONDS
            if now >= self._confirm_by:
                for one in left:
                    what = f"does not confirm in {CONFIRM_SECONDS:g} s that its ranks have ended; look for them there"
                    self._lose(one, f"{one.host} with {name_ranks(one.ranks)} of {self.size} {what}", 1)
            return self._confirm_by
        if now >= self._beat_at:
            self._beat_at = now + BEAT_SECONDS
            for one in left:
                one.sink.put(BEAT)
        return self._beat_at

    def hear(self) -> None:
        """Does nothing: what ranks tell comes with all other news."""

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the ranks of all hosts. If none has started, one that would end them ends the run."""
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            self._told_to_end = True
            if not self._started:
                for one in self._connections:
                    one.over = True
                    one.running.clear()
        if number == signal.SIGKILL and self._confirm_by is None:
            self._confirm_by = time.monotonic() + CONFIRM_SECONDS
        for one in self._connections:
            if not one.over and self._started:
                one.order(SendSignal(number))
                if number == signal.SIGSTOP:
                    one.sink.write()  # at once, as this process stops next

    def place_of(self, rank: int) -> str:
        """Returns what to say of the place of a rank."""
        return f" on {self._connections[rank // self._job.per_host].host}"

    def close(self) -> None:
        """Ends all connections. Agents end their ranks as they see it."""
        for one in self._connections:
            one.close_orders()
        leave_by = time.monotonic() + LEAVE_SECONDS
        for one in self._connections:
            if one.ready is not None:
                select.select([one.pidfd], [], [], max(0.0, leave_by - time.monotonic()))
        self._group.send(signal.SIGKILL)
        for one in self._connections:
            one.close()
        self._group.close()

    # --- what comes from hosts ----------------------------------------------------------------------------------------

    def _read(self, one: _Connection, descriptor: int) -> bytes:
        data = os.read(descriptor, 1 << 18)
        if not data:
            one.reading.discard(descriptor)
        return data

    def _read_errors(self, one: _Connection) -> None:
        one.words = (one.words + self._read(one, one.errors))[-_MAX_WORDS_BYTES:]

    def _read_news(self, one: _Connection) -> None:
        for line in one.lines.split(self._read(one, one.news)):
            try:
                news = read_news(line)
            except msgspec.DecodeError:  # words of the shell there
                one.words = (one.words + line + b"\n")[-_MAX_WORDS_BYTES:]
            else:
                self._take(one, news)

    def _take(self, one: _Connection, news: News) -> None:
        match news:
            case HostReady():
                self._on_ready(one, news)
            case RankOutput(rank, stream, data):
                self._listener.on_output(rank, stream, data)
            case RankTold(report):
                self._listener.on_report(report)
            case RankEnded(rank, code):
                one.running.discard(rank)
                self._listener.on_exit(rank, code)
            case HostRefuses(text, code):
                self._listener.on_refusal(f"host {one.host}: {text}", code)
            case HostDone():
                one.over = True

    def _on_ready(self, one: _Connection, ready: HostReady) -> None:
        one.ready = ready
        if ready.version != __version__:
            what = f"has Hocket {ready.version}, and this host {__version__}; install the same version on both"
            self._refuse(one, f"{what}, or name another interpreter with --python")
            return
        answers = [other.ready for other in self._connections if other.ready is not None]
        if len(answers) == len(self._connections) and not self._told_to_end:
            self._start(answers)

    def _start(self, answers: Sequence[HostReady]) -> None:
        names = [
            answer.address or one.host.rpartition("@")[2]
            for one, answer in zip(self._connections, answers, strict=True)
        ]
        far = next((one for one, name in zip(self._connections, names, strict=True) if not _is_loopback(name)), None)
        if _is_loopback(names[0]) and far is not None:
            what = f"is {names[0]}, where {far.host} cannot find rank 0; give it by a name that other hosts know"
            self._refuse(self._connections[0], what)
            return
        self._started = True
        for one in self._connections:
            order = StartRanks(
                first=one.ranks.start,
                num_ranks=len(one.ranks),
                size=self.size,
                address=f"[{names[0]}]:{answers[0].port}" if ":" in names[0] else f"{names[0]}:{answers[0].port}",
                store=(names[0], answers[0].store_port),
                key=self._key,
                program=list(self._job.program),
                directory=self._job.directory,
                variables=passed_on(),
            )
            one.order(order)

    def _on_exit(self, one: _Connection) -> None:
        """Takes what ssh has left behind, and how it has ended."""
        for descriptor, read in ((one.news, self._read_news), (one.errors, self._read_errors)):
            while descriptor in one.reading:
                try:
                    read(one)
                except BlockingIOError:  # a process that ssh has left behind holds the pipe
                    break
        if one.over:
            return
        code = one.process.wait()
        if one.ready is None:
            self._refuse(one, self._why_no_answer(one, code))
            return
        way = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        what = f"lost {one.host} with {name_ranks(one.ranks)} of {self.size}: {Path(self._job.ssh[0]).name} ended {way}"
        self._lose(one, what + one.last_words(), 128 - code if code < 0 else code or 1)

    def _why_no_answer(self, one: _Connection, code: int) -> str:
        ssh, python = Path(self._job.ssh[0]).name, self._job.python
        if code in (126, 127):
            return f"cannot start {python}{one.last_words()}; name its interpreter with --python"
        if b"No module named" in one.words:
            what = f"has no Hocket {__version__} for {python}{one.last_words()}"
            return f"{what}; install it there, or name another interpreter with --python"
        needed = f"`{shlex.join([*self._job.ssh, one.host])} true` has to work without a question"
        return f"cannot be reached: {needed}; {ssh} ended with exit code {code}{one.last_words()}"

    def _refuse(self, one: _Connection, what: str) -> None:
        one.over = True
        self._listener.on_refusal(f"host {one.host} for {name_ranks(one.ranks)} of {self.size} {what}", 2)

    def _lose(self, one: _Connection, text: str, code: int) -> None:
        one.over = True
        one.running.clear()
        for rank in one.ranks:
            for stream in (1, 2):
                self._listener.on_output(rank, stream, b"")  # an unfinished line is told too
        self._listener.on_loss(text, code)


def _with_options(ssh: Sequence[str]) -> list[str]:
    """Returns the command with options that keep ssh from asking, and from waiting for a host that is gone."""
    if Path(ssh[0]).name != "ssh":
        return list(ssh)
    return [*ssh, "-T", *(word for option in _SSH_OPTIONS for word in ("-o", option))]


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def passed_on() -> dict[str, str]:
    """Returns the variables of Hocket that ranks on other hosts get from here, as ranks of this host would."""
    names = [one.name for one in VARIABLES if one.scope != "launcher"]
    return {name: os.environ[name] for name in names if name in os.environ}
