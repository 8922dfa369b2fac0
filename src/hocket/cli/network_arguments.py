"""A network on a command line: KIND:ARGS or a file, other constants for its links, and how it is simulated."""

import argparse
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.network import Options, Topology

_PLACEHOLDER = "N"


def add_topology(parser: argparse.ArgumentParser, *, several: bool = False, required: bool = False) -> None:
    """Declares --topology, --link, --reduce and --overhead."""
    parser.add_argument(
        "--topology",
        action="append" if several else "store",
        required=required,
        metavar="KIND:ARGS",
        help=f"the network, as torus:4x4 or dgx-h100:2; or a file: YAML, or one of ASTRA-sim, SimAI or Slurm "
        f"(docs/networks.md says what stands in it); {_PLACEHOLDER} in ARGS stands for the rank count"
        + ("; again for others" if several else ""),
    )
    parser.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="[LINKS:]bandwidth=,latency=",
        help="other constants for all links, those of a class, or one of them, as nic:bandwidth=25GB/s,latency=2us or "
        "rank0->rank1:bandwidth=1GB/s",
    )
    parser.add_argument(
        "--reduce", default="", metavar="BANDWIDTH", help="what a rank adds, as 200GB/s (default: in no time)"
    )
    parser.add_argument(
        "--overhead",
        default="",
        metavar="SECONDS",
        help="what each message costs the rank that sends it, one after the other, and the one that receives it, as "
        "0.5us (default: nothing, whatever their number)",
    )


def topology_of(text: str, links: list[str], num_ranks: int | None = None) -> "Topology":
    """The network of --topology with what --link changes; of num_ranks, its first ones. TopologyError or ValueError."""
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


def options_of(reduce: str, overhead: str = "") -> "Options":
    """What --reduce and --overhead say. ValueError for what is no bandwidth, or no time."""
    from dataclasses import replace

    from hocket.errors import TopologyError
    from hocket.network import Options, links

    options = Options()
    try:
        if reduce:
            options = replace(options, reduce_bytes_per_second=links.bytes_per_second(reduce))
    except (TopologyError, ValueError):
        raise ValueError(f"--reduce: expected a bandwidth above 0, as 200GB/s; found {reduce!r}") from None
    try:
        if overhead:
            options = replace(options, send_seconds=links.seconds(overhead), receive_seconds=links.seconds(overhead))
    except (TopologyError, ValueError):
        raise ValueError(f"--overhead: expected seconds, 0 or more, as 0.5us; found {overhead!r}") from None
    return options


def _with_links(topology: "Topology", change: str) -> "Topology":
    from dataclasses import replace

    import numpy as np

    from hocket.errors import TopologyError
    from hocket.network import links

    readers = {"bandwidth": ("bytes_per_second", links.bytes_per_second), "latency": ("seconds", links.seconds)}
    which, _, rest = change.rpartition(":")
    values = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if name not in readers or not equals:
            raise ValueError(f"--link: expected [LINKS:]bandwidth=25GB/s,latency=2us, or one of both; found {change!r}")
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
        raise ValueError(f"--link: expected a class of links of {topology.name}, one of {there}; found {which!r}")
    for column, constant in values.items():
        changed: Any = np.where(meant, constant, getattr(topology, column))
        topology = replace(topology, **{column: changed})
    return topology
