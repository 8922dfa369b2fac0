"""What links carry in a simulated call: how long each is busy, and which are the bottleneck."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.network.topology import Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """The parts of the time, in seconds; their sum is the whole time, and none is negative.

    Bandwidth is the time for which the bottleneck links are busy. Latency (with overheads) and reduction are what the
    steps need one after the other, as far as the bottleneck links are not busy meanwhile. Contention is the rest:
    waiting for shared links, and for other ranks.
    """

    latency: float
    bandwidth: float
    reduction: float
    contention: float

    @classmethod
    def of(cls, seconds: float, busy: float, latency: float, reduction: float = 0.0) -> "Parts":
        """Returns the parts of a time in which the bottleneck links are busy for `busy` seconds."""
        bandwidth = min(busy, seconds)
        latency = min(latency, seconds - bandwidth)
        reduction = min(reduction, seconds - bandwidth - latency)
        return cls(latency, bandwidth, reduction, max(0.0, seconds - bandwidth - latency - reduction))


@dataclass(frozen=True, eq=False, repr=False)
class LinkLoads:
    """A call of `seconds` on a network. link_bytes: float64[num_links], the bytes on each link."""

    topology: Topology
    num_bytes: float
    seconds: float
    link_bytes: Floats
    parts: Parts

    @property
    def algorithm_bytes_per_second(self) -> float:
        """algbw: num_bytes / seconds."""
        return self.num_bytes / self.seconds if self.seconds else math.inf

    @property
    def link_seconds(self) -> Floats:
        """The time for which each link is busy, at its full speed: float64[num_links]."""
        return self.link_bytes / self.topology.bytes_per_second

    @property
    def binding_links(self) -> Ints:
        """The bottleneck links: the numbers of all links that are busy longest; empty if nothing is sent."""
        busy = self.link_seconds
        most = busy.max(initial=0.0)
        return np.flatnonzero(busy >= most * (1 - 1e-9)) if most else np.zeros(0, np.int64)

    @property
    def binding_share(self) -> float:
        """The share of the time for which the bottleneck links are busy; near 1, they determine the time."""
        return float(self.link_seconds.max(initial=0.0) / self.seconds) if self.seconds else 0.0
