"""A routing whose paths belong to one synthesised schedule: what one rank sends another may take several at once.

Flows that meet share a link in proportion to what the schedule sends along each of them, so each gets at least the rate
that the schedule plans for it. If all got equal shares, some trees would be up to twice too slow. Real networks choose
paths and shares by themselves: both say how a network must be set up, or its senders be paced, to reach the optimum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.errors import TopologyError
from hocket.network.reach import ranges
from hocket.network.synthesis.trunks import Ends, Way
from hocket.network.topology import Ints, Paths, Routing, Topology


@dataclass(frozen=True, eq=False)
class SpreadRouting:
    """Paths between some nodes. pairs: source * num_nodes + target of each, rising. ways: its links, with their shares.

    otherwise: a routing by single paths, for pictures.
    """

    pairs: Ints
    ways: Paths
    otherwise: Routing

    def route(self, topology: Topology, source: Ints, target: Ints, keys: Ints) -> Ints:
        """See Routing."""
        return self.otherwise.route(topology, source, target, keys)

    def spread_paths(self, topology: Topology, source: Ints, target: Ints) -> Paths:
        """See Spreading. Raises TopologyError for two nodes between which the schedule sends nothing."""
        wanted = source * topology.num_nodes + target
        found = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        lost = np.flatnonzero((self.pairs[found] != wanted) & (source != target))
        if len(lost):
            one, other = (topology.node_names[ends[lost[0]]] for ends in (source, target))
            raise TopologyError(
                f"{topology.name}: its paths were made for one schedule, which sends nothing from {one} to {other}; "
                "expected that schedule, or the network as it was before"
            )
        lengths = np.where(source == target, 0, np.diff(self.ways.offsets)[found])
        begins = self.ways.offsets[found]
        entries, _ = ranges(begins, begins + lengths)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        seconds = np.where(source == target, 0.0, self.ways.seconds[found])
        assert self.ways.weights is not None and self.ways.rate_weights is not None
        weights, rate_weights = self.ways.weights[entries], self.ways.rate_weights[found]
        return Paths(offsets, self.ways.links[entries], seconds, weights, rate_weights)


def with_ways(topology: Topology, ways: Mapping[Ends, Sequence[Way]]) -> SpreadRouting:
    """Returns the routing in which messages between two nodes take all of their ways, in proportion to their shares.

    The rate weight of two nodes is the sum of these shares.
    """
    pairs, offsets, seconds, rate_weights = [], [0], [], []
    links: list[int] = []
    weights: list[float] = []
    for source, target in sorted(ways):
        used = ways[source, target]
        total, crossed = sum(way.shares for way in used), dict[int, int]()
        for way in used:
            for link in way.links:
                crossed[link] = crossed.get(link, 0) + way.shares
        pairs.append(source * topology.num_nodes + target)
        links += crossed
        weights += [shares / total for shares in crossed.values()]
        offsets.append(len(links))
        seconds.append(max(float(topology.seconds[list(way.links)].sum()) for way in used))
        rate_weights.append(float(total))
    columns = np.array(seconds), np.array(weights), np.array(rate_weights)
    table = Paths(np.array(offsets, np.int64), np.array(links, np.int64), *columns)
    return SpreadRouting(np.array(pairs, np.int64), table, topology.routing)
