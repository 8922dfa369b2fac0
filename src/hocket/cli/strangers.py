"""What listens at an address: a job of Hocket, PyTorch's store, or a stranger, by the first bytes that it says.

A rank 0 of Hocket speaks first. What keeps silent is greeted as PyTorch's store, and then as a web server.
"""

import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from hocket.runtime.network import connecting

_SPEAKS_FIRST_SECONDS, _ANSWER_SECONDS = 2.0, 0.7
_MAX_BYTES, _ENOUGH_BYTES = 256, 8
_MAX_SHOWN = 60
_HOCKET = b"hocket\0"
_KNOWN = {
    b"HTTP/": "a web server",
    b"SSH-": "an SSH server",
    b"\x15\x03": "a server of TLS",
    b"220 ": "a mail or FTP server",
    b"RFB ": "a VNC server",
}
# TCPStore begins with a number that it expects, and echoes the number of a ping.
_STORE_HELLO, _STORE_PING = struct.pack("<BI", 0, 0x3C85F7CE), b"\x0d"


class Seen(NamedTuple):
    """kind: a job, PyTorch's store, or else; words: what else."""

    kind: Literal["hocket", "store", "else"]
    words: str = ""


def identify(
    connection: socket.socket, again: Callable[[], connecting.Reached | connecting.Unanswered], end: float
) -> Seen:
    """Returns what is at the other end of a new connection, and closes it; again opens one more.

    end, on the monotonic clock, is when it gives up. No two connections are open at once: a server may take one only.
    """
    number = secrets.token_bytes(4)
    with connection:
        said = _hear(connection, b"", end)
        if said.startswith(_HOCKET):
            return Seen("hocket")
        said = said or _hear(connection, _STORE_HELLO + _STORE_PING + number, end)
        if said == number:
            return Seen("store")
    if not said:
        one = again()
        if isinstance(one, connecting.Reached):
            with one.connection as connection:
                said = _hear(connection, b"HEAD / HTTP/1.0\r\n\r\n", end)
    if not said:
        return Seen("else", "it accepts connections and says nothing, as a proxy, or a process that is stopped")
    for beginning, name in _KNOWN.items():
        if said.startswith(beginning):
            return Seen("else", f"{name} says {_printable(said)}")
    return Seen("else", f"it says {_printable(said)}")


def _hear(connection: socket.socket, greeting: bytes, end: float) -> bytes:
    """Returns what the other end says to this, before it keeps silent or hangs up."""
    seconds = _ANSWER_SECONDS if greeting else _SPEAKS_FIRST_SECONDS
    until, said = min(time.monotonic() + seconds, end), b""
    try:
        connection.sendall(greeting)
        while len(said) < _ENOUGH_BYTES and (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            data = connection.recv(_MAX_BYTES)
            if not data:
                break
            said += data
    except OSError:
        pass  # it has said what it says
    return said


def _printable(said: bytes) -> str:
    text = said.decode("ascii", errors="replace")
    shown = "".join(letter if letter.isprintable() and letter.isascii() else "." for letter in text[:_MAX_SHOWN])
    return f"{shown!r}" + ("..." if len(text) > _MAX_SHOWN else "")
