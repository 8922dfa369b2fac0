"""A network while it is drawn: nodes and links are added by the thousand, then it is made a Topology."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hocket.network.links import Link
from hocket.network.routing import Routing
from hocket.network.topology import Ints, Topology


class Drawing:
    """What has been drawn so far."""

    def __init__(self) -> None:
        self.num_nodes = 0
        self._kinds: list[tuple[str, int, bool, bool]] = []
        self._cables: list[tuple[Ints, Ints, Link]] = []

    def nodes(self, kind: str, count: int, *, forwards: bool = True, reducing: bool = False) -> Ints:
        """Adds nodes of a kind and returns their numbers.

        forwards: whether traffic of others may pass them. reducing: whether they reduce and multicast.
        """
        self._kinds.append((kind, count, forwards, reducing))
        self.num_nodes += count
        return np.arange(self.num_nodes - count, self.num_nodes)

    def cable(self, source: npt.ArrayLike, target: npt.ArrayLike, link: Link) -> None:
        """Joins each source with its target, in both directions; the two broadcast."""
        self.one_way(source, target, link)
        self.one_way(target, source, link)

    def one_way(self, source: npt.ArrayLike, target: npt.ArrayLike, link: Link) -> None:
        """Joins each source with its target, in this direction only; the two broadcast."""
        sources, targets = np.broadcast_arrays(np.asarray(source, np.int64), np.asarray(target, np.int64))
        self._cables.append((sources.ravel(), targets.ravel(), link))

    def topology(
        self,
        name: str,
        ranks: Ints,
        routing: Routing,
        *,
        axes: Sequence[str] = (),
        coordinates: Ints | None = None,
        names: Sequence[str] = (),
    ) -> Topology:
        """The finished network. Raises TopologyError as Topology does."""
        counts = np.array([len(source) for source, _, _ in self._cables], np.int64)
        kinds, sizes, forwards, reducing = zip(*self._kinds, strict=True)
        links = [link for _, _, link in self._cables]
        none = np.zeros(0, np.int64)
        return Topology(
            name=name,
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
