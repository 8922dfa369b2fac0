"""`hocket.ray.run`: calls one function as n ranks, each in an actor of Ray, on the hosts of a Ray cluster.

Ray starts the processes, and carries the function, the key of the job and the results. The ranks meet as those of
`hocket run --hosts`: rank 0 listens on a port that its host has kept free. Their data does not go through Ray.
"""

import os
import secrets
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hocket.errors import PeerDied, RendezvousError, name_count
from hocket.runtime.launch.host_ranks import key_descriptor, reserved_port
from hocket.runtime.launch.outcomes import Outcome, Outcomes, outcome_of
from hocket.runtime.launch.remote_ranks import passed_on
from hocket.runtime.network.addresses import write_address
from hocket.runtime.network.handshake import KEY_BYTES
from hocket.runtime.ranks.environment import (
    DEFAULT_TIMEOUT_SECONDS,
    discover,
    rank_scope,
    rank_variables,
    torchrun_variables,
)
from hocket.runtime.ranks.program_frames import without_own_frames
from hocket.runtime.variables import KEY_FD

_MAX_WORDS_CHARACTERS = 200


def run_on_ray(
    function: Callable[..., Any],
    num_ranks: int,
    *,
    args: Sequence[Any] = (),
    ranks_per_host: int | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
) -> list[Any]:
    """Calls function(*args) once as each of num_ranks ranks and returns the results in rank order, as `run_ranks` does.

    Each rank is an actor of Ray with one CPU. ranks_per_host: on so many of them on each of several hosts; None lets
    Ray pack them. Ranks of a host have successive numbers. ray.init() chooses the cluster, which has to have the same
    version of Hocket on each host; timeout: until it has room, in seconds. Failures are those of `run_ranks`.
    RendezvousError if the ranks cannot start. No actor is left, and no placement group.
    """
    _check(function, num_ranks, args, ranks_per_host)
    try:
        import ray
    except ImportError:
        raise ModuleNotFoundError("hocket.ray.run needs Ray: pip install 'hocket[ray]'", name="ray") from None
    per_bundle = ranks_per_host or 1
    bundles = [{"CPU": float(per_bundle)}] * (num_ranks // per_bundle)
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD" if ranks_per_host else "PACK")
    actors: list[Any] = []
    try:
        if not group.wait(timeout):
            raise _no_room(num_ranks, ranks_per_host, timeout)
        for number in range(num_ranks):
            placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, number // per_bundle)
            actors.append(ray.remote(RankActor).options(num_cpus=1, scheduling_strategy=placed).remote())
        outcomes = _call_all(actors, function, args, timeout)
    finally:
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(group)
    error = outcomes.failure()
    if error is not None:
        error.__traceback__ = without_own_frames(error.__traceback__)
        raise error
    return [outcomes.by_rank[rank].value for rank in range(num_ranks)]


def _check(function: Any, num_ranks: Any, args: Any, ranks_per_host: Any) -> None:
    if not callable(function):
        raise TypeError(f"function is {function!r}; expected a function for each rank to call")
    if not isinstance(args, Iterable):
        raise TypeError(f"args is {args!r}; expected a tuple of arguments, such as ({args!r},)")
    numbers = {"num_ranks": num_ranks} | ({} if ranks_per_host is None else {"ranks_per_host": ranks_per_host})
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} is {number!r}; expected an int")
        if number < 1:
            raise ValueError(f"{name} is {number}; expected at least 1")
    if ranks_per_host and num_ranks % ranks_per_host:
        raise ValueError(f"num_ranks is {num_ranks}; expected a multiple of ranks_per_host, {ranks_per_host}")


def _no_room(num_ranks: int, ranks_per_host: int | None, timeout: float) -> RendezvousError:
    import ray

    needed = f"{name_count(num_ranks, 'free CPU')}"
    if ranks_per_host:
        hosts = name_count(num_ranks // ranks_per_host, "host")
        needed = f"{hosts} with {name_count(ranks_per_host, 'free CPU')} on each"
    free, total = (found.get("CPU", 0) for found in (ray.available_resources(), ray.cluster_resources()))
    return RendezvousError(
        f"Ray has not found {needed} for {name_count(num_ranks, 'rank')} within {timeout:g} s: {free:g} of {total:g} "
        f"CPUs are free on {name_count(len(ray.nodes()), 'host')}; see `ray status`, start fewer ranks, or wait longer "
        "with timeout=",
        missing=range(num_ranks),
    )


class Place(NamedTuple):
    """Where an actor is. host: Ray's name of its host; port, store_port: those that it keeps free there."""

    host: str
    address: str
    port: int
    store_port: int


class RankAssignment(NamedTuple):
    """What an actor is told of its rank. variables: of the driver's environment; the rest as in `rank_variables`."""

    rank: int
    size: int
    address: str
    place: tuple[int, int]
    store: tuple[str, int]
    key: bytes
    variables: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"  # Ray may print arguments, and one is a key


class RankActor:
    """One rank: a process that Ray starts."""

    def __init__(self) -> None:
        self._reserved = [reserved_port(), reserved_port()]

    def place(self) -> Place:
        """Returns where this is."""
        import ray

        host = ray.get_runtime_context().get_node_id()
        return Place(host, ray.util.get_node_ip_address(), *(one.getsockname()[1] for one in self._reserved))

    def call(self, assigned: RankAssignment, call: tuple[Callable[..., Any], Sequence[Any]]) -> Outcome:
        """Calls the function as this rank."""
        from ray import cloudpickle

        os.environ.update(assigned.variables)
        os.environ.update(rank_variables(assigned.rank, assigned.size, assigned.address, assigned.place))
        os.environ.update(torchrun_variables(assigned.rank, assigned.size, assigned.store, assigned.place))
        os.environ[KEY_FD] = str(key_descriptor(assigned.key))
        return outcome_of(partial(_as_rank, *call), cloudpickle)


def _as_rank(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    with rank_scope(discover(), whole_process=True):
        return function(*args)


def _call_all(actors: Sequence[Any], function: Callable[..., Any], args: Sequence[Any], timeout: float) -> Outcomes:
    """Makes each actor a rank, and returns how their calls ended."""
    import ray

    try:
        places: list[Place] = ray.get([actor.place.remote() for actor in actors], timeout=timeout)
    except ray.exceptions.RayError as error:
        raise RendezvousError(
            f"Ray could not start {name_count(len(actors), 'rank')}: {_last_line(error)}; every host of the cluster "
            "needs the same version of Hocket",
            missing=range(len(actors)),
        ) from error
    hosts = [place.host for place in places]
    order = sorted(range(len(actors)), key=lambda number: hosts.index(hosts[number]))
    hosts, key = [hosts[number] for number in order], secrets.token_bytes(KEY_BYTES)
    first = places[order[0]]
    call = ray.put((function, tuple(args)))
    running: dict[Any, int] = {}
    for rank, number in enumerate(order):
        assigned = RankAssignment(
            rank,
            len(actors),
            write_address(first.address, first.port),
            (rank - hosts.index(hosts[rank]), hosts.count(hosts[rank])),
            (first.address, first.store_port),
            key,
            passed_on(),
        )
        running[actors[number].call.remote(assigned, call)] = rank
    outcomes = Outcomes(len(actors))
    while running:
        left = None if outcomes.deadline is None else outcomes.deadline - time.monotonic()
        if left is not None and left <= 0.0:
            break
        for answer in ray.wait(list(running), timeout=left)[0]:
            rank = running.pop(answer)
            outcomes.add(rank, _outcome(answer, rank, len(actors), places[order[rank]].address))
    return outcomes


def _outcome(answer: Any, rank: int, size: int, address: str) -> Outcome:
    import ray

    try:
        outcome: Outcome = ray.get(answer)
        return outcome
    except ray.exceptions.RayTaskError as error:  # not of the function: its errors are outcomes
        said = _last_line(error)
        if "pickle" in said:
            return Outcome(failed=True, error=TypeError(f"the rank function returned what cannot be pickled: {said}"))
        text = f"rank {rank} of {size} on {address} could not call the function, or return its result: {said}"
        return Outcome(failed=True, error=RendezvousError(text, missing=[rank]))
    except ray.exceptions.RayError as error:
        text = f"rank {rank} of {size} on {address} ended before the function returned: {_last_line(error)}"
        return Outcome(failed=True, error=PeerDied(text, rank=rank))


def _last_line(error: Exception) -> str:
    """Returns the last line of what Ray says, as far as it is worth reading."""
    return textwrap.shorten(str(error).strip().rpartition("\n")[2], _MAX_WORDS_CHARACTERS, placeholder=" ...")
