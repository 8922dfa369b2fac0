"""The text and tables that `hocket simulate` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.view.words import name_amount, name_bandwidth, name_bytes, name_count, name_layout, name_seconds

if TYPE_CHECKING:
    from hocket.network import LinkLoads
    from hocket.view.terminal import Terminal

_MOST_ROWS = 12  # links, or other algorithms
_BINDING_SHARE = 0.5  # share of the time; a link that is busy for less is not called the bottleneck


def print_result(
    console: "Terminal", row: dict[str, Any], result: "LinkLoads | None", others: Sequence[dict[str, Any]]
) -> None:
    """Prints the result of one call, its links, and a comparison with other algorithms."""
    from rich.markup import escape

    size = "" if row["collective"] == "barrier" else f", {name_bytes(row['num_bytes'])}"
    layout = name_layout(row["groups"], row["dims"])
    console.print(
        f"[bold]{row['collective']} {escape(_named(row))}[/]{layout and f' in {layout}'}{size} "
        f"on {escape(row['topology'])}, {name_count(row['num_ranks'], 'rank')}: "
        f"[bold]{name_seconds(row['seconds'])}[/]"
    )
    if row["machine"]:
        console.print(row["machine"], markup=False)
    print_changes(console, row["changes"])
    for line in sentences(row):
        console.print(line, markup=False)
    if result is not None:
        console.print()
        console.print_table(_links(result))
    if others:
        console.print()
        console.print_table(compared([row, *others]))
        print_layouts(console, [row, *others])


def _named(row: dict[str, Any]) -> str:
    return f"{row['algorithm']} ({row['protocol']})" if row["protocol"] else str(row["algorithm"])


def print_layouts(console: "Terminal", rows: Sequence[dict[str, Any]]) -> None:
    """Prints which of the compared algorithms work with groups or on a grid, if any of them does."""
    found = [
        (row["algorithm"], name_layout(row["groups"], row["dims"]))
        for row in sorted(rows, key=lambda row: row["seconds"])
    ]
    told = "; ".join(f"{name} in {layout}" for name, layout in found if layout)
    if told:
        console.print(f"{told}; other algorithms take no groups and no grid", style="dim", markup=False)


def print_sweep(console: "Terminal", rows: Sequence[dict[str, Any]]) -> None:
    """Prints a table with a line for each case of a sweep; what is the same for all stands in the line above."""
    from rich.markup import escape
    from rich.table import Table

    said = {
        "topology": [row["topology"] for row in rows],
        "changed": ["; ".join(row["changes"]) for row in rows],
        "ranks": [name_count(row["num_ranks"], "rank") for row in rows],
        "layout": [name_layout(row["groups"], row["dims"]) for row in rows],
        "size": ["" if row["collective"] == "barrier" else name_bytes(row["num_bytes"]) for row in rows],
        "algorithm": [row["algorithm"] for row in rows],
    }
    different = {name: texts for name, texts in said.items() if len(set(texts)) > 1}
    same = [texts[0] for name, texts in said.items() if name not in different and name != "changed" and texts[0]]
    console.print(", ".join([rows[0]["collective"], *same]), style="bold", markup=False)
    if "changed" not in different:
        print_changes(console, rows[0]["changes"])
    table = Table(*different, box=None)
    for name in ("time", "x bound", "busbw"):
        table.add_column(name, justify="right")
    for number, row in enumerate(rows):
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        cells = (escape(texts[number]) for texts in different.values())
        table.add_row(*cells, name_seconds(row["seconds"]), ratio, name_bandwidth(row["busbw"]))
    console.print_table(table)
    if rows[0]["overhead_seconds"]:
        console.print("The lower bound leaves out the overhead.", style="dim")


def print_changes(console: "Terminal", changes: Sequence[str]) -> None:
    """Prints which constants are not the usual ones, if there are any."""
    if changes:
        console.print(f"changed: {'; '.join(changes)}", markup=False)


def sentences(row: dict[str, Any]) -> list[str]:
    """Returns lines on the bandwidth, the lower bound, the parts of the time, and the bottleneck links."""
    lines = []
    if row["algbw"] is not None:
        lines.append(f"algbw {name_bandwidth(row['algbw'])}, busbw {name_bandwidth(row['busbw'])}")
    if row["bound_seconds"]:
        alone = ", without the overhead" if row["overhead_seconds"] else ""
        idle = f", where {name_count(row['num_idle'], 'idle accelerator')} may not forward" if row["num_idle"] else ""
        lines.append(
            f"lower bound of any algorithm on this network{alone}{idle}: {name_seconds(row['bound_seconds'])}; "
            f"this time is {row['ratio']:.2f} times the bound"
        )
    names_of_parts = ("bandwidth", "latency", "reduction", "contention")
    parts = [f"{name_seconds(row[name])} {name}" for name in names_of_parts if row[name] > 1e-3 * row["seconds"]]
    lines.append(": ".join(part for part in (name_count(row["num_steps"], "step"), ", ".join(parts)) if part))
    names, count = row["binding_links"], row["num_binding_links"]
    if names:
        more = f" and {count - len(names)} more" if count > len(names) else ""
        share = f"{row['binding_share']:.0%}"
        busiest = (
            f"bottleneck, busy for {share} of the time"
            if row["binding_share"] >= _BINDING_SHARE
            else f"no link is busy most of the time; the busiest, for {share} of it"
        )
        lines.append(f"{busiest}: {', '.join(names)}{more}")
    return lines


def _links(result: "LinkLoads") -> Any:
    """Returns a table of the busiest links and of each class of links: what they carry and how long they are busy."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for name in ("link", "class", "bandwidth", "carries", "busy", "of the time"):
        table.add_column(name, justify="left" if name in ("link", "class") else "right")
    network, busy = result.topology, result.link_seconds
    order = np.argsort(-busy, kind="stable")[:_MOST_ROWS].tolist()
    for link, name in zip(order, network.link_names(order), strict=True):
        if not busy[link]:
            continue
        table.add_row(
            escape(name),
            str(network.link_class[link]),
            name_bandwidth(float(network.bytes_per_second[link])),
            name_amount(float(result.link_bytes[link])),
            name_seconds(float(busy[link])),
            f"{busy[link] / result.seconds:.0%}",
        )
    for kind in sorted(set(network.link_class.tolist())):
        meant = network.link_class == kind
        used = int(np.count_nonzero(result.link_bytes[meant]))
        mean = float(busy[meant].mean())
        carried = name_amount(float(result.link_bytes[meant].sum()))
        table.add_row(
            f"{name_count(int(meant.sum()), 'link')}, {used} used",
            kind,
            "",
            carried,
            f"mean {name_seconds(mean)}",
            f"{mean / result.seconds:.0%}" if result.seconds else "",
            style="dim",
        )
    return table


def compared(rows: Sequence[dict[str, Any]]) -> Any:
    """Returns a table with a row per algorithm, the fastest first: time, ratio to the bound, parts of the time."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for name in ("algorithm", "time", "x bound", "busbw", "steps", "bandwidth", "latency", "reduction", "contention"):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    for row in sorted(rows, key=lambda row: row["seconds"]):
        parts = (row[name] for name in ("bandwidth", "latency", "reduction", "contention"))
        table.add_row(
            escape(_named(row)),
            name_seconds(row["seconds"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            name_bandwidth(row["busbw"]),
            str(row["num_steps"]),
            *map(name_seconds, parts),
        )
    return table
