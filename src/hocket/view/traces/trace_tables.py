"""Prints the summary of a trace as tables in a terminal."""

from rich.markup import escape
from rich.table import Table

from hocket.view.terminal import Terminal
from hocket.view.traces.trace_summary import HIDDEN_IS_A_LIMIT, Summary
from hocket.view.words import name_count, name_seconds

_MOST_NAMES = 40


def print_summary(summary: Summary) -> None:
    """Prints the result of summarise()."""
    terminal = Terminal()
    num_ranks = len(summary["ranks"])
    of_ranks = f"{name_count(num_ranks, 'rank')}, " if num_ranks else ""
    terminal.print(f"{of_ranks}{name_seconds(summary['seconds'])}")
    if summary["missing"]:
        terminal.print(f"No trace of rank {', '.join(map(str, summary['missing']))}: it did not stop its trace.")
    if summary["ended_early"]:
        ranks = ", ".join(map(str, summary["ended_early"]))
        terminal.print(f"The trace of rank {ranks} ends early: its buffer was full.")
    title = "Time by name" + (", over all ranks" if num_ranks else "")
    names = Table("name", "category", title=title, title_justify="left")
    for heading in ("wall", "self", "average", "occurrences"):
        names.add_column(heading, justify="right")
    for row in summary["names"][:_MOST_NAMES]:
        times = (name_seconds(row[key]) for key in ("wall_seconds", "self_seconds", "average_seconds"))
        names.add_row(escape(row["name"]), escape(row["category"]), *times, str(row["occurrences"]))
    terminal.print_table(names)
    left = summary["names"][_MOST_NAMES:]
    if left:
        terminal.print(f"and {len(left)} more names, {name_seconds(sum(row['wall_seconds'] for row in left))} in total")
    if not num_ranks:
        return
    ranks_table = Table(title="Communication hidden behind computation", title_justify="left")
    for heading in ("rank", "computing", "communicating", "hidden <=", "exposed >=", "hidden share"):
        ranks_table.add_column(heading, justify="right")
    for row in summary["ranks"]:
        keys = ("computing_seconds", "communicating_seconds", "hidden_seconds", "exposed_seconds")
        in_all, hidden = row["communicating_seconds"], row["hidden_seconds"]
        share = f"{'at most ' if hidden else ''}{hidden / in_all:.0%}" if in_all and hidden is not None else "-"
        times = ("-" if row[key] is None else name_seconds(row[key]) for key in keys)
        ranks_table.add_row(str(row["rank"]), *times, share)
    terminal.print_table(ranks_table)
    if any(row["hidden_seconds"] for row in summary["ranks"]):
        terminal.print(HIDDEN_IS_A_LIMIT)
    if any(row["computing_seconds"] is None for row in summary["ranks"]):
        terminal.print(
            'A rank with "-" has recorded no computation: put it in `with hocket.span("name"):`, or on a stream.'
        )
    if summary["stragglers"]:
        late = Table("collective", "ranks", title="Late ranks: the last to join each collective", title_justify="left")
        for heading in ("calls", "often last", "times", "mean wait", "longest wait"):
            late.add_column(heading, justify="right")
        for row in summary["stragglers"]:
            ranks = ", ".join(map(str, row["ranks"])) if len(row["ranks"]) < 9 else f"{len(row['ranks'])} ranks"
            waits = (name_seconds(row["mean_seconds"]), name_seconds(row["most_seconds"]))
            late.add_row(
                escape(row["name"]), ranks, str(row["calls"]), f"rank {row['rank']}", f"{row['times_last']}x", *waits
            )
        terminal.print_table(late)
