"""Makes communicators from communicators: each member offers an endpoint, and the first member sends all to each.

Only the members take part, over the message channels of the parent; other ranks may do anything meanwhile. A new
communicator costs each member some KiB of its arena per rank; the memory of closed ones is reused.
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
    """Returns the ranks in the order given. Raises ValueError unless they are different ranks of the communicator."""
    try:
        members = [operator.index(rank) for rank in ranks]
    except TypeError:
        members = []
    if not members or len(set(members)) < len(members) or min(members) < 0 or max(members) >= size:
        raise ValueError(f"{what}: expected different ranks from 0 to {size - 1}, at least one; found {ranks!r}")
    return members


def members_of_color(said: Any, rank: int) -> list[int]:
    """Returns the ranks with this rank's color, sorted by key and then rank.

    `said` is int64[size, 3]: takes part, color, key.
    """
    mine = said[rank]
    same = [other for other, (takes_part, color, _) in enumerate(said.tolist()) if takes_part and color == mine[1]]
    return sorted(same, key=lambda other: (int(said[other, 2]), other))


@contextlib.contextmanager
def endpoints(context: Any, core: Any, members: Sequence[int], rank: int, timeout: float) -> Iterator[list[int]]:
    """Yields the offset of each member's endpoint in its arena; `members` and `rank` are ranks of the parent.

    If this function or the body fails on one member, the other members see it as closed. Raises ResourceError, on all
    members, if one has no memory, and CollectiveTimeout after `timeout` seconds.
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
                f"rank {rank}: rank {guilty} has no memory left for another communicator; close some",
                errno=28,
                call="fallocate",
            )
        yield offsets
    except BaseException:
        if mine != _NO_ROOM:
            context.abandon_endpoint(mine)
        raise


def _exchange(core: Any, mine: int, members: Sequence[int], rank: int, timeout: float) -> list[int]:
    """Exchanges the offsets of all members, and returns them in the order of members."""
    tag = (
        int.from_bytes(hashlib.sha256(repr(list(members)).encode()).digest()[:8], "little") >> 1
    )  # objects have the highest bit
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
