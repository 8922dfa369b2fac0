"""Routes traffic between accelerators in hosts: through the network cards that serve them, staged in memory or not."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hocket.network.flow_hash import mix
from hocket.network.routing import NOWHERE, ShortestPath, through
from hocket.network.topology import Ints, Topology


@dataclass(frozen=True, eq=False)
class HostRouting:
    """Shortest paths with required stops.

    Traffic between hosts goes through a card of the source and, if `meets` (the fabric connects any two cards), through
    one of the target, as NCCL binds accelerators to cards; of several cards, the flow's key chooses one. If there are
    memories, traffic over PCIe is written to and read from memory at the source's socket and again at the target's;
    only once if one end is not an accelerator, for example a card that leads to another network.

    gpus: int64[hosts, accelerators]. cards: int64[hosts, accelerators, cards per accelerator]. memories: int64[hosts,
    accelerators], or empty if cards reach device memory directly.
    """

    gpus: Ints
    cards: Ints
    memories: Ints
    meets: bool
    _shortest: ShortestPath = field(default_factory=ShortestPath, init=False)

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing."""
        host = self._by_node(topology, np.broadcast_to(np.arange(len(self.gpus))[:, None], self.gpus.shape))
        leaves = (host[source] != NOWHERE) & (host[target] != NOWHERE) & (host[source] != host[target])
        crosses = leaves | self._crosses_pcie(topology, source, target, keys)
        first, last = self._card(topology, source, keys), self._card(topology, target, keys)
        stops = [source, np.where(leaves, first, NOWHERE), target]
        if self.meets:
            stops.insert(2, np.where(leaves, last, NOWHERE))
        if self.memories.size:
            memory = self._by_node(topology, self.memories)
            stops.insert(1, np.where(crosses, memory[source], NOWHERE))
            stops.insert(-1, np.where(crosses, memory[target], NOWHERE))
        return through(self._shortest, topology, stops, keys)

    def _crosses_pcie(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> npt.NDArray[np.bool_]:
        if not self.memories.size:
            return np.zeros(len(source), bool)
        nodes = self._shortest.route(topology, source, target, keys)
        moves = nodes[:, 1:] >= 0
        flow = np.nonzero(moves)[0]
        links = topology.links_between(nodes[:, :-1][moves], nodes[:, 1:][moves], keys[flow])
        return np.bincount(flow, topology.link_class[links] == "pcie", len(nodes)) > 0

    def _card(self, topology: Topology, node: Ints, keys: Ints) -> Ints:
        cards = self.cards.shape[2]
        chosen = mix(keys, 0) % cards
        by_turn = [self._by_node(topology, self.cards[:, :, turn])[node] for turn in range(cards)]
        card: Ints = np.choose(chosen, by_turn)
        return card

    def _by_node(self, topology: Topology, of_gpus: Ints) -> Ints:
        found = np.full(topology.num_nodes, NOWHERE)
        found[self.gpus] = of_gpus
        return found
