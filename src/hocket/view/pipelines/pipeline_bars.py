"""The bars that every picture of a pipeline draws: when a rank runs an operation, and how it is called and coloured."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.training import pipeline as tables
from hocket.view.schedules.chunk_colours import chunk_colours, mixed
from hocket.view.words import name_count

MAX_RANKS, MAX_OPERATIONS = 64, 1024
"""A larger picture is not readable. Operations: those of one rank."""

KIND_NAMES = {"F": "forward", "B": "input backward", "W": "weight backward", "G": "full backward, B and W at once"}
PAPER_PARTS = {"F": 0.0, "B": 0.4, "W": 0.7, "G": 0.4}
"""How much of a bar's colour is white: the micro-batch gives the colour, the kind its shade."""


@dataclass(frozen=True)
class PipelineBar:
    """One operation, or one of an overlapped pair; joined: the second of such a pair.

    start, end: in the unit of the times, or positions if the table has no times.
    """

    start: float
    end: float
    label: str
    colour: str
    about: str
    joined: bool


def is_drawn(table: tables.PipelineTable) -> bool:
    """Whether a picture of this table would be readable."""
    return table.num_ranks <= MAX_RANKS and int(np.diff(table.first_row).max()) <= MAX_OPERATIONS


def bars_of(table: tables.PipelineTable, timing: tables.PipelineTiming | None) -> list[list[PipelineBar]]:
    """Returns the bars of each rank; without a timing, an operation is drawn at its position."""
    start = table.position if timing is None else timing.start
    end = table.position + 1 if timing is None else timing.end
    bars: list[list[PipelineBar]] = [[] for _ in range(table.num_ranks)]
    columns = (table.rank, table.kind, table.stage, table.microbatch, start, end)
    hues = chunk_colours(min(table.num_microbatches, MAX_OPERATIONS))  # a wrong file may name any micro-batch
    joined = np.diff(table.block, prepend=-1) == 0
    for row, (rank, kind, stage, microbatch, begins, ends) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        letter = tables.KINDS[kind]
        label = f"{stage}{letter}{microbatch}" if has_stages(table) else f"{letter}{microbatch}"
        colour = mixed(hues[microbatch % len(hues)], "#ffffff", PAPER_PARTS[letter])
        about = table.describe(row)
        bars[rank].append(PipelineBar(begins, ends, label, colour, about, bool(joined[row])))
    return bars


def has_stages(table: tables.PipelineTable) -> bool:
    """Whether a rank has several stages, so that labels begin with the stage, such as 5F2."""
    return table.placement.size > table.num_ranks


def ticks(end: float, most: int) -> list[float]:
    """Returns at most about `most` round times from 0 to `end`."""
    least = max(end, 1e-300) / max(1, most)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return [step * number for number in range(int(end / step * (1 + 1e-9)) + 1)]


def pipeline_headline(facts: dict[str, Any]) -> str:
    """Returns name, counts and times."""
    many = "" if facts["num_microbatches"] == 1 else "es"
    counts = f"{name_count(facts['num_ranks'], 'rank')}, {name_count(facts['num_stages'], 'stage')}, "
    counts += f"{facts['num_microbatches']} micro-batch{many}"
    return f"{facts['name']}: {counts}; {', '.join(f'{name}={time:g}' for name, time in facts['times'].items())}"


def pipeline_sums(facts: dict[str, Any]) -> list[str]:
    """Returns what the numbers of the whole table are: times, and the messages that channels must hold."""
    lines = []
    if facts["makespan"] is not None:
        lines.append(f"makespan {facts['makespan']:g}, cost {facts['cost']:g}, bubble rate {facts['bubble_rate']:.1%}")
    fewest = facts["fewest_messages"]
    if fewest["tagged"] is not None:
        fifo = "impossible" if fewest["fifo"] is None else fewest["fifo"]
        lines.append(f"fewest messages that each channel must hold: tagged {fewest['tagged']}, FIFO {fifo}")
    return lines


def pipeline_legend(table: tables.PipelineTable, timing: tables.PipelineTiming | None) -> list[str]:
    """Returns what labels and gaps mean."""
    kinds = [kind for number, kind in enumerate(tables.KINDS) if (table.kind == number).any()]
    parts = "stage, kind, micro-batch" if has_stages(table) else "kind, micro-batch"
    lines = [f"labels: {parts}; {', '.join(f'{kind} {KIND_NAMES[kind]}' for kind in kinds)}"]
    if (np.diff(table.block) == 0).any():
        lines.append("The two operations of a pair overlap.")
    lines.append(
        "The operations stand in the order of the table, which has no times."
        if timing is None
        else "Gaps are idle time."
    )
    return lines
