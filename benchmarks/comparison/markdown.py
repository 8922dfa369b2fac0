"""The tables of README and docs/performance.md, from one result."""

import statistics
from collections.abc import Sequence

from load import QUIET
from peers import TITLES

from comparison.results import Row, Run, size_name


def tables(run: Run) -> str:
    """Where and how it was measured, the ratios by number of ranks, and the cost of existing."""
    parts = [run.machine]
    if any(row.is_busy() and cell(row) for row in run.rows):
        parts.append(f"Cells marked ! were measured while others used more than {QUIET:.0%} of all cores.")
    for num_ranks in sorted({row.num_ranks for row in run.rows}):
        chosen = run.settings.get(num_ranks, {})
        peers = ", ".join(f"{TITLES[name]}: {how}" for name, how in chosen.items() if name in TITLES)
        title = f"**{num_ranks} ranks**" + (f" ({peers})" if peers else "")
        parts += [title, table([row for row in run.rows if row.num_ranks == num_ranks])]
    if costs := run.costs.get("communicators", "").splitlines():
        parts += [costs[0].removeprefix("# "), "\n".join(costs[1:])]
    return "\n\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """How many times faster than the best MPI of the cell: ordinary memory (least..greatest round) / registered.

    Operations down, sizes across; a barrier stands in the first column. Of a cell measured twice, the last counts.
    """
    sizes = sorted({row.num_bytes for row in rows if row.num_bytes}) or [0]
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        if words := cell(row):
            name = row.operation + ("" if row.dtype == "float32" else f", {row.dtype}")
            found.setdefault(name, {})[row.num_bytes or sizes[0]] = words
    lines = [line(["operation", *(size_name(size) if size else "" for size in sizes)]), "|---" * (1 + len(sizes)) + "|"]
    lines += [line([name, *(cells.get(size, "") for size in sizes)]) for name, cells in found.items()]
    return "\n".join(lines)


def line(words: Sequence[str]) -> str:
    return "".join(f"| {word} " if word else "| " for word in words) + "|"


def cell(row: Row) -> str:
    """Medians over rounds; empty where no MPI was measured. A barrier has no memory. !: others used the cores."""
    private, registered = row.ratios("hocket", row.best_mpi()), row.ratio("registered")
    words = [f"{statistics.median(private):.2f} ({min(private):.2f}..{max(private):.2f})"] if private else []
    if row.num_bytes and registered is not None:
        words.append(f"{registered:.2f}")
    return " / ".join(words) + (" !" if words and row.is_busy() else "")
