"""Whole messages over local sockets, with open descriptors, and the identity of the process at the other end."""

import os
import socket
import struct
from collections.abc import Iterable, Sequence

_INT = struct.calcsize("i")


def send(connection: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Sends one message and duplicates of the descriptors. Raises OSError, BlockingIOError if there is no room."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
    connection.sendmsg([data], ancillary if descriptors else [], socket.MSG_NOSIGNAL)


def receive(connection: socket.socket, max_bytes: int, max_descriptors: int) -> tuple[bytes | None, list[int]]:
    """Returns the next message and its descriptors; the caller closes them.

    (None, []) means the end of the connection, or a message that exceeds the limits. Raises OSError.
    """
    data, ancillary, flags, _ = connection.recvmsg(
        max_bytes, socket.CMSG_SPACE(max_descriptors * _INT), socket.MSG_CMSG_CLOEXEC
    )
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(content) // _INT
            descriptors += struct.unpack(f"{count}i", content[: count * _INT])
    if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close(descriptors)
        return None, []
    return data, descriptors


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Returns process id and user id of the other end; the kernel noted them when it connected or began to listen."""
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _INT))
    return process, user


def close(descriptors: Iterable[int]) -> None:
    """Closes all descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
