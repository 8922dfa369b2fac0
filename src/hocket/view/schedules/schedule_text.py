"""Prints a schedule as text: its name and costs, its steps as matrices (for many ranks as lists), and its laws."""

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

from hocket.view.schedules.transfer_texts import legend, received
from hocket.view.words import name_count, name_layout

if TYPE_CHECKING:
    from rich.console import Console

    from hocket.schedule import Schedule

_MAX_LISTED = 64  # most steps in a list, and most ranks of each step


def headline(schedule: "Schedule", facts: dict[str, Any]) -> str:
    """Returns a headline: collective, algorithm, rank count, and the root, groups and grid if there are any."""
    parts = [f"{facts['collective']} {facts['name']}", name_count(schedule.num_ranks, "rank")]
    if schedule.kind.rooted:
        parts.append(f"root {schedule.root}")
    if facts["groups"]:
        parts.append(f"in {name_layout(facts['groups'], None)}")
    if facts["dims"]:
        parts.append(f"on {name_layout(None, facts['dims'])}")
    return ", ".join(parts)


def idea(doc: str) -> str:
    """Returns the first paragraph of an algorithm's docstring, in one line."""
    return " ".join(doc.strip().partition("\n\n")[0].split())


def details(schedule: "Schedule", facts: dict[str, Any]) -> list[str]:
    """Returns lines with the costs of a schedule and the labels of its order of reduction."""
    uneven = " of uneven length" if schedule.kind.uneven else ""
    steps, chunks = name_count(schedule.num_steps, "step"), name_count(schedule.num_chunks, "chunk")
    sent = f"{float(schedule.most_sent()):.4g} times {schedule.kind.vector}"
    lines = [f"{steps}; data in {chunks}{uneven}; a rank sends at most {sent}"]
    if facts["labels"]:
        lines.append(f"order of reduction: {', '.join(facts['labels'])}")
    return lines


def _promised(promised: dict[str, str]) -> str:
    """A line with the promises of an algorithm as formulas or words; "" if there are none."""
    told = [f"{name} = {text}" for name, text in promised.items() if text]
    return f"promised for P ranks: {'; '.join(told)}" if told else ""


def print_schedule(
    console: "Console", schedule: "Schedule", facts: dict[str, Any], doc: str, others: list[str], in_file: list[str]
) -> None:
    """Prints the steps of a schedule and the facts about it.

    `facts` are those of --json, `doc` is the algorithm's docstring, `others` are the other collectives with an
    algorithm of this name, `in_file` are other algorithms of its file, in the form FILE.py:NAME.
    """
    from rich.text import Text

    name, comma, rest = headline(schedule, facts).partition(",")
    console.print(Text.assemble((name, "bold"), comma, rest))
    if idea(doc):
        console.print(idea(doc), style="italic", markup=False)
    for line in details(schedule, facts):
        console.print(line)
    if promised := _promised(facts["promised"]):
        console.print(promised, markup=False)
    console.print()
    _print_steps(console, schedule)
    console.print(legend(schedule), style="dim")
    if others:
        console.print(f"for other collectives, use --collective with: {', '.join(others)}", style="dim")
    if in_file:
        console.print(f"in the same file: {', '.join(in_file)}", style="dim", markup=False)
    if facts["breach"]:
        console.print(facts["breach"], style="bold red", markup=False)
    elif facts["laws"]:
        console.print(f"laws {', '.join(map(str, facts['laws']))} hold; to check law 3, use hocket verify", style="dim")
    else:
        console.print(f"not proved: the schedule has {schedule.num_rows:,} rows; use hocket verify", style="dim")


def _print_steps(console: "Console", schedule: "Schedule") -> None:
    from hocket.view.schedules.chunk_contents import MAX_RANKS

    if schedule.num_ranks > MAX_RANKS:
        console.print(f"As a list, because a matrix shows at most {MAX_RANKS} ranks.\n", style="dim")
        _print_list(console, schedule)
        return
    from hocket.view.schedules.chunk_matrix import ChunkMatrix

    # A pipe has no width of its own, and the reader of a pipe expects one rank per line.
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) else console.width
    ChunkMatrix(schedule, console, width, side_by_side=console.is_terminal or width != console.width).print()


def _print_list(console: "Console", schedule: "Schedule") -> None:
    """Prints what ranks receive in each step, for the first steps and ranks."""
    for number, step in enumerate(islice(schedule.steps(), _MAX_LISTED)):
        console.print(f"[bold]step {number}[/]")
        for rank, text in received(step.take(step.dst < _MAX_LISTED)):
            console.print(f"  rank {rank}: {text}", markup=False)
        if schedule.num_ranks > _MAX_LISTED:
            console.print(f"  ... and {name_count(schedule.num_ranks - _MAX_LISTED, 'more rank')}; --json has all")
    if schedule.num_steps > _MAX_LISTED:
        console.print(f"... and {name_count(schedule.num_steps - _MAX_LISTED, 'more step')}; --json has all")
    console.print()
