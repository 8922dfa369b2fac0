"""Says in words how the constants of a network's links differ from the usual ones."""

from collections.abc import Iterator, Sequence

import numpy as np

from hocket.network.links import name_bandwidth, name_seconds
from hocket.network.topology import Topology

_MOST_NAMED = 4  # links that have the same change


def changed_links(topology: Topology) -> tuple[str, ...]:
    """Returns one text for the links of one class that have the same new constant."""
    return () if topology.unchanged is None else tuple(_changes(topology.unchanged, topology))


def _changes(before: Topology, after: Topology) -> Iterator[str]:
    for column, name in (("bytes_per_second", name_bandwidth), ("seconds", name_seconds)):
        old, new = getattr(before, column), getattr(after, column)
        changed = np.flatnonzero(~np.isclose(old, new, rtol=1e-12, atol=0))
        kinds = dict.fromkeys(zip(after.link_class[changed].tolist(), new[changed].tolist(), strict=True))
        for link_class, now in kinds:
            links = changed[(after.link_class[changed] == link_class) & (new[changed] == now)].tolist()
            every = len(links) == np.count_nonzero(after.link_class == link_class)
            named = f"{link_class} links" if every else _name_links(after, links)
            yield f"{named} {name(now)} (default {' and '.join(map(name, sorted(set(old[links].tolist()))))})"


def _name_links(topology: Topology, links: Sequence[int]) -> str:
    """Returns the kinds of nodes between which all links are meant, else the names of the first links."""
    kinds = topology.node_kinds
    ends = list(zip(kinds[topology.link_source].tolist(), kinds[topology.link_target].tolist(), strict=True))
    meant = dict.fromkeys(ends[link] for link in links)
    (one, other), *more = meant
    if more in ([], [(other, one)]) and sum(pair in meant for pair in ends) == len(links):
        return f"{one}{'<->' if more else '->'}{other} links"
    rest = f" and {len(links) - _MOST_NAMED} more" if len(links) > _MOST_NAMED else ""
    return ", ".join(topology.link_names(links[:_MOST_NAMED])) + rest
