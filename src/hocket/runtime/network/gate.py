"""The gate of a rank: it listens, and lets in what proves to be a rank of the job.

A connection that has still to prove it is a "stranger". Strangers are limited in number, bytes and time.
"""

import contextlib
import errno
import os
import random
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hocket.runtime.network import handshake
from hocket.runtime.network.addresses import Address
from hocket.runtime.network.connecting import listen
from hocket.runtime.network.handshake import Credentials, Purpose

STRANGER_SECONDS = 2.0  # a stranger must have proved that it is a rank of the job by then
MAX_STRANGERS = 64


class Admitted(NamedTuple):
    """A connection that was let in. greeting: what its other end still waits for. session: a key of both ends alone."""

    connection: socket.socket
    purpose: Purpose
    greeting: bytes
    session: bytes


@dataclass(eq=False)
class _Stranger:
    """A connection to this rank, whose other end has still to prove that it is a rank."""

    connection: socket.socket
    challenge: bytes
    since: float
    said: bytes = b""


class Gate:
    """Listens from the beginning; open() lets it work, as a part of its owner's loop over a selector.

    places: IP addresses of this host, each with a port, or 0 for any. Raises RendezvousError or ResourceError.
    """

    def __init__(self, rank: int, places: Sequence[Address]) -> None:
        self.rank = rank
        self._listeners: list[socket.socket] = []
        try:
            for host, port in places:
                self._listeners.append(listen(host, port, MAX_STRANGERS, listener=f"rank {rank}"))
                self._listeners[-1].setblocking(False)
        except BaseException:
            self._close_listeners()
            raise
        self.addresses: list[Address] = [one.getsockname()[:2] for one in self._listeners]
        self._reserve = reserve()
        self._strangers: list[_Stranger] = []
        self._is_open = False

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
            self._is_open = False
            for listener in self._listeners:
                self._selector.unregister(listener)
        self._close_listeners()
        self._reserve.close()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def expire(self, now: float) -> list[float]:
        """Drop strangers that have taken too long; return the times at which the others will have."""
        for stranger in [one for one in self._strangers if now - one.since >= STRANGER_SECONDS]:
            self._drop(stranger)
        return [one.since + STRANGER_SECONDS for one in self._strangers]

    def handle(self, source: Any, data: Any) -> bool:
        """Handle an event of the selector; return False if it is not the gate's. Raises OSError if something lacks."""
        if data is self:
            self._accept(source)
        elif isinstance(data, _Stranger):
            if data in self._strangers:  # else it was dropped just now
                self._hear(data)
        else:
            return False
        return True

    def _accept(self, listener: socket.socket) -> None:
        if self._reserve.closed:
            self._reserve = reserve()
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(listener)
            raise
        connection.setblocking(False)
        stranger = _Stranger(connection, handshake.challenge(), time.monotonic())
        self._strangers.append(stranger)
        self._selector.register(connection, selectors.EVENT_READ, stranger)
        if len(self._strangers) > MAX_STRANGERS:
            # At random: a stranger that opens many shall not be sure to push out those that belong here.
            self._drop(random.choice(self._strangers[:-1]))
        if not send(connection, stranger.challenge):
            self._drop(stranger)

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
            self._drop(stranger)
            return
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)
        session = self._job.session(stranger.challenge, stranger.said)
        self._admit(Admitted(stranger.connection, *admitted, session))

    def _drop(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        with contextlib.suppress(KeyError):  # where the system had no room to watch it
            self._selector.unregister(stranger.connection)
        stranger.connection.close()


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
