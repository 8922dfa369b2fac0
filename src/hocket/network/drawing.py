"""Builds a network step by step: add nodes and links by the thousand, then make a Topology of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hocket.errors import TopologyError
from hocket.network.links import Link
from hocket.network.topology import Ints, Routing, Topology

_MOST = 1 << 24  # nodes or links; a network with that many takes about 2 GB


def expect_room(name: str, num_nodes: int, num_links: int) -> None:
    """Raises TopologyError for a network that is too large for memory. Call it before nodes or links are made."""
    for what, number in (("nodes", num_nodes), ("links", num_links)):
        if number > _MOST:
            raise TopologyError(f"{name}: found {number} {what} or more; expected at most {_MOST}")


class Drawing:
    """The nodes and links so far of a network with this name. Methods raise TopologyError if it grows too large."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_nodes = self.num_links = 0
        self._kinds: list[tuple[str, int, bool, bool]] = []
        self._cables: list[tuple[Ints, Ints, Link]] = []

    def nodes(self, kind: str, count: int, *, forwards: bool = True, reducing: bool = False) -> Ints:
        """Adds nodes of a kind and returns their numbers.

        forwards: whether they forward traffic of other nodes. reducing: whether they reduce and multicast.
        """
        expect_room(self.name, self.num_nodes + count, self.num_links)
        self._kinds.append((kind, count, forwards, reducing))
        self.num_nodes += count
        return np.arange(self.num_nodes - count, self.num_nodes)

    def cable(self, source: npt.ArrayLike, target: npt.ArrayLike, link: Link) -> None:
        """Links each source with its target, in both directions. The two arrays broadcast."""
        self.one_way(source, target, link)
        self.one_way(target, source, link)

    def clique(self, nodes: Ints, link: Link) -> None:
        """Links every two nodes along the last axis."""
        expect_room(self.name, self.num_nodes, self.num_links + nodes.size * (nodes.shape[-1] - 1))
        one, other = np.triu_indices(nodes.shape[-1], 1)
        self.cable(nodes[..., one], nodes[..., other], link)

    def one_way(self, source: npt.ArrayLike, target: npt.ArrayLike, link: Link) -> None:
        """Links each source with its target, in this direction only. The two arrays broadcast."""
        sources, targets = np.broadcast_arrays(np.asarray(source, np.int64), np.asarray(target, np.int64))
        self.num_links += sources.size
        expect_room(self.name, self.num_nodes, self.num_links)
        self._cables.append((sources.ravel(), targets.ravel(), link))

    def topology(
        self,
        ranks: Ints,
        routing: Routing,
        *,
        axes: Sequence[str] = (),
        coordinates: Ints | None = None,
        names: Sequence[str] = (),
    ) -> Topology:
        """Returns the finished network. Raises the TopologyErrors of Topology."""
        counts = np.array([len(source) for source, _, _ in self._cables], np.int64)
        kinds, sizes, forwards, reducing = zip(*self._kinds, strict=True)
        links = [link for _, _, link in self._cables]
        none = np.zeros(0, np.int64)
        return Topology(
            name=self.name,
            node_kinds=np.repeat(np.array(kinds, np.str_), sizes),
            ranks=np.asarray(ranks, np.int64),
            link_source=np.concatenate([none, *(source for source, _, _ in self._cables)]),
            link_target=np.concatenate([none, *(target for _, target, _ in self._cables)]),
            bytes_per_second=np.repeat(np.array([link.bytes_per_second for link in links], float), counts),
            seconds=np.repeat(np.array([link.seconds for link in links], float), counts),
            link_class=np.repeat(np.array([link.link_class for link in links], np.str_), counts),
            lanes=np.repeat(np.array([link.lanes for link in links], np.int64), counts),
            forwards=np.repeat(np.array(forwards, bool), sizes),
            reducing=np.repeat(np.array(reducing, bool), sizes),
            routing=routing,
            axes=tuple(axes),
            coordinates=np.zeros((len(ranks), 0), np.int64) if coordinates is None else coordinates,
            names=tuple(names),
        )
