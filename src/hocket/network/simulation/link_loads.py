"""What links carry in a simulated call: how long each is busy, and which are the bottleneck."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hocket.network.topology import Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class LinkLoads:
    """A call of `seconds` on a network. link_bytes: float64[num_links], the bytes on each link."""

    topology: Topology
    seconds: float
    link_bytes: Floats

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
