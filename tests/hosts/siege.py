"""Strangers who connect to the listeners of a job, as fast as they can or at a rate, and say what is no handshake.

Some have recorded a handshake of the job, and say again what its rank has answered to another challenge.
"""

import contextlib
import mmap
import os
import random
import secrets
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence

from hocket.runtime.network import handshake
from hocket.runtime.network.gate import Admitted, Gate, in_turn, send
from hocket.runtime.network.handshake import Credentials, Purpose

OTHER_JOB = Credentials(bytes(range(1, 33)), "another", 4, 1)
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
MOST_OPEN = 300
COMMUNICATOR = 5  # of recorded handshakes: one that has left
_NUM_CONNECTED, _NUM_REFUSED, _NUM_ADMITTED, _STOPS = range(4)  # what both processes see
_NUM_KINDS, _BEGINS_REPLAY, _REPLAYS, _HAS_REPLAYED = 6, 1, 3, 6

Address = tuple[str, int]


def recorded(job: Credentials, purpose: Purpose) -> bytes:
    """Return what a rank of the job has answered to a challenge."""
    challenged = handshake.challenge()
    answered = handshake.answer(job, purpose, challenged)
    assert answered is not None
    assert handshake.admit(job, purpose.target, challenged, answered[0]) is not None, "it was let in then"
    return answered[0]


def recorded_at_doors(job: Credentials) -> list[bytes]:
    """Return, by rank, what another rank of the job has answered there, for COMMUNICATOR."""
    return [recorded(job, Purpose(COMMUNICATOR, (rank + 1) % job.size, rank)) for rank in range(job.size)]


class Siege:
    """A process that attacks these addresses. From `with` to the end of its block."""

    def __init__(
        self, addresses: Sequence[Address], answers: Sequence[bytes], *, most: int | None = None, rate: float = 0.0
    ) -> None:
        """answers: by address, what was recorded there; most: connections in all; rate: of them in a second, 0 for as
        fast as it can.
        """
        self._shared = memoryview(mmap.mmap(-1, 64)).cast("Q")
        self._process = os.fork()
        if self._process == 0:
            status = 1
            try:
                _Besieger(addresses, answers, self._shared, most, rate).run()
                status = 0
            finally:
                os._exit(status)

    def __enter__(self) -> "Siege":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._shared[_STOPS] = 1
            self.wait()

    @property
    def num_connected(self) -> int:
        """How many connections were opened so far."""
        return self._shared[_NUM_CONNECTED]

    @property
    def num_refused(self) -> int:
        """How many connections were ended after a recorded answer."""
        return self._shared[_NUM_REFUSED]

    @property
    def num_admitted(self) -> int:
        """How many connections were greeted after a recorded answer."""
        return self._shared[_NUM_ADMITTED]

    def wait(self) -> None:
        """Return once the strangers have gone."""
        process, self._process = self._process, 0
        assert os.waitpid(process, 0)[1] == 0


class _Besieger:
    def __init__(
        self,
        addresses: Sequence[Address],
        answers: Sequence[bytes],
        shared: memoryview,
        most: int | None,
        rate: float,
    ) -> None:
        self._targets = list(zip(addresses, answers, strict=True))
        self._shared, self._most, self._rate = shared, most, rate
        self._selector = selectors.DefaultSelector()
        self._open: deque[socket.socket] = deque()
        self._choose = random.Random(7)

    def run(self) -> None:
        begun, number = time.monotonic(), 0
        while not self._shared[_STOPS] and (self._most is None or number < self._most):
            due = begun + number / self._rate if self._rate else 0.0
            if time.monotonic() >= due:
                number += self._visit(number)
            self._attend(max(min(due - time.monotonic(), 0.1), 0.0) if self._rate else 0.0)
        for one in self._open:
            one.close()

    def _visit(self, number: int) -> int:
        if len(self._open) >= MOST_OPEN:
            self._end(self._open.popleft())
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        address, answered = self._targets[number // _NUM_KINDS % len(self._targets)]
        with contextlib.suppress(BlockingIOError):
            one.connect(address)
        self._open.append(one)
        self._selector.register(one, selectors.EVENT_WRITE, (number % _NUM_KINDS, answered))
        return 1

    def _attend(self, seconds: float) -> None:
        for key, events in self._selector.select(seconds):
            one, (kind, answered) = key.fileobj, key.data
            assert isinstance(one, socket.socket)
            try:
                if events & selectors.EVENT_WRITE:
                    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        raise ConnectionRefusedError  # nobody listens yet
                    self._shared[_NUM_CONNECTED] += 1
                    self._selector.modify(one, selectors.EVENT_READ, key.data)
                    self._speak(one, kind)
                elif not one.recv(4096):
                    raise ConnectionResetError
                elif kind == _BEGINS_REPLAY:
                    one.send(answered[: self._choose.randrange(1, len(answered))])
                elif kind == _REPLAYS:
                    one.send(answered)
                    self._selector.modify(one, selectors.EVENT_READ, (_HAS_REPLAYED, answered))
                elif kind == _HAS_REPLAYED:
                    self._shared[_NUM_ADMITTED] += 1
            except BlockingIOError:
                continue
            except OSError:
                with contextlib.suppress(ValueError):
                    self._open.remove(one)
                self._shared[_NUM_REFUSED] += kind == _HAS_REPLAYED
                self._end(one)

    def _speak(self, one: socket.socket, kind: int) -> None:
        """Kinds that wait for no challenge; one says nothing at all."""
        if kind == 0:
            one.send(secrets.token_bytes(self._choose.randrange(1, 300)))
        elif kind == 4:
            one.send(b"GET / HTTP/1.1\r\nHost: rank0\r\n\r\n")
        elif kind == 5:
            one.send(TLS_HELLO)

    def _end(self, one: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        one.close()


@contextlib.contextmanager
def other_gate(job: Credentials = OTHER_JOB) -> "contextlib.AbstractContextManager[Address]":  # type: ignore[misc]
    """Within this block, a process that is no rank keeps a gate of this job, which does the same work as theirs."""
    gate = Gate(0, [("127.0.0.1", 0)])
    process = os.fork()
    if process == 0:
        try:
            selector = selectors.DefaultSelector()
            gate.open(job, selector, _greet)
            while True:
                times = gate.expire(time.monotonic())
                for key, _ in in_turn(selector.select(max(min(times) - time.monotonic(), 0.0) if times else None)):
                    gate.handle(key.fileobj, key.data)
        finally:
            os._exit(1)
    address = gate.addresses[0]
    gate.close()
    try:
        yield address  # type: ignore[misc]
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _greet(admitted: Admitted) -> None:
    with admitted.connection:
        send(admitted.connection, admitted.greeting)
