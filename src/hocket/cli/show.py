"""`hocket show NAME`: the steps of an algorithm, readable in a terminal; `hocket show VIEW`: other pictures.

A view is a module hocket.cli.show_VIEW with `add_arguments(parser)` for options of its own, and `run(arguments)`.
"""

import argparse
import importlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from hocket.schedule.ir import Schedule, Step

_VIEWS = {
    "choice": "which algorithm runs, by collective, rank count and size",
    "mesh": "who is in which group of a mesh, and on which node",
}
_DEFAULT_RANKS = 4
_MAX_TABLE_RANKS = 8  # as columns
_MAX_ROWS = 64  # of one step
_LEGEND = "c3 += r0: the rank folds rank 0's chunk 3 into its own; = r0: copies it; = r0 + r1: folds both, rounded once"
_LEGEND_BUFFERS = "; i2, o2, s2: chunk 2 of input, output, scratch memory"
_LAWS = (1, 2, 4, 5)  # law 3 is about plans; what is shown is the schedule
_BUFFER_LETTERS = "cios"  # chunk of data, of input, of output, of scratch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket show`."""
    views = "; ".join(f"{name}: {summary}" for name, summary in _VIEWS.items())
    parser.add_argument(
        "algorithm", metavar="NAME", help=f"a built-in algorithm, as ring; or FILE.py, FILE.py:NAME. Or a view: {views}"
    )
    parser.add_argument("--collective", help="which, where several have an algorithm of this name")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help=f"how many ranks (default {_DEFAULT_RANKS})")
    parser.add_argument("--root", type=int, default=0, metavar="R", help="the root, where there is one (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name in _VIEWS:
        _view(name).add_arguments(parser.add_argument_group(f"hocket show {name}"))


def run(arguments: argparse.Namespace) -> int:
    """Prints the steps. Returns 1 if the schedule breaks a law, which is then said below the steps."""
    if arguments.algorithm in _VIEWS:
        shown: int = _view(arguments.algorithm).run(arguments)
        return shown
    if arguments.axes is not None or arguments.nodes is not None:
        raise ValueError(f"--axes and --nodes belong to `hocket show mesh`; found {arguments.algorithm!r}")
    from hocket.algorithms import find
    from hocket.errors import VerifyError

    found = find(arguments.algorithm, arguments.collective, prove=False)
    one = next((one for one in found if one.collective == "all_reduce"), found[0])
    num_ranks = _DEFAULT_RANKS if arguments.ranks is None else arguments.ranks
    schedule = one.build(num_ranks, arguments.root)
    breach, labels = None, list[str]()
    try:
        labels = sorted(one.verify(num_ranks, arguments.root, laws=_LAWS).labels)
    except VerifyError as error:
        breach = error
    sent = _sent(schedule)
    facts: dict[str, Any] = {
        "name": one.name,
        "collective": one.collective,
        "num_ranks": schedule.num_ranks,
        "root": schedule.root,
        "num_chunks": schedule.num_chunks,
        "num_steps": schedule.num_steps,
        "sent": sent,
        "labels": labels,
        "source": one.source,
        "laws": _LAWS,
        "breach": None if breach is None else str(breach),
    }
    if arguments.json:
        print(json.dumps(facts | {"steps": [_as_json(step) for step in schedule.steps()]}))
        return 1 if breach else 0
    others = sorted(other.collective for other in found if other is not one)
    _print(schedule, facts, one.doc, others)
    return 1 if breach else 0


def _view(name: str) -> Any:
    return importlib.import_module(f"hocket.cli.show_{name}")


def _sent(schedule: "Schedule") -> float:
    """The most that a rank sends to others, in units of the whole vector."""
    chunks = [0] * schedule.num_ranks
    for block in schedule.blocks:
        step = block.step
        for src, dst, count in zip(step.src.tolist(), step.dst.tolist(), step.count.tolist(), strict=True):
            chunks[src] += block.repeat * count * (src != dst)
    return max(chunks) / schedule.num_chunks


def _all_on_data(schedule: "Schedule") -> bool:
    from hocket.schedule.ir import Buffer

    buffers = (buffer for block in schedule.blocks for buffer in (block.step.src_buffer, block.step.dst_buffer))
    return all(bool((buffer == Buffer.DATA).all()) for buffer in buffers)


def _as_json(step: "Step") -> list[dict[str, Any]]:
    from hocket.schedule.ir import COLUMNS

    columns = {name: getattr(step, name).tolist() for name in COLUMNS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _print(schedule: "Schedule", facts: dict[str, Any], doc: str, others: list[str]) -> None:
    from hocket.cli.terminal import Terminal

    console = Terminal(soft_wrap=True)
    root = f", root {schedule.root}" if schedule.kind.rooted else ""
    console.print(f"[bold]{facts['collective']} {facts['name']}[/], {schedule.num_ranks} ranks{root}")
    idea = " ".join(doc.strip().partition("\n\n")[0].split())
    if idea:
        console.print(idea, style="italic", markup=False)
    sent = f"{facts['sent']:.4g}"
    steps, chunks = _count(schedule.num_steps, "step"), _count(schedule.num_chunks, "chunk")
    uneven = " of uneven length" if schedule.kind.uneven else ""
    console.print(f"{steps}; data in {chunks}{uneven}; a rank sends at most {sent} times the data")
    if facts["labels"]:
        console.print(f"order of reduction: {', '.join(facts['labels'])}")
    console.print()
    if schedule.num_ranks <= _MAX_TABLE_RANKS:
        _print_table(console, schedule)
    else:
        for number, step in enumerate(schedule.steps()):
            console.print(f"[bold]step {number}[/]")
            texts = [f"  rank {rank}: {text}" for rank, text in _row_groups(step)]
            for text in texts[:_MAX_ROWS]:
                console.print(text, markup=False)
            if len(texts) > _MAX_ROWS:
                console.print(f"  ... and {len(texts) - _MAX_ROWS} more; --json has all")
    console.print()
    console.print(_LEGEND + ("" if _all_on_data(schedule) else _LEGEND_BUFFERS), style="dim")
    if others:
        console.print(f"--collective shows it for: {', '.join(others)}", style="dim")
    if facts["breach"]:
        console.print(f"{facts['source']}: {facts['breach']}", style="bold red", markup=False)
    else:
        console.print(f"laws {', '.join(map(str, _LAWS))} hold; law 3: hocket verify", style="dim")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _print_table(console: "Console", schedule: "Schedule") -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("step", *(f"rank {rank}" for rank in range(schedule.num_ranks)), show_lines=False)
    for number, step in enumerate(schedule.steps()):
        cells: list[list[str]] = [[] for _ in range(schedule.num_ranks)]
        for rank, text in _row_groups(step):
            cells[rank].append(text)
        table.add_row(str(number), *(Text("\n".join(cell)) for cell in cells))
    console.print(table)


def _row_groups(step: "Step") -> list[tuple[int, str]]:
    """What each rank receives, as (rank, "c3 += r0"), ordered by rank; runs of chunks from one rank in one text."""
    step = step.expanded()
    assert step.group is not None
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(step.group.tolist()):
        groups.setdefault(group, []).append(row)
    received = [_describe(step, rows) for rows in groups.values()]
    merged: list[list[Any]] = []
    for rank, letter, chunk, text in sorted(received, key=lambda item: item[0]):
        last = merged[-1] if merged else None
        if last is not None and (rank, letter, chunk, text) == (last[0], last[1], last[3] + 1, last[4]):
            last[3] = chunk
        else:
            merged.append([rank, letter, chunk, chunk, text])
    return [
        (rank, f"{letter}{first}{f'-{last}' if last > first else ''} {text}")
        for rank, letter, first, last, text in merged
    ]


def _describe(step: "Step", rows: list[int]) -> tuple[int, str, int, str]:
    """The destination of a row group (rank, buffer letter, chunk), and the text of its sources."""
    rank, chunk = int(step.dst[rows[0]]), int(step.dst_chunk[rows[0]])
    letter = _BUFFER_LETTERS[step.dst_buffer[rows[0]]]
    sources = []
    for row in rows:
        place = f"{_BUFFER_LETTERS[step.src_buffer[row]]}{step.src_chunk[row]}"
        sources.append(f"r{step.src[row]}" + ("" if place == f"{letter}{chunk}" else f".{place}"))
    return rank, letter, chunk, ("+= " if step.reduce[rows[0]] else "= ") + " + ".join(sources)
