"""The rendezvous without its sockets: the messages, and the state of the rank that decides when all ranks are there.

Bytes go in, decisions come out. This module has no socket, clock or descriptor, so tests can try any order of arrival
and any garbage without waiting. `host` and `join` do the input and output.

1. Every rank but 0 sends Hello, with its descriptor.
2. Rank 0 answers Pending, and repeats it each second.
3. When all ranks are there, rank 0 sends the Roster in parts, with the descriptors.
4. Each rank answers Ready. When all have answered, rank 0 sends Go.

A rank that gives up sends Failure. The first failure wins, and all ranks raise it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from hocket.errors import RendezvousError
from hocket.runtime.ranks.rank_names import name_ranks

PROTOCOL = "hocket"
VERSION = 1
MAX_MESSAGE_BYTES = 65536
MAX_HELLO_BYTES = 4096
HELLO_OVERHEAD_BYTES = 256  # what Hello adds to a rank's own dictionary
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
    """There will be no group; this is why. follows: whether a rank had failed before."""

    message: str
    missing: list[int]
    follows: bool = False


class _Header(msgspec.Struct):
    """The fields that every version of the protocol can read."""

    kind: str
    protocol: str
    version: int


Message = Hello | Pending | Roster | Ready | Go | Failure
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_header_decoder = msgspec.msgpack.Decoder(_Header)
encode = msgspec.msgpack.encode
_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # what decoders raise


def decode(data: bytes) -> Message | None:
    """Returns the message in data, or None if data is no message of this protocol."""
    try:
        return _decoder.decode(data)
    except _NO_MESSAGE:
        return None


def hello_version(data: bytes) -> int | None:
    """Returns the protocol version of a hello, of this or a later version; None if data is no hello of Hocket."""
    try:
        header = _header_decoder.decode(data)
    except _NO_MESSAGE:
        return None
    return header.version if header.protocol == PROTOCOL and header.kind == "hello" else None


class Gathering:
    """The state of the rank that gathers others: rank 0 all ranks of the job, or the leader of a host those there.

    `here`: the ranks that meet, ascending, the gatherer first; `size`: of the job. A rank is present from its hello on;
    after a failure the gatherer only listens.

    failure: the first RendezvousError; all ranks raise it. heard: every rank whose hello arrived, even a wrong hello;
    when all are heard, no rank is left to be told of a failure.
    """

    def __init__(self, size: int, hello: Encoded, here: Sequence[int] | None = None) -> None:
        self.size = size
        self.here: Sequence[int] = range(size) if here is None else here
        self.first = self.here[0]
        self.hellos: dict[int, Encoded] = {self.first: hello}
        self.senders: dict[int, str] = {}
        self.ready: set[int] = set()
        self.heard: set[int] = {self.first}
        self.failure: RendezvousError | None = None

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come yet."""
        return [rank for rank in self.here if rank not in self.hellos]

    @property
    def complete(self) -> bool:
        """Whether all ranks came, and all agree."""
        return self.failure is None and not self.missing

    @property
    def all_ready(self) -> bool:
        """Whether all ranks have the roster."""
        return self.complete and len(self.ready) == len(self.here) - 1

    def arrive(self, data: bytes, sender: str) -> int | None:
        """Takes the first message of a connection. Returns its rank, or None for a stranger: the caller drops it.

        sender: its other end, in words.

        A hello that contradicts the group is a failure of the whole group. Its rank (or -1) is returned, so that the
        sender gets the failure as well.
        """
        version = hello_version(data)
        if version is None:
            return None
        if version != VERSION:
            return self._refuse(
                -1,
                f"{sender} speaks version {version} of the rendezvous, rank {self.first} speaks {VERSION}; "
                "start all ranks with the same Hocket",
            )
        message = decode(data)
        if not isinstance(message, Hello):
            return None
        rank = message.rank
        if message.size != self.size:
            return self._refuse(
                rank,
                f"rank {rank} ({sender}) expects {message.size} ranks, rank {self.first} expects {self.size}; "
                "tell all ranks one size, and give each job its own address",
            )
        if rank not in self.here:
            whole = self.here == range(self.size)
            expected = f"a rank from 0 to {self.size - 1}" if whole else name_ranks(self.here)
            return self._refuse(rank, f"{sender} says it is rank {rank}; expected {expected}")
        if rank in self.hellos:
            other = self.senders.get(rank, "the process that listens")
            return self._refuse(
                rank,
                f"two processes say they are rank {rank} of {self.size}: {other} and {sender}; "
                "give each rank its own number, and each job its own address",
            )
        self.heard.add(rank)
        if self.failure is None:
            self.hellos[rank], self.senders[rank] = message.hello, sender
        return rank

    def receive(self, rank: int, data: bytes | None) -> None:
        """Takes a later message of a present rank; None means the end of its connection."""
        message = None if data is None else decode(data)
        if isinstance(message, Ready) and self.complete:
            self.ready.add(rank)
        elif isinstance(message, Failure):
            self.fail(message.message, message.missing, follows=message.follows)
        else:
            what = "ended" if data is None else "sent something unexpected"
            named = f"rank {rank} of {self.size} ({self.senders.get(rank)})"
            self.fail(f"{named} {what} during the rendezvous", follows=data is None)

    def expire(self, seconds: float, advice: str = "") -> None:
        """Notes that the time is over: a failure that names the missing ranks. advice: what else to look at."""
        absent = self.missing or [rank for rank in self.here[1:] if rank not in self.ready]
        did = "did not come to the rendezvous" if self.missing else "came to the rendezvous but stopped answering"
        self.fail(
            f"{name_ranks(absent)} of {self.size} {did} within {seconds:g} s; "
            f"check whether that process started, and whether it ended early{f'; {advice}' if advice else ''}",
            self.missing,
        )

    def fail(self, message: str, missing: Sequence[int] = (), *, follows: bool = False) -> None:
        """Notes a failure; the first one wins."""
        if self.failure is None:
            self.failure = RendezvousError(message, missing=missing, follows=follows)

    def roster(self, config: Encoded) -> list[tuple[bytes, range]]:
        """Returns the messages with all hellos, each with the ranks whose descriptors go with it."""
        parts: list[tuple[bytes, range]] = []
        first, num_bytes, end = 0, 0, len(self.hellos)
        for rank in range(end + 1):
            length = len(encode(self.hellos[rank])) if rank < end else MAX_MESSAGE_BYTES
            room = MAX_MESSAGE_BYTES - MAX_HELLO_BYTES - (MAX_CONFIG_BYTES if not parts else 0)
            if rank > first and (num_bytes + length > room or rank - first == MAX_DESCRIPTORS):
                ranks = range(first, rank)
                message = Roster(first, [self.hellos[member] for member in ranks], {} if parts else config)
                parts.append((encode(message), ranks))
                first, num_bytes = rank, 0
            num_bytes += length
        return parts

    def _refuse(self, rank: int, message: str) -> int:
        if rank in self.here:
            self.heard.add(rank)
        self.fail(message)
        return rank
