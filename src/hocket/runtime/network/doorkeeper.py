"""The doorkeeper of a rank: it opens and accepts connections, and hands those to the core whose other end has proved
that it is a rank of the job.

It is a thread of Python. Until then, no byte of a connection reaches the core.
"""

import contextlib
import errno
import os
import random
import selectors
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hocket import _core
from hocket.errors import ResourceError
from hocket.runtime.network import handshake
from hocket.runtime.network.handshake import Credentials, Purpose

STRANGER_SECONDS = 2.0  # who opens a connection to this rank must have proved who he is by then
MAX_STRANGERS = 64
_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC)  # of descriptors, memory, or watches
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 1.0  # between two attempts to reach a rank

Address = tuple[str, int]


@dataclass(eq=False)
class _Stranger:
    """A connection to this rank, whose other end has still to prove who it is."""

    connection: socket.socket
    challenge: bytes
    since: float
    said: bytes = b""


@dataclass(eq=False)
class _Visit:
    """A connection that this rank opens. connection: None between two attempts."""

    purpose: Purpose
    pause: float = _FIRST_PAUSE_SECONDS
    again_at: float = 0.0
    connection: socket.socket | None = None
    said: bytes = b""
    expected: bytes | None = None  # the greeting, once the challenge is answered


class Doorkeeper:
    """Listens from the beginning; open() lets it work. `connections` is the core's side."""

    def __init__(self, connections: Any, rank: int) -> None:
        self.connections, self.rank = connections, rank
        try:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_STRANGERS)
        except OSError as error:
            raise ResourceError(
                f"rank {rank} cannot listen at 127.0.0.1: {error.strerror}; is the loopback interface up?",
                errno=error.errno or 0,
                call="listen",
            ) from error
        self._listener.setblocking(False)
        self.address: Address = self._listener.getsockname()
        self._wake, self._woken = socket.socketpair()
        self._reserve = _reserve()
        self._has_complained = False
        self._selector = selectors.DefaultSelector()
        self._strangers: list[_Stranger] = []
        self._visits: list[_Visit] = []
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def open(self, job: Credentials, addresses: Sequence[Address]) -> None:
        """Begin to let ranks of the job in, and to open connections; `addresses` by rank."""
        self._job, self._addresses = job, addresses
        for source in (self._listener, self._woken, self.connections.descriptor):
            self._selector.register(source, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="hocket doorkeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all that has not been handed over. From any thread; not in a forked child, where nothing of it runs."""
        if self._process != os.getpid():
            return
        if self._thread is None:
            self._end()
            return
        with contextlib.suppress(OSError):  # it has ended already
            self._wake.send(b"\0")
        if not _core.is_own_thread():  # where the garbage collector may run this: of two such threads none waits
            self._thread.join()

    def _end(self) -> None:
        for connection in [one.connection for one in self._strangers] + [one.connection for one in self._visits]:
            if connection is not None:
                connection.close()
        self._selector.close()
        for source in (self._listener, self._wake, self._woken, self._reserve):
            source.close()

    def _run(self) -> None:
        _core.enter_own_thread()
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """Wait for something to happen, and handle it; return False once the doorkeeper is closed."""
        now = time.monotonic()
        for stranger in [one for one in self._strangers if now - one.since >= STRANGER_SECONDS]:
            self._drop(stranger)
        for visit in self._visits:
            if visit.connection is None and now >= visit.again_at:
                self._set_out(visit)
        times = [one.since + STRANGER_SECONDS for one in self._strangers]
        times += [one.again_at for one in self._visits if one.connection is None]
        for key, _ in self._selector.select(max(min(times) - now, 0.0) if times else None):
            if key.fileobj is self._woken:
                return False
            try:
                self._handle(key.fileobj, key.data)
            except (OSError, MemoryError) as error:
                self._complain(error, "connect to others")
                time.sleep(_FIRST_PAUSE_SECONDS)  # what it was told of it may be told of at once again
        return True

    def _handle(self, source: Any, data: Any) -> None:
        if source is self._listener:
            self._accept()
        elif isinstance(data, _Stranger):
            if data in self._strangers:  # else it was dropped just now
                self._hear(data)
        elif isinstance(data, _Visit):
            if data.connection is source:  # else it was stopped just now
                self._go_on(data)
        else:
            self._visits += [_Visit(Purpose(*wanted)) for wanted in self.connections.take_wanted()]
            for visit in [one for one in self._visits if not self.connections.has(one.purpose.communicator)]:
                self._stop(visit)
                self._visits.remove(visit)

    def _close(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):  # where the system had no room to watch it
            self._selector.unregister(connection)
        connection.close()

    # Connections to this rank

    def _accept(self) -> None:
        if self._reserve.closed:
            self._reserve = _reserve()
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse()
            raise
        connection.setblocking(False)
        stranger = _Stranger(connection, handshake.challenge(), time.monotonic())
        self._strangers.append(stranger)
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        if len(self._strangers) > MAX_STRANGERS:
            # At random: whoever opens many shall not be sure to push out those that belong here.
            self._drop(random.choice(self._strangers[:-1]))
        if not _send(connection, stranger.challenge):
            self._drop(stranger)

    def _complain(self, error: OSError | MemoryError, what: str) -> None:
        """Say once what this rank lacks; it tries again, and who waits in vain gives up after his timeout."""
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM
        if number in _LACKS and not self._has_complained:
            self._has_complained = True
            print(
                f"hocket: rank {self.rank} cannot {what}: {os.strerror(number)}; raise `ulimit -n`, or close "
                "communicators",
                file=sys.stderr,
                flush=True,
            )

    def _refuse(self) -> None:
        """End one connection although no descriptor is left, so that it is not reported for ever."""
        if self._strangers:
            self._drop(self._strangers[0])
            return
        self._reserve.close()
        with contextlib.suppress(OSError):  # another thread may take it first
            self._listener.accept()[0].close()
            self._reserve = _reserve()

    def _hear(self, stranger: _Stranger) -> None:
        data = _receive(stranger.connection, handshake.ANSWER_BYTES - len(stranger.said))
        if data is None:
            self._drop(stranger)
            return
        stranger.said += data
        if len(stranger.said) < handshake.ANSWER_BYTES:
            return
        admitted = handshake.admit(self._job, self.rank, stranger.challenge, stranger.said)
        if admitted is None:
            self._drop(stranger)
            return
        self._strangers.remove(stranger)
        self._hand_over(stranger.connection, admitted[0], admitted[1])

    def _drop(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        self._close(stranger.connection)

    # Connections of this rank to others

    def _set_out(self, visit: _Visit) -> None:
        visit.said, visit.expected = b"", None
        try:
            visit.connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._selector.register(visit.connection, selectors.EVENT_READ, visit)
            visit.connection.connect(self._addresses[visit.purpose.target])
        except BlockingIOError:
            return  # under way
        except OSError as error:
            self._complain(error, f"open a connection to rank {visit.purpose.target}")
            self._come_back(visit)

    def _stop(self, visit: _Visit) -> None:
        if visit.connection is not None:
            self._close(visit.connection)
            visit.connection = None

    def _come_back(self, visit: _Visit) -> None:
        """Set out once more in a while. If the rank has died meanwhile, others than the doorkeeper tell of it."""
        self._stop(visit)
        visit.again_at = time.monotonic() + visit.pause
        visit.pause = min(2 * visit.pause, _MAX_PAUSE_SECONDS)

    def _go_on(self, visit: _Visit) -> None:
        assert visit.connection is not None
        length = handshake.CHALLENGE_BYTES if visit.expected is None else handshake.GREETING_BYTES
        data = _receive(visit.connection, length - len(visit.said))
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
            connection, visit.connection = visit.connection, None
            self._hand_over(connection, visit.purpose, b"")  # if that fails, it sets out again
            self._visits.remove(visit)
            return
        answered = handshake.answer(self._job, visit.purpose, visit.said)
        if answered is None or not _send(visit.connection, answered[0]):
            self._come_back(visit)
            return
        visit.said, visit.expected = b"", answered[1]

    def _hand_over(self, connection: socket.socket, purpose: Purpose, greeting: bytes) -> None:
        self._selector.unregister(connection)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            # To oneself nothing is lost, and bbr takes twice the time.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        try:
            self.connections.give(*purpose, connection.detach(), greeting)
        except ResourceError as error:
            raise OSError(error.errno, os.strerror(error.errno)) from error


def _reserve() -> BinaryIO:
    """Return a descriptor that can be given up where no other is left."""
    return Path(os.devnull).open("rb")


def _receive(connection: socket.socket, length: int) -> bytes | None:
    """Return what has come, at most length bytes; None if the other end is gone."""
    try:
        return connection.recv(length) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None


def _send(connection: socket.socket, data: bytes) -> bool:
    """Return whether the other end gets it all: so little always fits into what a new connection holds."""
    try:
        return connection.send(data) == len(data)
    except OSError:
        return False
