"""Writes the measured numbers of docs/numbers.json into README.md and docs/*.md.

    python docs/numbers.py                 # rewrite what stands between the marks
    python docs/numbers.py --check         # change nothing; the exit status is 1 if a page differs
    python docs/numbers.py --take FILE     # before that, take over what `benchmarks/compare.py --json FILE` measured

A mark is <!-- numbers:NAME -->...<!-- end -->. NAME is a key of BLOCKS, or of "numbers" or "runs" in the JSON file;
"run" is the run of the speed-ups. --take replaces the speed-ups and the goals; edit "numbers" by hand.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "numbers.json"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKS = re.compile(r"(<!-- numbers:(\w+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown, in lines of its own; all columns but the first are numbers."""
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return "\n" + "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows]) + "\n"


def speed(data: dict[str, Any]) -> str:
    """The table of README: all_reduce beside the fastest MPI and Gloo."""
    over_mpi, over_gloo = data["speed_up_over_fastest_mpi"], data["all_reduce_of_64_mib_over_gloo"]["ranks"]
    sizes, rows = ("8 B", "64 KiB", "64 MiB"), []
    for ranks in ("2", "8"):
        found = dict(zip(over_mpi["sizes"], over_mpi["ranks"][ranks]["all_reduce"], strict=True))
        rows.append([f"{ranks} ranks", *(f"{found[size]:.2f}" for size in sizes), f"{over_gloo[ranks]:.1f}"])
    return table(["all_reduce of float32", *(f"{size}, MPI" for size in sizes), "64 MiB, Gloo"], rows)


def cells(data: dict[str, Any]) -> str:
    """The table of docs/performance.md: every operation, size and rank count; bold is slower than the fastest MPI."""
    found = data["speed_up_over_fastest_mpi"]
    rows = []
    for operation in found["ranks"]["2"]:
        for ranks, of_operation in found["ranks"].items():
            words = [f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**" for ratio in of_operation[operation]]
            rows.append([operation, ranks, *words, *[""] * (len(found["sizes"]) - len(words))])
    return table(["operation", "ranks", *found["sizes"]], rows)


def missed(data: dict[str, Any]) -> str:
    """The goals that the run missed, a line each."""
    lines = []
    for goal in data["goals"]["missed"]:
        limit = f"at least {goal['at_least']:g}" if "at_least" in goal else f"at most {goal['at_most']:g}"
        lines.append(f"- {goal['goal']}: {limit}, measured {goal['found']:g}")
        if "cells" in goal:
            lines[-1] += f" ({goal['where']}); missed in {goal['behind']} of {goal['cells']} cells"
        if goal.get("out_of_reach"):
            lines[-1] += f", {goal['out_of_reach']} of them out of reach"
    return "\n" + "\n".join(lines) + "\n"


def ratios(data: dict[str, Any]) -> list[float]:
    """The speed-up over the fastest MPI of every cell."""
    of_ranks = data["speed_up_over_fastest_mpi"]["ranks"].values()
    return [ratio for operations in of_ranks for found in operations.values() for ratio in found]


BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "speed": speed,
    "cells": cells,
    "missed": missed,
    "ahead": lambda data: f"{sum(ratio > 1 for ratio in ratios(data))} of {len(ratios(data))}",
    "mean": lambda data: f"{math.exp(sum(map(math.log, ratios(data))) / len(ratios(data))):.2f}",
    "worst": lambda data: f"{min(ratios(data)):.2f}",
    "goals": lambda data: f"{len(data['goals']['missed'])} of {data['goals']['total']}",
}


def filled(text: str, data: dict[str, Any]) -> str:
    """The page with the numbers of `data` between its marks; KeyError where a mark has no number."""

    def text_of(name: str) -> str:
        if name in BLOCKS:
            return BLOCKS[name](data)
        run = data["speed_up_over_fastest_mpi"]["run"] if name == "run" else name
        if run in data["runs"]:
            return "{date}, {machine}, `{command}`".format(**data["runs"][run])
        number = data["numbers"][name]
        return f"{number['value']:g} {number['unit']}".strip()

    return MARKS.sub(lambda found: found[1] + text_of(found[2]) + found[4], text)


def main() -> int:
    """Writes or checks all pages; the exit status."""
    parser = argparse.ArgumentParser(description="Write the measured numbers of docs/numbers.json into the pages.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a page differs")
    parser.add_argument("--take", metavar="FILE", help="first take over a result of benchmarks/compare.py --json FILE")
    arguments = parser.parse_args()
    data = json.loads(NUMBERS.read_text())
    if arguments.take:
        sys.path[0] = str(ROOT / "benchmarks")  # no longer docs/, where "import numbers" would find this file
        from comparison import published

        data |= published.taken(arguments.take, data)
        NUMBERS.write_text(published.text(data))
    different = [page for page in PAGES if filled(page.read_text(), data) != page.read_text()]
    for page in different:
        print(page.relative_to(ROOT), "differs: python docs/numbers.py" if arguments.check else "written")
        if not arguments.check:
            page.write_text(filled(page.read_text(), data))
    return 1 if arguments.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
