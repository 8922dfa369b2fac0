"""Predicts the time of a GPU library's call on a machine, from one set of constants per machine and one rule.

A library runs an algorithm in a *protocol*. Each has a start time, a time per hop, and a share of a link's bandwidth.
What the library sends is simulated on the machine's network, with links as fast as the protocol allows. Two rules are
NCCL's own: of all algorithms and protocols of the library, the one with the least predicted time runs; and latency and
bandwidth add up, because a channel's threads do not send ahead while they wait for a hop.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hocket.errors import did_you_mean
from hocket.network.machines.call_traffic import (
    PlacedRanks,
    in_chains,
    in_rings,
    in_switches,
    in_trees,
    rail_switches,
    switches_of_hosts,
)
from hocket.network.machines.exchanges import blocks_on_links, exchange
from hocket.network.machines.machine import Machine, Protocol
from hocket.network.simulation.channels import RoutedChannels
from hocket.network.simulation.link_loads import LinkLoads, Parts
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
    """The predicted time of a call; topology: the network at the speed of the protocol. num_steps: hops in sequence."""

    algorithm: str
    protocol: str
    num_steps: int


@lru_cache(8)
def placed_on(machine: Machine, num_hosts: int, num_ranks: int | None = None) -> PlacedRanks:
    """Returns the first num_ranks ranks (None: all) of so many hosts. Raises ValueError if there are fewer."""
    network = machine.network(num_hosts)
    if machine.fabric_share is not None:
        reducing = network.reducing | np.isin(np.arange(network.num_nodes), rail_switches(network))
        network = replace(network, reducing=reducing)
    if num_ranks is not None and not 1 <= num_ranks <= network.num_ranks:
        raise ValueError(f"ranks: {network.name} has {network.num_ranks} ranks; found {num_ranks}")
    if num_ranks not in (None, network.num_ranks):
        network = network.place(range(num_ranks or 0))
    return PlacedRanks(network)


def library_algorithms(machine: Machine, collective: str, protocol: str = "") -> tuple[str, ...]:
    """Returns what the library chooses from for a collective: of its algorithms, those that have the protocol."""
    known = LIBRARY_COLLECTIVES[collective]
    chosen = tuple(one for one in known if one in machine.algorithms) or known[:1]
    having = tuple(one for one in chosen if protocol in ("", *_names(machine, collective, one)))
    return having or chosen


def library_check(machine: Machine, placed: PlacedRanks, collective: str, algorithm: str, protocol: str = "") -> None:
    """Raises ValueError if the algorithm is not for this collective, or the machine has not what it needs."""
    known = LIBRARY_COLLECTIVES[collective]
    if algorithm not in known:
        raise ValueError(
            f"{collective}: expected an algorithm of the library, one of {', '.join(known)}; found {algorithm!r}"
            f"{did_you_mean(algorithm, known)}"
        )
    names = _names(machine, collective, algorithm)
    if protocol not in ("", *names):
        raise ValueError(
            f"{algorithm} on {machine.name}: expected a protocol, one of {', '.join(names)}; found {protocol!r}"
            f"{did_you_mean(protocol, names)}"
        )
    needs = {"nvls": ("switch_share",), "sharp": ("switch_share", "fabric_share")}.get(algorithm, ())
    for key in needs:
        if getattr(machine, key) is None:
            raise ValueError(
                f"{algorithm}: expected {key} in the machine file, the share of bandwidth at which switches reduce; "
                f"{machine.name} has none"
            )
    if needs and placed.num_ranks > len(placed.hosts):
        switches_of_hosts(placed)


def _names(machine: Machine, collective: str, algorithm: str) -> tuple[str, ...]:
    return tuple(one.name for one in _protocols(machine, collective, algorithm))


def _protocols(machine: Machine, collective: str, algorithm: str) -> tuple[Protocol, ...]:
    family = "ring" if collective == "all_to_all" else _FAMILY_OF.get(algorithm, algorithm)
    protocols: tuple[Protocol, ...] = getattr(machine.protocols, family)
    return protocols


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

    num_bytes: of the whole vector. Raises ValueError as library_check.
    """
    library_check(machine, placed, collective, algorithm, protocol)
    call = _Call(machine, placed, collective, num_bytes, algorithm, root)
    return (call.time(one) for one in _protocols(machine, collective, algorithm) if protocol in ("", one.name))


@dataclass(frozen=True)
class _Call:
    machine: Machine
    placed: PlacedRanks
    collective: str
    num_bytes: float
    algorithm: str
    root: int

    def time(self, protocol: Protocol) -> LibraryTime:
        """Returns the time in this protocol."""
        machine, placed, size = self.machine, self.placed, self.num_bytes
        inside, between = self._hop_seconds(protocol)
        begin = machine.launch_seconds + protocol.begin_seconds
        if self.algorithm == "direct":
            network = self._at_speed(placed.network, protocol)
            times = 2 if self.collective == "all_reduce" else 1  # reduce_scatter, then all_gather
            found = exchange(
                times * _blocks(placed),
                placed,
                network.bytes_per_second,
                (times * inside, times * between),
                size / placed.num_ranks,
            )
        else:
            routed = _routed(placed, self.collective, self.algorithm, self.root)
            network = self._at_speed(routed.topology, protocol)
            found = routed.times(network.bytes_per_second, (inside, between), size)
            slower = self._slowed(network, found.link_bytes, protocol)
            if slower is not network:
                network = slower
                found = routed.times(network.bytes_per_second, (inside, between), size)
        # A ring copies the last block out of the receive buffer, and nothing else overlaps with that copy.
        copied = size / placed.num_ranks / machine.copy_bytes_per_second if self.algorithm == "ring" else 0.0
        busy = float((found.link_bytes / network.bytes_per_second).max(initial=0.0))
        seconds = begin + max(found.seconds, found.latency + busy) + copied
        return LibraryTime(
            topology=network,
            num_bytes=size,
            seconds=seconds,
            link_bytes=found.link_bytes,
            parts=Parts.of(seconds, busy, begin + found.latency),
            algorithm=self.algorithm,
            protocol=protocol.name,
            num_steps=found.num_steps,
        )

    def _hop_seconds(self, protocol: Protocol) -> tuple[float, float]:
        """Returns the latency of a message within a host, and between hosts."""
        machine, several = self.machine, len(self.placed.hosts) > 1
        inside = protocol.inside_seconds + machine.hop_seconds
        between = protocol.between_seconds + machine.fabric_seconds + machine.hop_seconds
        if self.algorithm in _IN_SWITCHES:  # pieces overlap in a switch, and their latency counts once, at the begin
            return protocol.inside_seconds, between
        if self.algorithm == "ring" and several:
            inside = max(inside, machine.post_seconds * (3 if protocol.name == "Simple" else 1))
            if self.collective == "all_reduce":
                return inside * protocol.plateau, between * protocol.plateau
        return inside, between

    def _slowed(self, network: Topology, link_bytes: Floats, protocol: Protocol) -> Topology:
        """Returns the network with links slowed by so much that the call keeps the protocol's limits of busbw."""
        hosts, number = len(self.placed.hosts), self.placed.num_ranks
        most = self.machine.low_latency_bytes_per_second[min(hosts, 3) - 1] if protocol.name == "LL" else math.inf
        if hosts > 1:
            most = min(most, self.placed.num_cards * protocol.card_bytes_per_second[min(hosts, 3) - 2])
        # What a library calls busbw: what a ring or a switch sends per rank; a tree sends the vector up and down.
        once = 1.0 if self.collective in ("broadcast", "reduce") else (number - 1) / number
        times = 2.0 if self.algorithm == "tree" else once * (2 if self.collective == "all_reduce" else 1)
        busy = float((link_bytes / network.bytes_per_second).max(initial=0.0))
        needed = max(busy, times * self.num_bytes / most)
        power = max(64, int(self.num_bytes)).bit_length() - (64).bit_length()
        if power < len(protocol.by_size):
            needed /= protocol.by_size[power]
        if not 0 < busy < needed:
            return network
        return replace(network, bytes_per_second=network.bytes_per_second * (busy / needed))

    def _at_speed(self, network: Topology, protocol: Protocol) -> Topology:
        """Returns the network with links as fast as the protocol and the switches allow."""
        machine = self.machine
        share = np.where(network.link_class == "nic", protocol.share_between, protocol.share) * machine.bandwidth_share
        if self.algorithm in _IN_SWITCHES:
            reducing = network.reducing[network.link_source] | network.reducing[network.link_target]
            inside, between = machine.switch_share or 1.0, machine.fabric_share or 1.0
            share = np.where(reducing, share * np.where(network.link_class == "nic", between, inside), share)
        rate = network.bytes_per_second * share
        if self.algorithm == "direct" and protocol.name == "LL":  # pairs do not share a limit
            rate = np.minimum(rate, machine.low_latency_bytes_per_second[0])
        return replace(network, bytes_per_second=rate)


# Remembered for all sizes, protocols and machines of the same network: routing costs more than anything else.
@lru_cache(8)
def _routed(placed: PlacedRanks, collective: str, algorithm: str, root: int) -> RoutedChannels:
    if algorithm in _IN_SWITCHES:
        return RoutedChannels(*in_switches(placed, between=algorithm == "sharp"))
    if algorithm == "tree":
        return RoutedChannels(in_trees(placed), placed.network)
    if collective in ("broadcast", "reduce"):
        return RoutedChannels(in_chains(placed, root, to_root=collective == "reduce"), placed.network)
    return RoutedChannels(in_rings(placed, collective), placed.network)


@lru_cache(8)
def _blocks(placed: PlacedRanks) -> Floats:
    return blocks_on_links(placed)
