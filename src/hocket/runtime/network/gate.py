"""The gate of a rank: it listens, and lets those in that prove that they are a rank of the job.

A connection that has still to prove it is a "stranger". Strangers are limited in number, bytes and time.
"""

import contextlib
import errno
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hocket.runtime.network import handshake
from hocket.runtime.network.addresses import Address
from hocket.runtime.network.connecting import listen
from hocket.runtime.network.handshake import Credentials, Purpose

STRANGER_SECONDS = 2.0  # within this time, a connection to this rank must prove that it comes from a rank of the job
MAX_STRANGERS = 64
PATIENCE_SECONDS = 0.02  # for this time no stranger is pushed out: the ranks of a large job all come at once
_MAX_REFUSED = 8
_BACKLOG = 4096  # if it overflows, the system of a rank tries again after a second, and then after three
_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC)  # of descriptors, memory, or watches
LACK_SECONDS = 0.01  # between two looks at what the system reports again and again
_MAX_AT_ONCE = 8  # new strangers in a turn: each may push out one that is here, so those are heard between two turns

Events = list[tuple[selectors.SelectorKey, int]]


class Admitted(NamedTuple):
    """A connection that was let in. greeting: what its other end still waits for. session: a key of both ends alone."""

    connection: socket.socket
    purpose: Purpose
    greeting: bytes
    session: bytes


@dataclass(eq=False)
class _Stranger:
    """A connection to this rank, whose other end has still to prove that it is a rank of the job."""

    connection: socket.socket
    challenge: bytes
    since: float
    said: bytes = b""


class Gate:
    """Listens from the beginning; open() lets it work, as a part of its owner's loop over a selector.

    refused: the first hosts, by address, that answered the challenge without the key of the job.

    places: IP addresses of this host, each with a port, or 0 for any. Raises RendezvousError or ResourceError.
    """

    def __init__(self, rank: int, places: Sequence[Address]) -> None:
        self.rank = rank
        self._listeners: list[socket.socket] = []
        try:
            for host, port in places:
                self._listeners.append(listen(host, port, _BACKLOG, listener=f"rank {rank}"))
                self._listeners[-1].setblocking(False)
        except BaseException:
            self._close_listeners()
            raise
        self.addresses: list[Address] = [one.getsockname()[:2] for one in self._listeners]
        self._reserve = reserve()
        self._strangers: list[_Stranger] = []
        self.refused: list[str] = []
        self._is_open = self._is_full = self.has_complained = False

    def open(self, job: Credentials, selector: selectors.BaseSelector, admit: Callable[[Admitted], None]) -> None:
        """Begin to let ranks of the job in, each with a call of `admit`, which owns the connection from then on."""
        self._job, self._selector, self._admit = job, selector, admit
        for listener in self._listeners:
            selector.register(listener, selectors.EVENT_READ, self)
        self._is_open = True

    def close(self) -> None:
        """End all that has not been let in. The address is free from then on."""
        for stranger in list(self._strangers):
            self._drop(stranger)
        if self._is_open:
            for listener in [] if self._is_full else self._listeners:
                self._selector.unregister(listener)
            self._is_open = self._is_full = False
        self._close_listeners()
        self._reserve.close()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def expire(self, now: float) -> list[float]:
        """Drop strangers that have taken too long; return the times at which there is more to do."""
        for stranger in [one for one in self._strangers if now - one.since >= STRANGER_SECONDS]:
            self._drop(stranger)
        if self._is_full and self._has_room(now):
            self._is_full = False
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, self)
        patience = PATIENCE_SECONDS if self._is_full else STRANGER_SECONDS
        return [one.since + patience for one in self._strangers[:1]]

    def handle(self, source: Any, data: Any) -> bool:
        """Handle an event of the selector; return False if it is not the gate's. Raises OSError if something lacks."""
        if data is self:
            num_accepted = 0
            while num_accepted < _MAX_AT_ONCE and self._accept(source):
                num_accepted += 1
        elif isinstance(data, _Stranger):
            if data in self._strangers:  # else it was dropped just now
                self._hear(data)
        else:
            return False
        return True

    def complain(self, error: OSError | MemoryError, what: str) -> None:
        """Say once what this rank lacks; it tries again, and a rank that waits in vain gives up after its time-out."""
        number = error.errno if isinstance(error, OSError) else errno.ENOMEM
        if number in _LACKS and not self.has_complained:
            self.has_complained = True
            print(
                f"hocket: rank {self.rank} cannot {what}: {os.strerror(number)}; raise `ulimit -n`, or close "
                "communicators",
                file=sys.stderr,
                flush=True,
            )

    def _has_room(self, now: float) -> bool:
        """Return whether another stranger may come; if there are many, one is pushed out for that."""
        return len(self._strangers) < MAX_STRANGERS or self._has_had_time(self._strangers[0], now)

    def _has_had_time(self, stranger: _Stranger, now: float) -> bool:
        return now - stranger.since >= PATIENCE_SECONDS

    def _accept(self, listener: socket.socket) -> bool:
        """Let the next stranger come; return False if there is none."""
        if self._is_full:
            return False
        if not self._has_room(time.monotonic()):
            self._is_full = True
            for one in self._listeners:  # new connections wait in the system, see expire()
                self._selector.unregister(one)
            return False
        if self._reserve.closed:
            self._reserve = reserve()
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(listener)
            raise
        connection.setblocking(False)
        stranger = _Stranger(connection, handshake.challenge(), time.monotonic())
        self._strangers.append(stranger)
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        if len(self._strangers) > MAX_STRANGERS:
            # At random: a host that opens many connections shall not be sure to push out those that belong here.
            self._drop(random.choice([one for one in self._strangers if self._has_had_time(one, stranger.since)]))
        if not send(connection, stranger.challenge):
            self._drop(stranger)
        return True

    def _refuse(self, listener: socket.socket) -> None:
        """End one connection although no descriptor is left, so that it is not reported for ever."""
        if self._strangers:
            self._drop(self._strangers[0])
            return
        self._reserve.close()
        with contextlib.suppress(OSError):  # another thread may take it first
            listener.accept()[0].close()
            self._reserve = reserve()

    def _hear(self, stranger: _Stranger) -> None:
        data = receive(stranger.connection, handshake.ANSWER_BYTES - len(stranger.said))
        if data is None:
            self._drop(stranger)
            return
        stranger.said += data
        if len(stranger.said) < handshake.ANSWER_BYTES:
            return
        admitted = handshake.admit(self._job, self.rank, stranger.challenge, stranger.said)
        if admitted is None:
            self._note_refused(stranger.connection)
            self._drop(stranger)
            return
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)
        session = self._job.session(stranger.challenge, stranger.said)
        self._admit(Admitted(stranger.connection, *admitted, session))

    def _note_refused(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is gone
            host = connection.getpeername()[0]
            if host not in self.refused and len(self.refused) < _MAX_REFUSED:
                self.refused.append(host)

    def _drop(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        with contextlib.suppress(KeyError):  # where the system had no room to watch it
            self._selector.unregister(stranger.connection)
        stranger.connection.close()


def in_turn(events: Events) -> Events:
    """Return what a selector has found, in the order in which it is to be handled: new strangers come last."""
    return sorted(events, key=lambda event: isinstance(event[0].data, Gate))


def reserve() -> BinaryIO:
    """Return a descriptor that can be given up where no other is left."""
    return Path(os.devnull).open("rb")


def receive(connection: socket.socket, length: int) -> bytes | None:
    """Return what has come, at most length bytes; None if the other end is gone."""
    try:
        return connection.recv(length) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None


def send(connection: socket.socket, data: bytes) -> bool:
    """Return whether the other end gets it all: so little always fits into what a new connection holds."""
    try:
        return connection.send(data) == len(data)
    except OSError:
        return False
