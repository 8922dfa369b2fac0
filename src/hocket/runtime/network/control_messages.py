"""What the leaders of hosts tell each other, without their links: see agent.py."""

import msgspec


class Beat(msgspec.Struct, tag=0):
    """Nothing is new, but the host is there."""


class News(msgspec.Struct, tag=1):
    """What ranks of a host have written on their control pages. wakes: a rank has asked for it."""

    pages: bytes
    wakes: bool


class Ask(msgspec.Struct, tag=2):
    """A rank waits: what is new elsewhere?"""


class Proposal(msgspec.Struct, tag=3):
    """Why a rank gives up. The first proposal of a communicator counts."""

    reason: bytes


class Verdict(msgspec.Struct, tag=4):
    """The reason for which a communicator ends on all hosts."""

    reason: bytes


class Death(msgspec.Struct, tag=5):
    """A rank has died. cut_off: it can no longer be reached, because its host, or the leader there, is gone."""

    rank: int
    cut_off: bool


class Leaving(msgspec.Struct, tag=6):
    """All ranks of the host have left the job."""


class Over(msgspec.Struct, tag=7):
    """All ranks of all hosts have left the job: the star ends."""


class TellAgain(msgspec.Struct, tag=8):
    """A leader has missed news: tell all again."""


Message = Beat | News | Ask | Proposal | Verdict | Death | Leaving | Over | TellAgain
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
write = msgspec.msgpack.encode


def read(data: bytes) -> Message | None:
    """Return the message in data, or None if it is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
