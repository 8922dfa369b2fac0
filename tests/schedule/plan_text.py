"""Plans as lines of text, both ways: "step: operands -> destinations | after dependencies | flags n | chunk c".

i0, o0 and s0 are chunks of input, output and scratch; 2#1 is message 1 to or from rank 2. A star marks a raw operand.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.schedule import Plan, lower_all


def listing(plan: Plan) -> list[str]:
    """Returns the instructions of a plan."""
    lines, begin = [], [0, 0, 0]
    for step, chunk, *ends, flags in plan.instructions.tolist():
        sources, destinations = (
            [_words(*entry) for entry in entries.tolist()]
            for entries in (plan.sources[begin[0] : ends[0]], plan.destinations[begin[1] : ends[1]])
        )
        line = f"{step}: {' + '.join(sources)} -> {', '.join(destinations)}"
        if ends[2] > begin[2]:
            line += f" | after {', '.join(map(str, plan.dependencies[begin[2] : ends[2]]))}"
        line += (f" | flags {flags}" if flags else "") + (f" | chunk {chunk}" if chunk else "")
        lines.append(line)
        begin = ends
    return lines


def plan_of(model: Plan, lines: Sequence[str]) -> Plan:
    """Returns a plan with these instructions; the rest is as in the model, with as much scratch as they use."""
    instructions: list[list[int]] = []
    sources: list[list[int]] = []
    destinations: list[list[int]] = []
    dependencies: list[int] = []
    for line in lines:
        head, *options = line.split(" | ")
        step, read, written = re.fullmatch(r"(-?\d+): (.*) -> (.*)", head).groups()  # type: ignore[union-attr]
        option = {name: rest for name, rest in (text.split(" ", 1) for text in options)}
        sources += [[*_entry(text.rstrip("*")), int(text.endswith("*"))] for text in read.split(" + ")]
        destinations += [_entry(text) for text in written.split(", ")]
        dependencies += [int(text) for text in option.get("after", "").split(", ") if text]
        chunk, flags = int(option.get("chunk", 0)), int(option.get("flags", 0))
        instructions.append([int(step), chunk, len(sources), len(destinations), len(dependencies), flags])
    slots = [index for _, space, index, *_ in sources + destinations if space == 2]
    arrays: dict[str, Any] = {
        "instructions": np.array(instructions, np.int32).reshape(-1, 6),
        "sources": np.array(sources, np.int32).reshape(-1, 4),
        "destinations": np.array(destinations, np.int32).reshape(-1, 3),
        "dependencies": np.array(dependencies, np.int32),
    }
    return Plan(**{**vars(model), **arrays, "num_scratch": max(slots, default=-1) + 1})


def plans_of(schedule: Any, in_place: bool, *all_lines: Sequence[str]) -> list[Plan]:
    """Returns plans of all ranks with these instructions; the schedule gives the rest."""
    models = lower_all(schedule, in_place)
    return [plan_of(model, lines) for model, lines in zip(models, all_lines, strict=True)]


def _words(peer: int, space: int, index: int, raw: int = 0) -> str:
    return (f"{peer}#{index}" if space == 3 else f"{'ios'[space]}{index}") + "*" * raw


def _entry(text: str) -> list[int]:
    if "#" in text:
        peer, index = text.split("#")
        return [int(peer), 3, int(index)]
    return [-1, "ios".index(text[0]), int(text[1:])]
