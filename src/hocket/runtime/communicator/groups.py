"""Making communicators out of communicators: each member offers an endpoint, and the first one hands all of them round.

Only the members take part, over the parent's own channels for messages, so other ranks may do anything meanwhile. What
is made costs each member some KiB of its arena for each rank; closed ones are used again.
"""

import contextlib
import hashlib
import operator
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from hocket.errors import ResourceError

_NO_ROOM = (1 << 64) - 1


def check_ranks(what: str, ranks: Sequence[int], size: int) -> list[int]:
    """Different ranks of a communicator, in the order given; ValueError."""
    try:
        members = [operator.index(rank) for rank in ranks]
    except TypeError:
        members = []
    if not members or len(set(members)) < len(members) or min(members) < 0 or max(members) >= size:
        raise ValueError(f"{what}: expected different ranks from 0 to {size - 1}, at least one; found {ranks!r}")
    return members


def members_of_color(said: Any, rank: int) -> list[int]:
    """Ranks of the same color as this one, by key and then rank; `said` is int64[size, 3]: takes part, color, key."""
    mine = said[rank]
    same = [other for other, (takes_part, color, _) in enumerate(said.tolist()) if takes_part and color == mine[1]]
    return sorted(same, key=lambda other: (int(said[other, 2]), other))


@contextlib.contextmanager
def endpoints(context: Any, core: Any, members: Sequence[int], rank: int, timeout: float) -> Iterator[list[int]]:
    """Where each member's endpoint lies in its arena; `members` are ranks of the parent, of which `rank` is this one.

    What fails here or in the body is shown to members for which all went well: this one has closed. ResourceError, on
    all members, if one of them has no room; timeout in seconds, then CollectiveTimeout.
    """
    failure: ResourceError | None = None
    try:
        mine = context.add_endpoint(len(members))
    except ResourceError as error:
        mine, failure = _NO_ROOM, error
    try:
        offsets = _exchange(core, mine, members, rank, timeout)
        if failure is not None:
            raise failure
        if _NO_ROOM in offsets:
            guilty = members[offsets.index(_NO_ROOM)]
            raise ResourceError(
                f"rank {rank}: rank {guilty} has no room for another communicator; close some",
                errno=28,
                call="fallocate",
            )
        yield offsets
    except BaseException:
        if mine != _NO_ROOM:
            context.abandon_endpoint(mine)
        raise


def _exchange(core: Any, mine: int, members: Sequence[int], rank: int, timeout: float) -> list[int]:
    """The offsets of all members, in their order."""
    tag = int.from_bytes(hashlib.sha256(repr(list(members)).encode()).digest()[:8], "little")
    leader, layout = members[0], struct.Struct(f"<{len(members)}Q")
    if rank == leader:
        offsets = [mine]
        for member in members[1:]:
            offsets += struct.unpack("<Q", core.receive_internal(8, member, tag, timeout))
        for member in members[1:]:
            core.send_internal(layout.pack(*offsets), member, tag, timeout)
    else:
        core.send_internal(struct.pack("<Q", mine), leader, tag, timeout)
        offsets = list(layout.unpack(core.receive_internal(layout.size, leader, tag, timeout)))
    return offsets
