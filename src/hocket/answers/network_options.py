"""Reads networks and the options of a simulation, as commands and Python programs give them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.network import SimulationOptions, Topology

PLACEHOLDER = "N"
"""Stands for the rank count in the arguments of a network."""

DEFAULT_LEVEL = "events"
"""How exactly a call is simulated, unless somebody asks for another level."""


def topology_of(named: "str | Topology", links: str | Sequence[str] = (), num_ranks: int | None = None) -> "Topology":
    """Returns a network, changed by `links` as --link changes it, with its first num_ranks ranks (default: all).

    named: KIND:ARGS or a file, in which N stands for num_ranks; or a Topology. Raises TopologyError or ValueError.
    """
    from hocket.network import load

    topology = load(filled_in(named, num_ranks)) if isinstance(named, str) else named
    for change in read_links(links):
        topology = _with_links(topology, change)
    if num_ranks in (None, topology.num_ranks):
        return topology
    if num_ranks > topology.num_ranks:
        raise ValueError(f"ranks: {topology.name} has {topology.num_ranks} ranks; found {num_ranks}")
    return topology.place(range(num_ranks))


def filled_in(named: str, num_ranks: int | None) -> str:
    """Returns KIND:ARGS with num_ranks in the place of N, and for N/8 an eighth of it, rounded up.

    Raises ValueError if there is an N and no number for it.
    """
    from hocket.network import KINDS

    if "@" in named:
        return "@".join(filled_in(part, num_ranks) for part in named.split("@"))
    kind, colon, arguments = named.partition(":")
    if not colon or kind not in KINDS:
        return named
    if re.search(rf"\b{PLACEHOLDER}x|x{PLACEHOLDER}\b", arguments):
        raise ValueError(
            f"{PLACEHOLDER} stands for the number of all ranks, as in ring:{PLACEHOLDER}, not for a length; found "
            f"{named!r}; write the lengths as numbers, one network for each rank count"
        )
    whole = re.compile(rf"\b{PLACEHOLDER}(?:/([1-9]\d*))?\b")
    if num_ranks is None and whole.search(arguments):
        raise ValueError(
            f"{named!r}: {PLACEHOLDER} stands for the rank count; give it as -n (ranks=), or write a number"
        )
    return f"{kind}:{whole.sub(lambda found: str(-(-(num_ranks or 0) // int(found[1] or 1))), arguments)}"


def read_links(links: str | Sequence[str]) -> tuple[str, ...]:
    """Returns changes of links. A text is one change."""
    return (links,) if isinstance(links, str) else tuple(links)


def options_of(reduce: str, overhead: str = "") -> "SimulationOptions":
    """Returns the options that `reduce`, a bandwidth, and `overhead`, TIME[,gap=TIME][,eager=SIZE], set.

    Raises ValueError for a bad bandwidth, time or size.
    """
    from hocket.errors import TopologyError
    from hocket.network import SimulationOptions, links

    options = SimulationOptions()
    try:
        if reduce:
            options = replace(options, reduce_bytes_per_second=links.bytes_per_second(reduce))
    except (TopologyError, ValueError):
        raise ValueError(
            f"reduce: expected a bandwidth above 0 with its unit, such as 200GB/s; found {reduce!r}"
        ) from None
    try:
        return replace(options, **_overheads(overhead)) if overhead else options
    except (TopologyError, ValueError):
        raise ValueError(
            "overhead: expected a time of 0 or more with its unit, such as 0.5us, or with a gap and the largest eager "
            f"message 0.5us,gap=1us,eager=8K; found {overhead!r}"
        ) from None


def _overheads(text: str) -> dict[str, float]:
    from hocket.answers.quantities import parse_size
    from hocket.network import links

    own, *more = text.split(",")
    found = {"send_seconds": links.seconds(own), "receive_seconds": links.seconds(own)}
    readers = {"gap": ("gap_seconds", links.seconds), "eager": ("eager_bytes", parse_size)}
    for part in more:
        name, _, value = part.partition("=")
        if name not in readers or readers[name][0] in found:
            raise ValueError
        field, read = readers[name]
        found[field] = read(value)
    return found


def changes_of(network: "Topology", options: "SimulationOptions", level: str) -> tuple[str, ...]:
    """Returns what differs from the defaults in a simulation: constants of links and ranks, and the level."""
    from hocket.network import SimulationOptions, changed_links
    from hocket.view import name_bandwidth, name_bytes, name_seconds

    usual, found = SimulationOptions(), list(changed_links(network))
    if options.reduce_bytes_per_second != usual.reduce_bytes_per_second:
        found.append(f"reduce {name_bandwidth(options.reduce_bytes_per_second)} (default infinite)")
    if options.send_seconds != usual.send_seconds:
        found.append(f"overhead {name_seconds(options.send_seconds)} (default {usual.send_seconds:g})")
    if options.gap_seconds != usual.gap_seconds:
        found.append(f"gap {name_seconds(options.gap_seconds)} (default {usual.gap_seconds:g})")
    if options.eager_bytes != usual.eager_bytes:
        found.append(f"eager {name_bytes(int(options.eager_bytes))} (default {usual.eager_bytes:g})")
    if level != DEFAULT_LEVEL:
        found.append(f"level {level} (default {DEFAULT_LEVEL})")
    return tuple(found)


def _with_links(topology: "Topology", change: str) -> "Topology":
    from hocket.errors import TopologyError
    from hocket.network import links

    readers = {"bandwidth": ("bytes_per_second", links.bytes_per_second), "latency": ("seconds", links.seconds)}
    which, _, rest = change.rpartition(":")
    values = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if name not in readers or not equals:
            cut = "; quote what has a > or <, at which a shell redirects" if change.endswith("-") else ""
            raise ValueError(f"link: expected [LINKS:]bandwidth=25GB/s,latency=2us, or only one; found {change!r}{cut}")
        column, read = readers[name]
        try:
            values[column] = read(value)
        except TopologyError as error:
            raise ValueError(f"link: {error} in {change!r}") from None
    try:
        return topology.with_links(which, **values)
    except TopologyError as error:
        raise ValueError(f"link: {error}") from None
