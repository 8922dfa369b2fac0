"""Makes communicators from communicators: each member offers an endpoint, and the first member sends all to each.

Only the members take part, over the message channels of the parent; other ranks may do anything meanwhile. A new
communicator costs each member some KiB of its arena per rank; the memory of closed ones is reused.
"""

import contextlib
import hashlib
import operator
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hocket.errors import CollectiveMismatch, CollectiveTimeout, ResourceError
from hocket.runtime.communicator.arguments import refused_rank

_NO_ROOM = (1 << 64) - 1
_PLACE = struct.Struct("<QI")  # offset and generation of an endpoint
_TAG = 0  # of all messages here


def check_ranks(what: str, ranks: Sequence[int], size: int) -> list[int]:
    """Returns the ranks in the order given. Raises ValueError unless they are different ranks of the communicator."""
    try:
        members = [operator.index(rank) for rank in ranks]
    except TypeError:
        members = []
    if not members or len(set(members)) < len(members) or min(members) < 0 or max(members) >= size:
        found = f"{what}: expected different ranks from 0 to {size - 1}, at least one; found {ranks!r}"
        raise refused_rank(ValueError(found), size)
    return members


def members_of_color(said: Any, rank: int) -> list[int]:
    """Returns the ranks with this rank's color, sorted by key and then rank.

    `said` is int64[size, 3]: takes part, color, key.
    """
    mine = said[rank]
    same = [other for other, (takes_part, color, _) in enumerate(said.tolist()) if takes_part and color == mine[1]]
    return sorted(same, key=lambda other: (int(said[other, 2]), other))


@dataclass(frozen=True)
class Intent:
    """The group that a rank makes: its members, which are ranks of the parent, and its grid, or "".

    parent: the ranks in the job of the parent's ranks, by which messages name them.
    """

    members: list[int]
    parent: tuple[int, ...]
    grid: str = ""

    @property
    def size(self) -> int:
        """The number of ranks of the parent."""
        return len(self.parent)

    @property
    def named(self) -> list[int]:
        """The members as ranks of the job."""
        return [self.parent[member] for member in self.members]

    def encoded(self) -> bytes:
        """Returns the same number of bytes on all ranks of the parent; of a long text the hash, and the beginning."""
        grid = self.grid.encode()
        places = [-1] * self.size
        for place, member in enumerate(self.members):
            places[member] = place
        return _layout(self.size).pack(*places, hashlib.sha256(grid).digest()[:8], grid)

    @classmethod
    def decoded(cls, data: bytes, parent: tuple[int, ...]) -> "Intent":
        """Returns what a member has encoded; of a long text the beginning."""
        *places, _, grid = _layout(len(parent)).unpack(data)
        members = [member for member in range(len(parent)) if places[member] >= 0]
        text = grid.rstrip(bytes(1)).decode(errors="replace")
        return cls(sorted(members, key=lambda member: places[member]), parent, text)


def _layout(size: int) -> struct.Struct:
    return struct.Struct(f"<{size}h8s256s")


@contextlib.contextmanager
def endpoints(context: Any, core: Any, intent: Intent, rank: int, timeout: float) -> Iterator[list[tuple[int, int]]]:
    """Yields the offset of each member's endpoint in its arena, and how often that was used before.

    `rank` is a rank of the parent.

    If this function or the body fails on one member, the other members see it as closed. Raises ResourceError, on all
    members, if one has no memory; CollectiveMismatch or PeerAborted if they make different groups; and
    CollectiveTimeout after `timeout` seconds.
    """
    members = intent.members
    failure: ResourceError | None = None
    try:
        offset = context.add_endpoint(len(members))
        mine = (offset, context.generation_of(offset))
    except ResourceError as error:
        mine, failure = (_NO_ROOM, 0), error
    try:
        try:
            places = _exchange(core, mine, intent, rank, timeout)
        except CollectiveTimeout as error:
            late = f"{error}. Rank {intent.parent[rank]} makes a group of ranks {intent.named}"
            raise CollectiveTimeout(late, missing=error.missing, seconds=error.seconds, sequence=0) from None
        if failure is not None:
            raise failure
        if (_NO_ROOM, 0) in places:
            guilty = intent.named[places.index((_NO_ROOM, 0))]
            raise ResourceError(
                f"rank {intent.parent[rank]}: rank {guilty} has no memory left for another communicator; close some",
                errno=28,
                call="fallocate",
            )
        yield places
    except BaseException:
        if mine[0] != _NO_ROOM:
            context.abandon_endpoint(mine[0])
        raise


def _exchange(core: Any, mine: tuple[int, int], intent: Intent, rank: int, timeout: float) -> list[tuple[int, int]]:
    """Exchanges the endpoints of all members, and returns them in the order of members.

    The lowest member gathers them, with what each member intends, and sends all to each.
    """
    members, own = intent.members, intent.encoded()
    gatherer, num_bytes = min(members), _PLACE.size * len(members)
    if rank != gatherer:
        core.send_internal(_PLACE.pack(*mine) + own, gatherer, _TAG, timeout)
        return list(_PLACE.iter_unpack(core.receive_internal(num_bytes, gatherer, _TAG, timeout)))
    places = {rank: mine}
    for member in sorted(members)[1:]:
        said = core.receive_internal(_PLACE.size + len(own), member, _TAG, timeout)
        places[member] = _PLACE.unpack_from(said)
        if said[_PLACE.size :] != own:
            _refuse(core, rank, intent, member, Intent.decoded(said[_PLACE.size :], intent.parent))
    for member in members:
        if member != rank:
            core.send_internal(b"".join(_PLACE.pack(*places[one]) for one in members), member, _TAG, timeout)
    return [places[member] for member in members]


def _refuse(core: Any, rank: int, own: Intent, other: int, found: Intent) -> NoReturn:
    """Ends the parent on all its ranks, because two of them make different groups. Raises CollectiveMismatch."""
    values: dict[int, Any]
    rank, other = own.parent[rank], own.parent[other]
    if own.members != found.members:
        field, what, values = "members", "of ranks", {rank: own.named, other: found.named}
    else:
        field, what, values = "grid", "with grid", {rank: own.grid or "none", other: found.grid or "none"}
    text = (
        f"the ranks differ in the group that they make: rank {rank} makes one {what} {values[rank]}, rank {other} one "
        f"{what} {values[other]}; make the same groups on all members, in the same order"
    )
    core.abort(text, False)
    raise CollectiveMismatch(
        f"rank {rank}: {text}. This communicator can only be closed", field=field, values=values, sequence=0
    )
