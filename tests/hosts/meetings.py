"""How long many ranks take to meet, and how long the gate of one takes for many handshakes at once."""

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import hocket
from hocket.runtime.network import handshake
from hocket.runtime.network.gate import receive, send
from hocket.runtime.network.handshake import Credentials, Purpose
from tests.hosts.pretended import Job
from tests.hosts.siege import Address, other_gate

MAX_HOSTS = 8
LIMIT_SECONDS = 60.0
SPARE_DESCRIPTORS = 100


def meet(size: int) -> dict[str, Any]:
    """Let so many ranks meet, each a process, on pretended hosts over loopback.

    init_seconds: in hocket.init, of the rank that was in it for longest. So it counts that the other processes have
    still to start. meeting_seconds: from the moment when the last rank calls hocket.init until all have returned.
    """
    called_at = [0.0]  # of each process its own

    def before(rank: int) -> None:
        called_at[0] = time.monotonic()

    def program(comm: hocket.Communicator) -> tuple[float, float]:
        returned_at = time.monotonic()
        assert comm.all_reduce(np.ones(1))[0] == comm.size
        return called_at[0], returned_at

    num_hosts = min(MAX_HOSTS, size)
    with Job(program, [rank * num_hosts // size for rank in range(size)], before=before) as job:
        outcomes = job.outcomes()
    wrong = [repr(one) for one in outcomes if one.error is not None or one.signal]
    found: dict[str, Any] = {"ranks": size, "hosts": num_hosts, "wrong": wrong}
    if not wrong:
        called, returned = zip(*(one.value for one in outcomes), strict=True)
        found["init_seconds"] = max(end - begin for begin, end in zip(called, returned, strict=True))
        found["meeting_seconds"] = max(returned) - max(called)
    return found


@dataclass
class _Visit:
    """A connection to the gate. expected: the greeting, once the challenge is answered."""

    source: int
    connection: socket.socket
    said: bytes = b""
    expected: bytes | None = None


def shake_hands(number: int) -> dict[str, Any]:
    """Open so many connections at once, as that many ranks, to one gate in another process.

    seconds: from the first attempt to the last greeting. again: connections that the gate has pushed out to make room
    for others, which then come again, as those of ranks do.
    """
    job = Credentials(bytes(range(32)), "drill", number + 1, 1)
    with _descriptors(number), other_gate(job) as address, selectors.DefaultSelector() as selector:
        begun = time.monotonic()
        for source in range(1, number + 1):
            _visit(selector, address, source)
        num_done = num_again = 0
        while num_done < number and time.monotonic() < begun + LIMIT_SECONDS:
            for key, _ in selector.select(1.0):
                is_done = _hear(job, key.data)
                if is_done is None:
                    continue
                selector.unregister(key.fileobj)
                key.data.connection.close()
                if is_done:
                    num_done += 1
                else:
                    num_again += 1
                    _visit(selector, address, key.data.source)
        seconds = time.monotonic() - begun
        for key in list(selector.get_map().values()):
            key.data.connection.close()
    wrong = [] if num_done == number else [f"{number - num_done} were not let in"]
    return {"handshakes": number, "seconds": seconds, "again": num_again, "wrong": wrong}


def _visit(selector: selectors.BaseSelector, address: Address, source: int) -> None:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        connection.connect(address)
    selector.register(connection, selectors.EVENT_READ, _Visit(source, connection))


def _hear(job: Credentials, visit: _Visit) -> bool | None:
    """Handle what has come; return True once the handshake is done, False if the gate has ended it."""
    length = handshake.CHALLENGE_BYTES if visit.expected is None else handshake.GREETING_BYTES
    data = receive(visit.connection, length - len(visit.said))
    if data is None:
        return False
    visit.said += data
    if len(visit.said) < length:
        return None
    if visit.expected is not None:
        return handshake.is_greeting(visit.expected, visit.said)
    answered = handshake.answer(job, Purpose(5, visit.source, 0), visit.said)
    if answered is None:
        return False
    visit.said, visit.expected = b"", answered[1]
    return None if send(visit.connection, answered[0]) else False


@contextlib.contextmanager
def _descriptors(number: int) -> Iterator[None]:
    """Within this block, this process may have so many sockets, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + SPARE_DESCRIPTORS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
