"""Target: what boards tell: answers of a store, lines of a process manager, and the text in which rank 0 is found."""

import re
import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hocket.errors import RendezvousError
from hocket.runtime.network.addresses import Address, is_numeric
from hocket.runtime.network.handshake import KEY_BYTES
from hocket.runtime.network.interfaces import source_towards
from hocket.runtime.rendezvous.boards import agent_store, pmi
from hocket.runtime.rendezvous.boards.agent_store import AgentStore
from hocket.runtime.rendezvous.boards.board import MAX_TEXT_BYTES, checked_found
from hocket.runtime.rendezvous.boards.process_manager import ProcessManager
from hocket.runtime.rendezvous.first_place import read_place, write_place

NUM_KINDS = 3
_STORE, _MANAGER, _TEXT = range(NUM_KINDS)
# The first byte says of which kind the others are, and how both ends behave.
_IS_RANK_0, _GOES_SILENT, _ECHOES = 0x10, 0x20, 0x40
_MARK_BEFORE = "0badcafe"
_PING = b"\x0d"
_MOST_CHARACTERS = 2000  # of a message


def handle(data: bytes) -> None:
    """Ask a board on which these bytes are, and look which way leads to the rank 0 that it tells of."""
    place = place_in(data) if data else None
    if place is None:
        return
    addresses, key = place
    assert addresses and (key is None or len(key) == KEY_BYTES)
    for host, port in addresses:
        assert host and 0 < port < 1 << 16
        if is_numeric(host):
            assert isinstance(source_towards(host), str | None)
    if not any("%" in host for host, _ in addresses):  # an interface is not passed on
        assert read_place(write_place(addresses, key), "the board") == place


def place_in(data: bytes) -> tuple[list[Address], bytes | None] | None:
    """Return where rank 0 is, by what a board tells, and the key; None if it tells nothing, or what is refused."""
    text = None
    try:
        text = _ask(data)
        return None if text is None else read_place(text, "the board")
    except RendezvousError as error:
        said, (places, _, digits) = str(error), (text or "").partition(";")
        assert len(said) < _MOST_CHARACTERS and said.isprintable(), "the message is none for a person"
        assert len(digits) < 8 or digits in places or digits not in said, "the message tells the key"
        return None


def kind_of(data: bytes) -> int:
    """Return of which kind an input is."""
    return min(data[0] & 3, _TEXT)


def _ask(data: bytes) -> str | None:
    ways, said, kind = data[0], data[1:], kind_of(data)
    if kind == _STORE:
        return _ask_store(ways, said)
    if kind == _MANAGER:
        return _ask_manager(ways, said)
    return checked_found(said.decode("latin-1"), "the board")


class _Connection:
    """A connection to a store. It says these bytes in small parts, and if it echoes, what a ping asks for."""

    def __init__(self, ways: int, said: bytes) -> None:
        self._ways, self._said = ways, said

    def sendall(self, data: bytes) -> None:
        if data[:1] == _PING and self._ways & _ECHOES:
            self._said = data[1:] + self._said

    def recv(self, count: int) -> bytes:
        part, self._said = self._said[: min(count, 100)], self._said[min(count, 100) :]
        if not part and self._ways & _GOES_SILENT:
            raise TimeoutError
        return part

    def setsockopt(self, *_: Any) -> None: ...

    def settimeout(self, _: float) -> None: ...

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None: ...


def _ask_store(ways: int, said: bytes) -> str | None:
    board = AgentStore("store", 29500, "run")
    with (
        patch.object(socket, "create_connection", lambda *_, **__: _Connection(ways, said)),
        patch.multiple(agent_store, _PAUSE_SECONDS=0.0, _marks={board._place: _MARK_BEFORE}),
    ):
        return _use(board, ways)


def _ask_manager(ways: int, said: bytes) -> str | None:
    ours, theirs = socket.socketpair()
    no_end = SimpleNamespace(register=lambda _: None)  # of the process, where it would say farewell
    with ours, theirs, patch.multiple(pmi, ANSWER_SECONDS=0.0, _talks={}, atexit=no_end):
        ours.sendall(said)
        if not ways & _GOES_SILENT:
            ours.shutdown(socket.SHUT_WR)
        return _use(ProcessManager(theirs.fileno(), 0.0), ways)


def _use(board: AgentStore | ProcessManager, ways: int) -> str | None:
    if ways & _IS_RANK_0:
        board.publish("hxa:4000")
        return None
    found = board.find(0.0) or board.find(0.0)
    assert found is None or re.fullmatch(f"[!-~]{{1,{MAX_TEXT_BYTES}}}", found), "no board can carry that"
    return found
