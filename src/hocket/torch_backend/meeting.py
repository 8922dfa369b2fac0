"""The meeting of a process group: rank 0 writes an address into the store, and all ranks go to Hocket's rendezvous.

The key names the members, so that groups of other ranks do not meet. Rank 0 deletes all keys once the ranks have met,
because a store may serve several meetings under the same names: torchrun's does if a program destroys its groups and
makes them again. Only then do the others go on, and none of them uses the store later: it may end with rank 0.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hocket.algorithms import find as find_algorithms
from hocket.errors import RendezvousError
from hocket.runtime import (
    MAX_ADDRESS_BYTES,
    Communicator,
    check_algorithm,
    check_order,
    check_timeout,
    init,
    name_ranks,
    new_address,
)
from hocket.torch_backend.roll_call import SHORTEST_WAIT_SECONDS, appear, call_roll, loss_is_told, text_of

_KEY = "hocket/address"
_CAME = "hocket/came"
_LOOK_SECONDS = 0.2  # after this wait, a rank looks again which ranks have come


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
    place = _Place(store, text_of(members), rank, size, seconds)
    if members and default is not None:
        call_roll(store, default.address, members, rank, seconds)
    try:
        address = place.address()
        try:
            communicator = init(rank, size, address=address, timeout=seconds)
        finally:
            if rank == 0:
                place.clear()
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
    return Met(communicator, dist.PrefixStore(address, store), address, seconds)


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


@dataclass(frozen=True)
class _Place:
    """The place in the store where one rank of a group looks for the others; `members` is a part of its keys."""

    store: Any
    members: str
    rank: int
    size: int
    seconds: float

    def address(self) -> str:
        """Returns the address from rank 0. With it comes rank 0's host: ranks on another host would get no answer."""
        host = _host()
        if self.rank == 0:
            address = new_address()
            self.store.set(self._key(_KEY), f"{host} {address}")
            return address
        self._await_first()
        text: str = self.store.get(self._key(_KEY)).decode()
        found, _, address = text.partition(" ")
        if not 0 < len(address) <= MAX_ADDRESS_BYTES:
            raise RendezvousError(
                f"rank {self.rank} of {self.size} found {text!r} in the store; expected a host and an address"
            )
        if found != host:
            raise RendezvousError(
                f"rank {self.rank} of {self.size} is on another host, or in another container, than rank 0: several "
                "hosts are not supported yet; start all ranks on one host"
            )
        return address

    def clear(self) -> None:
        """Deletes what the ranks have written, on rank 0."""
        with contextlib.suppress(RuntimeError):  # from a store that cannot delete
            for key in (self._key(_KEY), *(self._key(_CAME, other) for other in range(1, self.size))):
                self.store.delete_key(key)

    def _await_first(self) -> None:
        """Waits until rank 0 has written the address.

        Raises RendezvousError, which names all ranks that have not come, after the seconds, or if the store is lost: a
        rank 0 that waits for the same ranks may give up first, and its store ends with it.
        """
        here, deadline = f"rank {self.rank} of {self.size}", time.monotonic() + self.seconds
        keys = {other: self._key(_CAME, other) for other in range(1, self.size)}
        late = [other for other in keys if other != self.rank]  # as of the last look
        with loss_is_told(here, "rank 0"):
            self.store.set(keys[self.rank], "")
        left = self.seconds
        while left > 0:
            awaited = name_ranks([0, *late])
            if appear(self.store, [self._key(_KEY)], min(left, _LOOK_SECONDS), here, awaited):
                return
            late = [other for other in late if not appear(self.store, [keys[other]], 0.0, here, awaited)]
            left = deadline - time.monotonic()
        came = [other for other in keys if other not in late]
        advice = "check whether every rank started, and whether one ended early"
        if late:  # the store of PyTorch that rank 0 serves lets it go on only when all ranks are connected
            advice += f"; rank 0 may only wait for {name_ranks(late)}, so look there first"
        raise RendezvousError(
            f"{name_ranks([0, *late])} of {self.size} did not come to the store of this process group within "
            f"{self.seconds:g} s, {name_ranks(came)} came (reported by rank {self.rank}); {advice}",
            missing=[0, *late],
        )

    def _key(self, what: str, rank: int | None = None) -> str:
        return "/".join([what, *([self.members] if self.members else []), *([] if rank is None else [str(rank)])])


def _host() -> str:
    """Returns an identity of the running system and its network namespace; equal if processes can share a socket."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
