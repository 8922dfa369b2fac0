"""Prints the nodes and links of a network, and a matrix of its devices like that of `nvidia-smi topo -m`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hocket.network import LEGEND, Affinity, Topology, affinity, changed_links
from hocket.view.networks.simulation_text import print_changes
from hocket.view.terminal import Terminal, num_fitting
from hocket.view.words import name_bandwidth, name_count, name_seconds

_MAX_DEVICES = 256  # most devices in the matrix
_BESIDE = {"sockets": "socket", "cards": "leaves by"}  # columns of devices beside the matrix


def matrix_of(topology: Topology) -> Affinity | None:
    """Returns how devices reach each other, None if there are more than 256."""
    num_devices = topology.num_ranks + int(np.count_nonzero(topology.node_kinds == "nic"))
    return affinity(topology) if num_devices <= _MAX_DEVICES else None


def facts_of(topology: Topology, matrix: Affinity | None = None) -> dict[str, Any]:
    """Returns name, ranks, nodes and links by class as plain values, and those of matrix_of, if it is given."""
    links = Counter(
        zip(
            topology.link_class.tolist(),
            topology.bytes_per_second.tolist(),
            topology.seconds.tolist(),
            strict=True,
        )
    )
    return {
        "topology": topology.name,
        "changes": changed_links(topology),
        "ranks": topology.num_ranks,
        "nodes": dict(Counter(topology.node_kinds.tolist())),
        "links": [
            {"class": name, "bytes_per_second": bandwidth, "seconds": latency, "number": number}
            for (name, bandwidth, latency), number in links.items()
        ],
        **({} if matrix is None else asdict(matrix)),
    }


def print_topology(console: Terminal, facts: dict[str, Any]) -> None:
    """Prints the result of facts_of."""
    from rich.markup import escape
    from rich.table import Table

    nodes = ", ".join(name_count(number, kind) for kind, number in facts["nodes"].items())
    console.print(f"[bold]{escape(facts['topology'])}[/]: {name_count(facts['ranks'], 'rank')}; nodes: {escape(nodes)}")
    print_changes(console, facts["changes"])
    table = Table("links", "number", "each way", "latency", box=None, padding=(0, 2, 0, 0))
    for link in facts["links"]:
        table.add_row(
            link["class"],
            str(link["number"]),
            name_bandwidth(link["bytes_per_second"]),
            name_seconds(link["seconds"]),
        )
    console.print_table(table)
    if "devices" not in facts:
        console.print(f"The matrix is not shown: there are more than {_MAX_DEVICES} devices.")
        return
    rows = _matrix(facts, range(len(facts["devices"])))
    width = console.width if console.is_terminal else None
    if len(_blocks(rows, width)) > 1:
        chosen, said = _fewer(facts, rows, width)
        rows = _matrix(facts, chosen)
        if said:
            console.print(f"\nThe terminal is narrow, so these are the {said}; --json has all.")
    for block in _blocks(rows, width):
        console.print()
        for line in block:
            console.print(line, markup=False)
    shown = {way.rstrip("0123456789") for ways in facts["ways"] for way in ways}
    console.print()
    for entry, meaning in LEGEND.items():
        if entry.rstrip("#") in shown:
            console.print(f"{entry.ljust(4)} {meaning}", markup=False)
    if facts["staged"]:
        console.print("What crosses PCIe goes through the memory of its host on the way.")


def _fewer(facts: dict[str, Any], rows: Sequence[Sequence[str]], width: int | None) -> tuple[Sequence[int], str]:
    """Returns the devices of the first host, or, of hosts with one device, those that fit; and in words which."""
    everything = len(facts["devices"])
    host = [to for to, way in enumerate(facts["ways"][0]) if not way.startswith("NET")]
    if len(host) == everything:
        return host, ""
    if len(host) > 1:
        return host, f"{len(host)} devices of one host"
    widest = max(len(cell) for row in rows for cell in row[: everything + 1])
    fitting = num_fitting([widest] * (everything + 1), 1, width) - 1
    return range(fitting), f"first {fitting} of {everything} devices"


def _blocks(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Returns the rows of the matrix as lines of text, in blocks of columns that fit; columns of devices are alike."""
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[: len(rows) - 1] = [max(first, *widths[: len(rows) - 1])] * (len(rows) - 1)
    first = widths[0]
    blocks, at = [], 1
    while at < len(rows[0]):
        end = at + max(1, num_fitting([first, *widths[at - 1 :]], 1, width) - 1)
        cells = [[row[0], *row[at:end]] for row in rows]
        blocks.append([" ".join(map(str.ljust, row, [first, *widths[at - 1 : end - 1]])).rstrip() for row in cells])
        at = end
    return blocks


def _matrix(facts: dict[str, Any], devices: Sequence[int]) -> list[list[str]]:
    """Returns the rows of the matrix of these devices, by number, with a head."""
    beside = [name for name in _BESIDE if any(facts[name])]
    rows = [["", *(facts["devices"][to] for to in devices), *(_BESIDE[name] for name in beside)]]
    for at in devices:
        more = (facts[name][at] for name in beside)
        rows.append([facts["devices"][at], *(facts["ways"][at][to] for to in devices), *more])
    return rows
