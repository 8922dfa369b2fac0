"""The doorkeeper of a rank: it opens and accepts connections, and hands those to the core whose other end has proved
that it is a rank of the job.

It is a thread of Python. Until then, no byte of a connection reaches the core.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket import _core
from hocket.errors import ResourceError
from hocket.runtime.network import gate, handshake
from hocket.runtime.network.addresses import Address
from hocket.runtime.network.agent import Agent
from hocket.runtime.network.connecting import begin
from hocket.runtime.network.gate import Admitted, Gate
from hocket.runtime.network.handshake import Credentials, Purpose
from hocket.runtime.network.interfaces import LocalAddress
from hocket.runtime.network.rails import Approach, approaches

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 1.0  # between two attempts to reach a rank
_CONNECT_SECONDS = 3.0  # if there is no answer by then, the next way to the rank is tried

_staying: "set[Doorkeeper]" = set()  # closed, but still there for other ranks of their hosts


def await_agents(seconds: float | None) -> None:
    """Wait until the ranks for which closed doorkeepers of this process stay have left, at most so long.

    At the end of a process: without its leader, a host hears nothing of others, and they take its ranks for lost.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    for one in list(_staying):
        if one._thread is not None and one._process == os.getpid():
            one._thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))


@dataclass(eq=False)
class _Visit:
    """A connection that this rank opens. connection: None between two attempts. approaches: tried in turn."""

    purpose: Purpose
    approaches: Sequence[Approach]
    pause: float = _FIRST_PAUSE_SECONDS
    again_at: float = 0.0
    give_up_at: float | None = None  # while the system has not connected it, and there is another way
    num_attempts: int = 0  # so far, with the one under way
    connection: socket.socket | None = None
    said: bytes = b""
    expected: bytes | None = None  # the greeting, once the challenge is answered

    @property
    def approach(self) -> Approach:
        """That of the attempt under way."""
        return self.approaches[(self.num_attempts - 1) % len(self.approaches)]


class Doorkeeper:
    """Listens from the beginning; open() lets it work. `connections` is the core's side.

    If this rank is the leader of its host, the thread does the work of the agent, too.
    """

    def __init__(
        self,
        connections: Any,
        rank: int,
        hosts: Sequence[str] = ("127.0.0.1",),
        rails: Sequence[LocalAddress] = (),
    ) -> None:
        self.connections, self.rank, self._rails = connections, rank, rails
        self._gate = Gate(rank, [(host, 0) for host in hosts])
        self.addresses: list[Address] = self._gate.addresses
        self._agent: Agent | None = None
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._visits: list[_Visit] = []
        self._unanswered: set[Approach] = set()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def open(self, job: Credentials, addresses: Sequence[Sequence[Address]], agent: Agent | None = None) -> None:
        """Begin to let ranks of the job in, and to open connections; `addresses`: by rank, those where it listens."""
        self._addresses, self._agent = addresses, agent
        self._gate.open(job, self._selector, self._admit)
        self._job = job
        for source in (self._woken, self.connections.descriptor):
            self._selector.register(source, selectors.EVENT_READ)
        if agent is not None:
            agent.open(self._selector)
        self._thread = threading.Thread(target=self._run, name="hocket doorkeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all that has not been handed over. From any thread; not in a forked child, where nothing of it runs.

        The leader of a host stays until the other ranks there have left: nobody else tells them of other hosts.
        """
        if self._process != os.getpid():
            return
        if self._thread is None:
            self._end()
            return
        with contextlib.suppress(OSError):  # it has ended already
            self._wake.send(b"\0")
        if self._agent is not None:
            _staying.add(self)  # for other ranks: see await_agents
        elif not _core.is_own_thread():  # where the garbage collector may run this: of two such threads none waits
            self._thread.join()

    def _end(self) -> None:
        for visit in self._visits:
            self._stop(visit)
        self._gate.close()
        if self._agent is not None:
            self._agent.close()
        self._selector.close()
        for source in (self._wake, self._woken):
            source.close()

    def _run(self) -> None:
        _core.enter_own_thread()
        try:
            while self._turn():
                pass
        finally:
            self._end()
            _staying.discard(self)

    def _turn(self) -> bool:
        """Wait for something to happen, and handle it; return False once the doorkeeper is closed."""
        now = time.monotonic()
        times = self._gate.expire(now)
        for visit in self._visits:
            if visit.give_up_at is not None and now >= visit.give_up_at:
                self._doubt(visit)
            if visit.connection is None and now >= visit.again_at:
                self._set_out(visit)
        times += [one.again_at for one in self._visits if one.connection is None]
        times += [one.give_up_at for one in self._visits if one.give_up_at is not None]
        if self._agent is not None:
            times.append(self._agent.act(now))
            if self._agent.has_ended:
                return False
        for key, _ in gate.in_turn(self._selector.select(max(min(times) - now, 0.0) if times else None)):
            if key.fileobj is self._woken:
                if self._agent is None:
                    return False
                self._woken.recv(1)
                self._agent.leave()
                continue
            try:
                self._handle(key.fileobj, key.data)
            except (OSError, MemoryError) as error:
                self._gate.complain(error, "connect to others")
                time.sleep(gate.LACK_SECONDS)
        return True

    def _handle(self, source: Any, data: Any) -> None:
        if self._gate.handle(source, data) or (self._agent is not None and self._agent.handle(source, data)):
            return
        if isinstance(data, _Visit):
            if data.connection is source:  # else it was stopped just now
                self._go_on(data)
        else:
            for purpose in (Purpose(*wanted) for wanted in self.connections.take_wanted()):
                found = approaches(self._addresses[purpose.target], self._rails, purpose.rail)
                self._visits.append(_Visit(purpose, sorted(found, key=lambda one: one in self._unanswered)))
            for visit in [one for one in self._visits if not self.connections.has(one.purpose.communicator)]:
                self._stop(visit)
                self._visits.remove(visit)

    def _admit(self, admitted: Admitted) -> None:
        self._hand_over(admitted.connection, admitted.purpose, admitted.greeting)

    def _set_out(self, visit: _Visit) -> None:
        visit.said, visit.expected = b"", None
        visit.num_attempts += 1
        address, source = visit.approach
        try:
            visit.connection = begin(address, source)
            self._selector.register(visit.connection, selectors.EVENT_READ, visit)
        except OSError as error:
            self._gate.complain(error, f"open a connection to rank {visit.purpose.target}")
            self._come_back(visit)
            return
        if len(visit.approaches) > 1:
            visit.give_up_at = time.monotonic() + _CONNECT_SECONDS

    def _doubt(self, visit: _Visit) -> None:
        """Come back if nothing has answered. A rank that takes long to speak is one to wait for."""
        assert visit.connection is not None
        visit.give_up_at = None
        try:
            visit.connection.getpeername()
        except OSError:
            self._unanswered.add(visit.approach)
            self._come_back(visit)

    def _stop(self, visit: _Visit) -> None:
        if visit.connection is not None:
            with contextlib.suppress(KeyError):  # where the system had no room to watch it
                self._selector.unregister(visit.connection)
            visit.connection.close()
            visit.connection = visit.give_up_at = None

    def _come_back(self, visit: _Visit) -> None:
        """Set out once more in a while. If the rank has died meanwhile, others than the doorkeeper tell of it."""
        self._stop(visit)
        visit.again_at = time.monotonic() + visit.pause
        visit.pause = min(2 * visit.pause, _MAX_PAUSE_SECONDS)

    def _go_on(self, visit: _Visit) -> None:
        assert visit.connection is not None
        length = handshake.CHALLENGE_BYTES if visit.expected is None else handshake.GREETING_BYTES
        data = gate.receive(visit.connection, length - len(visit.said))
        if data is None:
            self._come_back(visit)
            return
        visit.said += data
        if len(visit.said) < length:
            return
        if visit.expected is not None:
            if not handshake.is_greeting(visit.expected, visit.said):
                self._come_back(visit)
                return
            connection, visit.connection, visit.give_up_at = visit.connection, None, None
            self._selector.unregister(connection)
            self._hand_over(connection, visit.purpose, b"")  # if that fails, it sets out again
            self._visits.remove(visit)
            return
        answered = handshake.answer(self._job, visit.purpose, visit.said)
        if answered is None or not gate.send(visit.connection, answered[0]):
            self._come_back(visit)
            return
        visit.said, visit.expected = b"", answered[1]

    def _hand_over(self, connection: socket.socket, purpose: Purpose, greeting: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            if connection.getsockname()[0] == connection.getpeername()[0]:
                # To oneself nothing is lost, and bbr takes twice the time.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        try:
            self.connections.give(*purpose, connection.detach(), greeting)
        except ResourceError as error:
            raise OSError(error.errno, os.strerror(error.errno)) from error
