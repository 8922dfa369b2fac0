"""Where rank 0 of a job over several hosts listens, and how a board says so to the others."""

import contextlib
import os
from collections.abc import Sequence

from hocket.errors import RendezvousError
from hocket.runtime.network.addresses import Address, is_numeric, read_address, resolve, write_address
from hocket.runtime.network.connecting import reason_in_words
from hocket.runtime.network.gate import Gate
from hocket.runtime.network.handshake import KEY_BYTES
from hocket.runtime.network.interfaces import choose, named_interfaces, source_towards
from hocket.runtime.rendezvous.boards.board import Board
from hocket.runtime.variables import ADDRESS

_MAX_OFFERED = 8  # addresses, in a text that a board can carry (boards/board.py)


def gate_of_rank_0(board: Board, deadline: float) -> Gate:
    """Returns the gate of rank 0: at the address that the board gives, or at all that this host offers."""
    if board.listens_at is not None:
        name, port = board.listens_at
        try:
            found = resolve(name, deadline)
        except OSError as error:
            raise RendezvousError(
                f"rank 0 on host {os.uname().nodename} is to listen at {board.where}: {reason_in_words(error, name)}; "
                "give a name of this host that all hosts know, or its IP address"
            ) from error
        # To itself, many a host is 127.0.1.1 (/etc/hosts); that says nothing of how others reach it.
        is_hidden = not is_numeric(name) and name != "localhost" and all(one.startswith("127.") for one in found)
        here = [one for one in found if source_towards(one) == one.partition("%")[0]]  # a host may lack IPv6
        return Gate(0, [(one, port) for one in (_offered() if is_hidden else (here or found[:1])[:_MAX_OFFERED])])
    offered = _offered()
    for port in board.ports:
        with contextlib.suppress(RendezvousError):  # it is in use
            return Gate(0, [(one, port) for one in offered])
    if board.ports:
        raise RendezvousError(f"rank 0 found all ports of {board.where} in use; end what uses them (`ss -ltnp`)")
    return Gate(0, [(one, 0) for one in offered])


def _offered() -> list[str]:
    return [found.host for found in choose(named_interfaces(), None)][:_MAX_OFFERED]


def write_place(addresses: Sequence[Address], key: bytes | None) -> str:
    """Returns rank 0's addresses, and the key if it travels with them, as a board carries them."""
    text = ",".join(write_address(*address) for address in addresses)
    return text if key is None else f"{text};{key.hex()}"


def read_place(text: str, where: str) -> tuple[list[Address], bytes | None]:
    """Returns rank 0's addresses and the key, if it is there. Raises RendezvousError if no rank 0 wrote the text."""
    places, _, digits = text.partition(";")
    try:
        key = bytes.fromhex(digits) if digits else None
        if key is not None and len(key) != KEY_BYTES:
            raise ValueError(f"found a key of {len(key)} bytes; expected {KEY_BYTES}")
        return [read_address(place) for place in places.split(",")], key
    except ValueError as error:
        raise RendezvousError(
            f"{where} has {places[:80]!r} where rank 0 writes its addresses: {error}; does another program write "
            f"there? Tell all ranks where rank 0 is by {ADDRESS}=HOST:PORT instead"
        ) from error
