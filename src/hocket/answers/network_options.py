"""Reads networks and the options of a simulation, as commands and Python programs give them."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.network import SimulationOptions, Topology

PLACEHOLDER = "N"
"""Stands for the rank count in the arguments of a network."""


def topology_of(named: "str | Topology", links: Sequence[str] = (), num_ranks: int | None = None) -> "Topology":
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
    for change in [links] if isinstance(links, str) else links:
        topology = _with_links(topology, change)
    if num_ranks in (None, topology.num_ranks):
        return topology
    if num_ranks > topology.num_ranks:
        raise ValueError(f"ranks: {topology.name} has {topology.num_ranks} ranks; found {num_ranks}")
    return topology.place(range(num_ranks))


def options_of(reduce: str, overhead: str = "") -> "SimulationOptions":
    """Returns the options that `reduce`, a bandwidth, and `overhead`, a time, set, each given as text with its unit.

    Raises ValueError for a bad bandwidth or time.
    """
    from dataclasses import replace

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


def _with_links(topology: "Topology", change: str) -> "Topology":
    from dataclasses import replace

    import numpy as np

    from hocket.errors import TopologyError, did_you_mean
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
    source, arrow, target = which.partition("->")
    if arrow:
        return topology.with_link(source, target, **values)
    meant = topology.link_class == which if which else np.ones(topology.num_links, bool)
    if not meant.any():
        there = ", ".join(sorted(set(topology.link_class.tolist())))
        near = did_you_mean(which, there.split(", "))
        raise ValueError(f"link: expected a class of links of {topology.name}, one of {there}; found {which!r}{near}")
    for column, constant in values.items():
        changed: Any = np.where(meant, constant, getattr(topology, column))
        topology = replace(topology, **{column: changed})
    return topology
