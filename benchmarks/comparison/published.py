"""Turns a result of compare.py into parts of docs/numbers.json: speed-ups, missed goals, date, machine and command."""

import json
import re
from typing import Any

from comparison import goals, report
from comparison.goals import Faster, Goal
from comparison.results import Row, size_name


def taken(file: str, before: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of docs/numbers.json that this result replaces. before: the content of docs/numbers.json.

    Raises ValueError if the file is not from one whole run of compare.py; argparse.ArgumentTypeError if it is no
    result.
    """
    run = report.read_json(file)
    found = re.fullmatch(r"([\d-]+), \d+ rounds, \d+ s, (.*?); `(.*?)`; .*", run.machine)
    if found is None:
        raise ValueError(
            f"{file!r} is not from one whole run: expected its date, machine and command; found {run.machine!r}"
        )
    date, machine, command = found.groups()
    machine = re.sub(r"(\([^;)]*); [^)]*\)", r"\1)", machine)  # without the flags of the processor
    rows = [row for row in run.rows if row.dtype == "float32"]
    measured = speed_ups(rows)
    if cells_of(measured) != cells_of(before["speed_up_over_fastest_mpi"]):
        raise ValueError(f"{file!r} has other cells than the pages: it is from a quick run, or a part of a full run")
    gloo = {
        str(row.num_ranks): round(ratio, 1)
        for row in rows
        if (row.operation, row.num_bytes) == ("all_reduce", 64 << 20) and (ratio := row.ratio("hocket", "gloo"))
    }
    known = goals.across_rows(run.rows) | {name: run.costs[name] for name in run.costs if name != "communicators"}
    missed = [record for goal in goals.GOALS if (record := missed_goal(goal, run.rows, known))]
    name, used = f"compare-{date}", {number["run"] for number in before["numbers"].values()}
    runs = {known: run for known, run in before["runs"].items() if known in used}
    return {
        "runs": runs | {name: {"date": date, "machine": machine, "command": command}},
        "speed_up_over_fastest_mpi": {"run": name, **measured},
        "all_reduce_of_64_mib_over_gloo": {"run": name, "ranks": gloo},
        "goals": {"run": name, "total": len(goals.GOALS), "missed": missed},
    }


def speed_ups(rows: list[Row]) -> dict[str, Any]:
    """Returns the sizes, and the median ratios by rank count and operation."""
    sizes = sorted({row.num_bytes for row in rows if row.num_bytes})
    ranks: dict[str, dict[str, list[float]]] = {}
    for row in sorted(rows, key=lambda row: (row.num_ranks, row.num_bytes)):
        if (ratio := row.ratio("hocket")) is not None:
            ranks.setdefault(str(row.num_ranks), {}).setdefault(row.operation, []).append(round(ratio, 2))
    return {"sizes": [size_name(size) for size in sizes], "ranks": ranks}


def cells_of(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the sizes, and how many of them each operation has; a barrier has one."""
    counts = {ranks: {name: len(found) for name, found in of.items()} for ranks, of in table["ranks"].items()}
    return {"sizes": table["sizes"], "counts": counts}


def missed_goal(goal: Goal, rows: list[Row], known: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the goal, its measured value, and how many cells miss it; None if the run reached it."""
    outcome = goals.outcome(goal, rows, known)
    if outcome.reached or outcome.value is None:
        return None
    side = "at_most" if goal.at_most else "at_least"
    record = {"goal": goal.name, side: goal.limit * goal.scale, "found": float(f"{outcome.value * goal.scale:.3g}")}
    if goal.cells is not None and isinstance(goal.value, Faster):
        measured = [(value, row) for row in rows if goal.cells.has(row) and (value := goal.value(row)) is not None]
        behind = [row for value, row in measured if value < goal.limit]
        beyond = [row for row in behind if (most := goal.value.at_most(row)) is not None and most < goal.limit]
        where = min(measured, key=lambda each: each[0])[1].name()
        record |= {"where": where, "behind": len(behind), "cells": len(measured), "out_of_reach": len(beyond)}
    return record


def text(data: dict[str, Any]) -> str:
    """Returns the JSON, with each list of numbers or words on one line."""
    lines = json.dumps(data, indent=1, ensure_ascii=False)
    flat = r"\[\n\s+([^][{}]*?)\n\s+\]"
    return re.sub(flat, lambda found: "[" + re.sub(r",\n\s+", ", ", found[1]) + "]", lines) + "\n"
