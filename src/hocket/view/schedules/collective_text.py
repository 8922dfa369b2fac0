"""Prints what a collective does: what each rank holds before and after."""

from typing import TYPE_CHECKING, Any

from hocket.view.words import name_count

if TYPE_CHECKING:
    from hocket.view.terminal import Terminal


def collective_headline(facts: dict[str, Any]) -> str:
    """Returns a headline: collective, rank count, and the root if there is one."""
    root = "" if facts["root"] is None else f", root {facts['root']}"
    return f"{facts['collective']}, {name_count(facts['num_ranks'], 'rank')}{root}"


def notation(facts: dict[str, Any]) -> list[str]:
    """Returns what the labels of the blocks mean, and the factor between the two bandwidths."""
    if facts["bus_factor"] is None:
        return ["token 0: rank 0 has called it; a rank returns once it has heard of all"]
    labels = [one["label"] for name in ("before", "after") for held in facts[name] for one in held]
    meanings = []
    if whole := [label for label in labels if label.startswith("x") and "[" not in label]:
        meanings.append(f"{whole[0]}: what rank {whole[0][1:]} gives")
    if parts := [label for label in labels if label.startswith("x") and "[" in label]:
        rank, _, block = parts[-1][1:-1].partition("[")
        meanings.append(f"{parts[-1]}: block {block} of what rank {rank} gives")
    if any(label.startswith("sum") for label in labels):
        meanings.append("sum: over all ranks, element by element")
    return ["; ".join(meanings), f"busbw = {facts['bus_factor']:.4g} * algbw"]


def print_collective(console: "Terminal", facts: dict[str, Any]) -> None:
    """Prints a collective as a table with a line for each rank; `facts` are those of `hocket show --json`."""
    from rich.table import Table
    from rich.text import Text

    name, comma, rest = collective_headline(facts).partition(",")
    console.print(Text.assemble((name, "bold"), comma, rest))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("rank", "before", "after"):
        table.add_column(title, no_wrap=True)
    for rank, held in enumerate(zip(facts["before"], facts["after"], strict=True)):
        table.add_row(str(rank), *(Text("  ".join(one["label"] for one in blocks) or "-") for blocks in held))
    console.print_table(table)
    for line in notation(facts):
        console.print(line, markup=False)
    console.print(f"algorithms: {', '.join(facts['algorithms'])}", markup=False)
