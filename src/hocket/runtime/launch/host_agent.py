"""The process that `hocket run --hosts` starts on each host, by ssh: it starts the ranks of the host and ends them.

It gets orders on standard input and writes what the ranks do to standard output. If its standard input ends, because
the launcher or the connection has ended, it kills all ranks at once. If this process dies, the guard of the ranks does.
"""

import contextlib
import ipaddress
import os
import select
import signal
import socket
import time
from collections.abc import Callable

from hocket import __version__
from hocket.runtime.launch.host_messages import (
    SILENCE_SECONDS,
    HostDone,
    HostReady,
    HostRefuses,
    News,
    Order,
    RankEnded,
    RankOutput,
    RankTold,
    StartRanks,
    WholeLines,
    line_of,
    read_order,
)
from hocket.runtime.launch.host_ranks import HostRanks, reserved_port
from hocket.runtime.launch.output import Sink
from hocket.runtime.launch.program_command import command_of, why_not_started
from hocket.runtime.ranks.failure_reports import FailureReport


class _HostAgent:
    """The listener of the ranks of this host. All that it hears goes to the launcher."""

    def __init__(self) -> None:
        self._news = Sink(os.dup(1))
        os.set_blocking(self._news.descriptor, False)
        os.dup2(2, 1)  # what else this process may print is text, and no news
        self._lines = WholeLines()
        self._ranks: HostRanks | None = None
        self._heard_at = time.monotonic()
        self._stopped = False  # whether the ranks are: then the launcher is, too
        self._done = False  # whether the ranks have ended, and this is said
        self._over = False

    def serve(self) -> None:
        """Does what the launcher orders, until all ranks have ended or the launcher is gone."""
        with reserved_port() as port, reserved_port() as store_port:
            ports = (port.getsockname()[1], store_port.getsockname()[1])
            self._news.put(b"\n")  # so that this is a line, whatever the shell has printed
            self._say(HostReady(__version__, _reached_address(), *ports))
            try:
                while not self._over:
                    self._turn()
            finally:
                if self._ranks is not None:
                    self._ranks.close()

    def _turn(self) -> None:
        now = time.monotonic()
        due_at = self._ranks.pass_time(now) if self._ranks is not None else None
        if self._ranks is not None and self._ranks.finished and not self._done:
            self._done = True
            self._say(HostDone())
        times = [] if due_at is None else [due_at]
        times += [] if self._stopped else [self._heard_at + SILENCE_SECONDS]
        poll = select.poll()
        actions: dict[int, Callable[[], None]] = {0: self._hear_launcher}
        poll.register(0, select.POLLIN)
        for descriptor, events, action in self._ranks.waits() if self._ranks is not None else ():
            actions[descriptor] = action
            poll.register(descriptor, events)
        if self._news.pending:
            actions[self._news.descriptor] = self._news.write
            poll.register(self._news.descriptor, select.POLLOUT)
        for descriptor, _ in poll.poll(max(0.0, min(times) - now) * 1000 + 1 if times else None):
            actions[descriptor]()
        silent = not self._stopped and time.monotonic() >= self._heard_at + SILENCE_SECONDS
        self._over |= silent or self._news.broken or (self._done and not self._news.pending)

    def _hear_launcher(self) -> None:
        data = os.read(0, 65536)
        self._heard_at = time.monotonic()
        self._over |= not data
        for line in filter(None, self._lines.split(data)):
            self._obey(read_order(line))

    def _obey(self, order: Order) -> None:
        if isinstance(order, StartRanks):
            self._start(order)
        elif self._ranks is not None:
            self._stopped = order.number == signal.SIGSTOP
            self._ranks.send(signal.Signals(order.number))

    def _start(self, order: StartRanks) -> None:
        try:
            os.chdir(order.directory)
        except OSError as error:
            text = f"cannot enter the folder {order.directory}: {error.strerror}; name another one with --directory"
            self._say(HostRefuses(text, 2))
            return
        self._ranks = HostRanks(range(order.first, order.first + order.num_ranks), order.size)
        try:
            command = command_of(order.program)
            self._ranks.start(self, command, order.address, order.store, key=order.key, variables=order.variables)
        except OSError as error:
            self._say(HostRefuses(*why_not_started(order.program, error)))

    # --- what ranks do ------------------------------------------------------------------------------------------------

    def is_full(self, stream: int) -> bool:
        """Returns whether the launcher has much to read before it can take more output."""
        return self._news.full

    def on_output(self, rank: int, stream: int, data: bytes) -> None:
        """Passes output on as it comes: the launcher cuts it into lines."""
        self._say(RankOutput(rank, stream, data))

    def on_report(self, report: FailureReport) -> None:
        """Passes on what a rank tells of its failure."""
        self._say(RankTold(report))

    def on_exit(self, rank: int, code: int) -> None:
        """Passes on how a rank has ended."""
        self._say(RankEnded(rank, code))

    def _say(self, news: News) -> None:
        self._news.put(line_of(news))


def _reached_address() -> str:
    """Returns the address of this host at which ssh reached it; "" if that is unknown, or no address to connect to."""
    words = os.environ.get("SSH_CONNECTION", "").split()  # address and port of the client, and of this host
    with contextlib.suppress(OSError, ValueError, IndexError):
        address = str(ipaddress.ip_address(words[2]))
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((address, 0))  # fails if the variable comes from elsewhere, or needs an interface
        return address
    return ""


if __name__ == "__main__":
    _HostAgent().serve()
