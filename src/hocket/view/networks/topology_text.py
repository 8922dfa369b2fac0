"""What a network is made of, and how its devices reach each other, as `nvidia-smi topo -m` prints it."""

from collections import Counter
from typing import Any

import numpy as np

from hocket.network import LEGEND, Topology, affinity

_MAX_DEVICES = 256  # in the matrix


def facts_of(topology: Topology) -> dict[str, Any]:
    """Name, ranks, nodes and links by class; up to 256 devices also the matrix of ways, as plain values for JSON."""
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


def print_topology(facts: dict[str, Any]) -> None:
    """Prints what facts_of returned."""
    from rich.markup import escape
    from rich.table import Table

    from hocket.view.terminal import Terminal

    console = Terminal()
    nodes = ", ".join(f"{number} {kind}" for kind, number in facts["nodes"].items())
    console.print(
        f"[bold]{escape(facts['topology'])}[/]: {facts['ranks']} ranks; nodes: {escape(nodes)}", soft_wrap=True
    )
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
        console.print(f"More than {_MAX_DEVICES} devices: no matrix.")
        return
    width = max(map(len, facts["devices"]))
    rows = [["", *facts["devices"], *(["socket"] if any(facts["sockets"]) else [])]]
    for device, ways, socket in zip(facts["devices"], facts["ways"], facts["sockets"], strict=True):
        rows.append([device, *ways, *([socket] if socket else [])])
    print()
    for row in rows:
        print(" ".join(entry.ljust(width) for entry in row).rstrip())
    shown = {way.rstrip("0123456789") for ways in facts["ways"] for way in ways}
    print()
    for entry, meaning in LEGEND.items():
        if entry.rstrip("#") in shown:
            print(f"{entry.ljust(4)} {meaning}")
