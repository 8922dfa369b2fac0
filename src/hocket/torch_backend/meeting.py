"""The meeting of a process group: rank 0 writes an address into the store, and all ranks go to Hocket's rendezvous.

The key names the members, so that groups of other ranks do not meet. The address is deleted afterwards, because a store
may serve several meetings under the same names: torchrun's does if a program destroys its groups and makes them again.
"""

import contextlib
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
    new_address,
)
from hocket.torch_backend.roll_call import SHORTEST_WAIT_SECONDS, appear, call_roll, text_of

_KEY = "hocket/address"
_GONE = "hocket-address-is-gone"


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
    key = _KEY + "/" + text_of(members) if members else _KEY
    if members and default is not None:
        call_roll(store, default.address, members, rank, seconds)
    try:
        address = _address(store, key, rank, size, seconds)
        own = dist.PrefixStore(address, store)
        try:
            communicator = init(rank, size, address=address, timeout=seconds)
        finally:
            if rank == 0:
                with contextlib.suppress(RuntimeError):  # from a store that cannot delete
                    store.delete_key(key)
    except RendezvousError as error:
        if not members:
            raise
        raise RendezvousError(
            f"{error} (rank i of this group is number i of {list(members)} in the default group)",
            missing=[members[one] for one in error.missing],
        ) from error
    try:
        if rank == 0:
            own.set(_GONE, "")
        else:  # a rank may meet again soon, and must not find the old address
            _await_first(own, _GONE, rank, size, seconds)
        communicator.configure(algorithm=chosen.algorithm, order=chosen.order, timeout=seconds)
    except BaseException:
        communicator.close()
        raise
    return Met(communicator, own, address, seconds)


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


def _address(store: Any, key: str, rank: int, size: int, seconds: float) -> str:
    """Returns the address from rank 0. It contains rank 0's host, because ranks on another host would get no answer."""
    host = _host()
    if rank == 0:
        address = new_address()
        store.set(key, f"{host} {address}")
        return address
    _await_first(store, key, rank, size, seconds)
    text: str = store.get(key).decode()
    found, _, address = text.partition(" ")
    if not 0 < len(address) <= MAX_ADDRESS_BYTES:
        raise RendezvousError(f"rank {rank} of {size} found {text!r} in the store; expected a host and an address")
    if found != host:
        raise RendezvousError(
            f"rank {rank} of {size} is on another host, or in another container, than rank 0: several hosts are not "
            "supported yet; start all ranks on one host"
        )
    return address


def _await_first(store: Any, key: str, rank: int, size: int, seconds: float) -> None:
    """Waits until rank 0 has written this key. Raises RendezvousError after `seconds`, or if the store is lost."""
    if not appear(store, [key], seconds, f"rank {rank} of {size}", "rank 0"):
        raise RendezvousError(
            f"rank 0 of {size} did not come to the store of this process group within {seconds:g} s (reported by rank "
            f"{rank}); check whether that process started, and whether it ended early",
            missing=[0],
        )


def _host() -> str:
    """Returns an identity of the running system and its network namespace; equal if processes can share a socket."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
