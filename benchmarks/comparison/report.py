"""The report of a run: tables, goals and a plot for people, JSON for programs."""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers import TITLES, last_line

from comparison.goals import Outcome, price_without_cma
from comparison.results import Row, Run, geometric_mean

OURS = ("hocket", "registered", "no cma")
MEMORIES = ("hocket", "registered")
COLUMNS = (
    *OURS,
    "openmpi",
    "mpich",
    "impi",
    "gloo",
    "oneccl",
    "deepspeed",
    "floor private",
    "floor staged",
    "floor registered",
    "floor turns",
    "empty calls",
)


def lacks_ours(row: Row) -> bool:
    """Returns whether Hocket, with any kind of memory, failed in this cell or was not measured yet."""
    return any(row.lacks(name) for name in OURS)


def table(rows: Sequence[Row]) -> str:
    """Returns the table: microseconds of the touched protocol, and ratios best MPI / Hocket with the range over rounds.

    All microseconds of a row are from the round with the median ratio, and so is `hop`, the nanoseconds in which two
    cores exchange a cache line. A dash: not measured in that round. `at most`: the ratio best MPI / floor, the median
    over rounds.
    """
    shown = [name for name in COLUMNS if any(row.times(name) for row in rows)]
    ours = [name for name in OURS if name in shown]
    head = ["cell", *(name.replace("floor ", "floor:")[:12] for name in shown), *(f"best/{name}" for name in ours)]
    lines = [aligned([*head, "at most", "untouched", "hop", "other load"], len(shown), len(ours))]
    for row in rows:
        times = (row.typical(name) for name in shown)
        words = [row.name(), *("-" if seconds is None else f"{seconds * 1e6:.2f}" for seconds in times)]
        words += [spread(row.ratios(name, row.best_mpi())) for name in ours]
        words += [at_most(row), untouched(row), hop(row), f"{row.load():.0%}" + ("!" if row.is_busy() else " ")]
        lines.append(aligned(words, len(shown), len(ours)).rstrip())
    return "\n".join(lines)


def aligned(words: Sequence[str], num_times: int, num_ratios: int) -> str:
    """Returns the words in columns, with a space between them even if a word is longer than its column."""
    widths = [12] * num_times + [23] * num_ratios + [15, 15, 15, 11]
    return f"{words[0]:<36}" + "".join(f" {word:>{width}}" for word, width in zip(words[1:], widths, strict=True))


def spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else "-"


def at_most(row: Row) -> str:
    """Returns how many times faster than the best MPI the floor is, for private and registered memory."""
    return of_both([row.at_most(name) for name in MEMORIES])


def untouched(row: Row) -> str:
    """Returns the ratios of calls whose buffers are not touched in between, for private and registered memory."""
    return of_both([row.ratio(name, protocol="untouched") for name in MEMORIES])


def of_both(ratios: Sequence[float | None]) -> str:
    return " / ".join(f"{ratio:.2f}x" for ratio in ratios if ratio is not None) or "-"


def hop(row: Row) -> str:
    """Returns the nanoseconds in the typical round, with the minimum and maximum of all rounds."""
    found, place = [seconds * 1e9 for seconds in row.hops], row.typical_round()
    return f"{found[place]:.0f} ({min(found):.0f}..{max(found):.0f})" if place < len(found) else "-"


def goal_lines(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        goal = outcome.goal
        sign = "<=" if goal.at_most else ">="
        word = "reached " if outcome.reached else "MISSED  " if outcome.value is not None else "unknown "
        value = "-" if outcome.value is None else f"{outcome.value * goal.scale:.3g}"
        kind = "mean " if goal.aggregate == "mean" else ""
        limit = f"{kind}{sign} {goal.limit * goal.scale:.3g} {goal.unit}"
        lines.append(f"{word} {goal.name:<66} {limit:<20} {value:>8}  {outcome.worst}".rstrip())
        if outcome.beyond and not outcome.reached:
            lines.append(f"{'':<8} {outcome.beyond}")
    return "\n".join(lines)


def price_lines(rows: Sequence[Row]) -> list[str]:
    """Returns for each rank count how much slower calls are without cross-memory attach."""
    lines = []
    for num_ranks, found in price_without_cma(rows).items():
        mean, (worst, name) = geometric_mean(price for price, _ in found), found[-1]
        what = f"{num_ranks} ranks, time without / with cross-memory attach"
        lines.append(
            f"{'price':<8} {what:<66} {'mean, times':<20} {mean:>8.3g}  worst {worst:.3g}: {name}, of {len(found)}"
        )
    return lines


def text(run: Run, outcomes: Sequence[Outcome]) -> str:
    """Returns the report, except the last line."""
    lines = [f"# {run.machine}"]
    for num_ranks, chosen in run.settings.items():
        names = ", ".join(f"{TITLES.get(name, name)} {how}" for name, how in chosen.items())
        lines.append(f"# {num_ranks} ranks: {names}")
    lines += [f"# absent: {what}: {last_line(why)}" for what, why in run.absent.items()]
    if any(row.dtype == "bfloat16" for row in run.rows):
        lines.append("# bfloat16: only operations that add; the others move the same bytes for every type")
    lines.append(table(run.rows))
    if "first cold" in run.costs:
        lines.append(f"# first all_reduce of 8 ranks with nothing cached: {run.costs['first cold'] * 1e3:.0f} ms")
    lines += run.costs.get("communicators", "").splitlines()
    return "\n".join([*lines, goal_lines(outcomes), *price_lines(run.rows)])


def write_json(path: Path, run: Run, outcomes: Sequence[Outcome]) -> None:
    """Writes all measurements, and the outcomes of the goals."""
    reached = [
        {"goal": each.goal.name, "limit": each.goal.limit, "value": each.value, "reached": each.reached}
        | {"worst": each.worst, "beyond": each.beyond}
        for each in outcomes
    ]
    path.write_text(json.dumps({**asdict(run), "goals": reached}, indent=1) + "\n")


def row_of(found: dict[str, Any]) -> Row:
    """Returns a row from write_json; raises Python's own errors if it is something else."""
    row = Row(**found)
    if "left_out" not in found:  # from an older version
        row.left_out = [name for name in OURS if name not in row.seconds]
    row.seconds = {
        name: {protocol: list(map(float, times)) for protocol, times in of_name.items()}
        for name, of_name in row.seconds.items()
    }
    row.loads, row.hops = list(map(float, row.loads)), list(map(float, row.hops))
    return row


def read_json(text: str) -> Run:
    """Returns the run that write_json wrote to this path; raises argparse.ArgumentTypeError."""
    try:
        found = json.loads(Path(text).read_text())
        rows = [row_of(row) for row in found["rows"]]
        settings = {int(num_ranks): dict(chosen) for num_ranks, chosen in found["settings"].items()}
        return Run(found["machine"], rows, settings, dict(found["absent"]), dict(found["costs"]))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a result of --json") from None


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Plots median seconds over bytes, with one panel for each operation and rank count.

    Needs matplotlib (the extra `plot`).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row.num_bytes and row.dtype == "float32"]
    operations = list(dict.fromkeys(row.operation for row in rows))
    counts = sorted({row.num_ranks for row in rows})
    figure, grid = pyplot.subplots(
        len(operations), len(counts), figsize=(5 * len(counts), 3.2 * len(operations)), squeeze=False, sharex=True
    )
    plotted = [name for name in COLUMNS if name != "empty calls"]
    colors = matplotlib.colormaps["tab20"].colors
    for line, operation in enumerate(operations):
        for column, count in enumerate(counts):
            axes = grid[line][column]
            cells = [row for row in rows if (row.operation, row.num_ranks) == (operation, count)]
            for name in plotted:
                found = [(row.num_bytes, times) for row in cells if (times := row.times(name))]
                points = [(num_bytes, statistics.median(times) * 1e6) for num_bytes, times in found]
                if points:
                    color, width = colors[plotted.index(name)], 2.5 if name in OURS else 1
                    style = "--" if name.startswith("floor") else "-"
                    axes.loglog(*zip(*points, strict=True), style, marker=".", label=name, color=color, lw=width)
            axes.set_title(f"{operation}, {count} ranks")
            axes.set_ylabel("microseconds")
            axes.grid(alpha=0.3)
    for axes in grid[-1]:
        axes.set_xlabel("bytes")
    labels = {name: one for axes in grid.flat for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    grid[0][0].legend(labels.values(), labels, fontsize="small")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
