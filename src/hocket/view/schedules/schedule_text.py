"""A schedule as text: what it is, its steps as matrices or, of many ranks, as lists, and which laws it keeps."""

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

from hocket.view.schedules.transfer_texts import legend, received
from hocket.view.words import name_count

if TYPE_CHECKING:
    from rich.console import Console

    from hocket.schedule import Schedule

_MAX_LISTED = 64  # steps, and ranks of each


def headline(schedule: "Schedule", facts: dict[str, Any]) -> str:
    """What is shown: collective, algorithm, rank count, and root, groups and grid where there are some."""
    parts = [f"{facts['collective']} {facts['name']}", name_count(schedule.num_ranks, "rank")]
    if schedule.kind.rooted:
        parts.append(f"root {schedule.root}")
    if facts["groups"]:
        parts.append(f"in groups of {'+'.join(map(str, facts['groups']))}")
    if facts["dims"]:
        parts.append(f"on a grid of {'x'.join(map(str, facts['dims']))}")
    return ", ".join(parts)


def idea(doc: str) -> str:
    """The first paragraph of an algorithm's docstring, in one line."""
    return " ".join(doc.strip().partition("\n\n")[0].split())


def details(schedule: "Schedule", facts: dict[str, Any]) -> list[str]:
    """Lines with the costs of a schedule, and what is known of its order of reduction."""
    uneven = " of uneven length" if schedule.kind.uneven else ""
    steps, chunks = name_count(schedule.num_steps, "step"), name_count(schedule.num_chunks, "chunk")
    lines = [f"{steps}; data in {chunks}{uneven}; a rank sends at most {facts['sent']:.4g} times the data"]
    if facts["labels"]:
        lines.append(f"order of reduction: {', '.join(facts['labels'])}")
    return lines


def print_schedule(
    schedule: "Schedule", facts: dict[str, Any], doc: str, others: list[str], in_file: list[str]
) -> None:
    """Prints the steps and what is known of the schedule.

    `facts` are those of --json, `doc` is the algorithm's docstring, `others` are the other collectives that it is for,
    `in_file` other algorithms of its file, as FILE.py:NAME.
    """
    from rich.text import Text

    from hocket.view.terminal import Terminal

    console = Terminal(soft_wrap=True)
    name, comma, rest = headline(schedule, facts).partition(",")
    console.print(Text.assemble((name, "bold"), comma, rest))
    if idea(doc):
        console.print(idea(doc), style="italic", markup=False)
    for line in details(schedule, facts):
        console.print(line)
    console.print()
    _print_steps(console, schedule)
    console.print(legend(schedule), style="dim")
    if others:
        console.print(f"--collective shows it for: {', '.join(others)}", style="dim")
    if in_file:
        console.print(f"in the same file: {', '.join(in_file)}", style="dim", markup=False)
    if facts["breach"]:
        console.print(facts["breach"], style="bold red", markup=False)
    elif facts["laws"]:
        console.print(f"laws {', '.join(map(str, facts['laws']))} hold; law 3: hocket verify", style="dim")
    else:
        console.print(f"nothing is proved here, as there are {schedule.num_rows:,} rows: hocket verify", style="dim")


def _print_steps(console: "Console", schedule: "Schedule") -> None:
    from hocket.view.schedules.chunk_contents import MAX_RANKS

    if schedule.num_ranks > MAX_RANKS:
        console.print(f"A list, as a matrix has at most {MAX_RANKS} ranks.\n", style="dim")
        _print_list(console, schedule)
        return
    from hocket.view.schedules.chunk_matrix import ChunkMatrix

    # A pipe has no width of its own, and whoever reads from it wants one rank a line.
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) else console.width
    ChunkMatrix(schedule, console, width, side_by_side=console.is_terminal or width != console.width).print()


def _print_list(console: "Console", schedule: "Schedule") -> None:
    """What ranks receive in each step; of many steps and ranks the first."""
    for number, step in enumerate(islice(schedule.steps(), _MAX_LISTED)):
        console.print(f"[bold]step {number}[/]")
        for rank, text in received(step.take(step.dst < _MAX_LISTED)):
            console.print(f"  rank {rank}: {text}", markup=False)
        if schedule.num_ranks > _MAX_LISTED:
            console.print(f"  ... and {name_count(schedule.num_ranks - _MAX_LISTED, 'more rank')}; --json has all")
    if schedule.num_steps > _MAX_LISTED:
        console.print(f"... and {name_count(schedule.num_steps - _MAX_LISTED, 'more step')}; --json has all")
    console.print()
