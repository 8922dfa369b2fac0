"""Reads networks and the options of a simulation, as commands and Python programs give them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.network import SimulationOptions, Topology

PLACEHOLDER = "N"
"""Stands for the rank count in the arguments of a network."""

DEFAULT_LEVEL = "events"
"""How exactly a call is simulated, unless somebody asks for another level."""

_MOST_NAMED = 4  # links that have the same change


def topology_of(named: "str | Topology", links: str | Sequence[str] = (), num_ranks: int | None = None) -> "Topology":
    """Returns a network, changed by `links` as --link changes it, with its first num_ranks ranks (default: all).

    named: KIND:ARGS or a file, in which N stands for num_ranks; or a Topology. Raises TopologyError or ValueError.
    """
    from hocket.network import load

    if isinstance(named, str):
        kind, colon, arguments = named.partition(":")
        if num_ranks is not None and colon:
            named = kind + colon + re.sub(rf"\b{PLACEHOLDER}\b", str(num_ranks), arguments)
        topology = load(named)
    else:
        topology = named
    given = topology
    for change in read_links(links):
        topology = _with_links(topology, change)
    topology = replace(topology, changes=(*given.changes, *_changed_links(given, topology)))
    if num_ranks in (None, topology.num_ranks):
        return topology
    if num_ranks > topology.num_ranks:
        raise ValueError(f"ranks: {topology.name} has {topology.num_ranks} ranks; found {num_ranks}")
    return topology.place(range(num_ranks))


def read_links(links: str | Sequence[str]) -> tuple[str, ...]:
    """Returns changes of links. A text is one change."""
    return (links,) if isinstance(links, str) else tuple(links)


def options_of(reduce: str, overhead: str = "") -> "SimulationOptions":
    """Returns the options that `reduce`, a bandwidth, and `overhead`, a time, set, each given as text with its unit.

    Raises ValueError for a bad bandwidth or time.
    """
    from hocket.errors import TopologyError
    from hocket.network import SimulationOptions, links

    options = SimulationOptions()
    try:
        if reduce:
            options = replace(options, reduce_bytes_per_second=links.bytes_per_second(reduce))
    except (TopologyError, ValueError):
        raise ValueError(f"reduce: expected a bandwidth above 0, such as 200GB/s; found {reduce!r}") from None
    try:
        if overhead:
            options = replace(options, send_seconds=links.seconds(overhead), receive_seconds=links.seconds(overhead))
    except (TopologyError, ValueError):
        raise ValueError(f"overhead: expected a time of 0 or more, such as 0.5us; found {overhead!r}") from None
    return options


def changes_of(network: "Topology", options: "SimulationOptions", level: str) -> tuple[str, ...]:
    """Returns what differs from the defaults in a simulation: constants of links and ranks, and the level."""
    from hocket.network import SimulationOptions
    from hocket.view import name_bandwidth, name_seconds

    usual, found = SimulationOptions(), list(network.changes)
    if options.reduce_bytes_per_second != usual.reduce_bytes_per_second:
        found.append(f"reduce {name_bandwidth(options.reduce_bytes_per_second)} (default infinite)")
    if options.send_seconds != usual.send_seconds:
        found.append(f"overhead {name_seconds(options.send_seconds)} (default {usual.send_seconds:g})")
    if level != DEFAULT_LEVEL:
        found.append(f"level {level} (default {DEFAULT_LEVEL})")
    return tuple(found)


def _changed_links(before: "Topology", after: "Topology") -> Iterator[str]:
    """Yields a sentence for the links of one class that have the same new constant."""
    import numpy as np

    from hocket.view import name_bandwidth, name_seconds

    for column, name in (("bytes_per_second", name_bandwidth), ("seconds", name_seconds)):
        old, new = getattr(before, column), getattr(after, column)
        changed = np.flatnonzero(~np.isclose(old, new, rtol=1e-12, atol=0))
        kinds = dict.fromkeys(zip(after.link_class[changed].tolist(), new[changed].tolist(), strict=True))
        for link_class, now in kinds:
            links = changed[(after.link_class[changed] == link_class) & (new[changed] == now)].tolist()
            every = len(links) == np.count_nonzero(after.link_class == link_class)
            named = f"{link_class} links" if every else _name_links(after, links)
            yield f"{named} {name(now)} (default {' and '.join(map(name, sorted(set(old[links].tolist()))))})"


def _name_links(topology: "Topology", links: Sequence[int]) -> str:
    """Returns the kinds of nodes between which all links are meant, else the names of the first links."""
    kinds = topology.node_kinds
    ends = list(zip(kinds[topology.link_source].tolist(), kinds[topology.link_target].tolist(), strict=True))
    meant = dict.fromkeys(ends[link] for link in links)
    (one, other), *more = meant
    if more in ([], [(other, one)]) and sum(pair in meant for pair in ends) == len(links):
        return f"{one}{'<->' if more else '->'}{other} links"
    rest = f" and {len(links) - _MOST_NAMED} more" if len(links) > _MOST_NAMED else ""
    return ", ".join(topology.link_names(links[:_MOST_NAMED])) + rest


def _with_links(topology: "Topology", change: str) -> "Topology":
    from hocket.errors import TopologyError
    from hocket.network import links

    readers = {"bandwidth": ("bytes_per_second", links.bytes_per_second), "latency": ("seconds", links.seconds)}
    which, _, rest = change.rpartition(":")
    values = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if name not in readers or not equals:
            raise ValueError(f"link: expected [LINKS:]bandwidth=25GB/s,latency=2us, or only one; found {change!r}")
        column, read = readers[name]
        try:
            values[column] = read(value)
        except TopologyError as error:
            raise ValueError(f"link: {error} in {change!r}") from None
    try:
        return topology.with_links(which, **values)
    except TopologyError as error:
        raise ValueError(f"link: {error}") from None
