"""The rendezvous without its sockets: the messages, and the state of rank 0 that decides when all ranks are there.

Bytes go in, decisions come out; there is no socket, clock or descriptor here, so that any order of arrival and any
garbage can be tested without waiting. `rendezvous` does the input and output.

A meeting runs: every rank but 0 sends Hello (its descriptor travels beside it); rank 0 answers Pending, and again each
second; once all are there it sends the Roster in parts (descriptors beside them); each rank answers Ready; when all
did, rank 0 sends Go. Whoever gives up sends Failure. The first failure wins, and all ranks raise it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from hocket.errors import RendezvousError

PROTOCOL = "hocket"
VERSION = 1
MAX_MESSAGE_BYTES = 65536
MAX_HELLO_BYTES = 4096
HELLO_OVERHEAD_BYTES = 256  # what Hello adds around a rank's own dictionary
MAX_CONFIG_BYTES = 32768
MAX_MISSING = 1000  # named at most in one message
MAX_DESCRIPTORS = 200  # in one message; the kernel refuses more than 253

Encoded = dict[str, Any]


class Hello(msgspec.Struct, tag="hello", tag_field="kind"):
    """The first message of every rank but 0."""

    protocol: str
    version: int
    rank: int
    size: int
    hello: Encoded


class Pending(msgspec.Struct, tag="pending", tag_field="kind"):
    """Rank 0 has seen the hello and waits for others."""

    missing: list[int]


class Roster(msgspec.Struct, tag="roster", tag_field="kind"):
    """A part of the members, in rank order; rank 0's configuration is in the first part."""

    first: int
    hellos: list[Encoded]
    config: Encoded


class Ready(msgspec.Struct, tag="ready", tag_field="kind"):
    """The rank has the whole roster."""


class Go(msgspec.Struct, tag="go", tag_field="kind"):
    """All ranks have the whole roster."""


class Failure(msgspec.Struct, tag="failure", tag_field="kind"):
    """There will be no group; this is why."""

    message: str
    missing: list[int]


class _Header(msgspec.Struct):
    """What stays readable in every version of the protocol."""

    kind: str
    protocol: str
    version: int


Message = Hello | Pending | Roster | Ready | Go | Failure
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_header_decoder = msgspec.msgpack.Decoder(_Header)
encode = msgspec.msgpack.encode


def decode(data: bytes) -> Message | None:
    """The message in data, or None if it is none of ours."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def hello_version(data: bytes) -> int | None:
    """The protocol version of a hello, ours or a later one's, or None if data is no hello of Hocket."""
    try:
        header = _header_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return header.version if header.protocol == PROTOCOL and header.kind == "hello" else None


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 2", "ranks 1, 3", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 20 more"."""
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + shown


class Gathering:
    """What rank 0 knows. A rank is present from its hello on; after a failure the gathering only listens.

    failure is the first RendezvousError, which all ranks shall raise. heard holds every rank whose hello arrived,
    also a wrong one: when all were heard nobody is left to be told.
    """

    def __init__(self, size: int, hello: Encoded) -> None:
        self.size = size
        self.hellos: dict[int, Encoded] = {0: hello}
        self.processes: dict[int, int] = {}
        self.ready: set[int] = set()
        self.heard: set[int] = {0}
        self.failure: RendezvousError | None = None

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come yet."""
        return [rank for rank in range(self.size) if rank not in self.hellos]

    @property
    def complete(self) -> bool:
        """All ranks came, and all agree."""
        return self.failure is None and len(self.hellos) == self.size

    @property
    def all_ready(self) -> bool:
        """All ranks have the roster."""
        return self.complete and len(self.ready) == self.size - 1

    def arrive(self, data: bytes, process: int) -> int | None:
        """Takes the first message of a connection. Returns its rank, or None for a stranger, who is to be dropped.

        A hello that contradicts the group is a failure of the whole group; its rank (or -1) is returned, so that the
        sender is told as well.
        """
        version = hello_version(data)
        if version is None:
            return None
        if version != VERSION:
            return self._refuse(
                -1,
                f"process {process} speaks version {version} of the rendezvous, rank 0 speaks {VERSION}; "
                "start all ranks with the same Hocket",
            )
        message = decode(data)
        if not isinstance(message, Hello):
            return None
        rank = message.rank
        if message.size != self.size:
            return self._refuse(
                rank, f"rank {rank} (process {process}) expects {message.size} ranks, rank 0 expects {self.size}"
            )
        if not 0 <= rank < self.size:
            return self._refuse(
                rank, f"process {process} says it is rank {rank}; expected a rank from 0 to {self.size - 1}"
            )
        if rank in self.hellos:
            other = f"process {self.processes[rank]}" if rank in self.processes else "the process that listens"
            return self._refuse(
                rank,
                f"two processes say they are rank {rank} of {self.size}: {other} and process {process}; "
                "give each rank its own number, and each job its own address",
            )
        self.heard.add(rank)
        if self.failure is None:
            self.hellos[rank], self.processes[rank] = message.hello, process
        return rank

    def receive(self, rank: int, data: bytes | None) -> None:
        """Takes a later message of a present rank; None is the end of its connection."""
        message = None if data is None else decode(data)
        if isinstance(message, Ready) and self.complete:
            self.ready.add(rank)
        elif isinstance(message, Failure):
            self.fail(message.message, message.missing)
        else:
            what = "ended" if data is None else "sent something unexpected"
            self.fail(f"rank {rank} of {self.size} (process {self.processes.get(rank)}) {what} during the rendezvous")

    def expire(self, seconds: float) -> None:
        """The time is over."""
        absent = self.missing or [rank for rank in range(1, self.size) if rank not in self.ready]
        did = "did not come to the rendezvous" if self.missing else "came to the rendezvous but stopped answering"
        self.fail(
            f"{name_ranks(absent)} of {self.size} {did} within {seconds:g} s; "
            "see whether that process started, and whether it ended early",
            self.missing,
        )

    def fail(self, message: str, missing: Sequence[int] = ()) -> None:
        """Notes a failure; the first one wins."""
        if self.failure is None:
            self.failure = RendezvousError(message, missing=missing)

    def roster(self, config: Encoded) -> list[tuple[bytes, range]]:
        """The messages that introduce all members, each with the ranks whose descriptors go beside it."""
        parts: list[tuple[bytes, range]] = []
        first, num_bytes = 0, 0
        for rank in range(self.size + 1):
            length = len(encode(self.hellos[rank])) if rank < self.size else MAX_MESSAGE_BYTES
            room = MAX_MESSAGE_BYTES - MAX_HELLO_BYTES - (MAX_CONFIG_BYTES if not parts else 0)
            if rank > first and (num_bytes + length > room or rank - first == MAX_DESCRIPTORS):
                ranks = range(first, rank)
                message = Roster(first, [self.hellos[member] for member in ranks], {} if parts else config)
                parts.append((encode(message), ranks))
                first, num_bytes = rank, 0
            num_bytes += length
        return parts

    def _refuse(self, rank: int, message: str) -> int:
        if 0 <= rank < self.size:
            self.heard.add(rank)
        self.fail(message)
        return rank
