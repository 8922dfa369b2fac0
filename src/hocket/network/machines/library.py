"""Predicts the time of a GPU library's call on a machine, from one set of constants per machine and one rule.

A library runs an algorithm in a *protocol*. Each has a start time, a time per hop, and a share of a link's bandwidth.
Instead of the formulas of NCCL's cost model, what the library sends is simulated on the machine's network, with links
as fast as the protocol allows.

The rule: of all algorithms and protocols of the library, the one with the least predicted time runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from hocket.errors import did_you_mean
from hocket.network.machines.call_traffic import PlacedRanks, in_chains, in_rings, in_switches, in_trees
from hocket.network.machines.exchanges import blocks_on_links, exchange
from hocket.network.machines.machine import Machine, Protocol
from hocket.network.simulation.channels import RoutedChannels
from hocket.network.simulation.link_loads import LinkLoads
from hocket.network.topology import Topology

Floats = npt.NDArray[np.float64]

LIBRARY_COLLECTIVES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "nvls", "sharp", "direct"),
    "all_gather": ("ring", "direct"),
    "reduce_scatter": ("ring", "direct"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_to_all": ("direct",),
}
"""The collectives that are predicted on machines, and the algorithms for each."""


_IN_SWITCHES = ("nvls", "sharp")
_FAMILY_OF = dict.fromkeys(_IN_SWITCHES, "switches")  # all other algorithms have protocols under their own name


@dataclass(frozen=True, eq=False, repr=False)
class LibraryTime(LinkLoads):
    """The predicted time of a call; topology: the network at the speed of the protocol.

    latency: what the call takes to begin, and its hops. bandwidth: the time of the bottleneck link.
    """

    algorithm: str
    protocol: str
    num_bytes: float
    latency: float

    @property
    def bandwidth(self) -> float:
        """The seconds for which the bottleneck links are busy."""
        return float(self.link_seconds.max(initial=0.0))


@lru_cache(8)
def placed_on(machine: Machine, num_hosts: int, num_ranks: int | None = None) -> PlacedRanks:
    """Returns the first num_ranks ranks (None: all) of so many hosts. Raises ValueError if there are fewer."""
    network = machine.network(num_hosts)
    if num_ranks is not None and not 1 <= num_ranks <= network.num_ranks:
        raise ValueError(f"ranks: {network.name} has {network.num_ranks} ranks; found {num_ranks}")
    if num_ranks not in (None, network.num_ranks):
        network = network.place(range(num_ranks or 0))
    return PlacedRanks(network)


def library_algorithms(machine: Machine, collective: str) -> tuple[str, ...]:
    """Returns what the library chooses from for a collective. Raises ValueError for one that is not predicted."""
    known = LIBRARY_COLLECTIVES.get(collective)
    if known is None:
        raise ValueError(
            f"expected a collective that is predicted on machines, one of {', '.join(LIBRARY_COLLECTIVES)}; found "
            f"{collective!r}{did_you_mean(collective, LIBRARY_COLLECTIVES)}"
        )
    return tuple(one for one in known if one in machine.algorithms) or known[:1]


def library_times(
    machine: Machine,
    placed: PlacedRanks,
    collective: str,
    num_bytes: float,
    *,
    algorithm: str,
    protocol: str = "",
    root: int = 0,
) -> Iterator[LibraryTime]:
    """Yields the time of a call with this algorithm in each protocol that it has, or only in one.

    num_bytes: of the whole vector. Raises ValueError if the algorithm is not for this collective, machine or protocol.
    """
    allowed = LIBRARY_COLLECTIVES[collective] if collective in LIBRARY_COLLECTIVES else ()
    if algorithm not in allowed:
        raise ValueError(
            f"{collective}: expected an algorithm of the library, one of {', '.join(allowed)}; found {algorithm!r}"
            f"{did_you_mean(algorithm, allowed)}"
        )
    family = "ring" if collective == "all_to_all" else _FAMILY_OF.get(algorithm, algorithm)
    having = [one for one in machine.protocols[family] if protocol in ("", one.name)]
    if not having:
        raise ValueError(
            f"{algorithm}: expected a protocol, one of {', '.join(one.name for one in machine.protocols[family])}; "
            f"found {protocol!r}"
        )
    call = _Call(machine, placed, collective, num_bytes, algorithm, root)
    return map(call.time, having)


@dataclass(frozen=True)
class _Call:
    machine: Machine
    placed: PlacedRanks
    collective: str
    num_bytes: float
    algorithm: str
    root: int

    @cached_property
    def routed(self) -> RoutedChannels:
        """The channels of the algorithm, for all protocols."""
        placed, size = self.placed, self.num_bytes
        if self.algorithm in _IN_SWITCHES:
            return RoutedChannels(*in_switches(placed, size, between=self.algorithm == "sharp"))
        if self.algorithm == "tree":
            return RoutedChannels(in_trees(placed, size), placed.network)
        if self.collective in ("broadcast", "reduce"):
            chains = in_chains(placed, self.root, size, to_root=self.collective == "reduce")
            return RoutedChannels(chains, placed.network)
        return RoutedChannels(in_rings(placed, self.collective), placed.network)

    @cached_property
    def blocks(self) -> Floats:
        """The blocks of an exchange on each link, for all protocols."""
        return blocks_on_links(self.placed)

    def time(self, protocol: Protocol) -> LibraryTime:
        """Returns the time in this protocol."""
        machine, placed, size = self.machine, self.placed, self.num_bytes
        inside = protocol.inside_seconds + machine.hop_seconds
        between = protocol.between_seconds + machine.fabric_seconds + machine.hop_seconds
        if self.algorithm in _IN_SWITCHES:
            inside = protocol.inside_seconds  # pieces overlap in a switch, and their latency counts once, at the begin
        begin = machine.launch_seconds + protocol.begin_seconds
        if self.algorithm == "direct":
            network = self._at_speed(placed.network, protocol)
            times = 2 if self.collective == "all_reduce" else 1  # reduce_scatter, then all_gather
            found = exchange(
                times * self.blocks,
                placed,
                network.bytes_per_second,
                (times * inside, times * between),
                size / placed.num_ranks,
            )
        else:
            network = self._at_speed(self.routed.topology, protocol)
            found = self.routed.times(network.bytes_per_second, (inside, between), size)
        # A ring copies the last block out of the receive buffer, and nothing else overlaps with that copy.
        copied = size / placed.num_ranks / machine.copy_bytes_per_second if self.algorithm == "ring" else 0.0
        return LibraryTime(
            topology=network,
            seconds=begin + found.seconds + copied,
            link_bytes=found.link_bytes,
            algorithm=self.algorithm,
            protocol=protocol.name,
            num_bytes=size,
            latency=begin + found.latency,
        )

    def _at_speed(self, network: Topology, protocol: Protocol) -> Topology:
        """Returns the network with links as fast as the protocol and the switches allow."""
        machine = self.machine
        between = network.link_class == "nic"
        share = np.where(between, protocol.share_between, protocol.share) * machine.bandwidth_share
        if self.algorithm in _IN_SWITCHES:
            share = np.where(between, share, share * (machine.switch_share or 1.0))
        if self.algorithm == "sharp":
            share = np.where(between, share * (machine.fabric_share or 1.0), share)
        rate = network.bytes_per_second * share
        if protocol.name == "LL":
            hosts = len(self.placed.hosts)
            rate = np.minimum(rate, machine.low_latency_bytes_per_second[min(2, hosts.bit_length() - 1)])
        return replace(network, bytes_per_second=rate)
