"""The meeting of a process group: the ranks agree in the store where they meet, and go to Hocket's rendezvous.

Keys name the members, so that groups of other ranks do not meet. Rank 0 deletes all keys once the ranks have met,
because a store may serve several meetings under the same names: torchrun's does if a program destroys its groups and
makes them again. Only then do the others go on, and none of them uses the store later: it may end with rank 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hocket.algorithms import find as find_algorithms
from hocket.errors import RendezvousError
from hocket.runtime import (
    Communicator,
    check_algorithm,
    check_order,
    check_timeout,
    discover,
    init_in,
)
from hocket.torch_backend.meeting_place import Agreed, MeetingPlace
from hocket.torch_backend.roll_call import SHORTEST_WAIT_SECONDS, call_roll, text_of


@dataclass(frozen=True)
class Options:
    """The defaults of a process group's operations: pg_options= of init_process_group and new_group.

    algorithm and order are those of hocket.Communicator.configure, equal on all ranks. timeout, in seconds or as a
    timedelta, overrides the timeout= of the process group. Bad values raise TypeError or ValueError.
    """

    algorithm: str | None = None
    order: str | None = None
    timeout: float | timedelta | None = None

    def __post_init__(self) -> None:
        """Checks the values here, where the program gives them."""
        if self.algorithm is not None and check_algorithm("Options", self.algorithm):
            try:
                find_algorithms(self.algorithm)
            except ValueError as error:
                raise ValueError(f"Options: {error}") from error
        if self.order is not None:
            check_order("Options", self.order)
        self.seconds()

    def seconds(self) -> float | None:
        """Returns the time-out in seconds."""
        given = self.timeout.total_seconds() if isinstance(self.timeout, timedelta) else self.timeout
        return None if given is None else check_timeout("Options", given)


@dataclass(frozen=True)
class Met:
    """What a process group has after its meeting.

    store: the part of the store that only this group uses. address: a text that only this meeting has had. seconds: the
    time-out of operations.
    """

    communicator: Communicator
    store: Any
    address: str
    seconds: float


def meet(given: Any, options: Options | None, default: Met | None) -> Met:
    """Meets the other ranks of a new process group.

    given: torch.distributed's _DistributedBackendOptions. options: the user's pg_options=. default: the meeting of the
    default group, None for the default group itself, or if that is of another backend. A group without a time-out of
    its own has that of the default group. Every rank waits at most so long for each of the others; then RendezvousError
    names the missing ranks. Bad options raise TypeError or ValueError.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(
            f"pg_options is a {type(options).__name__}; expected hocket.torch_backend.Options for the backend 'hocket'"
        )
    chosen = options or Options()
    seconds = _seconds(given, chosen, default)
    store, rank, size = given.store, given.group_rank, given.group_size
    members: Sequence[int] = given.global_ranks_in_group  # of the default group; none for the default group itself
    place, share_host = MeetingPlace(store, text_of(members), rank, size, seconds), None
    if members and default is not None:
        call_roll(store, default.address, members, rank, seconds)
        share_host = len({default.communicator.context.hosts[member] for member in members}) == 1
    agreed: Agreed | None = None
    try:
        try:
            agreed = place.agree(share_host)
            environment = discover(rank, size, agreed.address, timeout=seconds)
            communicator = init_in(replace(environment, board=agreed.board))
        finally:
            if rank == 0:
                place.clear(agreed)
    except RendezvousError as error:
        if not members:
            raise
        raise RendezvousError(
            f"{error} (rank i of this group is number i of {list(members)} in the default group)",
            missing=[members[one] for one in error.missing],
        ) from error
    try:
        communicator.lower.follow_first(seconds)  # a rank may meet again soon, and must not find the old address
        communicator.configure(algorithm=chosen.algorithm, order=chosen.order, timeout=seconds)
    except BaseException:
        communicator.close()
        raise
    return Met(communicator, dist.PrefixStore(agreed.address, store), agreed.address, seconds)


def _seconds(given: Any, options: Options, default: Met | None) -> float:
    """Returns the time-out of the group's operations, and of the waits of its meeting."""
    own = options.seconds()
    if own is not None:
        seconds = own
    elif default is not None and given.timeout == distributed_c10d.default_pg_timeout:
        seconds = default.seconds
    else:
        seconds = check_timeout("process group", given.timeout.total_seconds())
    return max(seconds, SHORTEST_WAIT_SECONDS)
