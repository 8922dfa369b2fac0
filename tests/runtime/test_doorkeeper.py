"""The doorkeeper: whom it lets in, what it forgets, and what it survives."""

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket import _core
from hocket.runtime.network import doorkeeper, gate, handshake
from hocket.runtime.network.doorkeeper import Doorkeeper
from hocket.runtime.network.gate import MAX_STRANGERS
from hocket.runtime.network.handshake import Credentials, Purpose

CREDENTIALS = Credentials(bytes(range(32)), "0badcafe", 2, _core.LAYOUT)
PURPOSE = Purpose(5, 1, 0)


class Core:
    """What a doorkeeper sees of the core: the connections that it wants, and takes."""

    def __init__(self) -> None:
        self.descriptor, self._bell = os.pipe()
        self.wanted: list[tuple[int, ...]] = []
        self.given: list[tuple[Purpose, socket.socket, bytes]] = []
        self.communicators = {PURPOSE.communicator}

    def ring(self) -> None:
        os.write(self._bell, bytes(1))

    def take_wanted(self) -> list[tuple[int, ...]]:
        os.read(self.descriptor, 64)
        found, self.wanted = self.wanted, []
        return found

    def has(self, communicator: int) -> bool:
        return communicator in self.communicators

    def give(
        self, communicator: int, source: int, target: int, rail: int, num_rails: int, descriptor: int, greeting: bytes
    ) -> None:
        purpose = Purpose(communicator, source, target, rail, num_rails)
        self.given.append((purpose, socket.socket(fileno=descriptor), greeting))

    def close(self) -> None:
        for _, connection, _ in self.given:
            connection.close()
        for descriptor in (self.descriptor, self._bell):
            os.close(descriptor)


@pytest.fixture
def core() -> Iterator[Core]:
    one = Core()
    yield one
    one.close()


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """Where rank 1 is to be found: nobody listens there yet."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one


@pytest.fixture
def door(core: Core, elsewhere: socket.socket) -> Iterator[Doorkeeper]:
    """The doorkeeper of rank 0 of two; rank 1 is the test."""
    one = Doorkeeper(core, 0)
    one.open(CREDENTIALS, [one.addresses, [elsewhere.getsockname()]])
    yield one
    one.close()


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)  # between two looks


def visit(door: Doorkeeper, source: str = "127.0.0.1") -> tuple[socket.socket, bytes]:
    """Open a connection as rank 1 does, up to the answer; return it, and the greeting that is to come."""
    connection = socket.create_connection(door.addresses[0], source_address=(source, 0))
    challenged = connection.recv(handshake.CHALLENGE_BYTES, socket.MSG_WAITALL)
    answered = handshake.answer(CREDENTIALS, PURPOSE, challenged)
    assert answered is not None
    connection.sendall(answered[0])
    return connection, answered[1]


def is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError, ConnectionResetError):
        while data := connection.recv(4096, socket.MSG_DONTWAIT):
            assert data
        return True
    return False


def test_a_connection_of_another_protocol_is_ended(door: Doorkeeper) -> None:
    with socket.create_connection(door.addresses[0]) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n" + bytes(200))
        until(lambda: is_closed(stranger), "what is no answer is refused")


def test_who_says_nothing_is_ended_in_time(door: Doorkeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "STRANGER_SECONDS", 0.2)
    with socket.create_connection(door.addresses[0]) as silent, socket.create_connection(door.addresses[0]) as half:
        half.sendall(bytes(handshake.ANSWER_BYTES - 1))
        until(lambda: is_closed(silent) and is_closed(half), "nobody may wait for ever")
    until(lambda: door._gate._strangers == [], "and nothing is kept of them")


def test_strangers_are_bounded_and_ranks_still_let_in(door: Doorkeeper, core: Core) -> None:
    strangers = [socket.create_connection(door.addresses[0]) for _ in range(3 * MAX_STRANGERS)]
    until(lambda: sum(map(is_closed, strangers)) >= 2 * MAX_STRANGERS, "some have to go")
    connection, expected = visit(door)
    until(lambda: core.given != [], "the one that belongs here is handed over")
    (purpose, _, greeting) = core.given[0]
    assert purpose == PURPOSE and handshake.is_greeting(expected, greeting)
    assert len(door._gate._strangers) <= MAX_STRANGERS
    for one in (*strangers, connection):
        one.close()


def test_of_many_that_come_at_once_none_is_pushed_out_before_it_could_answer(
    door: Doorkeeper, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "PATIENCE_SECONDS", gate.STRANGER_SECONDS)
    with contextlib.ExitStack() as stack:
        first, _ = visit(door)
        until(lambda: len(core.given) == 1, "it is alone")
        others = [stack.enter_context(socket.create_connection(door.addresses[0])) for _ in range(2 * MAX_STRANGERS)]

        def has_challenge(one: socket.socket) -> bool:
            with contextlib.suppress(BlockingIOError):
                return bool(one.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
            return False

        until(lambda: sum(map(has_challenge, others)) == MAX_STRANGERS, "so many come in")
        challenged = others[0].recv(handshake.CHALLENGE_BYTES, socket.MSG_WAITALL)
        answered = handshake.answer(CREDENTIALS, PURPOSE, challenged)
        assert answered is not None
        others[0].sendall(answered[0])
        until(lambda: len(core.given) == 2, "one of them belongs here")
        until(lambda: sum(map(has_challenge, others[1:])) == MAX_STRANGERS, "and the next one comes in its place")
        first.close()


def test_a_rank_that_does_not_answer_yet_is_visited_again(
    door: Doorkeeper, core: Core, elsewhere: socket.socket
) -> None:
    core.wanted.append(Purpose(5, 0, 1))
    core.ring()
    until(lambda: any(one.pause > 0.02 for one in door._visits), "it is refused more than once")
    elsewhere.listen()
    elsewhere.settimeout(20)
    for attempt in ("says something else", "has another key", "belongs here"):
        connection, _ = elsewhere.accept()
        with connection:
            if attempt == "says something else":
                connection.sendall(bytes(handshake.CHALLENGE_BYTES))
                continue
            challenged = handshake.challenge()
            connection.sendall(challenged)
            answered = connection.recv(handshake.ANSWER_BYTES, socket.MSG_WAITALL)
            admitted = handshake.admit(CREDENTIALS, 1, challenged, answered)
            assert admitted is not None and admitted[0] == Purpose(5, 0, 1)
            assert core.given == [], "not before the other end has proved who it is"
            connection.sendall(bytes(handshake.GREETING_BYTES) if attempt == "has another key" else admitted[1])
            if attempt == "belongs here":
                until(lambda: core.given != [], "it is handed over")
    assert core.given[0][0] == Purpose(5, 0, 1) and door._visits == []


def test_an_approach_that_is_not_answered_comes_last_from_then_on(
    core: Core, elsewhere: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(2):  # from then on the system answers nothing
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        monkeypatch.setattr(doorkeeper, "_CONNECT_SECONDS", 0.05)
        elsewhere.listen()
        elsewhere.settimeout(20)
        door = Doorkeeper(core, 0)
        door.open(CREDENTIALS, [door.addresses, [full.getsockname(), elsewhere.getsockname()]])
        stack.callback(door.close)
        for lane in (5, 6):
            core.communicators.add(lane)
            core.wanted.append(Purpose(lane, 0, 1))
            core.ring()
            until(lambda: len(door._visits) == 1, "it is wanted")
            [visit] = door._visits
            assert visit.approaches[0][0] == (full if lane == 5 else elsewhere).getsockname()
            connection, _ = elsewhere.accept()
            with connection:
                challenged = handshake.challenge()
                connection.sendall(challenged)
                answered = connection.recv(handshake.ANSWER_BYTES, socket.MSG_WAITALL)
                admitted = handshake.admit(CREDENTIALS, 1, challenged, answered)
                assert admitted is not None
                connection.sendall(admitted[1])
                until(lambda: door._visits == [], "it is handed over")


def options(connection: socket.socket) -> tuple[int, int, bytes]:
    told = [connection.getsockopt(socket.IPPROTO_TCP, one) for one in (socket.TCP_NODELAY, socket.TCP_QUICKACK)]
    return told[0], told[1], connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.mark.parametrize(("source", "is_own"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_connection_that_comes_in_sends_at_once_and_to_the_own_host_by_reno(
    source: str, is_own: bool, door: Doorkeeper, core: Core
) -> None:
    usual = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_bytes().strip()
    connection, _ = visit(door, source)
    with connection:
        until(lambda: core.given != [], "it is handed over")
        assert options(core.given[0][1]) == (1, 0, b"reno" if is_own else usual)


def test_a_connection_that_is_opened_sends_at_once_and_to_the_own_host_by_reno(
    door: Doorkeeper, core: Core, elsewhere: socket.socket
) -> None:
    elsewhere.listen()
    elsewhere.settimeout(20)
    core.wanted.append((5, 0, 1))
    core.ring()
    connection, _ = elsewhere.accept()
    with connection:
        challenged = handshake.challenge()
        connection.sendall(challenged)
        admitted = handshake.admit(
            CREDENTIALS, 1, challenged, connection.recv(handshake.ANSWER_BYTES, socket.MSG_WAITALL)
        )
        assert admitted is not None
        connection.sendall(admitted[1])
        until(lambda: core.given != [], "it is handed over")
        assert options(core.given[0][1]) == (1, 0, b"reno")


def test_what_a_communicator_wanted_that_has_left_is_forgotten(door: Doorkeeper, core: Core) -> None:
    core.wanted.append(Purpose(5, 0, 1))
    core.ring()
    until(lambda: door._visits != [], "it sets out")
    core.communicators.clear()
    core.ring()
    until(lambda: door._visits == [], "and comes back for good")


def test_a_doorkeeper_without_descriptors_goes_on_later(
    door: Doorkeeper, core: Core, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    visitor = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limit[1]), limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        visitor.connect(door.addresses[0])
        until(lambda: door._gate.has_complained, "it says what it lacks")
        until(lambda: is_closed(visitor), "and refuses who comes")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for descriptor in held:
            os.close(descriptor)
        visitor.close()
    assert "rank 0 cannot connect to others: Too many open files; raise `ulimit -n`" in capsys.readouterr().err
    connection, _ = visit(door)
    until(lambda: core.given != [], "with descriptors it goes on")
    connection.close()
