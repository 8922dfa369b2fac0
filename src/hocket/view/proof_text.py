"""The text that `hocket verify` prints."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hocket.view.terminal import Terminal
from hocket.view.words import name_count, name_counts


def print_proof(console: Terminal, facts: dict[str, Any], asked: Sequence[dict[str, Any]]) -> None:
    """Prints a line for each algorithm that holds, the first failure of each law, and how many hold.

    `facts` are those of --json; `asked` are all algorithms, also those that fail.
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table("collective", "algorithm", "ranks", "schedules", "order of reduction", box=None)
    tried = [one for one in asked if one["num_schedules"] or one["failures"]]
    for one in tried:
        if not one["failures"]:
            ranks, labels = name_counts(list(one["ranks"])), ", ".join(one["labels"])
            table.add_row(one["collective"], escape(one["name"]), ranks, str(one["num_schedules"]), labels)
    if table.row_count:
        console.print_table(table)

    def kind_of(failure: dict[str, Any]) -> tuple[Any, ...]:
        return failure["collective"], failure["name"], failure["law"]

    failures = sorted(facts["failures"], key=lambda one: tuple(map(str, kind_of(one))))
    for _, alike in groupby(failures, kind_of):
        first, *more = alike
        console.print(f"{_where(first)}{first['message']}", style="red", markup=False)
        counts = sorted({failure["num_ranks"] for failure in more} - {first["num_ranks"]})
        if counts:
            law = "it fails" if first["law"] is None else f"law {first['law']} is broken"
            console.print(f"    {law} for {name_counts(counts)} ranks, too", style="red", markup=False)
    held, num_schedules = sum(not one["failures"] for one in tried), sum(one["num_schedules"] for one in asked)
    apart = len(asked) - len(tried)
    others = f"; {apart} others do not support these rank counts" if apart else ""
    console.print(
        f"{held} of {len(tried)} algorithms hold: {num_schedules} schedules proved, each in place and out of place, "
        f"in {facts['seconds']:.1f} s{others}"
    )


def _where(failure: dict[str, Any]) -> str:
    if failure["name"] is None:
        return ""
    root = f", root {failure['root']}" if failure["root"] else ""
    return f"{failure['collective']} {failure['name']}, {name_count(failure['num_ranks'], 'rank')}{root}: "
