"""How ranks meet: what they tell each other, what all have to have alike, and what rank 0 decides for all."""

import contextlib
import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket import __version__, _core
from hocket.errors import RendezvousError
from hocket.runtime import memory
from hocket.runtime.choice.profile import profile_from, read_profiles
from hocket.runtime.choice.select import Policy
from hocket.runtime.network.addresses import Address
from hocket.runtime.network.agent import Agent
from hocket.runtime.network.doorkeeper import Doorkeeper
from hocket.runtime.network.handshake import KEY_BYTES, Credentials
from hocket.runtime.network.interfaces import named_interfaces
from hocket.runtime.network.job_key import job_key
from hocket.runtime.network.rails import rails_of_this_host
from hocket.runtime.ranks.cores import CoresOfHosts, beside, far, neighbours, own_cores
from hocket.runtime.ranks.environment import Environment, link_here, may_attach, uses_tcp
from hocket.runtime.rendezvous import star
from hocket.runtime.rendezvous.join import join
from hocket.runtime.rendezvous.star import Gathered, Offer
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


def check_transports(tcp: Sequence[bool]) -> None:
    """Raises RendezvousError, the same on all ranks, unless connections carry all data everywhere, or nowhere."""
    for rank, one in enumerate(tcp):
        if one != tcp[0]:
            names = ["tcp" if each else "shm" for each in (tcp[0], one)]
            raise RendezvousError(
                f"rank 0 has HOCKET_TRANSPORT={names[0]}, rank {rank} HOCKET_TRANSPORT={names[1]}; "
                "give all ranks the same"
            )


def configuration() -> dict[str, Any]:
    """Returns what rank 0 sends to all: the name of the job, and the policy and profiles of its environment."""
    job = secrets.token_hex(4)
    try:
        policy, profiles = Policy.from_environment(os.environ).encode(), read_profiles(os.environ)
    except (ValueError, OSError) as error:
        return {"policy": "", "profiles": read_profiles({}), "error": str(error), "job": job}
    return {"policy": policy, "profiles": profiles, "error": "", "job": job}


class Joined(NamedTuple):
    """What a rank has once it has met the others.

    core: the state of this rank in the core. job: a name. endpoints: by rank, where what it shows of the communicator
    of all ranks lies in its memory, and how often that was used before. hosts: by rank, the number of its host. policy:
    of rank 0, encoded. door: what lets connections in, where they carry data.
    """

    core: Any
    rank: int
    size: int
    job: str
    endpoints: list[tuple[int, int]]
    hosts: list[int]
    has_core: bool
    num_cores: int
    shares_cores: bool
    policy: str
    door: Doorkeeper | None


def meet(environment: Environment) -> Joined:
    """Meets the other ranks. Raises what `hocket.init` does."""
    with contextlib.ExitStack() as undo:
        joined = _Meeting(environment, undo).run()
        undo.pop_all()
    return joined


class _Meeting:
    """The parts of a rank that are made before it meets the others. `undo` closes them if the meeting fails."""

    def __init__(self, environment: Environment, undo: contextlib.ExitStack) -> None:
        self.environment, self._undo = environment, undo
        self.tcp, self.link = uses_tcp(), link_here()
        if self.link is not None and (self.tcp or environment.board is not None):
            raise ValueError(
                "a paced link is made of shared memory; unset HOCKET_PACED_LINK, or start all ranks on one host "
                "without HOCKET_TRANSPORT"
            )
        self.arena = memory.arena(environment.size)
        self.core = _core.Context(self.arena, trace.recorder(), may_attach=may_attach(), link=self.link)
        self.door: Doorkeeper | None = None

    def run(self) -> Joined:
        endpoint = self.core.add_endpoint(self.environment.size)
        hello = {
            "presence": self.core.presence_offset,
            "endpoint": (endpoint, self.core.generation_of(endpoint)),
            "build": (__version__, _core.LAYOUT),
            "cores": own_cores(),
            "link": self.link,
            "tcp": self.tcp,
        }
        gathered, key = self._gather(hello)
        members, config = gathered.membership, gathered.membership.config
        try:
            check_builds([tuple(said["build"]) for said in members.hellos])
            check_links([said["link"] for said in members.hellos])
            check_transports([said["tcp"] for said in members.hellos])
            cores = CoresOfHosts([said["cores"] for said in members.hellos], gathered.hosts)
            profile = profile_from(config["profiles"][cores.are_shared], shares_cores=cores.are_shared)
            elsewhere = [rank for rank, host in enumerate(gathered.hosts) if host != gathered.hosts[members.rank]]
            self.core.join(
                members.rank,
                members.descriptors[: members.size],
                [said["presence"] for said in members.hellos],
                profile,
                cores.on_host_of(members.rank, neighbours),
                cores.on_host_of(members.rank, beside),
                cores.on_host_of(members.rank, far),
                elsewhere,
                gathered.bell,
                [said["name"] for said in members.hellos] if elsewhere else [],
            )
        finally:
            for descriptor in members.descriptors:
                os.close(descriptor)
        if config["error"]:
            raise ValueError(f"rank 0 cannot use its configuration: {config['error']}")
        self._open_door(gathered, key)
        return Joined(
            core=self.core,
            rank=members.rank,
            size=members.size,
            job=config["job"],
            endpoints=[(offset, generation) for offset, generation in (said["endpoint"] for said in members.hellos)],
            hosts=gathered.hosts,
            has_core=cores.has_core(members.rank),
            num_cores=cores.number,
            shares_cores=cores.are_shared,
            policy=config["policy"],
            door=self.door,
        )

    def _gather(self, hello: dict[str, Any]) -> tuple[Gathered, bytes]:
        """Returns what the ranks have told each other, and the key by which they know each other's connections."""
        environment = self.environment
        if environment.board is not None:
            key = job_key()
            offer = Offer(self.arena.descriptor, self.arena.num_bytes, hello, configuration, self._make_door)
            gathered = star.meet(environment, None if key is None else key.key, offer)
            for link in gathered.links.values():
                self._undo.callback(link.close)
            return gathered, gathered.key
        if self.tcp:
            hello["doors"] = self._make_door(["127.0.0.1"])
        config = configuration() | {"key": secrets.token_bytes(KEY_BYTES)} if environment.rank == 0 else None
        members = join(environment, self.arena.descriptor, hello, config)
        return Gathered(members, [0] * members.size, None, {}, -1, b""), members.config["key"]

    def _make_door(self, addresses: Sequence[str]) -> list[Address]:
        rank = self.environment.rank
        rails = rails_of_this_host(named_interfaces(), addresses[0]) if self.environment.board is not None else []
        connections = _core.Connections(rank, carry_all=self.tcp, num_rails=len(rails) or 1)
        places = list(dict.fromkeys([*addresses, *(one.host for one in rails)]))
        self.door = Doorkeeper(connections, rank, places, rails)
        self._undo.callback(self.door.close)
        return self.door.addresses

    def _open_door(self, gathered: Gathered, key: bytes) -> None:
        """Lets the door work; if nothing comes through it, as all ranks are on this host, closes it."""
        if self.door is None:
            return
        members = gathered.membership
        if gathered.bell < 0 and not self.tcp:
            self.door.close()
            self.door = None
            return
        agent = None
        if gathered.mirrors is not None:
            gathered.mirrors.join(self.core)
            by_host = [
                [rank for rank, host in enumerate(gathered.hosts) if host == number]
                for number in sorted(set(gathered.hosts))
            ]
            agent = Agent(self.core, gathered.mirrors, members.rank, by_host, gathered.links)
        doors = [[(host, port) for host, port in said["doors"]] for said in members.hellos]
        self.door.open(Credentials(key, members.config["job"], members.size, _core.LAYOUT), doors, agent)
