"""Prints the nodes and links of a network, and a matrix of its devices like that of `nvidia-smi topo -m`."""

from collections import Counter
from typing import Any

import numpy as np
from rich.console import Console

from hocket.network import LEGEND, Topology, affinity

_MAX_DEVICES = 256  # most devices in the matrix


def facts_of(topology: Topology) -> dict[str, Any]:
    """Returns name, ranks, nodes and links by class as plain values; up to 256 devices, also the device matrix."""
    links = Counter(
        zip(
            topology.link_class.tolist(),
            topology.bytes_per_second.tolist(),
            topology.seconds.tolist(),
            strict=True,
        )
    )
    facts: dict[str, Any] = {
        "topology": topology.name,
        "ranks": topology.num_ranks,
        "nodes": dict(Counter(topology.node_kinds.tolist())),
        "links": [
            {"class": name, "bytes_per_second": bandwidth, "seconds": latency, "number": number}
            for (name, bandwidth, latency), number in links.items()
        ],
    }
    if topology.num_ranks + int(np.count_nonzero(topology.node_kinds == "nic")) <= _MAX_DEVICES:
        found = affinity(topology)
        facts |= {"devices": found.devices, "ways": found.ways, "sockets": found.sockets}
    return facts


def print_topology(console: Console, facts: dict[str, Any]) -> None:
    """Prints the result of facts_of."""
    from rich.markup import escape
    from rich.table import Table

    nodes = ", ".join(f"{number} {kind}" for kind, number in facts["nodes"].items())
    console.print(f"[bold]{escape(facts['topology'])}[/]: {facts['ranks']} ranks; nodes: {escape(nodes)}")
    table = Table("links", "number", "GB/s each way", "latency (us)", box=None, padding=(0, 2, 0, 0))
    for link in facts["links"]:
        table.add_row(
            link["class"],
            str(link["number"]),
            f"{link['bytes_per_second'] / 1e9:g}",
            f"{link['seconds'] * 1e6:g}",
        )
    console.print(table)
    if "devices" not in facts:
        console.print(f"The matrix is not shown: there are more than {_MAX_DEVICES} devices.")
        return
    width = max(map(len, facts["devices"]))
    rows = [["", *facts["devices"], *(["socket"] if any(facts["sockets"]) else [])]]
    for device, ways, socket in zip(facts["devices"], facts["ways"], facts["sockets"], strict=True):
        rows.append([device, *ways, *([socket] if socket else [])])
    console.print()
    for row in rows:
        console.print(" ".join(entry.ljust(width) for entry in row).rstrip(), markup=False)
    shown = {way.rstrip("0123456789") for ways in facts["ways"] for way in ways}
    console.print()
    for entry, meaning in LEGEND.items():
        if entry.rstrip("#") in shown:
            console.print(f"{entry.ljust(4)} {meaning}", markup=False)
