"""Breaks the connections of the process that calls, as a firewall or a proxy does it: both ends see a reset."""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import hocket


def reset_data(comm: hocket.Communicator) -> int:
    """Reset all connections that carry data of this rank; return how many there were."""
    kept = _links(comm)
    found = [one for one in _connected() if one not in kept]
    for one in found:
        _reset(one)
    return len(found)


def reset_link(comm: hocket.Communicator) -> int:
    """Reset the connections of this rank, the leader of its host, to other leaders; return how many there were."""
    found = _links(comm)
    for one in found:
        _reset(one)
    return len(found)


def _links(comm: hocket.Communicator) -> set[int]:
    agent = comm.context._door._agent  # type: ignore[union-attr]
    return set() if agent is None else {peer.link.connection.fileno() for peer in agent._peers}


def _connected() -> Iterator[int]:
    for path in Path("/proc/self/fd").iterdir():
        try:
            copy = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            continue  # it is no socket
        with copy:
            try:
                copy.getpeername()
            except OSError:
                continue
            if copy.family in (socket.AF_INET, socket.AF_INET6):
                yield int(path.name)


def _reset(descriptor: int) -> None:
    """Connect to nothing, which Linux does by a reset."""
    nothing = struct.pack("H14x", socket.AF_UNSPEC)
    if ctypes.CDLL(None, use_errno=True).connect(descriptor, nothing, len(nothing)):
        raise OSError(ctypes.get_errno(), "connect")
