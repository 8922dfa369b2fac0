"""The meeting of a process group: rank 0 writes an address into the store, and all ranks go to Hocket's rendezvous.

The address is deleted afterwards, because a store may serve several meetings under the same names: torchrun's does if a
program destroys its groups and makes them again.
"""

import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hocket.errors import RendezvousError
from hocket.runtime import MAX_ADDRESS_BYTES, Communicator, check_timeout, init, new_address

_KEY = "hocket/address"
_GONE = "hocket-address-is-gone"
SHORTEST_WAIT_SECONDS = 0.001  # stores count in milliseconds; 0 means no limit
_SLACK_SECONDS = 0.01  # by which a wait of a store may end early


@dataclass(frozen=True)
class Options:
    """The defaults of a process group's operations: pg_options= of init_process_group and new_group.

    algorithm and order are those of hocket.Communicator.configure, equal on all ranks. timeout, in seconds, overrides
    the timeout= of the process group.
    """

    algorithm: str | None = None
    order: str | None = None
    timeout: float | None = None


def meet(store: Any, rank: int, size: int, seconds: float, options: Options | None) -> tuple[Communicator, Any]:
    """Returns the communicator of a new process group, and the part of the store that only this group uses.

    Every rank waits at most `seconds`; then RendezvousError names the missing ranks. options: the user's pg_options=;
    bad ones raise TypeError or ValueError.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(
            f"pg_options is a {type(options).__name__}; expected hocket.torch_backend.Options for the backend 'hocket'"
        )
    seconds = max(check_timeout("process group", seconds), SHORTEST_WAIT_SECONDS)
    address = _address(store, rank, size, seconds)
    own = dist.PrefixStore(address, store)
    try:
        communicator = init(rank, size, address=address, timeout=seconds)
    finally:
        if rank == 0:
            with contextlib.suppress(RuntimeError):  # from a store that cannot delete
                store.delete_key(_KEY)
    chosen = options or Options()
    try:
        if rank == 0:
            own.set(_GONE, "")
        else:
            _await(own, _GONE, rank, size, seconds)  # a rank may meet again soon, and must not find the old address
        communicator.configure(
            algorithm=chosen.algorithm,
            order=chosen.order,
            timeout=seconds if chosen.timeout is None else chosen.timeout,
        )
    except BaseException:
        communicator.close()
        raise
    return communicator, own


def _address(store: Any, rank: int, size: int, seconds: float) -> str:
    """Returns the address from rank 0. It contains rank 0's host, because ranks on another host would get no answer."""
    host = _host()
    if rank == 0:
        address = new_address()
        store.set(_KEY, f"{host} {address}")
        return address
    _await(store, _KEY, rank, size, seconds)
    text: str = store.get(_KEY).decode()
    found, _, address = text.partition(" ")
    if not 0 < len(address) <= MAX_ADDRESS_BYTES:
        raise RendezvousError(f"rank {rank} of {size} found {text!r} in the store; expected a host and an address")
    if found != host:
        raise RendezvousError(
            f"rank {rank} of {size} is on another host, or in another container, than rank 0: several hosts are not "
            "supported yet; start all ranks on one host"
        )
    return address


def _await(store: Any, key: str, rank: int, size: int, seconds: float) -> None:
    """Waits until rank 0 has written this key. Raises RendezvousError after `seconds`, or if the store is lost."""
    deadline = time.monotonic() + seconds
    try:
        store.wait([key], timedelta(seconds=seconds))
    except Exception as error:
        if time.monotonic() < deadline - _SLACK_SECONDS:
            raise RendezvousError(
                f"rank {rank} of {size} has lost the store of this process group while it waited for rank 0; check "
                f"whether the process that serves the store, usually rank 0, ended early ({error})"
            ) from error
        raise RendezvousError(
            f"rank 0 of {size} did not come to the store of this process group within {seconds:g} s (reported by rank "
            f"{rank}); check whether that process started, and whether it ended early ({error})",
            missing=[0],
        ) from error


def _host() -> str:
    """Returns an identity of the running system and its network namespace; equal if processes can share a socket."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
