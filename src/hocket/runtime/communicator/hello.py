"""How ranks meet: what they tell each other, what all have to have alike, and what rank 0 decides for all."""

import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket import __version__, _core
from hocket.errors import RendezvousError
from hocket.runtime import memory
from hocket.runtime.choice.profile import profile_from, read_profiles
from hocket.runtime.choice.select import Policy
from hocket.runtime.network.doorkeeper import Doorkeeper
from hocket.runtime.network.handshake import KEY_BYTES, Credentials
from hocket.runtime.ranks.cores import beside, far, have_cores, neighbours, num_cores, own_cores
from hocket.runtime.ranks.environment import Environment, link_here, may_attach, uses_tcp
from hocket.runtime.rendezvous.join import join
from hocket.runtime.traces import trace


def check_builds(builds: Sequence[tuple[str, int]]) -> None:
    """Raises RendezvousError, the same on all ranks, unless all run one build: others would misread shared memory."""
    for rank, build in enumerate(builds):
        if build != builds[0]:
            (ours, our_layout), (theirs, their_layout) = builds[0], build
            raise RendezvousError(
                f"rank 0 runs Hocket {ours}, layout {our_layout:016x}, rank {rank} Hocket {theirs}, layout "
                f"{their_layout:016x}, which cannot read each other's memory; install one build for all ranks "
                f"(hocket.__file__ says where each rank has its own)"
            )


def check_links(links: Sequence[Sequence[float] | None]) -> None:
    """Raises RendezvousError, the same on all ranks, unless all use the same paced link or none uses one."""
    for rank, link in enumerate(links):
        said = ["no paced link" if one is None else f"a paced link {tuple(one)}" for one in (links[0], link)]
        if said[0] != said[1]:
            raise RendezvousError(
                f"rank 0 has {said[0]} (bytes per second, seconds), rank {rank} {said[1]}; call hocket.init() on all "
                "ranks inside the same hocket.testing.paced_link(), or on all ranks outside of one"
            )


def check_doors(doors: Sequence[Sequence[Any] | None]) -> None:
    """Raises RendezvousError, the same on all ranks, unless all ranks accept connections or none does."""
    for rank, door in enumerate(doors):
        if (door is None) != (doors[0] is None):
            names = ["shm" if one is None else "tcp" for one in (doors[0], door)]
            raise RendezvousError(
                f"rank 0 has HOCKET_TRANSPORT={names[0]}, rank {rank} HOCKET_TRANSPORT={names[1]}; "
                "give all ranks the same"
            )


def configuration() -> dict[str, Any]:
    """Returns what rank 0 sends to all: name and key of the job, and the policy and profiles of its environment."""
    job, key = secrets.token_hex(4), secrets.token_bytes(KEY_BYTES)
    try:
        policy, profiles = Policy.from_environment(os.environ).encode(), read_profiles(os.environ)
    except (ValueError, OSError) as error:
        return {"policy": "", "profiles": read_profiles({}), "error": str(error), "job": job, "key": key}
    return {"policy": policy, "profiles": profiles, "error": "", "job": job, "key": key}


class Joined(NamedTuple):
    """What a rank has once it has met the others.

    core: the state of this rank in the core. job: a name. endpoints: by rank, where what it shows of the communicator
    of all ranks lies in its memory. policy: of rank 0, encoded. door: who lets connections in, where they carry the
    data.
    """

    core: Any
    rank: int
    size: int
    job: str
    endpoints: list[int]
    has_core: bool
    num_cores: int
    shares_cores: bool
    policy: str
    door: Doorkeeper | None


def meet(environment: Environment) -> Joined:
    """Meets the other ranks. Raises what `hocket.init` does."""
    door = None
    if uses_tcp():
        if link_here() is not None:
            raise ValueError("a paced link is made of shared memory; unset HOCKET_TRANSPORT, or HOCKET_PACED_LINK")
        door = Doorkeeper(_core.Connections(environment.rank), environment.rank)
    try:
        return _meet(environment, door)
    except BaseException:
        if door is not None:
            door.close()
        raise


def _meet(environment: Environment, door: Doorkeeper | None) -> Joined:
    arena = memory.arena(environment.size)
    link = link_here()
    core = _core.Context(arena, trace.recorder(), may_attach=may_attach(), link=link)
    hello = {
        "presence": core.presence_offset,
        "endpoint": core.add_endpoint(environment.size),
        "build": (__version__, _core.LAYOUT),
        "cores": own_cores(),
        "link": link,
        "door": door and door.address,
    }
    members = join(environment, arena.descriptor, hello, configuration() if environment.rank == 0 else None)
    try:
        check_builds([tuple(said["build"]) for said in members.hellos])
        check_links([said["link"] for said in members.hellos])
        doors = [said["door"] for said in members.hellos]
        check_doors(doors)
        cores = [said["cores"] for said in members.hellos]
        with_core, places = have_cores(cores), [of(cores, members.rank) for of in (neighbours, beside, far)]
        presences = [said["presence"] for said in members.hellos]
        shares_cores = not all(with_core)
        profile = profile_from(members.config["profiles"][shares_cores], shares_cores=shares_cores)
        core.join(members.rank, members.descriptors, presences, profile, *places)
    finally:
        for descriptor in members.descriptors:
            os.close(descriptor)
    if members.config["error"]:
        raise ValueError(f"rank 0 cannot use its configuration: {members.config['error']}")
    job = members.config["job"]
    if door is not None:
        credentials = Credentials(members.config["key"], job, members.size, _core.LAYOUT)
        door.open(credentials, [(host, port) for host, port in doors])
    return Joined(
        core=core,
        rank=members.rank,
        size=members.size,
        job=job,
        endpoints=[said["endpoint"] for said in members.hellos],
        has_core=with_core[members.rank],
        num_cores=num_cores(cores),
        shares_cores=shares_cores,
        policy=members.config["policy"],
        door=door,
    )
