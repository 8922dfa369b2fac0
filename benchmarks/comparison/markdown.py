"""The tables of one result, in Markdown."""

import statistics
from collections.abc import Callable, Sequence

from load import QUIET
from peers import TITLES

from comparison.results import Row, Run, size_name


def tables(run: Run) -> str:
    """Returns machine and command, the ratios by rank count, bfloat16 against Gloo, and the costs of communicators."""
    parts = [run.machine]
    if any(row.is_busy() and (beside_mpis(row) or beside_gloo(row)) for row in run.rows):
        parts.append(f"Cells marked ! were measured while others used more than {QUIET:.0%} of all cores.")
    for num_ranks in sorted({row.num_ranks for row in run.rows}):
        chosen = run.settings.get(num_ranks, {})
        peers = ", ".join(f"{TITLES[name]}: {how}" for name, how in chosen.items() if name in TITLES)
        title = f"**{num_ranks} ranks**" + (f" ({peers})" if peers else "")
        parts += [title, table([row for row in run.rows if row.num_ranks == num_ranks])]
    if halves := [row for row in run.rows if beside_gloo(row)]:
        title = f"**bfloat16, compared with {TITLES['gloo']}**"
        parts += [title, table(halves, beside_gloo, lambda row: f"{row.operation}, {row.num_ranks} ranks")]
    if costs := run.costs.get("communicators", "").splitlines():
        parts += [costs[0].removeprefix("# "), "\n".join(costs[1:])]
    return "\n\n".join(parts)


def of_type(row: Row) -> str:
    return row.operation + ("" if row.dtype == "float32" else f", {row.dtype}")


def beside_mpis(row: Row) -> str:
    """Returns the ratios to the best MPI of the cell; empty if none was measured."""
    return cell(row, row.best_mpi())


def beside_gloo(row: Row) -> str:
    """Returns the ratios to Gloo for bfloat16; empty for other types, and if Gloo was not measured."""
    return cell(row, "gloo") if row.dtype == "bfloat16" else ""


def table(
    rows: Sequence[Row], words_of: Callable[[Row], str] = beside_mpis, name_of: Callable[[Row], str] = of_type
) -> str:
    """Returns a table of how many times faster Hocket is: ordinary memory (range over rounds) / registered memory.

    Operations are rows, sizes are columns; a barrier is in the first column. If a cell was measured twice, the last
    one counts.
    """
    sizes = sorted({row.num_bytes for row in rows if row.num_bytes}) or [0]
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        if words := words_of(row):
            found.setdefault(name_of(row), {})[row.num_bytes or sizes[0]] = words
    lines = [line(["operation", *(size_name(size) if size else "" for size in sizes)]), "|---" * (1 + len(sizes)) + "|"]
    lines += [line([name, *(cells.get(size, "") for size in sizes)]) for name, cells in found.items()]
    return "\n".join(lines)


def line(words: Sequence[str]) -> str:
    return "".join(f"| {word} " if word else "| " for word in words) + "|"


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"


def cell(row: Row, peer: str | None) -> str:
    """Returns medians over rounds; empty without a peer. A barrier has no memory. !: others used the cores."""
    private, registered = row.ratios("hocket", peer), row.ratio("registered", peer)
    words = [f"{times(statistics.median(private))} ({times(min(private))}..{times(max(private))})"] if private else []
    if row.num_bytes and registered is not None:
        words.append(times(registered))
    return " / ".join(words) + (" !" if words and row.is_busy() else "")
