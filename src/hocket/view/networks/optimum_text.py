"""Prints the best bandwidth of a collective on a network, and the cut that limits it."""

from typing import Any

from hocket.view.networks.simulation_text import print_changes
from hocket.view.terminal import Terminal
from hocket.view.words import name_bandwidth, name_count


def print_optimum(console: Terminal, facts: dict[str, Any]) -> None:
    """Prints the fields of an optimum."""
    from rich.markup import escape

    ranks = name_count(facts["num_ranks"], "rank")
    root = "" if facts["root"] is None else f", root {facts['root']}"
    network = f"{escape(facts['topology'])}{', idle accelerators forward' if facts['forwarding'] else ''}"
    console.print(f"[bold]{facts['collective']}[/] of {ranks}{root} on {network}, latencies 0")
    print_changes(console, facts["changes"])
    sentence = "best known" if facts["collective"] == "all_reduce" else "at most"
    console.print(f"{sentence} algbw {name_bandwidth(facts['algbw'])}, busbw {name_bandwidth(facts['busbw'])}")
    kind = "path" if facts["collective"] in ("gather", "scatter") else "tree"
    shares = f"{name_count(facts['num_trees'], kind)} per block"
    if facts["reached_algbw"] < facts["algbw"] * (1 - 1e-9):
        reached = f"gives {name_bandwidth(facts['reached_algbw'])}, because exact shares would be too many"
        console.print(f"a schedule of {shares} {reached}")
    else:
        console.print(f"a schedule of {shares} reaches it")
    parted = " (of the slower part)" if facts["collective"] == "all_reduce" else ""
    console.print(
        f"bottleneck cut{parted}: {name_bandwidth(facts['cut_bytes_per_second'])} over "
        f"{name_count(facts['num_cut_links'], 'link')}, from {name_count(facts['cut_ranks'], 'rank')} to "
        f"{facts['num_ranks'] - facts['cut_ranks']}"
    )
    side = "before" if facts["num_cut_before"] <= facts["num_cut_behind"] else "behind"
    for what, names, number in (
        (side, facts[f"cut_{side}"], facts[f"num_cut_{side}"]),
        ("links", facts["cut_links"], facts["num_cut_links"]),
    ):
        more = ", ..." if number > len(names) else ""
        console.print(f"  {what}: {escape(', '.join(names))}{more}", highlight=False)
    if "num_steps" in facts:
        console.print(f"schedule: {name_count(facts['num_steps'], 'step')}, proved")
