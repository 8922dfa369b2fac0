"""A connection between two ranks that know the key of the job, for messages that nobody else can forge, repeat or cut.

Each message is numbered and signed with a key that only its two ends have, one for each direction. What does not fit
ends the connection. The content is not hidden: see docs/security.md.
"""

import contextlib
import hmac
import socket
import struct

from hocket.runtime.network.addresses import write_address

_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_SIGNATURE_BYTES = 16
MAX_MESSAGE_BYTES = 1 << 24
_MAX_PENDING_BYTES = 1 << 26  # of a peer that takes nothing
_INFO = struct.Struct("=2xBB52xI")  # linux/tcp.h: tcpi_retransmits, tcpi_probes, tcpi_last_ack_recv
_LEAST_TRIES = 2  # one alone may be on its way


class LinkEndedError(Exception):
    """The other end is gone. is_silent: it answers nothing, else its process has ended the connection."""

    def __init__(self, why: str, *, is_silent: bool = False) -> None:
        super().__init__(why)
        self.is_silent = is_silent


class Sealer:
    """One direction of a connection, the end that sends."""

    def __init__(self, session: bytes, direction: bytes) -> None:
        self._key, self._number = hmac.digest(session, direction, "sha256"), 0

    def seal(self, message: bytes) -> bytes:
        """Return the message as it travels."""
        signature = _sign(self._key, self._number, message)
        self._number += 1
        return _LENGTH.pack(len(message)) + message + signature


class Unsealer:
    """One direction of a connection, the end that receives."""

    def __init__(self, session: bytes, direction: bytes) -> None:
        self._key, self._number, self._data = hmac.digest(session, direction, "sha256"), 0, bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what has come, and return the messages that it completes. Raises LinkEndedError if one is forged."""
        self._data += data
        found: list[bytes] = []
        while len(self._data) >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(self._data)
            if length > MAX_MESSAGE_BYTES:
                raise LinkEndedError(f"a message of {length} bytes came; expected at most {MAX_MESSAGE_BYTES}")
            end = _LENGTH.size + length
            if len(self._data) < end + _SIGNATURE_BYTES:
                break
            message = bytes(self._data[_LENGTH.size : end])
            if not hmac.compare_digest(
                bytes(self._data[end : end + _SIGNATURE_BYTES]), _sign(self._key, self._number, message)
            ):
                raise LinkEndedError("a message came that its sender has not signed, or not at this place")
            self._number += 1
            del self._data[: end + _SIGNATURE_BYTES]
            found.append(message)
        return found


def _sign(key: bytes, number: int, message: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + message, "sha256")[:_SIGNATURE_BYTES]


class SealedLink:
    """Both directions, over a socket that never blocks; the link owns it."""

    def __init__(self, connection: socket.socket, session: bytes, *, opened_here: bool) -> None:
        directions = (b"to the gate", b"from the gate")
        mine, other = directions if opened_here else directions[::-1]
        self.connection = connection
        self._sealer, self._unsealer = Sealer(session, mine), Unsealer(session, other)
        self._pending = bytearray()
        self._end: LinkEndedError | None = None
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer(self) -> str:
        """The address of the other end, as text."""
        try:
            return write_address(*self.connection.getpeername()[:2])
        except OSError:
            return "an address that is gone"

    @property
    def num_pending(self) -> int:
        """The bytes that are still to be sent, as soon as the system takes them."""
        return len(self._pending)

    def is_silent(self, seconds: float) -> bool:
        """Whether the system of the other end has answered nothing for so long, although this one has tried again.

        A rank that is stopped is not silent: its system answers for it, also that it takes no more for now. So this is
        no work for TCP_USER_TIMEOUT, which ends such a connection, too. Raises LinkEndedError.
        """
        try:
            info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError as error:
            raise _ended(error) from error
        num_repeats, num_probes, milliseconds = _INFO.unpack(info)
        return bool(num_repeats + num_probes >= _LEAST_TRIES and milliseconds >= seconds * 1000)

    def send(self, message: bytes) -> None:
        """Send a message, now or later. Raises LinkEndedError."""
        if len(self._pending) > _MAX_PENDING_BYTES:
            raise LinkEndedError("it takes no messages any more", is_silent=True)
        self._pending += self._sealer.seal(message)
        self.flush()

    def flush(self) -> None:
        """Send what is pending, as far as the system takes it. Raises LinkEndedError."""
        while self._pending:
            try:
                del self._pending[: self.connection.send(self._pending)]
            except BlockingIOError:
                return
            except OSError as error:
                raise _ended(error) from error

    def receive(self) -> list[bytes]:
        """Return the messages that have come. Raises LinkEndedError."""
        found: list[bytes] = []
        while self._end is None:
            try:
                data = self.connection.recv(1 << 16)
                if data:
                    found += self._unsealer.feed(data)
                else:
                    self._end = LinkEndedError("it has closed the connection")
            except BlockingIOError:
                return found
            except OSError as error:
                self._end = _ended(error)
        if found:
            return found  # what came before the end; the next look finds that
        raise self._end

    def close(self) -> None:
        """End the connection."""
        self.connection.close()


def _ended(error: OSError) -> LinkEndedError:
    is_silent = isinstance(error, TimeoutError) or not isinstance(error, ConnectionError)  # no answer, or no way there
    return LinkEndedError(error.strerror or str(error), is_silent=is_silent)
