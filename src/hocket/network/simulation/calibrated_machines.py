"""Calibrated machines: predicts the time of a GPU library on them, from one set of constants per machine and one rule.

A library runs an algorithm in a *protocol*: LL moves a flag with every 4 bytes, LL128 one with every 120, and neither
waits for a fence; Simple moves plain data in large pieces, each followed by a fence. Each protocol has a start time, a
time per hop, and a share of a link's bandwidth; the constants are those of NCCL's cost model (src/graph/tuning.cc of
2.27). Instead of that model's formulas, this module simulates the schedule on the machine's network, with links as fast
as the protocol allows.

The rule: of all algorithms and protocols of the library, the one with the least predicted time runs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hocket.network.kinds.by_name import parse
from hocket.network.simulation.pipelined import all_reduce_in_chains, all_reduce_in_switches, on_rails
from hocket.network.simulation.simulate import simulate
from hocket.network.topology import Topology
from hocket.schedule import Schedule

Build = Callable[[str, str, int], Schedule]
"""Makes a schedule from a collective, an algorithm's name and a rank count: this layer knows no algorithms itself."""


@dataclass(frozen=True)
class Protocol:
    """A protocol: seconds to begin, per hop inside a host and between hosts; shares of the bandwidth that are data."""

    name: str
    begin_seconds: float
    inside_seconds: float
    between_seconds: float
    share: float
    share_between: float


_RING = (
    Protocol("LL", 6.6e-6, 0.6e-6, 2.7e-6, 0.5, 0.5),
    Protocol("LL128", 14.0e-6, 1.9e-6, 4.0e-6, 0.92, 0.92),
    Protocol("Simple", 8.4e-6, 3.4e-6, 14.0e-6, 1.0, 1.0),
)
_TREE = (
    Protocol("LL", 6.8e-6, 0.6e-6, 5.0e-6, 0.92 / 3.8, 0.92 / 3.8),
    Protocol("LL128", 14.0e-6, 1.25e-6, 8.5e-6, 0.92 * 7 / 9, 0.92 * 120 / 128),
    Protocol("Simple", 8.4e-6, 4.0e-6, 14.0e-6, 0.92, 0.92),
)
# Pieces overlap in switches, so their latency counts once: 25 us in hosts, 20.9 us for a hop between hosts.
_SWITCHES = Protocol("Simple", 8.4e-6 + 25e-6, 0.0, 0.0, 1.0, 1.0)
_SWITCHES_BETWEEN_SECONDS = 20.9e-6

# Hocket's choice: enough pieces that filling a chain costs little, few enough that their latencies do not add up.
_CHAIN_PIECE_BYTES = 1 << 19
_MOST_PIECES = 64
# NCCL's division of a vector for its switches (src/enqueue.cc): in each of 16 channels, one chunk per head. Rows are
# (times, chunk bytes): the first chunk size applies of which the vector holds at least `times` in all channels.
_SWITCH_CHANNELS = 16
_SWITCH_CHUNKS = ((64, 1 << 17), (8, 1 << 16), (2, 1 << 15))
_SWITCH_LEAST_CHUNK = 1 << 14


@dataclass(frozen=True)
class Machine:
    """One kind of host, and the library that was measured on it.

    network: the KIND of topology; its argument is the number of hosts, each with ranks_per_host GPUs.
    low_latency_bytes_per_second: the most that LL reaches on 1, 2, and 4 or more hosts. copy_bytes_per_second: speed of
    a copy within a GPU's memory. switch_share: share of its links' bandwidth that a switch can reduce; None if it
    cannot reduce. exchanges: whether the library has direct exchanges between all pairs, in LL and LL128.
    launch_seconds: from the timed call to the first instruction on the GPU.
    """

    title: str
    network: str
    ranks_per_host: int
    low_latency_bytes_per_second: tuple[float, float, float]
    copy_bytes_per_second: float
    switch_share: float | None = None
    exchanges: bool = False
    launch_seconds: float = 0.0


@dataclass(frozen=True)
class PredictedTime:
    """One algorithm and protocol for a call, and its predicted seconds."""

    algorithm: str
    protocol: str
    seconds: float


_LL_HOPPER, _LL_AMPERE = (141e9, 45e9, 35e9), (87.7e9, 22.5e9, 19e9)
_H100_COPY, _H200_COPY, _A100_COPY = (
    3.35e12 / 2,
    4.8e12 / 2,
    1.555e12 / 2,
)  # half of the data sheet's bandwidth for reading

MACHINES: dict[str, Machine] = {
    "h100": Machine("H100, NCCL in a CUDA graph", "dgx-h100", 8, _LL_HOPPER, _H100_COPY, 0.85),
    "h100-msccl": Machine("H100, MSCCL in a CUDA graph", "dgx-h100", 8, _LL_HOPPER, _H100_COPY, 0.85, exchanges=True),
    "h200": Machine("H200, NCCL", "dgx-h100", 8, _LL_HOPPER, _H200_COPY, 0.85),
    "a100": Machine("A100, NCCL", "dgx-a100", 8, _LL_AMPERE, _A100_COPY),
    # The launch time is fitted to the measurements, which come from a training program, not from a CUDA graph.
    "a100-framework": Machine(
        "A100, NCCL called by a training framework", "dgx-a100", 8, _LL_AMPERE, _A100_COPY, launch_seconds=30e-6
    ),
}
"""All machines, by name."""


def predict(machine: Machine, collective: str, num_ranks: int, num_bytes: int, build: Build) -> PredictedTime:
    """Returns the rule's choice for a call of num_bytes (the whole vector) on the GPUs of full hosts or of one host.

    Raises ValueError for a collective that the rule does not know.
    """
    return min(predictions(machine, collective, num_ranks, num_bytes, build), key=lambda one: one.seconds)


def predictions(
    machine: Machine, collective: str, num_ranks: int, num_bytes: int, build: Build
) -> Iterator[PredictedTime]:
    """Yields every algorithm and protocol of the library; takes the arguments of predict."""
    if collective not in ("all_reduce", "all_gather"):
        raise ValueError(f"expected all_reduce or all_gather, the collectives measured on machines; found {collective}")
    call = _Call(machine, collective, num_ranks, num_bytes, build)
    for protocol in _RING:
        yield call.ring(protocol)
        if machine.exchanges and protocol.share < 1:
            yield call.exchange(protocol)
    if collective == "all_reduce":
        for protocol in _TREE:
            yield call.tree(protocol)
        if machine.switch_share is not None and num_ranks > 2:
            yield call.in_switches(machine.switch_share)


@dataclass(frozen=True)
class _Call:
    machine: Machine
    collective: str
    num_ranks: int
    num_bytes: int
    build: Build

    @property
    def num_hosts(self) -> int:
        return -(-self.num_ranks // self.machine.ranks_per_host)

    def ring(self, protocol: Protocol) -> PredictedTime:
        schedule = self.build(self.collective, "ring", self.num_ranks)
        if self.num_hosts > 1:
            schedule = on_rails(schedule, self.num_hosts)
        # The last block is copied out of the receive buffer, and nothing else overlaps with that copy.
        copied = self.num_bytes / self.num_ranks / self.machine.copy_bytes_per_second
        return self._made("ring", schedule, protocol, more_seconds=copied)

    def exchange(self, protocol: Protocol) -> PredictedTime:
        name = "direct_two_shot" if self.collective == "all_reduce" else "direct"
        return self._made(name, self.build(self.collective, name, self.num_ranks), protocol)

    def tree(self, protocol: Protocol) -> PredictedTime:
        num_pieces = max(1, min(_MOST_PIECES, self.num_bytes // _CHAIN_PIECE_BYTES))
        return self._made("tree", all_reduce_in_chains(self.num_ranks, self.num_hosts, num_pieces), protocol)

    def in_switches(self, share: float) -> PredictedTime:
        heads = self.num_ranks // self.num_hosts
        piece_bytes = _SWITCH_CHANNELS * heads * _switch_chunk(self.num_bytes, _SWITCH_CHANNELS * heads)
        num_pieces = max(1, min(_MOST_PIECES, round(self.num_bytes / piece_bytes)))
        schedule = all_reduce_in_switches(self.num_ranks, self.num_hosts, num_pieces)
        name = "nvls" if self.num_hosts == 1 else "nvls_tree"
        begin = _SWITCHES.begin_seconds + 2 * math.log2(self.num_hosts) * _SWITCHES_BETWEEN_SECONDS
        return self._made(name, schedule, replace(_SWITCHES, share=share, begin_seconds=begin), switches=True)

    def _made(
        self, name: str, schedule: Schedule, protocol: Protocol, *, more_seconds: float = 0.0, switches: bool = False
    ) -> PredictedTime:
        network = self._network(protocol, switches)
        seconds = simulate(schedule, network, self.num_bytes, level="steps").seconds
        begin = self.machine.launch_seconds + protocol.begin_seconds
        return PredictedTime(name, protocol.name, begin + seconds + more_seconds)

    def _network(self, protocol: Protocol, switches: bool) -> Topology:
        """Returns the machine's network at the protocol's speed; with `switches`, these are ranks after the GPUs."""
        whole = parse(f"{self.machine.network}:{self.num_hosts}")
        between = whole.link_class == "nic"
        inside = whole.link_class == "nvswitch"
        rate = whole.bytes_per_second * np.where(between, protocol.share_between, protocol.share)
        if protocol.name == "LL":
            most = self.machine.low_latency_bytes_per_second[min(2, self.num_hosts.bit_length() - 1)]
            rate = np.minimum(rate, most)
        hops_seconds = np.where(
            between, protocol.between_seconds / 2, np.where(inside, protocol.inside_seconds / 2, 0.0)
        )
        switch_names = [
            name for name, kind in zip(whole.node_names, whole.node_kinds, strict=True) if kind == "nvswitch"
        ]
        ranks = [*range(self.num_ranks), *(switch_names if switches else ())]
        return replace(whole, bytes_per_second=rate, seconds=hops_seconds).place(ranks)


def _switch_chunk(num_bytes: int, times: int) -> int:
    for many, chunk in _SWITCH_CHUNKS:
        if num_bytes >= many * times * chunk:
            return chunk
    return _SWITCH_LEAST_CHUNK
