"""Reads a network from a command line: KIND:ARGS or a file, changed constants of its links, simulation options."""

import argparse
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.network import SimulationOptions, Topology

_PLACEHOLDER = "N"


def add_topology(parser: argparse.ArgumentParser, *, several: bool = False, required: bool = False) -> None:
    """Declares --topology, --link, --reduce and --overhead."""
    parser.add_argument(
        "--topology",
        action="append" if several else "store",
        required=required,
        metavar="KIND:ARGS",
        help=f"the network, for example torus:4x4 or dgx-h100:2; or a file: YAML, or one of ASTRA-sim, SimAI or Slurm "
        f"(docs/networks.md describes the formats); {_PLACEHOLDER} in ARGS stands for the rank count"
        + ("; repeat the option for more networks" if several else ""),
    )
    parser.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="[LINKS:]bandwidth=,latency=",
        help="change the constants of all links, of one class, or of one link, for example "
        "nic:bandwidth=25GB/s,latency=2us or rank0->rank1:bandwidth=1GB/s",
    )
    parser.add_argument(
        "--reduce",
        default="",
        metavar="BANDWIDTH",
        help="speed of a rank's additions, e.g. 200GB/s (default: infinite)",
    )
    parser.add_argument(
        "--overhead",
        default="",
        metavar="SECONDS",
        help="time that each message costs its sender and its receiver, one message after the other, for example "
        "0.5us (default: 0)",
    )


def topology_of(text: str, links: list[str], num_ranks: int | None = None) -> "Topology":
    """Returns the network of --topology, changed by --link, with its first num_ranks ranks (default: all).

    Raises TopologyError or ValueError.
    """
    from hocket.network import load

    kind, colon, arguments = text.partition(":")
    if num_ranks is not None and colon:
        text = kind + colon + re.sub(rf"\b{_PLACEHOLDER}\b", str(num_ranks), arguments)
    topology = load(text)
    for change in links:
        topology = _with_links(topology, change)
    if num_ranks in (None, topology.num_ranks):
        return topology
    if num_ranks > topology.num_ranks:
        raise ValueError(f"--ranks: {text} has {topology.num_ranks} ranks; found {num_ranks}")
    return topology.place(range(num_ranks))


def options_of(reduce: str, overhead: str = "") -> "SimulationOptions":
    """Returns the options that --reduce and --overhead set. Raises ValueError for a bad bandwidth or time."""
    from dataclasses import replace

    from hocket.errors import TopologyError
    from hocket.network import SimulationOptions, links

    options = SimulationOptions()
    try:
        if reduce:
            options = replace(options, reduce_bytes_per_second=links.bytes_per_second(reduce))
    except (TopologyError, ValueError):
        raise ValueError(f"--reduce: expected a bandwidth above 0, such as 200GB/s; found {reduce!r}") from None
    try:
        if overhead:
            options = replace(options, send_seconds=links.seconds(overhead), receive_seconds=links.seconds(overhead))
    except (TopologyError, ValueError):
        raise ValueError(f"--overhead: expected a time of 0 or more, such as 0.5us; found {overhead!r}") from None
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
            raise ValueError(f"--link: expected [LINKS:]bandwidth=25GB/s,latency=2us, or only one; found {change!r}")
        column, read = readers[name]
        try:
            values[column] = read(value)
        except TopologyError as error:
            raise ValueError(f"--link: {error} in {change!r}") from None
    source, arrow, target = which.partition("->")
    if arrow:
        return topology.with_link(source, target, **values)
    meant = topology.link_class == which if which else np.ones(topology.num_links, bool)
    if not meant.any():
        there = ", ".join(sorted(set(topology.link_class.tolist())))
        near = did_you_mean(which, there.split(", "))
        raise ValueError(f"--link: expected a class of links of {topology.name}, one of {there}; found {which!r}{near}")
    for column, constant in values.items():
        changed: Any = np.where(meant, constant, getattr(topology, column))
        topology = replace(topology, **{column: changed})
    return topology
