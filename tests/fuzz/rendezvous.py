"""Targets: one message of the rendezvous, and whole meetings at rank 0."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from hocket.errors import RendezvousError
from hocket.runtime.rendezvous import protocol
from hocket.runtime.rendezvous.protocol import Failure, Gathering, Go, Hello, Pending, Ready, Roster, encode
from tests.fuzz import inputs

SIZE = 3
_HELLO = {"presence": 4096, "build": ("1", 7), "cores": [[0], None], "link": None, "door": ("127.0.0.1", 4000)}
_ODD: tuple[Any, ...] = (  # values that a field may not have, or that stand at a limit
    *(-1, 0, 1, SIZE, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, 1.0, float("nan"), None, True, "", "hocket", "x" * 300, b"", b"\xff" * 40),
    *([], [0], [[]], {}, {"kind": "hello"}, {"a": {}}, msgspec.msgpack.Ext(5, b"abc")),
)
_BEGIN, _DEPTH = b"\x81\xa1a", 900
_DEEP = msgspec.Raw(_BEGIN * _DEPTH + b"\xc0")  # a dictionary in a dictionary in ...


def hello(rank: int, size: int = SIZE) -> Hello:
    """Return the first message of a rank."""
    return Hello(protocol.PROTOCOL, protocol.VERSION, rank, size, _HELLO)


VALID = (
    *(hello(1), hello(2), Pending([1, 2]), Roster(0, [_HELLO, _HELLO], {"policy": ""}), Roster(2, [_HELLO], {})),
    *(Ready(), Go(), Failure("rank 1 gave up", [2]), Failure("", [], True)),
)
_ENCODED = [encode(one) for one in VALID]
_BUILTIN: list[dict[str, Any]] = [msgspec.msgpack.decode(one) for one in _ENCODED]


def draw_message(choose: Random) -> bytes:
    """Return a message with a few changes, of its fields or of its bytes."""
    if choose.random() < 0.4:
        return inputs.mutate(_ENCODED, choose)
    message = dict(_BUILTIN[int(choose.random() * len(_BUILTIN))])
    for _ in range(1 + int(choose.random() * 2)):
        names = list(message) or ["kind"]
        name = names[int(choose.random() * len(names))] if choose.random() < 0.9 else "other"
        if choose.random() < 0.1:
            message.pop(name, None)
        else:
            message[name] = _ODD[int(choose.random() * len(_ODD))] if choose.random() < 0.99 else _DEEP
    return encode(message)


def handle_message(data: bytes) -> None:
    """Decode a message twice, by both decoders, and encode it again."""
    message, version = protocol.decode(data), protocol.hello_version(data)
    if message is None:
        return
    assert type(message) in (Hello, Pending, Roster, Ready, Go, Failure)
    assert (version is not None) == (isinstance(message, Hello) and message.protocol == protocol.PROTOCOL)
    if isinstance(message, Hello) and version is not None:
        assert message.version == version
    again = encode(message)
    assert len(again) <= 2 * len(data) + 200, "what is passed on is much longer than what came"
    assert encode(protocol.decode(again)) == again


# Meetings ------------------------------------------------------------------------------------------------------------

# A meeting is a list of events: one byte says what happens or which connection is meant, two how long the message is.
_NUM_CONNECTIONS, _EXPIRE, _CANCEL = 5, 5, 6
_END = 0xFFFF  # as a length: the connection ends


def event(what: int, message: bytes | None = b"") -> bytes:
    """Return one event."""
    length = _END if message is None else len(message)
    return bytes((what,)) + length.to_bytes(2, "little") + (message or b"")


def _events(data: bytes) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    at = 0
    while at + 3 <= len(data):
        length = int.from_bytes(data[at + 1 : at + 3], "little")
        # One message at a time comes, and host.py reads this much of it at most.
        message = None if length == _END else data[at + 3 : at + 3 + min(length, protocol.MAX_HELLO_BYTES)]
        found.append((data[at], message or None))
        at += 3 + (0 if length == _END else length)
    return found


def draw_meeting(choose: Random) -> bytes:
    """Return a good meeting in which some events are repeated, lost, exchanged or others."""
    told = [
        event(0, encode(hello(1))),
        event(1, encode(hello(2))),
        event(0, encode(Ready())),
        event(1, encode(Ready())),
    ]
    for _ in range(int(choose.random() * 4)):
        at, kind = int(choose.random() * len(told)), int(choose.random() * 6)
        if kind == 0:
            told.insert(at, told[int(choose.random() * len(told))])
        elif kind == 1 and len(told) > 1:
            told.pop(at)
        elif kind == 2:
            other = int(choose.random() * len(told))
            told[at], told[other] = told[other], told[at]
        elif kind == 3:
            told.insert(at, event(int(choose.random() * _NUM_CONNECTIONS), None))
        elif kind == 4:
            told.insert(at, event(_EXPIRE + int(choose.random() * 2)))
        else:
            told.insert(at, event(int(choose.random() * _NUM_CONNECTIONS), draw_message(choose)))
    return b"".join(told)


@dataclass
class _Seen:
    """What the events mean, by the documentation of Gathering alone."""

    came: set[int] = field(default_factory=lambda: {0})
    ready: set[int] = field(default_factory=set)
    failure: RendezvousError | None = None


def handle_meeting(data: bytes) -> None:
    """Let a meeting go as host.py does, and compare its state with what has happened."""
    meeting, seen = Gathering(SIZE, {"of": 0}), _Seen()
    ranks: dict[int, int] = {}  # by connection
    for what, message in _events(data):
        before = _state(meeting)
        if what == _EXPIRE:
            meeting.expire(7)
        elif what == _CANCEL:
            meeting.fail("another rank failed", meeting.missing, follows=True)
        elif what < _NUM_CONNECTIONS and what in ranks:
            _hear(meeting, seen, ranks[what], message)
            if message is None:
                del ranks[what]
        elif what < _NUM_CONNECTIONS and message is not None:
            rank = meeting.arrive(message, f"process {100 + what}")
            if rank is None:
                assert _state(meeting) == before, "a stranger changes the meeting"
            else:
                ranks[what] = rank
                if meeting.failure is None:
                    assert rank not in seen.came, "a rank comes twice"
                    seen.came.add(rank)
        _check(meeting, seen)
        if meeting.all_ready:
            break


def _hear(meeting: Gathering, seen: _Seen, rank: int, message: bytes | None) -> None:
    was_complete = meeting.complete
    meeting.receive(rank, message)
    if meeting.failure is None:
        assert was_complete and isinstance(protocol.decode(message or b""), Ready)
        seen.ready.add(rank)


def _state(meeting: Gathering) -> tuple[Any, ...]:
    heard, ready = tuple(meeting.heard), tuple(meeting.ready)
    return tuple(meeting.hellos), tuple(meeting.senders), heard, ready, meeting.failure


def _check(meeting: Gathering, seen: _Seen) -> None:
    assert seen.failure is None or meeting.failure is seen.failure, "a later failure wins"
    seen.failure = meeting.failure
    assert set(meeting.hellos) == seen.came, "who is present is not who has come"
    assert meeting.missing == [rank for rank in range(SIZE) if rank not in seen.came]
    assert meeting.complete == (meeting.failure is None and len(seen.came) == SIZE)
    assert meeting.all_ready == (meeting.complete and seen.ready == {1, 2})
    assert seen.came <= meeting.heard <= set(range(SIZE))
    if meeting.failure is not None:
        assert len(encode(Failure(str(meeting.failure), list(meeting.failure.missing)))) < protocol.MAX_MESSAGE_BYTES
    if meeting.complete and not seen.ready:
        told = [rank for data, ranks in meeting.roster({"policy": ""}) for rank in ranks]
        assert told == list(range(SIZE)), "not all ranks are in the roster"
