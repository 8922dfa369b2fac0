"""A machine: one kind of host and the GPU library on it, as constants. `machine_file` reads it from YAML."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hocket.errors import TopologyError
from hocket.network.files.read import load
from hocket.network.topology import Topology

HOSTS = "HOSTS"
"""Stands for the number of hosts in a machine's topology."""

PROTOCOLS = ("LL", "LL128", "Simple")
"""LL moves a flag with every 4 bytes, LL128 one with every 120; Simple moves plain data, with a fence a piece."""


@dataclass(frozen=True)
class Protocol:
    """A way to move data: seconds to begin, per hop inside a host and between hosts; shares of bandwidth for data.

    card_bytes_per_second: the most busbw per network card, on 2 hosts and on more. plateau: times the latency of a
    ring's all_reduce on several hosts. by_size: times the bandwidth for vectors of 64 B, of 128 B and so on, then 1.
    """

    name: str
    begin_seconds: float
    inside_seconds: float
    between_seconds: float
    share: float
    share_between: float
    card_bytes_per_second: tuple[float, float]
    plateau: float
    by_size: tuple[float, ...]


class Protocols(NamedTuple):
    """The protocols of rings (and chains), of trees, of reducing switches, and of exchanges of all pairs."""

    ring: tuple[Protocol, ...]
    tree: tuple[Protocol, ...]
    switches: tuple[Protocol, ...]
    direct: tuple[Protocol, ...]


@dataclass(frozen=True)
class Machine:
    """One kind of host, and the library on it.

    name: of its file. title: what the file calls it. topology: KIND:ARGS with HOSTS for the number of hosts; folder:
    where the files lie that it names.
    bandwidth_share: share of every link's bandwidth that data gets, before the protocol's. hop_seconds: added to each
    hop. fabric_seconds: added to each hop between hosts. post_seconds: the least time of a ring's hop on several hosts,
    three times that for Simple. launch_seconds: from the call to the first instruction. copy_bytes_per_second: of a
    copy within a GPU's memory. low_latency_bytes_per_second: the most busbw of LL on 1, on 2, and on more hosts.
    switch_share: share of its links' bandwidth at which a switch of a host reduces; None if it does not. fabric_share:
    the same for the switches between hosts. algorithms: those that the library chooses from.
    """

    name: str
    title: str
    topology: str
    folder: Path
    bandwidth_share: float
    hop_seconds: float
    fabric: str
    fabric_seconds: float
    post_seconds: float
    launch_seconds: float
    copy_bytes_per_second: float
    low_latency_bytes_per_second: tuple[float, float, float]
    switch_share: float | None
    fabric_share: float | None
    protocols: Protocols
    algorithms: tuple[str, ...]

    def network(self, num_hosts: int) -> Topology:
        """Returns the network of num_hosts full hosts. Raises TopologyError for an impossible one."""
        if num_hosts < 1:
            raise TopologyError(f"machine {self.name}: expected 1 host or more, found {num_hosts}")
        return load(self.topology.replace(HOSTS, str(num_hosts)), self.folder)
