"""The store of torchrun's agents: a key-value server (torch's TCPStore), spoken to in plain Python.

The first agent serves it before it starts any rank, and goes on when the ranks are started again. The agents of a job
may count restarts differently (a host that joins later counts from 0), so the key of the job has no such count. Rank 0
overwrites what it wrote before, also what a rank 0 that has ended wrote, each time with a new mark. A rank ignores the
mark that its meeting before had; if it reaches nobody where another one leads, it asks again.

Anybody who can connect to the store can read and write it, so it carries no key.
"""

import contextlib
import errno
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence

from hocket.errors import RendezvousError, ResourceError
from hocket.runtime.rendezvous.boards.board import ANSWER_SECONDS, MAX_TEXT_BYTES, check_text, checked_found, shortened

_VALIDATE, _SET, _GET, _WAIT, _PING = 0, 1, 3, 6, 13  # commands of the TCPStore, one byte each
_MAGIC = 0x3C85F7CE
_GO_ON = 0  # the answer to _WAIT
_LOOK_SECONDS = 0.05  # the shortest wait, in which a store that has the text tells it
_PAUSE_SECONDS = 0.1  # between two looks at a text of the meeting before
_MARK_BYTES = 8
_MAX_VALUE_BYTES = 2 * _MARK_BYTES + 1 + MAX_TEXT_BYTES  # a mark in hex digits, a space and a text
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

_marks: dict[tuple[str, int, str], str] = {}  # of the last meeting of this process, by store and key


class AgentStore:
    """The store at host and port. job: the run, and a name if the caller gives its meetings one."""

    carries_key = False
    ports: Sequence[int] = ()
    listens_at: tuple[str, int] | None = None

    def __init__(self, host: str, port: int, *job: str) -> None:
        self._host, self._port = host, port
        self._key = "/".join(("hocket", *job))
        self._place = (host, port, self._key)
        self._before: str | None = None
        self._found = False
        self.where = f"torchrun's store at MASTER_ADDR {host}, MASTER_PORT {port}"

    def publish(self, text: str) -> None:
        """Writes the text, with a new mark."""
        check_text(text)
        with self._connected() as connection:
            value = f"{secrets.token_hex(_MARK_BYTES)} {text}"
            connection.sendall(bytes([_SET]) + _string(self._key) + _string(value))
            self._ping(connection)  # answered once the value is there

    def find(self, seconds: float) -> str | None:
        """Returns the text that was written last, or None if that is of the meeting before."""
        deadline = time.monotonic() + max(seconds, _LOOK_SECONDS)
        if not self._found:
            self._before = _marks.get(self._place)
        with self._connected() as connection:
            connection.sendall(bytes([_WAIT]) + struct.pack("<Q", 1) + _string(self._key))
            try:
                answer = _read(connection, 1, deadline)
            except TimeoutError:
                return None
            if answer[0] != _GO_ON:
                raise self._broken(f"the answer {answer[0]} to a wait for a key", f"{_GO_ON}")
            while True:
                mark, text = self._read_text(connection)
                if mark != self._before:
                    self._found, _marks[self._place] = True, mark
                    return text
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                time.sleep(min(left, _PAUSE_SECONDS))

    def _read_text(self, connection: socket.socket) -> tuple[str, str]:
        connection.sendall(bytes([_GET]) + _string(self._key))
        deadline = time.monotonic() + ANSWER_SECONDS
        (length,) = struct.unpack("<Q", _read(connection, 8, deadline))
        if length > _MAX_VALUE_BYTES:
            raise self._broken(f"a value of {length} bytes", f"at most {_MAX_VALUE_BYTES}")
        value = _read(connection, length, deadline)
        match = re.fullmatch(rb"([0-9a-f]+) (.*)", value, re.DOTALL)
        if match is None:
            raise self._broken(shortened(value), "a mark and a text")
        return match[1].decode(), checked_found(match[2].decode("latin-1"), self.where)

    def _ping(self, connection: socket.socket) -> None:
        """Raises RendezvousError unless a TCPStore answers."""
        said = struct.pack("<I", os.getpid())
        connection.sendall(bytes([_PING]) + said)
        heard = _read(connection, 4, time.monotonic() + ANSWER_SECONDS)
        if heard != said:
            raise self._broken(f"{heard!r} as the answer to a ping", f"{said!r}")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """Yields a connection to the store, which has answered; errors of the connection become those of the board."""
        try:
            with socket.create_connection((self._host, self._port), timeout=ANSWER_SECONDS) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(struct.pack("<BI", _VALIDATE, _MAGIC))
                self._ping(connection)
                yield connection
        except TimeoutError as error:
            raise self._broken(f"no answer within {ANSWER_SECONDS:g} s", "one at once") from error
        except EOFError as error:
            raise self._broken("the end of the connection", "an answer") from error
        except socket.gaierror as error:
            raise self._broken(f"no address of the name ({error.strerror})", "the name of the first host") from error
        except OSError as error:
            if error.errno in _EXHAUSTED:
                message = f"cannot connect to {self.where}: {error.strerror}; see `hocket doctor`"
                raise ResourceError(message, errno=error.errno, call="connect") from error
            raise self._broken(f"the error {error.strerror or error}", "a connection") from error

    def _broken(self, found: str, expected: str) -> RendezvousError:
        return RendezvousError(
            f"cannot use {self.where}: found {found}, expected {expected}; check on this host that the first host's "
            "agent runs and that no firewall is between, or tell all ranks where rank 0 is by HOCKET_ADDRESS=HOST:PORT"
        )


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Returns so many bytes. Raises TimeoutError at the deadline, and EOFError if the connection ends before them."""
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
