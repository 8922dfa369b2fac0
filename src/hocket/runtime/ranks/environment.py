"""Finds the rank, the size and the meeting place of this process, from arguments or from the program that started it.

The order is: explicit arguments, a thread rank of `run_ranks`, HOCKET_*, torchrun, MPI, Slurm, one process alone. The
result names its source. All ranks of a host derive the same address: an abstract Unix socket name that contains the
user id and an identity of the job. Ranks that may be on several hosts also get a board, where they find rank 0.
"""

import contextlib
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hocket.errors import RendezvousError
from hocket.runtime.ranks import starters
from hocket.runtime.ranks.starters import new_address as new_address
from hocket.runtime.rendezvous.boards.board import Board
from hocket.runtime.rendezvous.boards.fixed_address import fixed_address
from hocket.runtime.variables import ADDRESS, CMA, LOCAL_RANK, LOCAL_SIZE, PACED_LINK, RANK, SIZE, TRANSPORT

MAX_ADDRESS_BYTES = 107  # sockaddr_un has 108 bytes, and an abstract name begins with NUL
DEFAULT_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Environment:
    """The rank of a process, and its job.

    address: the name of an abstract Unix socket, without the leading NUL, which all ranks of a host have; source: what
    assigned the rank; timeout_seconds limits the rendezvous. cancel, if given, ends a rendezvous early (thread ranks
    share it). board: how the ranks find rank 0 if they may be on several hosts; None if all are on this host.
    local_rank and local_size are what the source says, or else rank and size. names: the variables that said rank,
    size, local rank and local size; empty if none did. here: the ranks that meet at the address, ascending: all, until
    it is known which are on this host.
    """

    rank: int
    size: int
    address: str
    source: str
    local_rank: int
    local_size: int
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    cancel: threading.Event | None = field(default=None, compare=False, repr=False)
    board: Board | None = None
    names: starters.Names | tuple[()] = field(default=(), compare=False, repr=False)
    here: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not self.here:
            object.__setattr__(self, "here", range(self.size))
        assigned = f"{self.source} assigned rank {self.rank} of {self.size}"
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise RendezvousError(f"{assigned}; expected a size of at least 1 and a rank from 0 to size - 1")
        if self.local_size != self.size and self.board is None:
            raise RendezvousError(f"{assigned}, and {self.local_size} of them on this host; expected a board")
        length = len(self.address.encode())
        if not 0 < length <= MAX_ADDRESS_BYTES or "\0" in self.address:
            raise RendezvousError(
                f"{assigned} at address {self.address!r}; expected 1 to {MAX_ADDRESS_BYTES} bytes without NUL"
            )


def discover(
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    variables: Mapping[str, str] | None = None,
) -> Environment:
    """Returns the rank of the caller, and its job.

    Give both rank and size, or neither. address alone replaces the discovered one, so that one job can meet several
    times. An address HOST:PORT, also in HOCKET_ADDRESS, means that the ranks may be on several hosts. timeout is in
    seconds, above 0; variables replaces os.environ. Raises ValueError or TypeError for bad arguments, and
    RendezvousError if the variables contradict each other, or if nothing tells ranks on several hosts where rank 0 is.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address is {address!r}; expected text, the same on all ranks")
    if variables is None:
        variables = os.environ
    if rank is not None or size is not None:
        if rank is None or size is None:
            raise ValueError(f"rank is {rank} and size is {size}; give both or neither")
        return _explicit(rank, size, address, timeout, variables)
    found = here.scope.environment
    if found is not None:
        return replace(found, address=address or found.address, timeout_seconds=timeout)
    assigned = starters.assigned(variables)
    if assigned is None:
        return Environment(0, 1, address or new_address(), "alone", 0, 1, timeout)
    board = _board(address, "address=") or _board(variables.get(ADDRESS), ADDRESS)
    if board is None and assigned.local_size < assigned.size:
        from hocket.runtime.ranks.across_hosts import board_across_hosts  # ranks of one host need none of it

        board = board_across_hosts(assigned, variables, address, timeout)
    return Environment(
        rank=assigned.rank,
        size=assigned.size,
        address=_name(address or assigned.address),
        source=assigned.source,
        local_rank=assigned.local_rank,
        local_size=assigned.local_size,
        timeout_seconds=timeout,
        board=board if assigned.size > 1 else None,
        names=assigned.names,
    )


def _explicit(rank: int, size: int, address: str | None, timeout: float, variables: Mapping[str, str]) -> Environment:
    for name, value in (("rank", rank), ("size", size)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{name} is {value!r}; expected an int")
    rank, size = operator.index(rank), operator.index(size)
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"rank is {rank} and size is {size}; expected 0 <= rank < size")
    if size == 1:
        return Environment(0, 1, address or new_address(), "arguments", 0, 1, timeout)
    board = _board(address, "address=") if address else _board(variables.get(ADDRESS), ADDRESS)
    address = address or variables.get(ADDRESS)
    if not address:
        raise ValueError(
            f"rank {rank} of {size} has no address to meet the others; give address=, the same text on all ranks, "
            "or start the ranks with `hocket run`"
        )
    return Environment(rank, size, _name(address), "arguments", rank, size, timeout, board=board)


def _board(address: str | None, told_by: str) -> Board | None:
    return fixed_address(address, told_by) if address else None


def _name(address: str) -> str:
    """Returns the socket name of an address: its own, but HOST:PORT may be too long, or another user's."""
    place = fixed_address(address, "")
    return address if place is None else starters.job_address("address", str(place))


def rank_variables(rank: int, size: int, address: str, place: tuple[int, int] | None = None) -> dict[str, str]:
    """Returns the variables that tell a child process its rank and size, in the form that `discover` reads.

    place: its rank among those of its host, and their number; None if all ranks are on this host. OMP_NUM_THREADS is
    added if the caller's environment has none: ranks share the cores, and linear algebra with a thread per core in each
    rank would mostly wait. The number of cores is that of the calling thread, so call this before the thread is bound.
    """
    local_rank, local_size = place or (rank, size)
    variables = {RANK: str(rank), SIZE: str(size), ADDRESS: address}
    variables |= {LOCAL_RANK: str(local_rank), LOCAL_SIZE: str(local_size)}
    if "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // local_size))
    return variables


def torchrun_variables(rank: int, size: int, store: tuple[str, int], place: tuple[int, int]) -> dict[str, str]:
    """Returns the variables with which torchrun tells a process its rank; PyTorch's init_process_group reads them.

    store: host and port of rank 0's store, which stays free for it; place: as of `rank_variables`.
    """
    assigned: dict[str, object] = {"RANK": rank, "WORLD_SIZE": size}
    assigned |= {"LOCAL_RANK": place[0], "LOCAL_WORLD_SIZE": place[1]}
    assigned |= {"MASTER_ADDR": store[0], "MASTER_PORT": store[1]}
    return {name: str(value) for name, value in assigned.items()}


def uses_tcp(variables: Mapping[str, str] | None = None) -> bool:
    """Returns whether connections carry all data, instead of memory that ranks share: True if HOCKET_TRANSPORT is tcp.

    ValueError if it is neither "shm" nor "tcp".
    """
    found = (os.environ if variables is None else variables).get(TRANSPORT, "shm")
    if found not in ("shm", "tcp"):
        raise ValueError(f"{TRANSPORT} is {found!r}; expected shm (shared memory) or tcp (connections)")
    return found == "tcp"


def may_attach(variables: Mapping[str, str] | None = None) -> bool:
    """Returns whether ranks in other processes may read and write this process's memory: False if HOCKET_CMA is 0.

    variables replaces os.environ. Raises ValueError for values other than 0 and 1.
    """
    found = (os.environ if variables is None else variables).get(CMA, "1")
    if found not in ("0", "1"):
        raise ValueError(f"{CMA} is {found!r}; expected 0 (stage private memory) or 1 (attach where permitted)")
    return found == "1"


@contextlib.contextmanager
def paced_link(bytes_per_second: float, seconds: float) -> Iterator[None]:
    """Makes communicators slow on purpose: those made inside the block, also by its child processes, use paced links.

    A rank sends its messages one after another at `bytes_per_second`. The peer can read a message `seconds` after its
    last byte has left. A waiting rank sleeps until a message arrives and uses no core, as with a network card. The
    receiving end adds no delay. Results have the same bits. All ranks must make their communicators under the same
    link, or they get a RendezvousError. Raises ValueError or TypeError for a bad speed or time.
    """
    for name, value, right in (
        ("bytes_per_second", bytes_per_second, bytes_per_second > 0),
        ("seconds", seconds, seconds >= 0),
    ):
        if not (right and math.isfinite(value)):
            raise ValueError(f"{name} is {value}; expected a number {'above' if name[0] == 'b' else 'of at least'} 0")
    outer = os.environ.get(PACED_LINK)
    os.environ[PACED_LINK] = f"{float(bytes_per_second)!r},{float(seconds)!r}"
    try:
        yield
    finally:
        del os.environ[PACED_LINK]
        if outer is not None:
            os.environ[PACED_LINK] = outer


def link_here() -> tuple[float, float] | None:
    """Returns bytes per second and seconds of this rank's paced link; None without one."""
    found = os.environ.get(PACED_LINK)
    if found is None:
        return None
    bytes_per_second, seconds = found.split(",")
    return float(bytes_per_second), float(seconds)


# --- ranks that run_ranks started ----------------------------------------------------------------------------------


class Scope:
    """The state of a rank in this process. values: see PerRank; environment: None if `discover` must find it."""

    def __init__(self, environment: Environment | None) -> None:
        self.environment = environment
        self.callbacks: list[Callable[[BaseException | None], None]] = []
        self.values: dict[Any, Any] = {}


class _CurrentRank(threading.local):
    scope = Scope(None)  # the scope of the process, for all threads without a scope of their own


here = _CurrentRank()
"""here.scope is the scope of the rank to which the calling thread belongs."""


def scope_entry() -> Callable[[], None]:
    """Returns a function; a thread that calls it joins the rank of the thread that called scope_entry."""
    return partial(setattr, here, "scope", here.scope)


@contextlib.contextmanager
def rank_scope(environment: Environment, *, whole_process: bool = False) -> Iterator[None]:
    """Makes the calling thread this rank: `discover` finds it, and `at_rank_end` callbacks run when the block ends.

    whole_process: all threads of the process without a scope of their own become this rank, too.
    """
    scope, holder = Scope(environment), _CurrentRank if whole_process else here
    outer = vars(holder).get("scope")
    holder.scope = scope
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        with contextlib.ExitStack() as callbacks:
            if outer is None:
                callbacks.callback(delattr, holder, "scope")
            else:
                callbacks.callback(setattr, holder, "scope", outer)
            if failure is not None:
                # The rank's own failure matters more than an error during its clean-up.
                callbacks.enter_context(contextlib.suppress(Exception))
            for callback in scope.callbacks:
                callbacks.callback(callback, failure)


def at_rank_end(callback: Callable[[BaseException | None], None]) -> bool:
    """Registers callback(exception or None) for the end of the rank function to which the calling thread belongs.

    Returns False, and registers nothing, if the thread is no rank of `run_ranks`: such a rank ends with its process.
    """
    scope = here.scope
    if scope.environment is None:
        return False
    scope.callbacks.append(callback)
    return True
